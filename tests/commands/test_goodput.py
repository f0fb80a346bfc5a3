"""Runs with ``--tokens``: what failures cost, in a line and in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import weft as library

Run = Callable[..., tuple[int, str, str]]
SMALL = ("estimate", "llama-3.1-8b", "h100-256", "--layout", "tp=2,sp")


def test_a_line_for_people_and_every_class_in_json(weft: Run) -> None:
    code, out, _ = weft(*SMALL, "--tokens", "15T", "--failures", "rsc-1", "--policy", "shrink")
    run = json.loads(
        weft(*SMALL, "--tokens", "15T", "--failures", "rsc-1", "--policy", "shrink", "--format", "json")[1]
    )["run"]
    result = library.goodput("llama-3.1-8b", "h100-256", "tp=2,sp", tokens="15T", failures="rsc-1", policy="shrink")
    (line,) = (line for line in out.splitlines() if line.startswith("Run:"))
    assert code == 0
    assert f"15T tokens in {result.run.expected_days:.1f} days" in line
    assert run["failures"]["goodput"] == pytest.approx(result.goodput)
    shares = {cost["name"]: cost["rework"] for cost in run["failures"]["classes"]}
    assert shares == pytest.approx({row.name: row.rework for row in result.classes if row.name in shares})


def test_failures_are_counted_without_being_asked_for(weft: Run) -> None:
    assert "failures: llama-3" in " ".join(weft(*SMALL, "--tokens", "15T")[1].split())
    assert "one in 5.0 y per GPU" in " ".join(weft(*SMALL, "--tokens", "15T", "--failures", "5y")[1].split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*SMALL, "--failures", "rsc-1"), "needs --tokens"),
        ((*SMALL, "--tokens", "1T", "--failures", "nobody"), "unknown failure preset"),
        ((*SMALL, "--tokens", "1T", "--policy", "hope"), "policy"),
        ((*SMALL, "--tokens", "1T", "--failures", "5y", "--policy", "shrink"), "needs classes of failures"),
        (("plan", "gpt2", "a100-8", "--policy", "shrink"), "needs --tokens"),
    ],
)
def test_refusals(refused: Callable[..., str], arguments: tuple[str, ...], told: str) -> None:
    assert told in refused(*arguments)
