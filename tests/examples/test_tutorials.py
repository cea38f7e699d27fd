"""The configurations and programs of five tutorials on Triton, one case each.

The files in ``tutorials/`` have their configurations in our own layout. A case says what it changes of
them and why (`differs`); what cannot run without a GPU or a backend of Triton's is refused with the
right words and the way out. TensorRT's run as printed as stand-ins. The tutorials: ensembles (0), the readability pipeline (1), concurrent
execution (2), pre- and postprocessing (3), the model configuration from A to Z (4).
"""

# ruff: noqa: N803, F821, UP037 - a model function names its tensors, and their types in its annotations
from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nbtriton as nt
from nbtriton.common.errors import ConfigError, TritonError
from nbtriton.model.config import amend, as_config, is_whole, stand_in_reason

FOLDER = Path(__file__).parent / "tutorials"
BASE = """backend: "python" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] } ]"""
ON_CPU = ("KIND_GPU", "KIND_CPU")
IN_PYTHON = ('platform: "tensorrt_plan"', 'backend: "python"')
STAND_IN: dict[str, Any] = {"options": {"stand_in": True}, "model": Path("1/model.plan")}
TENSORRT = "unable to find backend library for backend 'tensorrt', try specifying runtime on the model configuration."
NO_GPU = "instance group {} of model m has kind KIND_GPU but no GPUs are available"
WRONG_GPU = (
    "instance group {} of model m specifies invalid or unsupported gpu id {}. GPUs with at least the "
    "minimum required CUDA compute compatibility of 6.000000 are: "
)


class StandIn:
    """Answers every output with zeros of its shape, a -1 as 2, and the batch of its first input."""

    def initialize(self, args: Mapping[str, str]) -> None:
        import json

        self.config = json.loads(args["model_config"])

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as pb_utils

        return [
            pb_utils.InferenceResponse([self.tensor(pb_utils, request, o) for o in self.outputs()])
            for request in requests
        ]

    def outputs(self) -> list[dict[str, Any]]:
        return list(self.config["output"])

    def tensor(self, pb_utils: Any, request: Any, output: Mapping[str, Any]) -> Any:
        dims = output["reshape"]["shape"] if "reshape" in output else output["dims"]
        dims = [2 if dim == -1 else dim for dim in dims]
        if self.config["max_batch_size"]:
            dims = [request.inputs()[0].shape()[0], *dims]
        kind = pb_utils.triton_string_to_numpy(output["data_type"])
        return pb_utils.Tensor(output["name"], np.zeros(dims, kind))


def text_of(files: str) -> str:
    """Return the text of files, as they follow each other in one configuration."""
    return "\n".join((FOLDER / f"{name}.pbtxt").read_text() for name in files.split(" + "))


