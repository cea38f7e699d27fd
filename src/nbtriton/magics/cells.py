"""The body of a magic's cell: run as a separate cell and searched for a model, or the ``model.py`` of an environment."""

from __future__ import annotations

import ast
import contextlib
import inspect
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from nbtriton.backends.base import is_module
from nbtriton.backends.signature import names_tensors
from nbtriton.common.errors import ConfigError, nearest
from nbtriton.magics.common import say
from nbtriton.options.reading import quoted
from nbtriton.serving.repository.export.sources import SOURCE, free_names
from nbtriton.serving.server import Server, server


class CellSyntaxError(Exception):
    """A body that does not compile.

    It is displayed as the `SyntaxError` that it carries: IPython prints its own frames around a
    real one raised while a cell runs.
    """

    def __init__(self, error: SyntaxError, shell: InteractiveShell) -> None:
        super().__init__(*error.args)
        self.error = error
        self._shell = shell

    def __str__(self) -> str:
        return str(self.error)

    def _render_traceback_(self) -> list[str]:
        # Typed as a traceback; without a traceback it takes a list of entries.
        syntax_tb: Any = self._shell.SyntaxTB
        lines: list[str] = syntax_tb.structured_traceback(type(self.error), self.error, [])
        return lines


# Front ends show an error by the name of its class.
CellSyntaxError.__name__ = "SyntaxError"


def run_body(shell: InteractiveShell, line: str, body: str) -> dict[str, Any]:
    """Run the body of a cell magic among the notebook's variables, as a plain cell would run.

    Parameters
    ----------
    line : str
        The magic's own line, which counts as the cell's first.
    body : str
        The rest of the cell.

    Returns
    -------
    dict
        The names of the classes and functions that the body defines, in order.
    """
    # A comment in place of the magic, so that line numbers are those of the cell that people see. The
    # file is named after the cell as it was typed: a debugger sets its breakpoints in that file.
    text = f"# {line}\n{body}"
    typed = f"{line}\n{body}".rstrip("\n")
    compiler: Any = shell.compile
    name = compiler.cache(text, shell.displayhook.prompt_count, raw_code=typed)
    try:
        tree: ast.Module = compiler.ast_parse(text, filename=name)
        code = compiler(tree, name, "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        if not isinstance(error, SyntaxError):
            error = SyntaxError(str(error))
        raise CellSyntaxError(error, shell) from None
    try:
        exec(code, shell.user_global_ns, shell.user_ns)  # noqa: S102 - that is what a cell is
    except BaseException as error:
        _show_only_the_users(shell, error)
        raise
    defined = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {name: shell.user_ns[name] for name in defined if name in shell.user_ns}


def _show_only_the_users(shell: InteractiveShell, error: BaseException) -> None:
    """Let an error of the body show the frames of the notebook and of the code it called, not ours."""
    if isinstance(error, SyntaxError | KeyboardInterrupt | SystemExit | UsageError) or hasattr(
        error, "_render_traceback_"
    ):
        return
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
        trace = trace.tb_next
    if trace is None:
        return
    lines = shell.InteractiveTB.structured_traceback(type(error), error, trace, tb_offset=0)
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]


def find_model(
    name: str, defined: dict[str, Any], body: str, *, chosen: str | None = None
) -> object:
    """Return the one model that a cell defines, with the cell's text stored on it.

    A `TritonPythonModel` is the model, whatever else the cell defines, as in a ``model.py``.
    Otherwise it is the last torch module, because a network is written below its blocks; otherwise
    the one function whose annotations name tensors, or the only function. `chosen` names another
    one.

    Raises
    ------
    UsageError
        There is no model, or more than one.
    """
    if chosen is not None:
        if chosen not in defined:
            raise UsageError(
                f"--class {chosen}: the cell defines {', '.join(defined) or 'nothing'}"
            )
        setattr(defined[chosen], SOURCE, body)
        return defined[chosen]
    classes = [value for value in defined.values() if inspect.isclass(value)]
    functions = [value for value in defined.values() if inspect.isfunction(value)]
    modules = torch_modules(defined)
    named = [c for c in classes if c.__name__ == "TritonPythonModel"]
    duck = [c for c in classes if callable(getattr(c, "execute", None)) and c not in modules]
    annotated = [f for f in functions if any(map(names_tensors, f.__annotations__.values()))]
    last = modules[-1:] if not duck else modules
    for candidates in (named, [*last, *duck], annotated, functions):
        if len(candidates) == 1:
            setattr(candidates[0], SOURCE, body)
            return candidates[0]
        if candidates:
            found = ", ".join(_describe(value) for value in candidates)
            raise UsageError(
                f"the cell of model '{name}' must define one model, found {len(candidates)}: "
                f"{found}. Say which one it is with --class NAME, or put the others into a cell of "
                "their own."
            )
    found = ", ".join(_describe(value) for value in defined.values()) or "none of them"
    raise UsageError(
        f"the cell of model '{name}' must define one model: a class TritonPythonModel, a "
        "torch.nn.Module subclass, or a function with annotated tensors such as "
        f'def double(IN: "FP32[4]") -> {{"OUT": "FP32[4]"}}; found {found}.'
    )


def torch_modules(defined: dict[str, Any]) -> list[type]:
    """Return the torch modules that a cell defines, in order."""
    return [value for value in defined.values() if inspect.isclass(value) and is_module(value)]


def _describe(value: Any) -> str:
    return f"{'class' if inspect.isclass(value) else 'function'} {value.__name__}"


def cell_name(shell: InteractiveShell) -> str:
    """Return IPython's name for the running cell in tracebacks."""
    return f"Cell In[{shell.displayhook.prompt_count}]"


@contextmanager
def in_cell(cell: str) -> Iterator[str]:
    """Show the line of the cell beside a configuration error that knows its line.

    Yields the text to parse: with a line in front, so that lines are those of the cell.
    """
    lines = ["", *cell.splitlines()]
    try:
        yield "\n" + cell
    except ConfigError as error:
        if 1 < error.line <= len(lines):
            shown = [f"{error.line:>5} {lines[error.line - 1]}"]
            if error.column > 0:
                shown.append(" " * (5 + error.column) + "^")
            rendered = error._render_traceback_()
            error._render_traceback_ = lambda: [*shown, *rendered]  # type: ignore[method-assign]
        raise


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

    # Of the models that are loaded, by server, name and version.
    _kept: ClassVar[WeakKeyDictionary[Server, dict[tuple[str, int], CellFile]]] = (
        WeakKeyDictionary()
    )

    def __init__(
        self, shell: InteractiveShell, name: str, version: int, line: str, cell: str
    ) -> None:
        with contextlib.suppress(
            SyntaxError
        ):  # reported by the environment's Python, which may be newer
            _check_cell(shell, name, cell)
        self._key = name, version
        self._folder = tempfile.TemporaryDirectory(prefix="nbtriton_cell_")
        self.path = Path(self._folder.name, name, str(version), "model.py")
        self.path.parent.mkdir(parents=True)
        self.path.write_text(f"# {line}\n{cell}", encoding="utf-8")
        # As the compiler's own `cache` does, so that tracebacks name the cell; it has no call for a file.
        shell.compile._filename_map[str(self.path)] = shell.displayhook.prompt_count  # noqa: SLF001

    def keep(self) -> None:
        """Keep the file until another cell defines this version of the model: others may serve beside it."""
        files = self._kept.setdefault(server(), {})
        if self._key in files:
            files[self._key].remove()
        files[self._key] = self

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
        say(f"{name}: its process does not have the notebook's {', '.join(used)}")
