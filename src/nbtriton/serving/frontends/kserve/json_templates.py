"""Templates of infer requests over HTTP: most requests of a client have the same JSON.

A JSON text without data determines the request except for its id and the tensors after the text. A
template is found by the text without a request id at its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nbtriton.serving.frontends.kserve.call import InferCall, InferTemplate
from nbtriton.serving.frontends.kserve.wire import WireInput
from nbtriton.serving.frontends.templates import TemplateCache

__all__ = ["JsonTemplates"]

# An id that is the first member and has no escapes.
_ID = re.compile(rb'\{"id": ?"([^"\\\x00-\x1f\x80-\xff]*)"')


class JsonTemplates:
    """Templates by text."""

    def __init__(self) -> None:
        self._cache = TemplateCache[InferTemplate]()

    def read(self, text: bytes, data: bytes | memoryview, start: int) -> InferCall | None:
        """Return the request of a text, with tensors from `start` on; None without a template."""
        request_id = ""
        template = self._cache.find(text)
        if template is None:
            rest, request_id = _split(text)
            template = self._cache.find(rest)
        if template is None or template.size != len(data) - start:
            return None
        return template.call(data, start, request_id)

    def remember(self, text: bytes, inputs: Sequence[WireInput], call: InferCall) -> None:
        """Store the template of a text, if other requests can use it."""
        rest, request_id = _split(text)
        # A second id counts, not the first.
        if call.request_id != request_id:
            return
        tensors = [
            (tensor.name, tensor.datatype, tensor.shape, b"", tensor.data.nbytes)
            for tensor in inputs
            if isinstance(tensor.data, memoryview)
        ]
        template = InferTemplate.of(call, tensors) if len(tensors) == len(inputs) else None
        if template is not None:
            self._cache.remember(rest, template)


def _split(text: bytes) -> tuple[bytes, str]:
    """Return a text without the request id at its beginning, and the id; empty for none."""
    found = _ID.match(text)
    return (text, "") if found is None else (text[found.end() :], found[1].decode("ascii"))
