"""``nt.doctor``: what is wrong in configurations and repositories, and in models themselves."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import InvalidArgumentError, NotFoundError
from nbtriton.extensions.doctor import instance_findings, waiting_finding
from nbtriton.lab.explain.findings import Settings
from nbtriton.model.config import amend, parse_pbtxt
from nbtriton.runtime.engine.core.snapshot import InterpreterWait
from tests.engine.support import Gate, echo, ensemble_text, gated, streaming

TENSORS = """
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


@pytest.fixture(scope="module", autouse=True)
def pb_utils():
    install_pb_utils()


@pytest.fixture
def planted(pb_utils):
    from tests.explain import planted

    return planted


@pytest.fixture
def server():
    with nt.Server(gpus=()) as running:
        yield running


# -- configurations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "severity", "subject", "text"),
    [
        ("max_batch_size: 0 dynamic_batching { }", "warning", "dynamic_batching", "no two requests share a batch"),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 8 ] }", "hint",
         "dynamic_batching.preferred_batch_size", "no request waits until a preferred size is reached"),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 100 }", "hint",
         "dynamic_batching.preferred_batch_size", "batches leave with 4 rows"),
        ("max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000000 }", "warning",
         "dynamic_batching.max_queue_delay_microseconds", "waits 5 s for others"),
        (("max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 500"
         " default_queue_policy { default_timeout_microseconds: 400 } }"), "warning",
         "dynamic_batching.default_queue_policy.default_timeout_microseconds", "time out after 400 µs"),
        ("max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 4 } }", "warning",
         "dynamic_batching.default_queue_policy.max_queue_size", "never fill a batch of 8"),
        ("max_batch_size: 8 dynamic_batching { preserve_ordering: true } instance_group { count: 1 }", "hint",
         "dynamic_batching.preserve_ordering", "answers in order anyway"),
        ("max_batch_size: 8 sequence_batching { max_sequence_idle_microseconds: 100 }", "warning",
         "sequence_batching.max_sequence_idle_microseconds", "dropped 100 µs after its last request"),
        ("max_batch_size: 8 optimization { cuda { graphs: true } }", "warning", "optimization.cuda",
         "no effect here"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_as_meant(settings, severity, subject, text):
    found = nt.doctor(f'name: "m" backend: "python" {settings} {TENSORS}')
    (finding,) = found.findings
    assert (finding.severity, finding.model, finding.subject) == (severity, "m", subject)
    assert text in finding.text
    assert finding.cause
    assert finding.fix
    assert found.ok


@pytest.mark.parametrize(
    "settings",
    [
        "max_batch_size: 0",
        "max_batch_size: 8",
        "max_batch_size: 8 dynamic_batching { }",
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }",
        "max_batch_size: 8 dynamic_batching { preserve_ordering: true } instance_group { count: 2 }",
        "max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 16 } }",
    ],
)
def test_settings_that_work_are_left_alone(settings):
    found = nt.doctor(f'name: "m" backend: "python" {settings} {TENSORS}')
    assert found.findings == ()
    assert repr(found) == "1 model looked at: nothing wrong"


def test_a_batch_dimension_that_is_written_twice():
    tensors = TENSORS.replace("dims: 4", "dims: [ -1, 3 ]")
    (finding,) = nt.doctor(f'name: "m" backend: "python" max_batch_size: 8 {tensors}').findings
    assert "'IN' has the shape [-1, -1, 3]" in finding.text


def test_errors_are_in_triton_s_words_with_a_fix():
    parse = nt.doctor('name: "m" max_batch: 8')
    assert not parse.ok
    assert "max_batch" in parse.findings[0].text
    assert "max_batch_size" in parse.findings[0].fix
    preferred = nt.doctor(
        f'name: "m" backend: "python" max_batch_size: 4 {TENSORS} dynamic_batching {{ preferred_batch_size: 8 }}'
    )
    assert "dynamic batching preferred size must be <= max batch size" in preferred.findings[0].text
    with pytest.raises(NotFoundError, match="no directory"):
        nt.doctor("nowhere/at/all")
    with pytest.raises(InvalidArgumentError, match="tested where they are loaded"):
        nt.doctor('name: "m"', test=True)


