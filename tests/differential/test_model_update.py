"""Triton's suite of updates, `L0_model_update`, by behaviour: here in threads and processes, and beside the real server.

Each load over HTTP is answered when as many instances have begun and ended as the suite says; those that a change of
another field or file replaces, and those with open sequences, end later.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nbtriton
from nbtriton.common.errors import TritonError
from nbtriton.model.config import to_json
from nbtriton.serving.clients.grpc import GrpcClient
from tests.differential.harness import Model, write
from tests.differential.servers import COMPLETE
from tests.differential.test_updates import (
    ONE,
    PLAIN,
    SEQUENCES,
    SOURCE,
    Side,
    full_run,
    group,
    pbtxt,
)
from tests.until import until

pytestmark = pytest.mark.slow

WAIT_S = 60.0
LIMITS: dict[str, dict[str, Any]] = {
    "off": {},
    "execution_count": {"rate_limit": "execution_count"},
    "explicit": {"rate_limit": "execution_count", "rate_limit_resources": ["R1:10"]},
}
REAL = [pytest.mark.reference, full_run]
SIDES = [
    # The limiter knows instances, not where they live: each of its modes once, with resources in both kinds.
    *[("thread", limit) for limit in LIMITS],
    ("process", "explicit"),
    *[pytest.param(("real", limit), marks=REAL) for limit in LIMITS],
]


class Suite(Side):
    """A server with the model of the suite, which is loaded by its configuration."""

    limited: str
    grpc: GrpcClient  # tritonserver reads no request over HTTP on the thread on which it loads

    def infer(self, name: str, **parameters: Any) -> int:
        reply = self.grpc.infer(name, {"IN": ONE}, parameters=parameters)
        return int(reply.outputs["OUT"].item())

    def lines(self) -> tuple[int, int]:
        """Return how many instances have begun and ended."""
        words = [line.split()[0] for line in self.journal("model")]
        return words.count("begin"), words.count("end")

    def update(
        self, groups: Sequence[dict[str, Any]], expected: tuple[int, int], **more: Any
    ) -> None:
        assert not self.load("model", *groups, **more)
        assert self.lines() == expected

    def update_later(
        self, groups: Sequence[dict[str, Any]], expected: tuple[int, int], **more: Any
    ) -> None:
        """Load what replaces instances that the load does not wait for."""
        assert not self.load("model", *groups, **more)
        assert self.lines()[0] == expected[0]
        assert until(lambda: self.lines() == expected, WAIT_S)

    def ask(self, count: int = 2) -> None:
        for _ in range(count):
            self.infer("model")

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Four clients send requests, none of which fails."""
        over = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                while not over.is_set():
                    self.infer("model")
            except BaseException as error:
                failed.append(error)

        clients = [threading.Thread(target=run) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            over.set()
            for client in clients:
                client.join(WAIT_S)
        assert not failed


@contextlib.contextmanager
def served(
    folder: Path, kind: str, limit: str, request: pytest.FixtureRequest
) -> Iterator[tuple[int, int, Any]]:
    """Run a server with a repository; yields its ports, and the process of the real one."""
    options = LIMITS[limit]
    if kind != "real":
        with nbtriton.Server(gpus=(), isolation=kind, **options) as server:
            server.load_repository(folder / "repository", control_mode="explicit")
            endpoints = server.serve(http_port=0, grpc_port=0, metrics_port=None)
            yield endpoints.http_port, endpoints.grpc_port, None
        return
    reference = request.getfixturevalue("reference")
    # As in `test_updates`: no byte code appears beside the model.
    python = str(reference.directory / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "compileall", "-q", str(folder)], check=True)
    flags = [f"--rate-limit={options.get('rate_limit', 'off')}"]
    flags += [f"--rate-limit-resource={one}" for one in options.get("rate_limit_resources", ())]
    with reference.server(
        folder / "repository", "--model-control-mode=explicit", COMPLETE, *flags, log=folder / "log"
    ) as server:
        yield server.http_port, server.grpc_port, server


