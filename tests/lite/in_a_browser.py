"""Run notebooks as a browser has to: no thread starts, no socket opens, and compiled packages are not there.

usage: in_a_browser.py NOTEBOOK...

Each notebook has a shell of its own, and each of its exercises is failed by its known mistakes and solved. Writes
what came of it as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

# Not in Pyodide's standard library, or compiled packages that the site does not have.
MISSING = {
    "_multiprocessing", "_posixshmem", "anywidget", "fcntl", "google_re2", "httptools", "ipywidgets", "matplotlib",
    "numpy", "pandas", "rapidjson", "re2", "resource", "termios", "torch", "tritonclient", "uvloop",
}  # fmt: skip


class Missing(MetaPathFinder):
    """Refuses what is not there."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def refuse(what: str) -> Any:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError(f"a browser has no {what}")

    return refused


def run(path: Path) -> dict[str, Any]:
    """Run the cells of one notebook; return errors, the MIME types of each result, and the marks."""
    config = Config()
    config.HistoryManager.enabled = False  # its thread
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    shell.display_pub = published = CapturingDisplayPublisher()
    found: dict[str, Any] = {"errors": [], "shown": [], "marks": []}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        done = shell.run_cell("".join(cell["source"]))
        if not done.success:
            found["errors"].append(repr(done.error_before_exec or done.error_in_exec))
        if done.result is not None:
            data, _ = shell.display_formatter.format(done.result)
            found["shown"].append({mime: str(text) for mime, text in data.items()})
    found["shown"] += [each["data"] for each in published.outputs]
    from nbtriton.extensions.lessons import Exercise

    for exercise in [one for one in shell.user_ns.values() if isinstance(one, Exercise)]:
        answers = [*exercise.mistakes, exercise.solution]
        marks = [shell.run_line_magic("triton_check", f"{exercise.name} {one}") for one in answers]
        found["marks"].append([exercise.name, [mark.correct for mark in marks]])
    return found


def main() -> None:
    """Run them all, then write."""
    for name in [one for one in sys.modules if one.partition(".")[0] in MISSING]:
        del sys.modules[name]
    sys.meta_path.insert(0, Missing())
    threading.Thread.start = refuse("threads")  # type: ignore[method-assign]
    socket.socket.__init__ = refuse("sockets")  # type: ignore[method-assign]
    sys.platform = "emscripten"
    del time.thread_time, time.thread_time_ns
    text = json.dumps({path: run(Path(path)) for path in sys.argv[1:]})
    Path("result.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
