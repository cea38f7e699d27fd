"""What runs in Triton alone is named where a repository has it: what it is, what it does, the line to type."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common import foreign
from nbtriton.extensions.doctor.validation import validate_repository
from nbtriton.magics.cli import main

IO = """
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]) for x in inputs]
"""
ELF = b"\x7fELF"
Repository = Callable[..., Path]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    def write(config: str, files: dict[str, bytes] | None = None) -> Path:
        (tmp_path / "m" / "1").mkdir(parents=True)
        (tmp_path / "m" / "config.pbtxt").write_text(config + IO)
        for name, content in (files or {}).items():
            (tmp_path / "m" / name).write_bytes(content)
        return tmp_path

    return write


CASES = {
    "a TensorRT plan": ('platform: "tensorrt_plan"', {"1/model.plan": b"plan"}, "tensorrt"),
    "a plan without a platform": ("max_batch_size: 8", {"1/model.plan": b"plan"}, "tensorrt"),
    "a SavedModel": (
        'platform: "tensorflow_savedmodel"',
        {"1/model.savedmodel": b"tf"},
        "tensorflow",
    ),
    "a DALI pipeline": ('backend: "dali"', {"1/model.dali": b"dali"}, "dali"),
    "Triton's C++ BLS backend": ('backend: "bls"', {}, "bls"),
    "vLLM": ('backend: "vllm"', {"1/model.json": b"{}"}, "vllm"),
    "TensorRT-LLM": ('backend: "tensorrtllm"', {}, "tensorrtllm"),
}


@pytest.mark.parametrize(("config", "files", "name"), CASES.values(), ids=CASES)
def test_a_foreign_backend_is_told_wherever_its_repository_is_read(
    repository, config, files, name, capsys
):
    root = repository(config, files)
    told = str(foreign.FOREIGN_BACKENDS[name])
    (finding,) = validate_repository(root)
    assert told in finding.error.hint
    (found,) = nt.doctor(root).findings
    assert (found.severity, told in found.fix) == ("error", True)
    with nt.Server(gpus=()) as server:
        control = server.load_repository(root)
        assert told in repr(control)
        if "max_batch_size" not in config:
            with pytest.raises(nt.TritonError) as caught:
                server.load(config + IO, root / "m" / "1", name="m")
            assert told in caught.value.hint
    assert main(["validate", str(root)]) == 1
    assert told in "".join(capsys.readouterr())


@pytest.mark.parametrize("place", ["libtriton_mine.so", "1/libtriton_mine.so"])
@pytest.mark.parametrize("runtime", ["", 'runtime: "libtriton_mine.so"'])
def test_a_cpp_backend_of_the_repositorys_own(repository, place, runtime):
    backend = "python" if runtime else "mine"
    root = repository(f'backend: "{backend}" {runtime}', {place: ELF, "1/model.py": MODEL.encode()})
    (finding,) = validate_repository(root)
    assert str(foreign.CPP_BACKEND) in finding.error.hint
    with nt.Server(gpus=()) as server:
        assert str(foreign.CPP_BACKEND) in repr(server.load_repository(root))


@pytest.mark.medium
@pytest.mark.parametrize("place", ["batchstrategy.so", "1/batchstrategy.so", "named"])
def test_a_custom_batching_library(repository, place, caplog, tmp_path):
    config = 'backend: "python" max_batch_size: 8 dynamic_batching { }'
    files = {"1/model.py": MODEL.encode()}
    if place == "named":
        library = tmp_path / "mine.so"
        library.write_bytes(ELF)
        config += f' parameters {{ key: "TRITON_BATCH_STRATEGY_PATH" value {{ string_value: "{library}" }} }}'
    else:
        files[place] = ELF
    root = repository(config, files)
    told = str(foreign.BATCH_STRATEGY)
    (found,) = nt.doctor(root).findings
    assert (found.severity, found.cause) == ("warning", told)
    with nt.Server(gpus=()) as server, caplog.at_level(logging.WARNING):
        server.load_repository(root)
        assert server.models()[0].state == "READY"
    assert told in caplog.text


def test_a_library_without_a_batcher_to_use_it_is_nothing_to_tell(repository):
    root = repository('backend: "python"', {"1/model.py": MODEL.encode(), "batchstrategy.so": ELF})
    assert nt.doctor(root).findings == ()


def test_a_shape_tensor_of_another_platform(repository):
    root = repository('backend: "python"', {"1/model.py": MODEL.encode()})
    path = root / "m" / "config.pbtxt"
    path.write_text(path.read_text().replace("dims: 4 }", "dims: 4 is_shape_tensor: true }", 1))
    (finding,) = validate_repository(root)
    assert finding.error.hint == str(foreign.SHAPE_TENSOR)


def addsub(INPUT0: Any, INPUT1: Any) -> Any:  # noqa: N803 - Triton's names
    return INPUT0 + INPUT1, INPUT0 - INPUT1


@pytest.mark.medium
def test_the_example_of_the_page_does_what_the_cpp_one_does(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "from_cpp.md").read_text()
    _, _, code = page.rpartition("```python\n")
    (tmp_path / "model.py").write_text(code.partition("```")[0])
    tensors = "".join(
        f'{kind} {{ name: "{kind.upper()}{i}" data_type: TYPE_FP32 dims: 4 }}'
        for kind in ("input", "output")
        for i in (0, 1)
    )
    both = [np.arange(4, dtype=np.float32), np.full(4, 2, np.float32)]
    with nt.Server(gpus=()) as server:
        for name in ("addsub_python", "addsub_onnx"):
            server.load(tensors, addsub, name=name)
        server.load(tensors, tmp_path / "model.py", name="bls")
        out = server.infer("bls", {"INPUT0": both[0], "INPUT1": both[1]})
        assert out["OUTPUT0"].tolist() == [2, 3, 4, 5]
        assert out["OUTPUT1"].tolist() == [-2, -1, 0, 1]
        server.unload("addsub_onnx")
        with pytest.raises(nt.TritonError, match="addsub_onnx"):
            server.infer("bls", {"INPUT0": both[0], "INPUT1": both[1]})


def test_each_sentence_has_its_three_parts():
    known = [
        *foreign.FOREIGN_BACKENDS.values(),
        foreign.CPP_BACKEND,
        foreign.BATCH_STRATEGY,
        foreign.SHAPE_TENSOR,
    ]
    for one in known:
        assert str(one) == f"{one.what} {one.does}; here {one.way}"
        assert "(" in one.way or '"' in one.way or "{" in one.way  # something to type


def test_a_comment_in_another_encoding_and_a_tensor_without_rows(tmp_path):
    """Repositories found in the wild have both: bytes that are no UTF-8, and a step that finds nothing."""
    folder = tmp_path / "crops"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_bytes(
        'backend: "python" max_batch_size: 0  # 输入图片\n'
        'input { name: "BOXES" data_type: TYPE_FP32 dims: [ -1, 4 ] }\n'
        'output { name: "CROPS" data_type: TYPE_FP32 dims: [ -1, 4 ] }'.encode("gbk")
    )
    (folder / "1" / "model.py").write_text(
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        boxes = [request.inputs()[0].as_numpy() for request in requests]\n"
        '        found = [pb_utils.Tensor("CROPS", each[each[:, 0] > 0]) for each in boxes]\n'
        "        return [pb_utils.InferenceResponse([each]) for each in found]\n"
    )
    with nt.Server(gpus=()) as server:
        server.load_repository(tmp_path)
        boxes = np.array([[1, 2, 3, 4], [-1, 0, 0, 0]], np.float32)
        assert server.infer("crops", {"BOXES": boxes})["CROPS"].tolist() == [[1, 2, 3, 4]]
        empty = server.infer("crops", {"BOXES": boxes[:0]})["CROPS"]
        assert (empty.shape, empty.dtype) == ((0, 4), np.float32)
