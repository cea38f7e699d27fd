"""Endpoints that other packages add, over HTTP/1.1 on their own ports: the group ``nbtriton.endpoints``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from nbtriton.options.table import Option
    from nbtriton.runtime.engine import JoinBatch
    from nbtriton.serving.frontends.http1.response import RequestResponseCycle
    from nbtriton.serving.frontends.service import Service


class Endpoint(ABC):
    """An endpoint: it answers requests on one port.

    Its name in the group gives it the arguments ``NAME_port`` and ``NAME`` of `nbtriton.Server.serve`, the option
    ``--NAME-port`` of ``%triton_serve`` and the flags of ``nbtriton serve``.

    Parameters
    ----------
    service : Service
        The server, and what clients may do with it.
    options : object
        Of `options_type`.
    metrics : callable
        Returns the text of ``/metrics``.
    join_batch : callable
        As for `RequestDispatcher.submit_many`.

    Attributes
    ----------
    title : str
        In the log and in the help of the flags.
    options_type : type
        Of the argument ``NAME``; without arguments it makes the default.
    flags : tuple of Option
        Of ``nbtriton serve``; the first is ``--NAME-port``.
    """

    title: ClassVar[str]
    options_type: ClassVar[type] = SimpleNamespace
    flags: ClassVar[tuple[Option, ...]] = ()

    @abstractmethod
    def __init__(
        self,
        service: Service,
        options: Any,
        metrics: Callable[[], bytes],
        join_batch: JoinBatch | None = None,
    ) -> None: ...

    @classmethod
    def options_of(cls, arguments: SimpleNamespace) -> Any:  # noqa: ARG003 - for those with options
        """Return the options that the flags set."""
        return cls.options_type()

    @abstractmethod
    def handle(self, cycles: Sequence[RequestResponseCycle]) -> None:
        """Answer requests that arrived together, each now or later; never raises."""
