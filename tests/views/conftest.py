"""One small plan that all report tests share, and what charts look like once drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest

from weft.cluster import catalogue as clusters
from weft.model import Job, Recipe
from weft.model import catalogue as models
from weft.search.ranking import Plan, plan


@pytest.fixture(scope="session")
def small_plan() -> Plan:
    job = Job(
        model=models.load("llama-3.1-8b").model,
        recipe=Recipe(global_batch=64, sequence=8192),
        defaults=("batch of 64 sequences",),
    )
    return plan(job, clusters.load("h100-32"), top=6)


@pytest.fixture(scope="session")
def starved_plan() -> Plan:
    """Nothing fits."""
    job = Job(model=models.load("llama-3.1-405b").model, recipe=Recipe(global_batch=64, sequence=8192))
    return plan(job, clusters.load("a100-40gb-8"), top=6)


@dataclass(frozen=True)
class Item:
    """A mark as Vega places it, in pixels of the whole picture."""

    kind: str
    role: str
    x: float
    y: float
    look: dict[str, Any]

    @property
    def words(self) -> str:
        return str(self.look["text"])

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of a text, estimated from below."""
        long, high = 0.42 * self.look["fontSize"] * len(self.words), 0.7 * self.look["fontSize"]
        x, y = self.x + self.look.get("dx", 0), self.y + self.look.get("dy", 0)
        upright = self.look.get("angle", 0) % 180 != 0
        wide, tall = (high, long) if upright else (long, high)
        across = {"left": 0.0, "center": 0.5, "right": 1.0}[self.look.get("align", "left")]
        down = {"top": 0.0, "middle": 0.5, "bottom": 1.0, "alphabetic": 1.0}[self.look.get("baseline", "alphabetic")]
        across, down = (down, across) if upright else (across, down)
        return x - across * wide, y - down * tall, x + (1 - across) * wide, y + (1 - down) * tall


@pytest.fixture(scope="session")
def drawn() -> Callable[[Any], list[Item]]:
    """What a chart draws: every mark where it stands; no two texts cover each other, and all are inside."""
    vl_convert = pytest.importorskip("vl_convert")

    def walk(node: Any, role: str, x: float, y: float) -> Iterator[Item]:
        if "marktype" in node:
            for item in node["items"]:
                at = Item(node["marktype"], node.get("role", ""), x + item.get("x", 0), y + item.get("y", 0), item)
                yield at
                for below in item.get("items", []):
                    yield from walk(below, node.get("role", ""), at.x, at.y)

    def found(chart: Any) -> list[Item]:
        scene = vl_convert.vegalite_to_scenegraph(chart.to_dict())
        items = list(walk(scene["scenegraph"], "", *scene["origin"]))
        texts = [item for item in items if item.kind == "text" and item.words]
        for one, other in combinations(texts, 2):
            (a, b, c, d), (p, q, r, s) = one.box, other.box
            assert c <= p or r <= a or d <= q or s <= b, (one.words, other.words)
        for one in texts:
            left, top, right, bottom = one.box
            assert min(left, top) >= 0, one.words
            assert right <= scene["width"], one.words
            assert bottom <= scene["height"], one.words
        return items

    return found
