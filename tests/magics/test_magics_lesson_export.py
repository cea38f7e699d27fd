"""The models of the lesson about ensembles, written out and run by the real server with the same results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nbtriton.model.config import to_dict
from nbtriton.serving.server import Server, server

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07_ensembles.ipynb"


@pytest.fixture
def lesson(notebook, monkeypatch):
    """The notebook's cells up to the ensemble."""
    monkeypatch.syspath_prepend(
        NOTEBOOK.parent
    )  # as in its own kernel: the exercises are beside it
    notebook.ok("import matplotlib; matplotlib.use('agg')")
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            # What is exported need not be right: the accuracy is a test's of the lesson itself.
            notebook.ok(source.replace("epochs=6", "epochs=1"))
            if source.startswith("%%triton_ensemble"):
                return notebook
    raise AssertionError("it has no ensemble")


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_lesson_walks_out(lesson, reference, tmp_path):
    out = tmp_path / "out"
    ran = lesson.ok(f"exported = %triton_export {out}")
    assert "'SIDE' (16)" in ran.err
    lesson.ok(
        "given = {'image_preprocess_model': [{'RAW_IMAGE': pngs[i : i + 3]} for i in range(4)],\n"
        "         'ensemble_model': [{'IMAGE': pngs[i : i + 2]} for i in range(4)]}"
    )
    ran = lesson.ok(
        f"%triton_export {out} --carry SIDE --verify --requests given "
        f"--reference {reference.directory}"
    )
    assert ran.err == ""
    assert ran.value.ok, ran.value
    assert {model.name for model in ran.value.models} == set(
        server().engine.inspection.model_names()
    )
    # And back again.
    image = {"IMAGE": lesson.names["pngs"][:3]}
    with Server() as other:
        control = other.load_repository(out)
        assert not control.errors
        for name in server().engine.inspection.model_names():
            assert to_dict(other.config(name)) == to_dict(server().config(name)), name
        ours, theirs = (side.infer("ensemble_model", image) for side in (server(), other))
        for tensor in ours:
            np.testing.assert_allclose(ours[tensor], theirs[tensor], rtol=1e-5, atol=1e-7)
