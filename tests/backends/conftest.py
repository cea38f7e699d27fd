"""Instances of models without an engine, and batches for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbtriton.backends import InstanceContext, ModelContext, find_backend
from nbtriton.backends.core.executing import running_as
from nbtriton.model.config import as_config, normalize
from tests.backends.fakes import DEFAULT, Request, Timer


@pytest.fixture
def make():
    """Complete a configuration and create an instance; all are finalized at the end."""
    instances = []

    def make(
        source, config=DEFAULT, *, server=None, backend="python", example=None, kind="KIND_CPU",
        name="m", instance="m_0_0", directory=None, device_id=0,
    ):  # fmt: skip
        engine = find_backend(backend)()
        context = ModelContext(
            name, 1, normalize(as_config(config), name=name), source, directory, None, example
        )
        completed = engine.complete_config(context)
        context = ModelContext(name, 1, completed, source, directory, server, example)
        engine.check(context)
        engine.open(context)
        created = engine.create_instance(InstanceContext(context, instance, kind, device_id))
        instances.append(created)
        return created

    yield make
    for instance in instances:
        instance.finalize()


@pytest.fixture
def make_instances():
    """Create several instances of one model; all are finalized at the end."""
    instances = []

    def make(source, count):
        backend = find_backend("python")()
        context = ModelContext("m", 1, normalize(as_config(DEFAULT), name="m"), source)
        backend.open(context)
        for number in range(count):
            name = f"m_0_{number}"
            instances.append(backend.create_instance(InstanceContext(context, name, "KIND_CPU")))
        return instances

    yield make
    for instance in instances:
        instance.finalize()


@pytest.fixture
def run():
    """Execute one batch; give arrays or requests."""

    def run(instance, *inputs):
        requests = [i if isinstance(i, Request) else Request({"IN": i}) for i in inputs]
        with running_as(instance.running):  # as the engine does
            return instance.execute(requests, Timer())

    return run


@pytest.fixture
def model_file(tmp_path):
    """Write ``<name>/1/model.py`` and further files beside it."""

    def write(text, name="m", **others) -> Path:
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        for stem, content in others.items():
            (folder / f"{stem}.py").write_text(content)
        path = folder / "model.py"
        path.write_text(text)
        return path

    return write
