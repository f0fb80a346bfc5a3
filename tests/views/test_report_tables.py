"""Tables for people: within the width, complete, and inert."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

import weft
from weft.estimation.result import MEMORY_PARTS, TIME_PARTS
from weft.estimation.training import training_run
from weft.layout.text import DEGREES, format_degrees, format_layout, parse_layout
from weft.search.design import ComponentFailure
from weft.views.blocks import Column, Table
from weft.views.breakdown import training_view
from weft.views.design import design_view, failure_words, purchase
from weft.views.ranking import plan_view
from weft.views.terminal import print_blocks
from weft.views.words import MEANINGS, PARTS


def printed(blocks, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    print_blocks(blocks, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 100])
def test_no_column_is_cut_off_without_a_word(width):
    long = "tp=2,pp=4,dp=8,mbs=1,vpp=2,schedule=interleaved,zero=1,recompute=full,recompute_layers=2,sp,order=x/z/data"
    columns = [
        Column("side", [long, "tp=8"], left=True),
        Column(f"{long},pp=1", ["1 s", "2 s"]),
        Column("spare", ["a", "b"], drop=1),
        Column("MFU", ["43.6%", "40.0%"]),
    ]
    heading, first, second, *rest = printed([Table(*columns)], width).splitlines()
    assert max(map(len, (heading, first, second))) <= width
    assert "MFU" in heading
    assert re.split(" {2,}", first)[-2:] == ["1 s", "43.6%"]
    assert re.split(" {2,}", second.strip()) == ["tp=8", "2 s", "40.0%"]
    assert "..." in first
    assert any("Hidden columns: spare" in line for line in rest)


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_plan_keeps_within_the_width(small_plan, width):
    text = printed(plan_view(small_plan, verbose=True), width)
    lines = [line for line in text.splitlines() if "--layout" not in line]
    assert max(map(len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_the_layout_to_copy_reads_back(small_plan):
    text = printed(plan_view(small_plan), 60)
    argument = next(line for line in text.splitlines() if "--layout" in line).split("--layout ")[1]
    best = small_plan.layouts[0].layout
    assert argument == format_layout(best)
    assert parse_layout(argument).complete(small_plan.cluster.count) == best
    details = printed(plan_view(small_plan, verbose=True), 200).partition("Layouts, for --layout\n")[2].splitlines()
    for rank, estimate in enumerate(small_plan.layouts, 1):
        assert details[rank - 1].split() == [str(rank), format_layout(estimate.layout)]


def test_degree_words_read_back(small_plan):
    for one in small_plan.layouts:
        again = parse_layout(format_degrees(one.layout)).complete(small_plan.cluster.count)
        assert format_degrees(again) == format_degrees(one.layout)


def test_a_plan_without_layouts_explains_itself(starved_plan):
    text = printed(plan_view(starved_plan))
    assert text.startswith("No layout fits. ")
    assert "does-not-fit" in text
    assert "0 fit in memory" in printed(plan_view(starved_plan, verbose=True))


def test_training_run_is_within_the_width(small_plan):
    run = training_run(small_plan.layouts[0], small_plan.job, small_plan.cluster, tokens=15e12, mtbf_s=1.8e8)
    for width in (60, 80, 100):
        text = printed(training_view(run), width)
        assert max(map(len, text.splitlines())) <= width
        assert "goodput" in text


def test_markup_and_escapes_in_names_are_inert(small_plan):
    model = replace(small_plan.job.model, name="[bold]x[/bold]\x1b[31m")
    job = replace(small_plan.job, model=model, defaults=("[red]a\x07",))
    text = printed(plan_view(replace(small_plan, job=job)))
    assert "[bold]x[/bold]?[31m" in text
    assert "[red]a?" in text
    assert "\x1b" not in text


def test_consoles_without_blocks_get_ascii(small_plan):
    console = Console(width=100, file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    print_blocks(plan_view(small_plan, verbose=True), console)
    console.file.flush()
    assert b"###" in console.file.buffer.getvalue()
    assert b"+-" in console.file.buffer.getvalue()


def test_every_part_has_words_and_colours():
    assert set(PARTS) == {*TIME_PARTS, *MEMORY_PARTS, "network_s"}
    assert set(MEANINGS) == {short for short, _ in DEGREES}
    assert len({PARTS[name].colour for name in TIME_PARTS}) == len(TIME_PARTS)


def test_a_design_begins_with_what_to_buy():
    asked = {"batch": 2, "sequence": 2048, "layout": "tp=8,sp", "no_failures": True, "no_simulate": True}
    study = weft.design("llama-3.2-1b", "h100-16", fabrics="rail-only,fat-tree", **asked)
    assert printed(design_view(study), 300).startswith(f"{purchase(study)}\n")
    assert purchase(study).startswith("Prices only: ")
    told = printed(design_view(study, verbose=True), 300)
    assert not [claim for claim in ("Buy", "as fast", "The advice", "cheaper", "*") if claim in told]
    assert "does NOT fit" not in told
    large = replace(study, designs=tuple(replace(design, fits=False) for design in study.designs))
    assert "Warning: tp=8,dp=2,sp does NOT fit: 4.6 GiB of 79.2 GiB an accelerator" in printed(design_view(large), 300)
    cheap, dear = (replace(design, simulated_s=design.closed_form_s) for design in study.designs[:2])
    dear = replace(dear, scale_up_usd=cheap.total_usd)
    routes = r" \(routes: [^)]*\)"
    for tokens_per_s, words in (
        (1.005, rf"Buy {cheap.kind} for \$[\d,.MK]+{routes}: as fast as {dear.kind} within 1%, for \$"),
        (1.2, rf"The fastest is {dear.kind} for \$[\d,.MK]+{routes}: 20% faster than {cheap.kind}, for \$"),
        (0.9, rf"Buy {cheap.kind} for \$[\d,.MK]+{routes}: the fastest and the cheapest"),
    ):
        changed = replace(dear, tokens_per_s=tokens_per_s * cheap.tokens_per_s)
        assert re.match(words, purchase(replace(study, designs=(cheap, changed))))


def test_failures_are_told_by_the_worst_that_stops_and_the_worst_that_slows():
    fields = ("component", "affected", "stranded", "iteration_s", "slowdown")
    rows = [("NIC", 1, 0, 1.0, 1.013), ("spine", 8, 0, 1.2, 1.2), ("leaf", 64, 56, None, None)]
    failures = [ComponentFailure(**dict(zip(fields, row, strict=True))) for row in rows]
    slows = "a spine makes steps 20.0% longer"
    assert failure_words(failures) == f"a leaf stops the job (56 accelerators cut off), {slows}"
    assert failure_words(failures[:2]) == slows
