"""Timing the present machine: collectives over each mesh axis, products, attention, copies.

All ranks measure at once, as they work in training: groups of an axis share its links, ranks of a machine
its memory.  A time is the median of the repeats after a warm-up; the slowest rank counts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil, inf
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from weft.cluster.calibration import AttentionTime
from weft.cluster.catalogue import accelerator
from weft.cluster.spec import Accelerator
from weft.errors import BadInput, Unsupported
from weft.files import write_text
from weft.layout.measured import (
    KINDS,
    Measured,
    MeasuredKind,
    MeasuredPrecision,
    Product,
    Rank,
    Sample,
    measured_axes,
    measured_from_json,
    measured_to_json,
)
from weft.layout.spec import Layout
from weft.model import job
from weft.runtime.core.collectives import Collectives, Pending
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Precision
from weft.runtime.run.ranks import local_ranks, run_ranks

ELEMENT_BYTES = 4
WARM_UP = 2
"""Calls before the first that counts."""
LEAST_S = 0.02
"""Products and copies are repeated for so long between two looks at the clock: where ranks share cores, each
gets its turn."""
SPAN_S = 0.4
"""Repeats of a product or copy end when they have taken this long."""
LONGEST_S = 1.0
"""Products that are expected to take longer are left out."""
COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}
"""Source of the large copy."""
HOST_COPY_BYTES = 2**28
TINY_CALLS = 500

Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What to measure.

    Attributes:
        layout: its mesh axes are measured.
        device: ``cpu`` or ``cuda``.
        sizes: bytes of the full buffers, rounded up so that every rank has an equal share.
        repeats: timed calls of each collective, at most so many of each product.
        precisions: of the products.
    """

    layout: Layout
    device: str
    sizes: tuple[int, ...]
    repeats: int
    precisions: tuple[MeasuredPrecision, ...]


def measure(request: Measurement) -> Measured | None:
    """Measure on all ranks; None in processes of torchrun other than rank 0's.

    Raises:
        BadInput: the ranks cannot run, or their memory is too small for a message.
        Unsupported: the layout has an axis that the runtime has not.
    """
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        result = Path(folder) / "measured.json"
        layout = request.layout
        run_ranks(measure_rank, (request, str(result)), layout.world, request.device, layout=layout)
        return measured_from_json(result.read_text(encoding="utf-8")) if result.exists() else None


def measure_rank(request: Measurement, path: str) -> None:
    """One rank's part; rank 0 writes what was found."""
    clock = Stopwatch(Grid.of(request.layout, request.device), request.repeats)
    result = Measured(
        layout=request.layout,
        device=request.device,
        repeats=request.repeats,
        rank=_rank(clock),
        samples=_samples(clock, request.sizes),
        products=_products(clock, request.precisions),
        attention=tuple(_attention(clock, request.precisions)),
    )
    if clock.grid.rank == 0:
        write_text(path, measured_to_json(result))


class Stopwatch:
    """Times calls on one rank, and agrees with the others on the slowest."""

    def __init__(self, grid: Grid, repeats: int) -> None:
        self.grid, self.repeats = grid, repeats
        self.cuda = grid.device.type == "cuda"

    def together(self, call: Callable[[], object]) -> float:
        """Median seconds of a collective, each repeat after a barrier, the slowest rank of each counting."""
        for _ in range(WARM_UP):
            call()
        return median(self.slowest([self._once(call) for _ in range(self.repeats)]))

    def alone(self, call: Callable[[], object]) -> tuple[float, float]:
        """Seconds of a call that needs no other rank: the median and the least of repeated bursts."""
        call()
        self._meet()
        times = ceil(LEAST_S / max(self.span(call, 1), 1e-9))
        spent = [self.span(call, times) / times]
        while len(spent) < self.repeats and sum(spent) * times < SPAN_S:
            spent.append(self.span(call, times) / times)
        middle, least = self.slowest([median(spent), min(spent)])
        return middle, least

    def span(self, call: Callable[[], object], times: int) -> float:
        """Seconds of calls one after the other, by the device's clock."""
        if self.cuda:
            before, after = (torch.Event(self.grid.device, enable_timing=True) for _ in range(2))
            before.record()
            for _ in range(times):
                call()
            after.record()
            after.synchronize()
            return float(before.elapsed_time(after)) / 1e3
        start = perf_counter()
        for _ in range(times):
            call()
        return perf_counter() - start

    def issue_s(self, call: Callable[[], object], times: int) -> float:
        """Host seconds to issue a call, without waiting for the device."""
        call()
        self._meet()
        start = perf_counter()
        for _ in range(times):
            call()
        return self.slowest([(perf_counter() - start) / times])[0]

    def _once(self, call: Callable[[], object]) -> float:
        self._meet()
        return self.span(call, 1)

    def _meet(self) -> None:
        """No rank goes on before all are here and their devices idle."""
        if self.cuda:
            torch.cuda.synchronize()
        if self.grid.world is not None:
            dist.barrier()

    def slowest(self, seconds: list[float]) -> list[float]:
        """The largest of each among the ranks, of seconds or other figures."""
        if self.grid.world is None:
            return seconds
        result = torch.tensor(seconds, dtype=torch.float64, device=self.grid.device)
        dist.all_reduce(result, op=dist.ReduceOp.MAX)
        return [float(one) for one in result.tolist()]