@dataclass(frozen=True)
class Case:
    """One configuration of a tutorial, as the model ``m``, and what becomes of it."""

    tutorial: int
    files: str
    differs: str = ""  # what is changed of the tutorial's text, and why; empty if nothing
    changes: tuple[tuple[str, str], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of the server
    refused: str = ""
    hint: str = ""
    ignored: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()  # kinds and devices
    batched: bool = True
    model: object = StandIn

    @property
    def text(self) -> str:
        text = text_of(self.files)
        for old, new in self.changes:
            assert old in text
            text = text.replace(old, new)
        return text

    @property
    def id(self) -> str:
        how = "as a stand-in " if self.options.get("stand_in") else ""
        return f"{self.tutorial} {self.files} {how}{self.differs[:40]}".rstrip()


THREE_GPUS = {"gpus": "simulated:3"}
CASES = [
    # Ensembles
    Case(
        0, "image_head",
        refused="ensemble scheduling must be set for ensemble ensemble_model whose platform is ensemble",
        hint="add ensemble_scheduling",
    ),
    Case(0, "image_scheduling", refused="ensemble tensor 'IMAGE' is unused in ensemble 'm'",
         differs="platform added, which the tutorial's text has further up",
         changes=(("ensemble_scheduling {", 'platform: "ensemble" ensemble_scheduling {'),),
         hint="make 'IMAGE' an input"),
    Case(0, "image_head + two_on_cpu + image_scheduling",
         refused="instance group should not be specified for ensemble 'ensemble_model'",
         hint="set instance_group in the composing models"),
    # The readability pipeline
    Case(1, "forest", model=Path("checkpoint.tl"), refused="load failed for model 'm': version 1 is at "
         "UNAVAILABLE state: Invalid argument: Required parameter output_class not found in config;",
         hint='"false" for a regression'),
    Case(1, "environment", refused="load failed for model 'm': version 1 is at UNAVAILABLE state: "
         "Internal: Failed to get the canonical path for path/to/custom_env.tar.gz.;",
         hint="$$TRITON_MODEL_DIRECTORY/custom_env.tar.gz is in the model's directory"),
    Case(1, "stay_on_device"),
    Case(1, "one_line_gpu", refused=NO_GPU.format("m_0"), hint="use KIND_AUTO"),
    Case(1, "one_line_gpu", differs="on a server with three simulated GPUs", options=THREE_GPUS,
         instances=("KIND_GPU 0", "KIND_GPU 1", "KIND_GPU 2")),
    Case(1, "one_line_cpu", instances=("KIND_CPU 0",)),
    # Concurrent execution
    Case(2, "two_per_gpu", refused=NO_GPU.format("m_0"), hint="use KIND_AUTO"),
    Case(2, "two_per_gpu", differs="on the CPU, as the tutorial says", changes=(ON_CPU,),
         instances=("KIND_CPU 0",) * 2),
    Case(2, "two_per_gpu", differs="on a server with three simulated GPUs", options=THREE_GPUS,
         instances=tuple(f"KIND_GPU {n}" for n in (0, 0, 1, 1, 2, 2))),
    Case(2, "on_three_gpus", refused=WRONG_GPU.format("m_0", 0), hint="has no GPU"),
    Case(2, "on_three_gpus", differs="on a server with three simulated GPUs", options=THREE_GPUS,
         instances=tuple(f"KIND_GPU {n}" for n in (0, 1, 1, 2, 2))),
    Case(2, "limited_groups", refused=WRONG_GPU.format("m_0", 0), hint="has no GPU"),
    Case(2, "limited_groups", differs="on a server with three simulated GPUs and a rate limiter",
         options={**THREE_GPUS, "rate_limit": "execution_count"},
         instances=tuple(f"KIND_GPU {n}" for n in (0, 0, *(1,) * 4, *(2,) * 4))),
    Case(2, "limited_priority", refused=WRONG_GPU.format("m_0", 0), hint="has no GPU"),
    Case(2, "limited_priority", differs="on a server with three simulated GPUs and no rate limiter",
         options=THREE_GPUS, instances=("KIND_GPU 0", "KIND_GPU 1", "KIND_GPU 2"),
         ignored=("instance_group[0].rate_limiter",)),
    # Pre- and postprocessing
    Case(3, "image_lost_blanks",
         refused="failed to read text proto from config.pbtxt: 4:48: Unknown enumeration value of "
         '"TYPE_STRINGdims" for field "data_type".', hint="did you mean 'TYPE_STRING'?"),
    # The model configuration
    Case(4, "minimal", refused=TENSORRT, hint="load the model it was built from"),
    Case(4, "minimal", **STAND_IN),
    Case(4, "minimal", differs="in Python instead of TensorRT", changes=(IN_PYTHON,)),
    Case(4, "one_input", **STAND_IN),
    Case(4, "one_input", differs="max_batch_size is 0, as the tutorial says",
         changes=(("max_batch_size: 8", "max_batch_size: 0"),), batched=False, **STAND_IN),
    Case(4, "one_input", differs="a variable dim, as the tutorial says",
         changes=(("dims: [ 16 ]", "dims: [ 4, -1 ]"),), **STAND_IN),
    Case(4, "reshape", differs="the tutorial's snippets have no data_type and no backend",
         changes=(("input [", 'backend: "python" max_batch_size: 8 input ['),)),
    Case(4, "reshape_unclosed", refused="failed to read text proto from config.pbtxt: 7:1: "
         'Expected ",", found "".', hint="the '[' of 'input' in line 1 is never closed: add ']'"),
    Case(4, "shape_tensor", refused=TENSORRT, hint="load the model it was built from"),
    Case(4, "shape_tensor", differs="in Python instead of TensorRT", changes=(IN_PYTHON,),
         refused="shape tensors are only supported for TensorRT platform for myshapetensormodel", hint="make it an input of one row a request"),
    Case(4, "minimal + all_versions", **STAND_IN),
    Case(4, "minimal + on_three_gpus", differs="on a server with three simulated GPUs",
         options={"stand_in": True, **THREE_GPUS}, model=Path("1/model.plan"),
         instances=tuple(f"KIND_GPU {n}" for n in (0, 1, 1, 2, 2))),
    Case(4, "minimal + by_compute_capability",
         ignored=("cc_model_filenames[7.5]", "cc_model_filenames[8.0]"), **STAND_IN),
    Case(4, "latest_versions", differs="the tutorial writes 'Latest', which is refused"),
    Case(4, "latest_in_capitals", refused="failed to read text proto from config.pbtxt: 1:23: "
         'Message type "inference.ModelVersionPolicy" has no field named "Latest".',
         hint="did you mean 'latest'?"),
    Case(4, "specific_versions", differs="the tutorial writes 'Specific', which is refused; of one "
         "model in memory there is version 1"),
    Case(4, "two_on_cpu", instances=("KIND_CPU 0",) * 2),
    Case(4, "host_policy", ignored=("instance_group[0].host_policy",)),
    Case(4, "by_compute_capability",
         ignored=("cc_model_filenames[7.5]", "cc_model_filenames[8.0]")),
    Case(4, "defaults"),
    Case(4, "preferred"),
    Case(4, "delayed"),
    Case(4, "cached", options={"cache_bytes": 1 << 20}),
    Case(4, "cached", differs="on a server without a cache", ignored=("response_cache",)),
]  # fmt: skip


def load(server: nt.Server, text: str, model: object) -> list[str]:
    """Load a whole configuration or a fragment, as a cell does; return what has no effect."""
    fragment = as_config(text)
    config = fragment if is_whole(fragment) else amend(as_config(BASE), text)
    name = config.name or "m"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nt.errors.ConfigWarning)
        server.load(config, model, name=name)
    return list(server.ignored(name))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_configuration(case: Case) -> None:
    options = {"gpus": [], **case.options}  # as on a machine without GPUs
    with nt.Server(**options) as server:
        is_ensemble = "ensemble_scheduling" in case.text or 'platform: "ensemble"' in case.text
        if case.refused:
            with pytest.raises(TritonError) as caught:
                load(server, case.text, None if is_ensemble else case.model)
            assert caught.value.message.rstrip("\n") == case.refused
            assert case.hint in caught.value.hint
            assert server.engine.inspection.model_names() == ()
            return
        assert tuple(load(server, case.text, StandIn)) == case.ignored
        (model,) = server.models()
        kinds = tuple(sorted(f"{one.kind} {one.device_id}" for one in model.instances))
        assert case.instances in ((), kinds)
        config = server.config(model.name)
        given = {
            tensor.name: np.zeros(
                [*[2] * case.batched, *(3 if dim == -1 else dim for dim in tensor.dims)], np.float32
            )
            for tensor in config.input
        }
        result = server.infer(model.name, given)
        for tensor in config.output:
            assert result[tensor.name].shape == (
                *[2] * case.batched, *(2 if dim == -1 else dim for dim in tensor.dims)
            )  # fmt: skip


