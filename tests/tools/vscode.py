"""VS Code's renderer of widgets, its bundle from npm, with the state of our views and without a kernel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
from ipywidgets.embed import embed_data
from playwright.sync_api import sync_playwright

import nbtriton as nt
from nbtriton.widgets.living import LivingCharts
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.timeline import live_timeline
from nbtriton.widgets.watch import WatchView
from tests.page.conftest import FLAGS, PATIENCE_MS, VSCODE_DARK, _Files
from tests.sites import Site

RENDERER = "@vscode/jupyter-ipywidgets8@1.0.9"
# As the extension does: modules by AMD, a kernel behind a proxy, a box for each output.
PAGE = """<!doctype html><meta charset="utf-8"><title>VS Code</title>
<style>%(style)s#w, .out {background: #fff}</style><body>
<script>
const known = new Map(), asked = [];
window.define = (...args) => {
  const make = args.pop(), deps = Array.isArray(args.at(-1)) ? args.pop() : [];
  known.set(args[0] ?? asked.shift(), make(...deps.map((name) => known.get(name))));
};
window.requirejs = (names, then) => then(...names.map((name) => known.get(name)));
</script>
<script type="module">
import { activate } from "/renderer.js";
activate();
window.vscIPyWidgets8.load();
const signal = { connect: () => true, disconnect: () => true };
const kernel = new Proxy({}, { get: (_, name) => {
  if (["then", "username", "clientId", "id"].includes(name)) return undefined;
  return /Changed$|Message$|^disposed$|^pendingInput$/.test(name) ? signal : () => signal;
} });
const loading = new Map();
const load = (name) => new Promise((loaded) => {
  asked.push(name);
  document.head.append(Object.assign(document.createElement("script"), { src: `/${name}.js`, onload: loaded }));
});
const scripts = { widgetsRegisteredInRequireJs: new Set(), successHandler() {}, errorHandler() {},
  loadWidgetScript: (name) => loading.get(name) ?? loading.set(name, load(name)).get(name) };
const manager = new window.vscIPyWidgets.WidgetManager(kernel, document.body, scripts, () => {}, {});
await manager.set_state(%(state)s);
for (const id of %(views)s) {
  const node = document.body.appendChild(Object.assign(document.createElement("div"), { className: "out" }));
  await manager.display_view(undefined, await manager.create_view(await manager.get_model(id)), { node });
}
window.ready = true;
</script>"""
COLOURS = """() => [...document.querySelectorAll(".nbt-root:not(.nbt-root *)")].map((root) => getComputedStyle(root))
  .map((style) => [style.color, style.backgroundColor])"""


def _double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


def _views(server: nt.Server) -> list[Any]:
    server.load("max_batch_size: 8", model=_double, name="double")
    server.infer("double", {"IN": np.ones((1, 4), np.float32)})
    report = nt.perf(server, "double", concurrency=[1, 2], request_count=20)
    hub = Hub(threaded=False)
    chart = LivingCharts(html=nt.plot(first=report, again=report).html, on_hub=hub)
    timeline = live_timeline(server, "double", on_hub=hub)
    timeline.handle_message({"kind": "open", "view": "v"})
    views = [chart, timeline, WatchView(server, on_hub=hub)]
    for view in views:
        view.refresh()
    return views


def vscode(folder: Path) -> str:
    """Show a chart, a timeline and a watch by VS Code's renderer, and use them; `folder` gets the bundle."""
    subprocess.run(["npm", "pack", "--silent", RENDERER], cwd=folder, check=True)
    subprocess.run(["tar", "xzf", *(one.name for one in folder.glob("*.tgz"))], cwd=folder, check=True)  # fmt: skip
    with nt.Server(gpus=()) as server:
        views = _views(server)
        state = embed_data(views, drop_defaults=False)["manager_state"]
    site: Any = Site(_Files)
    script = "text/javascript"
    renderer = (folder / "package" / "dist" / "ipywidgets.js").read_text()
    extension = Path(anywidget.__file__).parent / "nbextension" / "index.js"
    page_text = PAGE % {
        "style": VSCODE_DARK,
        "state": json.dumps(state).replace("</", "<\\/"),
        "views": json.dumps([view.model_id for view in views]),
    }
    site.files = {"/": ("text/html", page_text), "/renderer.js": (script, renderer),
                  "/anywidget.js": (script, extension.read_text())}  # fmt: skip
    threading.Thread(target=site.serve_forever, daemon=True).start()
    with sync_playwright() as driver:
        path = os.environ.get("NBTRITON_CHROMIUM") or shutil.which("chromium")
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1000, "height": 2400})
        page.set_default_timeout(PATIENCE_MS)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{site.server_port}/")
        page.wait_for_function("window.ready")
        chart = page.locator(".nbt-chart.nbt-on")
        chart.locator(".nbt-point[tabindex='0']").filter(visible=True).focus()
        page.keyboard.press("ArrowRight")
        assert chart.locator(".nbt-tip strong").inner_text() == "concurrency 2"
        legend = chart.locator(".nbt-legend").filter(visible=True).first
        legend.click()
        assert "nbt-off" in legend.get_attribute("class")
        page.locator("canvas.nbt-timeline-lanes").press("s")
        page.locator(".nbt-watch").get_by_text("selected: ").wait_for()
        # The box is white, and the theme dark.
        assert page.evaluate(COLOURS) == [["rgb(212, 212, 212)", "rgb(30, 30, 30)"]] * len(views)
        assert not errors, errors
        browser.close()
    site.shutdown()
    site.server_close()
    return "its renderer shows a chart, a timeline and a watch, dark: crosshair, legend, one selection; without a kernel"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(f"VS Code {RENDERER}: {vscode(Path(scratch))}")
