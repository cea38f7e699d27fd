"""The options of a remote model: `nbtriton.remote` and ``%triton_remote`` have them from here."""

# Annotations are evaluated: the table is read from them.
from typing import Annotated, Literal, TypedDict

from nbtriton.common.checks import Kind, is_whole, number, optional, whole
from nbtriton.options.table import Option, table_of


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
