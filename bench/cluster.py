"""Instances on a Ray of two nodes, beside the same actor in a bare loop: ``make cluster``.

It starts two nodes on this machine, prints a line for each measurement, and ends them. Both sides of a comparison run in
turn, and what is compared is the median of the rounds. A step in the real tritonserver, instances by load, plans, the end
of a kernel and lost nodes follow; then a third node joins for many small actors, and the tests of these extensions, the
examples, the differential suite and the twins run by their own commands. The status is 1 if a line missed what is asked.
Ray listens to every network unless its address is 127.0.0.1, of which it makes another one: where the system allows it,
all of it runs in a network of its own.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter, process_time, sleep
from typing import Any

import numpy as np

import nbtriton as nt
from bench.processes import cpu_s, family, lives
from nbtriton.extensions.verify.install import ensure_reference
from nbtriton.serving.clients.http import HttpClient
from nbtriton.types import Profile

__all__ = ["main"]

_STORE = 80 << 20
# Of all kills: half a minute each on a quiet machine.
_FAULTS_S = 900
# Ray takes 127.0.0.1 for the outer address of the machine.
_HOST = "127.0.0.2"
_CONFIG = (
    'input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} '
    "max_batch_size: 0 instance_group {{ count: {count} kind: KIND_CPU }} "
    'parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "ray" }} }} '
    'parameters {{ key: "INSTANCE_RESOURCES" value {{ string_value: "{resources}" }} }}'
)
# What `computing` does, in a process of its own.
_SPIN = """
from time import perf_counter, process_time
began = perf_counter()
for _ in range(100):
    end = process_time() + 0.02
    while process_time() < end:
        pass
print(100 / (perf_counter() - began))
"""
_KERNEL = """
import os, sys, time
import nbtriton as nt
server = nt.Server(gpus=(), ray=sys.argv[1])
def pid(IN):
    time.sleep(0.05)
    return {"OUT": [float(os.getpid())]}
server.load(sys.argv[2], pid, name="m")
requests = [server.submit("m", {"IN": [1.0]}) for _ in range(9)]
print(*(int(one.result()["OUT"][0]) for one in requests), flush=True)
time.sleep(600)
"""
_PLUS = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one + 1)]) for one in arrays]
"""
_IN_OUT = 'max_batch_size: 0 input { name: "IN" data_type: TYPE_FP32 dims: -1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 }'
_STEPS = """ platform: "ensemble" ensemble_scheduling {
    step { model_name: "far" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "half" } }
    step { model_name: "plus" model_version: -1 input_map { key: "IN" value: "half" } output_map { key: "OUT" value: "OUT" } }
}"""
# A network with loopback alone.
_ALONE = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
# On a busy machine a worker may take longer than Ray's minute to start, and a driver then waits for it for ever.
_PATIENT = {"RAY_worker_register_timeout_seconds": "600", "RAY_prestart_worker_first_driver": "0"}
_said: list[bool] = []


def double(IN: Any) -> dict[str, Any]:  # noqa: N803 - a tensor
    """Be the model."""
    return {"OUT": IN * 2}


def waiting(IN: Any) -> dict[str, Any]:  # noqa: N803 - a tensor
    """Be a model that waits for an accelerator."""
    sleep(0.02)
    return {"OUT": IN}


def brief(IN: Any) -> dict[str, Any]:  # noqa: N803 - a tensor
    """Be a model that waits for a fast accelerator."""
    sleep(0.001)
    return {"OUT": IN}


def computing(IN: Any) -> dict[str, Any]:  # noqa: N803 - a tensor
    """Be a model that takes a processor."""
    began = process_time()
    while process_time() - began < 0.02:
        pass
    return {"OUT": IN}


class _Bare:
    def run(self, tensor: Any) -> Any:
        return tensor * 2