@pytest.fixture(scope="module", params=SIDES, ids="-".join)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Suite]:
    kind, limit = request.param
    folder = tmp_path_factory.mktemp(f"{kind}-{limit}")
    write(folder / "repository", [Model("model", pbtxt(PLAIN), SOURCE)])
    with served(folder, kind, limit, request) as (http_port, grpc_port, server):
        suite = Suite(f"127.0.0.1:{http_port}", folder, server)
        suite.grpc, suite.limited = GrpcClient(f"127.0.0.1:{grpc_port}"), limit
        yield suite
        for client in (suite.client, suite.grpc):
            client.close()


@pytest.fixture
def side(running: Suite) -> Iterator[Suite]:
    """The server; at the end the model is unloaded, and each instance that has begun has ended."""
    yield running
    begun, _ = running.lines()
    running.unload("model")
    assert until(lambda: running.lines() == (begun, begun), WAIT_S)
    with pytest.raises(TritonError):
        running.infer("model")
    (running.folder / "model.journal").unlink(missing_ok=True)


# Instances of two kinds: Triton's suite has a GPU for the other one.
CPU, OTHER = group, lambda count, **more: group(count, host_policy="other", **more)


@dataclass(frozen=True)
class Case:
    """Loads, one after the other: the groups, and how many instances have begun and ended then."""

    name: str
    steps: tuple[tuple[list[dict[str, Any]], tuple[int, int]], ...]
    busy: bool = False
    dynamic: bool = False


