"""The magics: how a person asks in a notebook. ``%load_ext nbtriton`` brings them.

Each reads its line and calls the Python interface; see ``%triton_infer?``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbtriton.common import entries

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load_ipython_extension", "magic_methods", "unload_ipython_extension"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magics; called by ``%load_ext nbtriton``.

    In a browser without a kernel process there are no threads, and so no server: only ``%triton_check`` exists.
    """
    if _in_browser():
        # The others need threads.
        if (lessons := entries.place_of("magics", "lessons")) is not None:
            shell.register_magics(entries.load(lessons))
        return
    from nbtriton.magics import extension

    extension.load_ipython_extension(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Close the server and leave nothing behind; called by ``%unload_ext nbtriton``.

    ``%reload_ext nbtriton`` calls it too; then the server, its models and the live views stay.
    """
    if _in_browser():
        shell.magics_manager.magics["line"].pop("triton_check", None)
        return
    from nbtriton.magics import extension

    extension.unload_ipython_extension(shell)


def magic_methods() -> dict[str, Any]:
    """Return the functions of all magics by name."""
    from nbtriton.magics import extension

    return extension.magic_methods()


def _in_browser() -> bool:
    return sys.platform == "emscripten"
