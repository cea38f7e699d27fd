"""Tools of others, each in an environment of its own: they want other versions of what the tests use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DIRECTORY", "TOOLS", "Environment", "Tool", "environment_of"]

# Where they are; `python -m tests.tools` makes what is missing.
DIRECTORY = Path(os.environ.get("NBTRITON_TOOLS") or Path.home() / ".cache" / "nbtriton" / "tools")
_INSTALL_S = 900
_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, and what pip installs for it; the first one is the tool itself."""

    requirements: tuple[str, ...]


# `--newest` leaves out the versions.
TOOLS: Mapping[str, Tool] = {
    "model-analyzer": Tool(("triton-model-analyzer==1.58.0",)),
    "aiperf": Tool(("aiperf==0.13.0", "tokenizers")),
    # The last that carries the program: its sources have not changed since.
    "perf-analyzer": Tool(("tritonclient[grpc]<2.61",)),
    "tritonclient": Tool(("tritonclient[grpc,http]==2.73.0",)),
    # It imports pkg_resources, which later versions of setuptools lack.
    "tritonclient-2.50": Tool(("tritonclient[grpc,http]==2.50.0", "numpy<2", "setuptools<81")),
    "kserve": Tool(("kserve==0.21.0",)),
    # It runs notebooks in its own process, so they need what nbtriton needs.
    "marimo": Tool(("marimo==0.25.2", "matplotlib", *_PROJECT["project"]["dependencies"])),
}


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of one tool."""

    name: str
    directory: Path

    @property
    def is_installed(self) -> bool:
        return (self.directory / "installed").exists()

    def program(self, name: str) -> str:
        """Return the path of a program that it has."""
        return str(self.directory / "bin" / name)

    def version(self) -> str:
        """Return the tool's version."""
        return (self.directory / "installed").read_text()

    def install(self, *, newest: bool = False) -> None:
        """Make it anew."""
        tool = TOOLS[self.name]
        wanted = (
            [one.partition("==")[0] for one in tool.requirements] if newest else tool.requirements
        )
        subprocess.run([sys.executable, "-m", "venv", "--clear", self.directory], check=True)
        subprocess.run(
            [self.program("python"), "-m", "pip", "install", "-q",
             "--disable-pip-version-check", *wanted],
            check=True, timeout=_INSTALL_S,
        )  # fmt: skip
        package = re.split(r"[\[=<]", tool.requirements[0])[0]
        done = subprocess.run(
            [self.program("python"), "-c",
             f"from importlib.metadata import version; print(version('{package}'))"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        (self.directory / "installed").write_text(done.stdout.strip())


def environment_of(name: str) -> Environment:
    """Return the environment of a tool, which may not be there yet."""
    return Environment(name, DIRECTORY / name)
