"""CSV for spreadsheets."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.layout.text import KEYS
from weft.views.files import neutral, rows_to_csv


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_one_row_a_layout_with_all_fields_and_parts(small_plan):
    found = rows(rows_to_csv(small_plan.to_dicts(), small_plan.COLUMNS))
    assert len(found) == len(small_plan.layouts)
    for row, one in zip(found, small_plan.layouts, strict=True):
        assert float(row["iteration_s"]) == one.iteration_s
        assert all(int(row[word]) == getattr(one.layout, word) for word in ("tp", "cp", "pp", "dp", "fsdp", "ep"))
        assert row["order"] == "/".join(one.layout.order)
        parts = [float(value) for name, value in row.items() if name.startswith("time_")]
        assert sum(parts) == pytest.approx(one.iteration_s)
        held = [float(v) for name, v in row.items() if name.startswith("memory_") and name != "memory_bytes"]
        assert sum(held) == pytest.approx(one.memory_bytes)
    assert {*KEYS} - {"data", "mbs", "vpp", "sp"} <= set(found[0])


def test_names_cannot_be_formulas(small_plan):
    named = [row | {"model": '=HYPERLINK("http://x")', "cluster": "@SUM(1)"} for row in small_plan.to_dicts()]
    text = rows_to_csv(named, small_plan.COLUMNS)
    assert rows(text)[0]["model"].startswith("'=")
    assert rows(text)[0]["cluster"] == "'@SUM(1)"


@given(st.text())
def test_no_text_is_left_a_formula(text):
    safe = neutral(text)
    assert safe in (text, f"'{text}")
    assert not safe.lstrip().startswith(("=", "+", "-", "@"))


@given(st.floats() | st.integers() | st.none())
def test_numbers_are_kept(number):
    assert neutral(number) is number
