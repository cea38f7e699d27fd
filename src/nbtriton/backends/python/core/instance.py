"""One instance of a `TritonPythonModel`: Triton's contract of ``execute``."""

# ruff: noqa: SLF001 - the public names of these classes are Triton's own, the others are ours
from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

import numpy as np

from nbtriton.backends.base import BackendInstance, BackendRequest, BatchTimer, Response
from nbtriton.backends.core.executing import running_as
from nbtriton.backends.core.place import to_host, wait_for_outputs
from nbtriton.backends.python.api.requests import ReceivedRequest
from nbtriton.backends.python.api.sender import SECOND_RESPONSE, stop_answering_abandoned
from nbtriton.backends.python.core.values import InferenceResponse, Tensor, to_engine_response
from nbtriton.backends.python.readiness import Readiness
from nbtriton.backends.python.running import Running, any_live, enter_live, leave_live
from nbtriton.backends.read_only import explained_error
from nbtriton.backends.tracebacks import describe, execute_error, user_code
from nbtriton.common.errors import ModelError
from nbtriton.common.errors import TritonError as EngineError
from nbtriton.model.tensors import (
    Array,
    datatype_of,
    is_on_device,
    kind_of,
    own,
    read_only,
    to_numpy,
)

if TYPE_CHECKING:
    from nbtriton.backends.python.loop import LoopThread, Outcome


_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_log = logging.getLogger("nbtriton.python")

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray
_received: Final = ReceivedRequest
_new: Final = Tensor.__new__
_modules: Final = sys.modules


