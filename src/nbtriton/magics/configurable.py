"""The server's options as traits: in a profile's ``ipython_config.py``, and for ``%config NBTriton``.

::

    c.InteractiveShellApp.extensions = ["nbtriton"]
    c.NBTriton.isolation = "process"
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from traitlets import Any as AnyTrait
from traitlets.config import Configurable

from nbtriton.options.server import SERVER
from nbtriton.serving.server import server

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class _Option(AnyTrait):
    """An option of the server that the magics use, which alone holds the value."""

    def get(self, obj: Any, cls: Any = None) -> Any:  # noqa: ARG002 - as traitlets calls it
        return getattr(server().options, str(self.name))

    def set(self, obj: Any, value: Any) -> None:  # noqa: ARG002
        server().set_options(**{str(self.name): value})

    def from_string(self, s: str) -> Any:
        """Read a value of the command line: Python's, or a word as it is."""
        try:
            return ast.literal_eval(s)
        except (SyntaxError, ValueError):
            return s


_OPTIONS = {
    name: _Option(option.default, help=option.help).tag(config=True)
    for name, option in SERVER.items()
}
NBTriton: type[Configurable] = type(
    "NBTriton",
    (Configurable,),
    {"__doc__": "Options of nbtriton's server in this kernel.", "__module__": __name__, **_OPTIONS},
)


def register(shell: InteractiveShell) -> None:
    """Apply the shell's configuration of `NBTriton`; a reloaded extension has already applied it."""
    if not _registered(shell):
        configurables: list[Any] = shell.configurables  # its type names shells alone
        configurables.append(NBTriton(parent=shell))


def unregister(shell: InteractiveShell) -> None:
    """Forget the options; the server has been closed."""
    for one in _registered(shell):
        shell.configurables.remove(one)


def _registered(shell: InteractiveShell) -> list[Any]:
    return [one for one in shell.configurables if isinstance(one, NBTriton)]
