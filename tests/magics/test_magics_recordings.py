"""``%triton_record`` and ``%triton_replay``: the same as the Python calls."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from IPython.core.magic_arguments import parse_argstring

import nbtriton as nt
from nbtriton.extensions.recordings import record, replay


def test_they_take_everything_that_the_python_calls_take(notebook):
    for name, call, line in (
        ("triton_record", record, "f"),
        ("triton_replay", replay, "f"),
    ):
        magic = notebook.shell.find_line_magic(name)
        defaults = vars(parse_argstring(magic, line))
        parameters = inspect.signature(call).parameters
        for option, parameter in list(parameters.items())[2:]:
            if option != "observer":
                assert defaults[option] == parameter.default, option


def test_traffic_is_recorded_and_replayed(doubled, tmp_path):
    path = tmp_path / "t.jsonl"
    tap = doubled.ok(f"%triton_record {path} --inputs").value
    assert "recording" in repr(tap)
    for _ in range(3):
        doubled.ok("%triton_infer double IN=[[1, 2, 3, 4]]")
    recording = doubled.ok("%triton_record --stop -o kept").value
    assert doubled.names["kept"] is recording
    assert recording.counts == {"double": 3}
    assert np.frombuffer(recording.inputs[0]["IN"].data, np.float32).tolist() == [1, 2, 3, 4]
    report = doubled.ok(f"%triton_replay {path} --speed 1000,2000 -o report").value
    assert list(report.frame["speed"]) == [1000, 2000]
    assert doubled.names["report"] is report
    again = tmp_path / "again.jsonl"
    doubled.ok(f"%triton_replay {path} --speed 1000 --record {again} --instances 1,2;")
    assert nt.types.Recording.load(again).counts == {"double": 3}


def test_a_profile(doubled, tmp_path):
    path = tmp_path / "t.jsonl"
    doubled.ok(f"%triton_record {path}")
    doubled.ok("%triton_infer double IN=[[1, 2, 3, 4]]")
    assert doubled.ok("%triton_record --stop").value.counts == {"double": 1}
    from tests.simulate.profiles import config, model_profile

    measured = model_profile(config("double"), {(1, 1): 1.0})
    doubled.names["profile"] = nt.types.Profile("double", {"double": measured})
    report = doubled.ok(f"%triton_replay {path} --profile profile").value
    assert report.simulated
    assert report.points[0].latency_p50_us == 1000


def test_every_recording_that_fails_is_named_and_the_others_end(doubled, tmp_path):
    full, closed, whole = (tmp_path / f"{name}.jsonl" for name in ("full", "closed", "whole"))
    full.symlink_to("/dev/full")
    taps = [doubled.ok(f"%triton_record {path}").value for path in (full, closed, whole)]
    doubled.ok("%triton_infer double IN=[[1, 2, 3, 4]]")
    taps[1]._writer._file.close()
    error = doubled("%triton_record --stop").error
    assert f"'{taps[0].path}': [Errno 28] No space left on device; '{taps[1].path}': " in str(error)
    assert error.hint.endswith("; recordings that are whole: 1")
    assert nt.types.Recording.load(whole).counts == {"double": 1}
    assert "no recording is being made" in doubled("%triton_record --stop").text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("%triton_record", "give a file"),
        ("%triton_record --stop", "no recording is being made"),
        ("%triton_record f.jsonl --stop", "goes with no other option"),
        ("%triton_record f.jsonl --models doubel", "did you mean 'double'?"),
        ("%triton_replay missing.jsonl", "there is no recording 'missing.jsonl'"),
        ("%triton_replay f.jsonl --speed fast", "is not a list of numbers such as 1,2,10"),
        ("%triton_replay f.jsonl --url a:1 --profile p", "give one of them"),
        ("%triton_replay f.jsonl --spede 2", "did you mean '--speed'?"),
    ],
)
def test_bad_lines_get_one_sentence(doubled, line, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = doubled(line)
    assert ran.error is not None
    assert text in f"{ran.error} {ran.text}"
    assert not list(tmp_path.glob("*.jsonl"))
