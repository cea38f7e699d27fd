"""Verified export: the same requests to our server and to the real tritonserver."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InternalError, NotFoundError, UnavailableError
from nbtriton.extensions.verify import (
    Checked,
    Difference,
    Executable,
    Verification,
    find_server,
    verify_repository,
)
from nbtriton.serving.clients.base import StreamResponse
from nbtriton.serving.clients.http import HttpClient
from tests.repository.models import BROKEN, MODEL, add, ensemble, times
from tests.repository.notebook import Cells

# -- finding the server --------------------------------------------------------------------------


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("NBTRITON_REFERENCE", str(tmp_path / "reference"))
    return tmp_path


def test_no_server_is_found(nowhere):
    with pytest.raises(UnavailableError, match="no tritonserver was found") as caught:
        find_server()
    assert 'reference="install"' in caught.value.hint
    with pytest.raises(NotFoundError, match="neither a tritonserver executable nor"):
        find_server(nowhere / "absent")


def test_the_server_on_the_path_comes_first(nowhere):
    program = nowhere / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_server() == Executable(program)
    assert find_server(str(program)) == Executable(program)


def test_an_installed_reference_is_found(nowhere):
    (nowhere / "reference").mkdir()
    (nowhere / "reference" / "ready.json").write_text("{}")
    assert find_server().directory == nowhere / "reference"
    assert find_server(nowhere / "reference").directory == nowhere / "reference"


def test_an_export_that_cannot_be_verified_writes_nothing(nowhere):
    with nt.Server(gpus=()) as server, pytest.raises(UnavailableError):
        server.export(nowhere / "out", verify=True)
    assert not (nowhere / "out").exists()


# -- the table ------------------------------------------------------------------------------------


def test_a_verification_shows_itself(tmp_path):
    models = (
        Checked("a", "equal", 6, 0.0, 0.0),
        Checked("b", "different", 6, 0.5, 0.1, "request 2: output 'OUT' differs by up to 0.5"),
        Checked("c", "not run", note="the reference has no onnxruntime backend"),
    )
    found = Verification(tmp_path, "triton 2.51.0", models)
    assert not found.ok
    assert list(found.frame["verdict"]) == ["equal", "different", "not run"]
    for form in (repr(found), *found._repr_mimebundle_().values()):
        for word in ("triton 2.51.0", "different", "no onnxruntime backend"):
            assert word in form
    assert Verification(tmp_path, "triton 2.51.0", (models[0], models[2])).ok


# -- the real server -----------------------------------------------------------------------------

DOUBLE = """
def double(IN: "FP32[4]", TEXT: "BYTES[1]") -> {"OUT": "FP32[4]", "LENGTH": "INT64[1]", "SAME": "BYTES[1]"}:
    return {"OUT": IN * FACTOR, "LENGTH": np.vectorize(len)(TEXT), "SAME": TEXT}
