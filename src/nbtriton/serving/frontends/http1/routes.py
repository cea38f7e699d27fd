"""Routes of the HTTP endpoint (docs/rules/protocol.md): KS1 and KS2, and the restricted APIs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Route", "find_route"]

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
