"""The calls of a server that send requests, and what they return."""

from __future__ import annotations

import ast
import contextlib
import inspect
import queue
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.backends.unread import UnreadResponses
from nbtriton.common.checks import CALL, check
from nbtriton.common.closing import Closing
from nbtriton.options.blocks import CallOptions
from nbtriton.runtime.engine.core.execution import InferenceResult
from nbtriton.runtime.engine.core.future import InferenceFuture
from nbtriton.runtime.engine.core.request import BARE_FINAL, InferenceRequest
from nbtriton.runtime.engine.diagnostics.tracing import Trace
from nbtriton.runtime.engine.engine import Engine
from nbtriton.scheduling import sequence_flags

if TYPE_CHECKING:
    import asyncio


def describe(*kinds: type) -> None:
    """Give classes that have lost their docstring that of their source, with their methods.

    The docstrings of compiled methods cannot be set: the class says a line of each.
    """
    for kind in kinds:
        if not kind.__doc__:
            kind.__doc__ = docstring_of(kind)


def docstring_of(kind: type) -> str:
    """Return a class's docstring as its source has it, and a line for each public method."""
    place = Path(sys.modules[kind.__module__].__file__ or "")
    source = place.with_name(f"{kind.__module__.rpartition('.')[2]}.py")
    if not source.is_file():
        return ""
    body = ast.parse(source.read_text(encoding="utf-8")).body
    (found,) = (n for n in body if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
    lines = [ast.get_docstring(found) or "", "", "Methods", "-------"]
    for one in found.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            arguments = "" if one.decorator_list else f"({ast.unparse(one.args)})"
            summary = (ast.get_docstring(one) or "").partition("\n\n")[0].replace("\n", " ")
            lines += [one.name + arguments.replace("(self, ", "(").replace("(self)", "()")]
            lines += [f"    {summary}"]
    return "\n".join(lines)


_Arrived = tuple[Response, bool]


class ResponseStream(Closing):
    """An iterator over the responses of one request, for ``for`` and for ``async for``.

    The request is sent by the first call of ``next``. One that is dropped or closed before
    its end cancels the request; so does leaving a ``with`` block.

    Parameters
    ----------
    send : callable
        ``send(on_response)`` sends the request.
    limit : callable
        Returns how many responses may wait when the model goes on; 0 for any number.
    """

    def __init__(
        self,
        send: Callable[
            [Callable[[Response, bool], None]], tuple[InferenceRequest, InferenceFuture]
        ],
        limit: Callable[[], int],
    ) -> None:
        self._send = send
        self._unread = UnreadResponses(limit)
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
            put, unread = arrived.put, self._unread

            def queue_up(response: Response, final: bool) -> None:
                put((response, final))
                unread.sent(final=final)

            self._begin(queue_up)
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
        self._unread.read()
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
            put, unread = arriving.put_nowait, self._unread

            def hand_over(response: Response, final: bool) -> None:
                with contextlib.suppress(RuntimeError):  # the loop was closed: no task waits
                    loop.call_soon_threadsafe(put, (response, final))
                    unread.sent(final=final)

            self._begin(hand_over)
        try:
            received = await arriving.get()
        except BaseException:
            self.close()
            raise
        self._unread.read()
        return received

    def _begin(self, on_response: Callable[[Response, bool], None]) -> None:
        self._request, self._future = self._send(on_response)
        self._cancelling = _until_closed(self._future, self._unread)
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


def _until_closed(future: InferenceFuture, unread: UnreadResponses) -> Generator[None, None, None]:
    """Wait to be closed, or dropped, and cancel the request if it has not ended.

    A generator, as one that is closed already runs no code when it is dropped: Python loses a Ctrl-C
    that comes in a finalizer.
    """
    try:
        yield
    finally:
        if not future.done():
            future.cancel()
        unread.end()


describe(InferenceFuture, InferenceResult)


class InferenceCalls:
    """The part of `nbtriton.Server` that sends requests.

    Attributes
    ----------
    engine : Engine
        The parts of the server, for what is built upon it: endpoints, repositories.
    """

    engine: Engine

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        outputs: Sequence[str] = (),
        request_id: str = "",
        priority: int = 0,
        timeout_us: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> InferenceResult:
        """Send one request and wait for its answer.

        Where an instance is idle the request runs in this very thread.

        Parameters
        ----------
        model : str
        inputs : mapping of str to array_like
            Whole tensors, with the batch dimension if the model batches. numpy in gives numpy out,
            torch and CuPy likewise; Python values are converted to the input's datatype.
        version : int
            -1 for the highest that is ready.
        outputs : sequence of str
            All by default.
        request_id, priority, timeout_us, sequence_id, sequence_start, sequence_end, parameters
            As in Triton's inference request.

        Raises
        ------
        TritonError
            With Triton's status and message.

        Examples
        --------
        >>> server.infer("double", {"IN": np.ones((1, 4), np.float32)})["OUT"]
        array([[2., 2., 2., 2.]], dtype=float32)
        """
        options = RequestOptions(
            outputs, request_id, priority, timeout_us, sequence_id,
            sequence_flags(sequence_start, sequence_end), parameters,
        )  # fmt: skip
        request, response = self.engine.dispatcher.call(model, version, inputs, options)
        if response.error is not None:
            try:
                raise response.error.with_traceback(None)
            finally:  # else the error holds this frame, which holds the error and the server
                del request, response
        return request.result_of(response)

    def submit(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        outputs: Sequence[str] = (),
        request_id: str = "",
        priority: int = 0,
        timeout_us: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, bool | int | str] | None = None,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Trace | None = None,
    ) -> InferenceFuture:
        """Send one request and return at once; arguments and errors as for `infer`.

        The inputs are copied: their memory may be changed as soon as this returns. Those of a model
        with READ_ONLY_INPUTS are not; leave them alone until the response has come.

        Parameters
        ----------
        on_response : callable, optional
            ``on_response(response, final)`` for every response, on the thread that sends it;
            needed for decoupled models.
        trace : Trace, optional
            Records what happens; ended in any case.

        Returns
        -------
        InferenceFuture
            Can be waited for, awaited, given a callback, cancelled.

        Examples
        --------
        >>> futures = [server.submit("double", {"IN": ones * number}) for number in range(3)]
        >>> [float(future.result()["OUT"][0, 0]) for future in futures]
        [0.0, 2.0, 4.0]
        """
        if on_response is not None:
            check({"on_response": on_response}, {"on_response": CALL})
        options = RequestOptions(
            outputs, request_id, priority, timeout_us, sequence_id,
            sequence_flags(sequence_start, sequence_end), parameters,
        )  # fmt: skip
        _, future = self.engine.dispatcher.submit(
            model, version, inputs, options, on_response, trace
        )
        return future

    async def infer_async(
        self, model: str, inputs: Mapping[str, Any], **options: Unpack[CallOptions]
    ) -> InferenceResult:
        """Send one request and await its answer; arguments and errors as for `infer`.

        A coroutine: nothing is sent, and no input copied, before it runs, which a task does when
        its maker next awaits. So give each an array of its own, or use `submit`, whose future can
        be awaited too. A cancelled task cancels its request.

        Examples
        --------
        >>> import asyncio
        >>> async def answer():
        ...     result = await server.infer_async("double", {"IN": ones})
        ...     return result["OUT"].tolist()
        >>> asyncio.run(answer())
        [[2.0, 2.0, 2.0, 2.0]]
        """
        return await self.submit(model, inputs, **options)

    infer_async.__signature__ = inspect.signature(infer)  # type: ignore[attr-defined]

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        outputs: Sequence[str] = (),
        request_id: str = "",
        priority: int = 0,
        timeout_us: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> ResponseStream:
        """Send one request and iterate over its responses as they come; arguments as for `infer`.

        Works for decoupled models (any number of responses) and for others (one), with ``for`` and
        with ``async for``. Leaving the loop early cancels the request.

        Examples
        --------
        >>> [result["OUT"].shape for result in server.stream("double", {"IN": ones})]
        [(1, 4)]
        """
        options = RequestOptions(
            outputs, request_id, priority, timeout_us, sequence_id,
            sequence_flags(sequence_start, sequence_end), parameters,
        )  # fmt: skip
        return ResponseStream(
            partial(self.engine.dispatcher.submit, model, version, inputs, options),
            lambda: self.engine.inspection.max_unread_responses(model, version),
        )
