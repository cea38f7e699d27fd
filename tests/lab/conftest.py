"""A real JupyterLab in a real Chromium: one of each for all tests here."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from bench.processes import free_ports
from tests.page import conftest as page_tests
from tests.until import until

REPOSITORY = Path(__file__).parents[2]
SCREENSHOTS = REPOSITORY / "build" / "screenshots"
FLAGS = [
    *page_tests.FLAGS,
    "--disable-dev-shm-usage",  # a small /dev/shm kills tabs
    "--force-color-profile=srgb",
]
# A busy machine needs long for everything.
PATIENCE_MS = 150_000

# What is shown for a moment only is seen by an observer in the page; a poll from outside may miss it.
RECORD = """() => {
    window.recorded = {};
    const look = () => {
        for (const curve of document.querySelectorAll(".nbt-host .nbt-curve")) {
            const source = curve.closest(".jp-CodeCell").querySelector(".jp-InputArea-editor").textContent;
            const shown = (window.recorded[source] ??= { lines: [], points: [] });
            const add = (known, value) => known.includes(value) || known.push(value);
            add(shown.lines, curve.querySelector(".nbt-curve-line").textContent);
            add(shown.points, curve.querySelectorAll(".nbt-point").length);
        }
    };
    const all = { childList: true, characterData: true, subtree: true };
    new MutationObserver(look).observe(document.body, all);
}"""

IDLE = """(name) => {
    const { path, sessionContext } = window.jupyterapp?.shell?.currentWidget?.context ?? {};
    return path === name && sessionContext.kernelDisplayStatus === "idle" && document.querySelector(".jp-CodeCell");
}"""


class Lab:
    """A JupyterLab of our own: port, token and folders."""

    def __init__(self, scratch: Path) -> None:
        self.root = scratch / "root"
        self.root.mkdir(parents=True)
        self.token = secrets.token_hex(16)
        # A short path: that of a socket has at most 107 characters.
        self._runtime = Path(tempfile.mkdtemp(prefix="lab-"))
        self._settings = scratch / "settings" / "@jupyterlab" / "apputils-extension"
        self._settings.mkdir(parents=True)
        # Else a popup about Jupyter's news covers the page.
        self.set("notification", {"fetchNews": "false", "checkForUpdates": False})
        env = {
            **os.environ,
            "JUPYTER_CONFIG_DIR": str(scratch / "config"),
            "JUPYTER_RUNTIME_DIR": str(self._runtime),
            "JUPYTERLAB_SETTINGS_DIR": str(scratch / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(scratch / "workspaces"),
            "IPYTHONDIR": str(scratch / "ipython"),
            "XDG_STATE_HOME": str(scratch / "state"),
            "OMP_NUM_THREADS": "1",
        }
        self._log = (scratch / "jupyterlab.log").open("wb")
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser",
                "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={free_ports(1)[0]}",
                f"--IdentityProvider.token={self.token}",
                f"--ServerApp.root_dir={self.root}", "--LabApp.extension_manager=readonly",
                "--LabApp.expose_app_in_browser=True",  # for its commands
                "--JupyterNotebookApp.expose_app_in_browser=True",
                "--LanguageServerManager.autodetect=False",  # twenty programs, each asked whether it is there
                "--KernelManager.transport=ipc",  # as tests.kernels.over_ipc
            ],
            stdout=self._log, stderr=subprocess.STDOUT, env=env, start_new_session=True,
        )  # fmt: skip

    def set(self, name: str, settings: dict[str, object]) -> None:
        """Give its pages settings; each reads them as it opens."""
        (self._settings / f"{name}.jupyterlab-settings").write_text(json.dumps(settings))

    @cached_property
    def url(self) -> str:
        """Its address; the port may be another than the one that was free a moment ago."""
        (info,) = self._runtime.glob("jpserver-*.json")
        return f"http://127.0.0.1:{json.loads(info.read_text())['port']}"

    def wait(self) -> None:
        def answers() -> bool:
            assert self._process.poll() is None, "JupyterLab ended at once"
            with contextlib.suppress(OSError, ValueError):
                self.call("GET", "status")
                return True
            return False

        assert until(answers, PATIENCE_MS / 1000), "JupyterLab did not answer"

    def _process_wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)  # it ends its kernels
            self._process_wait(15)
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()
        shutil.rmtree(self._runtime, ignore_errors=True)


class Opened:
    """One notebook open in the browser, on a kernel of its own."""

    # Errors that the page has without nbtriton too.
    known_errors: tuple[str, ...] = ()

    def __init__(self, lab: Lab, page: Any, name: str) -> None:
        self.lab, self.page, self.name = lab, page, name
        self.open()

    def start_kernel(self) -> None:
        sessions = self.lab.call("GET", "sessions")
        if not any(session["path"] == self.name for session in sessions):
            self.lab.call(
                "POST", "sessions",
                {"path": self.name, "name": self.name, "type": "notebook",
                 "kernel": {"name": "python3"}},
            )  # fmt: skip

    def open(self) -> None:
        self.start_kernel()
        if self.page.url.startswith(f"{self.lab.url}/lab"):
            self.command("docmanager:open", path=self.name)
        else:
            # Reset: without the tabs that the workspace remembers.
            self.page.goto(f"{self.lab.url}/lab/tree/{self.name}?token={self.lab.token}&reset")
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until it is shown, with a kernel that is idle."""
        self.page.wait_for_function(IDLE, arg=self.name, timeout=PATIENCE_MS)

    def close(self) -> bool:
        """Close it without a question; return True if another one may be opened on its page."""
        self.page.evaluate("[...jupyterapp.shell.widgets('main')].forEach((one) => one.dispose())")
        return not self.page.locator(".jp-Dialog").count()

    def command(self, name: str, **args: Any) -> None:
        """Start what a menu of JupyterLab starts, and mark its end: a busy page loses clicks and keys."""
        self.page.evaluate(
            """([name, args]) => {
                (window.ended ??= {})[name] = false;
                jupyterapp.commands.execute(name, args).finally(() => { window.ended[name] = true; });
            }""",
            [name, args],
        )

    def wait_ended(self, name: str) -> None:
        """Wait until a command has ended."""
        self.page.wait_for_function("name => window.ended[name]", arg=name, timeout=2 * PATIENCE_MS)

    def theme(self, name: str) -> None:
        self.command("apputils:change-theme", theme=name)

    def run_all(self) -> None:
        self.command("notebook:run-all-cells")

    def cell(self, text: str) -> Any:
        """The code cell whose source holds a text."""
        return self.page.locator(".jp-CodeCell").filter(
            has=self.page.locator(".jp-InputArea-editor", has_text=text)
        )

    def output(self, text: str) -> Any:
        return self.cell(text).locator(".jp-OutputArea")

    def wait_done(self) -> None:
        """Wait until all cells have run."""
        self.wait_ended("notebook:run-all-cells")

    def save(self) -> None:
        self.command("docmanager:save")
        self.wait_ended("docmanager:save")

    def record(self) -> None:
        """Collect what the curves of the cells show from now on, as the page draws it."""
        self.page.evaluate(RECORD)

    def recorded(self, cell: str) -> dict[str, list[Any]]:
        """Return the progress texts, and the numbers of points, that a cell's curve has shown."""
        found = self.page.evaluate("window.recorded")
        (one,) = (shown for source, shown in found.items() if cell in source)
        return dict(one)

    def assert_clean(self) -> None:
        stderr = self.page.locator("[data-mime-type='application/vnd.jupyter.stderr']")
        assert not stderr.count(), stderr.all_inner_texts()

    def screenshot(self, name: str, locator: Any = None) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        if locator is None:
            self.page.screenshot(path=SCREENSHOTS / f"{name}.png")
        else:
            locator.scroll_into_view_if_needed()
            locator.screenshot(path=SCREENSHOTS / f"{name}.png")


