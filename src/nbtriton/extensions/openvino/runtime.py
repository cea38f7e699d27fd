"""The package openvino, imported on first use, with its types, shapes and errors in Triton's terms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nbtriton.common.errors import InternalError
from nbtriton.common.packages import needed

# The protocol's datatypes of OpenVINO's element types; Triton's backend accepts no others (OV3).
TYPES = {
    "BOOL": "boolean",
    **{f"{sign}INT{n}": f"{kind}{n}" for n in (8, 16, 32, 64) for sign, kind in (("U", "u"), ("", "i"))},
    "FP16": "f16",
    "FP32": "f32",
}  # fmt: skip
_DATATYPES = {element: datatype for datatype, element in TYPES.items()}
_PLACE = re.compile(r"Exception from src/\S+:\n")


def import_openvino() -> Any:
    """Return the module.

    Raises
    ------
    UnsupportedError
        It is not installed, or does not start.
    """
    with needed("backend 'openvino'", package="openvino"):
        import openvino
    return openvino


def type_of(port: Any) -> str:
    """Return the protocol's datatype of an input or output; empty for one that Triton does not have."""
    return _DATATYPES.get(port.element_type.get_type_name(), "")


def dims_of(port: Any) -> tuple[int, ...]:
    """Return the shape of an input or output, with -1 for every variable dimension."""
    return tuple(dim.get_length() if dim.is_static else -1 for dim in port.partial_shape)


@contextmanager
def runtime_errors(doing: str) -> Iterator[None]:
    """Turn OpenVINO's exceptions into Triton's error; `doing` names the action."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        text = _PLACE.sub("", str(error)).strip()
        raise InternalError(f"openvino error in {doing} : {text}") from error
