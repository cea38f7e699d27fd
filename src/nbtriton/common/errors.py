"""The errors that nbtriton raises on purpose.

::

    TritonError                   every one of them; carries Triton's status and message
    ├── InvalidArgumentError      INVALID_ARG: the request or the call is wrong; a ValueError
    │   ├── ConfigError           the model configuration is wrong; knows field, line and column
    │   └── LoadError             a model could not be loaded; what was loaded before is untouched
    ├── NotFoundError             NOT_FOUND: no such model, version, tensor; a LookupError
    ├── UnavailableError          UNAVAILABLE: not ready, queue full
    │   ├── EngineStoppedError    the server was closed while the request waited
    │   └── RequestTimeoutError   the request's time was up; a TimeoutError
    ├── UnsupportedError          UNSUPPORTED: understood, but cannot be done here
    ├── AlreadyExistsError        ALREADY_EXISTS
    ├── CancelledError            CANCELLED: by the caller
    ├── UnknownError              UNKNOWN: from a model
    └── InternalError             INTERNAL
        └── ModelError            the model's own code raised; shows the user's traceback, not ours

Messages have Triton's wording where Triton has one; ``hint`` adds how to do it right.
"""

from __future__ import annotations

import ast
import copy
import linecache
import re
import sys
from collections.abc import Iterable
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "ConfigError",
    "ConfigWarning",
    "EngineStoppedError",
    "InternalError",
    "InvalidArgumentError",
    "LoadError",
    "LoadWarning",
    "ModelError",
    "NotFoundError",
    "RequestTimeoutError",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]


class TritonError(Exception):
    """Base of every error nbtriton raises on purpose; carries Triton's status.

    Parameters
    ----------
    message : str
        Triton's text where Triton has one, else a full sentence.
    hint : str, optional
        How to do it right; shown on a separate line.

    Attributes
    ----------
    status : str
        Triton's status code: ``"INVALID_ARG"``, ``"NOT_FOUND"``, …
    accepted : bool
        Whether it answers an accepted request; False if it refuses one.

    Examples
    --------
    >>> try:
    ...     server.infer("doubel", {"IN": ones})
    ... except nt.TritonError as error:
    ...     print(error.status, "|", error.hint)
    NOT_FOUND | did you mean 'double'?
    """

    status: ClassVar[str] = "UNKNOWN"
    hint: str = ""
    accepted: bool = True
    user_traceback: str = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint and sys.version_info >= (3, 11):  # a worker's environment may have an older one
            self.add_note(f"hint: {hint}")

    @property
    def message(self) -> str:
        """The text alone, without the hint."""
        return str(self.args[0])

    def again(self) -> Self:
        """Return a copy for another caller: a raise adds the frames of its caller to an error."""
        found = copy.copy(self)
        found.__cause__ = self.__cause__
        found.__suppress_context__ = self.__suppress_context__
        return found

    def _render_traceback_(self) -> list[str]:
        """Show the user's own frames and one sentence, not our frames (IPython's own protocol)."""
        frames = _own_frames(self.__traceback__)
        return [*frames, *_with_traceback(self.user_traceback, self._sentence())]

    def _sentence(self) -> list[str]:
        lines = [f"{type(self).__name__} [{self.status}]: {self.message}"]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return lines


class InvalidArgumentError(TritonError, ValueError):
    """The request or the call is wrong (INVALID_ARG).

    Examples
    --------
    >>> try:
    ...     server.infer("double", {"OTHER": ones})
    ... except nt.TritonError as error:
    ...     print(error.status)
    INVALID_ARG
    """

    status = "INVALID_ARG"