# -- repositories ----------------------------------------------------------------------------------------


def write(folder, name, config, code="class TritonPythonModel:\n    def execute(self, r): ...\n"):
    version = folder / name / "1"
    version.mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(config)
    if code:
        (version / "model.py").write_text(code)


@pytest.mark.medium
def test_a_directory_may_have_a_colon_in_its_name(tmp_path):
    folder = tmp_path / "models: mine" / "m"
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text('backend: "python"')
    found = nt.doctor(str(folder.parent))
    assert found.models == ("m",)
    assert [one.severity for one in found.findings] == ["error"]


def test_a_repository_is_read_without_serving_it(tmp_path):
    good = f'backend: "python" max_batch_size: 8 {TENSORS}'
    write(tmp_path, "so good", good)
    write(tmp_path, "empty", good, code="")
    write(tmp_path, "slow", f"{good} dynamic_batching {{ max_queue_delay_microseconds: 3000000 }}")
    step = ("so good", {"IN": "A"}, {"OUT": "B"})
    text = ensemble_text(step, inputs={"A": "FP32[4]"}, outputs={"B": "FP32[4]"})
    write(tmp_path, "whole", text, code="")
    found = nt.doctor(tmp_path)
    assert found.models == ("empty", "slow", "so good", "whole")
    assert [(f.severity, f.model) for f in found.findings] == [
        ("error", "empty"), ("warning", "slow"), ("hint", "so good"), ("hint", "whole"),
    ]  # fmt: skip
    assert found.findings[2].subject == "names-of-python-models"
    assert "does not exist" in found.findings[0].text
    assert "never share a batch in its step 'so good'" in found.findings[3].text
    assert "%%triton_config 'so good'\n" in found.findings[3].fix
    assert "error: empty: load: " in repr(found)
    shown = found._repr_html_()
    assert shown.count('class="nbt-try"') == 1
    assert "%%triton_config &#x27;so good&#x27;\n" in shown
    assert nt.doctor(tmp_path / "slow").models == ("slow",)
    assert nt.doctor(tmp_path / "slow" / "config.pbtxt").findings[0].severity == "warning"


# -- models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "cell"),
    [
        (
            "dynamic_batching { max_queue_delay_microseconds: 5000000 }",
            "dynamic_batching { max_queue_delay_microseconds: 5000 }  # if milliseconds were meant",
        ),
        (
            "dynamic_batching { default_queue_policy { max_queue_size: 4 } }",
            "dynamic_batching { default_queue_policy { max_queue_size: 16 } }",
        ),
        (
            "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 100 }",
            "dynamic_batching { preferred_batch_size: [ 4, 8 ] }",
        ),
    ],
)
def test_a_loaded_model_s_fix_is_a_cell_that_helps(server, settings, cell):
    server.load(echo(settings), gated(Gate(is_open=True)), name="m")
    (finding,) = nt.doctor(server, "m").findings
    assert finding.fix == f"%%triton_config m\n{cell}"
    config = amend(server.config("m"), finding.fix.partition("\n")[2])
    server.load(config, gated(Gate(is_open=True)), name="m")
    assert nt.doctor(server, "m").findings == ()


def test_all_loaded_models_are_looked_at_and_nothing_is_sent(server):
    same = gated(Gate(is_open=True))
    server.load(echo("dynamic_batching { preferred_batch_size: [ 4, 8 ] }"), same, name="m")
    server.load(echo(), same, name="n")
    found = nt.doctor(server)
    assert found.models == ("m", "n")
    assert [finding.model for finding in found.findings] == ["m"]
    assert nt.doctor(server, "n").findings == ()
    assert server.snapshot().models[0].success_count == 0
    with pytest.raises(NotFoundError, match="'o'"):
        nt.doctor(server, "o")


