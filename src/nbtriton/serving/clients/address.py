"""The address of a server: ``host:port``, and the protocol in front of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, get_args

from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.serving.clients.base import TIMEOUT_S, Client, Protocol
from nbtriton.serving.clients.grpc import GrpcClient
from nbtriton.serving.clients.http import HttpClient

_HIGHEST_PORT = 65535
_DEFAULT_PORTS = {"http": 8000, "grpc": 8001}


@dataclass(frozen=True, slots=True)
class Address:
    """A protocol, and a place as ``host:port``."""

    protocol: Protocol
    place: str

    def client(self, timeout_s: float = TIMEOUT_S, *, decodes_streams: bool = False) -> Client[Any]:
        """Return a new client.

        Parameters
        ----------
        timeout_s : float
            Timeout of one call in seconds.
        decodes_streams : bool
            Whether responses of `Client.submit_streaming` have their tensors.

        Raises
        ------
        UnsupportedError
            gRPC without the package ``grpcio``.
        """
        if self.protocol == "grpc":
            return GrpcClient(self.place, timeout_s, decodes_streams=decodes_streams)
        return HttpClient(self.place, timeout_s)


def address_of(url: str, protocol: Protocol | None = None) -> Address:
    """Return the address in a URL.

    Parameters
    ----------
    url : str
        ``host:port``, optionally with ``http://`` or ``grpc://`` in front; without a port Triton's own. An
        IPv6 address is in brackets, ``[::1]:8000``.
    protocol : {"http", "grpc"}, optional
        By default that of the URL, else HTTP.

    Raises
    ------
    InvalidArgumentError
        A path in the URL, a port that is no number up to 65535, or an unknown protocol.
    """
    scheme, mark, rest = url.rpartition("://")
    chosen: Any = scheme if mark else protocol or "http"
    if chosen not in get_args(Protocol):
        raise InvalidArgumentError(
            f"unknown protocol '{chosen}'", hint=nearest(chosen, get_args(Protocol))
        )
    if protocol not in (None, chosen):
        raise InvalidArgumentError(f"'{url}' is not to be reached over {protocol}")
    place = rest.rstrip("/")
    if "/" in place or not place:
        raise InvalidArgumentError(
            f"'{url}' is not the address of a server", hint="give it as host:port"
        )
    # After the brackets: an IPv6 address has colons of its own.
    if ":" not in place.rpartition("]")[2]:
        place = f"{place}:{_DEFAULT_PORTS[chosen]}"
    port = place.rpartition(":")[2]
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > _HIGHEST_PORT:
        raise InvalidArgumentError(
            f"'{url}' has the port '{port}'", hint=f"a number from 0 to {_HIGHEST_PORT}"
        )
    return Address(chosen, place)
