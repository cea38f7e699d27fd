"""Placements: one option says where the steps of a pipeline run."""

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import ConfigError, InvalidArgumentError, NotFoundError
from nbtriton.lab.perf.sweep import device_of, placement_list, with_options
from nbtriton.model.config import enum_name, normalize, parse_pbtxt

TENSORS = (
    'max_batch_size: 4 input { name: "X" data_type: TYPE_FP32 dims: 2 } '
    'output { name: "Y" data_type: TYPE_FP32 dims: 2 }'
)
X = {"X": np.ones((1, 2), np.float32)}


def config(backend, groups=""):
    return normalize(parse_pbtxt(f'name: "m" backend: "{backend}" {TENSORS} {groups}'), name="m")


@pytest.mark.parametrize(
    ("placement", "backend", "device"),
    [
        ("cpu", "pytorch", "cpu"),
        ("gpu", "python", "gpu"),
        ("gpu:1", "pytorch", "gpu:1"),
        ("models-on-gpu", "python", "cpu"),
        ("models-on-gpu", "fil", "gpu"),
        ({"m": "gpu:1"}, "python", "gpu:1"),
        ({"other": "gpu"}, "python", None),
    ],
)
def test_a_placement_says_where_each_model_runs(placement, backend, device):
    assert placement_list(placement) == [placement]
    assert device_of(placement, config(backend)) == device


def test_the_kind_and_the_gpus_of_every_group_follow():
    both = config(
        "python", "instance_group [ { kind: KIND_CPU count: 2 }, { kind: KIND_GPU gpus: [0] } ]"
    )
    on_host = with_options(both, {"placement": "cpu"}).instance_group
    assert [(enum_name(g, "kind"), list(g.gpus)) for g in on_host] == [("KIND_CPU", [])] * 2
    on_gpu = with_options(both, {"placement": "gpu:1", "instances": 3}).instance_group
    assert [(enum_name(g, "kind"), list(g.gpus), g.count) for g in on_gpu] == [
        ("KIND_GPU", [1], 3)
    ] * 2
    assert with_options(both, {"placement": {"other": "gpu"}}) == both


@pytest.mark.parametrize(
    ("given", "text", "hint"),
    [
        ("gpus", "unknown placement 'gpus'", "'gpu'"),
        (["cpu", "model-on-gpu"], "unknown placement 'model-on-gpu'", "'models-on-gpu'"),
        ({"m": "cpus"}, "unknown device 'cpus' of model 'm'", "'cpu'"),
    ],
)
def test_an_unknown_placement_is_refused_with_the_nearest(given, text, hint):
    with pytest.raises(InvalidArgumentError, match=text) as caught:
        placement_list(given)
    assert hint in caught.value.hint


def double(X):  # noqa: N803
    return {"Y": X * 2}


def pipeline(server):
    server.load(TENSORS, double, name="before")
    identity = TENSORS.replace('"X"', '"INPUT0"').replace('"Y"', '"OUTPUT0"')
    server.load(f'backend: "identity" {identity}', name="model")
    server.load(
        """name: "all" platform: "ensemble" max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: 2 } output { name: "Y" data_type: TYPE_FP32 dims: 2 }
        ensemble_scheduling {
          step { model_name: "before" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "t" } }
          step { model_name: "model" model_version: -1 input_map { key: "INPUT0" value: "t" } output_map { key: "OUTPUT0" value: "Y" } }
        }"""
    )


def kinds(server):
    return {
        model.name: {(each.kind, each.device_id) for each in model.instances}
        for model in server.models()
        if model.instances
    }


def test_placements_are_swept_and_undone():
    seen = []

    with nt.Server(gpus="simulated:2") as server:
        pipeline(server)
        before = kinds(server)

        def observe(_):
            if not seen or seen[-1] != kinds(server):
                seen.append(kinds(server))

        report = nt.perf(
            server, "all", inputs=X, quick=True, request_count=3, observer=observe,
            placement=["cpu", "models-on-gpu", {"before": "gpu:1"}],
        )  # fmt: skip
        assert [p.configuration["placement"] for p in report.points] == [
            "cpu", "models-on-gpu", {"before": "gpu:1"}
        ]  # fmt: skip
        assert list(report.frame["placement"]) == ["cpu", "models-on-gpu", "before=gpu:1"]
        cpu, gpus = {("KIND_CPU", 0)}, {("KIND_GPU", 0), ("KIND_GPU", 1)}
        for expected in (
            {"before": cpu, "model": cpu},
            {"before": cpu, "model": gpus},
            {"before": {("KIND_GPU", 1)}, "model": before["model"]},
        ):
            assert expected in seen
        assert kinds(server) == before
        report.points[2].apply()
        assert kinds(server)["before"] == {("KIND_GPU", 1)}


