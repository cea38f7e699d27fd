"""A pipeline's requests on simulated GPUs, in virtual time: what a prediction of its placement is compared with.

The devices are the real ones of `nbtriton.devices.simulated`, their streams and events those that
`nbtriton.backends.core.place.Place` takes. Only threads are played here: each step has one, which takes one request at a
time, and so do callers. A step that makes an output copies it to the caller by itself, which with several outputs is simpler
than in the engine, where the last step copies all. Nothing of the simulated server is used.
"""

from __future__ import annotations

import itertools
from collections import deque
from heapq import heappop, heappush

import numpy as np

from nbtriton.backends.core.place import Place
from nbtriton.devices import CopyLedger, SimulatedGPUs
from nbtriton.devices.simulated import SimulatedDevice
from tests.devices.virtual import VirtualClock

__all__ = ["Replay"]

# A thread that goes on by itself is there before one that has to wake up.
WAKE_NS = 1


class PlayedClock(VirtualClock):
    """The calendar of the replay moves it; no thread may wait for it."""

    def sleep_until(self, when_ns):
        assert when_ns <= self.now, "a thread of the replay would block"


class Step:
    def __init__(self, name, device, replay):
        self.name = name
        self.device = device
        self.waiting = deque()
        self.busy = False
        self.place = Place(device, name) if device is not None else None
        self.written = [0, 0]  # by the last two batches
        self.replay = replay


class Replay:
    """Requests to a `Graph` in one placement, with this number outstanding."""

    def __init__(self, graph, where, *, copy_latency_us, gb_per_s, outstanding=1, requests=1):
        self.graph = graph
        self.clock = PlayedClock()
        settings = SimulatedGPUs(
            2, copy_latency_us=copy_latency_us, copy_gb_per_s=gb_per_s, peer_gb_per_s=gb_per_s, launch_us=0
        )  # fmt: skip
        ledger = CopyLedger()
        gpus = [SimulatedDevice(n, settings, ledger, self.clock) for n in range(2)]
        device = {"cpu": None, "gpu:0": gpus[0], "gpu:1": gpus[1]}
        self.devices = gpus
        self.settings = settings
        self.steps = {name: Step(name, device[where[name]], self) for name in graph.reads}
        self.readers = {
            tensor: [n for n, tensors in graph.reads.items() if tensor in tensors]
            for tensor in ("in", *graph.writers)
        }
        self.ends, self.latencies_ms = [], []
        self.left = requests
        self._calendar, self._count = [], itertools.count()
        for _ in range(outstanding):
            self.send()
        while self._calendar:
            self.clock.now, _, call = heappop(self._calendar)
            call()
        for gpu in gpus:
            assert gpu.faults == []

    def at(self, when_ns, call):
        heappush(self._calendar, (when_ns, next(self._count), call))

    def send(self):
        if self.left:
            self.left -= 1
            tensors = {"in": self.tensor("in")}
            request = {
                "tensors": tensors,
                "begun": set(),
                "answered": set(),
                "sent": self.clock.now,
            }
            self.deliver(request)

    def tensor(self, name):
        return np.zeros(self.graph.sizes[name], np.float32)

    def deliver(self, request):
        """Queue the steps whose inputs are made."""
        for name, tensors in self.graph.reads.items():
            if name not in request["begun"] and set(tensors) <= set(request["tensors"]):
                request["begun"].add(name)
                self.steps[name].waiting.append(request)
                self.start(self.steps[name])

    def start(self, step, wake_ns=WAKE_NS):
        if step.busy or not step.waiting:
            return
        step.busy = True
        request = step.waiting.popleft()
        # As Place.begin: two batches are on the device at most.
        self.at(max(self.clock.now + wake_ns, step.written[0]), lambda: self.run(step, request))

    def run(self, step, request):
        graph, made = self.graph, f"t{step.name[1:]}"
        inputs = [request["tensors"][t] for t in graph.reads[step.name]]
        took_ns = round(
            graph.times_ms[step.name]["cpu" if step.device is None else self.label(step)] * 1e6
        )
        if step.device is None:
            self.fetch(
                inputs,
                lambda: self.at(
                    self.clock.now + took_ns, lambda: self.done(step, request, self.tensor(made))
                ),
            )
            return
        place = step.place
        with place.stream:
            placed = [place.join([array], "X")[0] for array in inputs]
            output = step.device.adopt(self.tensor(made))
            place.stream.launch(
                "compute", [x.allocation.access for x in placed], [output.allocation.access], lambda: took_ns
            )  # fmt: skip
            event = step.device.hand_over([output], [f"{step.name}.Y"])
        step.written = [step.written[1], event.reached_ns]
        when = self.clock.now + took_ns
        on_host = [n for n in self.readers[made] if self.steps[n].device is None]
        if (
            on_host or made in graph.outputs
        ):  # the engine waits for an event that a reader does not know
            when = max(when, event.reached_ns)
        self.at(when, lambda: self.done(step, request, output))

    def label(self, step):
        return f"gpu:{step.device.index}"

    def fetch(self, arrays, then):
        """Copy what is on a device to the host, one after the other; then go on."""
        for at, array in enumerate(arrays):
            if not isinstance(array, np.ndarray):
                device = array.device
                stream = device.stream("host")
                stream.wait(array.allocation.access.ready)
                took = device.settings.copy_ns(array.nbytes)
                stream.launch("copies out", [array.allocation.access], [], lambda: took)  # noqa: B023 - called now
                self.at(stream.ready_ns, lambda: self.fetch(arrays[at + 1 :], then))  # noqa: B023 - returns
                return
        then()

    def done(self, step, request, output):
        made = f"t{step.name[1:]}"
        if made in self.graph.outputs:
            self.fetch([output], lambda: self.answered(step, request, made))
            return
        request["tensors"][made] = output
        self.deliver(request)
        self.free(step)

    def answered(self, step, request, made):
        request["answered"].add(made)
        if request["answered"] == set(self.graph.outputs):
            self.ends.append(self.clock.now)
            self.latencies_ms.append((self.clock.now - request["sent"]) / 1e6)
            self.send()
        self.free(step)

    def free(self, step):
        step.busy = False
        self.start(step, 0)
