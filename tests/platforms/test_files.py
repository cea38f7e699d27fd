"""The files of an export for Kubernetes and Ray Serve, by KServe's schema and the keys of Triton's chart."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import nbtriton as nt
from nbtriton.common.errors import AlreadyExistsError, InvalidArgumentError
from nbtriton.extensions.platforms import Needs, kubernetes, needs_of, ray_serve, service_name
from tests.repository.notebook import Cells

# jsonschema takes a processor two seconds to import.
pytestmark = pytest.mark.medium

DOUBLE = """
def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}
"""
SEQUENCES = "sequence_batching { }"
ENSEMBLE = 'platform: "ensemble" ensemble_scheduling { step { model_name: "m" model_version: -1 } }'

THREADS = """
backend: "{}" instance_group {{ count: 2 }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "{}" }} }}
"""


@pytest.fixture
def written(tmp_path):
    """Write configurations as a repository; return its folder and the names of its models."""

    def write(*configs: str) -> tuple[Path, list[str]]:
        for number, config in enumerate(configs):
            folder = tmp_path / f"m{number}"
            folder.mkdir()
            (folder / "config.pbtxt").write_text(config)
        return tmp_path, [f"m{number}" for number in range(len(configs))]

    return write


def schema(name: str) -> Any:
    from jsonschema import Draft202012Validator

    found = json.loads((Path(__file__).parent / f"{name}.json").read_text())
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def read(repository: tuple[Path, list[str]], uri: str | bool = True) -> SimpleNamespace:
    """Return the predictor of the service and the values of the chart, both checked."""
    texts = kubernetes(*repository, uri)
    service, values = (
        yaml.safe_load(texts[name]) for name in ("inference_service.yaml", "values.yaml")
    )
    schema("inferenceservice").validate(service)
    schema("chart_values").validate(values)
    assert (service["apiVersion"], service["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    return SimpleNamespace(name=service["metadata"]["name"], values=values, **service["spec"])


@pytest.mark.parametrize(
    ("configs", "cpus", "gpus"),
    [
        ([""], 1, 0),
        (["instance_group { count: 3 }"], 3, 0),
        (["instance_group { count: 3 }", "instance_group [{ count: 1 }, { count: 2 }]"], 6, 0),
        (["instance_group { count: 2 kind: KIND_GPU }"], 2, 1),
        (["instance_group { count: 2 kind: KIND_GPU gpus: [0, 2] }"], 4, 3),
        (["instance_group { count: 1 kind: KIND_CPU }", "instance_group { gpus: [1] }"], 2, 2),
        (["", ENSEMBLE], 1, 0),
        ([ENSEMBLE], 1, 0),
        ([THREADS.format("onnxruntime", 4)], 8, 0),
        ([THREADS.format("onnxruntime", 0)], 2, 0),
        ([THREADS.format("python", 4)], 2, 0),
    ],
)
def test_a_server_takes_what_the_configurations_say(written, configs, cpus, gpus):
    assert needs_of(*written(*configs)) == Needs(cpus, gpus, stateful=False)


def test_the_service_runs_triton_2_51_with_the_resources_of_the_models(written):
    found = read(
        written("instance_group { count: 2 kind: KIND_GPU gpus: 1 }"), "s3://bucket/models"
    )
    assert found.predictor == {
        "minReplicas": 1,
        "model": {
            "modelFormat": {"name": "triton"},
            "protocolVersion": "v2",
            "runtimeVersion": "24.10-py3",
            "storageUri": "s3://bucket/models",
            "resources": {
                "requests": {"cpu": "2"},
                "limits": {"cpu": "2", "nvidia.com/gpu": "2"},
            },
        },
    }
    assert found.values == {
        "image": {"imageName": "nvcr.io/nvidia/tritonserver:24.10-py3", "numGpus": 2},
        "autoscaling": {"minReplicas": 1},
    }


def test_without_gpus_none_is_asked_for(written):
    found = read(written(""))
    assert "nvidia.com/gpu" not in found.predictor["model"]["resources"]["limits"]
    assert found.values["image"]["numGpus"] == 0  # the chart's own default is one


def test_a_model_with_sequences_has_one_server(written):
    repository = written("", SEQUENCES)
    found = read(repository)
    assert found.predictor["maxReplicas"] == found.values["autoscaling"]["maxReplicas"] == 1
    assert "num_replicas=1" in ray_serve(*repository, True)["ray_serve.py"]


def test_a_uri_is_one_text_of_yaml(written):
    uri = 's3://bucket/a b: "c" # d'
    assert read(written(""), uri).predictor["model"]["storageUri"] == uri


@pytest.mark.parametrize(
    ("folder", "name"),
    [("models", "models"), ("My Models_2", "my-models-2"), ("2nd--try-", "nd-try"), ("模型", "models"),
     ("m" * 80, "m" * 47), ("m" * 46 + "_x", "m" * 46)],
)  # fmt: skip
def test_the_name_is_one_that_kserve_takes(folder, name):
    assert service_name(folder) == name
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_the_name_stays_a_text(tmp_path):
    assert read((tmp_path / "true", [])).name == "true"


def test_the_schema_finds_a_misspelt_key(written):
    text = kubernetes(*written(""), True)["inference_service.yaml"]
    wrong = yaml.safe_load(text.replace("storageUri:", "storageURI:"))
    assert not schema("inferenceservice").is_valid(wrong)
    wrong = yaml.safe_load(text.replace('cpu: "1"', "cpu: one"))
    assert not schema("inferenceservice").is_valid(wrong)


def test_the_application_is_a_program_with_the_resources_of_the_models(written):
    text = ray_serve(*written("instance_group { count: 2 kind: KIND_GPU }"), True)["ray_serve.py"]
    tree = ast.parse(text)
    (models,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    options = {one.arg: ast.literal_eval(one.value) for one in models.decorator_list[0].keywords}
    assert options["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 1}
    assert "num_replicas" not in options
    assert "<" not in text


def test_an_export_writes_them_beside_the_models_and_again(tmp_path):
    with nt.Server(gpus=()) as server:
        server.load("", Cells()(DOUBLE), name="double")
        said: list[str] = []
        for _ in range(2):
            server.export(tmp_path, kubernetes="gs://b/m", ray_serve=True, on_progress=said.append)
        names = ["inference_service.yaml", "ray_serve.py", "values.yaml"]
        assert sorted(one.name for one in tmp_path.glob("[!.]*.*")) == names
        assert said[:3] == [f"wrote {tmp_path / name}" for name in (names[0], names[2], names[1])]
        with nt.Server(gpus=()) as other:
            assert not other.load_repository(tmp_path).errors
        (tmp_path / ".nbtriton.json").unlink()
        with pytest.raises(
            AlreadyExistsError, match="holds what no export has written: double, inf"
        ):
            server.export(tmp_path, kubernetes=True)


@pytest.mark.parametrize("place", ["models", 1, None])
def test_a_place_is_a_uri(tmp_path, place):
    with (
        nt.Server(gpus=()) as server,
        pytest.raises(InvalidArgumentError, match="a URI such as s3://bucket/models"),
    ):
        server.export(tmp_path / "out", kubernetes=place)
    assert not (tmp_path / "out").exists()
