"""A text request as the inputs of a model, and the model's outputs as text.

The inputs are those of Triton's frontend: one input for each option in the style of the TensorRT-LLM backend,
one JSON string of all options in the style of the vLLM backend. Options without an input are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.openai.requests import ApiError, TextRequest
from nbtriton.model.tensors import as_array, to_numpy

if TYPE_CHECKING:
    from nbtriton.model.config import TensorSpec
    from nbtriton.model.tensors import Array
    from nbtriton.runtime.engine import ModelSignature


TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
_EXCLUDES_INPUT = ("exclude_input_in_output", "sampling_param_exclude_input_from_output")


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of prompt tokens and generated tokens."""

    prompt_tokens: int
    completion_tokens: int

    def as_dict(self) -> dict[str, int]:
        """Return a response's member ``usage``."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


def is_text_model(signature: ModelSignature) -> bool:
    """Return whether a model has text as input and output."""
    return TEXT_INPUT in signature.inputs and TEXT_OUTPUT in signature.outputs


def inputs_of(
    request: TextRequest, signature: ModelSignature, default_max_tokens: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Return a model's inputs for a request.

    Raises
    ------
    ApiError
        The model is not a text model, or an option does not fit its input.
    """
    if not is_text_model(signature):
        raise ApiError(
            400,
            f"model '{signature.name}' is no text model: it needs an input '{TEXT_INPUT}' and an "
            f"output '{TEXT_OUTPUT}'",
        )
    longest = default_max_tokens if request.max_tokens is None else request.max_tokens
    values: dict[str, Any] = {
        **request.extra,
        **request.sampling,
        TEXT_INPUT: [request.prompt],
        "stream": [request.stream],
        "max_tokens": [longest],
        "return_num_input_tokens": [True],
        "return_num_output_tokens": [True],
        "return_logprobs": [False],
        **{name: [not request.echo] for name in _EXCLUDES_INPUT},
    }
    if request.stop:
        values["stop_words"] = list(request.stop)
    if "sampling_parameters" in signature.inputs:
        options = {**request.extra, **request.sampling, "max_tokens": longest}
        if request.stop:
            options["stop"] = list(request.stop)
        values["sampling_parameters"] = [json.dumps(options)]
    batches = signature.max_batch_size > 0
    return {
        name: _tensor(spec, values[name], batches)
        for name, spec in signature.inputs.items()
        if name in values
    }


def _tensor(spec: TensorSpec, value: Any, batches: bool) -> np.ndarray[Any, Any]:
    elements = value if isinstance(value, list) else [value]
    try:
        if spec.datatype == "BYTES":
            elements = [str(element) for element in elements]
        # Range check: NumPy before 2 keeps the low bits.
        flat = to_numpy(as_array(elements, spec.datatype, name=spec.name))
        dims = [1 if dim == -1 else dim for dim in spec.dims]
        if dims:
            dims[-1] = len(elements) if spec.dims[-1] == -1 else dims[-1]
        return flat.reshape([1, *dims] if batches else dims)
    except InvalidArgumentError as error:
        raise ApiError(
            400, f"'{spec.name}' does not fit the model's input: {error.message}"
        ) from None
    except ValueError as error:  # the shape does not fit
        raise ApiError(400, f"'{spec.name}' does not fit the model's input: {error}") from None


def text_of(outputs: Mapping[str, Array]) -> bytes:
    """Return the text of a response as UTF-8, which may end within a character; empty without text.

    Raises
    ------
    ApiError
        The response has more than one string.
    """
    if TEXT_OUTPUT not in outputs:
        return b""
    found = to_numpy(outputs[TEXT_OUTPUT]).reshape(-1)
    if len(found) != 1:
        raise ApiError(500, f"Expected to find 1 string in the output, found {len(found)} instead.")
    text = found[0]
    return text if isinstance(text, bytes) else str(text).encode(errors="replace")


def usage_of(outputs: Mapping[str, Array]) -> Usage | None:
    """Return the usage that a response reports; None without one."""
    counts = []
    for name in ("num_input_tokens", "num_output_tokens"):
        if name not in outputs:
            return None
        found = to_numpy(outputs[name]).reshape(-1)
        try:
            counts.append(int(found[0]) if len(found) else 0)
        except (TypeError, ValueError, OverflowError):  # None, a text, NaN or infinity
            return None
    return Usage(*counts)
