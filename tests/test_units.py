"""Quantities: what parses to what, what is refused, and round trips."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import units
from weft.errors import BadInput

Parse = Callable[[str | float], float]

TABLE: list[tuple[Parse, str | float, float]] = [
    (units.parse_bytes, "80 GB", 80e9),
    (units.parse_bytes, "141 GiB", 141 * 2**30),
    (units.parse_bytes, "64 KiB", 65536),
    (units.parse_bytes, "12 bytes", 12),
    (units.parse_bytes, "1_000_000", 1e6),
    (units.parse_bytes, "1,024 MiB", 2**30),
    (units.parse_bytes, "  7 B  ", 7),
    (units.parse_bytes, 8e10, 8e10),
    (units.parse_bandwidth, "400 Gb/s", 50e9),
    (units.parse_bandwidth, "400 Gbit/s", 50e9),
    (units.parse_bandwidth, "7.68 Tb/s", 960e9),
    (units.parse_bandwidth, "50 GB/s", 50e9),
    (units.parse_bandwidth, "5e10", 5e10),
    (units.parse_flops, "989 TFLOP/s", 989e12),
    (units.parse_flops, "989 Tflops", 989e12),
    (units.parse_flops, "1.98 PFLOP/s", 1.98e15),
    (units.parse_moment, "2026-11-23T06:30:00Z", 1795415400.0),
    (units.parse_moment, "2026-11-23T07:30:00.5+01:00", 1795415400.5),
    (units.parse_moment, "1795415400.25", 1795415400.25),
    (units.parse_seconds, "2 us", 2e-6),
    (units.parse_seconds, "15 min", 900),
    (units.parse_seconds, "4 h", 14400),
    (units.parse_seconds, "30 d", 2592000),
    (units.parse_seconds, "0.5", 0.5),
    (units.parse_count, "15T", 15e12),
    (units.parse_count, "1.5e12", 1.5e12),
    (units.parse_count, "64Ki", 65536),
    (units.parse_whole, "8k", 8000),
    (units.parse_whole, "1e3", 1000),
    (units.parse_whole, "2\x1d", 2),
    (units.parse_count, "4K", 4000),
    (units.parse_watts, "700 W", 700),
    (units.parse_watts, "20 MW", 20e6),
    (units.parse_bytes, "-3 GB", -3e9),
]


@pytest.mark.parametrize(("parse", "text", "value"), TABLE)
def test_known_quantities(parse: Parse, text: str | float, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-15)


PARSERS: list[Parse] = [
    units.parse_bytes,
    units.parse_bandwidth,
    units.parse_flops,
    units.parse_seconds,
    units.parse_count,
    units.parse_watts,
]
parsers = pytest.mark.parametrize("parse", PARSERS)

WRONG: list[tuple[Parse, str]] = [
    (units.parse_bytes, "80 Gb"),
    (units.parse_bytes, "80 GB/s"),
    (units.parse_bandwidth, "400 GB"),
    (units.parse_bandwidth, "400 Gb"),
    (units.parse_bandwidth, "2 us"),
    (units.parse_flops, "989 TB/s"),
    (units.parse_seconds, "2 GB"),
    (units.parse_seconds, "2 S"),
    (units.parse_count, "15 GB"),
    (units.parse_watts, "700 Wh"),
    (units.parse_watts, "700 k"),
    (units.parse_bytes, "1e308 EB"),
    (units.parse_seconds, "1e308 d"),
]


@pytest.mark.parametrize(("parse", "text"), WRONG)
def test_wrong_units_are_named(parse: Parse, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert caught.value.remedy is not None


@parsers
@pytest.mark.parametrize(
    "text", ["", "GB", "ten", "nan", "1e400", "--3", "1.2.3", "0,5", "1,", "0x10", "\u0661", "1" * 5000]
)
def test_nonsense_is_refused(parse: Parse, text: str) -> None:
    with pytest.raises(BadInput):
        parse(text)


@given(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(PARSERS))
def test_any_number_parses_or_is_refused(value: float, parse: Parse) -> None:
    if math.isfinite(value):
        assert parse(value) == value
        assert parse(repr(value)) == value
    else:
        with pytest.raises(BadInput):
            parse(value)


magnitudes = st.floats(1e-3, 1e20)


@given(magnitudes)
def test_shown_quantities_parse_back(value: float) -> None:
    """Three digits survive, also where rounding reaches the next prefix."""
    assert units.parse_bandwidth(units.format_si(value, "B/s")) == pytest.approx(value, rel=6e-3)
    assert units.parse_flops(units.format_si(value, "FLOP/s")) == pytest.approx(value, rel=6e-3)


@given(st.floats(1e8, 1e18))
def test_shown_bytes_parse_back(value: float) -> None:
    assert units.parse_bytes(units.format_bytes(value)) == pytest.approx(value, abs=0.06e9)


@given(st.floats(1e-9, 1e9))
def test_shown_seconds_parse_back(value: float) -> None:
    assert units.parse_seconds(units.format_seconds(value)) == pytest.approx(value, rel=3e-2)


@given(st.integers(0, 10**16))
def test_shown_counts_parse_back(value: int) -> None:
    assert units.parse_count(units.format_count(value)) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.format_si(5e10, "B/s"), "50 GB/s"),
        (units.format_si(989.4e12, "FLOP/s"), "989 TFLOP/s"),
        (units.format_si(0, "B"), "0 B"),
        (units.format_si(999.7e9, "B/s"), "1 TB/s"),
        (units.format_bytes(71.34 * 2**30), "71.3 GiB"),
        (units.format_bytes(2048), "2.0 KiB"),
        (units.format_seconds(4.284), "4.28 s"),
        (units.format_seconds(0.31), "310 ms"),
        (units.format_seconds(12e-6), "12 us"),
        (units.format_seconds(0.9997), "1.00 s"),
        (units.format_seconds(3.1 * 86400), "3.1 d"),
        (units.format_seconds(0), "0.00 s"),
        (units.format_count(405.85e9), "405.9B"),
        (units.format_count(15e12), "15T"),
        (units.format_count(4096), "4,096"),
    ],
)
def test_what_people_read(shown: str, text: str) -> None:
    assert shown == text


@given(st.floats(1e-12, 1e24))
def test_shown_values_never_use_an_exponent_within_the_prefixes(value: float) -> None:
    if 1 <= value < 9.9e20:
        assert "e" not in units.format_si(value, "X")
    if value >= 1e-6:
        assert "e" not in units.format_seconds(value).removesuffix("s").removesuffix("d")


@pytest.mark.parametrize("text", ["2026-11-23T06:30:00", "2026-13-23T06:30:00Z", "now", "-5", "5 s", "1e12", "nan"])
def test_a_moment_needs_a_zone_or_seconds(text):
    with pytest.raises(BadInput, match="--start-at"):
        units.parse_moment(text, "--start-at")


def test_a_moment_is_shown_in_utc():
    assert units.parse_moment(units.format_moment(1795415400.125)) == 1795415400.125


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "switch", "1 switch"),
        (0, "switch", "0 switches"),
        (2048, "NIC", "2,048 NICs"),
        (2, "box", "2 boxes"),
        (9, "epoch", "9 epochs"),
        (2, "search", "2 searches"),
    ],
)
def test_a_count_agrees_with_its_noun(count: int, noun: str, text: str) -> None:
    assert units.counted(count, noun) == text
