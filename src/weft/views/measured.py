"""A measured machine for people and for scripts, and the cluster file made of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.cluster.files import write_cluster
from weft.layout.text import format_layout
from weft.units import counted, format_bytes, format_seconds, format_si
from weft.views.blocks import Block, Column, Grid, Heading, Paragraph
from weft.views.words import printable

if TYPE_CHECKING:
    from weft.validation.measured import Described


def described_view(found: Described) -> Iterator[Block]:
    """Collectives by axis as nccl-tests does, fits, products, and a rank's share of the machine."""
    measured = found.measured
    count = measured.layout.world
    yield Paragraph(
        f"{counted(count, 'rank')} of {printable(measured.rank.name)}, layout"
        f" {format_layout(measured.layout)}: medians of at most {counted(measured.repeats, 'call')} after a warm-up,"
        " all ranks busy, the slowest counts"
    )
    for axis in measured.axes:
        yield from _axis(found, axis)
    if measured.axes:
        yield from _fits(found)
    yield from _products(found)
    yield from _rank(found)
    for note in found.notes:
        yield Paragraph(f"note: {note}", hang=6)


def cluster_file(found: Described, *, constants: str | None) -> str:
    """TOML of the cluster; ``constants`` is the file to be read with it."""
    measured = found.measured
    head = [
        f"# Measured by weft bench-comm: {format_layout(measured.layout)} on {measured.device}, medians of at"
        f" most {counted(measured.repeats, 'call')}."
    ]
    if constants is not None:
        head.append(f"# To be read with --calibration {printable(constants)}.")
    return "\n".join(head) + "\n" + write_cluster(found.cluster)


def _axis(found: Described, axis: str) -> Iterator[Block]:
    samples = found.measured.of(axis)
    lines = [found.line(one.axis, one.kind) for one in samples]
    fits = [format_seconds(line.seconds(one.bytes)) for one, line in zip(samples, lines, strict=True)]
    yield Heading(f"{axis}: {samples[0].ranks} ranks")
    first = [i == 0 or samples[i - 1].kind != one.kind for i, one in enumerate(samples)]
    kinds = [one.kind if new else "" for one, new in zip(samples, first, strict=True)]
    yield Grid(
        [
            Column(heading="collective", cells=kinds, left=True),
            Column(heading="size", cells=[format_bytes(one.bytes, least=1.0) for one in samples]),
            Column(heading="time", cells=[format_seconds(one.seconds) for one in samples]),
            Column(heading="algbw", cells=[format_si(one.bytes / one.seconds, "B/s") for one in samples]),
            Column(heading="busbw", cells=[format_si(found.bus_Bps(one), "B/s") for one in samples]),
            Column(heading="fit", cells=fits, drop=1),
        ]
    )


def _fits(found: Described) -> Iterator[Block]:
    yield Heading("Fits: time = latency + bytes that a ring sends / bandwidth")
    yield Grid(
        [
            Column(heading="axis", cells=[one.axis for one in found.lines], left=True),
            Column(heading="collective", cells=[one.kind for one in found.lines], left=True),
            Column(heading="latency", cells=[format_seconds(one.latency_s) for one in found.lines]),
            Column(heading="bandwidth", cells=[format_si(one.Bps, "B/s") for one in found.lines]),
            Column(heading="r2", cells=[f"{one.r2:.3f}" for one in found.lines], drop=1),
            Column(heading="worst residual", cells=[f"{one.worst:.0%}" for one in found.lines]),
        ]
    )
    yield Heading("Tiers that plans read: one model for all collectives of an axis")
    axes = found.network.axes
    yield Grid(
        [
            Column(heading="tier", cells=[one.axis for one in axes], left=True),
            Column(heading="size", cells=[f"{one.ranks:,}" for one in axes]),
            Column(heading="hop", cells=[format_seconds(one.latency_s) for one in axes]),
            Column(heading="achieved", cells=[format_si(one.achieved_Bps, "B/s") for one in axes]),
            Column(heading="worst residual", cells=[f"{one.worst:.0%}" for one in axes]),
        ]
    )
    yield Paragraph(f"Besides, {format_seconds(found.network.launch_s)} to launch a collective.", indent=2)


def _products(found: Described) -> Iterator[Block]:
    products = found.measured.products
    yield Heading("Products (m x k) by (k x n)")
    first = [i == 0 or products[i - 1].precision != one.precision for i, one in enumerate(products)]
    names = [one.precision if new else "" for one, new in zip(products, first, strict=True)]
    peaks = found.cluster.accelerator
    shares = [one.achieved_flops / peaks.peak_flops(one.precision) for one in products]
    yield Grid(
        [
            Column(heading="precision", cells=names, left=True),
            *(Column(heading=side, cells=[f"{getattr(one, side):,}" for one in products]) for side in ("m", "n", "k")),
            Column(heading="time", cells=[format_seconds(one.seconds) for one in products]),
            Column(heading="achieved", cells=[format_si(one.achieved_flops, "FLOP/s") for one in products]),
            Column(heading="of the best", cells=[f"{share:.0%}" for share in shares], drop=1),
        ]
    )
    made = found.kernels
    yield Paragraph(
        f"Fit: {made.gemm_efficiency:.0%} of the best, depth {made.gemm_depth:.0f},"
        f" {format_seconds(made.kernel_s)} a kernel; worst residual {made.worst:.0%}.",
        indent=2,
    )


def _rank(found: Described) -> Iterator[Block]:
    rank = found.measured.rank
    yield Heading("One rank")
    rows = (
        ("memory", format_bytes(rank.memory_bytes)),
        ("copy, bytes read and written", format_si(rank.copy_Bps, "B/s")),
        ("from host memory", format_si(rank.host_Bps, "B/s")),
        ("to issue a small kernel", format_seconds(rank.launch_s)),
    )
    yield Grid(
        [
            Column(heading="", cells=[name for name, _ in rows], left=True),
            Column(heading="", cells=[value for _, value in rows]),
        ]
    )
