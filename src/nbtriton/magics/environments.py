"""What ``--env`` of a cell means."""

from __future__ import annotations

import ast
import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError

from nbtriton.common.errors import nearest
from nbtriton.common.quoting import quoted
from nbtriton.options.reading import unquoted
from nbtriton.serving.repository.export.sources import free_names
from nbtriton.serving.server import Server, server

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

# The folders of the environments that ``%triton_env`` has made, by name: they stay with `%reload_ext`.
MADE: dict[str, Path] = {}

_CLASS = "TritonPythonModel"


def environment_folder(text: str) -> str:
    """Return the archive or folder that ``--env`` names.

    Raises
    ------
    UsageError
        There is no environment of this name, and no such file.
    """
    text = unquoted(text)
    if text in MADE:
        return str(MADE[text])
    path = Path(text).expanduser()
    if path.exists():
        return str(path.resolve())
    hint = nearest(text, MADE) if MADE else f"%triton_env {quoted(text)} PACKAGES makes it"
    raise UsageError(f"--env {text}: neither an environment of this notebook nor a file. {hint}")


class CellFile:
    """The ``model.py`` made of a cell that runs in an environment.

    Parameters
    ----------
    shell : InteractiveShell
    name : str
        Of the model.
    version : int
    line : str
        The magic's own line, which counts as the cell's first.
    cell : str

    Attributes
    ----------
    path : Path

    Raises
    ------
    UsageError
        The cell has no `TritonPythonModel`.
    """

    # Of the models that are loaded, by server.
    _kept: ClassVar[WeakKeyDictionary[Server, dict[str, CellFile]]] = WeakKeyDictionary()

    def __init__(
        self, shell: InteractiveShell, name: str, version: int, line: str, cell: str
    ) -> None:
        with contextlib.suppress(
            SyntaxError
        ):  # reported by the environment's Python, which may be newer
            _check_cell(shell, name, cell)
        self._name = name
        self._folder = tempfile.TemporaryDirectory(prefix="nbtriton_cell_")
        self.path = Path(self._folder.name, name, str(version), "model.py")
        self.path.parent.mkdir(parents=True)
        self.path.write_text(f"# {line}\n{cell}", encoding="utf-8")
        # As the compiler's own `cache` does, so that tracebacks name the cell; it has no call for a file.
        shell.compile._filename_map[str(self.path)] = shell.displayhook.prompt_count  # noqa: SLF001

    def keep(self) -> None:
        """Keep the file while the model is loaded, until another cell defines the model."""
        files = self._kept.setdefault(server(), {})
        if self._name in files:
            files[self._name].remove()
        files[self._name] = self

    def remove(self) -> None:
        """Remove the file."""
        self._folder.cleanup()


def _check_cell(shell: InteractiveShell, name: str, cell: str) -> None:
    body = ast.parse(cell).body
    if not any(isinstance(node, ast.ClassDef) and node.name == _CLASS for node in body):
        raise UsageError(
            f"the cell of model '{name}' must define a class {_CLASS}: with --env it is not run in the "
            "notebook, it is the model.py of a process of its own"
        )
    used = [one for one in free_names(cell) if one in shell.user_ns]
    if used:
        _say(f"{name}: its process does not have the notebook's {', '.join(used)}")


def _say(text: str) -> None:
    print(text)  # noqa: T201 - a cell's own output
