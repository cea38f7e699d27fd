"""The ready steps as a library: what each declares, and how a model is made of one."""

from __future__ import annotations

import ast
import sys

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, LoadError, NotFoundError
from nbtriton.extensions.steps import Declaration
from nbtriton.model.config import format_pbtxt

STEPS = list(nt.step())
# What a model.py may import beside the library that it wraps.
PLAIN = {*sys.stdlib_module_names, "numpy", "triton_python_backend_utils"}
LINES = {"video": 400, "bytetrack": 165}
LIBRARIES = {"PIL", "scipy", "tokenizers", "torch", "av"}


@pytest.mark.parametrize("name", STEPS)
def test_a_folder_is_small_and_says_what_it_is(name):
    declared = Declaration(name)
    text = declared.file.read_text()
    lines = text.splitlines() + (declared.folder / "config.pbtxt").read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.lstrip().startswith(('"""', "#"))]
    assert len(code) <= LINES.get(name, 80)
    assert declared.sentence.endswith(".")
    imported = {
        (getattr(node, "module", None) or alias.name).partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
        for alias in node.names
    }
    assert imported <= PLAIN | LIBRARIES
    assert all(one.help for one in declared.parameters.values())


@pytest.mark.parametrize("name", STEPS)
def test_the_defaults_are_allowed(name):
    pytest.importorskip("PIL")
    declared = Declaration(name)
    declared.check({key: one.default for key, one in declared.parameters.items()})


def test_an_unknown_step_is_answered_with_the_nearest():
    with pytest.raises(NotFoundError) as raised:
        nt.step("resise")
    assert raised.value.message == "there is no step 'resise'"
    assert raised.value.hint == "did you mean 'resize'?"


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"sise": 3}, "the step 'resize' has no parameter 'sise'", "did you mean 'size'?"),
        (
            {"size": 3},
            "size of the step 'resize' must be 2 whole numbers from 1 to 16384; found 3",
            "size: height and width in pixels (224,224)",
        ),
        (
            {"size": (0, 9)},
            "size of the step 'resize' must be 2 whole numbers from 1 to 16384; found 0,9",
            "size: height and width in pixels (224,224)",
        ),
        (
            {"filter": "cubic"},
            "filter of the step 'resize' must be bilinear, bicubic, nearest; found cubic",
            "filter: how pixels between pixels are made (bilinear)",
        ),
    ],
)
def test_wrong_parameters_are_named_with_their_bounds(given, message, hint):
    with pytest.raises(InvalidArgumentError) as raised:
        nt.step("resize", **given)
    assert (raised.value.message, raised.value.hint) == (message, hint)


def test_the_file_itself_checks_its_parameters_again(server):
    """As in the real server, where the configuration may be written by hand."""
    config = 'parameters { key: "size" value { string_value: "0,9" } }'
    with pytest.raises(LoadError, match=r"size is '0,9', allowed is \(1, 16384\), as in '224,224'"):
        server.load(config, nt.step("resize"), name="m")
    config = 'parameters { key: "sise" value { string_value: "3,9" } }'
    with pytest.raises(LoadError, match="unknown parameter 'sise', known are size, filter"):
        server.load(config, nt.step("resize"), name="m")


def test_what_is_given_lies_over_the_steps_own_configuration(server):
    server.load("max_batch_size: 2", nt.step("resize", size=(3, 5)), name="m")
    config = server.config("m")
    assert config.max_batch_size == 2
    assert config.parameters["size"].string_value == "3,5"
    assert [list(one.dims) for one in config.input] == [[-1, -1, 3]]
    # A whole configuration, too.
    server.load({"name": "m", "backend": "python", "max_batch_size": 4}, nt.step("resize"))
    assert server.config("m").max_batch_size == 4
    image = np.zeros((4, 8, 8, 3), np.uint8)
    assert server.infer("m", {"IMAGE": image})["IMAGE"].shape == (4, 224, 224, 3)


def test_a_step_is_not_changed_by_a_load(server):
    made = nt.step("resize")
    before = format_pbtxt(made.config)
    server.load("max_batch_size: 2", made, name="a")
    server.load(None, made, name="b")
    assert format_pbtxt(made.config) == before
    assert server.config("b").max_batch_size == 64


def test_steps_share_their_threads_although_each_has_the_shared_files(caplog):
    with nt.Server(gpus=(), isolation="auto") as server:
        for name in ("resize", "crop", "letterbox"):
            server.load(None, nt.step(name), name=name)
        assert set(nt.status(server)["isolation"]) == {"thread"}
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


def test_export_copies_the_folder(server, tmp_path):
    server.load(None, nt.step("resize", size=(3, 5)), name="thumb")
    server.export(tmp_path)
    declared = Declaration("resize")
    for name in ("model.py", "shared/parameters.py", "shared/tensors.py"):
        source = (
            declared.file if name == "model.py" else declared.folder.parent / name
        ).read_bytes()
        assert (tmp_path / "thumb" / "1" / name).read_bytes() == source
    with nt.Server(gpus=()) as other:
        other.load_repository(tmp_path)
        image = np.arange(2 * 9 * 9 * 3, dtype=np.uint8).reshape(2, 9, 9, 3)
        here = server.infer("thumb", {"IMAGE": image})["IMAGE"]
        assert (other.infer("thumb", {"IMAGE": image})["IMAGE"] == here).all()


def test_the_list_has_every_step_with_its_bounds_and_a_line_to_type():
    listed = repr(nt.step())
    for name in STEPS:
        assert f"{name}: {Declaration(name).sentence}" in listed
    assert "size=224,224: height and width in pixels; 2 whole numbers from 1 to 16384" in listed
    assert "boxes, scores, classes = nms(BOXES=x, SCORES=y, CLASSES=z)" in listed


def test_a_file_goes_along_whatever_the_version(server, tmp_path):
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    server.load(None, nt.step("top_k", labels=tmp_path / "names.txt"), name="m", version=3)
    server.export(tmp_path / "out")
    (tmp_path / "names.txt").unlink()
    with nt.Server(gpus=()) as other:
        other.load_repository(tmp_path / "out")
        found = other.infer("m", {"SCORES": np.array([[1, 2]], np.float32)}, version=3)
    assert found["LABELS"].tolist() == [[b"bee", b"ant"]]


@pytest.mark.slow
def test_the_list_shows_what_each_step_makes_of_a_sample():
    pytest.importorskip("PIL")
    pytest.importorskip("scipy")
    cells = nt.step()._repr_html_().split("<tr>")[1:]
    seen = {name: cell for name, cell in zip(STEPS, cells, strict=True) if "→" in cell}
    # Without a sample: what needs a file, or an address.
    assert set(STEPS) - set(seen) <= {"tokenize", "video", "bytetrack"}
    assert seen["letterbox"].count("data:image/png") == 2
    assert seen["nms"].count("<rect") == 4 + 2
