"""Comparisons of routers as table, JSON, CSV and picture."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.fabric.spec import Fabric
from weft.routing.traffic import job_traffic, merged
from weft.simulation.routes.replay import Evaluation, NamedJobs, evaluate, with_spines_down
from weft.views.charts.sweep import evaluation_chart
from weft.views.route_evaluation import evaluation_to_csv, evaluation_to_json, evaluation_view
from weft.views.terminal import print_blocks


def fabric() -> Fabric:
    """8 leaves with 4 hosts each, 4 spines, links of 1 GB/s."""
    return clos.build(32, radix=8, bandwidth_Bps=1e9, tiers=2, nic_latency_s=0.0, switch_latency_s=0.0)


def workload(name: str, rings: int) -> NamedJobs:
    """Rings of two between the same two leaves, a job each, 1 GB a round, no pause."""
    jobs = [
        job_traffic(
            np.array([host, 4 + host]),
            np.array([4 + host, host]),
            np.full(2, 1e9),
            rounds=np.array([2]),
            jobs=(f"job <{host}>",),
            start_s=np.array([1.0]),
        )
        for host in range(rings)
    ]
    return NamedJobs(name=name, traffic=merged(jobs))


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    """4 rings fill 4 spines; with 2 down two share each."""
    told: list[tuple[int, int]] = []
    found = evaluate(
        fabric(),
        [workload("=one", 1), workload("four", 4)],
        routers=("spray", "auto"),
        failed_spines=(0, 2),
        epochs=3,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(done, 8) for done in range(8)]
    return found


EXPECTED = {("=one", 0): 1.0, ("=one", 2): 1.0, ("four", 0): 1.0, ("four", 2): 2.0}
"""All-reduce over its time alone, by workload and spines down; the same for both routers."""


def test_json_has_every_row_and_job(evaluation: Evaluation) -> None:
    text = evaluation_to_json(evaluation)
    document = json.loads(text)
    assert document["schema"] == "weft.route-evaluation/1"
    assert (document["epochs"], document["controller"]) == (3, "held")
    seen = [(row["workload"], row["failed_spines"], row["router"]) for row in document["rows"]]
    assert seen == [(w, n, r) for w in ("=one", "four") for n in (0, 2) for r in ("spray", "auto")]
    for row in document["rows"]:
        expected = EXPECTED[row["workload"], row["failed_spines"]]
        assert row["ratio"] == pytest.approx(expected)
        assert row["all_reduce_s"] == pytest.approx(2 * expected)
        assert row["alone_s"] == pytest.approx(2.0)
        assert row["ring"] == 2
        assert row["fct_s"] == pytest.approx({"mean": expected, "p50": expected, "p99": expected})
        assert row["throughput_Bps"] == pytest.approx(1e9 / expected)
        assert row["makespan_s"] == pytest.approx(1 + 3 * 2 * expected)
        assert row["decisions"] == (1 if row["router"] == "auto" else 0)
        assert row["moved_flows"] == 0
        assert "decision_s" not in row
        for job in row["jobs"]:
            assert job["epochs_s"] == pytest.approx([2 * expected] * 3)
            assert job["ratio"] == pytest.approx(expected)
    assert text == evaluation_to_json(evaluation)


def test_csv_has_a_line_a_job_and_no_formulas(evaluation: Evaluation) -> None:
    rows = list(csv.DictReader(io.StringIO(evaluation_to_csv(evaluation))))
    assert len(rows) == 2 * 2 * (1 + 4)
    assert {row["workload"] for row in rows} == {"'=one", "four"}
    for row in rows:
        key = row["workload"].removeprefix("'"), int(row["failed_spines"])
        assert float(row["ratio"]) == pytest.approx(EXPECTED[key])
        assert float(row["all_reduce_s"]) == pytest.approx(float(row["alone_s"]) * EXPECTED[key])


def table(evaluation: Evaluation, width: int) -> str:
    screen = Console(file=io.StringIO(), width=width)
    print_blocks(evaluation_view(evaluation), screen)
    return screen.file.getvalue()  # type: ignore[attr-defined]


def test_table_lists_workloads_once(evaluation: Evaluation) -> None:
    text = table(evaluation, 200)
    assert text.count("1 job, rings of 2") == 1
    assert text.count("4 jobs, rings of 2") == 1
    assert len(re.findall(r"\b(?:spray|auto)\b", text)) == 2 + 8
    verdict = "With spray an all-reduce takes 1.25x its time without collisions; auto 1.25x (mean of 4 runs)."
    assert text.splitlines()[0] == verdict
    assert "planned once and held" in text
    narrow = table(evaluation, 70)
    assert all(len(line) <= 70 for line in narrow.splitlines())
    assert "/ alone" in narrow


def boxes(items: list[Any]) -> list[tuple[float, float, float, float]]:
    """Left, top, width and height of every bar."""
    found = [item for item in items if item.kind == "rect"]
    return [(item.x, item.y, item.look["width"], item.look["height"]) for item in found]


def apart(bars: list[tuple[float, float, float, float]]) -> bool:
    """No bar covers another."""
    spans = sorted((round(y + h, 1), x, x + w) for x, y, w, h in bars)
    return all(a[0] < b[0] or a[2] <= b[1] + 1e-6 for a, b in pairwise(spans))


def test_chart_has_bars_in_proportion(evaluation: Evaluation, drawn: Callable[[Any], list[Any]]) -> None:
    items = drawn(evaluation_chart(evaluation))
    bars = boxes(items)
    seconds = []
    for name in dict.fromkeys(row.workload.name for row in evaluation.rows):
        for failed in dict.fromkeys(row.failed_spines for row in evaluation.rows):
            rows = [row.replay for row in evaluation.rows if (row.workload.name, row.failed_spines) == (name, failed)]
            seconds += [float(rows[0].alone_s.mean()), *(float(row.mean_s.mean()) for row in rows)]
    assert len(bars) == len(seconds) == 8 + 4
    scale = bars[0][3] / seconds[0]
    assert sorted(height for *_, height in bars) == pytest.approx(sorted(scale * one for one in seconds))
    assert apart(bars)
    words = {item.words for item in items if item.kind == "text"}
    assert {"spray", "auto", "no collision", "1 job, rings of 2", "4 jobs, rings of 2"} <= words


def test_nothing_to_draw(evaluation: Evaluation) -> None:
    with pytest.raises(BadInput, match="0 rows have values to draw"):
        evaluation_chart(replace(evaluation, rows=()))


@pytest.mark.parametrize("count", [4, 5, -1])
def test_some_spines_stay(count: int) -> None:
    with pytest.raises(BadInput, match="spines down"):
        with_spines_down(fabric(), count)


def test_the_last_spines_go_down() -> None:
    whole = fabric()
    spines = whole.nodes_of("spine")
    found = with_spines_down(whole, 1)
    assert set(whole.source[~found.up]) & set(spines) == {spines[-1]}
    assert with_spines_down(whole, 0) is whole