@pytest.mark.medium
def test_planted_faults_are_found(server, planted):
    assert len(planted.FAULTY) >= 20
    missed = {}
    for name, (model, tests) in planted.FAULTY.items():
        server.load(echo(), model, name="m")
        found = nt.doctor(server, "m", test=True)
        named = {finding.subject for finding in found.findings}
        if found.ok or not named & tests:
            missed[name] = repr(found)
    assert missed == {}


@pytest.mark.medium
def test_good_models_raise_no_alarm(server, planted):
    assert len(planted.GOOD) >= 20
    alarms = {}
    for name, model in planted.GOOD.items():
        server.load(echo("dynamic_batching { }"), model, name="m")
        found = nt.doctor(server, "m", test=True)
        assert found.tested
        if found.findings:
            alarms[name] = repr(found)
    assert alarms == {}


def test_a_test_leaves_nothing_behind(server, planted):
    server.load(
        echo("instance_group { count: 2 kind: KIND_CPU }"), planted.GOOD["double"], name="m"
    )
    nt.doctor(server, "m", test=True)
    assert [model.name for model in server.models()] == ["m"]
    assert server.requests("m") == ()
    assert server.snapshot().models[0].success_count == 0
    assert set(nt.events(server).model) == set()


def test_the_largest_batch_is_tested_where_its_inputs_are_not_too_large(server):
    import triton_python_backend_utils as pb_utils

    class Small:
        def execute(self, requests):
            found = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                if len(x) > 64:
                    raise ValueError("no more than 64")
                found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x * 2)]))
            return found

    server.load(echo("dynamic_batching { }", max_batch_size=128), Small, name="m")
    (finding,) = nt.doctor(server, "m", test=True).findings
    assert "its max_batch_size, 128 rows" in finding.text
    assert "no more than 64" in finding.text
    server.load(echo("dynamic_batching { }", max_batch_size=1 << 30), Small, name="m")
    (finding,) = nt.doctor(server, "m", test=True).findings
    assert finding.severity == "hint"
    assert finding.text.endswith("rows, is too large")


def test_the_models_that_were_tested_are_told(server, planted):
    server.load(echo("dynamic_batching { }"), planted.GOOD["double"], name="m")
    server.load(
        ensemble_text(
            ("m", {"IN": "A"}, {"OUT": "B"}), inputs={"A": "FP32[4]"}, outputs={"B": "FP32[4]"}
        ),
        name="e",
    )
    found = nt.doctor(server, test=True)
    assert found.tested == ("m",)
    assert found.headline == "2 models looked at, 1 of them tested: nothing wrong"
    assert nt.doctor(server, "m", test=True).headline.startswith("1 model looked at and tested: ")
    assert nt.doctor(server, "e", test=True).headline == "1 model looked at: 1 hint"


def test_models_that_cannot_be_tested_say_so(server, tmp_path):
    server.load(echo("sequence_batching { }"), gated(Gate(is_open=True)), name="s")
    (finding,) = nt.doctor(server, "s", test=True).findings
    assert finding.text.startswith("not run: ")
    with pytest.raises(InvalidArgumentError, match="tested where they are loaded") as raised:
        nt.doctor(tmp_path, test=True)
    assert f"server.load_repository({str(tmp_path)!r})" in raised.value.hint


def answering(change):
    """A model that answers with `change` of its input: tensors of any name and type."""
    import triton_python_backend_utils as pb_utils

    class Answering:
        def execute(self, requests):
            found = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                tensors = [pb_utils.Tensor(name, value) for name, value in change(x).items()]
                found.append(pb_utils.InferenceResponse(tensors))
            return found

    return Answering


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x: {"OUTPUT": x}, "output 'OUT' is declared, and missing in a response"),
        (lambda x: {"OUT": x.astype(np.float64)}, "'OUT' is float64, and its configuration says FP32"),
    ],
)  # fmt: skip
def test_outputs_are_those_of_the_configuration(server, change, text):
    server.load(echo(), answering(change), name="m")
    (finding,) = nt.doctor(server, "m", test=True).findings
    assert (finding.severity, finding.subject) == ("error", "outputs")
    assert text in finding.text