"""
COUNTER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()
            key = request.correlation_id()
            self.sums[key] = value + (0 if start.any() else self.sums[key])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.sums[key])]))
        return responses
"""
SEQUENCE = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
sequence_batching { max_sequence_idle_microseconds: 600000000 control_input { name: "START" control {
  kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }
"""


@pytest.fixture
def server():
    with nt.Server(gpus=()) as server:
        yield server


def verdicts(found: Verification) -> dict[str, str]:
    return {model.name: model.verdict for model in found.models}


@pytest.mark.reference
@pytest.mark.slow
def test_exported_models_give_equal_responses(reference, server, tmp_path):
    cells = Cells()
    cells("import numpy as np\nFACTOR = 3")
    server.load("max_batch_size: 8 dynamic_batching {}", cells(DOUBLE), name="double")
    cells(MODEL)
    model = cells.names["TritonPythonModel"]
    model.__nbtriton_source__ = MODEL
    server.load(None, model, name="m")
    server.load(ensemble("m", into="X", out="Y"), name="e")
    cells(COUNTER)
    counter = cells.names["TritonPythonModel"]
    counter.__nbtriton_source__ = COUNTER
    server.load(SEQUENCE, counter, name="counter")
    said: list[str] = []
    found = server.export(
        tmp_path, carry=["FACTOR"], verify=True, reference=reference, on_progress=said.append
    )
    assert verdicts(found) == dict.fromkeys(("double", "m", "e", "counter"), "equal"), found
    assert found.ok
    assert found.reference == "triton 2.51.0"
    assert said[0] == "starting the real server"
    assert "0 of 4 models loaded by the real server" in said
    assert said[-2:] == ["4 of 4 models compared", "ending the real server"]
    assert any("2 of 4 models compared, about" in line for line in said)
    assert all(model.requests == 6 and not model.note for model in found.models), found


@pytest.mark.reference
@pytest.mark.slow
def test_differences_are_found_and_named(reference, server, tmp_path):
    """The files differ from the models of the server that is compared with them."""
    add(
        tmp_path,
        "close",
        source=times(1)
        .replace("self.factor *", "np.float32(1.000001) *")
        .replace("import triton", "import numpy as np\nimport triton"),
    )
    add(tmp_path, "far", source=times(2))
    add(tmp_path, "broken", source=BROKEN)
    add(tmp_path, "raises", source=MODEL.replace("values =", "1 / 0; values ="))
    add(
        tmp_path,
        "dtype",
        source=MODEL.replace("self.factor * v", "v[:, :2]").replace(
            '"dims": [4]})\n        return', '"dims": [-1]})\n        return'
        ),
    )
    add(
        tmp_path,
        "onnx",
        source=None,
        config='backend: "onnxruntime" input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }',
    )
    for name in ("close", "far", "broken", "raises", "onnx"):
        server.load(None, add(tmp_path / "ours", name) / "1" / "model.py", name=name)
    server.load(None, tmp_path / "dtype" / "1" / "model.py", name="dtype")
    shutil.rmtree(tmp_path / "ours")
    (tmp_path / "far" / "1" / "model.py").write_text(times(2))
    requests = {"far": [{"IN": np.ones((1, 4), np.float32)}] * 2}
    found = verify_repository(
        tmp_path, server=server, models=["close", "far", "broken", "raises", "dtype", "onnx"],
        requests=requests, reference=reference,
    )  # fmt: skip
    said = {model.name: model for model in found.models}
    assert verdicts(found) == {
        "close": "close", "far": "different", "broken": "failed", "raises": "different",
        "dtype": "equal", "onnx": "not run",
    }, found  # fmt: skip
    assert (said["far"].requests, said["far"].max_abs) == (2, 1.0)
    assert said["far"].note.startswith("request 1: output 'OUT' differs by up to 1")
    assert 0 < said["close"].max_rel < 1e-5
    assert "no luck" in said["broken"].note
    assert "ZeroDivisionError" in said["raises"].note
    assert said["onnx"].note == (
        "the reference has no onnxruntime backend; it accepts the configuration"
    )
    assert not found.ok


@pytest.mark.reference
@pytest.mark.slow
def test_a_repository_alone_and_modules_that_the_reference_has_no_backend_for(
    reference, server, tmp_path
):
    import torch

    class Net(torch.nn.Module):
        def forward(self, IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: N803, F821, UP037
            return IN * 2

    server.load("max_batch_size: 8", Net, name="net")
    server.load(ensemble("net", into="X", out="Y"), name="e")
    server.export(tmp_path)
    without = verify_repository(tmp_path, reference=reference, stand_in=False, models=["net"])
    assert verdicts(without) == {"net": "not run"}
    found = verify_repository(tmp_path, reference=reference)
    assert verdicts(found) == {"e": "equal", "net": "equal"}, found
    assert "python backend" in found.models[1].note
    assert parse_backend(tmp_path / "net") == "pytorch"  # only the reference's copy was changed


# n responses; the last one final, or a bare flag behind them; below zero an error and one more
STREAM = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            if count < 0:
                error = pb_utils.TritonError("below zero")
                sender.send(pb_utils.InferenceResponse(error=error))
                count = 1
            for index in range(count):
                tensor = pb_utils.Tensor("OUT", np.array([[index]], np.int32) + MORE)
                last = count == 3 and index == 2
                sender.send(pb_utils.InferenceResponse([tensor]), final if last else 0)
            if count != 3:
                sender.send(flags=final)
"""
STREAMING = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
"""
CALLING = """
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
STRING_IDS = """
sequence_batching { max_sequence_idle_microseconds: 600000000 control_input { name: "ID" control {
  kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }
"""
CALLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        out = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="m", requested_output_names=["OUT"], inputs=request.inputs())
            answer = call.exec()
            out.append(pb_utils.InferenceResponse(answer.output_tensors(), answer.error()))
        return out
"""
THROUGH = """
platform: "ensemble" max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling { step { model_name: "%s" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }
"""


@pytest.mark.reference
@pytest.mark.slow
def test_streams_and_sequences_are_compared(reference, server, tmp_path):
    add(tmp_path, "stream", source=STREAM.replace(" + MORE", ""), config=STREAMING)
    add(
        tmp_path,
        "long",
        source=STREAM.replace("range(count)", "range(count + 1)").replace(" + MORE", ""),
        config=STREAMING,
    )
    add(tmp_path, "changed", source=STREAM.replace("MORE", "7"), config=STREAMING)
    add(tmp_path, "named", source=STREAM.replace(" + MORE", ""), config=STREAMING + STRING_IDS)
    add(tmp_path, "counter", source=COUNTER, config=SEQUENCE)
    add(tmp_path, "m")
    add(tmp_path, "calls", source=CALLS, config=CALLING)
    add(tmp_path, "e_stream", source=None, config=THROUGH % "stream")
    add(tmp_path, "e_counter", source=None, config=THROUGH % "counter")
    server.load_repository(tmp_path)
    for name in ("long", "changed"):  # what the reference gets differs from what is loaded here
        add(tmp_path, name, source=STREAM.replace(" + MORE", ""), config=STREAMING)
    streamed = [{"IN": np.array([[n]], np.int32)} for n in (2, 0, 3, -1)]
    found = verify_repository(
        tmp_path, server=server, reference=reference,
        requests=dict.fromkeys(("stream", "long", "changed", "e_stream"), streamed),
    )  # fmt: skip
    said = {model.name: model for model in found.models}
    assert verdicts(found) == {
        "stream": "equal", "long": "different", "changed": "different", "named": "equal",
        "calls": "equal", "m": "equal", "counter": "equal", "e_stream": "equal", "e_counter": "equal",
    }, found  # fmt: skip
    # 2 + 0 + 3 + (an error and 1)
    assert (said["stream"].requests, said["stream"].responses) == (4, 7)
    assert said["counter"].responses is None
    assert said["named"].requests == 6
    assert "output 'OUT' differs" in said["changed"].note
    assert said["long"].note.startswith("request 1, response 3:"), said["long"]
    assert " 7 " in repr(found)


@pytest.mark.reference
@pytest.mark.slow
def test_a_verdict_says_no_more_than_was_compared(reference, server, tmp_path):
    add(tmp_path, "unasked")
    add(tmp_path, "refused")
    server.load_repository(tmp_path)
    wrong = {"IN": np.ones((1, 3), np.float32)}
    found = verify_repository(
        tmp_path, server=server, reference=reference, requests={"unasked": [], "refused": [wrong]}
    )
    said = {model.name: model for model in found.models}
    assert (said["unasked"].verdict, said["unasked"].requests) == ("not run", 0)
    assert (said["refused"].verdict, said["refused"].requests) == ("equal", 1)
    assert said["unasked"].note == said["refused"].note == "no outputs were compared"


def test_a_difference_from_zero_is_infinite_as_a_part_of_it():
    found = Difference(1e-4, 1e-6)
    found.compare("it", {"OUT": np.float32([1e-9])}, {"OUT": np.float32([0])})
    assert (found.verdict, found.max_rel) == ("close", np.inf)


def test_streams_that_differ_in_length_or_end():
    one = {"OUT": np.ones(1, np.float32)}
    found = Difference(1e-4, 1e-6)
    found.compare_streams(
        "request 1",
        [StreamResponse(one), StreamResponse({}, final=True)],
        [StreamResponse(one, final=True)],
    )
    assert found.first == "request 1, response 1: only the reference's is final"
    found = Difference(1e-4, 1e-6)
    found.compare_streams(
        "r", [StreamResponse(one), StreamResponse(one, final=True)], [StreamResponse(one)]
    )
    assert (found.verdict, found.first) == ("different", "r: 2 responses and 1")
    found = Difference(1e-4, 1e-6)
    found.compare_streams(
        "r",
        [StreamResponse({}, InternalError("so"), True)],
        [StreamResponse({}, InternalError("thus"), True)],
    )
    assert "nbtriton says 'so', reference says 'thus'" in found.first
    found = Difference(1e-4, 1e-6)
    found.compare_streams("r", [StreamResponse(one, final=True)], [StreamResponse(one, final=True)])
    assert (found.verdict, found.max_abs) == ("equal", 0.0)


def parse_backend(folder) -> str:
    from nbtriton.model.config import parse_pbtxt

    return parse_pbtxt((folder / "config.pbtxt").read_text()).backend


@pytest.mark.reference
@pytest.mark.slow
def test_the_control_and_the_real_server_report_the_same(reference, server, tmp_path):
    """Loads, unloads, errors and the index, step by step on both."""
    roots = [tmp_path / "real", tmp_path / "ours"]
    for root in roots:
        _write_odd_repository(root)
    control = server.load_repository(roots[1], control_mode="explicit")
    python = reference.shared_python(tmp_path / "python")
    with reference.server(roots[0], "--model-control-mode=explicit", python=python) as real:
        client = HttpClient(real.http_url, 250)
        steps = [
            *(("load", name, None) for name in _ODD),
            ("load", "good", {"config": json.dumps({"backend": "python", "max_batch_size": "8"})}),
            ("load", "good", {"config": "{bad"}),
            ("load", "good", {"config": '{"nope": 1}'}),
            ("load", "good", {"config": 5}),
            ("load", "good", {"foo": "x"}),
            ("load", "fresh", {"file:1/model.py": _base64(MODEL)}),
            (
                "load",
                "fresh",
                {"file:1/model.py": _base64(MODEL), "config": '{"backend": "python"}'},
            ),
            ("load", "fresh", {"file:../x": _base64(MODEL), "config": '{"backend": "python"}'}),
            ("load", "fresh", None),
        ]
        for verb, name, parameters in steps:
            said = [_ask(side, verb, name, parameters) for side in (client, control)]
            said[1] = said[1].replace(str(roots[1]), str(roots[0]))
            assert said[0] == said[1], (verb, name, parameters)
        assert client.index() == _index(control, *roots)
        # The missing models come: the ensembles over them load with them.
        for root in roots:
            add(root, "bad")
            add(root, "absent")
        for name in ("bad", "absent"):
            assert _ask(client, "load", name, None) == _ask(control, "load", name, None) == "OK"
        assert client.index() == _index(control, *roots)
        ready = {entry["name"] for entry in control.index(ready=True)}
        assert {"bad", "e_bad", "e_e_bad", "e_absent"} <= ready


def _index(control, theirs, ours) -> list[dict[str, str]]:
    """Our index with their paths.

    Triton forgets a model of which its policy wants no version; we list it by name.
    """
    found = json.loads(json.dumps(control.index()).replace(str(ours), str(theirs)))
    return [entry for entry in found if entry["name"] != "spec"]


_ODD = (
    "bad", "e_bad", "e_e_bad", "syntax", "e_syntax", "e_absent", "e_v", "nothing", "negative",
    "spec", "half", "multi", "circle1", "plan", "missing", "e_good", "good",
)  # fmt: skip


def _write_odd_repository(root) -> None:
    add(root, "good")
    add(root, "bad", source=BROKEN)
    add(root, "syntax", config="max_batch_sise: 8")
    add(root, "negative", config="max_batch_size: -1")
    add(root, "nothing", source=None)
    add(root, "multi", config="version_policy { all {} }", versions=("1", "3", "02", "x"))
    half = add(root, "half", config="version_policy { all {} }", versions=("1", "2"))
    (half / "2" / "model.py").write_text(BROKEN)
    add(root, "spec", config="version_policy { specific { versions: 9 } }")
    for name, member, version in (
        ("e_good", "good", -1), ("e_bad", "bad", -1), ("e_syntax", "syntax", -1),
        ("e_absent", "absent", -1), ("e_v", "good", 7), ("e_e_bad", "e_bad", -1),
        ("circle1", "circle2", -1), ("circle2", "circle1", -1),
    ):  # fmt: skip
        add(root, name, config=ensemble(member, version=version), source=None)
    add(root, "plan", config='backend: "tensorrt"', source=None)


def _base64(text: str) -> str:
    import base64

    return base64.b64encode(text.encode()).decode()


def _ask(side, verb: str, name: str, parameters) -> str:
    try:
        getattr(side, verb)(name, parameters)
    except nt.TritonError as error:
        return f"{error.status}: {error.message}"
    return "OK"


def test_the_client_reports_an_unreachable_server():
    with pytest.raises(UnavailableError, match="does not answer"):
        HttpClient("127.0.0.1:9", timeout_s=5).describe()
