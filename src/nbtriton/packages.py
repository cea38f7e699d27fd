"""Optional packages: an error of a missing one has the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nbtriton.errors import UnsupportedError

__all__ = ["needed"]

# Names of distributions that differ from the names of their packages.
_DISTRIBUTIONS = {"grpc": "grpcio", "re2": "google-re2", "rapidjson": "python-rapidjson"}


@contextmanager
def needed(what: str, *, extra: str = "", package: str = "") -> Iterator[None]:
    """Turn a failed import within the block into one sentence with the command that repairs it.

    Parameters
    ----------
    what : str
        The feature that needs the package, such as ``"gRPC"``.
    extra : str
        nbtriton's extra that installs it; empty for a dependency of nbtriton itself.
    package : str
        Its name; by default the one whose import failed.

    Raises
    ------
    UnsupportedError
        The package is missing, or its import fails: then with the reason.
    """
    try:
        yield
    except (ImportError, RuntimeError) as error:
        # tritonclient raises a RuntimeError for a package that it lacks.
        if isinstance(error, RuntimeError) and "does not include" not in str(error):
            raise
        top = package or (getattr(error, "name", None) or "").partition(".")[0]
        name = _DISTRIBUTIONS.get(top, top) or "it was built with"
        wanted = f"'nbtriton[{extra}]'" if extra else name
        reason = "" if isinstance(error, ModuleNotFoundError | RuntimeError) else f": {error}"
        raise UnsupportedError(
            f"{what} needs the package '{name}'{reason}", hint=f"pip install {wanted}"
        ) from None
