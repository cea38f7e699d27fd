"""``%%triton_config``, ``%%triton_ensemble``, ``%triton_unload``."""

from __future__ import annotations

import numpy as np
import pytest

from nbtriton.common.errors import ConfigError, LoadError, NotFoundError, TritonError
from nbtriton.model.config import stand_in_reason
from nbtriton.serving.server import server
from tests.magics.cells import DOUBLE
from tests.repository.models import add

PBTXT = """\
max_batch_size: 8
input [ { name: "IN", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "OUT", data_type: TYPE_FP32, dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "double", model_version: -1
    input_map { key: "IN", value: "IN" } output_map { key: "OUT", value: "half" } },
  { model_name: "double", model_version: -1
    input_map { key: "IN", value: "half" } output_map { key: "OUT", value: "OUT" } }
] }
"""
LINES = "half = double(IN=IN)\nOUT = double(IN=half)\n"


def ones(rows: int = 1, width: int = 4, dtype: type = np.float32) -> np.ndarray:
    return np.ones((rows, width), dtype)


def test_a_configuration_is_replaced_and_the_code_stays(doubled):
    cell = "%%triton_config double -o handle\nmax_batch_size: 16\ndynamic_batching { }\n"
    doubled.ok(cell)
    assert doubled.names["handle"].config.max_batch_size == 16
    assert doubled.names["handle"].config.HasField("dynamic_batching")
    assert server().infer("double", {"IN": ones(16)})["OUT"].shape == (16, 4)


def test_L16_other_instances_are_no_new_model(doubled):
    server().infer("double", {"IN": ones()})
    doubled.ok("%%triton_config double\nmax_batch_size: 8\ninstance_group { count: 3 }\n")
    (model,) = server().models()
    assert (len(model.instances), model.success_count) == (3, 1)
    doubled.ok("%%triton_config double\nmax_batch_size: 4\ninstance_group { count: 3 }\n")
    (model,) = server().models()
    assert (len(model.instances), model.success_count) == (3, 0)


VERSIONED = """\
%%triton_model m --max-batch-size 8 --version {0} --config "version_policy {{ all {{ }} }}"
def m(IN: "FP32[4]") -> {{"OUT": "FP32[4]"}}:
    return {{"OUT": IN * {0}}}
"""


def versions(name: str) -> dict[int, tuple[int, float]]:
    """Return what each version allows, and its answer to ones."""
    return {
        model.version: (
            server().config(name, model.version).max_batch_size,
            float(server().infer(name, {"IN": ones()}, version=model.version)["OUT"][0, 0]),
        )
        for model in server().models()
        if model.name == name
    }


def test_L17_a_configuration_is_that_of_all_versions(notebook):
    for version in (1, 2, 3):
        notebook.ok(VERSIONED.format(version))
    notebook.ok("%%triton_config m\nmax_batch_size: 4\n")
    assert versions("m") == {1: (4, 1.0), 2: (4, 2.0), 3: (4, 3.0)}
    notebook.ok("%%triton_config m\nversion_policy { latest { num_versions: 2 } }\n")
    assert versions("m") == {2: (4, 2.0), 3: (4, 3.0)}
    # The code of a cell went with its version.
    ran = notebook.ok("%%triton_config m\nversion_policy { specific { versions: [ 1, 3 ] } }\n")
    assert versions("m") == {3: (4, 3.0)}
    assert "m: the version policy wants version 1 too" in ran.out
    notebook.ok(VERSIONED.format(1).replace("{ all { } }", "{ specific { versions: [ 1, 3 ] } }"))
    assert versions("m") == {1: (8, 1.0), 3: (4, 3.0)}
    failed = notebook("%%triton_config m\nversion_policy { specific { versions: 7 } }\n")
    assert isinstance(failed.error, ConfigError)
    assert set(versions("m")) == {1, 3}


