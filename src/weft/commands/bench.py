"""``weft bench``: measure this machine, and write it as plans read it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import weft
from weft.cluster.calibration import write_calibration
from weft.codec import encode
from weft.commands.command_line import DefaultGroup, command
from weft.commands.options import Options, option, refuse_beside
from weft.commands.output import Output, Progress, deliver, file_option, report, show
from weft.errors import BadInput, UnknownName
from weft.layout import Layout
from weft.layout.measured import SelftestFinding
from weft.layout.text import parse_layout
from weft.results import Result
from weft.units import counted, parse_bytes
from weft.views.blocks import Blank, Block, Paragraph, rows_grid

if TYPE_CHECKING:
    from weft.layout.measured import MeasuredPrecision
    from weft.validation.measured import Described
SIZES = {"cpu": "4KiB:16MiB", "cuda": "4KiB:1GiB"}
STEP = 4
"""Between the sizes of a range."""
LARGEST_BYTES = 2**36
MOST_SIZES = 64


class BenchOptions(Options):
    """What is measured."""

    group = "Job"
    layout: str | None = option(None, "Mesh axes to measure, as tp=2,dp=2.", metavar="TEXT")
    ranks: int | None = option(None, "Ranks; without --layout on one axis.", metavar="N", least=1, most=1_000_000)
    device: str = option("auto", "auto takes GPUs if every rank has one.", choices=("auto", "cpu", "cuda"))
    sizes: str | None = option(
        None, "Message sizes, as 4KiB,1MiB or 4KiB:1GiB (factors of 4; the default on GPUs).", metavar="LIST"
    )
    repeats: int = option(10, "Calls of each measurement.", metavar="N", least=1, most=10_000)
    precision: str = option("fp32,bf16", "Precisions of products and attention.", metavar="LIST")
    trace: str | None = option(
        None, "Read times from a torch.profiler trace with record_shapes=True instead.", metavar="FILE"
    )


class BenchOutput(Options):
    """Output options of ``weft bench run``."""

    group = "Output"
    form: str = option("table", "Output.", "--format", choices=("table", "json"))
    verbose: bool = option(False, "Also show every measured collective and product.")
    wide: bool = option(False, "Show all columns, however wide.")
    output: str | None = file_option("Also write the cluster file for plans.", "-o", "--output", metavar="FILE.toml")
    calibration_output: str | None = file_option(
        "Also write constants and measured times, for --calibration.", metavar="FILE.toml"
    )


@click.group(cls=DefaultGroup, default="run")
def bench_command() -> None:
    """Measure this machine for plans, or check the training runtime on it.

    \b
    weft bench --layout tp=2,dp=2 -o machine.toml --calibration-output constants.toml
    weft plan gpt2-124m machine.toml --calibration constants.toml
    weft bench selftest --gpu

    Without a subcommand: run (weft bench run --help).
    """


@command(into=bench_command, options=BenchOptions, out=BenchOutput)
def run_command(options: BenchOptions, out: BenchOutput) -> None:
    """Measure collectives per mesh axis, products, attention and memory of this machine.

    The command starts the ranks itself; under torchrun it is one of them. With --trace nothing is measured, and
    --calibration-output gets the products and the attention of a training run, by shape.
    """
    if options.trace is not None:
        _read_trace(options, out, options.trace)
        return
    if options.layout is not None:
        layout = parse_layout(options.layout).complete(options.ranks)
    elif options.ranks is not None:
        layout = Layout(data=options.ranks)
    else:
        raise BadInput("--layout or --ranks is missing", where="bench", remedy="give --ranks 2 or --layout tp=2,dp=2")
    precisions = _precisions(options.precision)
    sizes = None if options.sizes is None else parse_sizes(options.sizes)

    from weft.launched import launched
    from weft.runtime.measure.timing import Measurement, measure
    from weft.runtime.run.ranks import default_device
    from weft.validation.measured import describe

    device = default_device(layout.world) if options.device == "auto" else options.device
    request = Measurement(
        layout=layout,
        device=device,
        sizes=sizes or parse_sizes(SIZES[device]),
        repeats=options.repeats,
        precisions=precisions,
    )
    with nullcontext() if launched() else Progress(f"measuring {counted(layout.world, 'rank')} on {device}"):
        measured = measure(request)
    if measured is not None:
        _deliver(describe(measured, with_constants=out.calibration_output is not None), out)


def _read_trace(options: BenchOptions, out: BenchOutput, path: str) -> None:
    """Times of a trace, for people and as constants."""
    from weft.interop.kernel_times import read_kernel_times
    from weft.views.validation import traced_view

    refuse_beside("--trace", {options: ("trace",), out: ("calibration_output", "form", "wide")})
    result = read_kernel_times(path)
    if out.form == "json":
        click.echo(result.to_json(), nl=False)
    else:
        show(traced_view(result), None, wide=out.wide)
    if out.calibration_output is not None:
        deliver(result.to_toml(), out.calibration_output)


def _precisions(text: str) -> tuple[MeasuredPrecision, ...]:
    from weft.layout.measured import PRECISIONS

    names = text.lower().replace(" ", "").split(",")
    for name in names:
        if name not in PRECISIONS:
            raise UnknownName("precision", name[:40], PRECISIONS, where="--precision")
    return tuple(name for name in PRECISIONS if name in names)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes, increasing, from "4KiB,1MiB" and ranges like "4KiB:1GiB" in steps of four."""
    result: set[int] = set()
    for item in text.split(","):
        first, colon, last = item.partition(":")
        size, end = _size(first), _size(last if colon else first)
        if size > end:
            raise BadInput(f"{item.strip()[:40]} is empty", where="--sizes", remedy="give the smaller first")
        while size <= end:
            result.add(size)
            size *= STEP
    if len(result) > MOST_SIZES:
        raise BadInput(f"{len(result)} sizes are too many", where="--sizes", remedy=f"give at most {MOST_SIZES}")
    return tuple(sorted(result))


