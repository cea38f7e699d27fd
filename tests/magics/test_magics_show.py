"""`%triton_show`: a stream's newest frame stays in the notebook, with what was found in it."""

from __future__ import annotations

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from tests.widgets.test_widgets_frames import CONFIG, street


@pytest.fixture
def shown(notebook):
    model = street()
    model.go.set()
    notebook.names.update(Street=model, street_config=CONFIG)
    notebook.ok("nt.server().load(street_config, Street, name='street')")
    yield notebook
    model.go.set()


def test_the_newest_frame_stays_with_its_boxes(shown):
    ran = shown.ok("view = %triton_show street --labels car,person --wait COUNT=[4]")
    assert not ran.error
    text = "street: frame 3; 2 boxes; ended\ncar #4\nperson"
    assert repr(shown.names["view"]) == text


def test_the_python_call_shows_the_same(shown):
    shown.ok("%triton_show street --labels car,person --wait -o a COUNT=[4]")
    shown.ok("b = nt.show(nt.server(), 'street', {'COUNT': [4]}, labels=['car', 'person'], wait=True)")  # fmt: skip
    names = shown.names
    assert repr(names["a"]) == repr(names["b"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%triton_show", "name"),
        ("%triton_show street url", "neither an option nor an input"),
        ("%triton_show strete COUNT=[1]", "did you mean 'street'"),
    ],
)
def test_a_wrong_line_is_answered_in_a_sentence(shown, line, words):
    assert words in shown(line).text
