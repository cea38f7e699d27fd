"""Request template cache: a client's requests often differ only in their ids and tensors."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["LONGEST", "TemplateCache"]

# Longer texts are rare and would displace many others.
LONGEST = 4096
_MOST = 256

T = TypeVar("T")


class TemplateCache(Generic[T]):
    """Templates by the bytes of a text without ids and tensors; each operation is atomic."""

    __slots__ = ("_templates", "find")

    def __init__(self) -> None:
        self._templates: dict[bytes, T] = {}
        # The bound method itself, as it is called once or twice a request.
        self.find = self._templates.get

    def remember(self, text: bytes, template: T) -> None:
        """Store the template of a text unless the text is long; a full cache is cleared first."""
        if len(text) > LONGEST:
            return
        if len(self._templates) >= _MOST:
            self._templates.clear()
        self._templates[text] = template