def _size(text: str) -> int:
    size = parse_bytes(text.strip(), "--sizes")
    if not 1 <= size <= LARGEST_BYTES:
        raise BadInput(f"{text.strip()[:40]} is not between 1 B and 64 GiB", where="--sizes", remedy="as 4KiB:16MiB")
    return int(size)


def _deliver(result: Described, out: BenchOutput) -> None:
    """Write the files that plans read, and show what was measured."""
    from weft.cluster.files import read_cluster
    from weft.views.validation import cluster_file, described_view

    constants = out.calibration_output
    if out.output is not None:
        text = cluster_file(result, constants=constants)
        read_cluster(text, where=out.output)  # nothing is written that cannot be read
        deliver(text, out.output)
    if constants is not None:
        source = f"weft bench on {result.cluster.name}"
        deliver(write_calibration(result.constants, source=source, measured=result.by_shape()), constants)
    if out.form == "json":
        click.echo(result.to_json(), nl=False)
    else:
        show(described_view(result, verbose=out.verbose), None, wide=out.wide)
    if out.output is not None:
        more = "" if constants is None else f" --calibration {constants}"
        click.echo(f"Next: weft plan MODEL {out.output}{more}", err=True)


# The runtime checked ------------------------------------------------------------------------------------

STEPS = 8
"""Steps that are timed."""


