"""``%triton_autoscale``: begins, shows and ends what scales a model."""

from __future__ import annotations

from tests.until import PATIENCE_S


def test_it_begins_shows_and_ends(doubled):
    scaling = doubled.ok("%triton_autoscale double --between 1:3 --p99 20ms -o kept").value
    assert doubled.names["kept"] is scaling
    assert doubled.ok("%triton_autoscale").value is scaling
    assert doubled.ok("%triton_autoscale double").value is scaling
    shown = doubled.forms(scaling)
    assert "Autoscale double between 1:3: 1 instance" in shown["text/plain"]
    assert "<table" in shown["text/html"]
    assert doubled.ok("%triton_autoscale --stop").value is scaling
    assert scaling.ended.wait(PATIENCE_S)  # stopping waits for five seconds


def test_wrong_lines_say_what_is_missing(doubled):
    for line, text in (
        ("", "no model is scaled"),
        ("double --stop", "model 'double' is not scaled"),
        ("--p99 20ms", "which model?"),
        ("double --p99 20ms --stop", "--stop goes with no --p99"),
        ("double --p99 20ms --between 8:1", "between must be the fewest and the most instances"),
        ("double --p99 20ms --between many", "--between"),
    ):
        ran = doubled(f"%triton_autoscale {line}")
        assert ran.error is not None
        assert text in str(ran.error) + ran.text, line
