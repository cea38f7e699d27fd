"""A widget's front end on a stub model in Chromium, without Jupyter."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sites import Site

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Half of what a new window costs is the list under the address bar. The names before it are Playwright's, whose own
    # list a second one replaces.
    (
        "--disable-features=AimEnabled,HttpsUpgrades,MediaRouter,OptimizationHints,PaintHolding,"
        "WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,WebUIOmniboxPopup"
    ),
]

# The stub keeps what the front end sends in `window.sent` and counts listeners.
PAGE = """<!doctype html><meta charset="utf-8"><title>widget</title>
<style>%(host)s</style><style>%(css)s</style>
<body class="%(body)s"><div id="w"></div><div id="w2"></div>
<script type="module">
import widget from "/widget.js";
const subs = new Map(), state = %(state)s;
const bytes = (text) => {
  const raw = atob(text), buffer = new Uint8Array(raw.length + 3);
  // Hosts hand over views into larger buffers: three bytes of something else stand before ours.
  for (let i = 0; i < raw.length; i++) buffer[i + 3] = raw.charCodeAt(i);
  return new DataView(buffer.buffer, 3);
};
state.frame = bytes(state.frame);
window.sent = [];
window.listeners = () => [...subs.values()].reduce((n, calls) => n + calls.length, 0);
window.model = {
  get: (name) => state[name],
  on: (event, call) => subs.set(event, [...(subs.get(event) ?? []), call]),
  off: (event, call) => subs.set(event, (subs.get(event) ?? []).filter((f) => f !== call)),
  send: (content) => window.sent.push(content),
  set: (name, value) => window.put({ [name]: value }),
  save_changes() {},
};
window.put = (changes) => {
  for (const [name, value] of Object.entries(changes)) {
    state[name] = name === "frame" ? bytes(value) : value;
  }
  for (const name of Object.keys(changes)) {
    for (const call of subs.get(`change:${name}`) ?? []) call();
  }
};
window.widget = widget;
window.cleanup = await widget.render({ model: window.model, el: document.getElementById("w") });
window.ready = true;
</script>"""

# The variables of JupyterLab 4's two themes that the widgets read.
LAB_LIGHT = ":root{--jp-ui-font-color1:rgba(0,0,0,.87);--jp-layout-color1:#fff}"
LAB_DARK = (
    ":root{--jp-ui-font-color1:rgba(255,255,255,.87);--jp-layout-color1:#111}body{background:#111}"
)
# VS Code puts a widget on white in every theme, and has its colours in variables.
VSCODE_DARK = (
    ":root{--vscode-editor-foreground:#d4d4d4;--vscode-editor-background:#1e1e1e}"
    "body{background:#1e1e1e}#w{background:#fff}"
)
# A busy machine needs long for everything; Playwright's own patience is half a minute.
PATIENCE_MS = 120_000
HOSTS = {
    "plain-light": ("", "light"),
    "plain-dark": ("body{background:#111}", "dark"),
    "lab-light": (LAB_LIGHT, "dark"),
    "lab-dark": (LAB_DARK, "light"),
    "vscode-dark": (VSCODE_DARK, "light"),
}


@contextmanager
def launched(chromium, **options):
    """Yield a browser; as long as it is there, Playwright's loop keeps others from running in the main thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, **options)
        yield running
        running.close()


@pytest.fixture(scope="package")
def browser(chromium):
    with launched(chromium, args=FLAGS) as running:
        yield running


@pytest.fixture(scope="package")
def free_pages(browser):
    """The pages that no test has at the moment, by the options of their context."""
    return defaultdict(list)


class _Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind, body = self.server.files.get(self.path, ("text/plain", ""))
        data = body.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def site():
    # ES modules do not load over file://.
    server = Site(_Files)
    server.files = {}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def frame_text(view):
    return base64.b64encode(view.frame).decode()


