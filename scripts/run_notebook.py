"""Execute a notebook with progress, and save it as .ipynb and .html.

usage: run_notebook.py NOTEBOOK [--out DIRECTORY] [--timeout SECONDS]

Prints one line per cell, and the notebook's last table at the end. A cell that fails ends the run with its
traceback and status 1; the cells executed until then are saved.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbconvert import HTMLExporter

# Interval of progress lines for a long cell.
HEARTBEAT_S = 5.0


class Progress:
    """Progress: one line per code cell with its number, beginning and duration."""

    def __init__(self, notebook: Any) -> None:
        self._cells = [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
        self._started = 0.0
        self._running = ""

    def start(self, cell: Any, **_: Any) -> None:
        """Note the cell that starts (an nbclient hook)."""
        number = next((i for i, c in enumerate(self._cells, 1) if c is cell), 0)
        first = next((line for line in cell.source.splitlines() if line.strip()), "")
        self._running = f"[{number:2d}/{len(self._cells)}] {first[:70]}"
        self._started = time.monotonic()

    def done(self, **_: Any) -> None:
        """Print the line of the cell that ended (an nbclient hook)."""
        if self._running:
            elapsed_s = time.monotonic() - self._started
            print(f"{self._running:<80} {elapsed_s:6.1f} s", flush=True)
        self._running = ""

    @contextlib.contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Print a line for a long cell."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(HEARTBEAT_S):
                if self._running and time.monotonic() - self._started > HEARTBEAT_S:
                    seconds = time.monotonic() - self._started
                    print(f"{self._running:<80} {seconds:6.1f} s ...", flush=True)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def last_table(notebook: Any) -> str:
    """Return the plain text of the last table."""
    for cell in reversed(notebook.cells):
        for output in reversed(cell.get("outputs", [])):
            data = output.get("data", {})
            if "<table" in data.get("text/html", "") and data.get("text/plain"):
                return str(data["text/plain"])
    return ""


def to_html(notebook: Any, title: str) -> str:
    """Render the executed notebook as one standalone page."""
    notebook.metadata["title"] = title
    body, _ = HTMLExporter(template_name="lab").from_notebook_node(notebook)
    return str(body)


def without_colours(text: str) -> str:
    """Remove the terminal colours of a traceback."""
    return html.unescape(re.sub(r"\x1b\[[0-9;]*m", "", text))


def main() -> int:
    """Run the notebook; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one cell")
    arguments = parser.parse_args()
    notebook = nbformat.read(arguments.notebook, as_version=4)
    progress = Progress(notebook)
    client = NotebookClient(
        notebook,
        timeout=arguments.timeout,
        kernel_name="python3",
        # Without its warning about unencrypted loopback ports.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(arguments.notebook.parent)}},
        on_cell_start=progress.start,
        on_cell_executed=progress.done,
    )
    start = time.monotonic()
    print(f"Executing {arguments.notebook}", flush=True)
    failure = ""
    with progress.heartbeat():
        try:
            client.execute()
        except (CellExecutionError, CellTimeoutError) as error:
            progress.done()
            failure = without_colours(str(error))
    arguments.out.mkdir(parents=True, exist_ok=True)
    target = arguments.out / arguments.notebook.name
    nbformat.write(notebook, target)
    target.with_suffix(".html").write_text(
        to_html(notebook, arguments.notebook.stem), encoding="utf-8"
    )
    if failure:
        print(f"\n{failure}\n\nThe notebook failed; {target} shows how far it came.")
        return 1
    table = last_table(notebook)
    if table:
        print(f"\n{table}\n")
    print(f"Executed in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
