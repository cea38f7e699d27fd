"""All magics, and the hooks that are registered and removed with them."""

from __future__ import annotations

import sys
from functools import cache
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

from nbtriton.backends.python import install_pb_utils
from nbtriton.common import entries
from nbtriton.magics import completion, configurable
from nbtriton.magics.ask import AskMagics
from nbtriton.magics.define import DefineMagics
from nbtriton.magics.explain import ExplainMagics
from nbtriton.magics.measure import MeasureMagics
from nbtriton.magics.repository import RepositoryMagics
from nbtriton.magics.views import views
from nbtriton.serving.server import close_server

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.core.magic import Magics

_CORE = (
    DefineMagics,
    AskMagics,
    MeasureMagics,
    ExplainMagics,
    RepositoryMagics,
)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magics; called by ``%load_ext nbtriton``."""
    _classes.cache_clear()
    shell.register_magics(*_classes())
    install_pb_utils()
    completion.register(shell, _classes())
    views.register(shell)
    configurable.register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Close the server and leave nothing behind; called by ``%unload_ext nbtriton``.

    ``%reload_ext nbtriton`` calls it too; then the server, its models and the live views stay.
    """
    if not _reloads(shell):
        views.stop()
        close_server()
        configurable.unregister(shell)
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
