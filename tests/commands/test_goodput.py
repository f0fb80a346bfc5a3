"""``weft goodput``: tables, documents, charts and refusals."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import weft as library
from weft.views.terminal import Screen, print_blocks
from weft.views.training import goodput_view

Run = Callable[..., tuple[int, str, str]]
SMALL = ("goodput", "llama-3.1-8b", "h100-256", "--layout", "tp=2,sp", "--tokens", "15T")


@pytest.mark.parametrize("width", [40, 70, 200])
def test_table_keeps_to_its_width(width: int) -> None:
    found = library.goodput(
        "llama-3.1-8b",
        "h100-64",
        "tp=2,sp",
        tokens="15T",
        policy="shrink,peer,async",
        fabric="rail-only",
        simultaneous=1,
    )
    text = io.StringIO()
    print_blocks(goodput_view(found), Screen(file=text, width=width, highlight=False))
    assert all(len(line) <= width for line in text.getvalue().splitlines())
    assert "draw" in text.getvalue()


def test_a_plan_with_failures(weft: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    asked = ("plan", "llama-3.1-8b", "h100-64", "--top", "1", "--tokens", "1T", "--failures", "rsc-1")
    assert weft(*asked, "--format", "json", "-o", str(plan))[0] == 0
    code, out, _ = weft("goodput", "--plan", str(plan), "--tokens", "1T", "--failures", "rsc-1", "--format", "json")
    kept = json.loads(plan.read_text())["layouts"][0]["run"]["failures"]["goodput"]
    assert code == 0
    assert json.loads(out)["goodput"] == pytest.approx(kept)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("form", ["svg", "png", "html"])
def test_charts(weft: Run, tmp_path: Path, form: str) -> None:
    pytest.importorskip("altair")
    path = tmp_path / f"costs.{form}"
    assert weft(*SMALL, "--chart", str(path))[0] == 0
    first = path.read_bytes()
    if form == "svg":
        assert b"software" in first
        assert b"prefers-color-scheme" in first
        assert weft(*SMALL, "--chart", str(path))[0] == 0
        assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (SMALL[:-2], "--tokens"),
        ((*SMALL, "--failures", "nobody"), "did you mean|known"),
        ((*SMALL, "--policy", "hope"), "policy"),
        ((*SMALL, "--simultaneous", "1"), "--fabric"),
        ((*SMALL, "--chart", "costs.gif"), "costs.gif"),
        (("plan", "gpt2", "a100-8", "--failures", "llama-3"), "--tokens"),
    ],
)
def test_refusals(weft: Run, arguments: tuple[str, ...], told: str) -> None:
    code, out, err = weft(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert any(word in err for word in told.split("|"))
