"""Screenshots of views and notebooks in Chromium, on the tests' pages that imitate hosts."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from playwright.sync_api import Page, sync_playwright

from nbtriton.common.closing import Closing

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.page.conftest import FLAGS, HOSTS, PAGE, _Files, frame_text
from tests.sites import Site

__all__ = ["Screens"]

THEMES = {"light": "lab-light", "dark": "lab-dark"}
WIDTHS = (600, 1000, 1600)


class Screens(Closing):
    """Screenshots of pages.

    Parameters
    ----------
    folder : Path
        Folder for a PNG of each page, theme and width.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._driver = sync_playwright().start()
        path = os.environ.get("NBTRITON_CHROMIUM") or shutil.which("chromium")
        self._browser = self._driver.chromium.launch(executable_path=path, args=FLAGS)
        self._site: Any = Site(_Files)
        self._site.files = {}
        self._thread = threading.Thread(target=self._site.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write a page of all pictures, ``index.html``; close the browser and the test site."""
        figures = "".join(
            f'<figure><figcaption>{path.stem}</figcaption><img loading="lazy" src="{path.name}"></figure>'
            for path in sorted(self._folder.glob("*.png"))
        )
        page = f"<!doctype html><title>Views of nbtriton</title>{figures}"
        (self._folder / "index.html").write_text(page, encoding="utf-8")
        self._browser.close()
        self._driver.stop()
        self._site.shutdown()
        self._site.server_close()
        self._thread.join()

    def live(self, name: str, view: Any) -> None:
        """Save a live view."""
        state = {key: getattr(view, key) for key in view.keys if not key.startswith("_")}
        state = {
            k: v for k, v in state.items() if isinstance(v, str | int | float | bool | list | dict)
        }
        state["frame"] = frame_text(view)
        for theme, host in THEMES.items():
            self._site.files = {
                "/": (
                    "text/html",
                    PAGE
                    % {
                        "host": HOSTS[host][0],
                        "css": view._css,  # noqa: SLF001 - what a host is sent
                        "body": host,
                        "state": json.dumps(state).replace("</", "<\\/"),
                    },
                ),
                "/widget.js": ("text/javascript", view._esm),  # noqa: SLF001
            }
            for width in WIDTHS:
                page = self._page(theme, width)
                page.goto(f"http://127.0.0.1:{self._site.server_port}/")
                page.wait_for_function("window.ready")
                page.wait_for_timeout(300)
                self._save(page, f"{name}-{theme}-{width}")

    def html(self, name: str, html: str) -> None:
        """Save a static form."""
        for theme, host in THEMES.items():
            ink = "#ddd" if theme == "dark" else "#222"
            for width in WIDTHS:
                page = self._page(theme, width)
                page.set_content(
                    f'<!doctype html><meta charset="utf-8"><style>body{{color:{ink};'
                    f"font:14px sans-serif}}{HOSTS[host][0]}</style><body>{html}</body>"
                )
                self._save(page, f"{name}-{theme}-{width}")

    def notebook(self, path: Path) -> None:
        """Save a whole executed notebook."""
        notebook = nbformat.read(path, as_version=4)
        for theme in THEMES:
            body, _ = HTMLExporter(template_name="lab", theme=theme).from_notebook_node(notebook)
            page = self._page(theme, 1100)
            page.set_content(body, wait_until="domcontentloaded")
            self._save(page, f"lesson-{path.stem}-{theme}")

    def _page(self, theme: str, width: int) -> Page:
        page = self._browser.new_page(
            color_scheme="dark" if theme == "dark" else "light",
            viewport={"width": width, "height": 900},
        )
        page.set_default_timeout(0)  # a busy machine needs long for everything
        return page

    def _save(self, page: Page, name: str) -> None:
        page.screenshot(path=self._folder / f"{name}.png", full_page=True)
        page.close()