CASES = [
    *[
        Case(f"{name}_{'with' if dynamic else 'no'}_batching", steps, busy=True, dynamic=dynamic)
        for name, steps in (
            (
                "add_rm_add_instance",
                (
                    ([CPU(2)], (2, 0)),
                    ([CPU(3)], (3, 0)),
                    ([CPU(2)], (3, 1)),
                    ([CPU(3)], (4, 1)),
                ),
            ),
            (
                "rm_add_rm_instance",
                (
                    ([CPU(2)], (2, 0)),
                    ([CPU(1)], (2, 1)),
                    ([CPU(2)], (3, 1)),
                    ([CPU(1)], (3, 2)),
                ),
            ),
        )
        for dynamic in (False, True)
    ],
    # A count of 0 is one of 1.
    Case("rm_instance_to_zero", (([CPU(1)], (1, 0)), ([CPU(0)], (1, 0)))),
    *[
        Case(
            f"{name}_instance_update",
            (
                ([made(5)], (5, 0)),
                ([made(3)], (5, 2)),
                ([made(1)], (5, 4)),
                ([made(1)], (5, 4)),
                ([made(2)], (6, 4)),
                ([made(5)], (9, 4)),
            ),
        )
        for name, made in (("cpu", CPU), ("gpu", OTHER))
    ],
    Case(
        "gpu_cpu_instance_update",
        (
            ([CPU(2), OTHER(1)], (3, 0)),
            ([CPU(1), OTHER(3)], (5, 1)),
            ([OTHER(3), CPU(1)], (5, 1)),
            ([OTHER(2), CPU(2)], (6, 2)),
        ),
    ),
    Case(
        "instance_name_update",
        (
            ([CPU(1, name="old_1"), OTHER(2, name="old_2")], (3, 0)),
            ([CPU(1, name="new_1"), OTHER(2, name="new_2")], (3, 0)),
        ),
    ),
    Case(
        "instance_signature",
        (
            ([OTHER(2, name="others"), CPU(3, name="these")], (5, 0)),
            ([CPU(1, name="a"), CPU(2, name="b"), OTHER(1, name="c"), OTHER(1, name="d")], (5, 0)),
            ([CPU(3, name="these"), OTHER(2, name="others")], (5, 0)),
            ([OTHER(1, name="c"), OTHER(1, name="d"), *[CPU(1, name=n) for n in "efg"]], (5, 0)),
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_instances(side: Suite, case: Case) -> None:
    more = {"dynamic_batching": {}} if case.dynamic else {}
    first, *rest = case.steps
    side.update(*first, **more)
    with side.busy() if case.busy else contextlib.nullcontext():
        for step in rest:
            side.update(*step, **more)
            side.ask()


def test_invalid_config(side: Suite) -> None:
    side.update([CPU(4)], (4, 0))
    assert side.load_as_it_is("model", {"config": "--- invalid config ---"})
    side.update([CPU(2)], (4, 2))
    side.ask()


def test_model_file_update(side: Suite) -> None:
    side.update([CPU(2)], (2, 0))
    file = side.folder / "repository" / "model" / "1" / "model.py"
    file.write_text(file.read_text() + "\n# changed\n")
    side.update_later([CPU(3)], (5, 2))
    side.ask()


def test_non_instance_config_update(side: Suite) -> None:
    side.update([CPU(3)], (3, 0))
    side.update_later([CPU(2)], (5, 3), dynamic_batching={})
    side.ask()


def test_load_api_with_config(side: Suite) -> None:
    side.update([CPU(1)], (1, 0))
    config = side.client.config("model")
    config.instance_group[0].count += 1
    assert not side.load_as_it_is("model", {"config": to_json(config)})
    assert side.lines() == (2, 0)
    side.ask()


def test_update_while_inferencing(side: Suite) -> None:
    """Another instance is made while the one there is computes."""
    side.update([CPU(1)], (1, 0))
    gate = side.folder / "gate"
    asking = threading.Thread(target=side.infer, args=("model",), kwargs={"gate": str(gate)})
    asking.start()
    assert until(lambda: side.together("model") == 1, WAIT_S)
    side.update([CPU(2)], (2, 0))
    assert asking.is_alive()
    gate.touch()
    asking.join(WAIT_S)
    gate.unlink()
    side.ask()


def test_infer_while_updating(side: Suite) -> None:
    """The instance there is answers while another one is made."""
    side.update([CPU(1)], (1, 0))
    closed = side.folder / "closed"
    closed.touch()
    loading = threading.Thread(target=side.update, args=([CPU(2)], (2, 0)))
    loading.start()
    assert until(lambda: "wait 1" in side.journal("model"), WAIT_S)
    side.ask()
    assert loading.is_alive()
    closed.unlink()
    loading.join(WAIT_S)
    assert side.lines() == (2, 0)
    side.ask()


def needs(count: int) -> list[dict[str, Any]]:
    return [group(1, rate_limiter={"resources": [{"name": "R1", "count": count}]})]


@pytest.mark.parametrize(
    ("before", "after"), [(2, 8), (4, 3)], ids=["resource_increase", "resource_decrease"]
)
def test_instance(side: Suite, before: int, after: int) -> None:
    if side.limited == "off":
        pytest.skip("resources count with a rate limiter")
    side.update(needs(before), (1, 0))
    side.update(needs(after), (2, 1))
    side.ask(8)  # none waits for what there is not


def test_instance_resource_increase_above_explicit(side: Suite) -> None:
    if side.limited != "explicit":
        pytest.skip("only a limit that is set is too small")
    side.update(needs(2), (1, 0))
    assert side.load("model", *needs(32))
    begun, ended = side.lines()
    side.update(needs(10), (begun + 1, ended + 1))
    side.ask()


STRATEGIES = {
    "direct": {"direct": {}},
    "oldest": {"oldest": {"max_candidate_sequences": 4}},
}


@pytest.fixture(params=STRATEGIES)
def sequences(request: pytest.FixtureRequest) -> dict[str, Any]:
    batching = {**SEQUENCES["sequence_batching"], **STRATEGIES[request.param]}
    return {"sequence_batching": batching}


def send(side: Suite, sequence: int, flags: str = "") -> None:
    side.infer(
        "model", sequence_id=sequence, sequence_start="S" in flags, sequence_end="E" in flags
    )


def test_scheduler_update_no_ongoing_sequences(side: Suite, sequences: dict[str, Any]) -> None:
    for count, expected in ((2, (2, 0)), (4, (4, 0)), (3, (4, 1))):
        side.update_later([CPU(count)], expected, **sequences)
        for flags in ("S", "", "E"):
            send(side, 1, flags)


def test_scheduler_update_with_ongoing_sequences(side: Suite, sequences: dict[str, Any]) -> None:
    """An instance that is taken away lives as long as its sequences."""
    side.update([CPU(3)], (3, 0), **sequences)
    send(side, 1, "S")
    send(side, 2, "S")
    side.update_later([OTHER(1)], (4, 1), **sequences)
    send(side, 1)
    send(side, 2)
    send(side, 3, "S")
    assert side.lines() == (4, 1)
    send(side, 1, "E")
    send(side, 2, "E")
    assert until(lambda: side.lines() == (4, 3), WAIT_S)
    send(side, 3, "E")
