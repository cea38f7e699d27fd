"""Which handler answers a path (KS1, KS2), and the restricted APIs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Route", "find_route"]

_MODEL = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([0-9]+))?"
    r"(?:/(infer|generate|generate_stream|ready|config|stats|trace/setting))?"
)
_HEALTH = re.compile(r"/v2/health/(live|ready)")
_REPOSITORY = re.compile(r"/v2/repository(?:/([^/]+))?/(index|models/([^/]+)/(load|unload))")
_MEMORY = re.compile(
    r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)"
)
_GET = frozenset({"GET"})
_POST = frozenset({"POST"})
_BOTH = _GET | _POST

# What follows the model in a path: handler, methods, category.
_OF_MODEL = {
    "infer": ("infer", _POST, "inference"),
    "generate": ("generate", _POST, "inference"),
    "generate_stream": ("generate_stream", _POST, "inference"),
    "ready": ("model_ready", _GET, "health"),
    "config": ("model_config", _GET, "model-config"),
    "stats": ("statistics", _GET, "statistics"),
    "trace/setting": ("trace", _BOTH, "trace"),
    None: ("model_metadata", _GET, "metadata"),
}
_PLAIN = {
    "/v2": ("server_metadata", _GET, "metadata"),
    "/v2/models/stats": ("statistics", _GET, "statistics"),
    "/v2/logging": ("logging", _BOTH, "logging"),
    "/v2/trace/setting": ("trace", _BOTH, "trace"),
}


@dataclass(frozen=True, slots=True)
class Route:
    """A handler by name, with what the path says."""

    handler: str
    methods: frozenset[str]
    category: str
    arguments: Mapping[str, str] = field(default_factory=dict)


def find_route(path: str) -> Route | None:
    """Return the route of a whole raw path: no decoding, no trailing slash; None if there is none."""
    plain = _PLAIN.get(path)
    if plain is not None:
        return Route(*plain)
    found = _MODEL.fullmatch(path)
    if found is not None:
        name, version, kind = found.groups()
        if kind != "trace/setting":
            return Route(*_OF_MODEL[kind], {"name": name, "version": version or ""})
        return None if version else Route(*_OF_MODEL[kind], {"name": name})
    found = _HEALTH.fullmatch(path)
    if found is not None:
        return Route(f"server_{found[1]}", _GET, "health")
    found = _MEMORY.fullmatch(path)
    if found is not None:
        kind, region, action = found.groups()
        methods = _GET if action == "status" else _POST
        arguments = {"kind": kind, "region": region or ""}
        return Route(f"memory_{action}", methods, "shared-memory", arguments)
    found = _REPOSITORY.fullmatch(path)
    if found is not None:
        repository, action, name, verb = found.groups()
        if action == "index":
            return Route("repository_index", _POST, "model-repository")
        arguments = {"repository": repository or "", "name": name}
        return Route(f"repository_{verb}", _POST, "model-repository", arguments)
    return None
