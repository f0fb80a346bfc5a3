"""Reports of a plan or an arrangement, with figures, launch files and provenance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from html import escape
from itertools import groupby
from shlex import quote
from typing import TYPE_CHECKING, Any

from weft import __version__
from weft.results import Result
from weft.units import format_seconds
from weft.views import words
from weft.views.arrangement import arrangement_view
from weft.views.blocks import Block, Copied, Fact, Figure, Heading, Paragraph, Table
from weft.views.comparison import comparison_view
from weft.views.ranking import launch_view, plan_view

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement
    from weft.interop.launch import LaunchArguments
    from weft.search.comparison import Comparison
    from weft.search.ranking import Plan


# Markdown ------------------------------------------------------------------------------------------------------

_ACTS = re.compile(r"([\\`*_\[\]|~#@!])")
_TICKS = re.compile("`+")


def to_markdown(title: str, blocks: Iterable[Block]) -> str:
    """A report as Markdown."""
    shown = (block for block in blocks if not isinstance(block, Figure))
    parts = [f"# {_inert(title)}"]
    for fact, run in groupby(shown, key=lambda block: isinstance(block, Fact)):
        texts = [text for block in run for text in _block(block)]
        parts += ["\n".join(texts)] if fact else texts
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield f"## {_inert(block.text)}"
        case Fact():
            yield f"- **{_inert(block.name.rstrip(':'))}**: {_inert(block.text)}"
        case Paragraph():
            yield _inert(block.text)
        case Copied():
            text = block.text.strip("\n")
            fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))  # which nothing within it ends
            yield from (f"{_inert(block.label)}:", f"{fence}\n{text}\n{fence}")
        case Table():
            columns = [column for column in block.columns if column.cells]
            if columns and columns[0].cells:
                rule = "|".join("---" if column.left else "---:" for column in columns)
                rows = zip(*(column.cells for column in columns), strict=True)
                heads = _row([column.heading for column in columns])
                yield "\n".join([heads, f"|{rule}|", *map(_row, rows)])


def _inert(text: str) -> str:
    """Text that Markdown and HTML show as it is, in one line."""
    return _ACTS.sub(r"\\\1", escape(" ".join(text.split()), quote=False))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_inert, cells))} |"


# Reports -------------------------------------------------------------------------------------------------------

COMPARED = 5
"""Layouts that a report compares: the first ones."""
_TOKENS = 1e12


def plan_report(plan: Plan, launch: Callable[[str], LaunchArguments | str], tools: tuple[str, ...]) -> Iterator[Block]:
    """A plan in full; ``launch`` gives a tool's launch arguments of its best layout, or why there are none."""
    yield from plan_with_charts(plan)
    if plan.layouts:
        if (compared := compared_layouts(plan)) is not None:
            yield Heading("Comparison", top=True)
            yield from comparison_view(compared, verbose=True)
        yield Heading("Launch", top=True)
        for tool in tools:
            written = launch(tool)
            yield from (Paragraph(f"{tool}: {written}"),) if isinstance(written, str) else launch_view(written)
    document = plan.to_dict()
    yield Heading("Provenance", top=True)
    yield Fact("Weft:", __version__)
    yield Fact("Framework:", words.software(plan.stack, plan.space.name, plan.job))
    yield Fact("Constants:", "shipped, fitted to measured runs" if plan.constants.shipped else "given")
    yield Fact("Plan, SHA-256:", sha256(plan.to_json().encode()).hexdigest())
    inputs = {name: document[name] for name in ("job", "cluster", "stack", "space", "search", "calibration")}
    yield Copied(json.dumps(inputs, indent=1, sort_keys=True), "Inputs and constants")


def behind_verdict(blocks: Iterable[Block], *figures: Block) -> Iterator[Block]:
    """The verdict, which is the first block, then figures, the first table, and the rest.

    Facts and paragraphs above the first table move to the end of its section.
    """
    verdict, *rest = blocks
    yield verdict
    yield from figures
    table = next((i for i, block in enumerate(rest) if isinstance(block, Table)), 0)
    end = next((i for i in range(table + 1, len(rest)) if isinstance(rest[i], Heading)), len(rest))
    yield from (block for block in rest[:table] if isinstance(block, Heading))
    yield from rest[table:end]
    yield from (block for block in rest[:table] if not isinstance(block, Heading))
    yield from rest[end:]


