"""A pipeline's requests on simulated GPUs, in virtual time: what a prediction of its placement is compared with.

The devices are the real ones of `nbtriton.extensions.simulated_gpus`, their streams and events those that
`nbtriton.backends.core.place.Place` takes. Only threads are played here: each step has one, which takes one request at a
time. As in the engine the thread that ends a request fetches all of its outputs, one after the other, and the one that
starts a step on the host waits until its inputs are written. Nothing of the simulated server is used.
"""

from __future__ import annotations

import itertools
from collections import deque
from heapq import heappop, heappush

import numpy as np

from nbtriton.backends.core.place import Place
from nbtriton.backends.devices.ledger import CopyLedger
from nbtriton.backends.devices.settings import SimulatedGPUs
from nbtriton.extensions.simulated_gpus import SimulatedDevice
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
            request = {"tensors": tensors, "begun": set(), "sent": self.clock.now}
            self.deliver(request)

    def tensor(self, name):
        return np.zeros(self.graph.sizes[name], np.float32)

    def ready(self, request):
        """Take the steps whose inputs are made, each once."""
        made = set(request["tensors"])
        names = [
            name
            for name, tensors in self.graph.reads.items()
            if name not in request["begun"] and set(tensors) <= made
        ]
        request["begun"].update(names)
        return names

    def deliver(self, request, names=None):
        for name in self.ready(request) if names is None else names:
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
        with step.place.stream:
            placed = [step.place.join([array], "X")[0] for array in inputs]
        began_ns = self.clock.now
        self.at(began_ns + took_ns, lambda: self.computed(step, request, placed, began_ns))

    def computed(self, step, request, placed, began_ns):
        """Let the device compute what the thread has computed, as `SimulatedDevice.run` does."""
        reads = [array.allocation.access for array in placed]
        took_ns = self.clock.now - began_ns
        with step.place.stream:
            step.place.stream.launch("compute", reads, (), lambda: took_ns, began_ns)
            output = step.device.adopt(self.tensor(f"t{step.name[1:]}"))
            event = step.device.hand_over([output], [f"{step.name}.Y"])
        step.written = [step.written[1], event.reached_ns]
        self.done(step, request, output)

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
        tensors = request["tensors"]
        tensors[f"t{step.name[1:]}"] = output
        if set(self.graph.outputs) <= set(tensors):
            outputs = [tensors[name] for name in self.graph.outputs]
            self.when_written(
                outputs, lambda: self.fetch(outputs, lambda: self.answered(step, request))
            )
            return
        names = self.ready(request)
        on_host = [name for name in names if self.steps[name].device is None]
        inputs = [tensors[tensor] for name in on_host for tensor in self.graph.reads[name]]

        def go_on():
            self.deliver(request, names)
            self.free(step)

        self.when_written(inputs, go_on)

    def when_written(self, arrays, then):
        """Go on once devices have written arrays."""
        on_device = [array for array in arrays if not isinstance(array, np.ndarray)]
        written = [array.allocation.access.ready.reached_ns for array in on_device]
        self.at(max([self.clock.now, *written]), then)

    def answered(self, step, request):
        self.ends.append(self.clock.now)
        self.latencies_ms.append((self.clock.now - request["sent"]) / 1e6)
        self.send()
        self.free(step)

    def free(self, step):
        step.busy = False
        self.start(step, 0)