class PythonInstance(BackendInstance):
    """Runs one model object.

    Parameters
    ----------
    load : callable
        Returns the model's class; its errors and the constructor's are load errors.
    running : Running
        The instance, for the model's code.
    arguments : dict of str to str
        For ``initialize``.
    force_cpu : bool
        Copy inputs from a GPU to the host for the model.
    reads_only : bool
        Pass inputs without a copy, as the configuration says.
    source_name : str
        File or class, for messages.
    release : callable
        Called after the model object was released.
    """

    def __init__(
        self,
        load: Callable[[], Callable[[], object]],
        running: Running,
        arguments: dict[str, str],
        *,
        force_cpu: bool,
        reads_only: bool,
        source_name: str,
        release: Callable[[], None],
    ) -> None:
        self.running = self._running = running
        self._decoupled = running.decoupled
        self._release = release
        self._force_cpu = force_cpu
        self._reads_only = reads_only
        self._source_name = source_name
        self._model_name = arguments["model_name"]
        self._loop: LoopThread | None = None
        self._prefix = (
            f"Failed to process the request(s) for model '{running.instance_name}', message: "
        )
        with user_code(), running_as(running):
            self._model: object = load()()
            initialize = getattr(self._model, "initialize", None)
            if initialize is not None:
                initialize(arguments)
        self._execute: Callable[[list[ReceivedRequest]], Any] | None = getattr(
            self._model, "execute", None
        )
        is_ready = getattr(self._model, "is_ready", None)
        if is_ready is not None:
            self.readiness = Readiness(is_ready, running).ask
        enter_live(running)

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; see `BackendInstance.execute`."""
        execute = self._execute
        if execute is None:
            raise self._error(
                f"Python model {self._source_name} does not implement `execute` method."
            )
        batch = tuple(requests)  # a tuple is not copied
        received = self._receive(batch)
        timer.inputs_ready()
        try:
            # A copy: the model may empty its list.
            result = call_model(execute, received.copy())
            if type(result) is CoroutineType:
                result = self._await(result, received)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            name, reads_only = self._running.instance_name, self._reads_only
            if all(request.is_answered() for request in batch):
                _log.error("%s", explained_error(name, error, reads_only=reads_only).message)
                return [None] * len(batch)
            # The new error has no name: it would hold this frame, behind the model's, which holds it.
            raise explained_error(name, error, reads_only=reads_only) from error
        finally:
            timer.infer_done()
        if self._decoupled:
            self._finish_decoupled(batch, received, result)
            return None
        return self._finish(batch, received, result)

    def finalize(self) -> None:
        """Call the model's ``finalize``; its errors are only logged, as in Triton."""
        leave_live(self._running)
        finalize = getattr(self._model, "finalize", None)
        try:
            if finalize is not None:
                with running_as(self._running):
                    finalize()
        except (Exception, SystemExit) as error:
            _log.error("finalize of '%s': %s", self._running.instance_name, describe(error))
        finally:
            self.readiness = None
            if self._loop is not None:
                self._loop.close()
                self._loop = None
            self._model = None
            self._execute = None
            self._release()
            if not any_live():
                stop_answering_abandoned()

    def _receive(self, requests: tuple[BackendRequest, ...]) -> list[ReceivedRequest]:
        reads_only = self._reads_only
        received = []
        for request in requests:
            tensors = {}
            owned = request.owned_inputs
            for name, given in request.inputs.items():
                # Tensor._wrap, inlined: this is on the path of every step of an ensemble.
                tensors[name] = tensor = _new(Tensor)
                tensor._name = name
                array, mine = given, name in owned
                if type(given) is not _ndarray and (
                    is_on_device(given) if self._force_cpu else kind_of(given) == "simulated"
                ):
                    # No library reads arrays of a simulated GPU: a model on the host gets copies.
                    array, mine = to_host(given, f"{self._model_name}.{name}"), True
                elif type(given) is not _ndarray:
                    wait_for_outputs((given,))  # its code may use any stream
                tensor._array = _read_only_input(array) if reads_only else own(array, mine)
            received.append(_received(request, tensors, self._decoupled))
        return received

    def _await(
        self, coroutine: CoroutineType[Any, Any, object], received: list[ReceivedRequest]
    ) -> object:
        from nbtriton.backends.python.loop import LoopThread, wait_for_outcome

        if self._loop is None:
            self._loop = LoopThread(f"nbtriton-loop-{self._running.instance_name}")
        future = self._loop.start(coroutine)
        if self._running.decoupled:
            # The next batch may start while this one awaits (PB36).
            future.add_done_callback(partial(_answer_failed, self._running.instance_name, received))
            return None
        server = self._running.server
        try:
            if server is not None:
                server.wait_for_coroutine(partial(wait_for_outcome, future))
            outcome = future.result()
        except BaseException:
            future.cancel()
            raise
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _finish(
        self, requests: tuple[BackendRequest, ...], received: list[ReceivedRequest], result: object
    ) -> list[Response | None]:
        responses: list[Response | None] = []
        foreign: list[Array] = []
        if _all_plain(result, received):
            for request in requests:
                responses.append(to_engine_response(result[len(responses)], request, foreign))
            if foreign:
                wait_for_outputs(foreign)
            return responses
        items = self._checked(received, result)
        for item, request, view in zip(items, requests, received, strict=True):
            sender = view._sender
            if view._rescheduled:
                responses.append(_run_again(view))
            elif item is None or (sender is not None and sender.was_used()):
                _leave_open(view)
                responses.append(None)
            else:
                # The returned response ends the request: its unused sender is closed.
                if sender is not None:
                    sender.close()
                responses.append(to_engine_response(item, request, foreign))
        wait_for_outputs(foreign)
        return responses

    def _checked(self, received: list[ReceivedRequest], result: object) -> list[Any]:
        """Return the valid list of ``execute``: a response, or None, for each request."""
        if result is None or all(r._sender is not None and r._sender.is_closed() for r in received):
            result = [None] * len(received)
        if not isinstance(result, list):
            raise self._error(
                f"Expected a list in the execute return, found type '{type(result)}'."
            )
        if len(result) != len(received):
            raise self._error(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(received)}, and InferenceResponse(s) "
                f"size is:{len(result)}\n"
            )
        for item, view in zip(result, received, strict=True):
            if item is None:
                continue
            if view._rescheduled:
                raise self._error(
                    "Expected a None object in the execute function return list for reschduled "
                    f"request, found type '{type(item)}'."
                )
            if not isinstance(item, InferenceResponse):
                raise self._error(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(item)}'."
                )
            sender = view._sender
            if sender is not None and sender.was_used() and not sender.is_closed():
                raise self._error(SECOND_RESPONSE)
        return result

    def _finish_decoupled(
        self, requests: tuple[BackendRequest, ...], received: list[ReceivedRequest], result: object
    ) -> None:
        if result is not None and not all(request.is_answered() for request in requests):
            raise self._error(
                f"Python model '{self._running.instance_name}' is using the decoupled mode and "
                "the execute function must return None."
            )
        for view in received:
            if not view._rescheduled:
                _leave_open(view)
                continue
            failed = _run_again(view)
            if failed is not None and not view._backend_request.is_answered():
                view._backend_request.send(failed, final=True)

    def _error(self, text: str) -> ModelError:
        return ModelError(self._prefix + text)