def plan_with_charts(plan: Plan) -> Iterator[Block]:
    """A plan: the verdict, where time and memory go, the layouts, and the trade of memory for time."""
    from weft.views.breakdown import breakdown_chart
    from weft.views.ranking import pareto_chart

    verdict, *details = plan_view(plan, verbose=True)
    if plan.layouts:
        chart = Figure(partial(breakdown_chart, plan, top=COMPARED), "Time and memory of the first layouts")
        yield from behind_verdict([verdict, *details], chart)
    else:
        yield Paragraph(
            f"No layout fits: {plan.shortage}. Use more accelerators or free a fixed degree.", style="bold"
        )
        yield from details
    if plan.pareto:
        yield Heading("Memory against time", top=True)
        yield Figure(partial(pareto_chart, plan), "Less memory for more time")


def compared_layouts(plan: Plan) -> Comparison | None:
    """The first layouts compared with the best."""
    from weft.layout.text import format_degrees
    from weft.search.comparison import Side, compare

    sides = [
        Side.of_plan(plan, f"{rank}. {format_degrees(estimate.layout)}", estimate)
        for rank, estimate in enumerate(plan.layouts[:COMPARED], 1)
    ]
    return compare(sides, _TOKENS) if len(sides) > 1 else None


def arrangement_report(result: Arrangement, document: Mapping[str, Any], file: str) -> Iterator[Block]:
    """An arrangement in full; ``document`` has its fields as ``file`` has them, which commands name."""
    yield from arrangement_with_charts(result)
    yield Heading("Launch", top=True)
    for row in document["jobs"]:
        yield from _start(row, file)
    text = json.dumps(document, indent=Result.INDENT, allow_nan=False) + "\n"
    yield Heading("Provenance", top=True)
    yield Fact("Weft:", __version__)
    yield Fact("Seed:", str(result.seed))
    yield Fact("Constants:", f"shipped, of {result.site.cluster.accelerator.name}")
    yield Fact(f"{file}, SHA-256:", sha256(text.encode()).hexdigest())
    yield Copied(_inputs(document), "Inputs")


def arrangement_with_charts(result: Arrangement) -> Iterator[Block]:
    """An arrangement: the verdict, where jobs run, and the tables."""
    from weft.views.arrangement import arrangement_chart

    seats = Figure(
        partial(arrangement_chart, result), "Job placement: a square is a host, a number and a colour a job"
    )
    yield from behind_verdict(arrangement_view(result, verbose=True), seats)


def _start(row: Mapping[str, Any], file: str) -> Iterator[Block]:
    """How to start a job on its hosts: commands, and files to copy."""
    options = f"--arrangement {quote(file)} --job {quote(row['name'])}"
    name = row["name"].replace("/", "-")
    yield Copied(
        f"weft launch {options} --tool megatron -o {quote(f'{name}.sh')} --files {quote(f'{name}-files')}\n"
        f"sbatch {quote(f'{name}-files/job.slurm')} PROGRAM\n"
        f"weft simulate {options} --full\n",
        row["name"],
    )
    if row["offset_s"]:
        yield Paragraph(f"Begin its first step {format_seconds(row['offset_s'])} after the first job's.")
    yield Copied(row["hostfile"], f"hostfile of {row['name']}")
    if row["nccl_env"]:
        yield Copied(row["nccl_env"], f"nccl.env of {row['name']}")


def _inputs(document: Mapping[str, Any]) -> str:
    """The inputs of the search, the network by its size."""
    fabric, goal = document["fabric"], document["objective"]
    fields = ("name", "model", "first_layout_text", "may", "cut", "weight", "iterations", "job")
    sizes = {name: len(value) for name, value in fabric.items() if isinstance(value, list)}
    inputs = {
        "site": document["site"],
        "objective": {name: goal[name] for name in ("kind", "max_slowdown", "usd_per_accelerator_hour")},
        "classes": document["classes"],
        "jobs": [{name: row[name] for name in fields} for row in document["jobs"]],
        "cluster": document["cluster"],
        "fabric": {"name": fabric["name"]} | sizes,
    }
    return json.dumps(inputs, indent=1, sort_keys=True)
