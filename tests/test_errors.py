"""Errors that people see: text, exit codes, suggestions."""

from __future__ import annotations

import pytest

from weft.errors import (
    LONGEST_MESSAGE,
    BadInput,
    InDoubt,
    MissingExtra,
    NothingFeasible,
    UnknownName,
    Unsupported,
    WeftError,
)


def test_message_has_place_fact_and_remedy() -> None:
    error = BadInput("bandwidth is negative: -3 GB/s", where="c.toml: tiers[1].bandwidth", remedy="use 1 or more")
    assert str(error) == "c.toml: tiers[1].bandwidth: bandwidth is negative: -3 GB/s -- use 1 or more"
    assert (error.what, error.where, error.remedy) == (
        "bandwidth is negative: -3 GB/s",
        "c.toml: tiers[1].bandwidth",
        "use 1 or more",
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WeftError("x"), 2),
        (BadInput("x"), 2),
        (Unsupported("x"), 2),
        (UnknownName("model", "x", ["y"]), 2),
        (MissingExtra("training", "runtime"), 2),
        (NothingFeasible("x"), 3),
    ],
)
def test_exit_codes(error: WeftError, code: int) -> None:
    assert isinstance(error, WeftError)
    assert error.exit_code == code


def test_unknown_names_suggest_near_ones() -> None:
    error = UnknownName("model", "Lama-3-8b", ["llama-3-8b", "gemma-2-2b", "opt-13b"])
    assert "unknown model 'Lama-3-8b'" in str(error)
    assert "did you mean llama-3-8b" in str(error)
    assert isinstance(error, BadInput)


def test_names_that_hold_the_word_are_near() -> None:
    error = UnknownName("model", "405b", ["llama-3.1-405b", "opt-13b"], listed="weft info models")
    assert str(error).endswith("did you mean llama-3.1-405b? (weft info models lists all)")


@pytest.mark.parametrize("kind", [WeftError, BadInput, Unsupported, NothingFeasible, InDoubt])
def test_texts_are_bounded_and_escaped(kind: type[Exception]) -> None:
    """str(error) had 1.95 MB, and what a file holds could move the cursor of a terminal."""
    text = str(kind("wrong \x1b[2J\x00\u202e" + "a" * 2_000_000 + "the end"))
    assert len(text) <= LONGEST_MESSAGE
    assert text.startswith(r"wrong \x1b[2J\x00\u202eaaa")
    assert text.endswith("the end")
    assert "characters) ..." in text
    assert len(repr(kind("b" * 2_000_000))) < LONGEST_MESSAGE + 100


def test_missing_extra_names_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """weft[plot] is on no index where Weft was installed from a folder."""
    lines = ["click>=8", "altair>=5.5 ; extra == 'plot'", 'vl-convert-python>=1.7; extra == "plot"', "x; extra == 'p'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    assert str(MissingExtra("a chart", "plot")) == (
        "a chart needs the extra weft[plot] -- pip install 'altair>=5.5' 'vl-convert-python>=1.7'"
    )
    assert str(MissingExtra("a chart", "other")).endswith("pip install 'weft[other]'")
