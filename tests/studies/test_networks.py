"""The study of networks that the docs show: its pictures are drawn from its rows, and its rows can be had again."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import pytest

import weft

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "docs" / "studies" / "networks.csv"
STUDY = ROOT / "examples" / "studies" / "networks.toml"
WORDS = {"model", "fabric", "cluster", "tokens", "failures", "network_life", "no_failures", "routing", "kind"}
WORDS |= {"layout_text", "failure", "message"}


def kept() -> list[dict[str, Any]]:
    with KEPT.open(encoding="utf-8", newline="") as file:
        return [
            {name: text if name in WORDS else float(text or "nan") for name, text in row.items()}
            for row in csv.DictReader(file)
        ]


def test_every_point_of_the_study_is_kept() -> None:
    axes = tomllib.loads(STUDY.read_text(encoding="utf-8"))["axes"]
    points = {(row["routing"], row["model"], row["count"], row["fabric"], row["oversubscription"]) for row in kept()}
    assert len(points) == len(kept()) == 80
    for at, name in enumerate(("routing", "model", "count", "fabric", "oversubscription")):
        assert {point[at] for point in points} == set(axes[name])


@pytest.mark.parametrize(("model", "name"), [("llama-3.1-70b", "dense"), ("mixtral-8x22b", "mixture")])
def test_pictures_are_drawn_from_the_rows(model: str, name: str, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    from weft.views.charts import rendered
    from weft.views.study import sweep_chart

    rows = [row for row in kept() if row["model"] == model and row["oversubscription"] != 2]
    columns = {one: str if one in WORDS else float for one in rows[0]} | {"count": int}
    places = {"x": "count", "y": "tokens_per_usd", "colour": "fabric", "facet": "routing"}
    axes = ("model", "count", "fabric", "oversubscription", "routing")
    drawn = rendered(sweep_chart(rows, columns, axes, **places, title="networks"), ".svg")
    shown = (ROOT / "docs" / "studies" / f"networks-{name}.svg").read_bytes()
    assert (drawn.encode() if isinstance(drawn, str) else drawn) == shown


@pytest.mark.slow
def test_the_rows_of_512_accelerators_are_had_again() -> None:
    table = tomllib.loads(STUDY.read_text(encoding="utf-8"))
    table["axes"]["count"] = [512]
    expected = [row for row in kept() if row["count"] == 512]
    with weft.sweep(table, workers=1) as found:
        rows = list(found.rows())
    assert len(rows) == len(expected) == 16
    for now, then in zip(rows, expected, strict=True):
        assert now["layout_text"] == then["layout_text"]
        for name in ("simulated_s", "usd", "goodput", "tokens_per_usd"):
            assert now[name] == pytest.approx(then[name], rel=1e-9), name
