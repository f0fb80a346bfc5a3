"""Comparisons of routers for people and for scripts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.units import counted, format_seconds, format_si
from weft.views.blocks import Blank, Block, Column, Paragraph, Table
from weft.views.files.csv_out import neutral

if TYPE_CHECKING:
    from weft.simulation.routes.replay import Evaluation, Row

SCHEMA = "weft.route-evaluation/1"
CSV_HEADER = (
    "workload",
    "ring",
    "failed_spines",
    "router",
    "controller",
    "job",
    "all_reduce_s",
    "alone_s",
    "ratio",
    "fct_mean_s",
    "fct_p50_s",
    "fct_p99_s",
    "throughput_Bps",
    "decisions",
    "moved_flows",
)


def evaluation_to_json(evaluation: Evaluation) -> str:
    """A comparison as JSON text of schema ``weft.route-evaluation/1``."""
    document = {
        "schema": SCHEMA,
        "fabric": evaluation.fabric,
        "epochs": evaluation.epochs,
        "seed": evaluation.seed,
        "controller": evaluation.controller,
        "rows": [_row_to_dict(row) for row in evaluation.rows],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _row_to_dict(row: Row) -> dict[str, Any]:
    done = row.replay
    return {
        "workload": row.workload.name,
        "ring": max(row.workload.rings),
        "flows": len(row.workload.traffic),
        "failed_spines": row.failed_spines,
        "router": done.router,
        "all_reduce_s": float(done.mean_s.mean()),
        "alone_s": float(done.alone_s.mean()),
        "ratio": float(done.ratio.mean()),
        "jobs": [
            {"job": job, "all_reduce_s": mean, "alone_s": alone, "ratio": ratio, "epochs_s": epochs}
            for job, mean, alone, ratio, epochs in zip(
                done.jobs,
                done.mean_s.tolist(),
                done.alone_s.tolist(),
                done.ratio.tolist(),
                done.all_reduce_s.tolist(),
                strict=True,
            )
        ],
        "fct_s": dict(zip(("mean", "p50", "p99"), fct_s(row), strict=True)),
        "throughput_Bps": float(done.throughput_Bps.mean()),
        "makespan_s": done.makespan_s,
        "decisions": len(done.decision_s),
        "moved_flows": done.moved_flows,
    }


def fct_s(row: Row) -> tuple[float, float, float]:
    """Mean, median and 99th percentile of flow completion times, in seconds."""
    took = row.replay.fct_s
    middle, late = np.percentile(took, (50, 99))
    return float(took.mean()), float(middle), float(late)


def evaluation_to_csv(evaluation: Evaluation) -> str:
    """A line for every job of every row; figures of flows are those of all jobs together."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_HEADER)
    for row in evaluation.rows:
        done = row.replay
        before = [row.workload.name, max(row.workload.rings), row.failed_spines, done.router, done.controller]
        after: list[float | int | None] = [*fct_s(row), float(done.throughput_Bps.mean())]
        after += [len(done.decision_s), done.moved_flows]
        figures = zip(done.jobs, done.mean_s.tolist(), done.alone_s.tolist(), done.ratio.tolist(), strict=True)
        for job in figures:
            table.writerow([neutral(cell) for cell in (*before, *job, *after)])
    return text.getvalue()


def evaluation_view(evaluation: Evaluation) -> Iterator[Block]:
    """A line for every workload, number of spines down and router."""
    rows = evaluation.rows
    yield Paragraph(evaluation_verdict(evaluation), style="bold")
    yield Blank()
    columns = [
        Column(heading="workload", cells=_once([workload_words(row) for row in rows]), left=True),
        Column(heading="spines down", cells=[str(row.failed_spines) for row in rows]),
        Column(heading="router", cells=[row.replay.router for row in rows], left=True),
        Column(
            heading="all-reduce",
            cells=[format_seconds(float(row.replay.mean_s.mean())) for row in rows],
            meaning="mean over epochs and jobs",
        ),
        Column(
            heading="/ alone",
            cells=[f"{row.replay.ratio.mean():.3f}" for row in rows],
            meaning="over its time without collisions, mean over jobs",
        ),
        Column(heading="worst job", cells=[f"{row.replay.ratio.max():.3f}" for row in rows], drop=1),
        Column(
            heading="FCT",
            cells=[format_seconds(fct_s(row)[0]) for row in rows],
            drop=2,
            meaning="mean time of a flow in a round",
        ),
        Column(heading="p99", cells=[format_seconds(fct_s(row)[2]) for row in rows], drop=3),
        Column(
            heading="throughput",
            cells=[format_si(8 * float(row.replay.throughput_Bps.mean()), "b/s") for row in rows],
            drop=4,
        ),
        Column(heading="decisions", cells=[f"{len(row.replay.decision_s):,}" for row in rows], drop=6),
        Column(
            heading="moved",
            cells=[f"{row.replay.moved_flows:,}" for row in rows],
            drop=5,
            meaning="running flows given another path",
        ),
    ]
    yield Table(columns)
    setting = f"{counted(evaluation.epochs, 'epoch')} on {evaluation.fabric}"
    yield Paragraph(f"{setting}, {CONTROLLER_WORDS[evaluation.controller]}", indent=2, style="dim")


def evaluation_verdict(evaluation: Evaluation) -> str:
    """All-reduces of every router over their time without collisions, the fastest router first."""
    ratios: dict[str, list[float]] = {}
    for row in evaluation.rows:
        ratios.setdefault(row.replay.router, []).append(float(row.replay.ratio.mean()))
    means = sorted(((float(np.mean(values)), router) for router, values in ratios.items()), key=lambda mean: mean[0])
    runs = max(map(len, ratios.values()))
    scope = f" (mean of {runs} runs)" if runs > 1 else ""
    (least, fastest), *rest = means
    rivals = "".join(f"; {router} {ratio:.2f}x" for ratio, router in rest)
    return f"With {fastest} an all-reduce takes {least:.2f}x its time without collisions{rivals}{scope}."


CONTROLLER_WORDS = {
    "held": "routes planned once and held",
    "paper": "routes planned again when an all-reduce begins, or ends while others run",
}


def workload_words(row: Row) -> str:
    """How many jobs and how large their rings are."""
    jobs, rings = len(row.workload.traffic.jobs), sorted(set(row.workload.rings))
    words = f"{jobs} job{'s' if jobs > 1 else ''}"
    if rings[0] < 2:
        return f"{words}: {row.workload.name}"
    return f"{words}, rings of {rings[0]}" + (f" to {rings[-1]}" if len(rings) > 1 else "")


def _once(words: list[str]) -> list[str]:
    """Each word where it is new."""
    return [word if not at or word != words[at - 1] else "" for at, word in enumerate(words)]