class ConfigError(InvalidArgumentError):
    """The model configuration is wrong.

    Attributes
    ----------
    field : str
        Path of the field at fault, such as ``dynamic_batching.preferred_batch_size``; may be empty.
    line, column : int
        One-based place in the text of the configuration; 0 without a text.

    Examples
    --------
    >>> try:
    ...     server.load("max_batch_sise: 8", lambda X: X, name="other")
    ... except ConfigError as error:
    ...     print(error.line, error.hint)
    1 did you mean 'max_batch_size'?
    """

    def __init__(
        self, message: str, *, hint: str = "", field: str = "", line: int = 0, column: int = 0
    ) -> None:
        super().__init__(message, hint=hint)
        self.field = field
        self.line = line
        self.column = column


class ConfigWarning(UserWarning):
    """A model configuration is accepted, and a field has no effect here, or another one in Triton 2.51.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     _ = server.load("instance_group { host_policy: 'near' }", name="double")
    >>> seen[0].category.__name__
    'ConfigWarning'
    """


class LoadWarning(UserWarning):
    """A model of a repository could not be loaded, and serves as it was loaded before.

    >>> import tempfile, warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", nt.errors.LoadWarning)  # rather end than serve old code
    ...     _ = server.load_repository(tempfile.mkdtemp())
    """


class _UsersError(TritonError):
    """An error of the user's code, with its traceback."""

    def __init__(self, message: str, *, hint: str = "", user_traceback: str = "") -> None:
        super().__init__(message, hint=hint)
        self.user_traceback = user_traceback


class LoadError(_UsersError, InvalidArgumentError):
    """A model could not be loaded; what was loaded before still serves.

    Attributes
    ----------
    user_traceback : str
        The traceback of the model's own code, empty if it never ran.

    Examples
    --------
    >>> class TritonPythonModel:
    ...     def initialize(self, args):
    ...         raise ValueError("no weights")
    >>> io = "input { name: 'X' data_type: TYPE_FP32 dims: 1 } output { name: 'Y' data_type: TYPE_FP32 dims: 1 }"
    >>> try:
    ...     server.load(io, TritonPythonModel, name="other")
    ... except LoadError as error:
    ...     print(error.user_traceback.splitlines()[-1])
    ValueError: no weights
    """


class NotFoundError(TritonError, LookupError):
    """No such model, version or tensor (NOT_FOUND).

    Examples
    --------
    >>> try:
    ...     server.infer("dubble", {"IN": ones})
    ... except NotFoundError as error:
    ...     print(error.status, error.hint)
    NOT_FOUND did you mean 'double'?
    """

    status = "NOT_FOUND"


class UnavailableError(TritonError):
    """Not ready, or queue full (UNAVAILABLE).

    Examples
    --------
    >>> UnavailableError("Exceeds maximum queue size").status
    'UNAVAILABLE'
    """

    status = "UNAVAILABLE"


class EngineStoppedError(UnavailableError):
    """The server was closed before the request was answered.

    Examples
    --------
    >>> with nt.Server() as own:
    ...     pass
    >>> try:
    ...     own.infer("double", {"IN": ones})
    ... except EngineStoppedError as error:
    ...     print(error.status)
    UNAVAILABLE
    """


class RequestTimeoutError(UnavailableError, TimeoutError):
    """The request's time was up: in the queue, or at the client.

    Examples
    --------
    >>> RequestTimeoutError("Request timeout expired").status
    'UNAVAILABLE'
    """


class UnsupportedError(TritonError):
    """Understood, but it cannot be done here (UNSUPPORTED).

    Examples
    --------
    >>> UnsupportedError("instances in processes need a system that forks").status
    'UNSUPPORTED'
    """

    status = "UNSUPPORTED"


class AlreadyExistsError(TritonError):
    """It exists already (ALREADY_EXISTS).

    Examples
    --------
    >>> AlreadyExistsError("shared memory region 'in' already in manager").status
    'ALREADY_EXISTS'
    """

    status = "ALREADY_EXISTS"


class CancelledError(TritonError):
    """The caller cancelled the request (CANCELLED).

    Examples
    --------
    >>> CancelledError("the request was cancelled").status
    'CANCELLED'
    """

    status = "CANCELLED"


