"""Request template cache: most clients send the same bytes again and again, but for ids and tensors."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["TemplateCache"]

# Longer texts are rare, and would be kept at the price of all the others.
_LONGEST = 4096
_MOST = 256

T = TypeVar("T")


class TemplateCache(Generic[T]):
    """What was read from the texts that came last; used by one thread.

    A text says the same whenever it comes again: what differs from request to request (an id, the
    bytes of tensors) is no part of it.
    """

    __slots__ = ("_templates", "find")

    def __init__(self) -> None:
        self._templates: dict[bytes, T] = {}
        # Returns the template of a text, None for an unknown one: once or twice a request.
        self.find = self._templates.get

    def remember(self, text: bytes, template: T) -> None:
        """Keep what was read from a text, unless it is long; the cache starts anew when it is full."""
        if len(text) > _LONGEST:
            return
        if len(self._templates) >= _MOST:
            self._templates.clear()
        self._templates[text] = template
