"""How well steps of the runtime are predicted where nothing is emulated: eight ranks of gloo, all 20 grids.

Lines of seconds over bytes are fitted to collectives of 2, 4 and 8 ranks, a rate to products; what else a
step takes is one constant, which changes no ranking.  Eight ranks on a few cores are noisy, and communication
takes the cores from computation, so that a repetition of the measurement is the best that any prediction can
be expected to resemble: its rank correlation is printed beside (axonn.md, sections 4.6 and 5.D).

Run: ``python benchmarks/runtime_prediction.py`` (some minutes).
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from itertools import combinations, product
from math import prod
from pathlib import Path
from statistics import median

import bench
import numpy as np
import torch

from weft.layout.measured import KINDS, Sample
from weft.layout.spec import Layout
from weft.model.job import Job, Recipe
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model
from weft.runtime.core.collectives import Collectives
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine
from weft.runtime.measure.timing import WARM_UP, Stopwatch
from weft.runtime.measure.trace import bare_step
from weft.runtime.run.ranks import run_ranks
from weft.simulation.step import StepTime, predict_step
from weft.validation.measured import Line, fit_line

WORLD = 8
SETTINGS = {
    "without overlap": {"overlap_tensor": "none", "overlap_reduce": False, "overlap_gather": False},
    "with overlap": {},
}
ROUNDS, STEPS = 3, 3
"""Repetitions of the whole measurement, in new processes; timed steps of each grid, of which the median
counts."""
HIDDEN, BATCH, SEQUENCE = 256, 64, 64
ELEMENTS = (256, 16_384, 131_072, 1_048_576)
"""fp32 numbers in the buffers of the fitted collectives."""


def grids_of(world: int) -> list[tuple[int, ...]]:
    """Every grid of a power of two ranks."""
    return [grid for grid in product(degrees(world), repeat=4) if prod(grid) == world]


def degrees(world: int) -> list[int]:
    """Powers of two up to the ranks."""
    return [2**power for power in range(world.bit_length())]


def job() -> Job:
    """A GPT of one block."""
    attention = Attention(heads=8, kv_heads=8, head_dim=HIDDEN // 8, rotary=False)
    feed_forward = FeedForward(intermediate=4 * HIDDEN, gated=False)
    block = Block(hidden=HIDDEN, attention=attention, feed_forward=feed_forward, norm_bias=True)
    runs = (BlockRun(block=block, count=1),)
    model = Model(name="gpt", hidden=HIDDEN, vocab=512, runs=runs, positions=SEQUENCE, norm_bias=True)
    return Job(model=model, recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))


def layout_of(grid: tuple[int, ...], setting: str) -> Layout:
    """One micro-batch."""
    x, y, z, data = grid
    return Layout(x=x, y=y, z=z, data=data, micro_batch=BATCH // (z * data), **SETTINGS[setting])


# On the ranks -------------------------------------------------------------------------------------


def measure_machine(path: str, world: int) -> None:
    """Times of collectives by ranks, kind and bytes, and seconds of a product of the block's size."""
    samples = []
    for ranks in degrees(world)[1:]:
        clock = Stopwatch(Grid.of(Layout(x=ranks, data=world // ranks)), 7)
        calls = Collectives(clock.grid)
        for kind, elements in product(KINDS, ELEMENTS):
            values = torch.zeros(elements // (ranks if kind == "all-gather" else 1))
            call = getattr(calls, kind.replace("-", "_"))
            seconds = clock.together(lambda call=call, values=values: call(values, "x").wait())
            found = Sample(axis="x", kind=kind, ranks=ranks, bytes=4 * elements, seconds=seconds)
            samples.append(asdict(found))
    rows, columns = torch.zeros(BATCH * SEQUENCE // world, HIDDEN), torch.zeros(HIDDEN, 4 * HIDDEN)
    product_s, _ = clock.alone(lambda: rows @ columns)
    rate = 2 * rows.numel() * columns.shape[1] / product_s
    if clock.grid.rank == 0:
        Path(path).write_text(json.dumps({"samples": samples, "flops": rate}), encoding="utf-8")


def measure_grids(path: str, world: int, setting: str) -> None:
    """Seconds of a step of every grid, and those in which rank 0 waits."""
    steps, waits = [], []
    for grid in grids_of(world):
        place = Grid.of(layout_of(grid, setting))
        machine = Machine.of(place)
        step = bare_step(job(), machine)
        with machine.collectives.logged() as log:
            steps.append(Stopwatch(place, STEPS).together(step))
        waits.append(sum(log.exposed_s().values()) / (WARM_UP + STEPS))
    if place.rank == 0:
        Path(path).write_text(json.dumps([steps, waits]), encoding="utf-8")


def on_ranks(worker, world, *arguments):
    """What rank 0 wrote."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder) / "found.json"
        run_ranks(worker, (str(path), world, *arguments), world)
        return json.loads(path.read_text(encoding="utf-8"))


# Here ---------------------------------------------------------------------------------------------


def lines_of(samples: list[dict]) -> dict[tuple[str, int], Line]:
    """The line of each kind and number of ranks."""
    found = {}
    for kind, ranks in sorted({(one["kind"], one["ranks"]) for one in samples}):
        of = [Sample(**one) for one in samples if (one["kind"], one["ranks"]) == (kind, ranks)]
        found[kind, ranks] = fit_line(of)
    return found


def predicted(layout: Layout, lines: dict[tuple[str, int], Line], flops: float) -> StepTime:
    """A step at the measured rates."""

    def collective_s(kind, axes, bytes_):
        return lines[kind, prod(getattr(layout, axis) for axis in axes)].seconds(bytes_)

    return predict_step(job(), layout, gemm_s=lambda m, n, k: 2 * m * n * k / flops, collective_s=collective_s)


def spearman(first, second) -> float:
    """Correlation of the ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def main() -> None:
    """Measure and predict all grids, without and with overlap."""
    options, figures = bench.parser(__doc__).parse_args(), {}
    repetitions, world = (2, 2) if options.tiny else (ROUNDS, WORLD)
    machine = on_ranks(measure_machine, world)
    lines = lines_of(machine["samples"])
    print(f"products {machine['flops'] / 1e9:.1f} GFLOP/s per rank; collectives of 2, 4, ... ranks:")
    for kind in KINDS:
        of = [lines[kind, ranks] for ranks in degrees(world)[1:]]
        print(f"  {kind:14s}", ", ".join(f"{one.latency_s * 1e3:.1f} ms + {1e-6 * one.Bps:,.0f} MB/s" for one in of))
    for setting in list(SETTINGS)[: 1 if options.tiny else None]:
        times = [predicted(layout_of(grid, setting), lines, machine["flops"]) for grid in grids_of(world)]
        rounds = [on_ranks(measure_grids, world, setting) for _ in range(repetitions)]
        found = compare(setting, grids_of(world), times, rounds)
        figures |= {f"{setting.replace(' ', '_')}_{key}": value for key, value in found.items()}
    bench.record(options, figures)


def compare(
    setting: str, grids: list[tuple[int, ...]], times: list[StepTime], rounds: list[list[list[float]]]
) -> dict[str, float]:
    """Print how alike prediction and measurements are."""
    figures: dict[str, float] = {}
    steps, waits = (np.array([one[i] for one in rounds]) for i in (0, 1))
    for what, expected, measured in (
        ("step", np.array([one.seconds for one in times]), steps),
        ("waiting", np.array([sum(one.exposed_s.values()) for one in times]), waits),
    ):
        alike = [spearman(expected, one) for one in (*measured, np.median(measured, axis=0))]
        repeated = [spearman(one, other) for one, other in combinations(measured, 2)]
        figures |= {f"{what}_spearman": alike[-1]}
        figures |= {f"{what}_least_repeated": min(repeated), f"{what}_most_repeated": max(repeated)}
        print(
            f"{setting}, {what}: {measured.min():.2f} to {measured.max():.2f} s; Spearman of prediction and "
            f"each measurement {_each(alike[:-1])}, their median {alike[-1]:.2f}; of two measurements "
            f"{_each(repeated)}"
        )
    expected, typical = np.array([one.seconds for one in times]), np.median(steps, axis=0)
    best = int(np.argmin(expected))
    regret = [one[best] / one.min() for one in (*steps, typical)]
    others = np.median(steps[1:], axis=0)
    other_s = median(steps[0] - expected)
    error = median(abs((expected + other_s) / others - 1))
    print(
        f"{setting}: predicted best {grids[best]} takes {_each(regret[:-1])} times the best of each, "
        f"{regret[-1]:.2f} of their median; with {other_s:.2f} s added (from the first) seconds are "
        f"{error:.0%} off in the others"
    )
    return figures | {"regret": regret[-1], "off": error}


def _each(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


if __name__ == "__main__":
    main()
