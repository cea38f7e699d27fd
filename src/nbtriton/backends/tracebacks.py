"""The two texts of an exception in a model: Triton's message and the user's traceback."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from nbtriton.common.errors import ModelError, TritonError

# The prefix of the packages into which instances import their model.py.
PRIVATE_PACKAGE = "nbtriton_model_"
_PRIVATE = re.compile(rf"\b{PRIVATE_PACKAGE}\w+\.")

# Files whose frames do not help a model's author: the import machinery's, and ours, which have
# relative names if compiled. Triton's own is C++ and has no frames.
_NOT_USERS = (
    "<frozen importlib", str(Path(__file__).parents[1]) + os.sep, f"nbtriton{os.sep}",
)  # fmt: skip
_MACHINERY = ("nbtriton.", "asyncio.", "concurrent.", "importlib.", "torch.nn.modules.", "inspect")


def user_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the model's own first frame on; None without such a frame."""
    while tb is not None and _is_machinery(tb.tb_frame):
        tb = tb.tb_next
    return tb


def describe(error: BaseException) -> str:
    """Return an exception as Triton's python backend prints it, innermost frame first."""
    text = public_names(f"{type(error).__name__}: {_message_of(error)}")
    frames = _without_ours(traceback.extract_tb(user_frames(error.__traceback__)))
    if not frames:
        return text
    lines = "".join(f"  {f.filename}({f.lineno}): {f.name}\n" for f in reversed(frames))
    return f"{text}\n\nAt:\n{lines}"


def _message_of(error: BaseException) -> str:
    """Return the message of an exception, or Triton's text for an empty one."""
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception:  # the author's own `__str__`
        return "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


def public_names(text: str) -> str:
    """Return a text with the module names of instances replaced by the author's names."""
    return _PRIVATE.sub("", text)


def execute_error(instance: str, error: BaseException) -> ModelError:
    """Return the error of all requests of a batch whose execution raised."""
    return model_error(f"Failed to process the request(s) for model '{instance}', message: ", error)


@contextmanager
def user_code(prefix: str = "") -> Iterator[None]:
    """Raise errors of a model's own code as a `ModelError`: around its calls outside of batches."""
    try:
        yield
    except (TritonError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise model_error(prefix, error) from error


def model_error(prefix: str, error: BaseException) -> ModelError:
    """Return the error of a model whose own code raised, its message starting with `prefix`."""
    failure = ModelError(prefix + describe(error), user_traceback=_user_traceback(error))
    # Shown as the cause, from the model's own first line on. (Set here: compiled `raise … from` does not set
    # it.)
    error.__traceback__ = user_frames(error.__traceback__) or error.__traceback__
    failure.__cause__ = error
    return failure


def _user_traceback(error: BaseException) -> str:
    shown = traceback.TracebackException(
        type(error), error, user_frames(error.__traceback__), compact=True
    )
    shown.stack = _without_ours(shown.stack)
    return public_names("".join(shown.format()))


def _without_ours(frames: traceback.StackSummary) -> traceback.StackSummary:
    return traceback.StackSummary.from_list(
        [f for f in frames if not f.filename.startswith(_NOT_USERS)]
    )


def _is_machinery(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(_MACHINERY) or frame.f_code.co_filename.startswith("<frozen importlib")