class SelftestOptions(Options):
    """The ranks that are checked."""

    group = "Machine"
    gpu: bool = option(False, "Use this machine's GPUs, one per rank.")
    ranks: int | None = option(None, "Ranks: 1, 2, 4 or 8 (default: all GPUs; 2 on CPUs).", metavar="N", least=1)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Selftest(Result):
    """The findings on each grid of the ranks."""

    SCHEMA = "weft.selftest/1"
    DOCUMENT = "ok weft device ranks machine=facts checks=findings"

    device: str
    ranks: int
    facts: dict[str, str]
    findings: tuple[SelftestFinding, ...]

    @property
    def ok(self) -> bool:
        """Nothing fails."""
        return all(one.verdict != "fails" for one in self.findings)

    @property
    def weft(self) -> str:
        return weft.__version__

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a check and grid."""
        return [encode(one) for one in self.findings]


def selftest(options: SelftestOptions) -> Selftest:
    """Check the runtime on every grid of this machine's ranks."""
    from weft.runtime.measure.selftest import (
        environment_facts,
        layouts,
        most_ranks,
        read_findings,
        selftest_rank,
        timed_job,
    )
    from weft.runtime.measure.timing import accelerator_of
    from weft.runtime.run.ranks import gpus, run_ranks

    device = "cuda" if options.gpu else "cpu"
    if options.gpu and not gpus():
        raise BadInput(
            "PyTorch finds no GPU here", where="--gpu", remedy="run it where there is one, or without --gpu on the CPU"
        )
    ranks = options.ranks or (most_ranks(gpus()) if options.gpu else 2)
    if most_ranks(ranks) != ranks:
        raise BadInput(f"there are no grids of {ranks} ranks", where="--ranks", remedy="give 1, 2, 4 or 8")
    every = layouts(ranks, timed_job(device).recipe.global_batch)
    tensor = [layout for layout in every if device == "cuda" and layout.x * layout.y > 1]
    chip = None
    if device == "cuda":
        import torch

        chip = accelerator_of(torch.cuda.get_device_name())  # None also: not known
    findings: list[SelftestFinding] = []
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder) / "findings.json"
        for grids in (tensor, [layout for layout in every if layout not in tensor]):  # GPUs are set up for either
            if grids:
                estimated = [None if chip is None else estimated_bytes(layout, chip.name, device) for layout in grids]
                run_ranks(selftest_rank, (str(path), device, STEPS, grids, estimated), ranks, device, None, grids[0])
                findings += read_findings(path)
    return Selftest(device=device, ranks=ranks, facts=environment_facts(device), findings=tuple(findings))


def estimated_bytes(layout: Layout, chip: str, device: str = "cuda") -> float:
    """What tensors of the timed job's fullest rank allocate at most, on a server of a catalogue's accelerator."""
    from weft.cluster import calibration, load
    from weft.estimation import estimate, of_runtime
    from weft.runtime.measure.selftest import timed_job

    cluster = load(f"{chip}-{layout.world}")
    constants = of_runtime(calibration(cluster.accelerator.name))
    return estimate(timed_job(device), cluster, [layout], constants)[0].allocated_bytes


@command(into=bench_command, options=SelftestOptions, out=Output)
def selftest_command(options: SelftestOptions, out: Output) -> None:
    """Check the training runtime here: losses, collectives, memory, speed.

    Every grid of the ranks is compared with one rank in fp64 and with the predicted collectives, and its steps are
    timed; on GPUs also memory with the estimate.
    Exit code 1 if a check fails. To share the result: --format json -o FILE.
    """
    result = selftest(options)
    report(result, out, _view(result))
    if not result.ok:
        raise click.exceptions.Exit(1)


def _view(result: Selftest) -> Iterator[Block]:
    findings = result.findings
    verdicts = [finding.verdict for finding in findings]
    failed, checks = verdicts.count("fails"), len(findings) - verdicts.count("seen")
    state = f"{failed:,} of {counted(checks, 'check')} FAILED" if failed else f"{counted(checks, 'check')} passed"
    yield Paragraph(f"{state} on {counted(result.ranks, 'rank')} ({result.device})", style="bold")
    yield Blank()
    names = {"holds": "passed", "fails": "FAILED", "seen": "measured"}
    rows = [(finding.grid, names[finding.verdict], finding.check, finding.found) for finding in findings]
    yield rows_grid(("grid", "", "check", "result"), rows, left=("grid", "", "check", "result"))
    facts = ", ".join(f"{name} {value}" for name, value in result.facts.items())
    yield Paragraph(f"Machine: {facts}", indent=2, hang=2)