class UnknownError(TritonError):
    """A model answered with the status UNKNOWN.

    Examples
    --------
    >>> UnknownError("as the model says").status
    'UNKNOWN'
    """


class InternalError(TritonError):
    """Something inside failed (INTERNAL).

    Examples
    --------
    >>> InternalError("failed").status
    'INTERNAL'
    """

    status = "INTERNAL"


class ModelError(_UsersError, InternalError):
    """The model's own code raised.

    Attributes
    ----------
    user_traceback : str
        The traceback of the model's code alone: its first line is the user's cell or file.

    Examples
    --------
    >>> def divide(X: "FP32[1]") -> {"Y": "FP32[1]"}:
    ...     raise ZeroDivisionError("no rows")
    >>> _ = server.load("", divide, name="divide")
    >>> try:
    ...     server.infer("divide", {"X": np.ones(1, np.float32)})
    ... except ModelError as error:
    ...     print(error.user_traceback.splitlines()[-1])
    ZeroDivisionError: no rows
    """


# Frames of Python's own modules are not the user's code.
_STANDARD = linecache.__file__.removesuffix("linecache.py")


def _own_frames(trace: TracebackType | None) -> list[str]:
    """Return place and source of the user's frames: of cells and files."""
    lines: list[str] = []
    for frame, number in walk_tb(trace):
        file = frame.f_code.co_filename
        ours = frame.f_globals.get("__name__", "").partition(".")[0] == "nbtriton"
        if ours or file.startswith(_STANDARD) or "site-packages" in file:
            continue
        source = _as_typed(linecache.getline(file, number).strip(), linecache.getlines(file))
        if not source:
            continue
        name = frame.f_code.co_name
        place = cell_names(f'File "{file}", line {number}')
        lines += [place if name == "<module>" else f"{place}, in {name}", f"    {source}"]
    return lines


def _as_typed(source: str, cell: list[str]) -> str:
    """Return a line as the user typed it; empty for a magic that is the whole cell."""
    if source.startswith("# %%"):  # the first line of a cell that a magic ran
        return ""
    if "get_ipython().run_" not in source:
        return source
    magic = re.search(r"run_line_magic\((.*)\)$", source)
    if magic is None or sum(bool(line.strip()) for line in cell) == 1:
        return ""
    name, text = ast.literal_eval(f"({magic[1]})")
    return f"%{name} {text}"


def _with_traceback(user_traceback: str, lines: list[str]) -> list[str]:
    """Put the user's traceback first, with cells named as IPython names them."""
    if user_traceback:
        # Triton's message repeats the frames above it.
        lines = [re.sub(r"\n\nAt:\n(  .*\n)*", "", lines[0]).removesuffix(";"), *lines[1:]]
    return [*cell_names(user_traceback).splitlines(), *lines]


def cell_names(text: str) -> str:
    """Return a text of places with cells named as IPython names them."""
    return _FRAME.sub(_cell_place, text)


_FRAME = re.compile(r'File "([^"\n]+)", line')


def _cell_place(match: re.Match[str]) -> str:
    """Write ``Cell In[3], line`` where the file is a cell of the current shell."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    name = shell.compile.format_code_name(match[1]) if shell is not None else None
    return f"{name[0]} {name[1]}, line" if name else match[0]


_BY_STATUS: dict[str, type[TritonError]] = {
    kind.status: kind
    for kind in (
        UnknownError,
        InternalError,
        NotFoundError,
        InvalidArgumentError,
        UnavailableError,
        UnsupportedError,
        AlreadyExistsError,
        CancelledError,
    )
}


def error_from_status(status: str, message: str) -> TritonError:
    """Return the error of this status, for statuses of a model or a protocol."""
    return _BY_STATUS[status](message)


def nearest(name: object, allowed: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for the closest allowed name, or the list of all of them."""
    names = sorted(allowed)
    from difflib import get_close_matches  # for errors alone

    close = get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known names: " + ", ".join(names) if names else ""
