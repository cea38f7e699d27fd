"""``nbtriton validate DIR``: a repository checked without serving it, one line a model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nbtriton.common.errors import ConfigError, NotFoundError
from nbtriton.extensions.doctor.validation import read_config, read_repository, validate_repository
from nbtriton.magics.cli import main
from tests.workers.environments import make_environment, pack

MODEL = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
        return config

    def initialize(self, args):
        raise RuntimeError("a validation serves nothing")
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input {{ name: "X" data_type: TYPE_FP32 dims: 4 }}
output {{ name: "Y" data_type: TYPE_FP32 dims: 4 }}
ensemble_scheduling {{ step [ {{ model_name: "{member}" model_version: -1
  input_map {{ key: "{input}" value: "X" }} output_map {{ key: "OUT" value: "Y" }} }} ] }}
"""


@pytest.fixture
def repository(tmp_path):
    def add(name: str, *, config: str | None = None, source: str | None = None, version="1"):
        folder = tmp_path / name / version
        folder.mkdir(parents=True)
        if config is not None:
            (tmp_path / name / "config.pbtxt").write_text(config)
        if source is not None:
            (folder / "model.py").write_text(source)
        return tmp_path

    add.root = tmp_path
    return add


def lines(root: Path, **options) -> dict[str, str]:
    return dict(str(f).split(": ", 1) for f in validate_repository(root, **options))


def test_a_model_without_a_configuration_is_completed_by_its_own_code(repository):
    root = repository("plain", source=MODEL)
    (finding,) = validate_repository(root)
    assert str(finding) == "plain: OK"
    assert finding.config.max_batch_size == 8
    assert [tensor.name for tensor in finding.config.input] == ["IN"]


def test_F3_AC1_with_auto_complete_off_a_configuration_is_needed(repository):
    root = repository("plain", source=MODEL)
    assert lines(root, auto_complete=False) == {
        "plain": f"failed to open text file for read {root}/plain/config.pbtxt: "
        "No such file or directory"
    }


def test_V50_other_models_are_checked_beside_a_bad_one(repository):
    repository("good", source=MODEL)
    repository("unknown_field", config="max_batch_sise: 8", source=MODEL)
    repository("negative", config="max_batch_size: -1", source=MODEL)
    repository("directory", config='name: "other"', source=MODEL)
    root = repository("nothing")
    found = lines(root)
    assert found["good"] == "OK"
    assert found["unknown_field"].startswith(
        f"failed to read text proto from {root}/unknown_field/config.pbtxt"
    )
    assert found["negative"] == "'max_batch_size' must be non-negative value for negative"
    assert found["directory"] == (
        "unexpected directory name 'directory' for model 'other', directory name must equal model "
        "name"
    )
    assert found["nothing"].startswith("Invalid model name: Could not determine backend for model")


def test_PB50_AC5_AC6_a_model_may_say_nothing_about_itself(repository):
    root = repository("m", source="class TritonPythonModel:\n    def execute(self, r): ...\n")
    (finding,) = validate_repository(root)
    assert str(finding) == "m: OK"
    assert not finding.config.input
    assert not finding.config.output
    assert finding.config.max_batch_size == 0


ORDER = [
    ("version_policy { specific { versions: 3 } }", "at least one version must be available"),
    ('name: "other"', "unexpected directory name"),
    ("max_batch_size: -1", "'max_batch_size' must be non-negative"),
    ("max_batch_sise: 8", "failed to read text proto"),
]
WITHOUT_DIMS = 'input { name: "OTHER" data_type: TYPE_FP32 }'


@pytest.mark.parametrize("number", range(len(ORDER) + 1))
def test_F7_the_first_of_several_errors_is_reported(repository, number):
    faults = [WITHOUT_DIMS, *(fault for fault, _ in ORDER[:number])]
    said = ORDER[number - 1][1] if number else "must specify 'dims'"
    root = repository("m", config="\n".join(faults), source=MODEL)
    assert said in lines(root)["m"]


def test_F7_without_auto_completion_inputs_are_checked_before_the_directory(repository):
    root = repository("m", config=f'{WITHOUT_DIMS} name: "other"', source=MODEL)
    assert "must specify 'dims'" in lines(root, auto_complete=False)["m"]
    assert "unexpected directory name" in lines(root)["m"]


