"""READ_ONLY_INPUTS: models declared to only read their inputs.

Such a model gets the sender's memory of a tensor instead of a copy. numpy refuses writes to it; torch tensors
cannot be protected, but changes to them are detected.
"""

from __future__ import annotations

from collections.abc import Mapping

from nbtriton.backends.tracebacks import execute_error
from nbtriton.common.errors import ModelError
from nbtriton.model.tensors import Array, kind_of

# In the message, as a hint does not reach clients.
_ADVICE = (
    "The model has the parameter READ_ONLY_INPUTS, so its inputs are not copied for it: remove the "
    "parameter, or copy the input before writing to it."
)
# Raised by numpy, Cython and the buffer protocol on a write.
_ERRORS = (ValueError, TypeError, BufferError)
_WORDS = ("read-only", "readonly")


def explained_error(instance: str, raised: BaseException, *, reads_only: bool) -> ModelError:
    """Return `execute_error`, with advice if the exception of such a model looks like a refused write."""
    failure = execute_error(instance, raised)
    if reads_only and isinstance(raised, _ERRORS):
        text = str(raised)
        if any(word in text for word in _WORDS):
            failure.args = (f"{failure.message.rstrip()}\n\n{_ADVICE}",)
    return failure


def versions_of(inputs: Mapping[str, Array]) -> dict[str, tuple[Array, int]]:
    """Return the torch tensors among the inputs, each with its number of changes so far."""
    return {
        name: (array, array._version)  # noqa: SLF001 - documented: torch's "in-place correctness checks"
        for name, array in inputs.items()
        if kind_of(array) == "torch" and not array.is_inference()
    }


def check_unchanged(versions: Mapping[str, tuple[Array, int]], model: str) -> None:
    """Compare inputs with the result of `versions_of` before the model ran.

    Raises
    ------
    ModelError
        The model changed an input in place.
    """
    for name, (array, version) in versions.items():
        if array._version != version:  # noqa: SLF001
            raise ModelError(f"model '{model}' changed its input '{name}' in place. {_ADVICE}")
