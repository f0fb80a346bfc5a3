"""Tables of constants: which count, in what order, and how files replace them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from weft.cluster.calibration import (
    Calibration,
    calibration,
    calibration_from,
    constants,
    parse_tables,
    read_calibration,
    shipped_tables,
    tables_to_toml,
)
from weft.errors import BadInput

TEXT = """
[a100]
gemm_efficiency = 0.7
attention_efficiency = 0.5
[a100-40gb]
like = "a100"
gemm_efficiency = 0.6
[stack.old]
pass_overhead = 3.0
attention_efficiency = 0.4
[stack.older]
like = "stack.old"
pass_overhead = 4.0
[stack.old_on_a100]
pass_overhead = 2.0
[stack.old_on_a100-40gb]
like = "stack.old_on_a100"
attention_efficiency = 0.3
"""


@pytest.mark.parametrize(
    ("accelerator", "stack", "gemm", "attention", "passes"),
    [
        ("a100-80gb", None, 0.7, 0.5, 1.0),
        ("a100-40gb", None, 0.6, 0.5, 1.0),
        ("a100-40gb", "old", 0.6, 0.3, 2.0),
        ("a100-80gb", "old", 0.7, 0.4, 2.0),
        ("a100-80gb", "older", 0.7, 0.4, 4.0),
        ("a100-80gb", "unheard", 0.7, 0.5, 1.0),
        ("other", "old", Calibration().gemm_efficiency, 0.4, 3.0),
    ],
)
def test_tables_by_accelerator_and_stack(accelerator, stack, gemm, attention, passes) -> None:
    found = calibration_from(parse_tables(TEXT), accelerator, stack)
    assert (found.gemm_efficiency, found.attention_efficiency, found.pass_overhead) == (gemm, attention, passes)


def test_every_constant_is_described_and_its_default_plausible() -> None:
    table = constants()
    assert [name for name, *_ in table] == [f.name for f in fields(Calibration) if f.type == "float"]
    assert all(low <= getattr(Calibration(), name) <= high for name, _, low, high, _ in table if "power_w" not in name)


def test_written_tables_are_read_again() -> None:
    shipped = shipped_tables()
    again = parse_tables(tables_to_toml(shipped, comment="a test"))
    for name in shipped.tables:
        assert again.tables[name] == shipped.tables[name]


def test_a_file_of_tables_counts_over_what_is_shipped(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[a100]\ngemm_efficiency = 0.5\n", encoding="utf-8")
    found = read_calibration(str(path), "a100-80gb")
    assert found.gemm_efficiency == 0.5
    assert found.memory_efficiency == calibration("a100-80gb").memory_efficiency
    assert read_calibration(str(path), "h100").gemm_efficiency == calibration("h100").gemm_efficiency


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[a100]\nlike = "b100"\n', "like 'b100', which is not another table"),
        ('[a100]\nlike = "a100"\n', "which is not another table"),
        ("[a100]\ngemm_efficiency = 5\n", "outside"),
        ("[a100]\nspeed = 5\n", "unknown constant 'speed'"),
        ("gemm_efficiency = 0.5\n[a100]\n", "gemm_efficiency is not a table"),
        ("stack = 1\n[a100]\n", r"stack is not a table -- put constants under \[stack.NAME\]"),
        ("gemm_efficiency = 1e999", "outside"),
    ],
)
def test_bad_files(tmp_path, text, message) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=message):
        read_calibration(str(path), "a100-80gb")
