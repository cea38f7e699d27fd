"""Tables for pages and terminals."""

from __future__ import annotations

import numpy as np
import pytest

from nbtriton.drawing import Column, table_html, table_text

COLUMNS = ["model", "concurrency", "infer_per_s", "p99_ms", "failed"]
ROWS = [["digits", 1, 174.04, 7.6, 0], ["digits", 32, 1969.2, 20.84, None]]


def test_text(golden):
    golden("table.txt", table_text(COLUMNS, ROWS, caption="Sweep"))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("p99_ms", Column("p99", "ms")),
        ("max_queue_delay_us", Column("max queue delay", "µs")),
        ("infer_per_s", Column("throughput", "infer/s")),
        ("requests_per_s", Column("requests", "1/s")),
        ("status", Column("status")),
        ("_s", Column(" s")),
    ],
)
def test_units_come_from_the_name(name, column):
    assert Column.of(name) == column


def test_html_is_plain_and_escaped():
    html = table_html(["<b>"], [["<script>"]], caption="a & b")
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;" in html
    assert "a &amp; b" in html
    assert "tabular-nums" in html


def test_numbers_are_aligned_right_and_words_left():
    html = table_html(["name", "n"], [["a", 1]])
    assert '<td style="text-align:left;' in html
    assert '<td style="text-align:right;' in html


def test_formats_win():
    html = table_html(["x", "y"], [[1.23456, 2.0]], {"x": ".1f", "y": lambda value: f"<{value}>"})
    assert ">1.2<" in html
    assert "&lt;2.0&gt;" in html


def test_numpy_scalars_are_numbers():
    assert "1\u202f234" in table_text(["n"], [[np.int64(1234)]])
    assert "1.23" in table_text(["x"], [[np.float32(1.2345)]])


def test_no_rows():
    assert "<tbody></tbody>" in table_html(COLUMNS, [])
    assert len(table_text(COLUMNS, []).splitlines()) == 2


def test_wide_characters_keep_columns_aligned():
    lines = table_text(["a", "b"], [["日本", "x"], ["ab", "x"]]).splitlines()
    assert lines[2] == "日本  x"
    assert lines[3] == "ab    x"


def test_a_sentence_beside_long_names_has_room():
    html = table_html(
        ("name", "why"),
        [("a_name_of_one_long_word_that_does_not_break", "all who wait leave at once, at last")],
    )
    first, second = html.split("<th ")[1:]
    assert "min-width" not in first
    assert "min-width" in second
