"""Size of an installation, and time to the first picture in it."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from bench.figures import Figure, Missing, Sides, value_at_most
from bench.imports import took_ms
from bench.installed import bytes_of, environment_of_links, packages_of
from bench.machine import ROOT
from bench.session import Session

__all__ = ["FIGURES"]

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_CORE: list[str] = _PROJECT["dependencies"]
# A first cell: the extension, a model, and its graph.
_FIRST = """
shell = get_ipython()
shell.run_line_magic("load_ext", "nbtriton")
shell.run_cell_magic(
    "triton_model", "double", 'def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}: return {"OUT": IN * 2}'
)
assert "<svg" in shell.run_line_magic("triton_dag", "double")._repr_mimebundle_()["text/html"]
"""


def _megabytes(requirements: list[str]) -> float:
    try:
        return bytes_of(packages_of(requirements)) / 1e6
    except PackageNotFoundError as error:
        raise Missing(f"{error} is not installed here") from None


def size_with(extra: str) -> Callable[[Session], AbstractContextManager[Sides]]:
    """Return the sizes with and without an extra; for no extra those of the core, and of NumPy, pandas and IPython."""

    @contextmanager
    def sides(_session: Session) -> Iterator[Sides]:
        if not extra:
            plain = ["numpy", "pandas", "ipython"]
            yield Sides(lambda: _megabytes(_CORE), lambda: _megabytes(plain))
            return
        yield Sides(lambda: _megabytes([*_CORE, *_needs(extra)]), lambda: _megabytes(_CORE))

    return sides


def _needs(extra: str) -> Iterator[str]:
    for text in _PROJECT["optional-dependencies"][extra]:
        if text.startswith("nbtriton["):  # other extras
            for other in text.removeprefix("nbtriton[").removesuffix("]").split(","):
                yield from _needs(other)
        else:
            yield text


@contextmanager
def first_picture(_session: Session) -> Iterator[Sides]:
    with tempfile.TemporaryDirectory() as folder:
        python = environment_of_links(Path(folder, "env"), packages_of(_CORE))
        how = (f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})", _FIRST)
        yield Sides(
            lambda: took_ms("\n".join(how), ("-m", "IPython", "--no-banner", "--quick", "-c"),
                            python=python),
            lambda: took_ms("import pandas", ours=False, python=python),
        )  # fmt: skip


FIGURES = (
    Figure(
        "install.core", "pip install nbtriton", "MB", "lower", "NumPy, pandas and IPython",
        (value_at_most(250),), size_with(""),
    ),
    *(
        Figure(
            f"install.{extra}", f"pip install 'nbtriton[{extra}]'", "MB", "lower", "the core", (),
            size_with(extra),
        )
        for extra in ("lab", "torch", "onnx", "plot", "grpc", "demo")
    ),
    Figure(
        "install.first", "the first picture of a newcomer: extension, model, graph, core alone",
        "ms", "lower", "import pandas", (value_at_most(10_000),), first_picture,
    ),
)  # fmt: skip
