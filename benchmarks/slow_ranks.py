"""How well the slowdown by a slow rank is predicted where nothing is emulated: two ranks of gloo on this machine.

Each session trains in blocks of steps in which rank 1 computes at its own pace, and of steps in which it sleeps before
it issues or waits for a collective, in turn.  The middle of the ratios of neighbouring blocks is what was measured.
Predicted is what ``weft.simulation.step`` predicts: every rank has a clock, and a collective begins when
its last rank has issued it.  Products and collectives are timed before; what a plain step takes beside them is
computation of the plain blocks.  No slow block enters the prediction.

Run: ``python benchmarks/slow_ranks.py`` (five minutes, on a quiet machine of two cores or more).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median

import bench
import numpy as np
import torch
from runtime_prediction import BATCH, job, lines_of, measure_machine, on_ranks

from weft.layout.spec import Layout
from weft.runtime.core.collectives import Pending
from weft.runtime.core.grid import Grid
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.optimizer import AdamSettings
from weft.runtime.run.session import RunSettings, Session
from weft.simulation.step import predict_step

GRIDS = {"x": {"x": 2}, "y": {"y": 2}, "z": {"z": 2}, "data": {"data": 2}}
FACTORS = (1.1, 1.3, 2.0)
ROUNDS, BLOCK = 12, 4
"""Pairs of blocks; steps of a block, of which the first is not counted: in it the ranks fall into step."""


class Pace:
    """Makes what a rank computes, all between two waits for other ranks, last ``factor`` times as long as it does.

    The rank sleeps and does not spin, so that ranks that share its cores are as fast as before; a sleep that was too
    long shortens the next.
    """

    def __init__(self, session: Session) -> None:
        self.factor, self._owed = 1.0, 0.0
        self._since = time.perf_counter()
        collectives, wait = session.machine.collectives, Pending.wait
        for name in ("all_reduce", "all_gather", "reduce_scatter"):
            setattr(collectives, name, self._paying(getattr(collectives, name)))

        def paced_wait(pending: Pending) -> torch.Tensor:
            if not pending.under_way:
                return wait(pending)
            self.pay()
            result = wait(pending)
            self._since = time.perf_counter()
            return result

        Pending.wait = paced_wait

    def _paying(self, issue):
        def issued(*given, **named):
            self.pay()
            return issue(*given, **named)

        return issued

    def pay(self) -> None:
        """Sleep for what was computed since."""
        now = time.perf_counter()
        self._owed += (self.factor - 1.0) * (now - self._since)
        if self._owed > 0.0:
            time.sleep(self._owed)
            self._owed -= time.perf_counter() - now
        self._since = time.perf_counter()

    def step_s(self, session: Session) -> float:
        """Seconds of a step."""
        self._since = begin = time.perf_counter()
        session.step()
        self.pay()
        return time.perf_counter() - begin


def layout_of(axis: str) -> Layout:
    """Two ranks along one axis, in one micro-batch."""
    return Layout(**GRIDS[axis], micro_batch=BATCH // (2 if axis in ("z", "data") else 1))


def measure(path: str, _world: int, axis: str, factors: tuple[float, ...], rounds: int) -> None:
    """Seconds of a plain step and of a slowed one, for each factor and round."""
    grid = Grid.of(layout_of(axis))
    corpus = markov_corpus(job().model.vocab, tokens=1 << 16, seed=0)
    session = Session(job(), grid, RunSettings(adam=AdamSettings()), corpus)
    pace = Pace(session)

    def block_s(factor: float) -> float:
        pace.factor = factor if grid.rank == 1 else 1.0
        return sum([pace.step_s(session) for _ in range(BLOCK)][1:]) / (BLOCK - 1)

    block_s(1.0)
    found = {factor: [(block_s(1.0), block_s(factor)) for _ in range(rounds)] for factor in factors}
    if grid.rank == 0:
        Path(path).write_text(json.dumps(list(found.values())), encoding="utf-8")


def main() -> None:
    """Measure and predict."""
    options, figures, errors = bench.parser(__doc__).parse_args(), {}, []
    axes, factors, rounds = (("data",), FACTORS[-1:], 1) if options.tiny else (tuple(GRIDS), FACTORS, ROUNDS)
    machine = on_ranks(measure_machine, 2)
    lines = lines_of(machine["samples"])

    def product_s(m: float, n: float, k: float) -> float:
        return 2 * m * n * k / machine["flops"]

    def collective_s(kind, axes, bytes_):
        return lines[kind, 2].seconds(bytes_)

    print("axis  rank 1 at  plain ms  measured  predicted    error")
    for axis in axes:
        times = on_ranks(measure, 2, axis, factors, rounds)
        plain_s = median(plain for of in times for plain, _ in of)
        known = {"gemm_s": product_s, "collective_s": collective_s}
        other_s = max(plain_s - predict_step(job(), layout_of(axis), **known).seconds, 0.0)
        base_s = predict_step(job(), layout_of(axis), other_s=other_s, **known).seconds
        for factor, of in zip(factors, times, strict=True):
            slowed = predict_step(job(), layout_of(axis), other_s=other_s, slow=np.array([1.0, factor]), **known)
            expected, found = slowed.seconds / base_s, median(slow / plain for plain, slow in of)
            error = expected / found - 1
            errors.append(abs(error))
            figures |= {f"{axis}_{factor}_measured": found, f"{axis}_{factor}_predicted": expected}
            line = f"{axis:4s} {factor:10.1f} {plain_s * 1e3:9.1f} {found:9.3f} {expected:10.3f} {error:8.1%}"
            print(line, flush=True)
    figures |= {"mean_error": float(np.mean(errors)), "worst_error": max(errors)}
    print(f"mean error {np.mean(errors):.1%}, worst {max(errors):.1%}")
    bench.record(options, figures)


if __name__ == "__main__":
    main()
