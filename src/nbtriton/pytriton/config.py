"""`TritonConfig`: tritonserver's flags as fields."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from nbtriton.common.errors import nearest
from nbtriton.pytriton.exceptions import PyTritonValidationError
from nbtriton.serving.frontends.serve.flags import FLAGS

__all__ = ["TritonConfig", "TritonSecurityConfig"]

_ENVIRONMENT = "PYTRITON_TRITON_CONFIG_"
_INDEXED = re.compile(r"(.+?)_(\d+)")
_HEADER = "triton-access-token"
# Categories of --http-restricted-api.
_PROTECTED = ("shared-memory", "model-repository", "statistics", "trace", "logging")


@dataclass(kw_only=True)
class TritonConfig:
    """Settings of the server: each field is tritonserver's flag of that name.

    None is the default of ``nbtriton serve``, so that the endpoints listen on this machine only.
    docs/configuration.md lists every flag, and which have no effect here.
    """

    model_repository: Path | str | None = None
    id: str | None = None
    log_verbose: int | None = None
    log_file: Path | str | None = None
    exit_timeout_secs: int | None = None
    exit_on_error: bool | None = None
    strict_readiness: bool | None = None
    allow_http: bool | None = None
    http_address: str | None = None
    http_port: int | None = None
    http_header_forward_pattern: str | None = None
    http_thread_count: int | None = None
    http_restricted_api: str | None = None
    allow_grpc: bool | None = None
    grpc_address: str | None = None
    grpc_port: int | None = None
    grpc_header_forward_pattern: str | None = None
    grpc_infer_allocation_pool_size: int | None = None
    grpc_use_ssl: bool | None = None
    grpc_use_ssl_mutual: bool | None = None
    grpc_server_cert: Path | str | None = None
    grpc_server_key: Path | str | None = None
    grpc_root_cert: Path | str | None = None
    grpc_infer_response_compression_level: str | None = None
    grpc_keepalive_time: int | None = None
    grpc_keepalive_timeout: int | None = None
    grpc_keepalive_permit_without_calls: bool | None = None
    grpc_http2_max_pings_without_data: int | None = None
    grpc_http2_min_recv_ping_interval_without_data: int | None = None
    grpc_http2_max_ping_strikes: int | None = None
    grpc_restricted_protocol: str | None = None
    allow_metrics: bool | None = None
    allow_gpu_metrics: bool | None = None
    allow_cpu_metrics: bool | None = None
    metrics_interval_ms: int | None = None
    metrics_port: int | None = None
    metrics_address: str | None = None
    allow_sagemaker: bool | None = None
    sagemaker_port: int | None = None
    sagemaker_safe_port_range: str | None = None
    sagemaker_thread_count: int | None = None
    allow_vertex_ai: bool | None = None
    vertex_ai_port: int | None = None
    vertex_ai_thread_count: int | None = None
    vertex_ai_default_model: str | None = None
    metrics_config: Sequence[str] | None = None
    trace_config: Sequence[str] | None = None
    cache_config: Sequence[str] | None = None
    cache_directory: str | None = None
    buffer_manager_thread_count: int | None = None

    def __post_init__(self) -> None:
        if self.allow_http is False and self.allow_grpc is False:
            raise PyTritonValidationError(
                "neither HTTP nor gRPC is allowed", hint="allow_http=True or allow_grpc=True"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Return a configuration from fields by name, as values or text; warn of an unknown field."""
        kinds = {field.name: str(field.type) for field in fields(cls)}
        found = {}
        for name, value in config.items():
            if name not in kinds:
                near = nearest(name, kinds)
                warnings.warn(
                    f"TritonConfig has no field '{name}'" + (f"; {near}" if near else ""),
                    stacklevel=2,
                )
            else:
                found[name] = _read(kinds[name], value)
        return cls(**found)

    @classmethod
    def from_env(cls) -> Self:
        """Return a configuration from variables such as ``PYTRITON_TRITON_CONFIG_HTTP_PORT=9000``.

        Variables of list items end with the index: ``…_CACHE_CONFIG_0``.
        """
        found: dict[str, Any] = {}
        lists: dict[str, dict[int, str]] = {}
        names = {field.name for field in fields(cls)}
        for variable, value in os.environ.items():
            if variable.startswith(_ENVIRONMENT):
                name = variable.removeprefix(_ENVIRONMENT).lower()
                indexed = None if name in names else _INDEXED.fullmatch(name)
                if indexed is None:
                    found[name] = value
                else:
                    lists.setdefault(indexed[1], {})[int(indexed[2])] = value
        for name, items in lists.items():
            found[name] = [value for _, value in sorted(items.items())]
        return cls.from_dict(found)

    def merged(self, other: TritonConfig | None) -> TritonConfig:
        """Return this configuration with the fields set in the other one."""
        given = {} if other is None else asdict(other)
        return TritonConfig(
            **{
                **asdict(self),
                **{name: value for name, value in given.items() if value is not None},
            }
        )

    def to_flags(self) -> list[str]:
        """Return the command line of these settings, without the repository."""
        flags = []
        for name, value in asdict(self).items():
            flag = name.replace("_", "-")
            if value is None or name == "model_repository" or flag not in FLAGS:
                continue
            values = value if isinstance(value, list | tuple) else [value]
            flags += [f"--{flag}={str(v).lower() if isinstance(v, bool) else v}" for v in values]
        return flags


@dataclass
class TritonSecurityConfig:
    """Access token for some endpoints, in the header field ``triton-access-token``.

    Attributes
    ----------
    access_token : str, optional
        By default random.
    restricted_endpoints : sequence of str, optional
        Categories of ``--http-restricted-api``; by default all except inference.
    """

    access_token: str | None = None
    restricted_endpoints: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.restricted_endpoints is None:
            self.restricted_endpoints = _PROTECTED
        if self.access_token is None and self.restricted_endpoints:
            import secrets

            self.access_token = secrets.token_urlsafe(32)

    def to_flags(self) -> list[str]:
        """Return the flags of these settings."""
        if not self.restricted_endpoints:
            return []
        value = f"{','.join(self.restricted_endpoints)}:{_HEADER}={self.access_token}"
        return [f"--http-restricted-api={value}", f"--grpc-restricted-protocol={value}"]


def _read(kind: str, value: Any) -> Any:
    """Return the value of a field from a value or text."""
    if value is None:
        return None
    if kind.startswith("Sequence"):
        return value.split(",") if isinstance(value, str) else list(value)
    if not isinstance(value, str):
        return value
    if kind.startswith("bool"):
        return value.strip().lower() in ("1", "true", "yes", "on")
    return int(value) if kind.startswith("int") else value
