"""Optional packages: a missing one is an error with the command that installs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import UnsupportedError

if TYPE_CHECKING:
    import pandas as pd

# The extra of pyproject.toml that brings a package.
EXTRAS = {
    "av": "video",
    "PIL": "steps",
    "conda_pack": "env",
    "cupy": "gpu",
    "grpc": "grpc",
    "matplotlib": "plot",
    "onnxruntime": "onnx",
    "opentelemetry": "otel",
    "openvino": "openvino",
    "ray": "ray",
    "scipy": "steps",
    "tokenizers": "steps",
    "torch": "torch",
    "treelite": "fil",
    "venv_pack": "env",
}
# Names of distributions that differ from the names of their packages.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "conda_pack": "conda-pack",
    "cupy": "cupy-cuda12x",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-exporter-otlp-proto-http",
    "re2": "google-re2",
    "rapidjson": "python-rapidjson",
    "venv_pack": "venv-pack2",
}


@contextmanager
def needed(what: str, *, package: str = "") -> Iterator[None]:
    """Turn a failed import in the block into one sentence with the command that fixes it.

    Parameters
    ----------
    what : str
        The feature that needs the package, such as ``"a client over gRPC"``.
    package : str
        Its name; by default that of the failed import.

    Raises
    ------
    UnsupportedError
        The package is missing, or its import fails: then with the reason.

    Examples
    --------
    >>> try:
    ...     with needed("a plot"):
    ...         raise ModuleNotFoundError(name="matplotlib")
    ... except UnsupportedError as error:
    ...     print(error.message, "|", error.hint)
    a plot needs the package 'matplotlib' | pip install 'nbtriton[plot]'
    """
    try:
        yield
    except ImportError as error:
        top = package or (error.name or _raised_in(error)).partition(".")[0]
        if top == "nbtriton":  # our own mistake
            raise
        name = DISTRIBUTIONS.get(top, top)
        wanted = f"'nbtriton[{EXTRAS[top]}]'" if top in EXTRAS else name
        reason = "" if isinstance(error, ModuleNotFoundError) else f": {error}"
        raise UnsupportedError(
            f"{what} needs the package '{name}'{reason}", hint=f"pip install {wanted}"
        ) from None


def imported(what: str, package: str) -> Any:
    """Return a package; raises the error of `needed` where it is missing or does not start."""
    with needed(what, package=package):
        return import_module(package)


def data_frame(what: str, rows: Iterable[Any], columns: list[str] | None = None) -> pd.DataFrame:
    """Return rows as a DataFrame; raises the error of `needed` without pandas."""
    with needed(what):
        import pandas as pd

    return pd.DataFrame(list(rows), columns=columns)


def _raised_in(error: ImportError) -> str:
    """Return the module that raised an error without a module's name: a package built for another version."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", ""))


def on_first_use(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``: a public name is imported when it is first asked for.

    Parts of a package that need neither threads nor NumPy can then be imported without the rest.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    places : mapping of str to str
        Module of each public name, within the package.
    """

    def getattribute(name: str) -> Any:
        module = places.get(name)
        if module is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{module}"), name)

    return getattribute


def core_is_compiled() -> bool:
    """Return True if the schedulers and the engine's core run as C extensions."""
    spec = find_spec("nbtriton.scheduling.batcher")
    return spec is not None and not str(spec.origin).endswith(".py")
