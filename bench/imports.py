"""Time of `import nbtriton` and `%load_ext nbtriton` in a new interpreter."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.figures import Figure, Missing, Sides, Wrong, value_at_most
from bench.session import Session

__all__ = ["FIGURES"]

# Packages that must be imported only on first use.
HEAVY = ("torch", "cupy", "grpc")
CODE = """
import json, sys, time
begin = time.perf_counter()
{statement}
took = time.perf_counter() - begin
print(json.dumps([took * 1000, [m for m in {heavy!r} if m in sys.modules]]))
"""
LOAD = 'get_ipython().run_line_magic("load_ext", "{}")'
# With IPython imported first, so that only the extension's imports are timed.
IPYTHON = ("-m", "IPython", "--no-banner", "--quick", "-c")


def took_ms(
    statement: str,
    how: Sequence[str] = ("-c",),
    *,
    ours: bool = True,
    python: str | Path = sys.executable,
) -> float:
    """Return the time of a statement in a new interpreter."""
    code = CODE.format(statement=statement, heavy=HEAVY)
    done = subprocess.run(
        [python, *how, code], capture_output=True, text=True, check=False, env=_environment()
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        raise Missing(f"`{statement}` failed: {done.stderr.strip()[-200:]}")
    milliseconds, heavy = json.loads(lines[-1])
    if ours and heavy:
        raise Wrong(f"`{statement}` imports {', '.join(heavy)}")
    return float(milliseconds)


@functools.cache
def _environment() -> dict[str, str]:
    """Return environment variables with which interpreters write bytecode, as pip does.

    Otherwise every import would compile the sources, which takes twice as long.
    """
    folder = tempfile.mkdtemp(prefix="nbtriton-bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**variables, "PYTHONPYCACHEPREFIX": folder}


def plain(statement: str) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(_session: Session) -> Iterator[Sides]:
        yield Sides(lambda: took_ms(statement), lambda: took_ms("import numpy", ours=False))

    return sides


@contextmanager
def extension(_session: Session) -> Iterator[Sides]:
    yield Sides(
        lambda: took_ms(LOAD.format("nbtriton"), IPYTHON),
        lambda: took_ms(LOAD.format("autoreload"), IPYTHON, ours=False),
    )


FIGURES = (
    Figure(
        "import.package", "import nbtriton, nothing heavy with it",
        "ms", "lower", "import numpy", (value_at_most(300),), plain("import nbtriton"),
    ),
    Figure(
        "import.server", "import nbtriton and use its Server, nothing heavy with it",
        "ms", "lower", "import numpy", (value_at_most(300, aim=True),),
        plain("import nbtriton; nbtriton.Server"),
    ),
    Figure(
        "import.extension", "%load_ext nbtriton in IPython, nothing heavy with it",
        "ms", "lower", "%load_ext autoreload", (value_at_most(500),), extension,
    ),
)  # fmt: skip