def _answer_failed(instance: str, received: list[ReceivedRequest], future: Future[Outcome]) -> None:
    """Answer the remaining requests of a decoupled ``async def execute`` that raised."""
    error = RuntimeError("the model was unloaded") if future.cancelled() else future.result().error
    if error is None:
        return
    failure = execute_error(instance, error)
    _log.error("%s", failure.message)
    for view in received:
        request = view._backend_request
        try:
            if not request.is_answered():
                request.send(Response(error=failure), final=True)
        except EngineError:
            _log.debug("answered in between: %s", request.request_id)


def _read_only_input(array: Array) -> Array:
    """Return a read-only input for a model that only reads, as a numpy array if possible."""
    if type(array) is not _ndarray and not is_on_device(array) and datatype_of(array) != "BF16":
        array = to_numpy(array)
    return read_only(array)


def _all_plain(
    result: object, received: list[ReceivedRequest]
) -> TypeGuard[list[InferenceResponse]]:
    """Return True in the usual case: each request has its response, without senders or reschedules."""
    if type(result) is not list or len(result) != len(received):
        return False
    for item, view in zip(result, received):  # noqa: B905 - of one length; 0.1 us less
        if type(item) is not InferenceResponse or view._sender is not None or view._rescheduled:
            return False
    return True


def _leave_open(view: ReceivedRequest) -> None:
    # The model may answer later, from any thread that has the request or its sender. The sender must exist
    # now: when its last reference is dropped, it answers with an error.
    if not view._backend_request.is_answered():
        view.get_response_sender()


def _run_again(view: ReceivedRequest) -> Response | None:
    """Reschedule the request in its sequence; return the error if that is not iterative."""
    if view._sender is not None:
        view._sender.close()
    try:
        view._backend_request.reschedule()
    except EngineError as error:
        # Triton logs this, and its client gets no response.
        return Response(error=error)
    return None


def call_model(call: Callable[[_Argument], _Result], argument: _Argument) -> _Result:
    """Call a model's code as on its only thread: no event loop is running, and torch's settings hold.

    A model may call `asyncio.run`, which fails on a thread with a running loop, such as the notebook kernel's
    own. (asyncio has no other way to set the running loop.) And ``torch.set_num_threads`` reaches another thread
    only when that thread asks for the number: until then its matrix products take a thread for each core.
    """
    # Not imported here, which takes 30 ms of a worker's start: running loops have imported it already.
    torch, asyncio = _modules.get("torch"), _modules.get("asyncio")
    if torch is not None:
        threads = getattr(torch, "get_num_threads", None)  # none during its import
        if threads is not None:
            threads()
    if asyncio is None:  # an attribute that None lacks would cost 3,600 instructions
        return call(argument)
    find_running = getattr(asyncio, "_get_running_loop", None)  # likewise
    running = None if find_running is None else find_running()
    if running is None:
        return call(argument)
    asyncio._set_running_loop(None)
    try:
        return call(argument)
    finally:
        asyncio._set_running_loop(running)
