"""Predictions against measured runs: a table for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, fields
from typing import Any

from rich.console import Console
from rich.table import Table

from weft.layout.text import format_layout
from weft.report.formats.csv_out import neutral
from weft.validation.inputs import Skipped
from weft.validation.summary import Errors, Outcome, Validation

SCHEMA = "weft.validate/1"
COLUMNS = (
    *("id", "family", "model", "accelerator", "gpus", "stack", "layout", "measured_s", "predicted_s"),
    *("error", "measured_tflops", "predicted_tflops", "measured_bytes", "predicted_bytes", "memory_error"),
    *("skipped", "assumptions"),
)


def validation_table(found: Validation, screen: Console) -> None:
    """Errors by family, what they come to, and why runs were skipped."""
    table = Table(title="Predicted against measured iteration time", title_justify="left")
    for name in ("family", "runs", "predicted", "mean", "median", "bias", "worst", "rank corr.", "memory"):
        table.add_column(name, justify="left" if name == "family" else "right")
    for one in found.families:
        table.add_row(*_cells(one))
    table.add_section()
    table.add_row(*_cells(found.pooled))
    screen.print(table)
    if found.headline is not None:
        screen.print(f"Mean over families of the mean absolute error: {found.headline:.1%}")
    if found.reasons:
        screen.print("\nSkipped", style="bold")
        for why in found.reasons:
            screen.print(f"{why.runs:5d}  {why.family}: {why.reason}", markup=False)


def _cells(one: Errors) -> tuple[str, ...]:
    worst = "-" if one.max_ape is None else f"{one.max_ape:.1%}"
    rank = "-" if one.spearman is None else f"{one.spearman:.3f}"
    shares = (_percent(one.mape), _percent(one.median_ape), _percent(one.bias, signed=True))
    return (one.family, str(one.runs), str(one.predicted), *shares, worst, rank, _percent(one.memory_mape))


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" if signed else f"{value:.1%}"


def validation_to_json(found: Validation) -> str:
    """JSON text of schema ``weft.validate/1``: errors as fractions, times in seconds, memory in bytes."""
    overall = {"mape_over_families": found.headline} | _errors(found.pooled)
    del overall["family"]
    document = {
        "schema": SCHEMA,
        "overall": overall,
        "families": [_errors(one) for one in found.families],
        "skipped": [asdict(one) for one in found.reasons],
        "runs": [_row(row) for row in found.rows],
    }
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _errors(one: Errors) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(Errors)}


def _row(row: Outcome | Skipped) -> dict[str, Any]:
    """One run with JSON types; a skipped one has its reason and no figures."""
    if isinstance(row, Skipped):
        return dict.fromkeys(COLUMNS) | {
            "id": row.name,
            "family": row.family,
            "skipped": row.reason,
            "assumptions": [],
        }
    prepared = row.prepared
    figures = (
        *(prepared.run.name, prepared.run.family, prepared.run.model, prepared.cluster.accelerator.name),
        *(prepared.cluster.count, prepared.stack.name, format_layout(prepared.layout)),
        *(prepared.measured_s, row.predicted_s, row.error, row.measured_tflops, row.predicted_tflops),
        *(prepared.measured_bytes, row.predicted_bytes, row.memory_error, None, list(prepared.assumptions)),
    )
    return dict(zip(COLUMNS, figures, strict=True))


def validation_to_csv(found: Validation) -> str:
    """One line a run, the columns of the JSON's runs; assumptions joined by semicolons."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in map(_row, found.rows):
        row["assumptions"] = "; ".join(row["assumptions"])
        writer.writerow({name: neutral(value) for name, value in row.items()})
    return text.getvalue()
