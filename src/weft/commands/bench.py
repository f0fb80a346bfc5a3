"""``weft bench``: measure this machine, and write it as plans read it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from weft.commands.command_line import DefaultGroup, takes
from weft.commands.options import Options, option
from weft.commands.output import Progress, check_file, deliver, show
from weft.errors import BadInput, UnknownName
from weft.units import counted

if TYPE_CHECKING:
    from weft.layout import Layout
    from weft.layout.measured import MeasuredPrecision
    from weft.validation.measured import Described

SIZES = {"cpu": "4KiB:16MiB", "cuda": "4KiB:1GiB"}
STEP = 4
"""Between the sizes of a range."""
LARGEST_BYTES = 2**36
MOST_SIZES = 64


@dataclass(frozen=True, kw_only=True)
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
    precision: str = option("fp32,bf16", "Precisions of products.", metavar="LIST")


@dataclass(frozen=True, kw_only=True)
class BenchOutput(Options):
    """Output options of ``weft bench run``."""

    group = "Output"
    form: str = option("table", "Output.", "--format", choices=("table", "json"))
    verbose: bool = option(False, "Also show every measured collective and product.")
    wide: bool = option(False, "Show all columns, however wide.")
    output: str | None = option(None, "Also write the cluster file for plans.", "-o", "--output", metavar="FILE.toml")
    calibration_output: str | None = option(
        None, "Also write constants and measured times, for --calibration.", metavar="FILE.toml"
    )


@click.group(cls=DefaultGroup, default="run", modules={"selftest": "selftest"})
def bench_command() -> None:
    """Measure this machine for plans, or check the training runtime on it.

    \b
    weft bench --layout tp=2,dp=2 -o machine.toml --calibration-output constants.toml
    weft plan gpt2-124m machine.toml --calibration constants.toml
    weft bench selftest --gpu

    Without a subcommand: run (weft bench run --help).
    """


@bench_command.command("run")
@takes(options=BenchOptions, out=BenchOutput)
def run_command(options: BenchOptions, out: BenchOutput) -> None:
    """Measure collectives per mesh axis, matrix products and memory of this machine.

    The command starts the ranks itself; under torchrun it is one of them.
    """
    check_file(out.output, "--output")
    check_file(out.calibration_output, "--calibration-output")
    layout = _layout(options)
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


def _layout(options: BenchOptions) -> Layout:
    from weft.layout import Layout
    from weft.layout.text import parse_layout

    if options.layout is not None:
        return parse_layout(options.layout).complete(options.ranks)
    if options.ranks is None:
        raise BadInput("--layout or --ranks is missing", where="bench", remedy="give --ranks 2 or --layout tp=2,dp=2")
    return Layout(data=options.ranks)


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
    from weft.units import parse_bytes

    size = parse_bytes(text.strip(), "--sizes")
    if not 1 <= size <= LARGEST_BYTES:
        raise BadInput(f"{text.strip()[:40]} is not between 1 B and 64 GiB", where="--sizes", remedy="as 4KiB:16MiB")
    return int(size)


def _deliver(result: Described, out: BenchOutput) -> None:
    from weft.views.validation import described_view

    _write(result, out.output, out.calibration_output)
    if out.form == "json":
        click.echo(result.to_json(), nl=False)
    else:
        show(described_view(result, verbose=out.verbose), None, wide=out.wide)
    if out.output is not None:
        constants = out.calibration_output
        more = "" if constants is None else f" --calibration {constants}"
        click.echo(f"Next: weft plan MODEL {out.output}{more}", err=True)


def _write(result: Described, cluster: str | None, constants: str | None) -> None:
    """Write the files that plans read, once the cluster has proved readable."""
    from weft.cluster.calibration import write_calibration
    from weft.cluster.files import read_cluster
    from weft.views.validation import cluster_file

    if cluster is not None:
        text = cluster_file(result, constants=constants)
        read_cluster(text, where=cluster)
        deliver(text, cluster)
    if constants is not None:
        source = f"weft bench on {result.cluster.name}"
        deliver(write_calibration(result.constants, source=source, measured=result.by_shape()), constants)