def test_every_file_is_used() -> None:
    used = {name for case in CASES for name in case.files.split(" + ")}
    rest = {"readability", "bert"}
    assert used | rest == {path.stem for path in FOLDER.glob("*.pbtxt")}


# -- 0, 3: the picture that two models look at ---------------------------------------------------------


def picture_models(server: nt.Server, segmentation: str = "") -> None:
    image = "data_type: TYPE_FP32 dims: [ 3, 224, 224 ]"
    load(
        server,
        f"""name: "image_preprocess_model" backend: "python" max_batch_size: 4
        input {{ name: "RAW_IMAGE" data_type: TYPE_STRING dims: 1 }}
        output {{ name: "PREPROCESSED_OUTPUT" {image} }}""",
        StandIn,
    )
    for name, output in (
        ("classification", "data_type: TYPE_FP32 dims: 1000"),
        ("segmentation", image),
    ):
        load(server, f"""name: "{name}_model" backend: "python" max_batch_size: 4
            input {{ name: "FORMATTED_IMAGE" {image} }}
            output {{ name: "{name.upper()}_OUTPUT" {output} }}
            {segmentation if name == "segmentation" else ""}""", StandIn)  # fmt: skip


def test_a_picture_is_classified_and_segmented() -> None:
    """Differs: the three models are stand-ins; one of the two that run side by side has two instances."""
    with nt.Server() as server:
        picture_models(server, segmentation=text_of("two_on_cpu"))
        load(server, text_of("image_head + image_scheduling"), None)
        result = server.infer("ensemble_model", {"IMAGE": np.array([[b"a picture"]], object)})
        assert result["CLASSIFICATION"].shape == (1, 1000)
        assert result["SEGMENTATION"].shape == (1, 3, 224, 224)
        with pytest.raises(TritonError, match="must be <= 1"):
            server.infer("ensemble_model", {"IMAGE": np.array([[b"a"], [b"b"]], object)})