# Collectives -------------------------------------------------------------------------------------


def _samples(clock: Stopwatch, sizes: tuple[int, ...]) -> tuple[Sample, ...]:
    calls, samples = Collectives(clock.grid), []
    for axis, kind, size in product(measured_axes(clock.grid.layout), KINDS, sizes):
        ranks = clock.grid.size(axis)
        own = ceil(size / (ELEMENT_BYTES * ranks))
        seconds = clock.together(_collective(calls, axis, kind, own, ranks))
        samples.append(Sample(axis=axis, kind=kind, ranks=ranks, bytes=own * ranks * ELEMENT_BYTES, seconds=seconds))
    return tuple(samples)


def _collective(calls: Collectives, axis: str, kind: MeasuredKind, own: int, ranks: int) -> Callable[[], object]:
    """A call of the collective with ``own`` elements of the full buffer for each rank."""
    values = _empty(own if kind == "all-gather" else own * ranks, torch.float32, calls.grid).zero_()
    of: Callable[..., Pending] = getattr(calls, kind.replace("-", "_"))
    return lambda: of(values, axis).wait()


def _empty(elements: int, kind: torch.dtype, grid: Grid, *, pinned: bool = False) -> Tensor:
    """Memory of one rank; more than there is is refused."""
    where = "cpu" if pinned else grid.device
    try:
        return torch.empty(elements, dtype=kind, device=where, pin_memory=pinned)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "allocate" not in str(error):
            raise
        needed = elements * kind.itemsize
        raise BadInput(f"no memory for {needed:,} bytes", where="--sizes", remedy="use smaller ones") from None


# Products ----------------------------------------------------------------------------------------


def _products(clock: Stopwatch, precisions: tuple[MeasuredPrecision, ...]) -> tuple[Product, ...]:
    result = []
    for precision in precisions:
        rate = 0.0
        for m, n, k in shapes(clock.grid.device.type):
            if 2.0 * m * n * k > LONGEST_S * (rate or inf):
                continue
            one = _product(clock, precision, (m, n, k))
            rate = max(rate, one.achieved_flops)
            result.append(one)
    return tuple(result)


def shapes(device: str) -> tuple[Shape, ...]:
    """Products to time as (m, n, k), growing: squares, then a transformer's block of hidden size h over
    tokens (h to 3h, h to h, h to 4h, 4h to h)."""
    tokens, hidden, largest = (8192, 4096, 8192) if device == "cuda" else (1024, 768, 2048)
    squares = [(side, side, side) for side in (128, 256, 512, 1024, 2048, 4096, 8192) if side <= largest]
    block = [(tokens, rows * hidden, columns * hidden) for rows, columns in ((3, 1), (1, 1), (4, 1), (1, 4))]
    return (*squares, *block)


def _product(clock: Stopwatch, precision: MeasuredPrecision, shape: Shape) -> Product:
    m, n, k = shape
    kind = Precision.of(precision).compute
    left = _empty(m * k, kind, clock.grid).normal_().view(m, k)
    right = _empty(n * k, kind, clock.grid).normal_().view(n, k).t()
    out = _empty(m * n, kind, clock.grid).view(m, n)
    seconds, _ = clock.alone(lambda: torch.mm(left, right, out=out))
    return Product(precision=precision, m=m, n=n, k=k, seconds=seconds)


# Attention ---------------------------------------------------------------------------------------