def test_what_the_server_cannot_place_is_refused_before_anything_is_measured():
    with nt.Server(gpus=()) as server:
        pipeline(server)
        before = kinds(server)
        with pytest.raises(ConfigError, match="has kind KIND_GPU but no GPUs are available"):
            nt.perf(server, "all", inputs=X, quick=True, placement=["cpu", "gpu"])
        with pytest.raises(NotFoundError, match="the placement names 'befor'") as caught:
            nt.perf(server, "all", inputs=X, quick=True, placement={"befor": "cpu"})
        assert "'before'" in caught.value.hint
        assert kinds(server) == before


def test_kinds_are_swept_and_undone():
    with nt.Server(gpus="simulated:1") as server:
        pipeline(server)
        before = kinds(server)
        report = nt.perf(server, "before", request_count=3, kind=["gpu", "cpu"])
        assert list(report.frame["kind"]) == ["gpu", "cpu"]
        assert kinds(server) == before
        report.points[1].apply()
        assert kinds(server)["before"] == {("KIND_CPU", 0)}
        with pytest.raises(InvalidArgumentError, match="give one of them"):
            nt.perf(server, "all", inputs=X, kind="cpu", placement="cpu")
        with pytest.raises(ConfigError, match="unknown instance kind 'cup'"):
            nt.perf(server, "all", inputs=X, kind="cup")
    with nt.Server(gpus=()) as server:
        pipeline(server)
        with pytest.raises(ConfigError, match="no GPUs are available"):
            nt.perf(server, "all", inputs=X, kind=["cpu", "gpu"])


def test_what_a_simulated_gpu_times_says_so_beside_it():
    with nt.Server(gpus="simulated:1") as server:
        pipeline(server)
        report = nt.perf(
            server, "all", inputs=X, quick=True, request_count=3, placement=["cpu", "models-on-gpu", "gpu"]
        )  # fmt: skip
        on_host, models, everything = report.points
        assert not any(point.error_count for point in report.points)
        assert (on_host.simulated_gpus, models.simulated_gpus) == ("", "simulated:1")
        assert on_host.label == "placement=cpu"
        assert everything.label == "placement=gpu (simulated GPUs)"
        assert "simulated GPUs" in repr(everything)
        assert report.frame["times"].tolist()[1:] == ["simulated GPUs"] * 2
        text = report._repr_mimebundle_()["text/plain"]
        assert "placement=models-on-gpu: 'model' on simulated GPUs (simulated:1)" in text
        assert "placement=gpu: 'before', 'model' on simulated GPUs" in text
        assert text.count("simulated GPUs") >= 4


def test_a_model_on_the_host_reads_what_a_simulated_gpu_made():
    """With FORCE_CPU_ONLY_INPUT_TENSORS "no" it would get the device's array, which nothing can read."""

    class After:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            tensors = [pb_utils.get_input_tensor_by_name(r, "X") for r in requests]
            assert all(tensor.is_cpu() for tensor in tensors)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", t.as_numpy() + 1)])
                for t in tensors
            ]

    force = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
    group = "instance_group { kind: KIND_GPU }"
    with nt.Server(gpus="simulated:1") as server:
        pipeline(server)
        server.unload("all")
        server.load(f"{TENSORS} {group}", double, name="before")
        server.unload("model")
        server.load(f'name: "model" backend: "python" {TENSORS} {force}', After)
        server.load(
            """name: "all" platform: "ensemble" max_batch_size: 4
            input { name: "X" data_type: TYPE_FP32 dims: 2 } output { name: "Y" data_type: TYPE_FP32 dims: 2 }
            ensemble_scheduling {
              step { model_name: "before" model_version: -1
                     input_map { key: "X" value: "X" } output_map { key: "Y" value: "t" } }
              step { model_name: "model" model_version: -1
                     input_map { key: "X" value: "t" } output_map { key: "Y" value: "Y" } }
            }"""
        )
        np.testing.assert_array_equal(np.asarray(server.infer("all", X)["Y"]), [[3, 3]])
        assert server.devices[0].faults == []
        assert ("GPU 0", "CPU") in {(c.source, c.target) for c in server.devices.ledger.copies()}


def test_a_profile_is_of_one_placement():
    from tests.simulate.profiles import profile

    with pytest.raises(
        InvalidArgumentError, match="placement has no meaning for a simulated server"
    ):
        nt.whatif(profile(), placement="gpu")