class TwoNodes:
    """A Ray of two nodes with two processors each, on this machine and on loopback alone."""

    def __init__(self) -> None:
        import ray

        ray.init(
            address="local", num_cpus=2, resources={"first": 9}, include_dashboard=False, log_to_driver=False,
            object_store_memory=_STORE, _node_ip_address=_HOST, logging_level="error",
        )  # fmt: skip
        self.address = str(ray.get_runtime_context().gcs_address)
        self.second = self._start("second", 2)
        self._wait(2)

    def _start(self, name: str, cpus: int) -> subprocess.Popen[bytes]:
        command = (
            f"-m ray.scripts.scripts start --block --address={self.address} --node-ip-address={_HOST} --num-cpus={cpus} "
            f"--object-store-memory={_STORE} --disable-usage-stats"
        )
        return subprocess.Popen(
            [sys.executable, *command.split(), f'--resources={{"{name}": 9}}'],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def _wait(self, nodes: int) -> None:
        import ray

        deadline = monotonic() + 180
        while sum(node["Alive"] for node in ray.nodes()) != nodes:
            if monotonic() > deadline:
                raise TimeoutError(f"not {nodes} nodes after 180 s")
            sleep(0.2)

    def lose(self) -> None:
        """Kill the second node, with all its processes."""
        _kill(self.second)

    def replace(self) -> None:
        """Add a node in the place of the second one, once Ray has missed that."""
        self._wait(1)
        self.second = self._start("second", 2)
        self._wait(2)

    @contextmanager
    def crowd(self) -> Iterator[None]:
        """Add a node with room for the actors of hundreds of models, until the block ends."""
        third = self._start("third", 400)
        try:
            self._wait(3)
            yield
        finally:
            _kill(third)
            self._wait(2)

    def close(self) -> None:
        """End both."""
        import ray

        ray.shutdown()
        self.lose()


def _kill(node: subprocess.Popen[bytes]) -> None:
    for pid in family(node.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait()


def one_at_a_time(call: Callable[[], object], count: int) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for _ in range(count):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return statistics.median(times) * 1e6


def in_flight(
    submit: Callable[[], Any], result: Callable[[Any], object], count: int, depth: int = 32
) -> float:
    """Return the calls per second with so many in flight."""
    began, pending = perf_counter(), deque[Any]()
    for _ in range(count):
        pending.append(submit())
        if len(pending) == depth:
            result(pending.popleft())
    for one in pending:
        result(one)
    return count / (perf_counter() - began)


def compare(
    title: str, unit: str, ours: Callable[[], float], bare: Callable[[], float], bound: float
) -> None:
    """Print both sides; a bound above 1 is the most, one below the least."""
    ours(), bare()
    found = [(ours(), bare()) for _ in range(5)]
    mine, other = (statistics.median(one) for one in zip(*found, strict=True))
    ratio = mine / other
    good = ratio <= bound if bound > 1 else ratio >= bound
    say(
        f"{title}: {mine:,.0f} {unit}, bare Ray {other:,.0f} {unit}: {ratio:.2f} times ({'at most' if bound > 1 else 'at least'} {bound})",
        good,
    )


def say(text: str, good: bool) -> None:
    """Print a line."""
    _said.append(good)
    load = os.getloadavg()[0]
    print(f"{'ok    ' if good else 'MISSED'} {text} [load {load:.1f}]", flush=True)


def beside_bare_ray(server: nt.Server) -> None:
    """One instance on the second node, and an actor there."""
    import ray

    server.load(_CONFIG.format(count=1, resources="CPU=0,second=1"), double, name="far")
    actor = ray.remote(_Bare).options(num_cpus=0, resources={"second": 1}).remote()
    small, large = np.ones(4, np.float32), np.ones(1 << 18, np.float32)

    def ours(tensor: Any) -> Callable[[], object]:
        return lambda: server.infer("far", {"IN": tensor})

    def bare(tensor: Any) -> Callable[[], object]:
        return lambda: ray.get(actor.run.remote(tensor))

    for title, tensor, count in (("one call", small, 200), ("one call of 1 MB", large, 40)):
        compare(
            title, "us",
            partial(one_at_a_time, ours(tensor), count), partial(one_at_a_time, bare(tensor), count), 1.15,
        )  # fmt: skip
    compare(
        "32 in flight", "calls/s",
        lambda: in_flight(lambda: server.submit("far", {"IN": small}), lambda one: one.result(), 1000),
        lambda: in_flight(lambda: actor.run.remote(small), ray.get, 1000), 0.9,
    )  # fmt: skip
    spent = []
    for call in (ours(small), bare(small)):
        before = cpu_s(os.getpid())
        one_at_a_time(call, 2000)
        spent.append((cpu_s(os.getpid()) - before) / 2000 * 1e6)
    say(
        f"processor time of a call, all processes: {spent[0]:,.0f} us, bare Ray {spent[1]:,.0f} us",
        spent[0] < spent[1],
    )
    ray.kill(actor)
    server.unload("far")


def one_outstanding(server: nt.Server) -> None:
    """What part of the time an instance runs its model, as it gets one batch at a time; two, and two that share an actor."""
    shared = 'parameters { key: "INSTANCE_SHARING" value { string_value: "2" } }'
    kinds = {"one": (1, ""), "two": (2, ""), "sharing": (2, shared)}
    for model, count in ((brief, 200), (waiting, 50)):
        for name, (instances, more) in kinds.items():
            config = _CONFIG.format(count=instances, resources="CPU=0,second=1") + more
            server.load(config, model, name=name)
        for size in (1, 1 << 18):
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
            for name in [*kinds] * 3:
                submit = partial(server.submit, name, {"IN": np.ones(size, np.float32)})
                in_flight(submit, lambda one: one.result(), 20, 8)
                before = model_s(server, name)
                rate = in_flight(submit, lambda one: one.result(), count, 8)
                found[name].append((rate, (model_s(server, name) - before) / count * rate))
            one, two, sharing = (sorted(runs)[1] for runs in found.values())
            say(
                f"{model.__name__}, {4 * size:,} bytes each way, 8 in flight: the model runs {one[1]:.0%} of the time, "
                f"{one[0]:,.0f} calls/s; with two instances on the node {two[0]:,.0f} calls/s; with two that share an actor "
                f"{sharing[0]:,.0f} calls/s, {sharing[1]:.0%}",
                True,
            )
        for name in kinds:
            server.unload(name)


def model_s(server: nt.Server, name: str) -> float:
    """Return the seconds in which a model has run, by the clock of its node."""
    return sum(one.compute_infer_ns for one in server.models() if one.name == name) / 1e9


def two_of_one(server: nt.Server) -> None:
    """A model of which an instance takes a whole node, with one instance and with two."""
    submit = partial(server.submit, "busy", {"IN": np.ones(1, np.float32)})
    for model in (waiting, computing):
        rates: dict[int, list[float]] = {1: [], 2: []}
        bare: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(3):
            for count, found in rates.items():
                server.load(_CONFIG.format(count=count, resources="CPU=2"), model, name="busy")
                in_flight(submit, lambda one: one.result(), 20, 8)
                found.append(in_flight(submit, lambda one: one.result(), 150, 8))
                server.unload("busy")  # two versions have no room beside each other
                if model is computing:
                    bare[count].append(spinning(count))
        one, two = (statistics.median(found) for found in rates.values())
        beside = ""
        if model is computing:
            ratio = statistics.median(bare[2]) / statistics.median(bare[1])
            beside = f"; two bare processes {ratio:.2f} times one"
        say(
            f"{model.__name__}, two nodes: {two:.0f} calls/s, one {one:.0f}: {two / one:.2f} times (at least 1.9){beside}",
            two >= 1.9 * one,
        )


def spinning(count: int) -> float:
    """Return the calls per second of so many processes that do what `computing` does, and nothing else."""
    command = [sys.executable, "-I", "-S", "-c", _SPIN]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    return sum(float(one.communicate()[0]) for one in processes)


class Clients:
    """Threads that send one request after the other, until `join`; each has its own number."""

    def __init__(self, server: nt.Server, model: str, count: int, pause_s: float = 0.0) -> None:
        self.outcomes: list[str] = []
        self._server, self._model, self._pause_s = server, model, pause_s
        self._numbers, self._ended = itertools.count(), threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for one in self._threads:
            one.start()

    def _run(self) -> None:
        while not self._ended.wait(self._pause_s):
            number = next(self._numbers) % (1 << 24)  # exact in FP32
            try:
                inputs = {"IN": np.full(1, number, np.float32)}
                result = self._server.submit(self._model, inputs).result(120)
                self.outcomes.append("right" if result["OUT"].tolist() == [number] else "WRONG")
            except nt.TritonError as error:
                healthy = "is not healthy" not in str(error)
                self.outcomes.append(f"OTHER: {error}" if healthy else "failed")
            except TimeoutError:
                self.outcomes.append("UNANSWERED")

    def join(self) -> tuple[int, Counter[str]]:
        """End them; return how many requests were sent, and the outcomes."""
        self._ended.set()
        for one in self._threads:
            one.join()
        return next(self._numbers), Counter(self.outcomes)


def lose_nodes(server: nt.Server, cluster: TwoNodes, kills: int, least: int) -> None:
    """Kill the second node under load, and replace it, again and again; each request is answered once."""
    # More restarts than kills: ten of them without a quiet minute are given up by default.
    often = 'parameters { key: "INSTANCE_RESTARTS" value { string_value: "number=1000" } }'
    server.load(_CONFIG.format(count=2, resources="CPU=2") + often, waiting, name="lost")
    clients = Clients(server, "lost", 8)
    times: list[float] = []
    end = monotonic() + _FAULTS_S
    try:
        while len(times) < kills and (began := monotonic()) < end:
            cluster.lose()
            cluster.replace()
            while not back(server) and monotonic() - began < 90:
                sleep(0.1)
            times.append(monotonic() - began)
            print(f"       {times[-1]:.0f} s, {Counter(clients.outcomes)}", flush=True)
        while len(clients.outcomes) < least and monotonic() < end:
            sleep(0.1)
    finally:
        sent, outcomes = clients.join()
    right = outcomes.total() == sent >= least and {*outcomes} <= {"right", "failed"}
    say(
        f"the second node killed {len(times)} times in {sent:,} requests: {dict(outcomes)}, both instances back after "
        f"{statistics.median(times):.0f} s, at most {max(times):.0f} s",
        right and len(times) == kills and max(times) < 90,
    )
    server.unload("lost")


def by_load(server: nt.Server) -> None:
    """Eight clients that one instance is too slow for, and then one that rests most of the time; no request is lost."""
    server.load(_CONFIG.format(count=1, resources="CPU=1"), waiting, name="scaled")
    counts = []
    with nt.autoscale(server, "scaled", between=(1, 4), p99_ms=60) as scaling:
        for many, pause_s, reached in ((8, 0.0, range(3, 5)), (1, 0.2, range(1, 2))):
            began, clients = monotonic(), Clients(server, "scaled", many, pause_s)
            while (now := int(scaling.frame["after"].iloc[-1])) not in reached:
                if monotonic() - began > 120:
                    break
                sleep(0.5)
            sent, outcomes = clients.join()
            counts.append((sent, outcomes, now))
    (up, first, most), (down, second, least) = counts
    say(
        f"instances by load: {most} under eight clients, then {least} under one that rests; of {up + down:,} requests "
        f"{dict(first + second)}",
        most >= 3 and least == 1 and first + second == Counter(right=up + down),
    )
    server.unload("scaled")


def step_in_triton(server: nt.Server) -> None:
    """An ensemble: its first step on the second node, its second in the real tritonserver."""
    server.load(_CONFIG.format(count=1, resources="CPU=0,second=1"), double, name="far")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "plus" / "1").mkdir(parents=True)
        (root / "plus" / "1" / "model.py").write_text(_PLUS)
        (root / "plus" / "config.pbtxt").write_text(f'backend: "python" {_IN_OUT}')
        with ensure_reference().server(root, "--model-control-mode=explicit") as triton:
            with HttpClient(triton.http_url) as client:
                client.load("plus")
            server.load("", nt.remote(triton.http_url, model="plus"), name="plus")
            server.load(_IN_OUT + _STEPS, name="both")
            wrong, numbers = [], itertools.count()

            def call() -> None:
                number = next(numbers)
                result = server.infer("both", {"IN": np.full(4, number, np.float32)})
                if result["OUT"].tolist() != [2 * number + 1] * 4:
                    wrong.append(number)

            typical_us = one_at_a_time(call, 1000)
            for name in ("both", "plus", "far"):
                server.unload(name)
    say(
        f"an ensemble with a step on a node and one in tritonserver: {next(numbers):,} requests, {len(wrong)} wrong, "
        f"{typical_us:,.0f} us each",
        not wrong,
    )


def capacity(server: nt.Server) -> None:
    """A node each behind a dispatcher that chooses at random: p99, and what a profile of one node predicts."""
    nodes, rate, requests = ("first", "second"), 60, 4000
    for name in nodes:
        server.load(_CONFIG.format(count=1, resources=f"CPU=1,{name}=1"), waiting, name=name)
    machines = {"node": {"instances": 1, "price_per_hour": 1.0, "nodes": 2}}
    profile = nt.profile(server, "second", shapes={"IN": (1,)}, at_once=1)
    plan = nt.capacity(profile, request_rate=rate, p99_ms=1000, machines=machines)
    (fleet,) = (one for one in plan.fleets if one.nodes == 2)
    chance, inputs, latencies = random.Random(1), {"IN": np.ones(1, np.float32)}, list[float]()

    def answered(due: float, _: object) -> None:
        latencies.append((perf_counter() - due) * 1e3)

    due = perf_counter()
    for _ in range(requests):
        due += chance.expovariate(rate)
        sleep(max(0.0, due - perf_counter()))
        server.submit(chance.choice(nodes), inputs).add_done_callback(partial(answered, due))
    while len(latencies) < requests:
        sleep(0.1)
    p99_ms = sorted(latencies)[int(0.99 * requests)]
    low, high = fleet.p99_range_ms or (fleet.p99_ms, fleet.p99_ms)
    say(
        f"capacity, {rate} requests/s to two nodes: p99 {p99_ms:.0f} ms, predicted {fleet.p99_ms:.0f} ms, {low:.0f} to "
        f"{high:.0f} ms (within 15% or the range)",
        abs(fleet.p99_ms / p99_ms - 1) <= 0.15 or low <= p99_ms <= high,
    )
    for name in nodes:
        server.unload(name)


def thousand() -> None:
    """A fleet of a thousand instances for ten million requests an hour, and one more for the loss of a node."""
    slow = Profile.declared({"bert": {1: 600, 8: 2400}}, {"bert": "dynamic_batching { }"})
    machines = {"eight": {"instances": 8, "price_per_hour": 12.0}}
    began = process_time()
    found = nt.capacity(slow, request_rate=1e7 / 3600, p99_ms=4000, machines=machines, losses=1)
    fleet, spent = found.chosen, process_time() - began
    assert fleet is not None
    say(
        f"a plan for ten million requests an hour: {fleet.nodes * fleet.instances:,} instances on {fleet.nodes} nodes, "
        f"{spent:.1f} s of one core (at most 60)",
        spent <= 60 and 800 < fleet.nodes * fleet.instances < 1200,
    )


def run(words: str, _: nt.Server, cluster: TwoNodes) -> None:
    """Run a program with one node more, and print what it prints; its last line says what it found."""
    last = ""
    with (
        cluster.crowd(),
        subprocess.Popen(
            [sys.executable, *words.split()], env=os.environ | {"RAY_ADDRESS": cluster.address},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    say(f"{words}: {last}", not process.returncode)


def end_of_a_kernel(address: str) -> None:
    """Kill a kernel with two actors."""
    config = _CONFIG.format(count=2, resources="CPU=1")
    command = [sys.executable, "-c", _KERNEL, address, config]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as kernel:
        assert kernel.stdout is not None
        actors = {*map(int, kernel.stdout.readline().split())}
        kernel.kill()
        began = monotonic()
        while (left := [one for one in actors if lives(one)]) and monotonic() - began < 60:
            sleep(0.1)
    say(
        f"a kernel killed: {len(left)} of its {len(actors)} actors left after {monotonic() - began:.1f} s",
        bool(actors) and not left,
    )


def back(server: nt.Server) -> bool:
    """Return True once all instances of the model run."""
    (model,) = [one for one in server.snapshot().models if one.name == "lost"]
    return all(one.restart.due_ns is None and not one.restart.down for one in model.instances)


# By the words that choose some of them: ``python -m bench.cluster capacity faults``.
_PARTS: dict[str, Callable[[nt.Server, TwoNodes], object]] = {
    "bare": lambda server, _: beside_bare_ray(server),
    "way": lambda server, _: one_outstanding(server),
    "nodes": lambda server, _: two_of_one(server),
    "triton": lambda server, _: step_in_triton(server),
    "load": lambda server, _: by_load(server),
    "capacity": lambda server, _: capacity(server),
    "end": lambda _, cluster: end_of_a_kernel(cluster.address),
    "faults": lambda server, cluster: lose_nodes(server, cluster, 20, 20_000),
    "thousand": lambda *_: thousand(),
    "tests": partial(run, "-m pytest -q tests/ray tests/remote tests/autoscale tests/platforms"),
    "examples": partial(run, "-m tests.examples --isolation ray"),
    "differential": partial(run, "-m tests.differential --cases 12 --isolation ray"),
    "twin": partial(run, "-m bench.twin"),
}


def main(words: list[str]) -> int:
    """Run the parts, in a network of its own if this system allows it."""
    if words[:1] == ["alone"]:
        del words[0]
    elif shutil.which("unshare"):
        done = subprocess.run([*_ALONE, "true"], capture_output=True, check=False)
        if not done.returncode:
            command = [sys.executable, "-m", "bench.cluster", "alone", *words]
            os.execvp(_ALONE[0], [*_ALONE, *command])  # noqa: S606 - this program
    os.environ.update(_PATIENT)
    began = monotonic()
    with closing(TwoNodes()) as cluster:
        say(f"a Ray of two nodes: {monotonic() - began:.0f} s", True)
        with nt.Server(gpus=(), ray=cluster.address) as server:
            for word in words or _PARTS:
                try:
                    _PARTS[word](server, cluster)
                except Exception as error:  # the next ones are measured nevertheless
                    say(f"{word}: {type(error).__name__}: {error}", False)
    print(
        f"{sum(_said)} of {len(_said)} lines are ok, after {monotonic() - began:.0f} s", flush=True
    )
    return int(not all(_said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
