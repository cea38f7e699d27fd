"""The view of a stream of frames: its newest frame, what was found in it, and what that leaves in the file."""

from __future__ import annotations

import base64
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import traitlets

from nbtriton.common.checks import MAPPING, NAME, SERVER, check
from nbtriton.common.errors import CancelledError, InvalidArgumentError, TritonError, nearest
from nbtriton.common.packages import needed
from nbtriton.drawing.scene import (
    SMALL,
    Shape,
    figure,
    fitting,
    rect,
    series_colours,
    shape,
    to_json,
    to_svg,
)
from nbtriton.extensions.show import SHOW, ShowSettings
from nbtriton.options.table import signed
from nbtriton.runtime.engine import Server
from nbtriton.widgets.publisher import Publisher
from nbtriton.widgets.show import Shown, show_live
from nbtriton.widgets.static import StaticView
from nbtriton.widgets.view import LiveView, asset

__all__ = ["FramesView", "show"]

# As often as the hub ticks.
_HZ = 10.0
# A wider frame is made smaller for the page and for the file.
_WIDEST = 800
_QUALITY = 80


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A frame as it is sent: its JPEG, its size, what is drawn over it, and a sentence."""

    jpeg: bytes
    width: int
    height: int
    over: tuple[Shape, ...]
    sentence: str


class FramesView(LiveView):
    """The newest frame of a stream; a thread reads the stream, and the page gets what it can draw.

    Parameters
    ----------
    server : Server
    model : str
        It answers with FRAME, and may answer with BOXES, SCORES, CLASSES and TRACK_IDS.
    inputs : mapping
    labels : sequence of str
        Names of the classes, from 0 on.

    Attributes
    ----------
    ended : threading.Event
        Set when the stream has ended.
    """

    _esm = asset(Path(__file__).with_name("frames.js"))
    _css = asset(Path(__file__).with_name("frames.css"))

    over: Any = traitlets.List().tag(sync=True)
    sentence = traitlets.Unicode("").tag(sync=True)
    width = traitlets.Int(0).tag(sync=True)
    height = traitlets.Int(0).tag(sync=True)

    def __init__(
        self,
        server: Server,
        model: str,
        inputs: Mapping[str, Any],
        labels: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.model_name, self._labels = model, tuple(labels)
        self._newest: Any = None
        self._received, self._sent = 0, -1
        self._problem = ""
        self.ended = threading.Event()
        self._stream = server.stream(model, inputs)
        super().__init__(**options)
        self._publisher = Publisher(self._send_state, clock=self._clock, hz=_HZ)
        # A daemon: a stream without an end must not keep the process.
        threading.Thread(target=self._read, name=f"nbtriton-show-{model}", daemon=True).start()

    def _read(self) -> None:
        try:
            for result in self._stream:
                self._newest = result
                self._received += 1
        except CancelledError:
            pass  # as `stop` does
        except TritonError as error:
            self._problem = error.message
        finally:
            self._stream.close()  # `stop` may have come before the request was sent
            self.ended.set()

    def movement(self) -> Hashable:
        """Return a value that changes with every frame."""
        return self._received, self.ended.is_set()

    def refresh(self) -> None:
        """Send the newest frame."""
        self._sent = -1
        super().refresh()

    def _observe(self) -> _Drawn | None:
        state = self._received + self.ended.is_set()
        if state == self._sent or self._newest is None:
            return None
        self._sent = state
        return self._drawn()

    def _send_state(self, state: _Drawn) -> None:
        self.frames_sent += 1
        with self.hold_sync():
            self.width, self.height = state.width, state.height
            self.over = [to_json(one) for one in state.over]
            self.sentence = state.sentence
            self.frame = state.jpeg

    def stop(self) -> None:
        """End the stream, and send its newest frame."""
        self._stream.close()
        super().stop()

    # -- what is drawn -------------------------------------------------------------------------

    def _drawn(self) -> _Drawn:
        result = self._newest
        image = _plain(result["FRAME"], 3)
        height, width = image.shape[:2]
        found = {
            name: _plain(result[name], 1 + (name == "BOXES")) for name in _OVER if name in result
        }
        boxes = found.get("BOXES", np.zeros((0, 4)))
        with needed("frames in the notebook", package="PIL"):
            from PIL import Image
        picture = Image.fromarray(np.ascontiguousarray(image))
        if width > _WIDEST:
            picture = picture.resize((_WIDEST, max(1, round(height * _WIDEST / width))))
        kept = BytesIO()
        picture.save(kept, "JPEG", quality=_QUALITY)
        names = [self._name(found, at) for at in range(len(boxes))]
        over = [
            part
            for at, box in enumerate(boxes.tolist())
            for part in _box(box, names[at], _colour(found, at), width)
        ]
        return _Drawn(kept.getvalue(), width, height, tuple(over), self._say(result, names))

    def _name(self, found: Mapping[str, Any], at: int) -> str:
        words = []
        if "CLASSES" in found:
            kind = int(found["CLASSES"][at])
            words.append(self._labels[kind] if 0 <= kind < len(self._labels) else f"class {kind}")
        if "TRACK_IDS" in found and found["TRACK_IDS"][at] > 0:
            words.append(f"#{int(found['TRACK_IDS'][at])}")
        if "SCORES" in found:
            words.append(f"{float(found['SCORES'][at]):.2f}")
        return " ".join(words)

    def _say(self, result: Any, names: Sequence[str]) -> str:
        number = int(result["INDEX"].flat[0]) if "INDEX" in result else self._received - 1
        at = ""
        if "TIMESTAMP_MS" in result:
            at = f", at {result['TIMESTAMP_MS'].flat[0] / 1000:.2f} s"
        dropped = int(result.parameters.get("dropped", 0))
        parts = [f"{self.model_name}: frame {number}{at}"]
        if "BOXES" in result:
            parts.append(f"{len(names)} boxes" if len(names) != 1 else "1 box")
        parts += [f"{dropped} dropped"] if dropped else []
        end = f"failed: {self._problem}" if self._problem else "ended" * self.ended.is_set()
        return "; ".join([*parts, *filter(None, [end])])

    def static(self) -> StaticView:
        """Return the newest frame as a picture that needs no script."""
        if self._newest is None:
            why = f": {self._problem}" if self._problem else ""
            words = f"{self.model_name}: no frame yet{why}"
            return StaticView(f'<div class="nbt-frames nbt-static">{escape(words)}</div>', words)
        drawn = self._drawn()
        data = f"data:image/jpeg;base64,{base64.b64encode(drawn.jpeg).decode()}"
        image = shape("image", href=data, width=drawn.width, height=drawn.height)
        scene = figure(
            drawn.width, drawn.height, image, *drawn.over,
            label=drawn.sentence, title=self.model_name, cls="nbt-frames-svg", scales=True,
        )  # fmt: skip
        names = [str(dict(one.attrs).get("data-name", "")) for one in drawn.over]
        text = "\n".join([drawn.sentence, *filter(None, names)])
        html = f'<div class="nbt-frames nbt-static">{fitting([scene])}<div>{escape(drawn.sentence)}</div></div>'
        return StaticView(html, text, to_svg(scene))


_OVER = ("BOXES", "SCORES", "CLASSES", "TRACK_IDS")


def _plain(array: Any, ndim: int) -> Any:
    """Return an output without its batch dimension, on the host."""
    found = np.asarray(array.cpu() if hasattr(array, "cpu") else array)
    return found[0] if found.ndim > ndim else found


def _colour(found: Mapping[str, Any], at: int) -> str:
    """Return a track's own colour; that of what has no track is the first."""
    colours = series_colours()
    ids = found.get("TRACK_IDS")
    return colours[int(ids[at]) % len(colours)] if ids is not None else colours[0]