def test_F7_without_auto_completion_an_ensemble_is_checked_when_it_is_polled(repository):
    config = ENSEMBLE.format(member="m", input="IN").replace(" dims: 4", "", 1)
    (model,) = read_repository(repository("e", config=config))
    assert read_config(model).name == "e"
    with pytest.raises(ConfigError, match="model input 'X' must specify 'dims' for e"):
        read_config(model, auto_complete=False)


def test_V51_no_version_is_left(repository):
    root = repository("m", config="version_policy { specific { versions: 3 } }", source=MODEL)
    assert lines(root)["m"] == (
        "at least one version must be available under the version policy of model 'm'"
    )


@pytest.mark.parametrize(
    ("folder", "versions"),
    [("1", (1,)), ("10", (10,)), ("01", ()), ("v1", ()), ("configs", ()), ("warmup", ())],
)
def test_L1_what_is_a_version(repository, folder, versions):
    root = repository("m", source=MODEL, version=folder)
    assert read_repository(root)[0].versions == versions


def test_PB6_a_missing_model_file_fails_at_once(repository):
    root = repository("m", config='backend: "python"')
    assert "does not exist" in lines(root)["m"]


def test_an_ensemble_is_checked_after_its_members(repository):
    repository("a_first", config=ENSEMBLE.format(member="z_last", input="IN"))
    root = repository("z_last", source=MODEL)
    findings = {f.name: f for f in validate_repository(root)}
    assert findings["a_first"].error is None


@pytest.mark.parametrize(
    ("member", "tensor", "text"),
    [
        ("absent", "IN", "ensemble e contains models that are not available or ambiguous: absent"),
        (
            "m",
            "INN",
            "in ensemble e, ensemble tensor X is mapping to non-existing input INN in model m",
        ),
    ],
)  # fmt: skip
def test_an_ensemble_that_does_not_fit_its_members(repository, member, tensor, text):
    repository("m", source=MODEL)
    root = repository("e", config=ENSEMBLE.format(member=member, input=tensor))
    assert lines(root)["e"] == text


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("max_batch_size: -1", "ensemble e contains models that are not available or ambiguous: m"),
        (
            "output { name: 'OUT' data_type: TYPE_FP32 dims: 0 }",
            (
                "ensemble 'e' depends on 'm' which has no loaded version. Model 'm' loading failed "
                "with error: model output 'OUT' dimension must be integer >= 1, or -1 to indicate a "
                "variable-size dimension for m"
            ),
        ),
    ],
    ids=["V112 polling", "V114 loading"],
)
def test_an_ensemble_of_a_broken_member_has_its_error(repository, fault, said):
    repository("m", config=fault, source=MODEL.replace("config.add_output", "tuple"))
    root = repository("e", config=ENSEMBLE.format(member="m", input="IN"))
    assert lines(root)["e"] == said


def test_V116_a_cycle_of_ensembles(repository):
    repository("e1", config=ENSEMBLE.format(member="e2", input="X"))
    root = repository("e2", config=ENSEMBLE.format(member="e1", input="X"))
    assert all("circular dependency between ensembles" in text for text in lines(root).values())


def test_F2_a_named_configuration_is_preferred(repository):
    root = repository("m", config="max_batch_size: 2", source=MODEL)
    (root / "m" / "configs").mkdir()
    (root / "m" / "configs" / "small.pbtxt").write_text("max_batch_size: 3")
    (finding,) = validate_repository(root, config_name="small", auto_complete=False)
    assert finding.config.max_batch_size == 3


def test_no_such_repository(tmp_path):
    with pytest.raises(NotFoundError):
        list(validate_repository(tmp_path / "nowhere"))


