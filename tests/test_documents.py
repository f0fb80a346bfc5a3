"""JSON and TOML as strangers write them: what is refused, with the place, and what only looks alike."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.documents import parse_json, parse_toml
from weft.errors import BadInput
from weft.files import CONTROLS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"a": "C:\\bin"}', {"a": r"C:\bin"}),
        (r'["x\\u0012", "\\\\b"]', [r"x\u0012", r"\\b"]),
        (r'["\ud83d\ude00\n\t\r"]', ["\U0001f600\n\t\r"]),
        ("9" * 300, int("9" * 300)),
    ],
)
def test_json_that_only_looks_odd(text: str, value: object) -> None:
    assert parse_json(text, "here") == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (r'{"a\b": 1}', r"'a\\x08' holds the control character 0x08"),
        (r'["\\\u001b[31m"]', "control character 0x1b"),
        (r'["\u009b"]', "control character 0x9b"),
        (r'["\ud800"]', "half character 0xd800"),
        ("9" * 301, "a number has more than 300 digits"),
        ("9" * 4301, "a number has more than 300 digits"),
        ("1e999", "not a finite number"),
        ("[NaN]", "NaN is not a number"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1, "a": 2}', "given twice"),
    ],
)
def test_json_that_is_refused(text: str, problem: str) -> None:
    with pytest.raises(BadInput, match=f"here: not valid JSON: .*{problem}"):
        parse_json(text, "here")


@given(st.text(st.sampled_from("ab\\u0178d\x07\x1b\x9b\n\ud800"), max_size=12))
def test_json_is_refused_exactly_for_what_its_texts_hold(text: str) -> None:
    odd = CONTROLS.search(text) or "\ud800" in text
    if odd:
        with pytest.raises(BadInput):
            parse_json(json.dumps([{text: 1}, "b"]), "here")
    else:
        assert parse_json(json.dumps([{text: 1}, "b"]), "here") == [{text: 1}, "b"]


@pytest.mark.parametrize("text", ["a = 'C:\\b\\u0012'", 'a = "C:\\\\b\\\\u0012"'])
def test_toml_that_only_looks_odd(text: str) -> None:
    assert parse_toml(text, "here") == {"a": r"C:\b\u0012"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (r'a = "\u0012"', "control character 0x12"),
        (r'"\U0000009B" = 1', "control character 0x9b"),
        ("a = " + "9" * 4301, "a number has more than 300 digits"),
        ("a = 0x" + "f" * 5000, "a number has more than 300 digits"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        (".".join("a" * 20_000) + " = 1", "more than 64 dots"),
        ("[" + " . ".join(["'a'"] * 20_000) + "]", "more than 64 dots"),
        ("x = {" + ".".join("a" * 20_000) + " = 1}", "more than 64 dots"),
    ],
)
def test_toml_that_is_refused(text: str, problem: str) -> None:
    before = time.process_time()
    with pytest.raises(BadInput, match=f"here: not valid TOML: .*{problem}"):
        parse_toml(text, "here")
    assert time.process_time() - before < 5
