"""The view of a stream of frames: the newest is sent, what was found is drawn over it, and it stays in the file."""

from __future__ import annotations

import base64
import io
import re
import threading

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import InvalidArgumentError, NotFoundError
from nbtriton.widgets.publisher import Hub
from tests.until import until

pytest.importorskip("PIL", reason="Pillow is not installed")

from nbtriton.extensions.show.view import FramesView, _box, show

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [
  { name: "FRAME" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] },
  { name: "BOXES" data_type: TYPE_FP32 dims: [ -1, 4 ] },
  { name: "CLASSES" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "TRACK_IDS" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "INDEX" data_type: TYPE_INT64 dims: [ 1 ] }
]
"""


def street():
    """A model that answers with frames; the last but one waits until it may come."""

    class TritonPythonModel:
        go = threading.Event()
        waits = threading.Event()
        cancelled = threading.Event()

        def execute(self, requests):
            for request in requests:
                count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
                sender = request.get_response_sender()
                threading.Thread(target=self.run, args=(sender, count), daemon=True).start()

        def run(self, sender, count):
            for number in range(count):
                if number == 2:
                    self.waits.set()
                    while not self.go.wait(0.01):
                        if sender.is_cancelled():
                            self.cancelled.set()
                            self.go.set()
                frame = np.full((60, 100, 3), 40 * number, np.uint8)
                found = {
                    "FRAME": frame,
                    "BOXES": np.array([[10, 20, 40, 50], [60, 5, 90, 30]], np.float32),
                    "CLASSES": np.array([0, 1], np.int32),
                    "TRACK_IDS": np.array([number + 1, 0]),
                    "INDEX": np.array([number]),
                }
                tensors = [pb_utils.Tensor(*one) for one in found.items()]
                sender.send(pb_utils.InferenceResponse(tensors))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    return TritonPythonModel


@pytest.fixture
def model():
    return street()


@pytest.fixture
def server(model):
    with nt.Server(gpus=()) as server:
        server.load(CONFIG, model, name="street")
        yield server
        model.go.set()


@pytest.fixture
def view(server, model):
    model.go.set()
    found = FramesView(server, "street", {"COUNT": [5]}, ["car", "<b>"], on_hub=Hub(threaded=False))
    assert found.ended.wait(60)
    return found


def picture(jpeg):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(jpeg)))


def test_the_newest_frame_is_sent_with_what_was_found(view):
    view.refresh()
    image = picture(view.frame)
    assert image.shape == (60, 100, 3)
    assert image.mean() == pytest.approx(160, abs=3)
    assert (view.width, view.height) == (100, 60)
    assert view.sentence == "street: frame 4; 2 boxes; ended"
    words = [children[0] for tag, _, children in view.over if tag == "text"]
    assert words == ["car #5", "<b>"]
    outline = next(attrs for tag, attrs, _ in view.over if tag == "rect")
    assert [outline[key] for key in ("x", "y", "width", "height")] == ["10", "20", "30", "30"]


def test_a_name_at_the_right_edge_is_within_the_frame():
    _, plate, _ = _box([290, 5, 310, 30], "car #1 0.70", "#009e73", 320)
    found = dict(plate.attrs)
    assert found["x"] + found["width"] == pytest.approx(320)


def test_a_frame_is_sent_once(view):
    view.refresh()
    assert view._observe() is None


def test_a_wide_frame_is_made_smaller_and_the_boxes_keep_their_places(view):
    wide = dict(view._newest)
    wide["FRAME"] = np.zeros((1000, 2000, 3), np.uint8)
    view._newest = type("Result", (dict,), {"parameters": {}})(wide)
    view.refresh()
    assert picture(view.frame).shape == (400, 800, 3)
    assert (view.width, view.height) == (2000, 1000)


def test_the_static_form_has_the_frame(view):
    static = view.static()
    (data,) = re.findall(r'href="data:image/jpeg;base64,([^"]+)"', static.svg)
    assert picture(base64.b64decode(data)).mean() == pytest.approx(160, abs=3)
    assert "car #5" in static.svg
    assert "<b>" not in static.svg
    assert static.text.splitlines() == ["street: frame 4; 2 boxes; ended", "car #5", "<b>"]


def test_a_stream_that_fails_says_so(server):
    server.load(CONFIG, _failing(), name="failing")
    view = FramesView(server, "failing", {"COUNT": [1]}, on_hub=Hub(threaded=False))
    assert view.ended.wait(60)
    assert view.static().text == "failing: no frame yet: the source broke"


def _failing():
    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                error = pb_utils.InferenceResponse([], pb_utils.TritonError("the source broke"))
                final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                request.get_response_sender().send(error, final)

    return TritonPythonModel


def test_stopping_ends_the_stream(server, model):
    shown = show(server, "street", {"COUNT": [5]})
    assert model.waits.wait(60)  # a request that is cancelled in the queue never begins
    assert until(lambda: shown.view._received)
    shown.stop()
    assert model.cancelled.wait(60)
    assert shown.view.ended.wait(60)
    assert shown.view.static().text.splitlines()[0].endswith("; 2 boxes; ended")


def test_a_stream_that_is_stopped_before_it_begins_is_cancelled(server, model, monkeypatch):
    begin, start = [], threading.Thread.start
    with monkeypatch.context() as late:  # its thread comes to nothing before the view is stopped
        late.setattr(threading.Thread, "start", lambda thread: begin.append(thread))  # noqa: PLW0108 - bound to the thread
        view = FramesView(server, "street", {"COUNT": [5]}, on_hub=Hub(threaded=False))
    sends = view._stream._send

    def stopped_as_it_sends(on_response):
        view.stop()
        return sends(on_response)

    view._stream._send = stopped_as_it_sends
    start(begin[0])
    assert view.ended.wait(60)
    assert until(lambda: not server.in_flight())


def test_waiting_for_the_end(server, model):
    model.go.set()
    shown = show(server, "street", {"COUNT": [4]}, wait=True)
    assert repr(shown).startswith("street: frame 3")


def test_what_cannot_be_shown_is_refused(server):
    with pytest.raises(NotFoundError):
        show(server, "strete", {"COUNT": [1]})
    plain = 'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]'  # fmt: skip
    server.load(plain, lambda IN: {"OUT": IN}, name="plain")  # noqa: N803
    with pytest.raises(InvalidArgumentError, match="has no output FRAME: it has OUT"):
        show(server, "plain", {"IN": [1.0]})
