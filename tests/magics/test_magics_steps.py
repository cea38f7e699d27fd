"""``%triton_step``, and steps by name in the cell of an ensemble."""

from __future__ import annotations

import io

import numpy as np
import pytest

import nbtriton as nt

pytest.importorskip("PIL")


def test_it_lists_the_steps(notebook):
    listed = notebook.ok("%triton_step -o steps").value
    assert notebook.names["steps"] is listed
    assert list(listed) == list(nt.step())


def test_it_loads_a_step_under_its_name_or_another(notebook):
    assert notebook.ok("%triton_step resize size=2,3").value.name == "resize"
    line = "%triton_step resize as thumb size=(4,5) filter=nearest --instances 2 -o kept"
    assert notebook.ok(line).value.name == "thumb"
    server = nt.server()
    assert server.infer("thumb", {"IMAGE": np.ones((1, 9, 9, 3), np.uint8)})["IMAGE"].shape == (
        1,
        4,
        5,
        3,
    )
    assert server.config("thumb").instance_group[0].count == 2
    assert server.config("resize").parameters["size"].string_value == "2,3"
    assert notebook.names["kept"].name == "thumb"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("%triton_step resise", "did you mean 'resize'?"),
        ("%triton_step resize sise=3,3", "did you mean 'size'?"),
        ("%triton_step resize size=3", "must be 2 whole numbers from 1 to 16384; found 3"),
        (
            "%triton_step resize thumb",
            "'thumb' is no parameter: write KEY=VALUE, KEY one of size, filter",
        ),
        ("%triton_step resize as", "'as' needs the name of the model"),
    ],
)
def test_bad_lines_get_one_sentence(notebook, line, text):
    ran = notebook(line)
    assert ran.error is not None
    assert text in f"{ran.error} {ran.text}"


def test_the_names_of_steps_are_completed(notebook):
    assert "resize" in notebook.complete("%triton_step re")
    assert "resize" in notebook.complete("%%triton_ensemble e\nsmall = re")


def test_an_ensembles_line_loads_a_step_by_name_and_says_so(notebook):
    ran = notebook.ok("%%triton_ensemble thumb\nSMALL = resize(IMAGE=IMAGE)")
    assert (
        "resize: no model had this name, so it is the ready step: resize size=224,224" in ran.text
    )
    image = np.zeros((1, 30, 20, 3), np.uint8)
    assert nt.server().infer("thumb", {"IMAGE": image})["SMALL"].shape == (1, 224, 224, 3)
    again = notebook.ok("%%triton_ensemble thumb\nSMALL = resize(IMAGE=IMAGE)")
    assert "ready step" not in again.text


@pytest.mark.parametrize(
    ("name", "hint"),
    [("leterbox", "did you mean the step 'letterbox'?"), ("thum", "did you mean 'thumb'?")],
)
def test_a_name_that_is_near_a_steps_is_answered_with_the_step(notebook, name, hint):
    notebook.ok("%triton_step resize as thumb")
    ran = notebook(f"%%triton_ensemble e\nSMALL = {name}(IMAGE=IMAGE)")
    assert hint in f"{ran.error} {ran.text}"


def test_a_model_of_that_name_is_taken_instead(notebook):
    notebook.ok(
        '%%triton_model resize\ndef resize(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:\n    return {"OUT": IN}'
    )
    ran = notebook.ok("%%triton_ensemble e\nOUT = resize(IN=IN)")
    assert "ready step" not in ran.text


def test_the_help_lists_the_steps(notebook):
    help_text = notebook.shell.find_line_magic("triton_step").__doc__
    assert "Resize images to one size" in help_text
    assert "%triton_step resize as thumb size=32,32 filter=bicubic" in help_text


def test_the_help_on_a_page_has_pictures_of_what_the_steps_do(notebook):
    pytest.importorskip("scipy")
    shell = notebook.shell

    def page(line):
        found = shell._ofind(line)
        return shell.inspector._get_info(found.obj, line, info=found)

    html = page("%triton_step")["text/markdown"]
    assert html.count("data:image/png") > 8
    assert "Resize images to one size" in html
    assert "text/markdown" not in page("%triton_dag")


def test_a_whole_pipeline_of_names_is_loaded_by_its_lines(notebook):
    ran = notebook.ok(
        "%%triton_ensemble prepare\n"
        "image = decode_image(DATA=DATA)\n"
        "fitted = letterbox(IMAGE=image)\n"
        "numbers = normalize(IMAGE=fitted)\n"
        "PLANES = to_chw(IMAGE=numbers)"
    )
    for name in ("decode_image", "letterbox", "normalize", "to_chw"):
        assert f"{name}: no model had this name, so it is the ready step: {name}" in ran.text
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (30, 20), (255, 0, 0)).save(file, "PNG")
    found = nt.server().infer("prepare", {"DATA": np.array([[file.getvalue()]], object)})
    assert found["PLANES"].shape == (1, 3, 640, 640)


def test_boxes_alone_may_be_named(notebook):
    notebook.ok("%%triton_ensemble best\nKEPT = nms(BOXES=BOXES, SCORES=SCORES)")
    boxes = np.array([[[0, 0, 9, 9], [1, 1, 9, 9]]], np.float32)
    found = nt.server().infer(
        "best", {"BOXES": boxes, "SCORES": np.array([[0.9, 0.8]], np.float32)}
    )
    assert found["KEPT"].tolist() == [[[0, 0, 9, 9]]]


def test_a_step_that_needs_a_file_says_so(notebook):
    ran = notebook("%%triton_ensemble texts\nids, mask = tokenize(TEXT=TEXT)")
    assert ran.error is not None
    text = f"{ran.error} {ran.text}"
    assert "the step 'tokenize' needs tokenizer: a file that tokenizers reads" in text
    assert "%triton_step tokenize tokenizer=FILE" in text
