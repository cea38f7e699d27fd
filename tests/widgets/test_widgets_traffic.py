"""The graph of a server that has worked: shares, calls that were seen, totals, and the sentence."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.drawing.numbers import MISSING
from nbtriton.lab.explain.traffic import read_traffic
from nbtriton.widgets.dag import DagView
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.watch import WatchView
from tests.children import run_python
from tests.until import until

ONES = np.ones((1, 4), np.float32)
TENSORS = """input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]"""


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


def refuse(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    if IN[0, 0] < 0:
        raise ValueError("no negative numbers")
    return {"OUT": IN}


class Caller:
    """Asks two models for one batch."""

    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            for name in ("double", "refuse"):
                asked = pb_utils.InferenceRequest(
                    model_name=name, requested_output_names=["OUT"], inputs=[tensor]
                )
                response = asked.exec()
            answers.append(pb_utils.InferenceResponse(response.output_tensors()))
        return answers


def ensemble(*models):
    """Its steps, one after the other."""
    tensors = ["IN", *(f"t{at}" for at in range(1, len(models))), "OUT"]
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{a}" }} '
        f'output_map {{ key: "OUT" value: "{b}" }} }}'
        for model, a, b in zip(models, tensors, tensors[1:], strict=False)
    )
    return f'platform: "ensemble" max_batch_size: 8 {TENSORS} ensemble_scheduling {{ {steps} }}'


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", model=double, name="double")
        server.load("max_batch_size: 8", model=refuse, name="refuse")
        server.load(f'backend: "python" max_batch_size: 8 {TENSORS}', model=Caller, name="caller")
        server.load(ensemble("double", "caller"), name="inner")
        server.load(ensemble("refuse", "inner"), name="outer")
        for _ in range(4):
            server.infer("outer", {"IN": ONES})
        with pytest.raises(nt.TritonError, match="no negative"):
            server.infer("refuse", {"IN": -ONES})
        yield server


def test_shares_are_those_of_the_steps_and_add_up(server):
    found = read_traffic(server, "outer")
    assert set(found.shares) == {"0", "1.0", "1.1"}
    assert 0 < sum(found.shares.values()) <= 1
    assert found.calls == {("caller", "double"): 4, ("caller", "refuse"): 4}
    assert 0 < found.called["double"] < found.shares["1.1"]
    (error,) = found.errors["refuse"]
    assert "no negative numbers" in error


def test_without_calls_only_the_model_and_its_steps_are_read(server):
    whole, own = read_traffic(server, "outer"), read_traffic(server, "outer", calls=False)
    assert replace(own, errors={}) == replace(whole, calls={}, called={}, errors={})
    assert set(read_traffic(server, "inner", calls=False).errors) == {"inner", "double", "caller"}


def test_the_sentence_names_the_step_with_the_largest_share(server):
    found = read_traffic(server, "outer")
    largest = max(found.shares, key=lambda step: found.shares[step])
    name = {"0": "refuse", "1.0": "double", "1.1": "caller"}[largest]
    said = re.match(r"(\w+) is the bottleneck: (\d+)% of the requests' time", found.finding)
    assert said
    assert said[1] == name
    assert int(said[2]) == round(100 * found.shares[largest])
    assert "the last 4 requests took" in found.finding
    assert said[0].split(",")[0] in nt.why(server, "outer").findings[0]


def test_the_cards_of_ensembles_have_the_shares_of_the_graph(server):
    server.load(ensemble("double"), name="unasked")
    watch = WatchView(server, ["outer", "inner", "unasked"], on_hub=Hub(threaded=False))
    drawn = ET.fromstring(watch.static().svg)
    shares = {
        card.get("data-model"): [
            text.text for text in card.iter() if text.get("data-role") == "share-text"
        ]
        for card in drawn.iter()
        if card.get("class") == "nbt-model"
    }
    outer, inner = (read_traffic(server, name).shares for name in ("outer", "inner"))
    # A step that is an ensemble has those of its own steps.
    assert shares["outer"] == [f"{outer['0']:.0%}", f"{outer['1.0'] + outer['1.1']:.0%}"]
    assert shares["inner"] == [f"{share:.0%}" for share in inner.values()]
    assert shares["unasked"] == [MISSING]


def test_the_graph_has_totals_calls_and_errors_in_every_form(server):
    bundle = nt.dag(server, "outer")._repr_mimebundle_()
    for form in (bundle["text/plain"], bundle["text/html"], bundle["image/svg+xml"]):
        assert "is the bottleneck" in form
        assert "4 calls" in form
    for form in ("text/html", "image/svg+xml"):
        assert "no negative numbers" in bundle[form]  # a recent error, in the details
    assert "stroke-dasharray" in bundle["image/svg+xml"]
    # Below the picture each model opens without a script: three steps, and two that one calls.
    assert bundle["text/html"].count("<details>") == 5
    assert "1: 4 \u00d7" in bundle["text/html"]
    assert "<script" not in bundle["text/html"]


def test_without_a_request_it_says_so(server):
    server.load("max_batch_size: 8", model=double, name="idle")
    text = repr(nt.dag(server, "idle"))
    assert "no request to idle yet" in text
    assert "[idle]" in text


def test_an_ensemble_without_a_request_has_no_share_of_what_others_sent_to_its_steps(server):
    server.load("max_batch_size: 8", model=double, name="step")
    server.infer("step", {"IN": ONES})
    server.load(ensemble("step"), name="whole")
    text = repr(nt.dag(server, "whole"))
    assert "no request to whole yet" in text
    assert "%" not in text


def test_a_live_graph_shows_a_call_once_it_was_seen(server):
    server.load(f'backend: "python" max_batch_size: 8 {TENSORS}', model=Caller, name="fresh")
    seconds = iter(range(100))
    view = DagView.of(server, "fresh", on_hub=Hub(threaded=False), clock=lambda: next(seconds))
    assert [node["kind"] for node in view.nodes] == ["model"]
    assert view.finding == "no request to fresh yet"
    server.infer("fresh", {"IN": ONES})

    def seen():
        view.refresh()
        return len(view.nodes) == 3

    assert until(seen)
    assert [node["kind"] for node in view.nodes] == ["model", "called", "called"]
    assert "of a request's time" in view.finding
    share, line, details = view.traffic[0]
    assert 0 < share <= 1
    assert line.startswith(f"{share:.0%}")
    assert ["batch sizes", "1: 1 \u00d7 (mean 1.00)"] in details
    assert "fresh" in view.static().text
    view.close()


@pytest.mark.medium
def test_a_server_without_a_recorder_has_a_graph_without_shares():
    run_python(
        "-c",
        "import nbtriton as nt\n"
        'def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:\n    return {"OUT": IN}\n'
        "with nt.Server(gpus=(), recorder=False) as server:\n"
        "    server.load('', model=double, name='double')\n"
        "    assert 'the recorder of this server is off' in repr(nt.dag(server, 'double'))\n",
        check=True,
    )
