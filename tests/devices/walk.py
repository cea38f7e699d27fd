"""Random walks over ensembles on simulated GPUs: ``python -m tests.devices.walk --rounds 1000``.

Each round loads an ensemble of random steps on the CPU and two GPUs, sends requests of which some are cancelled and
some steps raise, and looks at the books of the devices: every accepted request is answered once and rightly, no
work was unordered, nothing of the devices' memory was read from the host, nothing leaks, and steps on one device
hand over without a copy or a wait.
"""

# ruff: noqa: F821, N803, N806 - annotations of tensors, by their names
import argparse
import gc
import random
import threading
from concurrent.futures import CancelledError as FutureCancelled

import numpy as np

import nbtriton as nt
from nbtriton.common.errors import TritonError
from tests.until import until

_PLACES = {
    "CPU": "kind: KIND_CPU",
    "GPU 0": "kind: KIND_GPU gpus: [ 0 ]",
    "GPU 1": "kind: KIND_GPU gpus: [ 1 ]",
}


class Walk:
    """One server and its models, for any number of rounds."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = nt.Server(gpus="simulated:2,launch_us=30,copy_latency_us=20,peer_gb_per_s=1")
        self.failing: set[str] = set()
        self.lock = threading.Lock()
        self.places: dict[str, str] = {}
        for number in range(9):
            place = list(_PLACES)[number % 3]
            self._load(f"m{number}", place, binary=number >= 6)
        self.answered = self.failed = self.cancelled = 0

    def _load(self, name: str, place: str, *, binary: bool) -> None:
        def check() -> None:
            with self.lock:
                if name in self.failing:
                    self.failing.discard(name)
                    raise ValueError(f"{name} was told to fail")

        if binary:

            def model(A: "FP32[4]", B: "FP32[4]") -> {"OUT": "FP32[4]"}:
                check()
                return {"OUT": A + B}
        else:

            def model(A: "FP32[4]") -> {"OUT": "FP32[4]"}:
                check()
                A *= 2  # in place: its memory is its own
                return {"OUT": A + 1}

        self.places[name] = place
        config = (
            f"max_batch_size: 16 dynamic_batching {{ }} instance_group [ {{ {_PLACES[place]} }} ]"
        )
        self.server.load(config, model, name=name)

    def close(self) -> None:
        self.server.close()

    def round(self) -> None:
        """Load an ensemble, send requests, and look at the books."""
        choose = self.random
        steps, outputs = self._steps()
        self.server.load(config_of(steps, outputs))
        ledger = self.server.devices.ledger
        ledger.clear()
        failing = choose.random() < 0.3
        if failing:
            with self.lock:
                self.failing = {choose.choice(steps)[0]}
        sent = []
        for number in range(choose.randrange(1, 7)):
            rows = np.full((choose.randrange(1, 4), 4), number, np.float32)
            future = self.server.submit("walk", {"T0": rows})
            if choose.random() < 0.15:
                future.cancel()
            sent.append((rows, future))
        for rows, future in sent:
            self._check(rows, future, steps, outputs, failing=failing)
        del sent, future
        self.failing.clear()
        self.server.unload("walk", timeout_s=None)
        self._check_books(steps)

    def _steps(self) -> tuple[list[tuple[str, list[str]]], list[str]]:
        """Return steps as (model, its input tensors), and the tensors that no step reads."""
        choose = self.random
        usable = sorted(self.places)
        if choose.random() < 0.4:
            usable = [name for name in usable if self.places[name] == "GPU 0"]
        names = choose.sample(usable, choose.randrange(1, 1 + min(5, len(usable))))
        tensors, read = ["T0"], set()
        steps = []
        for number, name in enumerate(names):
            count = 2 if int(name[1:]) >= 6 else 1
            inputs = [choose.choice(tensors[-2:]) for _ in range(count)]
            if number == 0:
                inputs = ["T0"] * count
            read.update(inputs)
            steps.append((name, inputs))
            tensors.append(f"T{number + 1}")
        return steps, [tensor for tensor in tensors[1:] if tensor not in read]

    def _check(self, rows, future, steps, outputs, *, failing: bool) -> None:
        try:
            result = future.result(60)
        except (FutureCancelled, TritonError) as error:
            told = "was told to fail" in str(error)
            if not told and not future.cancelled() and "ancel" not in str(error):
                raise
            assert not told or failing
            self.failed += told
            self.cancelled += not told
            return
        self.answered += 1
        expected = {"T0": rows}
        for number, (_, inputs) in enumerate(steps):
            given = [expected[tensor] for tensor in inputs]
            value = given[0] + given[1] if len(given) == 2 else given[0] * 2 + 1
            expected[f"T{number + 1}"] = value
        for name in outputs:
            np.testing.assert_array_equal(result[name], expected[name])

    def _check_books(self, steps) -> None:
        devices = self.server.devices
        for device in devices.values():
            assert device.faults == [], device.faults
            assert until(lambda device=device: used_bytes(device) == 0), device.memory()
        places = self.places
        for one in devices.ledger.copies():
            writer, reader = (end.partition(".")[0] for end in (one.writer, one.reader))
            assert one.source != one.target
            if writer in places and reader in places:
                assert (places[writer], places[reader]) == (one.source, one.target)
        used = {places[name] for name, _ in steps}
        if (
            len(used) == 1
        ):  # all steps on one device: only the callers' own copies, and waits at the end
            inner = [
                one
                for one in devices.ledger.copies()
                if one.writer != "host" and one.reader != "host"
            ]
            assert inner == []


def used_bytes(device) -> int:
    """Return what is in use; a thread that has just answered may still hold its tensors."""
    gc.collect()
    return device.memory().used_bytes


def config_of(steps, outputs) -> str:
    tensor = '{{ name: "{}" data_type: TYPE_FP32 dims: [ 4 ] }}'
    text = ['name: "walk" platform: "ensemble" max_batch_size: 16']
    text.append(f"input [ {tensor.format('T0')} ]")
    text.append(f"output [ {', '.join(tensor.format(name) for name in outputs)} ]")
    text.append("ensemble_scheduling { step [")
    for number, (name, inputs) in enumerate(steps):
        maps = " ".join(
            f'input_map {{ key: "{key}" value: "{value}" }}'
            for key, value in zip("AB", inputs, strict=False)
        )
        text.append(
            f'{{ model_name: "{name}" model_version: -1 {maps} '
            f'output_map {{ key: "OUT" value: "T{number + 1}" }} }}'
            + ("," if number < len(steps) - 1 else "")
        )
    return "\n".join([*text, "] }"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    walk = Walk(options.seed)
    try:
        for number in range(options.rounds):
            walk.round()
            if number % 50 == 49:
                print(
                    f"{number + 1} rounds: {walk.answered} answered, {walk.failed} failed, "
                    f"{walk.cancelled} cancelled",
                    flush=True,
                )
    finally:
        walk.close()


if __name__ == "__main__":
    main()