DECOUPLED = echo("model_transaction_policy { decoupled: true }")


def test_a_decoupled_model_is_tested_response_by_response(server):
    server.load(DECOUPLED, streaming(), name="m")
    assert nt.doctor(server, "m", test=True).findings == ()
    server.load(DECOUPLED, answering(lambda x: {"OUT": x}), name="m")
    (finding,) = nt.doctor(server, "m", test=True).findings
    assert (finding.severity, finding.subject) == ("error", "runs")
    assert "get_response_sender" in finding.fix

    import triton_python_backend_utils as pb_utils

    class Sends:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                wrong = np.zeros((1, 4), np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", wrong)]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    server.load(DECOUPLED, Sends, name="m")
    (finding,) = nt.doctor(server, "m", test=True).findings
    assert "'OUT' is int32, and its configuration says FP32" in finding.text


@pytest.mark.medium
def test_a_model_that_does_not_answer_ends_the_tests(server):
    gate = Gate()
    seen = []
    server.load(echo(), gated(gate), name="m")

    def on_progress(progress):
        seen.append(progress)

    try:
        found = nt.doctor(server, "m", test=True, duration_s=0.2, observer=on_progress)
    finally:
        gate.open()
    (finding,) = found.findings
    assert (finding.severity, finding.subject) == ("warning", "tests of the model")
    assert "ended after 0.2 s in 'runs'" in finding.text
    assert "duration_s=0.4" in finding.fix
    assert [progress.what for progress in seen] == ["m: runs"]


@pytest.mark.medium
def test_a_model_that_calls_itself_is_told_and_tested_no_further(server):
    import triton_python_backend_utils as pb_utils

    class Calls:
        def execute(self, requests):
            found = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "IN")
                pb_utils.InferenceRequest(
                    model_name="m", requested_output_names=["OUT"], inputs=[x]
                ).exec()
                found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x.as_numpy())]))
            return found

    server.load(echo(), Calls, name="m")
    (finding,) = nt.doctor(server, "m", test=True).findings
    assert (finding.severity, finding.subject) == ("error", "calls")
    assert "calls model 'm' and would wait forever" in finding.text
    assert [model.name for model in server.models()] == ["m"]


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("count: 64 kind: KIND_CPU", "64 instances on 2 cores"),
        ("count: 8 kind: KIND_CPU", ""),
        ("count: 64 kind: KIND_GPU gpus: 0", ""),
    ],
)
def test_many_more_instances_than_cores_are_a_hint(group, said):
    config = parse_pbtxt(f'name: "m" instance_group {{ {group} }}')
    found = list(instance_findings(Settings.of(config), 2))
    assert [one.text.partition(":")[0] for one in found] == [said] * bool(said)
    assert all("instance_group { count: 2 kind: KIND_CPU }" in one.fix for one in found)


def test_instances_that_were_seen_to_wait_for_the_lock_get_processes():
    waited = InterpreterWait(probes=40, waits=20.0)
    found = waiting_finding("m", waited)
    assert "waited for each other's Python code 50% of the time" in found.text
    assert 'key: "INSTANCE_ISOLATION" value { string_value: "process" }' in found.fix


@pytest.mark.medium
def test_a_finding_s_cause_is_not_its_fix(server, planted):
    for model, _ in planted.FAULTY.values():
        server.load(echo(), model, name="m")
        for finding in nt.doctor(server, "m", test=True).findings:
            assert finding.cause != finding.fix


def test_rows_of_the_user_s_own(server):
    import triton_python_backend_utils as pb_utils

    class Picky:
        def execute(self, requests):
            found = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                if (x < 0).any():
                    raise ValueError("negative")
                found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]))
            return found

    server.load(echo(), Picky, name="m")
    failed = nt.doctor(server, "m", test=True)
    assert "it fails on generated inputs" in failed.findings[0].text
    assert "inputs={" in failed.findings[0].fix
    rows = {"IN": np.arange(12, dtype=np.float32).reshape(3, 4)}
    assert nt.doctor(server, "m", test=True, inputs=rows).findings == ()
