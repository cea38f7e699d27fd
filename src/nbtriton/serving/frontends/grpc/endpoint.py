"""KServe v2 over gRPC: the endpoint that `nbtriton.serving.frontends.serve` opens on ``grpc_port``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from nbtriton.common.errors import (
    InternalError,
    InvalidArgumentError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.model.config._proto import messages
from nbtriton.serving.frontends.grpc.calls import CallListener, Handler, StreamCall, UnaryCall
from nbtriton.serving.frontends.grpc.connection import ChannelArguments, GrpcListener
from nbtriton.serving.frontends.grpc.inference import GrpcInference, InferStream
from nbtriton.serving.frontends.kserve.messages import (
    HEALTH,
    LONG,
    SERVICE,
    HealthCheckRequest,
    health_response,
)
from nbtriton.serving.frontends.kserve.proto_codec import parse, read_version
from nbtriton.serving.frontends.loop import LoopThread
from nbtriton.serving.frontends.service import log_changes, trace_changes

if TYPE_CHECKING:
    from nbtriton.serving.frontends.kserve.shared_memory import Kind
    from nbtriton.serving.frontends.listener import Tls
    from nbtriton.serving.frontends.service import Service

_log = logging.getLogger("nbtriton.serving.frontends")

# Prefix of the header field that opens a restricted protocol.
_RESTRICTED = "triton-grpc-protocol-"


class GrpcEndpoint:
    """gRPC port of a server.

    Parameters
    ----------
    service : Service
        The server and its settings, limits included.
    host : str
        The address to listen on.
    port : int
        0 for any free port.
    thread : LoopThread
        Its event loop; several endpoints may share one.
    options : sequence of (name, value)
        gRPC's channel arguments, such as ``("grpc.keepalive_time_ms", 7200000)``.
    restricted : mapping, optional
        Triton's ``--grpc-restricted-protocol``: category to header field and value.
    tls : Tls, optional
        Enables TLS.

    Raises
    ------
    UnavailableError
        The port is in use, or the address is not this machine's.
    """

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        thread: LoopThread,
        *,
        options: Sequence[tuple[str, int | str]] = (),
        restricted: Mapping[str, tuple[str, str]] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._restricted = {
            category: (_RESTRICTED + header, value)
            for category, (header, value) in (restricted or {}).items()
        }
        self._thread = thread
        inference = GrpcInference(service, thread.join_batch)
        handlers: dict[bytes, Handler] = {
            name: partial(UnaryCall, self._unary(method))
            for name, method in grpc_methods(service).items()
        }
        handlers[f"/{SERVICE}/ModelInfer".encode()] = partial(
            UnaryCall, self._guarded("inference", inference.infer)
        )

        def open_stream(rpc: StreamCall) -> CallListener:
            refusal = self._refusal("inference", rpc.metadata)
            if not refusal:
                return InferStream(inference, rpc)
            rpc.fail(UnavailableError(refusal))  # before the first message, as in Triton
            return _Refused()

        handlers[f"/{SERVICE}/ModelStreamInfer".encode()] = partial(StreamCall, open_stream)
        self.listener = GrpcListener(
            host,
            port,
            handlers,
            service.limits,
            service.trace,
            thread,
            options=ChannelArguments.parse(options),
            after_messages=inference.submit,
            tls=tls,
        )

    def _unary(
        self, method: Method | Callable[[bytes], bytes]
    ) -> Callable[[bytes, UnaryCall], None]:
        def answer(data: bytes, rpc: UnaryCall) -> None:
            if len(data) > LONG or (isinstance(method, Method) and method.slow()):
                self._thread.run_on_worker(partial(_answer, method, data, rpc))
            else:
                _answer(method, data, rpc)

        return self._guarded(method.category, answer) if isinstance(method, Method) else answer

    def _guarded(
        self, category: str, answer: Callable[[bytes, UnaryCall], None]
    ) -> Callable[[bytes, UnaryCall], None]:
        if category not in self._restricted:
            return answer

        def guarded(data: bytes, rpc: UnaryCall) -> None:
            refusal = self._refusal(category, rpc.metadata)
            if refusal:
                rpc.fail(UnavailableError(refusal))
            else:
                answer(data, rpc)

        return guarded

    def _refusal(self, category: str, metadata: Sequence[tuple[str, object]]) -> str:
        if category not in self._restricted:
            return ""
        header, value = self._restricted[category]
        # Field names of HTTP/2 are lower case.
        if (header.lower(), value) in {tuple(field) for field in metadata}:
            return ""
        return f"This protocol is restricted, expecting header '{header}'"


class _Refused:
    """Receiver of a stream that its client may not open, until the stream has ended."""

    def on_message(self, data: bytes) -> None:
        pass

    def on_half_close(self) -> None:
        pass

    def on_cancel(self) -> None:
        pass


def _answer(method: Callable[[bytes], bytes], data: bytes, rpc: UnaryCall) -> None:
    try:
        rpc.reply(method(data))
    except TritonError as error:
        rpc.fail(error)
    except Exception as error:
        _log.exception("a gRPC call failed")
        rpc.fail(InternalError(f"{type(error).__name__}: {error}"))


class Method:
    """One unary method: serialized request in, serialized response out.

    Attributes
    ----------
    category : str
        Category of Triton's restricted protocols.
    slow : callable
        Whether a call may take long; then it is run on a worker.
    """

    def __init__(
        self,
        answer: Callable[[Any], Any],
        request: Any,
        category: str,
        *,
        slow: Callable[[], bool],
    ) -> None:
        self.category = category
        self.slow = slow
        self._answer = answer
        self._request = request

    def __call__(self, data: bytes) -> bytes:
        request, _ = parse(self._request, data)
        response: bytes = self._answer(request).SerializeToString()
        return response


def grpc_methods(service: Service) -> dict[bytes, Method | Callable[[bytes], bytes]]:
    """Return all unary methods except ModelInfer, by full name."""
    methods = _Methods(service)
    # Loading takes seconds, and the index may read the disk.
    slow: dict[str, Callable[[], bool]] = {
        "model-repository": lambda: True,
        "ModelReady": service.server.engine.inspection.has_own_checks,
    }
    table = {
        "ServerLive": (methods.server_live, "health"),
        "ServerReady": (methods.server_ready, "health"),
        "ModelReady": (methods.model_ready, "health"),
        "ServerMetadata": (methods.server_metadata, "metadata"),
        "ModelMetadata": (methods.model_metadata, "metadata"),
        "ModelConfig": (methods.model_config, "model-config"),
        "ModelStatistics": (methods.statistics, "statistics"),
        "RepositoryIndex": (methods.index, "model-repository"),
        "RepositoryModelLoad": (methods.load, "model-repository"),
        "RepositoryModelUnload": (methods.unload, "model-repository"),
        "SystemSharedMemoryStatus": (methods.system_status, "shared-memory"),
        "SystemSharedMemoryRegister": (methods.system_register, "shared-memory"),
        "SystemSharedMemoryUnregister": (methods.system_unregister, "shared-memory"),
        "CudaSharedMemoryStatus": (methods.cuda_status, "shared-memory"),
        "CudaSharedMemoryRegister": (methods.cuda_register, "shared-memory"),
        "CudaSharedMemoryUnregister": (methods.cuda_unregister, "shared-memory"),
        "TraceSetting": (methods.trace, "trace"),
        "LogSettings": (methods.log, "logging"),
    }
    found: dict[bytes, Method | Callable[[bytes], bytes]] = {
        f"/{SERVICE}/{name}".encode(): Method(
            answer,
            getattr(messages, f"{name}Request"),
            category,
            slow=slow.get(name) or slow.get(category) or (lambda: False),
        )
        for name, (answer, category) in table.items()
    }
    found[f"/{HEALTH}/Check".encode()] = methods.health
    return found


class _Methods:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._server = service.server

    # -- server and models -----------------------------------------------------------------------

    def health(self, data: bytes) -> bytes:
        parse(HealthCheckRequest, data)
        return health_response(self._service.is_ready())

    def server_live(self, _: Any) -> Any:
        return messages.ServerLiveResponse(live=self._service.is_live())

    def server_ready(self, _: Any) -> Any:
        return messages.ServerReadyResponse(ready=self._service.is_ready())

    def model_ready(self, request: Any) -> Any:
        self._server.engine.inspection.check_answering()
        ready = self._server.engine.inspection.is_model_ready(
            request.name, read_version(request.version)
        )
        return messages.ModelReadyResponse(ready=ready)

    def server_metadata(self, _: Any) -> Any:
        return messages.ServerMetadataResponse(**self._service.metadata())

    def model_metadata(self, request: Any) -> Any:
        version = read_version(request.version)
        found = self._server.metadata(request.name, version)
        self._server.engine.inspection.check_answering()  # before the error of an unknown model
        if version != -1:
            found["versions"] = [str(version)]
        return messages.ModelMetadataResponse(**found)

    def model_config(self, request: Any) -> Any:
        config = self._server.config(request.name, read_version(request.version))
        response = messages.ModelConfigResponse()
        response.config.MergeFromString(config.SerializeToString())
        return response

    def statistics(self, request: Any) -> Any:
        found = self._service.statistics(request.name, read_version(request.version))
        return json_format.ParseDict(
            found, messages.ModelStatisticsResponse(), ignore_unknown_fields=True
        )

    # -- repository ------------------------------------------------------------------------------

    def index(self, request: Any) -> Any:
        if request.repository_name:
            raise UnsupportedError("'repository_name' specification is not supported")
        response = messages.RepositoryIndexResponse()
        self._server.engine.inspection.check_answering()
        for entry in self._service.control.index(ready=request.ready):
            response.models.add(**entry)
        return response

    def load(self, request: Any) -> Any:
        if request.repository_name:
            raise UnsupportedError("'repository_name' specification is not supported")
        parameters: dict[str, Any] = {}
        for name, parameter in request.parameters.items():
            if name == "config":
                expected = "string_param"
            elif name.startswith("file:"):
                expected = "bytes_param"
            else:
                raise InvalidArgumentError(f"unrecognized load parameter '{name}'.")
            if parameter.WhichOneof("parameter_choice") != expected:
                raise InvalidArgumentError(
                    f"invalid value type for load parameter '{name}', expected {expected}."
                )
            parameters[name] = getattr(parameter, expected)
        self._server.engine.inspection.check_answering()
        self._service.control.load(request.model_name, parameters)
        return messages.RepositoryModelLoadResponse()

    def unload(self, request: Any) -> Any:
        if request.repository_name:
            raise UnsupportedError("'repository_name' specification is not supported")
        parameters: dict[str, Any] = {}
        if "unload_dependents" in request.parameters:
            parameter = request.parameters["unload_dependents"]
            if parameter.WhichOneof("parameter_choice") != "bool_param":
                raise InvalidArgumentError(
                    "invalid value type for 'unload_dependents' parameter, expected bool_param."
                )
            parameters["unload_dependents"] = parameter.bool_param
        self._server.engine.inspection.check_answering()
        self._service.control.unload(request.model_name, parameters)
        return messages.RepositoryModelUnloadResponse()

    # -- shared memory ---------------------------------------------------------------------------

    def memory_status(self, kind: Kind, response: Any, request: Any) -> Any:
        for region in self._service.shared_memory.status(kind, request.name):
            status = response.regions[region["name"]]
            for field, value in region.items():
                setattr(status, field, value)
        return response

    def system_status(self, request: Any) -> Any:
        return self.memory_status("system", messages.SystemSharedMemoryStatusResponse(), request)

    def system_register(self, request: Any) -> Any:
        self._service.clients_memory().register_system(
            request.name, request.key, request.offset, request.byte_size
        )
        return messages.SystemSharedMemoryRegisterResponse()

    def system_unregister(self, request: Any) -> Any:
        self._service.clients_memory().unregister("system", request.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    def cuda_status(self, request: Any) -> Any:
        return self.memory_status("cuda", messages.CudaSharedMemoryStatusResponse(), request)

    def cuda_register(self, request: Any) -> Any:
        self._service.clients_memory().register_cuda(
            request.name, request.raw_handle, request.device_id, request.byte_size
        )
        return messages.CudaSharedMemoryRegisterResponse()

    def cuda_unregister(self, request: Any) -> Any:
        self._service.clients_memory().unregister("cuda", request.name)
        return messages.CudaSharedMemoryUnregisterResponse()

    # -- trace and log settings ------------------------------------------------------------------

    def trace(self, request: Any) -> Any:
        name = request.model_name
        if name and not self._server.is_ready(name):
            raise InvalidArgumentError(f"Request for unknown model : {name}")
        if request.settings:
            changes = trace_changes(request.settings, _levels, _number, got="got: ")
            self._service.trace.update(name, changes)
        response = messages.TraceSettingResponse()
        for key, value in self._service.trace.get(name).items():
            values = value if isinstance(value, list) else [value]
            response.settings[key].value.extend(values)
        return response

    def log(self, request: Any) -> Any:
        if request.settings:
            self._service.log.update(log_changes(request.settings, _log_value, _wrong_format))
        response = messages.LogSettingsResponse()
        for key, value in self._service.log.get().items():
            if isinstance(value, bool):
                response.settings[key].bool_param = value
            elif isinstance(value, int):
                response.settings[key].uint32_param = value
            else:
                response.settings[key].string_param = value
        return response


def _levels(setting: Any) -> list[str] | None:
    return list(setting.value) or None


def _number(name: str, setting: Any) -> str | None:
    if len(setting.value) > 1:
        raise InvalidArgumentError(f"expect only 1 value for '{name}'")
    return str(setting.value[0]) if setting.value else None


_LOG_FIELDS = {
    bool: ("bool_param", "boolean"),
    int: ("uint32_param", "int32"),
    str: ("string_param", "string"),
}


def _log_value(name: str, kind: type, setting: Any) -> bool | int | str:
    field, word = _LOG_FIELDS[kind]
    if setting.WhichOneof("parameter_choice") != field:
        raise InvalidArgumentError(f"expect {word} for '{name}'")
    value: bool | int | str = getattr(setting, field)
    return value


def _wrong_format(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"invalid argument for log_format, got: {text}")
