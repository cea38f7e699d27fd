"""Where a remote model is and how it is asked: what `nbtriton.Server.load` takes, and as parameters of a configuration."""

# Annotations are evaluated: the table of options is read from them.
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, Unpack

from nbtriton.common.checks import Kind, is_whole, number, optional, whole
from nbtriton.common.errors import ConfigError
from nbtriton.model.config import ModelConfig
from nbtriton.model.config.parameters import text_parameter
from nbtriton.options.table import Option, read_settings, signed, table_of
from nbtriton.serving.clients.address import Address, address_of
from nbtriton.serving.clients.base import TIMEOUT_S, Client


class RemoteSettings(TypedDict, total=False):
    """How a remote model is asked."""

    model: Annotated["str | None", Option(
        "--model", "its name there (default: the name here)", "MODEL", unset="the name here")]  # fmt: skip
    version: Annotated["int | None", Option(
        "--version", "its version there (default: the latest that is ready)", "N", int,
        kind=optional(Kind(lambda value: is_whole(value) and value > 0, "a version, from 1 on")), unset="the latest")]  # fmt: skip
    protocol: Annotated['Literal["http", "grpc"] | None', Option(
        "--protocol", "http or grpc, which streams need (default: that of the URL, else http)", choices=("http", "grpc"),
        unset="that of the URL, else http")]  # fmt: skip
    timeout_s: Annotated[float, Option(
        "--timeout-s", "seconds for an answer, after which the request fails and is given up there (60)", "S", float, 60.0,
        kind=number(above=0))]  # fmt: skip
    retries: Annotated[int, Option(
        "--retries", "how often a request is sent again that found the server unavailable, after 0.1 s, 0.2 s, …; requests of "
        "sequences and streams are not (2)", "N", int, 2, kind=whole(0))]  # fmt: skip
    shared_memory_bytes: Annotated[int, Option(
        "--shared-memory-bytes", "size of the system shared memory by which inputs go to a server on this machine (0: in the "
        "bodies of requests)", "N", int, 0, kind=whole(0))]  # fmt: skip


REMOTE = table_of(RemoteSettings)


_PREFIX = "REMOTE_"


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of a running Triton.

    Attributes
    ----------
    url : str
        With the protocol in front: ``http://host:port``.
    model : str
        Its name there; empty for the name here.
    version : int
        -1 for the latest that is ready.
    timeout_s : float
        For each answer.
    retries : int
        How often a request is sent again that found the server unavailable.
    shared_memory_bytes : int
        Of the memory by which inputs go to a server on this machine; 0 for none.
    """

    url: str
    model: str = ""
    version: int = -1
    timeout_s: float = REMOTE["timeout_s"].default
    retries: int = REMOTE["retries"].default
    shared_memory_bytes: int = REMOTE["shared_memory_bytes"].default

    @classmethod
    def of(cls, config: ModelConfig) -> "RemoteModel":
        """Return the remote model that a configuration's parameters name.

        Raises
        ------
        ConfigError
            There is no URL among them, or a value of another kind than the option of the name has.
        """
        texts = {name: text_parameter(config, _PREFIX + name.upper()) for name in ("url", *REMOTE)}
        url = texts.pop("url")
        if url is None:
            raise ConfigError(
                f"remote model '{config.name}' must specify parameter {_PREFIX}URL",
                hint="such as localhost:8000, or load it with model=nt.remote(URL)",
                field="parameters",
            )
        given = {name: REMOTE[name].read(text) for name, text in texts.items() if text is not None}
        return remote(url, **given)

    def parameters(self) -> Mapping[str, str]:
        """Return the parameters of a configuration."""
        found: dict[str, Any] = {
            "url": self.url, "model": self.model, "timeout_s": self.timeout_s, "retries": self.retries,
            "shared_memory_bytes": self.shared_memory_bytes,
        }  # fmt: skip
        if self.version != -1:
            found["version"] = self.version
        return {_PREFIX + name.upper(): str(value) for name, value in found.items()}

    def client(self) -> Client[Any]:
        """Return a new client of its server.

        Its own limit of time is for what is no inference, and longer: an answer that is late is given up before.
        """
        return self._address.client(max(TIMEOUT_S, self.timeout_s + 1), decodes_streams=True)

    @property
    def protocol(self) -> str:
        """``"http"`` or ``"grpc"``."""
        return self._address.protocol

    @property
    def _address(self) -> Address:
        return address_of(self.url)


@signed(REMOTE)
def remote(url: str, **options: Unpack[RemoteSettings]) -> RemoteModel:
    """Return a model of a running Triton, for `nbtriton.Server.load`.

    Its configuration comes from there: inputs, outputs, largest batch, whether it is decoupled and has sequences. Requests
    are joined to batches here, as with any model, and sent as one; two of them for each instance that it has there, unless
    ``instance_group`` says otherwise.

    Parameters
    ----------
    url : str
        ``host:port``, optionally with ``http://`` or ``grpc://`` in front; without a port Triton's own.
    **options
        As in the table.

    Raises
    ------
    InvalidArgumentError
        The URL is none, or an option has a value that it does not take.

    Examples
    --------
    >>> nt.remote("localhost:8000", model="bert", timeout_s=5)
    RemoteModel(url='http://localhost:8000', model='bert', version=-1, timeout_s=5, retries=2, shared_memory_bytes=0)
    """
    found = read_settings("a remote model", REMOTE, options)
    address = address_of(url, found["protocol"])
    where, name, version = f"{address.protocol}://{address.place}", found["model"], found["version"]
    limits = found["timeout_s"], found["retries"], found["shared_memory_bytes"]
    return RemoteModel(where, name or "", version or -1, *limits)