@pytest.fixture(scope="session")
def serious():
    """Return a function of a page: what axe-core finds in its widget that is serious or worse."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

    def find(page):
        page.evaluate(script)
        found = page.evaluate("axe.run(document.getElementById('w'))")["violations"]
        return [
            (one["id"], [node["html"][:120] for node in one["nodes"]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    return find


@pytest.fixture
def new_page(browser, free_pages):
    """Return pages to open something in, each in a context of these options; any script error fails the test.

    A page is kept for later tests unless its test closes it: to make one takes longer than what is done with it.
    """
    pages, errors = [], []

    def note(error):
        errors.append(str(error))

    def make(viewport=None, color_scheme="light", reduced_motion="no-preference", **options):
        free = free_pages[repr(options)]
        if not free:
            free.append(browser.new_context(**options).new_page())
            free[0].set_default_timeout(PATIENCE_MS)
        page = free.pop()
        pages.append((page, free))
        page.on("pageerror", note)
        page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
        page.set_viewport_size(viewport or {"width": 1280, "height": 720})
        return page

    yield make
    for page, free in pages:
        if not page.is_closed():
            page.mouse.move(0, 0)
            page.remove_listener("pageerror", note)
            free.append(page)
    assert not errors, errors


@pytest.fixture
def open_view(new_page, site):
    """Open a widget in an imitated host."""

    def open_(view, host="plain-light", motion="reduce", width=1000):
        style, scheme = HOSTS[host]
        state = {name: getattr(view, name) for name in view.keys if not name.startswith("_")}
        state = {
            k: v for k, v in state.items() if isinstance(v, str | int | float | bool | list | dict)
        }
        state["frame"] = frame_text(view)
        page_text = PAGE % {
            "host": style,
            "css": view._css,
            "body": host,
            # No string of ours may end the script element.
            "state": json.dumps(state).replace("</", "<\\/"),
        }
        site.files = {
            "/": ("text/html", page_text),
            "/widget.js": ("text/javascript", view._esm),
        }
        page = new_page(
            color_scheme=scheme, reduced_motion=motion, viewport={"width": width, "height": 700}
        )
        page.goto(f"http://127.0.0.1:{site.server_port}/")
        page.wait_for_function("window.ready")
        return page

    return open_


@pytest.fixture
def open_html(new_page):
    """Open a static form in an imitated host, where no script runs."""

    def open_(html, host="plain-light", width=1000):
        style, scheme = HOSTS[host]
        page = new_page(
            color_scheme=scheme,
            java_script_enabled=False,
            viewport={"width": width, "height": 700},
        )
        ink = "#ddd" if "dark" in host else "#222"
        page.set_content(
            f'<!doctype html><meta charset="utf-8"><style>body{{color:{ink}}}{style}</style>'
            f"<body>{html}</body>"
        )
        return page

    return open_


CONTRASTS = """() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    pen.clearRect(0, 0, 1, 1);
    for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) =>
      v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const papers = (element) => {
    const found = [];
    for (let up = element; up; up = up.parentElement) {
      const style = getComputedStyle(up);
      if (up instanceof SVGSVGElement) {
        // Inside a figure the paper is its card or the panel on it: test against both.
        const card = up.querySelector(":scope > rect");
        if (card) found.unshift(getComputedStyle(card).fill);
      }
      if (style.backgroundColor !== "rgba(0, 0, 0, 0)") found.unshift(style.backgroundColor);
    }
    return ["#ffffff", ...found];
  };
  const rows = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || /^(script|style|title)$/i.test(element.tagName)) continue;
    if (!element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const svg = element instanceof SVGElement;
    let paper = papers(element);
    const panel = element.closest("svg")?.querySelector(".nbt-f-panel");
    for (const layers of panel ? [paper, [...paper, getComputedStyle(panel).fill]] : [paper]) {
      const ink = over([...layers, svg ? style.fill : style.color]);
      const back = over(layers);
      const [a, b] = [luminance(ink), luminance(back)].sort((x, y) => y - x);
      rows.push([text.data.trim(), (a + 0.05) / (b + 0.05)]);
    }
  }
  return rows;
}"""


@pytest.fixture
def contrasts():
    """Return (text, contrast) of every visible text of a page."""

    def measure(page):
        rows = page.evaluate(CONTRASTS)
        assert rows
        return rows

    return measure
