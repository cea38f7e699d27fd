"""An address in, tracks out: decode, prepare, detect, merge and track, as the ready steps and one model that calls them."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.model.config.dataflow import parse_dataflow

pytest.importorskip("av", reason="PyAV is not installed")
pytest.importorskip("scipy", reason="SciPy is not installed")

from tests.steps.videos import make_video, missing_for_rtsp, serve_rtsp

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

DETECTOR = """
max_batch_size: 4
input { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }
output { name: "BOXES" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "SCORES" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PIPELINE = """
backend: "python" model_transaction_policy { decoupled: true }
input { name: "URL" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "BOXES" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "TRACK_IDS" data_type: TYPE_INT64 dims: [ -1 ] }
"""
DETECT = """
pixels = normalize(IMAGE=IMAGE)
planes = to_chw(IMAGE=pixels)
b, s = detector(IMAGE=planes)
BOXES, SCORES, CLASSES = nms(BOXES=b, SCORES=s)
"""
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START


def brightest(IMAGE):  # noqa: N803
    """One thing: what is brighter than the middle of its image."""
    found = np.zeros((len(IMAGE), 2, 4), np.float32)
    for image, boxes in zip(IMAGE, found, strict=True):
        light = image.mean(axis=0)
        y, x = np.nonzero(light > (light.min() + light.max()) / 2)
        # Twice, and one pixel apart: to be merged.
        boxes[:] = (x.min(), y.min(), x.max() + 1, y.max() + 1)
        boxes[1] += 1
    return {"BOXES": found, "SCORES": np.tile(np.float32([0.9, 0.8]), (len(IMAGE), 1))}


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, flags = request.get_response_sender(), START
            url = pb_utils.get_input_tensor_by_name(request, "URL")
            for answer in ask("video", [url], ["FRAME"]).exec(decoupled=True):
                if not answer.output_tensors():
                    break
                frame = pb_utils.Tensor("IMAGE", answer.output_tensors()[0].as_numpy()[None])
                found = ask("detect", [frame], ["BOXES", "SCORES"]).exec().output_tensors()
                tracks = ask("bytetrack", found, ["TRACK_IDS"], correlation_id=5, flags=flags).exec()  # fmt: skip
                flags = 0
                tensors = [*found, *tracks.output_tensors()]
                plain = [pb_utils.Tensor(one.name(), one.as_numpy()[0]) for one in tensors]
                sender.send(pb_utils.InferenceResponse(plain))
            sender.send(flags=FINAL)


def ask(model, inputs, outputs, **options):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=inputs, requested_output_names=outputs, **options
    )


@pytest.fixture
def server(tmp_path):
    with nt.Server(gpus=()) as server:
        server.load("", nt.step("video", files=tmp_path, frames=25, timeout_s=60), name="video")
        for step in ("normalize", "to_chw", "nms", "bytetrack"):
            server.load("", nt.step(step), name=step)
        server.load(DETECTOR, brightest, name="detector")
        models = {one.name: server.config(one.name) for one in server.models()}
        server.load(parse_dataflow(DETECT, name="detect", models=models), name="detect")
        server.load(PIPELINE, TritonPythonModel, name="street")
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("source", ["file", "camera"])
def test_what_moves_keeps_its_id_from_the_address_to_its_track(server, tmp_path, source):
    if source == "file":
        make_video(tmp_path / "clip.mp4", 25, (48, 96))
        found = list(server.stream("street", {"URL": ["clip.mp4"]}))
        # A bright column of 8 pixels that moves by 2 a frame.
        lefts = [float(one["BOXES"][0, 0]) for one in found]
        assert lefts == pytest.approx([2 * number for number in range(25)], abs=2)
    else:
        if missing := missing_for_rtsp():
            pytest.skip(f"no RTSP server: {missing}")
        with serve_rtsp() as (url, _):
            found = list(server.stream("street", {"URL": [url]}))
    assert [one["TRACK_IDS"].tolist() for one in found] == [[0]] + [[1]] * 24
