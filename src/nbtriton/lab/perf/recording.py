"""Recordings: the requests of live traffic in one file, and that file's format (docs/recording.md).

Pure apart from the file: a recording has no reference to a server.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self, cast

from nbtriton.common.checks import PATH, check
from nbtriton.common.closing import Closing
from nbtriton.common.errors import InvalidArgumentError, NotFoundError, nearest
from nbtriton.common.packages import needed
from nbtriton.drawing.numbers import counted, measure

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "nbtriton-recording"
VERSION = 1


class RecordedTensor(NamedTuple):
    """An input: its Triton datatype, its shape, and if recorded its bytes in Triton's encoding."""

    datatype: str
    shape: tuple[int, ...]
    data: bytes | None = None


RecordedInputs = Mapping[str, RecordedTensor]


class RecordedRequest(NamedTuple):
    """One request of a client.

    Attributes
    ----------
    at_ns : int
        Nanoseconds since the recording began; in ascending order.
    model : str
    inputs : int
        Index of its inputs in `Recording.inputs`. -1 where only `rows` is known.
    rows : int
        Its batch size; 0 for a model that does not batch.
    options : mapping
        Its given options, by the names of `nbtriton.Server.infer`: ``version``, ``outputs``, ``request_id``,
        ``priority``, ``timeout_us``, ``sequence_id``, ``sequence_start``, ``sequence_end`` and
        ``parameters``.
    """

    at_ns: int
    model: str
    inputs: int
    rows: int
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Recording:
    """Recorded traffic: made by `nbtriton.record`, sent by `nbtriton.replay`.

    >>> import tempfile
    >>> with nt.record(server, f"{tempfile.mkdtemp()}/traffic.jsonl", inputs=True) as tap:
    ...     _ = server.infer("double", {"IN": ones})
    >>> recording = nt.types.Recording.load(tap.path)
    >>> recording.requests[0].model, recording.has_data
    ('double', True)

    Parameters
    ----------
    requests : tuple of RecordedRequest
        In the order of their arrival.
    inputs : tuple of RecordedInputs
        Each different set of input tensors once.
    models : mapping of str to str
        The completed configuration of each model at the begin of the recording, as text.
    began : str
        Time of its begin, in the format of RFC 3339.
    duration_ns : int
        Its length.
    complete : bool
        Whether the file has its end.
    """

    requests: tuple[RecordedRequest, ...]
    inputs: tuple[RecordedInputs, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    began: str = ""
    duration_ns: int = 0
    complete: bool = True

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of `nbtriton.record`.

        Raises
        ------
        NotFoundError
            The file does not exist.
        InvalidArgumentError
            The file is no recording, or has a later version.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "traffic.jsonl"
        >>> with nt.record(server, path):
        ...     _ = server.infer("double", {"IN": ones})
        >>> nt.types.Recording.load(path).counts
        {'double': 1}
        """
        check({"recording": path}, {"recording": PATH})
        place = Path(path).expanduser()
        try:
            content = place.read_bytes()
        except OSError as error:
            raise NotFoundError(
                f"there is no recording '{place}': {error.strerror}", hint="nt.record makes one"
            ) from None
        header: dict[str, Any] | None = None
        requests: list[RecordedRequest] = []
        inputs: list[RecordedInputs] = []
        duration_ns, complete = 0, False
        for number, line in enumerate(_lines(content), 1):
            try:
                found = json.loads(line)
                if header is None:
                    header = _checked_header(found, place)
                elif "at_ns" in found:
                    requests.append(_request_of(found))
                elif "inputs" in found:
                    inputs.append(_inputs_of(found["inputs"]))
                elif "duration_ns" in found:
                    duration_ns, complete = int(found["duration_ns"]), True
            except InvalidArgumentError:
                raise
            except (ValueError, TypeError, KeyError, AttributeError):
                if header is None:
                    raise _no_recording(place) from None
                if not line.endswith(b"\n"):  # incomplete
                    break
                raise InvalidArgumentError(
                    f"line {number} of '{place}' is no line of a recording"
                ) from None
        if header is None:
            raise _no_recording(place)
        if requests and not duration_ns:
            duration_ns = requests[-1].at_ns
        return cls(
            tuple(requests), tuple(inputs), header["models"], header["began"], duration_ns, complete
        )

    def save(self, path: str | Path) -> None:
        """Write the recording to a file; equal recordings give equal bytes.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with nt.record(server, folder / "traffic.jsonl"):
        ...     _ = server.infer("double", {"IN": ones})
        >>> nt.types.Recording.load(folder / "traffic.jsonl").save(folder / "traffic.jsonl.gz")
        >>> nt.types.Recording.load(folder / "traffic.jsonl.gz").counts
        {'double': 1}
        """
        with RecordingWriter(open_recording(path), self.models, self.began) as writer:
            remaining_inputs = iter(self.inputs)
            written = 0
            for request in self.requests:  # inputs come before the first request that has them
                while written <= request.inputs:
                    writer.add_inputs(next(remaining_inputs))
                    written += 1
                writer.add(request)
            writer.end(self.duration_ns)

    def arrivals_ns(self, model: str) -> tuple[int, ...]:
        """Return the arrival times of a model's requests, in nanoseconds since the recording began.

        Raises
        ------
        NotFoundError
            The recording has no requests for this model.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "traffic.jsonl"
        >>> with nt.record(server, path):
        ...     _ = server.infer("double", {"IN": ones})
        >>> len(nt.types.Recording.load(path).arrivals_ns("double"))
        1
        """
        arrivals = tuple(request.at_ns for request in self.requests if request.model == model)
        if not arrivals:
            raise NotFoundError(
                f"the recording has no requests for model '{model}'",
                hint=nearest(model, self.counts),
            )
        return arrivals

    @property
    def counts(self) -> dict[str, int]:
        """The number of requests of each model."""
        return dict(Counter(request.model for request in self.requests))

    @property
    def has_data(self) -> bool:
        """Whether the contents of the inputs were recorded."""
        return bool(self.inputs) and all(
            tensor.data is not None for inputs in self.inputs for tensor in inputs.values()
        )

    @property
    def frame(self) -> pd.DataFrame:
        """One row per request as a pandas DataFrame, with ``at_ms`` since the recording began."""
        with needed("a recording's frame"):
            import pandas as pd

        return pd.DataFrame(
            [
                {"at_ms": r.at_ns / 1e6, "model": r.model, "rows": r.rows, **r.options}
                for r in self.requests
            ],
            columns=None if self.requests else ["at_ms", "model", "rows"],
        )

    @property
    def headline(self) -> str:
        """A one-line summary of its contents."""
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items()) or "nothing"
        words = f"{counted(len(self.requests), 'request')} in {measure(self.duration_ns / 1e9)} s ({counts})"
        words += ", with inputs" if self.has_data else ", without inputs"
        return words if self.complete else f"{words}; its end is missing"

    def __repr__(self) -> str:
        return f"<Recording {self.headline}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.headline)}</p>"


class RecordingWriter(Closing):
    """Writes a recording line by line; a context manager that closes the file.

    Parameters
    ----------
    file : binary file
    models : mapping of str to str
    began : str
    """

    def __init__(self, file: IO[bytes], models: Mapping[str, str], began: str) -> None:
        self._file = file
        self._inputs = 0
        self._line({"format": FORMAT, "version": VERSION, "began": began, "models": dict(models)})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add_inputs(self, inputs: RecordedInputs) -> int:
        """Write a set of inputs; return its index."""
        described = {}
        for name, tensor in inputs.items():
            described[name] = {"datatype": tensor.datatype, "shape": list(tensor.shape)}
            if tensor.data is not None:
                described[name]["data"] = base64.b64encode(tensor.data).decode()
        self._line({"inputs": described})
        self._inputs += 1
        return self._inputs - 1

    def add(self, request: RecordedRequest) -> None:
        """Write a request; its inputs are already written."""
        line: dict[str, Any] = {"at_ns": request.at_ns, "model": request.model}
        if request.inputs >= 0:
            line["of"] = request.inputs
        if request.rows != 1:
            line["rows"] = request.rows
        self._line(line | dict(request.options))

    def end(self, duration_ns: int) -> None:
        """Write the last line."""
        self._line({"duration_ns": duration_ns})

    def _line(self, value: Mapping[str, Any]) -> None:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        # An id may have bytes that are not UTF-8, as lone surrogates, which JSON can escape.
        self._file.write(f"{text}\n".encode(errors="backslashreplace"))


def open_recording(path: str | Path) -> IO[bytes]:
    """Open a new file; one whose name ends in ``.gz`` is compressed.

    Raises
    ------
    InvalidArgumentError
        The file cannot be written.
    """
    place = Path(path).expanduser()
    try:
        file = place.open("wb")
    except OSError as error:
        raise InvalidArgumentError(
            f"the recording cannot be written to '{place}': {error.strerror}"
        ) from None
    if place.suffix != ".gz":
        return file
    # Without a time and a name: equal recordings give equal bytes.
    return cast("IO[bytes]", _Compressed(file))


class _Compressed(gzip.GzipFile):
    """A compressed file that also closes the underlying one."""

    def __init__(self, below: IO[bytes]) -> None:
        super().__init__("", "wb", fileobj=below, mtime=0)
        self._below = below

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._below.close()


def _lines(content: bytes) -> Iterator[bytes]:
    """Yield the lines of a file, which may be compressed or truncated."""
    file: IO[bytes] = io.BytesIO(content)
    if content.startswith(b"\x1f\x8b"):
        file = cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    with suppress(EOFError, OSError, zlib.error):
        yield from file


def _checked_header(found: Any, place: Path) -> dict[str, Any]:
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError
    if found["version"] > VERSION:
        raise InvalidArgumentError(
            f"'{place}' has version {found['version']} of the format, this nbtriton reads up to "
            f"{VERSION}",
            hint="a later nbtriton wrote it",
        )
    return {"models": dict(found["models"]), "began": str(found["began"])}


def _no_recording(place: Path) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"'{place}' is no recording of nbtriton", hint="nt.record makes one"
    )


_FIELDS = ("at_ns", "model", "of", "rows")


def _request_of(line: Mapping[str, Any]) -> RecordedRequest:
    options = {name: value for name, value in line.items() if name not in _FIELDS}
    at_ns, rows = int(line["at_ns"]), int(line.get("rows", 1))
    if at_ns < 0 or rows < 0:
        raise ValueError
    return RecordedRequest(at_ns, str(line["model"]), int(line.get("of", -1)), rows, options)


def _inputs_of(described: Mapping[str, Any]) -> RecordedInputs:
    return {
        name: RecordedTensor(
            str(tensor["datatype"]),
            tuple(int(size) for size in tensor["shape"]),
            base64.b64decode(tensor["data"]) if "data" in tensor else None,
        )
        for name, tensor in described.items()
    }
