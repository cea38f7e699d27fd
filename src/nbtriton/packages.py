"""Packages that only some of nbtriton needs: without one, a sentence says how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nbtriton.errors import UnsupportedError

__all__ = ["needed"]

# What a package is called where it is installed from, if not as it is imported.
_DISTRIBUTIONS = {"grpc": "grpcio", "re2": "google-re2", "rapidjson": "python-rapidjson"}


@contextmanager
def needed(what: str, *, extra: str = "", package: str = "") -> Iterator[None]:
    """Turn a failed import within the block into one sentence with the command that mends it.

    Parameters
    ----------
    what : str
        What needs the package, such as ``"gRPC"``.
    extra : str
        nbtriton's extra that brings it; none for what nbtriton itself depends on.
    package : str
        Its name; by default the one whose import failed.

    Raises
    ------
    UnsupportedError
        The package is not there, or does not start: then with the reason.
    """
    try:
        yield
    except (ImportError, RuntimeError) as error:
        # tritonclient raises a RuntimeError for the package that it misses.
        if isinstance(error, RuntimeError) and "does not include" not in str(error):
            raise
        top = package or (getattr(error, "name", None) or "").partition(".")[0]
        name = _DISTRIBUTIONS.get(top, top) or "it was built with"
        wanted = f"'nbtriton[{extra}]'" if extra else name
        reason = "" if isinstance(error, ModuleNotFoundError | RuntimeError) else f": {error}"
        raise UnsupportedError(
            f"{what} needs the package '{name}'{reason}", hint=f"pip install {wanted}"
        ) from None
