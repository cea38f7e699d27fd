"""KServe v2 over gRPC: the endpoint that `nbtriton.serving.frontends.serve` opens on ``grpc_port``, and its flags.

Unary methods except inference: GS10 to GS12, KS16, KS61, KS70, KS71.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

from google.protobuf import json_format

from nbtriton.common.errors import (
    InternalError,
    InvalidArgumentError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.extensions.grpc import requests, responses
from nbtriton.extensions.grpc.calls import StreamCall, UnaryCall
from nbtriton.extensions.grpc.connection import GrpcListener, Handler
from nbtriton.extensions.grpc.inference import GrpcInference, InferStream
from nbtriton.model.config._proto import messages
from nbtriton.options import triton as kinds
from nbtriton.serving.frontends.flags import flag, flag_of, tls_flags, tls_of
from nbtriton.serving.frontends.kserve.shared_memory import Kind
from nbtriton.serving.frontends.kserve.wire import read_version
from nbtriton.serving.frontends.listener import Endpoint
from nbtriton.serving.frontends.loop import LoopThread
from nbtriton.serving.frontends.service import Service, forwards_of, log_changes, trace_changes
from nbtriton.serving.settings import ENDPOINTS

_log = logging.getLogger("nbtriton.serving.frontends")

# Prefix of the header field that opens a restricted protocol.
_RESTRICTED = "triton-grpc-protocol-"


# Flags of gRPC's channel arguments, without `grpc-`: the argument, the kind, the default and what it says.
_CHANNEL: Mapping[str, tuple[str, kinds.Kind, Any, str]] = {
    "keepalive-time": ("grpc.keepalive_time_ms", kinds.INTEGER, 7200000, "milliseconds without a call before a ping"),
    "keepalive-timeout": ("grpc.keepalive_timeout_ms", kinds.INTEGER, 20000, "milliseconds to wait for its answer"),
    "keepalive-permit-without-calls": ("grpc.keepalive_permit_without_calls", kinds.BOOLEAN, False,
                                       "ping idle connections too"),
    "http2-max-pings-without-data": ("grpc.http2.max_pings_without_data", kinds.INTEGER, 2, "pings in a row without data"),
    "http2-min-recv-ping-interval-without-data": ("grpc.http2.min_ping_interval_without_data_ms", kinds.INTEGER, 300000,
                                                  "milliseconds between a client's pings"),
    "http2-max-ping-strikes": ("grpc.http2.max_ping_strikes", kinds.INTEGER, 2, "bad pings before a client is cut off"),
    "max-connection-age": ("grpc.max_connection_age_ms", kinds.INTEGER, None, "milliseconds a connection may live"),
    "max-connection-age-grace": ("grpc.max_connection_age_grace_ms", kinds.INTEGER, None, "and those for its last calls"),
}  # fmt: skip
_COMPRESSION = ("none", "low", "medium", "high")


class GrpcEndpoint(GrpcListener, Endpoint):
    """gRPC port of a server.

    Parameters
    ----------
    service, thread, host, port
        As for `GrpcListener`.
    options : namespace
        The ``grpc_…`` options of `nbtriton.serving.settings.EndpointSettings`.

    Raises
    ------
    UnavailableError
        The port is in use, or the address is not this machine's.
    """

    title = "gRPC"
    service_name = "GRPCInferenceService"
    flags = (
        flag("allow-grpc", kinds.BOOLEAN, True, "answer over gRPC"),
        flag_of(ENDPOINTS["grpc_host"]),
        replace(flag_of(ENDPOINTS["grpc_port"]), default=8001, help="0 for any that is free"),
        *(flag_of(ENDPOINTS[name]) for name in ("grpc_header_forward_pattern", "grpc_restricted")),
        *tls_flags("grpc", ours=False),
        flag("grpc-infer-response-compression-level",
             kinds.choice("grpc_infer_response_compression_level", *_COMPRESSION), "none", "of responses"),
        *(flag(f"grpc-{name}", kind, default, what) for name, (_, kind, default, what) in _CHANNEL.items()),
    )  # fmt: skip

    @classmethod
    def options_of(cls, arguments: SimpleNamespace) -> dict[str, Any]:
        """Return the arguments of `serve` that the flags set."""
        channel = [
            (name, int(value))
            for flag, (name, *_) in _CHANNEL.items()
            if (value := getattr(arguments, f"grpc_{flag.replace('-', '_')}")) is not None
        ]
        level = _COMPRESSION.index(arguments.grpc_infer_response_compression_level)
        return {
            "grpc_options": [*channel, ("grpc.default_compression_level", level)],
            "grpc_tls": tls_of(arguments, "grpc"),
        }

    @classmethod
    def open(cls, service: Service, thread: LoopThread, host: str, port: int, options: Any) -> Self:
        """Open the port."""
        return cls(service, thread, host, port, options)

    def __init__(
        self, service: Service, thread: LoopThread, host: str, port: int, options: Any
    ) -> None:
        self._restricted = {
            category: (_RESTRICTED + header, value)
            for category, (header, value) in (options.restricted or {}).items()
        }
        pattern = options.header_forward_pattern
        forwards = service.forwards if pattern is None else forwards_of(pattern)
        inference = GrpcInference(service, thread.join_batch, forwards)
        infer = self._guarded("inference", inference.infer)
        handlers: dict[bytes, Handler] = {
            f"/{requests.SERVICE}/ModelInfer".encode(): partial(UnaryCall, infer)
        }
        for name, method in grpc_methods(service).items():
            answer = self._guarded(method.category, partial(_answer, thread, method))
            handlers[name] = partial(UnaryCall, answer)

        def open_stream(rpc: StreamCall) -> InferStream | None:
            refusal = self._refusal("inference", rpc.metadata)
            if not refusal:
                return InferStream(inference, rpc)
            rpc.fail(UnavailableError(refusal))  # before the first message, as in Triton
            return None

        handlers[f"/{requests.SERVICE}/ModelStreamInfer".encode()] = partial(
            StreamCall, open_stream
        )
        super().__init__(
            handlers, inference.submit, service, thread, host, port, options=options.options, tls=options.tls
        )  # fmt: skip

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


def _answer(thread: LoopThread, method: Method, data: bytes, rpc: UnaryCall) -> None:
    def answer() -> None:
        try:
            rpc.reply(method.answer(data))
        except TritonError as error:
            rpc.fail(error)
        except Exception as error:
            _log.exception("a gRPC call failed")
            rpc.fail(InternalError(f"{type(error).__name__}: {error}"))

    if len(data) > requests.LONG or method.is_slow():
        thread.run_on_worker(answer, loads=method.loads)
    else:
        answer()


class Method(NamedTuple):
    """One unary method: serialized request in, serialized response out.

    Attributes
    ----------
    category : str
        Category of Triton's restricted protocols; empty for a method that is never restricted.
    answer : callable
    is_slow : callable
        Whether a call may take long; then it is run on a worker.
    loads : bool
        Whether a call loads or unloads a model.
    """

    category: str
    answer: Callable[[bytes], bytes]
    is_slow: Callable[[], bool] = bool
    loads: bool = False


def grpc_methods(service: Service) -> dict[bytes, Method]:
    """Return all unary methods except ModelInfer, by full name."""
    methods = _Methods(service)
    table: dict[str, tuple[Callable[[Any, Any], None], str]] = {
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
        "SystemSharedMemoryStatus": (partial(methods.memory, "system"), "shared-memory"),
        "SystemSharedMemoryRegister": (methods.system_register, "shared-memory"),
        "SystemSharedMemoryUnregister": (partial(methods.unregister, "system"), "shared-memory"),
        "CudaSharedMemoryStatus": (partial(methods.memory, "cuda"), "shared-memory"),
        "CudaSharedMemoryRegister": (methods.cuda_register, "shared-memory"),
        "CudaSharedMemoryUnregister": (partial(methods.unregister, "cuda"), "shared-memory"),
        "TraceSetting": (methods.trace, "trace"),
        "LogSettings": (methods.log, "logging"),
    }
    found = {f"/{requests.HEALTH}/Check".encode(): Method("", methods.health)}
    for name, (fill, category) in table.items():
        is_slow: Callable[[], bool] = bool
        if name == "ModelReady":
            is_slow = service.server.engine.inspection.has_own_checks
        elif category == "model-repository":
            is_slow = partial(bool, True)  # loading takes seconds, and the index may read the disk
        path = f"/{requests.SERVICE}/{name}".encode()
        loads = name in ("RepositoryModelLoad", "RepositoryModelUnload")
        found[path] = Method(category, partial(_filled, name, fill), is_slow, loads)
    return found


def _filled(name: str, fill: Callable[[Any, Any], None], data: bytes) -> bytes:
    request, _ = requests.parse(getattr(messages, f"{name}Request"), data)
    response = getattr(messages, f"{name}Response")()
    fill(request, response)
    serialized: bytes = response.SerializeToString()
    return serialized


class _Methods:
    """The methods; all but `health` read a message and fill in the response."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._server = service.server

    # -- server and models -----------------------------------------------------------------------

    def health(self, data: bytes) -> bytes:
        requests.parse(requests.HealthCheckRequest, data)
        return responses.health_response(self._service.is_ready())

    def server_live(self, _: Any, response: Any) -> None:
        response.live = self._service.is_live()

    def server_ready(self, _: Any, response: Any) -> None:
        response.ready = self._service.is_ready()

    def model_ready(self, request: Any, response: Any) -> None:
        inspection = self._server.engine.inspection
        inspection.check_answering()
        response.ready = inspection.is_model_ready(request.name, read_version(request.version))

    def server_metadata(self, _: Any, response: Any) -> None:
        json_format.ParseDict(self._service.metadata(), response)

    def model_metadata(self, request: Any, response: Any) -> None:
        version = read_version(request.version)
        found = self._server.metadata(request.name, version)
        self._server.engine.inspection.check_answering()  # before the error of an unknown model
        if version != -1:
            found["versions"] = [str(version)]
        json_format.ParseDict(found, response)

    def model_config(self, request: Any, response: Any) -> None:
        config = self._server.config(request.name, read_version(request.version))
        response.config.MergeFromString(config.SerializeToString())

    def statistics(self, request: Any, response: Any) -> None:
        found = self._service.statistics(request.name, read_version(request.version))
        json_format.ParseDict(found, response, ignore_unknown_fields=True)

    # -- repository ------------------------------------------------------------------------------

    def index(self, request: Any, response: Any) -> None:
        _check_repository(request)
        self._server.engine.inspection.check_answering()
        for entry in self._service.control.index(ready=request.ready):
            response.models.add(**entry)

    def load(self, request: Any, _: Any) -> None:
        _check_repository(request)
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

    def unload(self, request: Any, _: Any) -> None:
        _check_repository(request)
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

    # -- shared memory ---------------------------------------------------------------------------

    def memory(self, kind: Kind, request: Any, response: Any) -> None:
        for region in self._service.shared_memory.status(kind, request.name):
            json_format.ParseDict(region, response.regions[region["name"]])

    def system_register(self, request: Any, _: Any) -> None:
        self._service.clients_memory().register_system(
            request.name, request.key, request.offset, request.byte_size
        )

    def cuda_register(self, request: Any, _: Any) -> None:
        self._service.clients_memory().register_cuda(
            request.name, request.raw_handle, request.device_id, request.byte_size
        )

    def unregister(self, kind: Kind, request: Any, _: Any) -> None:
        self._service.clients_memory().unregister(kind, request.name)

    # -- trace and log settings ------------------------------------------------------------------

    def trace(self, request: Any, response: Any) -> None:
        name = request.model_name
        if name and not self._server.is_ready(name):
            raise InvalidArgumentError(f"Request for unknown model : {name}")
        if request.settings:
            changes = trace_changes(request.settings, _levels, _number, got="got: ")
            self._service.trace.update(name, changes)
        for key, value in self._service.trace.get(name).items():
            values = value if isinstance(value, list) else [value]
            response.settings[key].value.extend(values)

    def log(self, request: Any, response: Any) -> None:
        if request.settings:
            self._service.log.update(log_changes(request.settings, _log_value, _wrong_format))
        for key, value in self._service.log.get().items():
            field, _ = _LOG_FIELDS[type(value)]
            setattr(response.settings[key], field, value)


def _check_repository(request: Any) -> None:
    if request.repository_name:
        raise UnsupportedError("'repository_name' specification is not supported")


def _levels(setting: Any) -> list[str] | None:
    return list(setting.value) or None


def _number(name: str, setting: Any) -> str | None:
    if len(setting.value) > 1:
        raise InvalidArgumentError(f"expect only 1 value for '{name}'")
    return str(setting.value[0]) if setting.value else None


_LOG_FIELDS: Mapping[type, tuple[str, str]] = {
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
