"""Questions about all models while others are loaded and unloaded, at every possible moment."""

# ruff: noqa: F821, N803 - annotations name tensors

import sys
import threading

import pytest

from nbtriton.runtime.engine import Server


@pytest.fixture
def busy_switching():
    """Threads that switch at every chance, as they do without a lock of the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_walks_through_the_models_bear_loads_of_others(busy_switching):
    def model(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:
        return {"OUT": IN}

    with Server(gpus=()) as server:
        server.load("", model=model, name="m")
        registry = server.engine.registry
        entry = registry.entries["m"]
        ended = threading.Event()

        def change():
            number = 0
            while not ended.is_set():
                for name in range(number, number + 20):
                    registry.entries[f"other{name}"] = entry
                for name in range(number, number + 20):
                    registry.entries.pop(f"other{name}")
                number += 20

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(500):
                assert "m" in registry.configs()
                assert registry.versions()["m"] == [1]
                assert registry.dependents("m") == []
                assert len(registry.runtimes()) >= 1
                assert server.metadata("m")["versions"] == ["1"]
        finally:
            ended.set()
            thread.join()