@pytest.mark.medium
def test_the_command_prints_a_line_a_model_and_ends_with_a_status(repository, capsys):
    root = repository("good", source=MODEL)
    assert main(["validate", str(root)]) == 0
    assert capsys.readouterr().out == "good: OK\n"
    assert main(["validate", "--print", str(root)]) == 0
    assert "max_batch_size: 8" in capsys.readouterr().out
    repository("bad", config="max_batch_size: -1", source=MODEL)
    assert main(["validate", str(root)]) == 1
    assert "bad: 'max_batch_size' must be non-negative value for bad\n" in capsys.readouterr().out
    assert main(["validate", str(root / "nowhere")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_models_of_a_python_based_backend(repository, tmp_path_factory, capsys):
    backends = tmp_path_factory.mktemp("backends")
    (backends / "mine").mkdir()
    (backends / "mine" / "model.py").write_text(MODEL)
    root = repository("m", config='backend: "mine"')
    assert main(["validate", str(root)]) == 1
    assert "unable to find backend library for backend 'mine'" in capsys.readouterr().out
    assert main(["validate", str(root), "--backend-directory", str(backends), "--print"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("m: OK")
    assert "max_batch_size: 8" in printed


IO = """input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 } """
UNAVAILABLE = "load failed for model 'm': version 1 is at UNAVAILABLE state: "


@pytest.mark.parametrize(
    ("version", "fits"), [(2, True), (-1, True), (1, False), (0, False), (-2, False)]
)
def test_V115_a_step_names_an_existing_version(repository, version, fits):
    repository("base", source=MODEL, version="2")
    text = ENSEMBLE.format(member="base", input="IN").replace("version: -1", f"version: {version}")
    found = lines(repository("e", config=text))["e"]
    text = f"ensemble 'e' depends on 'base' whose required version {version} is not loaded."
    assert found == ("OK" if fits else text)


def parameter(key: str, value: str) -> str:
    return (
        f'{IO} backend: "python" parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/no/such.tar.gz", "Internal: Failed to get the canonical path for /no/such.tar.gz.;"),
        (
            "$$TRITON_MODEL_DIRECTORY/env.tar.gz",
            "Internal: Failed to get the canonical path for {root}/m/env.tar.gz.;",
        ),
        (
            "{root}",
            (
                "Internal: Path {root}/bin/activate does not exist. The Python environment should "
                "contain an 'activate' script.;"
            ),
        ),
        ("{root}/m/config.pbtxt", "Internal: archive_read_open_filename() failed.;"),
    ],
)
def test_PB91_a_missing_environment(repository, path, said):
    root = repository.root
    config = parameter("EXECUTION_ENV_PATH", path.format(root=root))
    repository("m", config=config, source=MODEL)
    assert lines(root)["m"] == UNAVAILABLE + said.format(root=root)


@pytest.mark.slow
def test_PB91_a_model_is_completed_in_its_environment(repository):
    root = repository.root
    source = "import only_there\n" + MODEL
    for name in ("archive", "folder"):
        path = f"$$TRITON_MODEL_DIRECTORY/{name}"
        repository(name, config=parameter("EXECUTION_ENV_PATH", path), source=source)
    folder = make_environment(root / "folder" / "folder")
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "only_there.py").touch()
    pack(folder, root / "archive" / "archive")
    assert lines(root) == {"archive": "OK", "folder": "OK"}


def test_PB90_a_parameter_of_the_python_backend_with_a_wrong_value(repository):
    root = repository("m", config=parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe"), source=MODEL)
    assert lines(root)["m"] == (
        UNAVAILABLE + "Unsupported: Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe';"
    )


def test_a_comma_before_the_end_of_a_list(repository):
    root = repository("m", config="input [\n { name: 'A' },\n]", source=MODEL)
    (finding,) = validate_repository(root)
    assert finding.error.message.endswith(': 3:1: Expected "{", found "]".')
    assert finding.error.hint == "remove the comma before ']'"


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        ('platform: "tensorrt_plan"', "TensorRT"),
        ('backend: "dali"', "DALI"),
        ('backend: "ensemble"', 'platform: "ensemble"'),
    ],
)
def test_a_backend_that_is_only_triton_s_gets_advice(repository, config, advice):
    root = repository("m", config=f"{config} {IO}")
    (finding,) = validate_repository(root)
    assert finding.error.message.startswith("unable to find backend library for backend ")
    assert advice in finding.error.hint


AGENT = """backend: "python" model_repository_agents {{ agents [
  {{ name: "{name}" parameters {{ key: "{key}" value: "{value}" }} }} ] }}"""
MD5 = hashlib.md5(MODEL.encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("checksum", "MD5:1/model.py", MD5, "OK"),
        ("checksum", "md5:1/model.py", MD5, "OK"),
        (
            "checksum",
            "MD5:1/model.py",
            "abc",
            f"Mismatched MD5 hash for file 1/model.py, expect: abc, got: {MD5}",
        ),
        (
            "checksum",
            "MD5:nope",
            MD5,
            "failed to open text file for read nope: No such file or directory",
        ),
        ("checksum", "SHA256:1/model.py", "x", "Unsupported checksum algorithm: SHA256"),
        ("checksum", "model.py", "x", "failed to parse key: model.py"),
        (
            "cheksum",
            "MD5:1/model.py",
            MD5,
            (
                "unable to find 'libtritonrepoagent_cheksum.so' for repo agent 'cheksum', searched: "
                "/opt/tritonserver/repoagents"
            ),
        ),
    ],
)
def test_the_checksum_agent_looks_at_the_files(repository, name, key, value, said):
    config = AGENT.format(name=name, key=key, value=value)
    assert lines(repository("m", config=config, source=MODEL))["m"] == said


