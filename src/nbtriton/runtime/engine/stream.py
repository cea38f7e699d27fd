"""Iterator over the responses of one request, as `Server.stream` returns it."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Self

from nbtriton.backends.base import Response
from nbtriton.common.closing import Closing
from nbtriton.runtime.engine.core.execution import InferenceResult
from nbtriton.runtime.engine.core.future import InferenceFuture
from nbtriton.runtime.engine.core.request import BARE_FINAL, InferenceRequest

if TYPE_CHECKING:
    import asyncio

__all__ = ["ResponseStream"]

_Arrived = tuple[Response, bool]


class ResponseStream(Closing):
    """An iterator over the responses of one request, for ``for`` and for ``async for``.

    The request is sent by the first call of ``next``. One that is dropped or closed before
    its end cancels the request; so does leaving a ``with`` block.

    Parameters
    ----------
    send : callable
        ``send(on_response)`` sends the request.
    """

    def __init__(
        self,
        send: Callable[
            [Callable[[Response, bool], None]], tuple[InferenceRequest, InferenceFuture]
        ],
    ) -> None:
        self._send = send
        self._request: InferenceRequest | None = None
        self._future: InferenceFuture | None = None
        self._cancelling: Generator[None, None, None] | None = None
        self._ended = False
        # One of the two: the first way of iterating decides.
        self._arrived: queue.SimpleQueue[_Arrived] | None = None
        self._arriving: asyncio.Queue[_Arrived] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> InferenceResult:
        while not self._ended:
            result = self._result(*self._next())
            if result is not None:
                return result
        raise StopIteration

    def _next(self) -> _Arrived:
        arrived = self._arrived
        if arrived is None:
            self._check_unused()
            arrived = self._arrived = queue.SimpleQueue()
            put = arrived.put
            self._begin(lambda response, final: put((response, final)))
        assert self._future is not None
        received: list[_Arrived] = []

        def receive(timeout_s: float) -> bool:
            try:
                received.append(arrived.get(timeout=timeout_s))
            except queue.Empty:
                return False
            return True

        try:
            # Most arrived while the caller used the one before: no wait.
            if arrived.empty() or not receive(0):
                self._future._wait_for(receive)  # noqa: SLF001 - the engine's side of it
        except BaseException:
            self.close()  # Ctrl-C: the caller no longer waits
            raise
        return received.pop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InferenceResult:
        while not self._ended:
            result = self._result(*await self._coming())
            if result is not None:
                return result
        raise StopAsyncIteration

    async def _coming(self) -> _Arrived:
        arriving = self._arriving
        if arriving is None:
            import asyncio  # 20 ms, only for callers that await

            self._check_unused()
            loop = asyncio.get_running_loop()
            arriving = self._arriving = asyncio.Queue()
            put = arriving.put_nowait

            def hand_over(response: Response, final: bool) -> None:
                with contextlib.suppress(RuntimeError):  # the loop was closed: no task waits
                    loop.call_soon_threadsafe(put, (response, final))

            self._begin(hand_over)
        try:
            return await arriving.get()
        except BaseException:
            self.close()
            raise

    def _begin(self, on_response: Callable[[Response, bool], None]) -> None:
        self._request, self._future = self._send(on_response)
        self._cancelling = _until_closed(self._future)
        next(self._cancelling)

    def _check_unused(self) -> None:
        if self._request is not None:
            raise RuntimeError("the stream is iterated already, by 'for' or by 'async for'")

    def _result(self, response: Response, final: bool) -> InferenceResult | None:
        """Return the result for the caller; None for a bare final flag."""
        if final or response.error is not None:
            self.close()
        if response.error is not None:
            # A copy: the error would get this frame, which holds the error and the server.
            raise response.error.again()
        assert self._request is not None
        return None if response is BARE_FINAL else self._request.result_of(response)

    def close(self) -> None:
        """End the iteration; an unfinished request is cancelled."""
        self._ended = True
        if self._cancelling is not None:
            self._cancelling.close()

    async def aclose(self) -> None:
        """Do what `close` does, for ``contextlib.aclosing``."""
        self.close()


def _until_closed(future: InferenceFuture) -> Generator[None, None, None]:
    """Wait to be closed, or dropped, and cancel the request if it has not ended.

    A generator, as one that is closed already runs no code when it is dropped: Python loses a Ctrl-C
    that comes in a finalizer.
    """
    try:
        yield
    finally:
        if not future.done():
            future.cancel()
