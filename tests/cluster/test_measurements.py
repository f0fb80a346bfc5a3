"""Measured times of a calibration file: written and read back, refused where they mean nothing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import read_calibration
from weft.cluster.calibration import (
    AttentionTime,
    Calibration,
    CollectiveTime,
    Measurements,
    MemoryTime,
    ProductTime,
    calibration_from,
    parse_tables,
    with_constants,
    write_calibration,
)
from weft.documents import parse_toml
from weft.errors import BadInput

positive = st.floats(1e-9, 1e15, allow_nan=False)
sides = st.integers(1, 2**40).map(float)
phases = st.sampled_from(("any", "forward", "input-gradient", "weight-gradient"))
names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12)
found = st.builds(
    Measurements,
    products=st.lists(
        st.builds(
            ProductTime,
            m=sides,
            n=sides,
            k=sides,
            seconds=positive,
            groups=sides,
            phase=phases,
            precision=st.sampled_from(("bf16", "fp8", "fp32")),
        ),
        max_size=3,
    ).map(tuple),
    attention=st.lists(
        st.builds(
            AttentionTime,
            batch=sides,
            sequence=sides,
            heads=sides,
            kv_heads=sides,
            qk_dim=sides,
            v_dim=sides,
            seconds=positive,
            phase=phases,
            precision=st.sampled_from(("bf16", "fp32")),
        ),
        max_size=3,
    ).map(tuple),
    memory=st.lists(st.builds(MemoryTime, name=names, Bps=positive, latency_s=positive, phase=phases), max_size=3).map(
        tuple
    ),
    collectives=st.lists(
        st.builds(
            CollectiveTime,
            kind=st.sampled_from(("all-reduce", "send")),
            scope=names,
            Bps=positive,
            latency_s=positive,
            step_s=positive,
            ranks=st.integers(0, 10**6),
        ),
        max_size=3,
    ).map(tuple),
)


@given(found)
def test_what_is_written_reads_back(measured: Measurements) -> None:
    values = parse_toml(write_calibration({}, source="here", measured=measured), "here")
    read = with_constants(Calibration(), values, where="here")
    assert (read.measured or Measurements()) == measured


def test_a_table_of_an_accelerator_may_hold_times() -> None:
    text = "[h100]\ngemm_efficiency = 0.6\nproducts = [{m = 8, n = 8, k = 8, seconds = 1e-6}]\n"
    read = calibration_from(parse_tables(text), "h100")
    assert read.measured is not None
    assert read.measured.products[0].seconds == 1e-6
    assert calibration_from(parse_tables(text), "a100").measured is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("products = [{m = 8, n = 8, k = 8}]", "products[0].seconds: is missing"),
        ("products = [{m = 0, n = 8, k = 8, seconds = 1}]", "products[0].m: 0 is not positive"),
        ("products = [{m = 8, n = 8, k = 8, seconds = 1, rows = 2}]", "products[0].rows: is not a known field"),
        ('memory = [{name = "default", Bps = -1}]', "memory[0].Bps: -1 is not positive"),
        ('collectives = [{kind = "gossip", scope = "scale-up", Bps = 1}]', "gossip"),
        ("products = 3", "is not a list"),
    ],
)
def test_what_means_nothing_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_calibration(str(file), "h100")
    assert problem in str(caught.value)
