"""``%triton_infer``, ``%triton_status``, ``%triton_dag``, ``%triton_watch``."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.magics.ask import split_inputs
from nbtriton.model.config import as_config
from nbtriton.serving.server import server
from tests.magics.cells import ADD_UP, STREAM

INFER = "%triton_infer double IN=np.ones((2, 4), np.float32)"


@pytest.mark.parametrize(
    ("line", "options", "inputs"),
    [
        ("m", "m", {}),
        ("m IN=x", "m", {"IN": "x"}),
        ("m IN = np.ones((1, 4), np.float32)  B=y", "m", {"IN": "np.ones((1, 4), np.float32)", "B": "y"}),
        ("m IN=f(a=1, b = 2) OUT=z", "m", {"IN": "f(a=1, b = 2)", "OUT": "z"}),
        ("m IN=a == b", "m", {"IN": "a == b"}),
        ("m IN='x B=2' B=\"a C=1\"", "m", {"IN": "'x B=2'", "B": '"a C=1"'}),
        ("--version 2 m IN=x -o out", "--version 2 m -o out", {"IN": "x"}),
        ("m IN=x -1 --request-id 7 B=y", "m --request-id 7", {"IN": "x -1", "B": "y"}),
        ("m INPUT:0=x input/b.c=y", "m", {"INPUT:0": "x", "input/b.c": "y"}),
        ("m IN=[1, 2][0] if a else b", "m", {"IN": "[1, 2][0] if a else b"}),
        ("m вход=x 数=y", "m", {"вход": "x", "数": "y"}),
        ("""'a b' "the text"=x 'n'="y" --version 2""", "'a b' --version 2", {"the text": "x", "n": '"y"'}),
        ("""m IN=a == "b" """, "m", {"IN": 'a == "b"'}),
        (r"""m IN=str(x) + "\"=5" B='\'=1'""", "m", {"IN": r'str(x) + "\"=5"', "B": r"'\'=1'"}),
    ],
)  # fmt: skip
def test_inputs_are_separated_from_options(line, options, inputs):
    assert split_inputs(line) == (options, inputs)


def test_the_answer_is_that_of_the_python_call(doubled):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    doubled.names["x"] = x
    answer = doubled.ok("%triton_infer double IN=x").value
    assert np.array_equal(answer["OUT"], server().infer("double", {"IN": x})["OUT"])


def test_without_inputs_the_hint_is_a_line_that_works(doubled):
    ran = doubled("%triton_infer double")
    assert isinstance(ran.error, InvalidArgumentError)
    assert ran.error.hint == "%triton_infer double IN=np.ones((1, 4), 'float32')"
    doubled.names["np"] = np
    assert doubled.ok(ran.error.hint).value["OUT"].shape == (1, 4)


def test_a_result_shows_shapes_types_and_times_in_both_forms(doubled):
    forms = doubled.forms(doubled.ok(INFER).value)
    for form in ("text/plain", "text/html"):
        for word in ("OUT", "FP32", "[2,4]", "queue", "compute infer", "batch of 2"):
            assert word in forms[form], (form, word)
    assert 'role="img"' in forms["text/html"]


def test_a_result_says_that_it_is_of_the_first_execution(doubled):
    echo = '%%triton_model echo --max-batch-size 1\ndef echo(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:\n    return {"OUT": IN}\n'
    doubled.ok(echo)
    for first in (True, False):
        result = doubled.ok("%triton_infer echo IN=[[1]]").value
        assert result.timing.first == first
        for form in ("text/plain", "text/html"):
            assert ("first execution" in doubled.forms(result)[form]) == first
    # Warmup was the first one.
    warmup = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: 1 zero_data: true } }'
    doubled.ok(f'%%triton_config echo\nmodel_warmup {{ name: "zeros" batch_size: 1 {warmup} }}')
    assert not doubled.ok("%triton_infer echo IN=[[1]]").value.timing.first


def test_bytes_and_torch_results_can_be_shown(doubled):
    doubled.ok(
        '%%triton_model echo\nimport torch\ndef echo(B: "BYTES[2]") -> {"OUT": "BYTES[2]"}:\n'
        '    return {"OUT": B}\n'
    )
    forms = doubled.forms(doubled.ok("%triton_infer echo B=[b'<b>', b'y' * 99]").value)
    assert "b'<b>'" in forms["text/plain"]
    assert "<b>" not in forms["text/html"].replace("<b>y", "")
    answer = doubled.ok("%triton_infer double IN=torch.ones(1, 4)").value
    assert "2, 2, 2, 2" in doubled.forms(answer)["text/plain"]


def test_a_list_of_results_stays_short(doubled):
    doubled.names["results"] = [doubled.ok(INFER).value] * 3
    text = doubled.forms(doubled.names["results"])["text/plain"]
    assert len(text.splitlines()) <= 3


def test_options_are_expanded_and_expressions_are_python(doubled):
    doubled.ok("name, d = 'double', {'k': np.ones((1, 4), np.float32)}")
    for head in ("{name}", "$name"):
        answer = doubled.ok(f"%triton_infer {head} IN={{'a': d['k']}}['a'] -o kept").value
        assert doubled.names["kept"] is answer
    assert answer["OUT"].shape == (1, 4)


def test_the_users_own_lines_stand_above_an_error(doubled):
    doubled.ok("def ask(x):\n    return nt.server().infer('double', {'IN': x})")
    asked = doubled.shell.execution_count - 1
    ran = doubled("x = np.ones((1, 4), np.float32)\nask(x)\nask(x.astype('f8'))\nask(x)")
    lines = ran.out.splitlines()
    assert lines[:4] == [
        f"Cell In[{asked + 1}], line 3",
        "    ask(x.astype('f8'))",
        f"Cell In[{asked}], line 2, in ask",
        "    return nt.server().infer('double', {'IN': x})",
    ]
    assert lines[4].startswith("InvalidArgumentError [INVALID_ARG]: ")
    # Of several magics in a cell the one that failed; a magic alone needs no line.
    ran = doubled("for x in [1, 2]:\n    %triton_infer double IN=np.ones((1, 4))")
    assert ran.out.splitlines()[1] == "    %triton_infer double IN=np.ones((1, 4))"
    assert doubled("%triton_infer double IN=np.ones((1, 4))").out.startswith("InvalidArgumentError")


def test_a_model_that_raised_shows_the_line_of_its_cell(notebook):
    notebook.ok(
        '%%triton_model bad\ndef bad(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:\n    return nowhere\n'
    )
    cell = notebook.shell.execution_count - 1
    for line in ("%triton_infer bad IN=[1]", "nt.server().infer('bad', {'IN': [1]})"):
        ran = notebook(line)
        assert f"Cell In[{cell}], line 3, in bad\n    return nowhere\n" in ran.out
        assert "nbtriton/" not in ran.out


def test_an_expression_that_raises_is_shown_without_our_frames(doubled):
    ran = doubled("%triton_infer double IN=nowhere + 1")
    assert isinstance(ran.error, NameError)
    assert ran.out.splitlines()[0] == "in IN=nowhere + 1"
    assert "File" not in ran.out
    for line, text in (
        ("double 3", "'3' is neither an option"),
        ("double IN=1 +", "IN=1 +: "),
        ("double IN=1 IN=2", "the input 'IN' is given twice"),
        ('"double IN=1', "No closing quotation"),
    ):
        ran = doubled(f"%triton_infer {line}")
        assert text in ran.err
        assert len(ran.text.strip().splitlines()) == 1


@pytest.mark.medium
def test_a_model_whose_name_has_spaces_is_named_in_quotes(notebook):
    cell = 'def f(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:\n    return IN\n'
    notebook.ok(f"%%triton_model 'my model'\n{cell}")
    assert notebook.ok('%triton_infer "my model" "IN"=[2]').value["OUT"].tolist() == [2]
    assert len(notebook.ok("%triton_status 'my model'").value) == 1
    notebook.ok("%triton_dag 'my model'")
    figure = notebook.ok('%triton_figure "my model" --request-count 1').value
    assert len(figure.batches) == 1
    assert "run %triton_profile 'my model', or" in str(
        notebook("%triton_whatif 'my model'").error.hint
    )
    proposal = "Proposal('my model', 'why', 'dynamic_batching { }').cell"
    notebook.ok("from nbtriton.lab.explain.findings import Proposal")
    notebook.ok(notebook.ok(proposal).value)
    assert notebook.ok("nt.server().config('my model').HasField('dynamic_batching')").value
    assert "'my model'" in notebook.complete("%triton_infer ")
    assert notebook.complete("%triton_infer 'my") == ["my model"]
    assert "IN=" in notebook.complete("%triton_infer 'my model' ")
    notebook.ok("%triton_unload 'my model'")
    assert not notebook.ok("nt.server().models()").value


def test_a_semicolon_silences(doubled):
    ran = doubled.ok(INFER + ";")
    assert not ran.out


def test_status_is_a_frame_with_a_row_a_version(doubled):
    for _ in range(3):
        doubled.ok(INFER)
    frame = doubled.ok("%triton_status double").value
    assert isinstance(frame, pd.DataFrame)
    row = frame.iloc[0]
    assert (row.model, row.version, row.state, row.max_batch_size) == ("double", 1, "READY", 8)
    assert (row.requests, row.inferences, row.executions, row.failed) == (3, 6, 3, 0)
    assert row.mean_batch_size == 2
    assert row.instances == "1 \u00d7 CPU"
    assert row.compute_us > 0
    assert len(doubled.ok("%triton_status").value) == 1


def test_rows_of_two_versions_are_told_apart_at_first_sight(doubled):
    html = doubled.forms(doubled.ok("%triton_status").value)["text/html"]
    assert "version" not in html.partition("<details")[0]
    for version in (1, 2):
        doubled.ok(
            "nt.server().load('name: \"ab\" max_batch_size: 8 version_policy { all { } }', double, "
            f"name='ab', version={version})"
        )
    forms = doubled.forms(doubled.ok("%triton_status ab").value)
    assert "version" in forms["text/html"].partition("<details")[0]
    assert "version" in forms["text/plain"]


def test_the_status_names_what_was_counted_before_a_load(doubled):
    doubled.ok(INFER)
    assert "last load" not in doubled.ok("%triton_status").out
    doubled.ok("%%triton_config double\nmax_batch_size: 3")
    ran = doubled.ok("%triton_status double")
    assert "before it were 1 of 'double'" in ran.out
    assert list(ran.value["requests"]) == [0]


def test_a_live_status_follows_the_server(doubled, monkeypatch):
    monkeypatch.setattr(doubled.shell, "kernel", object(), raising=False)
    shown = doubled.ok("table = %triton_status double --live").shown
    assert "double" in shown[0]["text/html"]
    doubled.ok(INFER)
    assert doubled.names["table"].frame["requests"].tolist() == [1]
    ended = doubled.ok("table.stop()").shown
    assert ended[-1]["text/html"] != shown[0]["text/html"]


@pytest.mark.parametrize(
    "magic",
    [
        "%triton_watch",
        "%triton_dag double --live",
        "%triton_timeline double --live",
        "%triton_status --live",
    ],
)
def test_a_terminal_prints_what_a_page_would_show_live(doubled, magic):
    doubled.ok("%triton_infer double IN=np.ones((1, 4), np.float32)")
    said = doubled.ok(magic).out
    assert "double" in said
    assert "a terminal shows nothing live, so run it again" in said
    assert not doubled.ok(f"kept = {magic}").out
    assert "double" in doubled.ok("kept").out


@pytest.mark.parametrize(
    "magic", ["%triton_watch", "%triton_dag double --live", "%triton_status --live"]
)
def test_what_is_on_the_screen_is_not_the_cells_value_too(doubled, monkeypatch, magic):
    monkeypatch.setattr(doubled.shell, "kernel", object(), raising=False)
    ran = doubled.ok(magic)
    assert len(ran.shown) == 1
    assert "object at" not in ran.out
    assert doubled.forms(ran.value) == {}


def test_status_says_why_an_ensemble_is_not_ready(doubled):
    doubled.ok("%%triton_ensemble e\nOUT = double(IN=IN)\n")
    doubled.ok("%triton_unload double")
    state = doubled.ok("%triton_status e").value.iloc[0].state
    assert state.startswith("UNAVAILABLE: ")
    assert "double" in state
    assert isinstance(doubled("%triton_infer e IN=[[1, 2, 3, 4]]").error, TritonError)


def test_the_graph_has_every_form(doubled):
    doubled.ok("%%triton_ensemble e\nhalf = double(IN=IN)\nOUT = double(IN=half)\n")
    forms = doubled.forms(doubled.ok("%triton_dag e -o graph").value)
    assert set(forms) >= {"text/plain", "text/html", "image/svg+xml"}
    for form in forms.values():
        assert "double" in form
        assert "half" in form


def test_a_watch_ends_as_a_picture(doubled):
    shown = doubled.ok("watch = %triton_watch").shown
    assert shown == []  # no page here: only what is left at the end is shown
    doubled.ok(INFER)
    ran = doubled.ok("watch.stop()")
    assert "double" in ran.shown[0]["text/html"]
    assert "double" in ran.shown[0]["text/plain"]
    assert not doubled.ok("watch.stop()").shown


def test_a_decoupled_model_shows_its_stream(notebook):
    notebook.ok(STREAM)
    words = notebook.ok("%triton_infer count N=[25]").value
    assert [int(word["I"][0]) for word in words] == list(range(25))
    assert len(words.times_ms) == 25
    assert list(words.times_ms) == sorted(words.times_ms)
    forms = notebook.forms(words)
    for form in ("text/plain", "text/html"):
        for text in ("25 responses, the first after", "word 14", "leaves out 15 to 19", "word 24"):
            assert text in forms[form], (form, text)
        assert "word 17" not in forms[form]
    assert list(words.to_frame()["TEXT"])[24] == "word 24"
    assert (
        notebook.forms(notebook.ok("%triton_infer count N=[0]").value)["text/plain"]
        == "no response"
    )


def test_an_error_in_a_stream_says_what_came_before(notebook):
    notebook.ok(STREAM)
    ran = notebook("%triton_infer count N=[-3]")
    assert "no more" in ran.out
    assert "3 responses came before it" in ran.out


@pytest.mark.parametrize("key", ["7", '"7"', "night"])
def test_a_sequence_is_one_request_a_line(notebook, key):
    notebook.ok(ADD_UP)
    sums = [
        notebook.ok(f"%triton_infer add_up X=[[{x}]] --sequence-id {key} {flag}").value["SUM"][0, 0]
        for x, flag in ((1, "--sequence-start"), (2, ""), (3, "--sequence-end"))
    ]
    assert sums == [1, 3, 6]
    ran = notebook(f"%triton_infer add_up X=[[1]] --sequence-id {key}")
    assert "must specify the START flag" in ran.out
    assert "begins with --sequence-id ID --sequence-start" in ran.out
    assert "begins with --sequence-id" in notebook("%triton_infer add_up X=[[1]]").out


def test_an_output_of_another_shape_than_declared_is_said(notebook):
    notebook.ok("""%%triton_model short
