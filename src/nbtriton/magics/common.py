"""Shared parts of the magics: options, values from the notebook's variables, kept results."""

from __future__ import annotations

import ast
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import cell_magic, line_magic, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.utils.process import arg_split

from nbtriton.common.errors import nearest
from nbtriton.common.packages import needed
from nbtriton.model.config import ModelConfig, as_config, parse_pbtxt
from nbtriton.options.reading import unquoted
from nbtriton.options.table import Option

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nbtriton.widgets.show import Shown
    from nbtriton.widgets.view import LiveView

Method = TypeVar("Method", bound=Callable[..., Any])


def say(text: object) -> None:
    """Print under the cell."""
    print(text)  # noqa: T201 - a cell's own output


def parse(method: Any, line: str) -> Namespace:
    """Read a magic's line; a semicolon at its end suppresses the output and is not part of it."""
    try:
        words = arg_split(line.rstrip().removesuffix(";"))
    except ValueError as error:  # an unclosed quote
        raise UsageError(f"{error}: {line.strip()}") from None
    options: Namespace
    options, unknown = method.parser.parse_known_args(words)
    if unknown:
        # `%triton_x?` shows them all: a list of thirty would bury the one that is meant.
        known = [option for action in method.parser._actions for option in action.option_strings]  # noqa: SLF001
        hint = nearest(unknown[0].partition("=")[0], known) if unknown[0].startswith("-") else ""
        if not hint.startswith("did you mean"):
            hint = f"%{method.__name__}? shows the options"
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)} ({hint})")
    return options


def _variable(text: str) -> str:
    """Read the name of a variable (an argparse type): it is checked before anything is measured."""
    if not text.isidentifier() or iskeyword(text):
        raise ArgumentTypeError(f"'{text}' is not a name for a variable")
    return text


_OUT = argument(
    "-o", "--out", type=_variable, metavar="NAME", help="also store the result in this variable"
)


def magic(kind: Any = line_magic) -> Callable[[Method], Any]:
    """Make a method with arguments a magic that keeps its result where ``-o`` asks for.

    The method is called with what its line says (and the line itself, as ``line``), and one of a cell with the cell.
    """

    def make(method: Method) -> Any:
        @wraps(method)
        def run(self: Any, line: str, *cell: str | None) -> Any:
            options = parse(run, line)
            name = vars(options).pop("out")
            options.line = line
            result = method(self, options, *cell)
            return keep(self.shell, name, result)

        run.decorators = [_OUT, *getattr(method, "decorators", ())]  # type: ignore[attr-defined]
        run.has_arguments = True  # type: ignore[attr-defined]
        # The help of a cell's magic has two signs.
        named = magic_arguments(f"%{method.__name__}" if kind is cell_magic else None)
        return kind(output_can_be_silenced(named(run)))

    return make


def keep_option(method: Method) -> Method:
    """Add ``-o NAME`` to a magic that reads its line itself."""
    result: Method = _OUT(method)
    return result


def keep(shell: InteractiveShell, name: str | None, value: Any) -> Any:
    """Store a magic's result where ``-o`` asked for, and return it."""
    if name is not None:
        shell.user_ns[name] = value
    return value


def evaluate(shell: InteractiveShell, expression: str, what: str) -> Any:
    """Evaluate an expression of a magic's line with the notebook's variables.

    Errors are shown with the expression and without our frames. `what` is written before it, such
    as ``"IN="``.
    """
    try:
        code = compile(ast.parse(expression.strip(), mode="eval"), f"<{what.strip()}>", "eval")
    except SyntaxError as error:
        named = re.match(r"\w+=(?!=)", expression.strip()) and what == "--inputs "
        hint = ", write a mapping by name: --inputs \"{'IN': x}\"" if named else ""
        raise UsageError(f"{what}{expression.strip()}: {error.msg}{hint}") from None
    try:
        return eval(code, shell.user_global_ns, shell.user_ns)  # noqa: S307 - the user's own words
    except Exception as error:
        lines = [f"in {what}{expression.strip()}", f"{type(error).__name__}: {error}"]
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
        raise


def read_config(shell: InteractiveShell, text: str) -> ModelConfig:
    """Read a configuration from a file, a variable or an expression, or from the text itself.

    ``--config base.pbtxt``, ``--config base``, ``--config configs["a"]`` and
    ``--config "max_batch_size: 8"`` are all understood: none can be taken for another.
    """
    path = Path(text).expanduser()
    if text.isidentifier() and text in shell.user_ns:
        value = shell.user_ns[text]
    elif _is_file(path):
        value = path
    elif _is_expression(text):
        value = evaluate(shell, text, "--config ")
    else:
        value = text
    if not isinstance(value, Path):
        return as_config(value)
    if not value.is_file():
        raise UsageError(f"--config {text}: there is no file '{value}'")
    content = value.read_bytes()
    if content.lstrip().startswith(b"{"):
        return as_config(content)
    return parse_pbtxt(content, source=str(value))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text is too long for a name
        return False