@pytest.mark.medium
@pytest.mark.parametrize("control", ["none", "explicit"])
def test_L2_a_version_policy_brings_versions_of_a_repository_back(notebook, tmp_path, control):
    text = 'backend: "python" version_policy { all { } }'
    add(tmp_path, "m", config=text, versions=("1", "2", "3"))
    options = f"--control {control}" + (" --load-model m" if control == "explicit" else "")
    notebook.ok(f"%triton_load {tmp_path} {options}")
    for policy, left in (
        ("latest { num_versions: 2 }", {2, 3}),
        ("specific { versions: [ 1, 3 ] }", {1, 3}),
        ("all { }", {1, 2, 3}),
    ):
        ran = notebook.ok(f"%%triton_config m\nversion_policy {{ {policy} }}\n")
        assert versions("m") == {version: (8, version) for version in left}
        assert "version policy" not in ran.out
    failed = notebook("%%triton_config m\nversion_policy { specific { versions: 7 } }\n")
    assert isinstance(failed.error, LoadError)
    assert set(versions("m")) == {1, 2, 3}
    # A version that a cell defines is no longer the repository's.
    notebook.ok(VERSIONED.format(2))
    assert server().control_of("m") is None


# What the tutorials show, after `%%triton_model double --max-batch-size 8`.
FRAGMENTS = [
    "instance_group [ { count: 2 kind: KIND_CPU } ]",
    "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }",
    "version_policy: { all { } }",
    "optimization { cuda { graphs: true } }",
    "response_cache { enable: true }",
    'parameters { key: "P" value: { string_value: "v" } }',
    '{"instance_group": [{"count": 2, "kind": "KIND_CPU"}]}',
]


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_fragment_keeps_the_rest(doubled, fragment):
    doubled.ok(f"%%triton_config double\n{fragment}\n")
    assert server().config("double").max_batch_size == 8
    assert server().infer("double", {"IN": ones(8)})["OUT"].shape == (8, 4)


def test_a_whole_configuration_replaces(doubled):
    doubled.ok('%%triton_config double\nname: "double"\ndynamic_batching { }\nmax_batch_size: 2\n')
    ran = doubled.ok('%%triton_config double\nname: "double"\nmax_batch_size: 4\n')
    assert "no longer set, as this is a whole configuration: dynamic_batching" in ran.out
    config = server().config("double")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (4, False)


def test_a_fragment_that_excludes_another_field_names_it(doubled):
    assert "no longer" not in doubled.ok("%%triton_config double\ndynamic_batching { }\n").out
    ran = doubled.ok("%%triton_config double\nsequence_batching { oldest { } }\n")
    assert "no longer set, as this scheduler takes its place: dynamic_batching" in ran.out
    assert server().config("double").max_batch_size == 8
    assert "no longer" not in doubled.ok("%%triton_config double\nmax_batch_size: 0\n").out


def test_running_the_models_cell_again_names_what_it_drops(doubled):
    cell = f"%%triton_model double --max-batch-size 8\n{DOUBLE}"
    assert doubled.ok(cell).out.startswith("Out[")
    doubled.ok("%%triton_config double\ndynamic_batching { }\n")
    assert "replaces what %%triton_config had set: dynamic_batching." in doubled.ok(cell).out
    assert not server().config("double").HasField("dynamic_batching")
    assert "replaces" not in doubled.ok(cell).out


def test_an_unknown_field_points_into_the_cell(doubled):
    ran = doubled("%%triton_config double\nmax_batch_size: 16\n  dynamic_baching { }\n")
    assert isinstance(ran.error, ConfigError)
    lines = ran.out.splitlines()
    assert lines[0] == "    3   dynamic_baching { }"
    assert lines[1] == "        ^"
    cell = doubled.shell.execution_count - 1
    assert f"failed to read text proto from Cell In[{cell}]: 3:19: " in lines[2]
    assert lines[3] == "  hint: did you mean 'dynamic_batching'?"
    assert server().config("double").max_batch_size == 8


def test_a_body_is_pure_text(doubled):
    doubled.ok("size = 4")
    ran = doubled("%%triton_config double\nmax_batch_size: {size}\n")
    assert isinstance(ran.error, ConfigError)


