"""Inference responses as bodies of HTTP responses (KS23 to KS27)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.tensors import datatype_of, shape_of, to_numpy
from nbtriton.serving.frontends.buffers import LONG, buffers
from nbtriton.serving.frontends.kserve.classification import classify
from nbtriton.serving.frontends.kserve.jsontext import dumps, write_array
from nbtriton.serving.frontends.kserve.wire import wire_bytes, write_shared

if TYPE_CHECKING:
    from nbtriton.model.tensors import Array
    from nbtriton.serving.frontends.kserve.call import InferCall
    from nbtriton.serving.frontends.kserve.classification import Labels

__all__ = ["Answer", "encode_infer", "json_elements"]


@dataclass(slots=True)
class Answer:
    """Parts of a body, in order; ``header_length`` is the JSON's length, 0 if nothing follows it."""

    parts: list[bytes | memoryview]
    header_length: int = 0


def encode_infer(
    call: InferCall,
    outputs: Mapping[str, Array],
    parameters: Mapping[str, Any],
    model_name: str,
    model_version: int,
    batches: bool,
    labels: Labels,
) -> Answer:
    """Write a response.

    Parameters
    ----------
    call : InferCall
        Requested form of each output; outputs in shared memory are written there.
    outputs : mapping of str to array
        In the model's order, which the response keeps (KS27).
    parameters : mapping
        Response parameters.
    batches : bool
        Whether the first dimension is the batch, for classification.
    labels : callable
        ``labels(model_name, model_version, output)`` returns the class labels of an output.

    Raises
    ------
    TritonError
        An output cannot be sent in the requested form.
    """
    members: list[bytes] = []
    blobs: list[bytes | memoryview] = []
    for name, made in outputs.items():
        wanted = call.wanted(name)
        array = made
        if wanted.classes:
            classes = labels(model_name, model_version, name)
            array = classify(made, wanted.classes, batches, classes)
        datatype = datatype_of(array)
        shape = shape_of(array)
        if wanted.kind == "binary":
            blob = _copied(array)
            members.append(_binary_output(name, datatype, shape, len(blob)))
            if blob:
                blobs.append(blob)
        elif wanted.kind == "json":
            data = json_elements(array, datatype)
            members.append(b'%s,"data":%s}' % (_output(name, datatype, shape), data))
        else:
            assert wanted.lease is not None
            write_shared(wanted.lease, array, name)
            members.append(_output(name, datatype, shape) + b"}")
    request_id = call.request_id
    text = b'%s%s%s,"outputs":[%s]}' % (
        b'{"id":%s,' % dumps(request_id) if request_id else b"{",
        _model(model_name, model_version),
        b',"parameters":' + dumps(dict(parameters)) if parameters else b"",
        b",".join(members),
    )
    return Answer([text, *blobs], len(text) if blobs else 0)


# Cached, as most responses share these parts.
@lru_cache(maxsize=256)
def _model(name: str, version: int) -> bytes:
    return b'"model_name":%s,"model_version":"%d"' % (dumps(name), version)


@lru_cache(maxsize=1024)
def _output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    dims = ",".join(map(str, shape))
    return b'{"name":%s,"datatype":"%s","shape":[%s]' % (
        dumps(name), datatype.encode(), dims.encode(),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _binary_output(name: str, datatype: str, shape: tuple[int, ...], size: int) -> bytes:
    parameters = b',"parameters":{"binary_data_size":%d}}' % size
    return _output(name, datatype, shape) + parameters


def _copied(array: Array) -> bytes | memoryview:
    """Return a copy of an output's bytes: the model may reuse its memory."""
    if type(array) is not np.ndarray or array.nbytes < LONG or array.dtype.kind in "OSU":
        return wire_bytes(array)
    data = buffers.acquire(array.nbytes)
    np.copyto(np.ndarray(array.shape, array.dtype, data), array)
    return data


def json_elements(array: Array, datatype: str) -> bytes:
    """Write the elements of an output as one flat JSON list.

    Raises
    ------
    InvalidArgumentError
        FP16 and BF16 (KS24).
    """
    if datatype in ("FP16", "BF16"):
        raise InvalidArgumentError(
            f"sending {datatype} data via JSON is not supported. Please use the binary data "
            "format for output"
        )
    host = to_numpy(array)
    if datatype != "BYTES":
        return write_array(host)
    return dumps(
        [
            item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)
            for item in host.reshape(-1).tolist()
        ]
    )