def _is_expression(text: str) -> bool:
    """Distinguish Python from pbtxt, and from the name of a file that does not exist."""
    if text.isidentifier() or re.fullmatch(
        r"[\w.~/\\-]*\.(pbtxt|json|txt)|[^\s:{(]*/[^\s:{(]*", text
    ):
        raise UsageError(f"--config {text}: neither a variable of this notebook nor a file")
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return not text.lstrip().startswith('{"')  # JSON, which knows true, false and null


def arguments(*blocks: tuple[Option, ...]) -> Callable[[Method], Method]:
    """Add blocks of options to a magic, in this order."""

    def add(method: Method) -> Method:
        for option in reversed([option for block in blocks for option in block]):
            method = option.add(argument)(method)
        return method

    return add


def profile_option(help_text: str) -> Any:
    """Return the option ``--profile``."""
    return argument("--profile", type=unquoted, metavar="EXPR|FILE", help=help_text)


def read_options(shell: Any, options: dict[str, Any]) -> None:
    """Evaluate, in place, the options that are expressions; the names are those of `nbtriton.perf`."""
    if "shapes" in options:
        options["shapes"] = dict(options["shapes"] or ()) or None
    if (text := options.get("inputs")) is not None:
        options["inputs"] = evaluate(shell, text, "--inputs ")
    if (text := options.get("intervals")) is not None:
        text = f"[{text}]" if "," in text else text
        options["intervals"] = evaluate(shell, text, "--intervals ")


def read_profile(shell: Any, given: str) -> Any:
    """Return the profile that an expression or the name of a file gives."""
    from nbtriton.lab.simulate.model_profile import Profile

    if given.endswith(".json"):
        return Profile.load(given)
    return evaluate(shell, given, "--profile ")


_ON_SCREEN = "nbtriton.widgets.show", "Shown"
# Reports with charts, which a page brings to life.
_CHARTS = (
    ("nbtriton.lab.perf.report", "PerfReport"),
    ("nbtriton.widgets.plots", "PlotView"),
    ("nbtriton.extensions.comparison", "Comparison"),
    ("nbtriton.extensions.tuning.tuned", "Tuning"),
)


class Views:
    """Views that do not end with a run, such as `%triton_watch`'s."""

    def __init__(self) -> None:
        self._ends: dict[object, Callable[[], None]] = {}

    def show(self, view: LiveView) -> Shown:
        """Show a view, replacing the one from an earlier run of the same cell."""
        with needed("a live view"):
            from nbtriton.widgets.show import cell_id, show_live

        self._ends.pop(cell_id(), _nothing)()
        shown = show_live(view)
        self._ends[cell_id()] = shown.stop
        return shown

    def stop(self) -> None:
        """Replace every view by its static form."""
        with ExitStack() as ends:  # all, whatever one of them raises
            while self._ends:
                ends.callback(self._ends.popitem()[1])

    def register(self, shell: InteractiveShell) -> None:
        """Keep a shell from showing a view again as the value of its cell, and bring charts to life; nothing is imported."""
        shell.display_formatter.ipython_display_formatter.for_type_by_name(*_ON_SCREEN, _nothing)
        for kind in _CHARTS:
            shell.display_formatter.mimebundle_formatter.for_type_by_name(*kind, _alive)

    def unregister(self, shell: InteractiveShell) -> None:
        """Undo `register`."""
        shell.display_formatter.ipython_display_formatter.pop(".".join(_ON_SCREEN), None)
        for kind in _CHARTS:
            shell.display_formatter.mimebundle_formatter.pop(".".join(kind), None)


views = Views()


def _alive(report: Any, **_options: object) -> dict[str, Any]:
    """Return the forms of a report; its chart has what a page asks for."""
    from nbtriton.widgets.show import live_wanted, makes_views_only

    bundle: dict[str, Any] = report._repr_mimebundle_()
    if live_wanted():
        from nbtriton.widgets.living import living_charts

        bundle["text/html"] = living_charts().marked(report, bundle["text/html"])
        if makes_views_only() and hasattr(report, "_display_"):
            bundle |= report._display_().widget_data()
    return bundle


def _nothing(value: object = None) -> None:
    """Show nothing; in a terminal, which has no live views, show the current state."""
    in_terminal = getattr(value, "in_terminal", "")
    if in_terminal:
        say(f"\n{in_terminal}")
