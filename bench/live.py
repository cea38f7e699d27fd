"""Cost of live views: for a server with four open views, and for a page that draws one.

Server: processor time of a request, of all threads, with four views that a page acknowledges and with none, in
turns. Page: Chromium's count of the time of its main thread and its painting while frames of a few requests
arrive, compared with the same page without frames. Crowd: 40 models with 10,000 requests a second between the frames;
the kernel's time for its frames, which are fewer where they cost more, and the page's for one.
"""

from __future__ import annotations

import base64
import gc
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from statistics import median
from typing import Any

import nbtriton
from bench.figures import Figure, Missing, Sides, ratio_at_least, together, value_at_most
from bench.models import DOUBLE, NOOP, chain, load
from bench.recorder import X, burst
from bench.session import Session
from nbtriton.widgets.dag import DagView
from nbtriton.widgets.publisher import Hub, gap_for
from nbtriton.widgets.timeline import live_timeline
from nbtriton.widgets.view import LiveView
from nbtriton.widgets.watch import WatchView

__all__ = ["FIGURES"]

STEPS = 8
PIPELINE = f"steps_{STEPS}"
MODELS = (NOOP, DOUBLE, chain(PIPELINE, NOOP, STEPS))
# A turn has several frames.
TURN_S = 0.8
TICK_S = 0.1
# Time of a page's measurement, and the interval of requests in it.
LOOK_S = 8.0
TRICKLE_S = 0.05
FRAMES_HZ = 5
# Recorded requests are read every one to ten seconds: in less than this their share is left out, or counted twice.
CROWD_S = 20.0
CROWD = tuple(f"model_{at:02}" for at in range(40))
CROWD_PER_S = 10_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]

_PAGE = """async ([esm, css, state]) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const subs = new Map();
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  state.frame = bytes(state.frame);
  const model = {
    get: (name) => state[name],
    on: (event, call) => subs.set(event, [...(subs.get(event) ?? []), call]),
    off() {},
    send() {},
  };
  // Decoded once: a host hands a buffer over.
  window.play = (frames, gap) => {
    const ready = frames.map(bytes);
    let at = 0;
    setInterval(() => put(ready[at++ % ready.length]), gap);
  };
  const put = (frame) => {
    state.frame = frame;
    for (const call of subs.get("change:frame") ?? []) call();
  };
  const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  (await import(url)).default.render({ model, el: document.body });
}"""


class Pages:
    """Thread that ticks views and acknowledges their frames, as pages do."""

    def __init__(self, *views: LiveView) -> None:
        self._views = views
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(TICK_S):
            for view in self._views:
                view.tick()
                view.handle_message({"kind": "ack", "view": "page"})

    def close(self) -> None:
        """Stop ticking."""
        self._over.set()
        self._thread.join()


def views_of(server: nbtriton.Server) -> tuple[LiveView, ...]:
    """Return the four views: of the server, of the pipeline, its graph and its timeline."""
    hub = Hub(threaded=False)
    return (
        WatchView(server, on_hub=hub),
        WatchView(server, [PIPELINE, "noop"], on_hub=hub),
        DagView.of(server, PIPELINE, on_hub=hub),
        live_timeline(server, PIPELINE, on_hub=hub),
    )


def spent_us(submit: Callable[[nbtriton.Server], int], server: nbtriton.Server) -> float:
    """Return the processor time of a request in one turn."""
    count, begin, ends = 0, time.process_time(), time.monotonic() + TURN_S
    while time.monotonic() < ends:
        count += submit(server)
    return (time.process_time() - begin) / count * 1e6


def beside(
    submit: Callable[[nbtriton.Server], int],
) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        with nbtriton.Server(gpus=()) as server:
            load(server, MODELS, session.folder())
            for _ in range(50):
                submit(server)
            views = views_of(server)
            for view in views:  # a new page is sent the whole state once
                view.handle_message({"kind": "open", "view": "page"})
                view.tick()

            def measure() -> tuple[float, float]:
                gc.collect()
                pairs = []
                for _ in range(max(4, session.interval_ms // 80)):
                    pages = Pages(*views)
                    try:
                        with_views = spent_us(submit, server)
                    finally:
                        pages.close()
                    pairs.append((with_views, spent_us(submit, server)))
                without = median(b for _, b in pairs)
                return without * median(a / b for a, b in pairs), without

            yield together(measure)

    return sides


def frames_of(view: LiveView, server: nbtriton.Server) -> list[str]:
    """Return the frames of one second with a few requests."""
    found = []
    for _ in range(10):
        for _ in range(4):
            server.infer(PIPELINE, X)
            time.sleep(TRICKLE_S)
        view.frame = b""
        view._send_state(view._observe())  # noqa: SLF001 -- what a tick does
        found.append(base64.b64encode(view.frame).decode())
    return found


def state_of(view: LiveView) -> dict[str, Any]:
    """Return a view's state as sent to a page."""
    names = [name for name in view.keys if not name.startswith("_")]
    state = {name: getattr(view, name) for name in names}
    plain = {
        k: v for k, v in state.items() if isinstance(v, str | int | float | bool | list | dict)
    }
    return plain | {"frame": base64.b64encode(view.frame).decode()}


def echo(IN: "FP32[16]") -> {"OUT": "FP32[16]"}:  # type: ignore[name-defined,misc]  # noqa: F821, N803, UP037
    return {"OUT": IN}


def load_crowd(server: nbtriton.Server) -> None:
    """Load 40 models and the ensemble of all of them; half get requests, as in a real server most rest."""
    for name in CROWD:
        server.load("max_batch_size: 8 dynamic_batching { }", model=echo, name=name)
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "IN" value: "{"IN" if not at else f"x{at}"}" }} '
        f'output_map {{ key: "OUT" value: "{"OUT" if name == CROWD[-1] else f"x{at + 1}"}" }} }}'
        for at, name in enumerate(CROWD)
    )
    ends = "".join(
        f'{kind} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ 16 ] }} ] '
        for kind, name in (("input", "IN"), ("output", "OUT"))
    )
    server.load(
        f'platform: "ensemble" max_batch_size: 8 {ends} ensemble_scheduling {{ {steps} }}',
        name="crowd",
    )


