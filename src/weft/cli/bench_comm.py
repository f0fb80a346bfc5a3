"""``weft bench-comm``: measure the present machine, and write it as plans read it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import Progress, check_folder, deliver
from weft.cli.outcome import show
from weft.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from weft.calibration.describe import Described
    from weft.layout import Layout
    from weft.runtime.measure.measured import MeasuredPrecision

SIZES = {"cpu": "4KiB:16MiB", "cuda": "4KiB:1GiB"}
STEP = 4
"""Between the sizes of a range."""
LARGEST_BYTES = 2**36
MOST_SIZES = 64


@click.command("bench-comm")
@click.option("--layout", "layout_text", metavar="TEXT", help="Mesh axes to measure, as x=2,y=2,data=2.")
@click.option("--ranks", type=click.IntRange(1, 1_000_000), metavar="N", help="Ranks; alone, on one axis.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="auto is cuda where each rank has a GPU.",
)
@click.option(
    "--sizes",
    metavar="LIST",
    help="Of messages, as 4KiB,1MiB or a range by factors of 4, 4KiB:1GiB (default; on CPUs to 16MiB).",
)
@click.option("--repeats", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Calls of each.")
@click.option("--precision", default="fp32,bf16", show_default=True, metavar="LIST", help="Of products.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output."
)
@click.option("-o", "--output", metavar="FILE.toml", help="Also write the cluster file that plans read.")
@click.option("--calibration-output", metavar="FILE.toml", help="Also write constants for --calibration of plans.")
def bench_comm(**values: Any) -> None:
    """Measure collectives per mesh axis, matrix products and memory of this machine.

    Starts the ranks itself, or is one of them under torchrun. Writes a cluster file:

    \b
    weft bench-comm --layout x=2,data=2 -o machine.toml --calibration-output constants.toml
    weft plan gpt2-124m machine.toml --calibration constants.toml
    """
    for option in ("output", "calibration_output"):
        _check_target(values[option], f"--{option.replace('_', '-')}")
    layout = _layout(values)
    precisions = _precisions(values["precision"])
    sizes = None if values["sizes"] is None else parse_sizes(values["sizes"])

    from weft.calibration.describe import describe
    from weft.runtime.measure.timing import Measurement, measure
    from weft.runtime.run.ranks import default_device, launched

    device = default_device(layout.world) if values["device"] == "auto" else values["device"]
    request = Measurement(
        layout=layout,
        device=device,
        sizes=sizes or parse_sizes(SIZES[device]),
        repeats=values["repeats"],
        precisions=precisions,
    )
    with nullcontext() if launched() else Progress(f"measuring {layout.world:,} ranks on {device}"):
        measured = measure(request)
    if measured is not None:
        _deliver(describe(measured, with_constants=values["calibration_output"] is not None), values)


def _check_target(path: str | None, option: str) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    check_folder(path, option)
    if path is not None and Path(path).is_dir():
        raise BadInput("is a folder", where=f"{option} {path}", remedy="name a file in it")


def _layout(values: dict[str, Any]) -> Layout:
    from weft.layout import Layout
    from weft.layout.text import parse_layout

    if values["layout_text"] is not None:
        return parse_layout(values["layout_text"]).complete(values["ranks"])
    if values["ranks"] is None:
        raise BadInput(
            "--layout or --ranks is needed", where="bench-comm", remedy="as --ranks 2 or --layout x=2,data=2"
        )
    return Layout(data=values["ranks"])


def _precisions(text: str) -> tuple[MeasuredPrecision, ...]:
    from weft.runtime.measure.measured import PRECISIONS

    names = text.lower().replace(" ", "").split(",")
    for name in names:
        if name not in PRECISIONS:
            raise UnknownName("precision", name[:40], PRECISIONS, where="--precision")
    return tuple(name for name in PRECISIONS if name in names)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes, increasing, from "4KiB,1MiB" and ranges like "4KiB:1GiB" in steps of four.

    Raises:
        BadInput: no size, one that is too small or too large, or too many.
    """
    found: set[int] = set()
    for item in text.split(","):
        first, colon, last = item.partition(":")
        size, end = _size(first), _size(last if colon else first)
        if size > end:
            raise BadInput(f"{item.strip()[:40]} is empty", where="--sizes", remedy="give the smaller first")
        while size <= end:
            found.add(size)
            size *= STEP
    if len(found) > MOST_SIZES:
        raise BadInput(f"{len(found)} are too many", where="--sizes", remedy=f"give at most {MOST_SIZES}")
    return tuple(sorted(found))


def _size(text: str) -> int:
    from weft.units import parse_bytes

    size = parse_bytes(text.strip(), "--sizes")
    if not 1 <= size <= LARGEST_BYTES:
        raise BadInput(f"{text.strip()[:40]} is not between 1 B and 64 GiB", where="--sizes", remedy="as 4KiB:16MiB")
    return int(size)


def _deliver(found: Described, values: dict[str, Any]) -> None:
    from weft.report.tables.measured import described_table, described_to_json

    _write(found, values["output"], values["calibration_output"])
    if values["form"] == "json":
        click.echo(described_to_json(found), nl=False)
    else:
        show(lambda screen: described_table(found, screen), None)
    if values["output"] is not None:
        constants = values["calibration_output"]
        more = "" if constants is None else f" --calibration {constants}"
        click.echo(f"next: weft plan MODEL {values['output']}{more}", err=True)


def _write(found: Described, cluster: str | None, constants: str | None) -> None:
    """The files that plans read, after a look at whether they can."""
    from weft.cluster.calibration import write_calibration
    from weft.cluster.files import read_cluster
    from weft.report.tables.measured import cluster_file

    if cluster is not None:
        text = cluster_file(found, constants=constants)
        read_cluster(text, where=cluster)
        deliver(text, cluster)
    if constants is not None:
        source = f"weft bench-comm on {found.cluster.name}"
        deliver(write_calibration(found.constants, source=source), constants)
