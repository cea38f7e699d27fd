"""Check the pages of ``make lite`` in a headless Chromium without access to other hosts: ``make lite-check``.

Every notebook is run from top to bottom in the browser's Python. Each cell must run without an error, pictures must
appear, and an exercise is solved. Screenshots are in ``build/screenshots``. Not part of ``make test``, as a page takes a
minute on a busy machine.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "lite" / "html"
SCREENSHOTS = ROOT / "build" / "screenshots"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
]
PATIENCE_MS = 300_000
# By notebook: a cell to run again, the text to replace in it, and the expected output.
ANSWERS = {
    "01_concurrent_execution.ipynb": (
        "%triton_check the_last_of_four guess", "guess = ...", "guess = 80", "✓ right",
    ),
    "02_why_did_this_batch_leave.ipynb": (
        "%triton_check without_a_delay guess", "guess = ...", "guess = [6]", "✗ not yet",
    ),
    "03_what_if.ipynb": (
        "%triton_check the_limit guess", "guess = ...", "guess = 125", "✓ right",
    ),
    "04_figures.ipynb": (
        "%triton_check slots guess", "guess = ...", "guess = [6]", "✗ not yet",
    ),
}  # fmt: skip

# The kernel has started and is idle; before, the indicator says "idle" without a kernel.
_READY = """() => {
    const text = (selector) => document.querySelector(selector)?.textContent ?? 'none';
    return !['none', '', 'No Kernel'].includes(text('.jp-KernelName'))
        && text('.jp-NotebookKernelStatus-fade') === ''
        && document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle';
}"""
# Every visible prompt has a number, or a cell has failed. (A folded cell has no prompt.)
_ALL_RAN = """() => {
    const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(one => one.textContent);
    const failed = document.querySelector("[data-mime-type='application/vnd.jupyter.error']");
    return failed || prompts.some(one => /\\d/.test(one)) && !prompts.some(one => /\\[[ *]\\]/.test(one));
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Request handler of the folder, without a log."""

    def log_message(self, *_: Any) -> None:
        pass


def check(browser: Any, base: str, path: Path) -> None:
    """Run and check one notebook."""
    page = browser.new_page(viewport={"width": 1280, "height": 4500})
    page.set_default_timeout(PATIENCE_MS)
    requests: list[str] = []
    faults: list[str] = []

    def only_here(route: Any) -> None:
        url = route.request.url
        if url.startswith((base, "data:", "blob:")):
            route.continue_()
        else:
            requests.append(url)
            route.abort()

    page.context.route("**/*", only_here)
    page.on("pageerror", lambda error: faults.append(str(error)))
    started = time.monotonic()
    page.goto(f"{base}/notebooks/index.html?path={path.name}")
    cells = page.locator(".jp-CodeCell")
    cells.first.wait_for()
    page.wait_for_function(_READY)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    try:
        page.wait_for_function(_ALL_RAN)
    finally:
        page.screenshot(path=SCREENSHOTS / f"lite-{path.stem}.png", full_page=True)
    errors = page.locator(
        "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"
    ).all_inner_texts()
    assert not errors, errors
    pictures = page.locator(".nbt-figure svg:visible, .nbt-perf svg:visible").count()
    assert pictures >= 2, f"{pictures} pictures"
    words, old, new, expected = ANSWERS[path.name]
    cell = cells.filter(has_text=words).last
    editor = cell.locator(".cm-content")
    text = "\n".join(editor.locator(".cm-line").all_inner_texts())
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text.replace(old, new))
    page.keyboard.press("Control+Enter")
    cell.locator(".jp-OutputArea").get_by_text(expected).first.wait_for()
    page.screenshot(path=SCREENSHOTS / f"lite-{path.stem}.png", full_page=True)
    assert not requests, f"asked for {requests}"
    assert not faults, faults
    count = cells.count()
    page.close()
    took_s = time.monotonic() - started
    print(f"{path.name}: {count} cells, {pictures} pictures, {took_s:.0f} s", flush=True)


def main() -> int:
    """Check every page."""
    from playwright.sync_api import sync_playwright

    if not (SITE / "index.html").is_file():
        print("There is nothing to look at: make lite")
        return 1
    chromium = os.environ.get("NBTRITON_CHROMIUM") or shutil.which("chromium")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    handler = functools.partial(Quiet, directory=SITE)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium or None, args=FLAGS)
            for path in sorted((ROOT / "lite" / "contents").glob("*.ipynb")):
                check(browser, base, path)
            browser.close()
    finally:
        server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