def crowded(server: nbtriton.Server, seconds: float) -> None:
    """Send what 10,000 requests a second send in this time."""
    for at in range(int(CROWD_PER_S * seconds) // 8):
        futures = [server.submit(CROWD[at % (len(CROWD) // 2)], X) for _ in range(8)]
        for future in futures:
            future.result()


def crowd_frames(view: LiveView, server: nbtriton.Server) -> tuple[list[str], float]:
    """Return some frames, and the share of a core that they take the kernel at the view's own pace, in percent."""
    frames: list[str] = []
    spent: list[float] = []
    gaps: list[float] = []
    now = view._clock()  # noqa: SLF001 -- the requests of a second take less than one
    view._clock = lambda: now  # noqa: SLF001
    while sum(gaps[1:]) < CROWD_S:
        view.frame = b""
        begin = time.thread_time()
        state = view._observe()  # noqa: SLF001 -- what a tick does
        view._send_state(state)  # noqa: SLF001
        spent.append(time.thread_time() - begin)
        frames.append(base64.b64encode(view.frame).decode())
        gaps.append(gap_for(min(spent[-2:])))  # as the publisher
        now += gaps[-1]
        crowded(server, gaps[-1])
    # The first one has all that is recorded, as a page gets it once.
    return frames[1:], sum(spent[1:]) / sum(gaps[1:]) * 100


def page_percent(view: LiveView, frames: list[str]) -> float:
    """Return the share of a core used by a page's tasks while frames arrive, in percent."""
    path = os.environ.get("NBTRITON_CHROMIUM") or shutil.which("chromium")
    with suppress(ImportError):
        from playwright.sync_api import sync_playwright
    if path is None or "sync_playwright" not in locals():
        raise Missing("no Chromium or no Playwright here")
    gap_s = 1.0 / FRAMES_HZ
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.evaluate(_PAGE, [view._esm, view._css, state_of(view)])  # noqa: SLF001 -- what a host is sent
        client = page.context.new_cdp_session(page)
        client.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.evaluate("([frames, gap]) => play(frames, gap)", [frames, gap_s * 1000])

        def spent() -> float:
            metrics = client.send("Performance.getMetrics")["metrics"]
            return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

        time.sleep(1.0)
        begin, start = spent(), time.monotonic()
        time.sleep(LOOK_S)
        share = (spent() - begin) / (time.monotonic() - start)
        browser.close()
    return float(share * 100)


def drawn(
    make: Callable[[nbtriton.Server], LiveView],
) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        with nbtriton.Server(gpus=()) as server:
            load(server, MODELS, session.folder())
            view = make(server)
            yield Sides(
                lambda: page_percent(view, frames_of(view, server)), None, "nothing to compare with"
            )

    return sides


def crowd(
    make: Callable[[nbtriton.Server], LiveView], *, page: bool
) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(_session: Session) -> Iterator[Sides]:
        with nbtriton.Server(gpus=()) as server:
            load_crowd(server)
            view = make(server)
            view.refresh()

            def measure() -> float:
                frames, percent = crowd_frames(view, server)
                # Of the page: milliseconds of a frame.
                return page_percent(view, frames) / 100 * 1000 / FRAMES_HZ if page else percent

            yield Sides(measure, None, "nothing to compare with")

    return sides


CROWD_VIEWS: tuple[tuple[str, str, Callable[[nbtriton.Server], LiveView]], ...] = (
    ("watch", "the live view", lambda server: WatchView(server, on_hub=Hub(threaded=False))),
    ("timeline", "the timeline", lambda server: live_timeline(server, "crowd", on_hub=Hub(threaded=False))),
    ("graph", "the graph", lambda server: DagView.of(server, "crowd", on_hub=Hub(threaded=False))),
)  # fmt: skip


FIGURES = (
    *(
        Figure(
            f"live.{name}", f"{title}: processor time of a request", "us", "lower", "no view",
            (ratio_at_least(0.97),), beside(submit), first="four views open",
        )
        for name, title, submit in (
            ("one", "one 8-step ensemble after another", burst(PIPELINE)),
            ("many", "in flight, dynamic batching", burst("double")),
        )
    ),
    *(
        Figure(
            f"live.page_{name}", f"page with {title}, a trickle of requests", "%", "lower", "",
            (value_at_most(5),), drawn(make), first="of a core",
        )
        for name, title, make in (
            ("watch", "the live view", lambda server: WatchView(server, on_hub=Hub(threaded=False))),
            ("timeline", "the timeline", lambda server: live_timeline(server, PIPELINE, on_hub=Hub(threaded=False))),
            ("graph", "the graph", lambda server: DagView.of(server, PIPELINE, on_hub=Hub(threaded=False))),
        )
    ),
    *(
        Figure(
            f"live.crowd_{name}{'_page' if page else ''}",
            f"{title} of 40 models, 10,000 requests a second: {'a frame on the page' if page else 'the kernel'}",
            "ms" if page else "%", "lower", "", (value_at_most(8 if page else 1),), crowd(make, page=page),
            first="of the page's main thread" if page else "of a core",
        )
        for name, title, make in CROWD_VIEWS
        for page in (False, True)
    ),
)  # fmt: skip
