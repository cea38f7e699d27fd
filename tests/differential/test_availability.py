"""Models that are unloaded, failed or unknown: clients get the same responses from both servers.

Each case is a script of loads, unloads and calls, played to both; the index and the responses to every
kind of call must be the same, word for word.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.differential.servers import ECHO, call, chain, launch_ours, noted
from tests.until import until

pytestmark = [pytest.mark.reference, pytest.mark.slow]

WAIT_S = 60.0
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no way")

    def execute(self, requests):
        return []
"""
TENSORS = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
PLAIN = 'backend: "python"' + TENSORS


def ensemble(*members: str) -> str:
    return chain(TENSORS, *members)


def versions(*numbers: int) -> str:
    return f"version_policy {{ specific {{ versions: {list(numbers)} }} }}"


def write(
    root: Path, name: str, config: str = PLAIN, numbers: tuple[int, ...] = (1,), code: str = ECHO
) -> None:
    for number in numbers:
        (root / name / str(number)).mkdir(parents=True, exist_ok=True)
        if "ensemble" not in config:
            (root / name / str(number) / "model.py").write_text(code)
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(config)


class Side:
    """One of the two servers, over repositories of its own."""

    def __init__(self, port: int, folder: Path) -> None:
        self.url = f"127.0.0.1:{port}"
        self.folder = folder
        self.one, self.two = folder / "one", folder / "two"

    def call(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        status, text = call(self.url, path, body)
        if status != 200:
            text = text.replace(str(self.folder), "")
            text = re.sub(r"\\n\\nAt:\\n.*?initialize\\n", "", text)
        return status, text

    def load(self, name: str) -> tuple[int, str]:
        return self.call(f"repository/models/{name}/load", b"{}")

    def unload(self, name: str, **parameters: Any) -> tuple[int, str]:
        body = json.dumps({"parameters": parameters}).encode()
        return self.call(f"repository/models/{name}/unload", body)

    def index(self) -> list[Any]:
        """Return the index once no model is loading or unloading."""

        def now() -> list[dict[str, Any]]:
            return json.loads(self.call("repository/index", b"{}")[1])

        until(lambda: not any(e.get("state") in ("UNLOADING", "LOADING") for e in now()), WAIT_S)
        return sorted(
            [e["name"], e.get("version"), e.get("state"), e.get("reason", "").partition("\n")[0]]
            for e in now()
        )

    def responses(self, name: str, *numbers: int) -> list[Any]:
        """Return the responses to every kind of call about a model and its versions."""
        tensor = {"name": "IN", "shape": [1, 1], "datatype": "FP32", "data": [1]}
        infer = json.dumps({"inputs": [tensor]}).encode()
        seen: list[Any] = []
        for path in (f"models/{name}", *(f"models/{name}/versions/{n}" for n in numbers)):
            for what, body in (
                ("/ready", None), ("/infer", infer), ("", None), ("/config", None), ("/stats", None)
            ):  # fmt: skip
                status, text = self.call(path + what, body)
                seen.append((path + what, status, text if status != 200 else ""))
        return seen

    def seen_ready(self, *names: str) -> list[Any]:
        """Return the responses about these models once the server is ready and nothing is unloading."""
        assert until(lambda: self.call("health/ready")[0] == 200, WAIT_S), self.index()
        return [self.index(), *(self.responses(name, 1, 2, 3) for name in names)]

    def seen_unready(self, *names: str) -> list[Any]:
        """Return the responses about these models of a server that does not become ready."""
        found = [self.index(), *(self.responses(name, 1, 2, 3) for name in names)]
        return [*found, self.call("health/ready")[0]]


Start = Callable[..., contextlib.AbstractContextManager[tuple[Side, Side]]]


@pytest.fixture
def start(reference, tmp_path: Path) -> Start:
    @contextlib.contextmanager
    def started(prepare: Callable[[Path], None], *flags: str) -> Iterator[tuple[Side, Side]]:
        with contextlib.ExitStack() as stack:
            sides = []
            for name in ("real", "ours"):
                folder = tmp_path / name
                for root in ("one", "two"):
                    (folder / root).mkdir(parents=True)
                prepare(folder)
                more = (f"--model-repository={folder / 'two'}", *flags)
                server = stack.enter_context(
                    reference.server(folder / "one", *more)
                    if name == "real"
                    else launch_ours(folder / "one", *more)
                )
                stack.enter_context(noted(name, server))
                sides.append(Side(server.http_port, folder))
            yield sides[0], sides[1]

    return started


def both(sides: tuple[Side, Side], script: Callable[[Side], list[Any]]) -> list[Any]:
    theirs, mine = (script(side) for side in sides)
    for number, (one, other) in enumerate(zip(_flat(mine), _flat(theirs), strict=True)):
        assert one == other, f"answer {number}"
    return mine


def _flat(seen: Any) -> Iterator[Any]:
    if isinstance(seen, list):
        for each in seen:
            yield from _flat(each)
    else:
        yield seen


def test_models_that_failed_were_unloaded_or_lost_a_version(start: Start) -> None:
    def prepare(folder: Path) -> None:
        root = folder / "one"
        write(root, "good", numbers=(1, 2, 3))
        write(root, "bad", code=BROKEN)
        write(root, "unreadable", "nonsense {")
        write(root, "half", PLAIN + "version_policy { all { } }", (1, 2))
        (root / "half" / "2" / "model.py").write_text(BROKEN)
        write(root, "none", PLAIN + versions(7))
        write(root, "empty", numbers=())

    def script(side: Side) -> list[Any]:
        seen: list[Any] = [side.seen_ready("good", "unknown")]
        for name in ("good", "unreadable", "unknown"):
            seen += [side.load(name), side.seen_ready(name)]
        seen += [side.unload("good"), side.seen_ready("good")]
        for numbers in ((1, 2), (7,), (3,)):
            write(side.one, "good", PLAIN + versions(*numbers), (1, 2, 3))
            seen += [side.load("good"), side.seen_ready("good")]
        for name in ("bad", "half", "none", "empty"):
            seen += [side.load(name), side.seen_unready(name)]
        seen += [side.unload("bad"), side.unload("none"), side.seen_unready("bad", "none")]
        return seen

    with start(prepare, "--model-control-mode=explicit") as sides:
        seen = str(both(sides, script))
    for text in ("has no available versions", "version 1 is not at ready state", "is not found"):
        assert text in seen


def test_ensembles_and_their_members(start: Start) -> None:
    def prepare(folder: Path) -> None:
        write(folder / "one", "a")
        write(folder / "one", "b", PLAIN + "version_policy { all { } }", (1, 2))
        write(folder / "one", "e", ensemble("a", "b"))
        write(folder / "one", "of_unknown", ensemble("unknown"))

    def script(side: Side) -> list[Any]:
        seen: list[Any] = []
        for name in ("of_unknown", "e"):
            seen += [side.load(name), side.seen_ready(name)]
        seen += [
            side.unload("b"),
            side.seen_ready("e", "b"),
            side.load("b"),
            side.seen_ready("e", "b"),
        ]
        seen += [side.unload("e", unload_dependents=True), side.seen_ready("e", "a", "b")]
        return seen

    with start(prepare, "--model-control-mode=explicit") as sides:
        both(sides, script)


def test_an_override_of_a_load_request_and_the_plain_request_that_undoes_it(start: Start) -> None:
    """But for files beside the same configuration: docs/differences.md, override-files-count."""
    config = {
        "backend": "python",
        "max_batch_size": 4,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
    }
    other = {**config, "max_batch_size": 8}

    def sent(numbers: dict[str, int], given: Any = config) -> dict[str, str]:
        found = {} if given is None else {"config": json.dumps(given) if given else given}
        for path, number in numbers.items():
            code = ECHO.replace(".as_numpy()", f".as_numpy() * {number}")
            found[f"file:{path}"] = base64.b64encode(code.encode()).decode()
        return found

    loads: list[dict[str, str]] = [
        sent({"1/model.py": 7}), {}, {}, sent({"1/model.py": 3}, other), {}, sent({"2/model.py": 9}),
        {}, sent({}, other), {}, sent({}, ""), {"config": "max_batch_size: 4"}, {"config": "{"},
        sent({"1/model.py": 9}, None), sent({"1/model.py": 9}, ""),
    ]  # fmt: skip
    unloads = [b"{", b'{"parameters":{"unload_dependents":1}}', b'{"parameters":[]}', b"[]", b""]

    def script(side: Side) -> list[Any]:
        def seen() -> list[Any]:
            tensor = {"name": "IN", "shape": [1, 1], "datatype": "FP32", "data": [1]}
            infer = json.dumps({"inputs": [tensor]}).encode()
            size = json.loads(side.call("models/m/config")[1]).get("max_batch_size")
            assert until(lambda: side.call("health/ready")[0] == 200, WAIT_S)
            return [side.call("models/m/infer", infer), size, side.index()]

        path, answers = "repository/models/m/", []
        for parameters in loads:
            body = json.dumps({"parameters": parameters}).encode()
            answers += [side.call(path + "load", body), seen()]
        for body in unloads:
            answers += [side.call(path + "unload", body), side.call("models/m/ready")[0]]
            answers.append(side.call(path + "load", b"{}"))
        return answers

    with start(lambda folder: write(folder / "one", "m"), "--model-control-mode=explicit") as sides:
        both(sides, script)


def test_a_model_in_two_repositories_controlled(start: Start) -> None:
    def prepare(folder: Path) -> None:
        for root in ("one", "two"):
            write(folder / root, "m")
        write(folder / "one", "other")

    def script(side: Side) -> list[Any]:
        seen: list[Any] = [side.seen_ready("m"), side.load("m"), side.seen_ready("m")]
        shutil.rmtree(side.two / "m")
        seen += [side.load("m"), side.seen_ready("m")]
        write(side.two, "m")
        seen += [side.load("m"), side.seen_ready("m")]
        seen += [side.unload("m"), side.seen_ready("m")]
        shutil.rmtree(side.one / "m")
        return [*seen, side.load("m"), side.seen_ready("m")]

    with start(prepare, "--model-control-mode=explicit", "--load-model=other") as sides:
        seen = both(sides, script)
    assert "model appears in two or more repositories" in str(seen[2])


def test_a_model_in_two_repositories_polled(start: Start) -> None:
    def prepare(folder: Path) -> None:
        for root in ("one", "two"):
            write(folder / root, "m")
        write(folder / "one", "other")

    def script(side: Side) -> list[Any]:
        def ready(name: str) -> bool:
            return side.call(f"models/{name}/ready")[0] == 200

        seen: list[Any] = [side.seen_ready("m", "other")]
        shutil.rmtree(side.two / "m")
        assert until(lambda: ready("m"), WAIT_S)
        seen.append(side.seen_ready("m"))
        write(side.two, "m")
        assert until(lambda: not ready("m"), WAIT_S)
        seen.append(side.seen_ready("m"))
        shutil.rmtree(side.one / "m")
        assert until(lambda: ready("m"), WAIT_S)
        shutil.rmtree(side.one / "other")
        assert until(lambda: not ready("other"), WAIT_S)
        return [*seen, side.seen_ready("m", "other")]

    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    with start(prepare, *flags) as sides:
        both(sides, script)
