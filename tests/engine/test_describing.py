"""The help of classes whose docstrings a compiled build drops."""

from __future__ import annotations

from nbtriton.runtime.engine import InferenceFuture, InferenceResult
from nbtriton.runtime.engine.inference import docstring_of


def test_classes_have_their_docstring_and_a_line_of_each_method():
    assert "The output tensors of one response by name" in (InferenceResult.__doc__ or "")
    found = docstring_of(InferenceFuture)
    assert found.startswith("One request's answer.")
    assert "result(timeout: float | None=None)\n    Wait for the answer." in found
    assert "done()\n    Return True once" in found
    assert "exception(timeout: float | None=None)\n" in found
    assert "_wait" not in found
