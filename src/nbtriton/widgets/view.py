"""The base of all live views: which pages show them, when they send something, and when they rest."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import anywidget
import traitlets

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.drawing.scene import tokens
from nbtriton.widgets.publisher import Hub, Publisher, hub
from nbtriton.widgets.static import StaticView

_HERE = Path(__file__).parent
# Pages acknowledge frames and report now and then that they are alive. After this much silence the
# page was closed or reloaded without a message. It is long because some hosts deliver no messages
# while a cell runs.
_SILENT_S = 30.0
# A host may remove a view and show it again, for example when an output moves.
_GRACE_S = 2.0
# Time without movement after which a view rests.
_REST_S = 10.0
# How often a view looks whether something moves.
_LOOK_S = 0.5
# A page that receives nothing for 3 s takes the kernel for dead.
_BEAT_S = 1.0


def asset(name: str | Path, *parts: str) -> str:
    """Return the shared front-end code, further parts, and that of one widget: a file of this folder, or a path."""
    own = _HERE / name
    files = (_HERE / f"shared{own.suffix}", *(_HERE / part for part in parts), own)
    texts = [file.read_text(encoding="utf-8") for file in files]
    return "\n".join([tokens(), *texts] if own.suffix == ".css" else texts)


# What a load or a request changes.
_moving = attrgetter(
    "name", "version", "state", "queued", "executing", "success_count", "fail_count"
)


def movement_of(server: Any, now_s: float, names: Collection[str] = ()) -> Hashable:
    """Return a value that changes with every load and every request to some models of a server, or to all.

    While a request is in flight it changes once a second, because its duration is shown.
    """
    return tuple(
        (*_moving(one), int(now_s) if one.queued or one.executing else 0)
        for one in server.models()
        if not names or one.name in names
    )


class LiveView(anywidget.AnyWidget):
    """Base of the live views.

    A view sends something only while a page shows it and something moves: after 10 s without
    movement it rests until something moves again. The page sends ``open``, ``ack``, ``here`` and
    ``close``; the first three show that it is alive.

    Parameters
    ----------
    clock : callable, optional
        Seconds, monotonic.
    on_hub : Hub, optional
        Ticks this view; the shared one if not given.

    Attributes
    ----------
    frames_sent : int
    place : str
        The class of the elements that a page replaces by this view.
    failure : str
        The error that ended its following, in a line; empty while it follows.
    resting : bool
    """

    frame = traitlets.Bytes(b"").tag(sync=True)
    beat = traitlets.Int(0).tag(sync=True)
    place = traitlets.Unicode().tag(sync=True)
    resting = traitlets.Bool(False).tag(sync=True)
    failure = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_hub: Hub | None = None,
        **traits: Any,
    ) -> None:
        self._clock = clock
        self._hub = on_hub or hub()
        # The hub's thread sends frames, and the thread that stops the view the last one.
        self._sending = threading.RLock()
        self._last_seen: dict[str, float] = {}
        self._closed_s = -float("inf")
        self._expected_until = -float("inf")
        self._recordings = 0
        self._shown = False
        self._on_look: Callable[[], None] | None = None
        self._movement: Hashable = None
        self._looked_s = -float("inf")
        self._moved_s = clock()
        self._beat_s = clock()
        self.frames_sent = 0
        super().__init__(place=f"nbt-place-{uuid4().hex}", **traits)
        self._publisher: Publisher[Any] = Publisher(self._send_state, clock=clock)
        self.on_msg(lambda _widget, content, _buffers: self.handle_message(content))

    # -- the page -----------------------------------------------------------------------------

    def handle_message(self, content: dict[str, Any]) -> None:
        """Handle a message of a page."""
        kind, view = content.get("kind"), str(content.get("view", ""))
        if kind == "close":
            self._last_seen.pop(view, None)
            self._closed_s = self._clock()
        elif kind in ("open", "ack", "here"):
            self._last_seen[view] = self._clock()
            self._expected_until = -float("inf")
            # No page acknowledges messages sent before it opened.
            if kind in ("ack", "open"):
                self._publisher.ack()
            if kind == "open":
                self._handle_opened()
            self._hub.open(self)
        else:
            self._handle_command(content)

    def _handle_opened(self) -> None:
        """Note that a page shows this view from now on."""

    def _handle_command(self, content: dict[str, Any]) -> None:
        """Handle a message that only this kind of view understands."""

    def _handle_msg(self, msg: dict[str, Any]) -> None:
        super()._handle_msg(msg)
        resume_busy(getattr(self.comm, "kernel", None))

    @traitlets.observe("comm")
    def _address_replies(self, _change: object) -> None:
        """Let a page's messages arrive where the page sent them: on a subshell, while cells run.

        ipykernel 7.4 passes them to the shell that last sent something on the comm. For a cell or a
        thread that is the main shell, which is busy while a cell runs: "Stop" would arrive when
        there is nothing left to stop.
        """
        with suppress(AttributeError):
            # There is no public way.
            self.comm._reply_subshell_for = lambda _data, addressed: addressed  # noqa: SLF001
        if self.comm is not None:
            # The usual way calls IPython's hooks for the beginning and end of a cell, here on the
            # subshell's thread. matplotlib's hook would show and close the half-drawn figures of
            # the running cell.
            self.comm.handle_msg = self._handle_msg

    # -- the hub ------------------------------------------------------------------------------

    def watched(self) -> bool:
        """Whether a page shows this view, or is about to."""
        now = self._clock()
        recently = any(now - at < _SILENT_S for at in list(self._last_seen.values()))
        return recently or (self._shown and (self._recordings > 0 or now < self._expected_until))

    def alive(self) -> bool:
        """Whether the hub must keep ticking: until `stop` the displayed view may move again."""
        return (
            self._shown
            or self._recordings > 0
            or self.watched()
            or self._clock() - self._closed_s < _GRACE_S
        )

    def tick(self) -> None:
        """Check whether something moves; while it does, send the state if it is due. What fails is said on the page."""
        with self._sending:
            try:
                self._tick(self._clock())
                self.failure = ""
            except BaseException as error:
                self.failure = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")
                raise

    def _tick(self, now: float) -> None:
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            self._look(now)
        if self.resting or not self.watched():
            return
        if self._publisher.is_due():
            begin = time.thread_time()
            state = self._observe()
            if state is not None:
                self._publisher.offer(state)
            if self._publisher.poll():
                self._beat_s = now
                self._publisher.record_cost(time.thread_time() - begin)
        if now - self._beat_s >= _BEAT_S:
            self._beat_s = now
            self.beat += 1

    def _look(self, now: float) -> None:
        movement = self.movement()
        if movement is None or movement != self._movement:
            self._movement = movement
            self._moved_s = now
        rests = now - self._moved_s >= _REST_S
        if rests != self.resting:
            self.resting = rests
            self.refresh()
        if self._on_look is not None:
            self._on_look()

    def movement(self) -> Hashable:
        """Return a value that changes with everything that moves; None if the view always moves."""
        return None

    def refresh(self) -> None:
        """Send the current state now, whether a page shows it or not."""
        with self._sending:
            state = self._observe()
            if state is not None:
                self._send_state(state)

    def _observe(self) -> Any:
        """Return the state to be sent, or None if it has not changed."""
        return None

    def _send_state(self, state: Any) -> None:
        """Set the traits that carry this state."""

    # -- Python -------------------------------------------------------------------------------

    def handle_displayed(self, on_look: Callable[[], None] | None = None) -> None:
        """Handle the display of the view: a page will show it in a moment.

        Parameters
        ----------
        on_look : callable, optional
            Called on the hub's thread twice a second, after the check whether something moves.
        """
        self._shown = True
        self._expected_until = self._clock() + _SILENT_S
        self._on_look = on_look
        self._hub.open(self)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside this block, send even while the host delivers no messages from a page."""
        self._recordings += 1
        self._hub.open(self)
        try:
            yield
        finally:
            self._recordings -= 1

    def stop(self) -> None:
        """Send the last state, and stop following."""
        try:
            self.refresh()
        finally:
            self._hub.close(self)
            self._last_seen.clear()
            self._shown = False
            self._on_look = None

    def close(self) -> None:
        """Stop following and take the view off every page; idempotent."""
        # ipywidgets closes it again when it is garbage collected, on any thread and at any line,
        # even one that holds the hub's lock.
        if self.comm is not None:
            self._hub.close(self)
            layout = self.layout  # also a widget with a comm
            super().close()
            layout.close()

    def static(self) -> StaticView:
        """Return its current contents in a form that needs no script."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """Return the current numbers as a DataFrame.

        Raises
        ------
        InvalidArgumentError
            The view has no table.
        """
        raise InvalidArgumentError(f"{self!r} has no table of numbers")

    def widget_data(self) -> dict[str, Any]:
        """Return the form for hosts with a widget manager."""
        found: Any = super()._repr_mimebundle_()
        data: dict[str, Any] = dict(found[0] if isinstance(found, tuple) else found or {})
        data.pop("text/plain", None)
        return data

    def _repr_mimebundle_(self, **_options: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the view in every form that a host may want: live, picture and text."""
        return {**self.static()._repr_mimebundle_(), **self.widget_data()}, {}

    def __repr__(self) -> str:
        # ipywidgets would print every trait, pictures included.
        return f"<{type(self).__name__}>"