def _attention(clock: Stopwatch, precisions: tuple[MeasuredPrecision, ...]) -> Iterator[AttentionTime]:
    """Causal attention of one sequence of a transformer's heads, forward and backward, by growing length."""
    heads, groups, width, lengths = (32, 8, 128, (2048, 4096, 8192)) if clock.cuda else (12, 12, 64, (256, 512, 1024))
    for precision, sequence in product(precisions, lengths):
        kind = Precision.of(precision).compute
        if clock.cuda and kind.itemsize > 2:  # fused kernels of GPUs have two bytes a number
            continue
        query, keys, values = (
            _empty(count * sequence * width, kind, clock.grid).normal_().view(1, count, sequence, width)
            for count in (heads, groups, groups)
        )
        inputs = [each.requires_grad_() for each in (query, keys, values)]
        attend = partial(scaled_dot_product_attention, query, keys, values, is_causal=True, enable_gqa=groups < heads)
        result = attend()
        backward = partial(torch.autograd.grad, result, inputs, torch.ones_like(result), retain_graph=True)
        forward = AttentionTime(
            batch=1.0,
            sequence=float(sequence),
            heads=float(heads),
            kv_heads=float(groups),
            qk_dim=float(width),
            v_dim=float(width),
            precision=precision,
            seconds=clock.alone(attend)[0],
        )
        yield forward
        yield replace(forward, phase="input-gradient", seconds=clock.alone(backward)[0])


# One rank's machine ------------------------------------------------------------------------------


def _rank(clock: Stopwatch) -> Rank:
    copied = COPY_BYTES[clock.grid.device.type]
    source, target = (_empty(copied, torch.uint8, clock.grid).zero_() for _ in range(2))
    middle, least = clock.alone(lambda: target.copy_(source))
    own = _empty(1, torch.float32, clock.grid).zero_()
    if clock.cuda:
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        name, memory, units = gpu.name, float(gpu.total_memory), gpu.multi_processor_count
    else:  # a rank's share of the CPUs: its threads together are one unit
        threads = torch.get_num_threads()
        name, units = f"cpu-{threads}-thread{'s' if threads > 1 else ''}", 1
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / local_ranks(clock.grid.layout.world)
    return Rank(
        name=name,
        memory_bytes=memory,
        multiprocessors=units,
        copy_Bps=2 * copied / middle,
        best_copy_Bps=2 * copied / least,
        host_Bps=_host_Bps(clock) if clock.cuda else 2 * copied / middle,
        launch_s=clock.issue_s(lambda: own.add_(1.0), TINY_CALLS),
    )


def _host_Bps(clock: Stopwatch) -> float:
    source = _empty(HOST_COPY_BYTES, torch.uint8, clock.grid, pinned=True)
    target = _empty(HOST_COPY_BYTES, torch.uint8, clock.grid)
    middle, _ = clock.alone(lambda: target.copy_(source, non_blocking=True))
    return HOST_COPY_BYTES / middle


# The accelerator of a GPU ------------------------------------------------------------------------

DEVICES: Mapping[str, str] = {
    "AMD Instinct MI210": "mi210",
    "AMD Instinct MI250X": "mi250x",
    "AMD Instinct MI300A": "mi300a",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI355X": "mi355x",
    "NVIDIA A10": "a10",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100-SXM-80GB": "a100-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A40": "a40",
    "NVIDIA A800-SXM4-80GB": "a800",
    "NVIDIA B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA GH200 144G HBM3e": "gh200-144gb",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H20": "h20",
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200-nvl",
    "NVIDIA H800": "h800",
    "NVIDIA L40S": "l40s",
    "NVIDIA RTX A6000": "a6000",
    "Tesla P100-SXM2-16GB": "p100",
    "Tesla V100-SXM2-16GB": "v100-16gb",
    "Tesla V100-SXM2-32GB": "v100-32gb",
}
"""Names of ``torch.cuda.get_device_name`` and of the catalogue: boards whose figures the catalogue has."""


def accelerator_of(device: str) -> Accelerator | None:
    """The catalogue's entry of a GPU; None where it has none."""
    return accelerator(DEVICES[device]) if device in DEVICES else None


def peak_flops(chip: Accelerator | None, precision: job.Precision) -> float | None:
    """Dense peak in FLOP/s; None for an unknown accelerator, or one without units for the precision."""
    try:
        return None if chip is None else chip.peak_flops(precision)
    except Unsupported:
        return None
