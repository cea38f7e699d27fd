"""All magics, and the hooks that are registered and removed with them.

The server's options are traits as well: in a profile's ``ipython_config.py``, and for ``%config NBTriton``::

    c.InteractiveShellApp.extensions = ["nbtriton"]
    c.NBTriton.isolation = "process"
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from traceback import walk_stack
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics
from traitlets import Any as AnyTrait
from traitlets.config import Configurable

from nbtriton.backends.python import install_pb_utils
from nbtriton.common import entries
from nbtriton.magics import completion
from nbtriton.magics.ask import AskMagics
from nbtriton.magics.common import views
from nbtriton.magics.define import DefineMagics
from nbtriton.magics.measure import MeasureMagics
from nbtriton.magics.repository import RepositoryMagics
from nbtriton.options.server import SERVER
from nbtriton.serving.server import close_server, server

_CORE = (DefineMagics, AskMagics, MeasureMagics, RepositoryMagics)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magics; called by ``%load_ext nbtriton``."""
    _classes.cache_clear()
    shell.register_magics(*_classes())
    install_pb_utils()
    completion.register(shell, _classes())
    views.register(shell)
    if not _registered(shell):  # a reloaded extension has already applied the configuration
        configurables: list[Any] = shell.configurables  # its type names shells alone
        configurables.append(NBTriton(parent=shell))


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Close the server and leave nothing behind; called by ``%unload_ext nbtriton``.

    ``%reload_ext nbtriton`` calls it too; then the server, its models and the live views stay.
    """
    if not _reloads(shell):
        views.stop()
        close_server()
        for one in _registered(shell):
            shell.configurables.remove(one)
    completion.unregister(shell, magic_methods())
    views.unregister(shell)
    # IPython has no call that removes magics.
    for kind in shell.magics_manager.magics.values():
        for name in magic_methods():
            kind.pop(name, None)
    for cls in _classes():
        shell.magics_manager.registry.pop(cls.__name__, None)
    if not _reloads(shell):
        for module in ("triton_python_backend_utils", "c_python_backend_utils"):
            sys.modules.pop(module, None)


@cache
def _classes() -> tuple[type[Magics], ...]:
    """Return all classes of magics; those of other packages as they were found when the extension was loaded."""
    return (*_CORE, *(cls for _, cls in entries.working("magics")))


def _reloads(shell: InteractiveShell) -> bool:
    """Return True if the extension is being unloaded only to be loaded again.

    IPython does not tell; but when it reloads, its method for reloading is among the callers.
    """
    reload = type(shell.extension_manager).reload_extension.__code__
    return any(frame.f_code is reload for frame, _ in walk_stack(None))


def magic_methods() -> dict[str, Any]:
    """Return the functions of all magics by name."""
    return {
        name: getattr(cls, method)
        for cls in _classes()
        for kind in cls.magics.values()
        for name, method in kind.items()
    }


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


def _registered(shell: InteractiveShell) -> list[Any]:
    return [one for one in shell.configurables if isinstance(one, NBTriton)]
