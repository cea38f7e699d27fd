"""Tables for pages and terminals."""

from __future__ import annotations

import math
import pickle
import re

import numpy as np
import pandas as pd
import pytest

from nbtriton.drawing.frames import TableFrame
from nbtriton.drawing.table import Column, compact_html, compact_text, table_html, table_text

COLUMNS = ["model", "concurrency", "infer_per_s", "p99_ms", "failed"]
ROWS = [["digits", 1, 174.04, 7.6, 0], ["digits", 32, 1969.2, 20.84, None]]


def test_a_table_for_terminals_has_a_caption_and_units(golden):
    golden("table.txt", table_text(COLUMNS, ROWS, caption="Sweep"))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("p99_ms", Column("p99", "ms")),
        ("max_queue_delay_us", Column("max queue delay", "µs", setting=True)),
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
    cells = re.findall(r'<t[hd][^>]*style="text-align:(\w+);[^>]*>([^<]*)', html)
    assert cells == [("left", "name"), ("right", "n"), ("left", "a"), ("right", "1")]


def test_numpy_scalars_are_numbers():
    assert "1\u202f234" in table_text(["n"], [[np.int64(1234)]])
    assert "1.23" in table_text(["x"], [[np.float32(1.2345)]])


def test_a_table_without_rows_has_its_heading_alone():
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


def test_long_names_may_be_broken_in_sentences_too():
    (cell,) = re.findall(
        "<td [^>]*>(.*)</td>", table_html(["why"], [["a_b without max_queue_delay_microseconds"]])
    )
    assert cell == "a_b without max_<wbr>queue_<wbr>delay_<wbr>microseconds"


def test_a_compact_table_has_the_important_columns_and_all_of_them_closed():
    names = [f"number_of_things_{at}" for at in range(12)]
    html = compact_html(names, [list(range(12))], (11, 3))
    short, _, whole = html.partition("<details")
    assert "number of things 11" in short
    assert "number of things 3" in short
    assert short.count("<th ") < 12
    assert whole.count("<th ") == 12
    assert "all 12 columns" in whole
    assert "<details" not in compact_html(names, [list(range(12))], (11,), rest=False)
    # What fits is there once.
    assert compact_html(["a", "b"], [[1, 2]], ()).count("<th ") == 2
    text = compact_text(names, [list(range(12))], (11, 3))
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert text.splitlines()[-1].startswith("and number of things ")


def test_a_frame_that_shows_itself_is_a_dataframe():
    plain = pd.DataFrame({"model": ["a", "b"], "queue_us": [1500.0, math.nan], "failed": [0, 1]})
    frame = TableFrame(plain, ("model",))
    pd.testing.assert_frame_equal(pd.DataFrame(frame), plain)
    assert "1.50" in repr(frame)
    assert "queue [ms]" in repr(frame)
    assert "NaN" not in frame._repr_html_()
    assert TableFrame.__name__ not in type(frame[["model"]]).__name__
    again = pickle.loads(pickle.dumps(frame))
    assert repr(again) == repr(frame)
    long = TableFrame(pd.concat([plain] * 30), most=40)
    assert repr(long).startswith("the last 40 of 60 rows\n")
    assert repr(long).count("1.50") == 20
    none = TableFrame(plain[:0], empty="no models & no rows")
    assert repr(none) == "no models & no rows"
    assert "no models &amp; no rows" in none._repr_html_()
    assert repr(frame[frame["failed"] > 0].copy()).startswith("  model")  # pandas' own form