def test_pbtxt_and_dataflow_lines_give_the_same_configuration(doubled):
    configs = []
    for body in (PBTXT, LINES):
        doubled.ok(f"%%triton_ensemble four\n{body}")
        configs.append(server().config("four"))
        assert server().infer("four", {"IN": ones()})["OUT"].tolist() == [[4.0] * 4]
    assert configs[0] == configs[1]


def test_a_comment_does_not_make_lines_pbtxt(doubled):
    doubled.ok(f"%%triton_ensemble four\n# like ensemble_scheduling, but shorter\n{LINES}")


def test_ensemble_options(doubled):
    doubled.ok(f"%%triton_ensemble four --output half --max-batch-size 2\n{LINES}")
    config = server().config("four")
    assert [tensor.name for tensor in config.output] == ["half", "OUT"]
    assert config.max_batch_size == 2


BAD_ENSEMBLES = {
    "missing model": (PBTXT.replace('"double"', '"dubble"', 1), "dubble"),
    "missing model, line": (LINES.replace("double", "dubble", 1), "did you mean 'double'?"),
    "unmapped input": (
        PBTXT.replace('input_map { key: "IN", value: "half" }', ""),
        "input",
    ),
    "unknown input": (PBTXT.replace('key: "IN", value: "half"', 'key: "X", value: "half"'), "X"),
    "mapped twice": (PBTXT.replace('value: "OUT" } }', 'value: "half" } }'), "half"),
    "cycle": (
        PBTXT.replace('key: "IN", value: "IN"', 'key: "IN", value: "OUT"'),
        "four",
    ),
    "batch too large": (PBTXT.replace("size: 8", "size: 9"), "max_batch_size"),
    "unknown field": (PBTXT.replace("step [", "stepp ["), "stepp"),
    "never closed": (PBTXT.rstrip()[:-1], "is never closed: add '}'"),
    "head alone": (
        'name: "four"\nplatform: "ensemble"\nmax_batch_size: 8\n',
        "add ensemble_scheduling",
    ),
    "a comma before the end": ("input [ { name: 'IN' }, ]\n", "remove the comma before ']'"),
    "not a line": ("half = double(IN + 1)\n", "by name"),
    "wrong number of outputs": ("A, B = double(IN=IN)\n", "1 output"),
}


@pytest.mark.parametrize("case", BAD_ENSEMBLES)
def test_a_bad_ensemble_is_one_sentence_and_changes_nothing(doubled, case):
    doubled.ok(f"%%triton_ensemble four\n{LINES}")
    body, expected = BAD_ENSEMBLES[case]
    ran = doubled(f"%%triton_ensemble four\n{body}")
    assert isinstance(ran.error, TritonError)
    assert expected in ran.out
    assert "[INVALID_ARG]: " in ran.out
    assert "Traceback" not in ran.text
    assert server().infer("four", {"IN": ones()})["OUT"].tolist() == [[4.0] * 4]