def _box(box: Sequence[float], name: str, colour: str, width: int) -> tuple[Shape, ...]:
    """Draw a box with its name above it, in sizes for a frame of this width."""
    x, y, right, bottom = box
    size = max(float(SMALL), width / 45)
    outline = rect(
        x, y, max(0.0, right - x), max(0.0, bottom - y), rx=None, fill="none",
        stroke=colour, stroke_width=max(1.5, width / 300), data_name=name or "box",
    )  # fmt: skip
    if not name:
        return (outline,)
    above, wide = max(0.0, y - 1.3 * size), 0.62 * size * (len(name) + 1)
    left = max(0.0, min(x, width - wide))  # a name at the right edge is within the frame
    back = rect(
        left, above, wide, 1.3 * size, rx=None, fill="#111111", fill_opacity=0.85, stroke=colour
    )
    words = shape("text", name, x=left + 0.3 * size, y=above + size, font_size=size, fill="#ffffff")
    return outline, back, words


@signed(SHOW)
def show(
    server: Server, model: str, inputs: Mapping[str, Any], **options: Unpack[ShowSettings]
) -> Shown:
    """Show the frames of a stream live, with the boxes, classes and track ids that come with them.

    Parameters
    ----------
    server : Server
    model : str
        It answers with FRAME, UINT8 [H,W,3], and maybe with BOXES, SCORES, CLASSES and TRACK_IDS.
    inputs : mapping of str to array_like
        Of the one request whose responses are shown.
    **options
        See `ShowSettings`.

    Returns
    -------
    Shown
        ``stop()`` ends the stream; its newest frame stays in the notebook. The page gets ten frames a
        second at most, the newest, and the stream is read as fast as it comes.

    Raises
    ------
    InvalidArgumentError, NotFoundError
        No such model, or one without FRAME.

    Examples
    --------
    >>> view = nt.show(server, "video", {"URL": ["street.mp4"]}, wait=True)  # doctest: +SKIP
    """
    kinds = {"server": SERVER, "model": NAME, "inputs": MAPPING}
    check({"server": server, "model": model, "inputs": inputs}, kinds)
    outputs = [one.name for one in server.config(model).output]
    if "FRAME" not in outputs:
        raise InvalidArgumentError(
            f"model '{model}' has no output FRAME: it has {', '.join(outputs)}",
            hint=nearest("FRAME", outputs) or "FRAME is UINT8 [height, width, 3]",
        )
    view = FramesView(server, model, inputs, options.get("labels") or ())
    try:
        shown = show_live(view)
    except BaseException:
        view.stop()  # its stream runs already
        raise
    if options.get("wait"):
        try:
            view.ended.wait()
        except KeyboardInterrupt:
            pass  # what has come is what there is
        finally:
            shown.stop()
    return shown