def test_an_ensemble_inherits_the_requirements_of_a_stateful_member() -> None:
    """Differs: the tutorial says so of any model; here the one that segments has sequences."""
    with nt.Server() as server:
        picture_models(server, segmentation="sequence_batching { }")
        load(server, text_of("image_head + image_scheduling"), None)
        given = {"IMAGE": np.array([[b"a picture"]], object)}
        with pytest.raises(
            TritonError, match="must specify a non-zero or non-empty correlation ID"
        ):
            server.infer("ensemble_model", given)
        out = server.infer(
            "ensemble_model", given, sequence_id=7, sequence_start=True, sequence_end=True
        )
        assert out["SEGMENTATION"].shape == (1, 3, 224, 224)


# -- 1: the readability of a text ----------------------------------------------------------------------


class Bert(torch.nn.Module):
    """Stands in for BERT-Large: a score from ids and mask."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (ids * mask).sum(1, keepdim=True).float()


def preprocess(
    INPUT0: "BYTES[-1]",
) -> {"BERT_IDS": "INT32[8]", "BERT_AM": "INT32[8]", "TREE_FEATS": "FP32[207]"}:
    lengths = np.array([[len(text) for text in row] for row in INPUT0.tolist()])
    ids = np.repeat(lengths[:, :1], 8, axis=1).astype(np.int32)
    feats = np.repeat(lengths[:, :1], 207, axis=1).astype(np.float32)
    return {"BERT_IDS": ids, "BERT_AM": np.ones_like(ids), "TREE_FEATS": feats}


def postprocess(
    BERT_WEIGHT_INPUT: "FP32[-1,-1]", BERT_LARGE_SCORE: "FP32[-1,1]", CUML_SCORE: "FP32[-1]"
) -> {"OUTPUT0": "FP32[-1,1]"}:
    weight = BERT_WEIGHT_INPUT[:, :1]
    return {"OUTPUT0": weight * BERT_LARGE_SCORE + (1 - weight) * CUML_SCORE[:, None]}


REGRESSION = ' parameters { key: "output_class" value { string_value: "false" } }'


def checkpoint(path: Path) -> Any:
    """Write a forest over the 207 features of an excerpt, and return what made it."""
    treelite = pytest.importorskip("treelite", reason="treelite is not installed (extra fil)")
    from sklearn.ensemble import RandomForestRegressor

    features = np.repeat(np.arange(20, dtype=np.float32)[:, None], 207, axis=1)
    trees = RandomForestRegressor(4, max_depth=4, random_state=0).fit(features, features[:, 0] * 10)
    treelite.sklearn.import_model(trees).serialize(path)
    return trees


@pytest.mark.slow
def test_the_readability_pipeline(tmp_path: Path) -> None:
    """Differs: platform instead of backend "ensemble"; the step of cuml, without its extra bracket.

    BERT and the forest are small; `output_class` is added, which the fil backend requires. The forest
    says one number a row without a dimension of its own (FL6), so `postprocess` does not batch.
    """
    path = tmp_path / "model.pt"
    example = (torch.ones(1, 8, dtype=torch.int32), torch.ones(1, 8, dtype=torch.int32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls tracing deprecated
        torch.jit.trace(Bert(), example).save(str(path))
    trees = checkpoint(tmp_path / "checkpoint.tl")
    with nt.Server(gpus=()) as server:
        server.load(text_of("bert"), path, name="bert-large")
        server.load(text_of("forest") + REGRESSION, tmp_path / "checkpoint.tl", name="cuml")
        server.load("max_batch_size: 4", preprocess, name="preprocess")
        server.load("max_batch_size: 0", postprocess, name="postprocess")
        load(server, text_of("readability"), None)
        texts = np.array([["word"], ["a sentence"]], object)
        weights = np.array([[0.25], [0.75]], np.float32)
        score = server.infer("ensemble_all", {"excerpt": texts, "BERT_WEIGHT": weights})["SCORE"]
        lengths = np.array([[4.0], [10.0]])
        by_trees = trees.predict(np.repeat(lengths, 207, axis=1))[:, None]
        expected = weights * lengths * 8 + (1 - weights) * by_trees
        np.testing.assert_allclose(score, expected, rtol=1e-6)


def test_the_readability_repository_without_any_of_its_files(tmp_path: Path) -> None:
    """The tree of the tutorial, of which only the configurations exist: stand-ins on a GPU.

    Differs: platform instead of backend "ensemble"; the step of cuml. What the tutorial leaves out of
    the configurations of its Python steps is added: the tensors of the ensemble.
    """
    on_gpu, score = text_of("one_line_gpu"), "data_type: TYPE_FP32 dims: [ 1 ]"
    ids = "data_type: TYPE_INT32 dims: [ 8 ]"
    configs = {
        "bert-large": text_of("bert"),
        "cuml": text_of("forest"),
        "preprocess": f"""name: "preprocess" backend: "python" max_batch_size: 4
            input {{ name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] }}
            output {{ name: "BERT_IDS" {ids} }} output {{ name: "BERT_AM" {ids} }}
            output {{ name: "TREE_FEATS" data_type: TYPE_FP32 dims: [ 207 ] }}""",
        "postprocess": f"""name: "postprocess" backend: "python" max_batch_size: 4
            input {{ name: "BERT_WEIGHT_INPUT" data_type: TYPE_FP32 dims: [ -1 ] }}
            input {{ name: "BERT_LARGE_SCORE" {score} }} input {{ name: "CUML_SCORE" {score} }}
            output {{ name: "OUTPUT0" {score} }}""",
    }
    for name, text in configs.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(f"{text}\n{on_gpu}")
    (tmp_path / "ensemble_all" / "1").mkdir(parents=True)
    (tmp_path / "ensemble_all" / "config.pbtxt").write_text(text_of("readability"))
    with nt.Server(gpus=[0], stand_in=True) as server:
        assert server.load_repository(tmp_path).errors == {}
        reasons = {name: stand_in_reason(server.config(name)) for name in configs}
        assert reasons == {
            "bert-large": "the file 'model.pt' does not exist",
            "cuml": "the file 'checkpoint.tl' does not exist",
            "preprocess": "the file 'model.py' does not exist",
            "postprocess": "the file 'model.py' does not exist",
        }
        assert {one.kind for model in server.models() for one in model.instances} == {"KIND_GPU"}
        given = {"excerpt": [["a text"]], "BERT_WEIGHT": [[0.5]]}
        assert server.infer("ensemble_all", given)["SCORE"].shape == (1, 1)


PUBLISHED = {
    "its brackets": (
        ("  ]\n}\n", "  }\n]\n"),
        'Expected ",", found "}".',
        "is open here: close it with ']' first",
    ),
    "its backend": (
        ('platform: "ensemble"', 'backend: "ensemble"'),
        "Ensemble model 'ensemble_all' must have platform type 'ensemble' and empty backend type",
        'set platform: "ensemble"',
    ),
}


@pytest.mark.parametrize("what", PUBLISHED)
def test_the_readability_pipeline_as_it_is_published_is_refused(what: str) -> None:
    change, said, hint = PUBLISHED[what]
    text = text_of("readability")
    assert change[0] in text
    with nt.Server() as server, pytest.raises(ConfigError) as caught:
        load(server, text.replace(*change), None)
    assert caught.value.message.endswith(said)
    assert hint in caught.value.hint


def test_the_readability_pipeline_without_its_forest_is_refused() -> None:
    """The tutorial leaves the step of cuml out, and reads what it would write."""
    text = text_of("readability")
    before, _, rest = text.partition('    {\n      model_name: "cuml"')
    after = rest.partition("    },\n")[2]
    with nt.Server() as server, pytest.raises(ConfigError) as caught:
        load(server, before + after, None)
    assert caught.value.message == (
        "output 'SCORE' for ensemble 'ensemble_all' is not written: at least one of its depending "
        "tensors, 'cuml_score', is not connected"
    )


def test_the_tree_of_the_repository_loads(tmp_path: Path) -> None:
    """A stub beside model.py, and a file in the version of an ensemble, do no harm.

    Differs: one model in the middle instead of three.
    """
    source = (
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', "
        "r.inputs()[0].as_numpy())]) for r in requests]\n"
    )
    tensors = BASE.partition("\n")[2]
    scheduling = """ensemble_scheduling { step [ { model_name: "preprocess" model_version: 1
        input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } ] }"""
    for name, config, file in (
        ("preprocess", BASE, "model.py"),
        ("ensemble_all", f'platform: "ensemble" max_batch_size: 8 {tensors} {scheduling}', "empty"),
    ):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
        (tmp_path / name / "1" / file).write_text(source if file == "model.py" else "")
    (tmp_path / "preprocess" / "triton_python_backend_stub").write_bytes(b"\x7fELF")
    with nt.Server() as server:
        assert server.load_repository(tmp_path).errors == {}
        given = {"IN": np.ones((1, 16), np.float32)}
        assert server.infer("ensemble_all", given)["OUT"].tolist() == given["IN"].tolist()


# -- 3: business logic instead of an ensemble ----------------------------------------------------------


class Pipeline:
    """Way 1: a model that only calls others, and decides whether the second is needed."""

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as pb_utils

        responses = []
        for request in requests:
            (tensor,) = request.inputs()
            for model in ("doubled", "shifted"):
                call = pb_utils.InferenceRequest(
                    model_name=model, requested_output_names=["OUT"],
                    inputs=[pb_utils.Tensor("IN", tensor.as_numpy())],
                )  # fmt: skip
                answer = call.exec()
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
                tensor = pb_utils.get_output_tensor_by_name(answer, "OUT")
                if tensor.as_numpy().max() > 100:
                    break
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())])
            )
        return responses


class AllInOne:
    """Way 2: a model that prepares and finishes by itself, and calls one in between."""

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as pb_utils

        responses = []
        for request in requests:
            ready = pb_utils.Tensor("IN", request.inputs()[0].as_numpy() - 1)
            call = pb_utils.InferenceRequest(
                model_name="doubled", requested_output_names=["OUT"], inputs=[ready]
            )
            (out,) = call.exec().output_tensors()
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out.as_numpy() + 3)])
            )
        return responses


@pytest.mark.parametrize(
    ("way", "value", "expected"),
    [(Pipeline, 1.0, 12.0), (Pipeline, 60.0, 120.0), (AllInOne, 1.0, 3.0)],
)
def test_business_logic(way: type, value: float, expected: float) -> None:
    """Differs: numbers instead of pictures."""
    with nt.Server() as server:
        for name, step in {"doubled": lambda IN: IN * 2, "shifted": lambda IN: IN + 10}.items():
            server.load(BASE, outputs_of(step), name=name)
        server.load(BASE, way, name="bls")
        out = server.infer("bls", {"IN": np.full((1, 16), value, np.float32)})["OUT"]
    assert out.tolist() == [[expected] * 16]


def outputs_of(step: Callable[[Any], Any]) -> Callable[..., dict[str, Any]]:
    return lambda IN: {"OUT": step(IN)}


# -- 4: what PyTorch models call their tensors, versions, cache --------------------------------------


class Named(torch.nn.Module):
    def forward(self, input0: torch.Tensor, input1: torch.Tensor) -> torch.Tensor:
        return input0 - input1


class Mapped(torch.nn.Module):
    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        return x["A"] - x["B"]


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Named, ("input1", "input0")),  # by the arguments' names, in any order
        (Named, ("INPUT__0", "INPUT__1")),
        (Named, ("first", "second")),  # by their order
        (Mapped, ("B", "A")),  # a dictionary of tensors
    ],
)
def test_names_of_the_pytorch_backend(module: type, inputs: tuple[str, str]) -> None:
    config = 'backend: "pytorch" max_batch_size: 8 output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 4 }'
    for name in inputs:
        config += f' input {{ name: "{name}" data_type: TYPE_FP32 dims: 4 }}'
    larger = inputs[0] if inputs[0] in ("INPUT__0", "first") else inputs[1]
    with nt.Server(gpus=[]) as server:
        server.load(config, module().eval(), name="m")
        given = {name: np.full((1, 4), 5 if name == larger else 2, np.float32) for name in inputs}
        assert server.infer("m", given)["OUTPUT__0"].tolist() == [[3.0] * 4]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("files", "serving"),
    [("all_versions", [1, 2, 3]), ("latest_versions", [2, 3]), ("specific_versions", [1, 3])],
)
def test_version_policies(tmp_path: Path, files: str, serving: list[int]) -> None:
    """Differs: the names of the policies in small letters, as protobuf has them."""
    model = tmp_path / "m"
    for version in (1, 2, 3):
        (model / str(version)).mkdir(parents=True)
        (model / str(version) / "model.py").write_text(
            "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
        )
    (model / "config.pbtxt").write_text(f"{BASE}\n{text_of(files)}")
    with nt.Server() as server:
        server.load_repository(tmp_path)
        assert [one.version for one in server.models()] == serving


def test_a_cache_answers_the_second_time() -> None:
    runs = []
    with nt.Server(cache_bytes=1 << 20) as server:
        load(server, text_of("cached"), outputs_of(lambda IN: runs.append(1) or IN))
        for _ in range(2):
            server.infer("m", {"IN": np.ones((1, 16), np.float32)})
    assert len(runs) == 1


@pytest.mark.parametrize(
    "name",
    ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32",
     "FP64", "STRING"],
)  # fmt: skip
def test_data_types(name: str) -> None:
    """Differs: BF16, which numpy has not, is in the tests of the PyTorch backend."""
    with nt.Server() as server:
        text = BASE.replace("TYPE_FP32", f"TYPE_{name}")
        load(server, text, lambda IN: {"OUT": IN})
        datatype = server.metadata("m")["inputs"][0]["datatype"]
        assert datatype == ("BYTES" if name == "STRING" else name)
        given = np.ones((1, 16), nt_dtype(name))
        assert server.infer("m", {"IN": given})["OUT"].tolist() == given.tolist()


def nt_dtype(name: str) -> Any:
    import triton_python_backend_utils as pb_utils

    return "S1" if name == "STRING" else pb_utils.triton_string_to_numpy(f"TYPE_{name}")
