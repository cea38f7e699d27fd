"""The calls of a server that send requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.common.checks import CALL, check
from nbtriton.options.blocks import CallOptions
from nbtriton.runtime.engine.core.execution import InferenceResult
from nbtriton.runtime.engine.core.future import InferenceFuture
from nbtriton.runtime.engine.describing import describe
from nbtriton.runtime.engine.diagnostics.tracing import Trace
from nbtriton.runtime.engine.engine import Engine
from nbtriton.runtime.engine.stream import ResponseStream
from nbtriton.scheduling import sequence_flags

__all__ = ["InferenceCalls"]

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
            partial(self.engine.dispatcher.submit, model, version, inputs, options)
        )