BAD_REQUESTS = {
    "shape": ("IN=np.ones((1, 5), np.float32)", "INVALID_ARG", "Expected [-1,4], got [1,5]"),
    "batch": ("IN=np.ones((9, 4), np.float32)", "INVALID_ARG", "must be <= 8"),
    "dtype": ("IN=np.ones((1, 4))", "INVALID_ARG", "'FP64', but model 'double' expects 'FP32'"),
    "name": ("INN=np.ones((1, 4), np.float32)", "INVALID_ARG", "unexpected inference input 'INN'"),
    "missing": ("", "INVALID_ARG", "IN"),
    "output": (
        "--outputs UOT IN=np.ones((1, 4), np.float32)", "INVALID_ARG", "unexpected inference output"
    ),
    "version": ("--version 7 IN=np.ones((1, 4), np.float32)", "NOT_FOUND", "version 7"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_one_sentence_with_tritons_status(doubled, case):
    line, status, expected = BAD_REQUESTS[case]
    ran = doubled(f"%triton_infer double {line}")
    assert isinstance(ran.error, TritonError)
    assert f"[{status}]: " in ran.out
    assert expected in ran.out
    assert "Traceback" not in ran.text
    assert server().infer("double", {"IN": ones()})["OUT"].tolist() == [[2.0] * 4]


def test_unload(doubled):
    doubled.ok(f"%%triton_model other\n{DOUBLE}")
    doubled.ok("%triton_unload double other")
    assert server().engine.inspection.model_names() == ()
    ran = doubled("%triton_infer double IN=np.ones((1, 4), np.float32)")
    assert isinstance(ran.error, NotFoundError)


def test_unload_with_dependents(doubled):
    doubled.ok(f"%%triton_ensemble four\n{LINES}")
    doubled.ok("%triton_unload --dependents four")
    assert server().engine.inspection.model_names() == ()


@pytest.mark.parametrize(
    "magic", ["%triton_unload", "%triton_status", "%triton_dag", "%triton_watch"]
)
def test_an_unknown_model_has_a_hint(doubled, magic):
    ran = doubled(f"{magic} dubble")
    assert isinstance(ran.error, NotFoundError)
    assert "Request for unknown model: 'dubble' is not found" in ran.out
    assert "did you mean 'double'?" in ran.out
    assert server().engine.inspection.model_names() == ("double",)


def test_where_no_model_is_loaded_the_hint_says_how_to_load_one(notebook):
    ran = notebook("%%triton_config transformer\nmax_batch_size: 8\n")
    assert isinstance(ran.error, NotFoundError)
    assert "%%triton_model, %%triton_ensemble and %triton_load load models" in ran.out


def test_a_cell_says_of_what_has_no_effect_its_own_fields(doubled):
    fields = "cc_model_filenames { key: '7.5' value: 'm' } instance_group { host_policy: 'p' }"
    said = doubled.ok(f"%%triton_config double\n{fields}\n").text
    assert said.count("has no effect here") == 2
    said = doubled.ok("%%triton_config double\nmax_batch_size: 4\n").text
    assert "has no effect here" not in said
    said = doubled.ok("%%triton_config double\ninstance_group { host_policy: 'q' }\n").text
    assert said.count("has no effect here") == 1


def test_options_are_for_models_as_they_are_loaded(doubled):
    doubled.ok("%triton_server --gpus simulated:1")
    doubled.ok("%%triton_config double\ninstance_group { kind: KIND_GPU }\n")
    ran = doubled("%triton_server --gpus none")
    assert "load a changed configuration first" in ran.out


def test_a_cell_says_what_has_no_effect_each_time_it_runs(doubled):
    cell = "%%triton_config double\ninstance_group [ { kind: KIND_CPU host_policy: 'p' } ]\n"
    for _ in range(2):
        ran = doubled.ok(cell)
        (line,) = [text for text in ran.text.splitlines() if "no effect" in text]
        assert line.startswith("double: instance_group[0].host_policy has no effect here: ")
    assert "no effect" not in doubled.ok("%triton_infer double IN=[[1, 2, 3, 4]]").text
    frame = doubled.ok("%triton_status double").value
    assert frame["ignored"].tolist() == ["instance_group[0].host_policy"]
    doubled.ok("%%triton_config double\ninstance_group [ { kind: KIND_CPU } ]\n")
    assert "ignored" not in doubled.ok("%triton_status double").value


def test_a_configuration_alone_loads_a_stand_in_where_these_are_asked_for(notebook):
    cell = (
        '%%triton_config plan\nbackend: "tensorrt" max_batch_size: 8\n'
        'input { name: "IN" data_type: TYPE_FP32 dims: 4 }\n'
        'output { name: "OUT" data_type: TYPE_FP32 dims: 2 }\n'
    )
    assert "%triton_server --stand-in on" in notebook(cell).error.hint
    notebook.ok("%triton_server --stand-in on")
    notebook.ok(cell)
    assert "no backend 'tensorrt'" in stand_in_reason(server().config("plan"))
    # From now on it is a loaded model, of which a fragment changes what it names.
    notebook.ok("%%triton_config plan\nmax_batch_size: 4\n")
    assert server().config("plan").max_batch_size == 4
    assert server().infer("plan", {"IN": ones(3)})["OUT"].shape == (3, 2)
