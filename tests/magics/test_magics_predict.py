"""``%triton_profile`` and ``%triton_whatif``: the same as the calls, with the options of ``%triton_perf``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from IPython.core.magic_arguments import parse_argstring

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.report import PerfReport, finding_of
from nbtriton.lab.simulate.model_profile import Profile
from tests.magics.cells import DOUBLE

FAST = "--duration-s 0.1 --at-once 1 --batch-sizes 1"


@pytest.mark.medium
def test_a_profile_is_taken_by_the_next_whatif(doubled):
    with pytest.raises(InvalidArgumentError, match="'double' is not profiled in this notebook"):
        raise doubled("%triton_whatif double").error
    found = doubled.ok(f"%triton_profile double {FAST} -o kept").value
    assert isinstance(found, Profile)
    assert doubled.names["kept"] is found
    report = doubled.ok("%triton_whatif double -c 1,8 --instances 1,2 --priority 1,2").value
    assert isinstance(report, PerfReport)
    assert [point.value for point in report.points] == [1, 8, 1, 8]
    assert "4 levels simulated" in doubled.forms(report)["text/html"]


@pytest.mark.medium
def test_the_latest_measurement_is_beneath_its_prediction_where_all_is_the_same(doubled):
    doubled.ok(f"%triton_profile double {FAST}")
    doubled.ok("%triton_perf double -c 1,2 --instances 2 --request-count 20")
    same = doubled.ok("%triton_whatif double -c 2,4 --instances 1,2 --request-count 20").value
    (below,) = same.measured
    assert (below.value, below.configuration) == (2, {"instances": 2})
    assert any("times the predicted throughput" in note for note in same.notes)
    assert 'data-point="measured 0"' in doubled.forms(same)["text/html"]
    # The sentence is of the prediction.
    assert finding_of(same) == finding_of(replace(same, measured=()))
    # Another load, another policy, another setting: nothing is claimed.
    for options in (
        "-c 4",
        "-c 2",
        "-c 2 --instances 2 --priority 1",
        "--request-rate 2 --instances 2",
    ):
        line = f"%triton_whatif double {options} --request-count 20"
        assert doubled.ok(line).value.measured == (), options
    # A file's profile is of code that nobody knows here, and so is a profile of what was loaded before.
    doubled.ok(f"p = %triton_profile double {FAST}")
    line = "%triton_whatif double -c 2 --instances 2 --request-count 20"
    assert doubled.ok(line).value.measured
    assert doubled.ok(f"{line} --profile p").value.measured == ()
    doubled.ok(f"%%triton_model double --max-batch-size 8\n{DOUBLE}")
    doubled.ok("%triton_perf double -c 2 --instances 2 --request-count 20")
    assert doubled.ok(line).value.measured == ()


@pytest.mark.medium
def test_a_profile_comes_from_a_variable_or_a_file(doubled, tmp_path):
    doubled.ok(f"mine = %triton_profile double {FAST}")
    file = tmp_path / "double.json"
    doubled.names["mine"].save(file)
    line = "%triton_whatif double --profile {} --request-rate 100 --request-count 10"
    by_name, by_file = (doubled.ok(line.format(given)).value.frame for given in ("mine", file))
    assert by_name.equals(by_file)


def test_whatif_has_the_options_of_perf(notebook):
    perf, whatif, profile = (
        vars(parse_argstring(notebook.shell.find_line_magic(f"triton_{name}"), "m"))
        for name in ("perf", "whatif", "profile")
    )
    real = {
        "url", "protocol", "shared_memory", "output_shared_memory_size", "kind", "placement", "bg",
        "model_version", "chained",
    }  # fmt: skip
    assert whatif.keys() == perf.keys() - real | {"profile"}
    assert {name: whatif[name] for name in whatif if name != "profile"}.items() <= perf.items()
    assert {"inputs", "shapes", "input_data", "url", "protocol", "out"} < profile.keys()
    shown = notebook.ok("%triton_whatif?").out
    assert "--request-distribution" in shown
    assert "on a simulated server" in shown


def test_names_and_options_are_completed(doubled):
    for magic in ("triton_profile", "triton_whatif"):
        assert doubled.complete(f"%{magic} dou") == ["double"]
    assert "--at-once" in doubled.complete("%triton_profile double --at")
    assert "--max-queue-delay-us" in doubled.complete("%triton_whatif double --max-q")


@pytest.mark.medium
def test_a_model_is_tuned(doubled):
    doubled.ok(f"mine = %triton_profile double {FAST}")
    line = "%triton_tune double --p99 20s --profile mine --duration-s 0.5 --finalists 1 -o best"
    best = doubled.ok(f"{line} --instances 1 --max-queue-delay-us 0 -c 2").value
    assert doubled.names["best"] is best
    assert best.configuration["concurrency"] == 2
    assert "1 measured" in best.headline
    ran = doubled("%triton_tune double --p99 fast")
    assert "'fast' is not a time, such as 20ms" in str(ran.error)