def test_the_command_prints_fields_without_effect(repository, capsys):
    root = repository("m", config="optimization { cuda { graphs: true } }", source=MODEL)
    assert main(["validate", str(root)]) == 0
    ok, printed = capsys.readouterr().out.splitlines()
    assert ok == "m: OK"
    assert printed.startswith("  optimization.cuda has no effect here: ")


NAMED = {
    "labels.txt": (
        'output { name: "OUT" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }'
    ),
    "warmup/data": (
        'output { name: "OUT" data_type: TYPE_FP32 dims: 4 } model_warmup { name: "w" batch_size: 1 '
        'inputs { key: "IN" value { data_type: TYPE_FP32 dims: 4 input_data_file: "data" } } }'
    ),
    "initial_state/data": (
        'output { name: "OUT" data_type: TYPE_FP32 dims: 4 } max_batch_size: 8 sequence_batching { '
        'state { input_name: "SI" output_name: "SO" data_type: TYPE_FP32 dims: 1 initial_state { '
        'name: "i" data_type: TYPE_FP32 dims: 1 data_file: "data" } } }'
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", NAMED)
def test_V83_V87_V90_a_file_that_the_configuration_names_has_to_exist(repository, name):
    config = f'input {{ name: "IN" data_type: TYPE_FP32 dims: 4 }} {NAMED[name]}'
    root = repository("m", config=config, source=MODEL)
    path = root / "m" / name
    assert lines(root)["m"] == (
        f"{UNAVAILABLE}Internal: failed to open text file for read {path}: "
        "No such file or directory;"
    )
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(16))
    assert lines(root)["m"] == "OK"


@pytest.mark.parametrize("auto_complete", [True, False])
@pytest.mark.parametrize(("name", "group"), [("m;", "g"), ("m", "#g")])
def test_a_name_that_triton_does_not_take(repository, name, group, auto_complete):
    root = repository(
        name,
        source=MODEL,
        config=f"""backend: "python" max_batch_size: 8 instance_group {{ name: "{group}" }}
            input {{ name: "IN" data_type: TYPE_FP32 dims: 4 }}
            output {{ name: "OUT" data_type: TYPE_FP32 dims: 4 }}""",
    )
    said = lines(root, auto_complete=auto_complete)[name]
    assert said.endswith("Invalid argument: Invalid stub name: contains invalid characters;")


SAMPLE = 'name: "w" batch_size: 1 inputs {{ key: "{name}" value {{ data_type: {type} dims: {dims} {data} }} }}'


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (SAMPLE.format(name="IN", type="TYPE_FP32", dims=4, data="zero_data: true"), "OK"),
        (
            SAMPLE.format(name="X", type="TYPE_FP32", dims=4, data="zero_data: true"),
            "Invalid argument: [request id: <id_unknown>] expected 1 inputs but got 0 inputs",
        ),
        (
            SAMPLE.format(name="IN", type="TYPE_INT8", dims=4, data="zero_data: true"),
            "inference input 'IN' data-type is 'INT8', but model 'm' expects 'FP32'",
        ),
        (
            SAMPLE.format(name="IN", type="TYPE_FP32", dims=4, data=""),
            "to have input_data_type set",
        ),
        (
            (
                'name: "w" batch_size: 9 inputs { key: "IN" value { data_type: TYPE_FP32 dims: 4 '
                "zero_data: true } }"
            ),
            "failed to run warmup sample 'w': batch size 9 for 'm_0', max allowed is 8; ",
        ),
        ('name: "w" batch_size: 0', "OK"),
    ],
)
def test_V88_V89_warmup_samples_are_requests_for_the_model(repository, sample, said):
    config = f'backend: "python" model_warmup {{ {sample} }}'
    assert said in lines(repository("m", source=MODEL, config=config))["m"]


def test_code_of_models_runs_unless_configurations_are_taken_as_they_are(
    repository, tmp_path_factory
):
    ran = tmp_path_factory.mktemp("ran") / "ran"
    root = repository("m", source=f"open({str(ran)!r}, 'w').close()\n{MODEL}")
    main(["validate", "--disable-auto-complete-config", str(root)])
    assert not ran.exists()
    main(["validate", str(root)])
    assert ran.exists()