def short(IN: "FP32[4]") -> {"OUT": "FP32[4]", "REST": "FP32[-1]"}:
    return {"OUT": IN[:2], "REST": IN[2:]}
""")
    ran = notebook.ok("%triton_infer short IN=[1, 2, 3, 4]")
    assert ran.value["OUT"].shape == (2,)
    assert "OUT has the shape [2], where the configuration says [4]: Triton passes it on" in ran.out
    assert ran.out.count("has the shape") == 1  # -1 is any number


def test_an_output_as_declared_needs_no_words(doubled):
    assert "has the shape" not in doubled.ok("%triton_infer double IN=[[1, 2, 3, 4]]").out


def test_results_handles_and_options_have_their_form_without_the_extension(doubled):
    # marimo and any other notebook without IPython's formatters ask the value itself.
    result = doubled.ok("%triton_infer double IN=[[1, 2, 3, 4]]").value
    for value, words in (
        (result, "compute infer"),
        (server().load(name="double"), "max_batch_size 8"),
        (server().options, "rate_limit"),
    ):
        forms = value._repr_mimebundle_()
        assert words in forms["text/plain"]
        assert words in forms["text/html"]
        assert "<table" in forms["text/html"]


def test_the_completed_configuration_is_there_to_copy(doubled):
    done = doubled.ok("%triton_status double --config")
    again = as_config(done.out.partition("\nOut[")[0])
    assert again == server().config("double")
    assert again.instance_group[0].count == 1  # which the cell did not say
    assert len(done.value) == 1