@pytest.fixture(scope="package")
def browser_context(chromium) -> Iterator[Callable[[], Any]]:
    with page_tests.launched(chromium, headless=True, args=FLAGS) as running:
        # Tall: JupyterLab does not draw outputs that are far off the screen.
        yield lambda: running.new_context(viewport={"width": 1280, "height": 2400})


@pytest.fixture(scope="package")
def lab(tmp_path_factory) -> Iterator[Lab]:
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    running = Lab(tmp_path_factory.mktemp("lab"))
    try:
        running.wait()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="package")
def free_pages() -> list[Any]:
    """A page with JupyterLab and nothing open in it: to load it takes seconds of a processor."""
    return []


@pytest.fixture
def open_notebook(lab, browser_context, free_pages) -> Iterator[Callable[..., Opened]]:
    """Open a notebook, a second one on a page that is loaded anew; a script error on a page fails the test."""
    pages: list[Any] = []
    all_opened: list[Opened] = []
    errors: list[str] = []

    def note(error: object) -> None:
        errors.append(str(error))

    def open_(
        name: str,
        notebook: dict[str, Any],
        theme: str = "JupyterLab Light",
        kind: type[Opened] = Opened,
    ) -> Opened:
        lab.set("themes", {"theme": theme})
        (lab.root / name).write_text(json.dumps(notebook))
        used = not pages and kind is Opened and bool(free_pages)
        pages.append(free_pages.pop() if used else browser_context().new_page())
        pages[-1].set_default_timeout(PATIENCE_MS)
        pages[-1].on("pageerror", note)
        if used:
            pages[-1].evaluate(
                "name => jupyterapp.commands.execute('apputils:change-theme', { theme: name })",
                theme,
            )
        all_opened.append(kind(lab, pages[-1], name))
        return all_opened[-1]

    yield open_
    kept = [one.page for one in all_opened[:1] if one.close()]
    for session in lab.call("GET", "sessions"):
        lab.call("DELETE", f"sessions/{session['id']}")
    for page in pages:
        if page in kept:
            page.remove_listener("pageerror", note)
            free_pages.append(page)
        else:
            page.context.close()
    known = [text for one in all_opened for text in one.known_errors]
    errors = [error for error in errors if not any(text in error for text in known)]
    assert not errors, errors
