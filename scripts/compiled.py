"""The compiled build: a build hook that puts the hot core into the wheel as C extensions (mypyc).

With a C compiler and Python's headers ``pip install .`` compiles; otherwise, and on free-threaded Python, the
wheel is pure Python and works the same. ``NBTRITON_COMPILED=1`` requires a compiled build,
``NBTRITON_COMPILED=0`` prevents one. An editable installation is never compiled: it must follow its sources.

Not hatch-mypyc (0.16, 2023): it cannot fall back to pure Python, compiles editable installations too, leaves
the ``.so`` files beside the sources, where Python imports them instead, and moves pyproject.toml while it
compiles, so that nothing else can read the project.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["GUARD", "CompiledCore", "build_guard", "compiled_modules", "missing"]

# Guards mapped memory of clients: no module of Python's, but a library of its own.
GUARD = Path("nbtriton/serving/frontends/kserve/guard.c")

# A build's isolated environment has no dependencies, and their types do not change compiled code: all are
# `Any`. `make test` checks the project's types.
MYPY_FLAGS = (
    "--config-file=",
    "--no-site-packages",
    "--ignore-missing-imports",
    "--follow-imports=silent",
)

# The core's functions call each other directly and inline, not through the symbol table: 6% of an
# ensemble's step.
C_FLAGS = "" if sys.platform == "win32" else "-fvisibility=hidden"

VARIABLE = "NBTRITON_COMPILED"


def missing() -> str:
    """Return what this machine lacks for a compiled build, in one line; empty for nothing."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the compiled build needs Python's global lock: this Python is free-threaded"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"the compiled build needs a C compiler: there is no '{compiler}' on the PATH"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return f"the compiled build needs Python's headers (python3-dev): there is no {header}"
    return ""


def build_guard(source: Path, library: Path) -> str:
    """Build the library of a C file; return the error, empty for none."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    done = subprocess.run(
        [*compiler, "-O2", "-shared", "-fPIC", "-o", library, source],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return f"{source.name} could not be compiled:\n{done.stdout}" if done.returncode else ""


def compiled_modules(sources: Path, include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Return the modules of two lists of globs, relative to ``sources``."""
    wanted, unwanted = (
        {path.relative_to(sources).as_posix() for glob in globs for path in sources.glob(glob)}
        for globs in (include, exclude)
    )
    return sorted(wanted - unwanted)


class CompiledCore(BuildHookInterface[Any]):
    """Build hook that adds extensions of the modules ``include`` without ``exclude`` in pyproject.toml."""

    _folder: Path | None = None

    def dependencies(self) -> list[str]:
        """Return the compiler's package, if something is to be compiled; other Pythons may lack it."""
        unwanted = os.environ.get(VARIABLE) == "0" or missing()
        return [] if unwanted else list(self.config["compiler"])

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the installation is editable or this machine cannot compile."""
        wanted = os.environ.get(VARIABLE, "")
        if version == "editable" or wanted == "0":
            return
        problem = missing() or self._compile(build_data)
        if problem and wanted:
            self.app.abort(problem)
        if problem:
            self.app.display_warning(f"nbtriton stays pure Python: {problem}")

    def _compile(self, build_data: dict[str, Any]) -> str:
        """Compile; return the error, empty for none."""
        folder = Path(tempfile.mkdtemp(prefix="nbtriton-compiled-"))
        self._folder = folder
        shutil.copytree(
            Path(self.root, "src", "nbtriton"),
            folder / "nbtriton",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        modules = compiled_modules(folder, self.config["include"], self.config["exclude"])
        done = subprocess.run(
            [sys.executable, "-m", "mypyc", *MYPY_FLAGS, *modules],
            cwd=folder,
            env={
                **os.environ,
                "MYPYC_DEBUG_LEVEL": "0",
                "CFLAGS": f"{C_FLAGS} {os.environ.get('CFLAGS', '')}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"mypyc could not compile nbtriton:\n{done.stdout}"
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        for extension in [*folder.glob(f"*{suffix}"), *folder.glob(f"nbtriton/**/*{suffix}")]:
            build_data["force_include"][str(extension)] = str(extension.relative_to(folder))
        if sys.platform == "linux":  # whose shared memory alone clients can register
            guard = folder / GUARD.with_suffix(".so")
            if problem := build_guard(folder / GUARD, guard):
                return problem
            build_data["force_include"][str(guard)] = str(GUARD.with_suffix(".so"))
        build_data["infer_tag"] = True
        build_data["pure_python"] = False
        return ""

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the build folder of the extensions."""
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None


if __name__ == "__main__":
    sys.exit(missing() or None)  # an empty text would count as a failure
