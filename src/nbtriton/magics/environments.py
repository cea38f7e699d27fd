"""The magic that makes environments for models, and what ``--env`` of a cell means."""

from __future__ import annotations

import ast
import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.common.errors import nearest
from nbtriton.common.quoting import quoted
from nbtriton.magics.common import keep, keep_option, parse
from nbtriton.options.reading import unquoted
from nbtriton.runtime.workers.virtual_environment import VirtualEnvironment, environment
from nbtriton.serving.repository.export.sources import free_names
from nbtriton.serving.server import Server, server

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["CellFile", "EnvironmentMagics", "environment_folder", "environment_names"]

_CLASS = "TritonPythonModel"


@magics_class
class EnvironmentMagics(Magics):
    """``%triton_env``."""

    # Of the class: another instance comes with `%reload_ext`.
    _made: ClassVar[dict[str, VirtualEnvironment]] = {}

    @output_can_be_silenced
    @magic_arguments()
    @argument("name", type=unquoted, help="what --env calls it")
    @argument("packages", nargs="*", metavar="PACKAGE", help="as for pip, such as scikit-learn<1.6")
    @argument("-r", "--requirements", metavar="FILE", help="a requirements file")
    @argument(
        "--python", metavar="VERSION|PATH",
        help="its Python, such as 3.12; by default the notebook's version",
    )  # fmt: skip
    @argument("--anew", action="store_true", help="make it again, with the versions of today")
    @keep_option
    @line_cell_magic
    def triton_env(self, line: str, cell: str | None = None) -> Any:
        """Make an environment for models, by uv if it is on the PATH, else by pip.

        It has these packages and NumPy, and none of the notebook's. What was made once is kept, by its
        content: run again, it costs no time. A cell holds the lines of a requirements file. A
        model runs in it by ``%%triton_model NAME --env NAME``; in a model repository the folder that this
        shows is a value of ``EXECUTION_ENV_PATH``::

            %triton_env old "scikit-learn<1.6"
            %triton_env other --requirements requirements.txt --python 3.12

            %%triton_env old
            scikit-learn<1.6
            pillow
        """
        options = parse(self.triton_env, line)
        lines = (text.partition(" #")[0].strip() for text in (cell or "").splitlines())
        made = environment(
            options.name,
            [
                *map(unquoted, options.packages),
                *(text for text in lines if not text.startswith("#")),
            ],
            requirements=options.requirements and unquoted(options.requirements),
            python=options.python and unquoted(options.python),
            anew=options.anew,
            on_progress=_say,
        )
        self._made[options.name] = made
        return keep(self.shell, options.out, made)


def environment_names() -> list[str]:
    """Return what ``--env`` knows."""
    return list(EnvironmentMagics._made)  # noqa: SLF001 - of this module


def environment_folder(text: str) -> str:
    """Return the archive or folder that ``--env`` names.

    Raises
    ------
    UsageError
        No environment of this name was made, and there is no such file.
    """
    text = unquoted(text)
    made = EnvironmentMagics._made  # noqa: SLF001 - of this module
    if text in made:
        return str(made[text].folder)
    path = Path(text).expanduser()
    if path.exists():
        return str(path.resolve())
    hint = nearest(text, made) if made else f"%triton_env {quoted(text)} PACKAGES makes it"
    raise UsageError(f"--env {text}: neither an environment of this notebook nor a file. {hint}")


class CellFile:
    """The ``model.py`` that a cell becomes which runs in an environment.

    Parameters
    ----------
    shell : InteractiveShell
    name : str
        Of the model.
    version : int
    line : str
        The magic's own, which counts as the cell's first.
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
        ):  # said by the environment's Python, which may be newer
            _check_cell(shell, name, cell)
        self._name = name
        self._folder = tempfile.TemporaryDirectory(prefix="nbtriton_cell_")
        self.path = Path(self._folder.name, name, str(version), "model.py")
        self.path.parent.mkdir(parents=True)
        self.path.write_text(f"# {line}\n{cell}", encoding="utf-8")
        # As the compiler's own `cache` does: tracebacks name the cell. It has no call for a file.
        shell.compile._filename_map[str(self.path)] = shell.displayhook.prompt_count  # noqa: SLF001

    def keep(self) -> None:
        """Keep the file while the model is loaded: until another cell becomes that."""
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
