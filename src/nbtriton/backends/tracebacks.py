"""The two texts of an exception in a model: Triton's message and the user's traceback."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from nbtriton.errors import ModelError, TritonError

__all__ = [
    "PRIVATE_PACKAGE",
    "describe",
    "execute_error",
    "load_error",
    "model_error",
    "public_names",
    "user_code",
    "user_frames",
]

# The model.py of an instance is imported into a package of its own, whose name begins so.
PRIVATE_PACKAGE = "nbtriton_model_"
_PRIVATE = re.compile(rf"\b{PRIVATE_PACKAGE}\w+\.")

# Files whose frames do not help a model's author: the import machinery's, and ours. Triton's
# own is C++ and has no frames.
_NOT_USERS = ("<frozen importlib", str(Path(__file__).parents[1]) + os.sep)
_MACHINERY = ("nbtriton.", "asyncio.", "concurrent.", "importlib.", "torch.nn.modules.", "inspect")


def user_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the model's own first frame on; None if it has no such frame."""
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
    """Return what an exception says, or what Triton's python backend says if that is nothing."""
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception:  # the author's own `__str__`
        return "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


def public_names(text: str) -> str:
    """Return a text with the modules of instances called as the model's author calls them."""
    return _PRIVATE.sub("", text)


def execute_error(instance: str, error: BaseException) -> ModelError:
    """Return the error of all requests of a batch whose execution raised."""
    return model_error(f"Failed to process the request(s) for model '{instance}', message: ", error)


def load_error(error: BaseException) -> ModelError:
    """Return the error of a model whose own code raised while it was loaded."""
    return model_error("", error)


@contextmanager
def user_code(prefix: str = "") -> Iterator[None]:
    """Raise what a model's own code raises as a `ModelError`: around its calls outside of batches."""
    try:
        yield
    except (TritonError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise model_error(prefix, error) from error


def model_error(prefix: str, error: BaseException) -> ModelError:
    """Return the error of a model whose own code raised, its message starting with `prefix`."""
    found = ModelError(prefix + describe(error), user_traceback=_user_traceback(error))
    # It is shown as the cause: from the model's own first line on. (Set here, as compiled code does
    # not by `raise … from`.)
    error.__traceback__ = user_frames(error.__traceback__) or error.__traceback__
    found.__cause__ = error
    return found


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
