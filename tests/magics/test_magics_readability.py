"""The readability pipeline as cells of a notebook."""

import numpy as np
import pytest

from bench.readability.cells import cells


@pytest.mark.slow
def test_the_cells_of_the_readability_pipeline_give_a_score(notebook):
    for package in ("tokenizers", "treelite", "sklearn"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra readability)")
    first, *others = cells(tokens=16, trees=4, training=30, batch=8)
    assert first == "%load_ext nbtriton"  # loaded already
    for cell in others:
        ran = notebook.ok(cell)
    assert np.asarray(ran.value).shape == (4, 1)
    trees = notebook.names["forest"].predict(notebook.names["features"][:4])
    # Half of the score is the trees'; that of BERT's random weights is small.
    np.testing.assert_allclose(np.asarray(ran.value)[:, 0], trees / 2, atol=1.0)
    for name in ("ensemble_all", "preprocess", "bert-large", "cuml", "postprocess"):
        notebook.ok(f"%triton_unload {name}")
