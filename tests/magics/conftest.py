"""A shell in this process with the extension loaded, and one cell at a time."""

from __future__ import annotations

import atexit
import builtins
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from tests.magics.cells import DOUBLE
from tests.until import PATIENCE_S


@dataclass
class Ran:
    """What one cell did."""

    value: Any
    error: BaseException | None
    out: str
    err: str
    shown: list[dict[str, Any]]

    @property
    def text(self) -> str:
        return self.out + self.err


class Notebook:
    """Runs cells as a front end would."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.names = shell.user_ns

    def __call__(self, cell: str) -> Ran:
        with capture_output() as captured:
            result = self.shell.run_cell(cell, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        shown = [output.data for output in captured.outputs]
        return Ran(result.result, error, captured.stdout, captured.stderr, shown)

    def ok(self, cell: str) -> Ran:
        ran = self(cell)
        assert ran.error is None, ran.text
        return ran

    def forms(self, value: object) -> dict[str, Any]:
        """The MIME bundle that a value becomes as the last line of a cell."""
        return self.shell.display_formatter.format(value)[0]

    def complete(self, text: str, rest: str = "") -> list[str]:
        from IPython.core.completer import provisionalcompleter

        with provisionalcompleter():
            return [c.text for c in self.shell.Completer.completions(text + rest, len(text))]


@pytest.fixture
def plain_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    # Python's own displayhook sets it, and then IPython keeps no last result.
    monkeypatch.delattr(builtins, "_", raising=False)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    yield shell
    InteractiveShell.clear_instance()
    # Each shell would wait for the end of the tests and collect all garbage there: half a second.
    atexit.unregister(shell.atexit_operations)


@pytest.fixture
def notebook(plain_shell):
    """A notebook with the extension loaded; at the end none of its threads is left."""
    before = set(threading.enumerate())
    notebook = Notebook(plain_shell)
    notebook.ok("%load_ext nbtriton")
    notebook.ok("import numpy as np, nbtriton as nt")
    yield notebook
    notebook.ok("%unload_ext nbtriton")
    left = [t for t in set(threading.enumerate()) - before if t.name.startswith("nbtriton")]
    for thread in left:
        thread.join(PATIENCE_S)  # it has been asked to end, and may be on its way out
    assert not [thread.name for thread in left if thread.is_alive()]


@pytest.fixture
def doubled(notebook):
    """The same with the model `double` loaded, batches of up to 8."""
    notebook.ok(f"%%triton_model double --max-batch-size 8\n{DOUBLE}")
    return notebook