# Kernels that will report "idle" after the running cell: once, however many messages a page sends.
_ENDING: WeakSet[Any] = WeakSet()


def resume_busy(kernel: Any) -> None:
    """Let the kernel report "busy" after the current message if a cell is running.

    ipykernel reports "busy" and "idle" around every message, even one that a subshell handles while
    a cell runs on the main shell. Front ends believe the last report: JupyterLab's status bar
    showed "Idle" from the first acknowledgement of a live view to the end of the cell.

    Parameters
    ----------
    kernel : ipykernel.kernelbase.Kernel
        A kernel without subshells handles messages between cells, and is left alone.
    """
    # ipykernel >= 7 has all of these, but none is public. If one is missing, the kernel is left alone.
    shell = getattr(kernel, "_main_asyncio_lock", None)
    publish = getattr(kernel, "_publish_status", None)
    main_loop = getattr(kernel, "io_loop", None)
    if shell is None or publish is None or main_loop is None or not shell.locked():
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # called by a test or by a host without ipykernel's loops
        return

    async def end() -> None:
        # A cell reports "idle" before it releases its shell: "busy" may have come in between.
        async with shell:
            # Before "idle": whoever reports "busy" from now on finds that another "idle" is needed.
            _ENDING.discard(kernel)
            publish("idle", "shell")

    def begin() -> None:
        if shell.locked():
            publish("busy", "shell")
            if kernel not in _ENDING:
                _ENDING.add(kernel)
                # Not on this loop, which ends with the page's subshell.
                main_loop.add_callback(end)

    # ipykernel reports "idle" before the loop runs anything else.
    loop.call_soon(begin)
