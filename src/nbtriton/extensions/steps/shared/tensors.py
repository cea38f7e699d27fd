"""Tensors of requests and responses, on the host or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


def device_of(args: Mapping[str, str]) -> str | None:
    """Return torch's device of an instance on a GPU; None for one on the CPU."""
    if args["model_instance_kind"] != "GPU":
        return None
    import torch

    return f"cuda:{args['model_instance_device_id']}" if torch.cuda.is_available() else "cpu"


def take(request: Any, name: str, device: str | None) -> Any:
    """Return an input: NumPy's array, or torch's tensor on a device."""
    tensor: Any = pb_utils.get_input_tensor_by_name(request, name)
    if device is None and tensor.is_cpu():
        return tensor.as_numpy()
    import torch

    found = torch.from_dlpack(tensor.to_dlpack()).to(device or "cpu")
    return found if device else found.numpy()


def give(**outputs: Any) -> Any:
    """Return a response with these arrays or tensors."""
    pack, share = pb_utils.Tensor, pb_utils.Tensor.from_dlpack
    pairs = outputs.items()
    made = [pack(k, v) if isinstance(v, np.ndarray) else share(k, v.contiguous()) for k, v in pairs]
    return pb_utils.InferenceResponse(made)


def answer(requests: Sequence[Any], respond: Callable[[Any], Any]) -> list[Any]:
    """Return the response to each request; an error of one is not that of the others in its batch."""
    responses = []
    for request in requests:
        try:
            responses.append(respond(request))
        except Exception as error:
            responses.append(refuse(f"{type(error).__name__}: {error}"))
    return responses


def refuse(text: str) -> Any:
    """Return a response with an error."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
