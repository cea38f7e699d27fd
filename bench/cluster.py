"""Instances on a Ray of two nodes, beside the same actor in a bare loop: ``make cluster``.

It starts two nodes on this machine, prints a line for each measurement, and ends them. Both sides of a comparison run in
turn, and what is compared is the median of the rounds.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from time import monotonic, perf_counter, process_time, sleep
from typing import Any

import numpy as np

import nbtriton as nt
from bench.processes import cpu_s, family

__all__ = ["main"]

_STORE = 80 << 20
# Ray takes 127.0.0.1 for the outer address of the machine.
_HOST = "127.0.0.2"
_CONFIG = (
    'input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} '
    "max_batch_size: 0 instance_group {{ count: {count} kind: KIND_CPU }} "
    'parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "ray" }} }} '
    'parameters {{ key: "INSTANCE_RESOURCES" value {{ string_value: "{resources}" }} }}'
)


def double(IN: Any) -> dict[str, Any]:  # noqa: N803 - a tensor
    """Be the model."""
    return {"OUT": IN * 2}


def waiting(IN: Any) -> dict[str, Any]:  # noqa: N803 - a tensor
    """Be a model that waits for an accelerator."""
    sleep(0.02)
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
        self._start()

    def _start(self) -> None:
        command = (
            f"-m ray.scripts.scripts start --block --address={self.address} --node-ip-address={_HOST} --num-cpus=2 "
            f"--object-store-memory={_STORE} --disable-usage-stats"
        )
        self.second = subprocess.Popen(
            [sys.executable, *command.split(), '--resources={"second": 9}'],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._wait(2)

    def _wait(self, nodes: int) -> None:
        import ray

        deadline = monotonic() + 60
        while sum(node["Alive"] for node in ray.nodes()) != nodes:
            if monotonic() > deadline:
                raise TimeoutError(f"not {nodes} nodes after 60 s")
            sleep(0.2)

    def lose(self) -> None:
        """Kill the second node, with all its processes."""
        for pid in family(self.second.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.second.wait()

    def replace(self) -> None:
        """Add a node in the place of the second one, once Ray has missed that."""
        self._wait(1)
        self._start()

    def close(self) -> None:
        """End both."""
        import ray

        self.lose()
        ray.shutdown()


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


def two_of_one(server: nt.Server) -> None:
    """A model of which an instance takes a whole node, with one instance and with two."""
    submit = partial(server.submit, "busy", {"IN": np.ones(1, np.float32)})
    for model in (waiting, computing):
        rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(3):
            for count, found in rates.items():
                server.load(_CONFIG.format(count=count, resources="CPU=2"), model, name="busy")
                in_flight(submit, lambda one: one.result(), 20, 8)
                found.append(in_flight(submit, lambda one: one.result(), 150, 8))
                server.unload("busy")  # two versions have no room beside each other
        one, two = (statistics.median(found) for found in rates.values())
        say(
            f"{model.__name__}, two nodes: {two:.0f} calls/s, one {one:.0f}: {two / one:.2f} times (at least 1.9)",
            two >= 1.9 * one,
        )


def lose_nodes(server: nt.Server, cluster: TwoNodes, kills: int) -> None:
    """Kill the second node under load, and replace it, again and again; each request is answered once."""
    server.load(_CONFIG.format(count=2, resources="CPU=2"), waiting, name="lost")
    outcomes: list[str] = []
    numbers, ended = itertools.count(), threading.Event()

    def client() -> None:
        while not ended.is_set():
            number = next(numbers)
            try:
                result = server.submit("lost", {"IN": np.full(1, number, np.float32)}).result(120)
                outcomes.append("right" if result["OUT"].tolist() == [number] else "WRONG")
            except nt.TritonError as error:
                outcomes.append("failed" if "is not healthy" in str(error) else f"OTHER: {error}")

    clients = [threading.Thread(target=client) for _ in range(8)]
    for one in clients:
        one.start()
    times = []
    for _ in range(kills):
        began = monotonic()
        cluster.lose()
        cluster.replace()
        while not back(server) and monotonic() - began < 90:
            sleep(0.1)
        times.append(monotonic() - began)
    ended.set()
    for one in clients:
        one.join()
    sent = next(numbers)
    good = len(outcomes) == sent and {*outcomes} <= {"right", "failed"} and max(times) < 90
    say(
        f"the second node killed {kills} times in {sent:,} requests: {dict(Counter(outcomes))}, both instances back after "
        f"{statistics.median(times):.0f} s, at most {max(times):.0f} s",
        good,
    )
    server.unload("lost")


def back(server: nt.Server) -> bool:
    """Return True once all instances of the model run."""
    (model,) = [one for one in server.snapshot().models if one.name == "lost"]
    return all(one.restart.due_ns is None and not one.restart.down for one in model.instances)


def main() -> int:
    """Run all of it."""
    began = monotonic()
    with closing(TwoNodes()) as cluster:
        say(f"a Ray of two nodes: {monotonic() - began:.0f} s", True)
        with nt.Server(gpus=(), ray=cluster.address) as server:
            beside_bare_ray(server)
            two_of_one(server)
            lose_nodes(server, cluster, 3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
