"""Handlers of the HTTP endpoint except inference (KS11 to KS17, KS40 to KS44, KS61, KS65, KS70, KS71)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import (
    InternalError,
    InvalidArgumentError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.model.config import to_reported_dict
from nbtriton.serving.frontends.http1 import inference
from nbtriton.serving.frontends.http1.connection import RequestResponseCycle
from nbtriton.serving.frontends.http1.response import (
    JSON,
    TEXT,
    HttpResponse,
    RequestHead,
    error_body,
    error_response,
    unexpected_error,
)
from nbtriton.serving.frontends.kserve import jsontext
from nbtriton.serving.frontends.kserve.wire import read_version
from nbtriton.serving.frontends.service import log_changes, trace_changes
from nbtriton.serving.repository.polling import decode_base64, load_parameters

if TYPE_CHECKING:
    from nbtriton.runtime.engine import JoinBatch
    from nbtriton.serving.frontends.kserve.shared_memory import Kind
    from nbtriton.serving.frontends.service import Service

# Routes whose errors have no JSON content type in Triton.
_PLAIN_ERRORS = frozenset({"infer", "model_ready", "server_live", "server_ready"})
_LOADING = frozenset({"repository_load", "repository_unload"})
_SLOW = _LOADING | {"repository_index"}  # which may read the disk
_CUDA_HANDLE = 64
_OK_JSON = HttpResponse(200, JSON)


class Handlers:
    """Handlers by route.

    Parameters
    ----------
    service : Service
    join_batch : callable, optional
        As for `RequestDispatcher.submit_many`.
    """

    def __init__(self, service: Service, join_batch: JoinBatch | None = None) -> None:
        self._service = service
        self._inference = inference.Inference(service, join_batch)
        self._infer: Mapping[str, Callable[..., inference.RouteHandler]] = {
            "infer": self._inference.infer,
            "generate": partial(self._inference.generate, inference.GenerateResponder),
            "generate_stream": partial(self._inference.generate, inference.SseResponder),
        }

    def handle(self, cycles: Sequence[RequestResponseCycle]) -> None:
        """Answer requests that arrived together, each now or later; never raises."""
        ready: list[inference.HttpResponder] = []
        for cycle in cycles:
            head = cycle.head
            try:
                route_handler: inference.RouteHandler | None = head.route_handler
                if route_handler is None:
                    route_handler = head.route_handler = self._route_handler(head)
                responder = route_handler(cycle)
            except Exception as error:
                cycle.respond(unexpected_error(error, head.path))
            else:
                if responder is not None:
                    ready.append(responder)
        if ready:
            self._inference.submit(ready)

    def _route_handler(self, head: RequestHead) -> inference.RouteHandler:
        """Return the handler of requests with this head."""
        route = find_route(head.path)
        if route is None:
            return _always(HttpResponse(404, TEXT, (error_body("Not Found"),)))
        restricted = self._service.restricted.get(route.category)
        if restricted is not None:
            header, value = restricted
            if head.headers.get(header.lower().encode()) != value.encode():
                text = f"This API is restricted, expecting header '{header}'"
                return _always(HttpResponse(403, TEXT, (error_body(text),)))
        if head.method not in route.methods:
            body = error_body("Method Not Allowed")
            return _always(HttpResponse(405, _kind_of_errors(route), (body,)))
        if route.category == "inference":
            return self._infer[route.handler](head, **route.arguments)
        return lambda cycle: self._answer_in_time(cycle, route)

    def _answer_in_time(self, cycle: RequestResponseCycle, route: Route) -> None:
        """Answer at once, or on a worker if that may take long."""
        checks = self._service.server.engine.inspection.has_own_checks
        is_slow = route.handler in _SLOW or (route.handler == "model_ready" and checks())
        if is_slow or len(cycle.body) > inference.LONG_JSON:
            cycle.work(lambda: self._answer(cycle, route), loads=route.handler in _LOADING)
        else:
            self._answer(cycle, route)

    def _answer(self, cycle: RequestResponseCycle, route: Route) -> None:
        handler: Callable[..., Any] = getattr(self, f"_{route.handler}")
        try:
            found = handler(cycle, **route.arguments)
            response = found if isinstance(found, HttpResponse) else _json(found)
        except TritonError as error:
            response = error_response(error, _kind_of_errors(route))
        except Exception as error:
            response = unexpected_error(error, cycle.head.path, _kind_of_errors(route))
        cycle.respond(response)

    # Each handler returns the document of its response, or the response.

    # -- server and models -----------------------------------------------------------------------

    def _server_live(self, _: RequestResponseCycle) -> HttpResponse:
        return HttpResponse(200 if self._service.is_live() else 400)

    def _server_ready(self, _: RequestResponseCycle) -> HttpResponse:
        return HttpResponse(200 if self._service.is_ready() else 400)

    def _server_metadata(self, _: RequestResponseCycle) -> Any:
        return self._service.metadata()

    def _model_ready(self, _: RequestResponseCycle, name: str, version: str) -> HttpResponse:
        self._service.server.engine.inspection.check_answering()
        if not self._service.server.engine.inspection.is_model_ready(name, read_version(version)):
            return HttpResponse(400, TEXT, (error_body("Model version not ready"),))
        return HttpResponse()

    def _model_metadata(self, _: RequestResponseCycle, name: str, version: str) -> Any:
        found = self._service.server.metadata(name, read_version(version))
        if version:
            found["versions"] = [str(int(version))]
        return found

    def _model_config(self, _: RequestResponseCycle, name: str, version: str) -> Any:
        return _json(to_reported_dict(self._service.server.config(name, read_version(version))))

    def _statistics(self, _: RequestResponseCycle, name: str = "", version: str = "") -> Any:
        return self._service.statistics(name, read_version(version))

    # -- repository ------------------------------------------------------------------------------

    def _repository_index(self, cycle: RequestResponseCycle, repository: str) -> Any:  # noqa: ARG002
        given = _optional_object(cycle)
        ready = "ready" in given and jsontext.as_bool(given["ready"])
        return self._service.control.index(ready=ready)

    def _repository_load(
        self, cycle: RequestResponseCycle, repository: str, name: str
    ) -> HttpResponse:
        _check_repository(repository)
        self._service.control.load(name, load_parameters(_parameters(cycle)))
        return _OK_JSON

    def _repository_unload(
        self, cycle: RequestResponseCycle, repository: str, name: str
    ) -> HttpResponse:
        _check_repository(repository)
        parameters: dict[str, Any] = {}
        # As in Triton, a malformed body does not prevent unloading.
        with suppress(TritonError):
            given = _optional_object(cycle).get("parameters")
            if type(given) is dict and "unload_dependents" in given:
                parameters["unload_dependents"] = jsontext.as_bool(given["unload_dependents"])
        self._service.control.unload(name, parameters)
        return _OK_JSON

    # -- shared memory ---------------------------------------------------------------------------

    def _memory_status(self, _: RequestResponseCycle, kind: Kind, region: str) -> Any:
        return self._service.shared_memory.status(kind, region)

    def _memory_register(self, cycle: RequestResponseCycle, kind: str, region: str) -> HttpResponse:
        memory = self._service.clients_memory()
        if not region:
            raise InvalidArgumentError(
                f"'region name' is necessary to register {kind} shared memory region"
            )
        given = _object(cycle)

        def need(name: str) -> Any:
            if name not in given:
                raise InvalidArgumentError(f"Shared memory register request has no '{name}' field")
            return given[name]

        if kind == "system":
            key = jsontext.as_string(need("key"))
            offset = jsontext.as_uint(given.get("offset", 0))
            memory.register_system(region, key, offset, jsontext.as_uint(need("byte_size")))
            return _OK_JSON
        handle = decode_base64(jsontext.as_string(jsontext.member(need("raw_handle"), "b64")))
        size, device = (
            jsontext.as_uint(jsontext.member(given, field)) for field in ("byte_size", "device_id")
        )
        if len(handle) != _CUDA_HANDLE:
            raise InvalidArgumentError(
                "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
            )
        memory.register_cuda(region, handle, device, size)
        return _OK_JSON

    def _memory_unregister(self, _: RequestResponseCycle, kind: Kind, region: str) -> HttpResponse:
        self._service.clients_memory().unregister(kind, region)
        return _OK_JSON

    # -- trace and log settings ------------------------------------------------------------------

    def _trace(self, cycle: RequestResponseCycle, name: str = "") -> Any:
        if name:
            self._service.server.engine.inspection.check_answering()
            if not self._service.server.is_ready(name):
                raise InvalidArgumentError(f"Request for unknown model : {name}")
        if cycle.head.method == "POST":
            changes = trace_changes(_object(cycle), _levels, _number, got="got:")
            self._service.trace.update(name, changes)
        return self._service.trace.get(name)

    def _logging(self, cycle: RequestResponseCycle) -> Any:
        if cycle.head.method == "POST":
            given = {name: value for name, value in _object(cycle).items() if value is not None}
            self._service.log.update(log_changes(given, _log_value, _wrong_format))
        return self._service.log.get()


def _kind_of_errors(route: Route) -> bytes:
    return TEXT if route.handler in _PLAIN_ERRORS else JSON


def _always(response: HttpResponse) -> inference.RouteHandler:
    return lambda cycle: cycle.respond(response)


def _json(value: Any) -> HttpResponse:
    return HttpResponse(200, JSON, (jsontext.dumps(value),))


def _check_repository(repository: str) -> None:
    if repository:
        raise UnsupportedError("'repository_name' specification is not supported")


def _parameters(cycle: RequestResponseCycle) -> dict[str, Any]:
    found: dict[str, Any] = _optional_object(cycle).get("parameters", {})
    if type(found) is not dict:
        raise InternalError("attempt to get members for non-object")
    return found


def _object(cycle: RequestResponseCycle) -> dict[str, Any]:
    """Return the members of a JSON body; none if it is not an object."""
    document = jsontext.parse(cycle.body, tensors=False)
    return document if type(document) is dict else {}


def _optional_object(cycle: RequestResponseCycle) -> dict[str, Any]:
    return _object(cycle) if cycle.body else {}


def _levels(value: Any) -> list[str] | None:
    return (
        None if value is None else [jsontext.as_string(level) for level in jsontext.as_array(value)]
    )


def _number(_: str, value: Any) -> str | None:
    return None if value is None else jsontext.as_string(value)


_LOG_READERS: Mapping[type, Callable[[Any], bool | int | str]] = {
    bool: jsontext.as_bool,
    int: jsontext.as_uint,
    str: jsontext.as_string,
}


def _log_value(_: str, kind: type, value: Any) -> bool | int | str:
    return _LOG_READERS[kind](value)


def _wrong_format(text: str) -> UnavailableError:
    return UnavailableError(f"invalid argument for --log_format, got: {text}")


_GET = frozenset({"GET"})
_POST = frozenset({"POST"})
_MODEL = r"models/(?P<name>[^/]+)"
_VERSION = rf"{_MODEL}(?:/versions/(?P<version>[0-9]+))?"
_REPOSITORY = r"repository(?:/(?P<repository>[^/]+))?"
_MEMORY = r"(?P<kind>system|cuda)sharedmemory(?:/region/(?P<region>[^/]+))?"

# Path after ``/v2``, handler, methods and category; the first row that matches counts.
_ROUTES = [
    (re.compile(f"/v2{pattern and '/'}{pattern}"), handler, methods, category)
    for pattern, handler, methods, category in (
        ("", "server_metadata", _GET, "metadata"),
        ("health/live", "server_live", _GET, "health"),
        ("health/ready", "server_ready", _GET, "health"),
        ("logging", "logging", _GET | _POST, "logging"),
        ("trace/setting", "trace", _GET | _POST, "trace"),
        ("models/stats", "statistics", _GET, "statistics"),
        (f"{_VERSION}/infer", "infer", _POST, "inference"),
        (f"{_VERSION}/generate", "generate", _POST, "inference"),
        (f"{_VERSION}/generate_stream", "generate_stream", _POST, "inference"),
        (f"{_VERSION}/ready", "model_ready", _GET, "health"),
        (f"{_VERSION}/config", "model_config", _GET, "model-config"),
        (f"{_VERSION}/stats", "statistics", _GET, "statistics"),
        (f"{_MODEL}/trace/setting", "trace", _GET | _POST, "trace"),
        (_VERSION, "model_metadata", _GET, "metadata"),
        (f"{_REPOSITORY}/index", "repository_index", _POST, "model-repository"),
        (f"{_REPOSITORY}/models/(?P<name>[^/]+)/load", "repository_load", _POST, "model-repository"),
        (f"{_REPOSITORY}/models/(?P<name>[^/]+)/unload", "repository_unload", _POST, "model-repository"),
        (f"{_MEMORY}/status", "memory_status", _GET, "shared-memory"),
        (f"{_MEMORY}/register", "memory_register", _POST, "shared-memory"),
        (f"{_MEMORY}/unregister", "memory_unregister", _POST, "shared-memory"),
    )
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Route:
    """Name of a handler, with the parts of the path."""

    handler: str
    methods: frozenset[str]
    category: str
    arguments: Mapping[str, str] = field(default_factory=dict)


def find_route(path: str) -> Route | None:
    """Return the route of a raw path, not decoded, without trailing slash; None for an unknown path."""
    for pattern, handler, methods, category in _ROUTES:
        found = pattern.fullmatch(path)
        if found is not None:
            return Route(handler, methods, category, found.groupdict(""))
    return None
