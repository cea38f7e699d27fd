"""Request template cache: most clients send the same bytes again and again, but for ids and tensors."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["TemplateCache"]

# Longer texts are rare, and would take the place of many others.
_LONGEST = 4096
_MOST = 256

T = TypeVar("T")


class TemplateCache(Generic[T]):
    """Templates by the bytes of a text; each operation is atomic.

    A text has the same meaning whenever it is sent again: an id or the bytes of tensors are no part of it.
    """

    __slots__ = ("_templates", "find")

    def __init__(self) -> None:
        self._templates: dict[bytes, T] = {}
        # Returns the template of a text, None for an unknown one: once or twice a request.
        self.find = self._templates.get

    def remember(self, text: bytes, template: T) -> None:
        """Keep the template of a text, unless that is long; a full cache starts anew."""
        if len(text) > _LONGEST:
            return
        if len(self._templates) >= _MOST:
            self._templates.clear()
        self._templates[text] = template
