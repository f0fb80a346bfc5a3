"""``weft bench selftest`` on the ranks of a machine: equal losses, bytes as predicted, overlap, memory, speed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from weft.files import write_text
from weft.layout.measured import SelftestFinding
from weft.layout.spec import Layout
from weft.layout.step import StepOptions, step_collectives
from weft.model.job import Job, Recipe
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Precision
from weft.runtime.measure.timing import Stopwatch
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.session import RunSettings, Session
from weft.units import counted

MOST_RANKS = 8
LOSSES_DIFFER = 1e-9
"""Largest relative difference of losses in fp64 from one rank's."""
MEMORY_OFF = 0.1
"""Largest relative difference of peak memory from the estimate."""
_GRIDS = {
    1: ("x=1",),
    2: ("x=2", "y=2", "z=2", "data=2", "pipeline=2"),
    4: ("x=4", "z=4", "data=4", "x=2,y=2", "x=2,z=2", "z=2,data=2", "x=2,pipeline=2"),
    8: ("x=8", "z=8", "data=8", "x=2,y=2,z=2", "x=2,z=2,data=2", "x=4,z=2", "x=2,z=2,pipeline=2"),
}


def most_ranks(available: int) -> int:
    """The largest number of ranks that there are grids of."""
    return max(ranks for ranks in _GRIDS if ranks <= max(available, 1))


def layouts(ranks: int, batch: int) -> list[Layout]:
    """The grids of so many ranks; each takes its share of a batch at once, a pipeline in four parts."""
    from weft.layout.text import parse_layout

    result = []
    for text in _GRIDS[ranks]:
        layout = parse_layout(text).complete(ranks)
        parts = layout.dp * (4 if layout.pipeline > 1 else 1)
        result.append(replace(layout, micro_batch=max(batch // parts, 1), zero=int(layout.data > 1)))
    return result


def small_job() -> Job:
    """What losses are compared on."""
    return _job(layers=4, hidden=64, heads=8, vocab=256, sequence=32, precision="fp32")


def timed_job(device: str) -> Job:
    """What is timed: on a GPU four blocks as wide as a 7B Llama's, or half as wide where memory is small."""
    if device != "cuda":
        return _job(layers=4, hidden=256, heads=8, vocab=1024, sequence=128, precision="fp32")
    hidden = 4096 if torch.cuda.get_device_properties(0).total_memory > 60e9 else 2048
    return _job(layers=4, hidden=hidden, heads=32, vocab=32_000, sequence=2048, precision="bf16")


def _job(*, layers: int, hidden: int, heads: int, vocab: int, sequence: int, precision: Any) -> Job:
    block = Block(
        hidden=hidden,
        attention=Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        feed_forward=FeedForward(intermediate=3 * hidden),
    )
    model = Model(name="selftest", hidden=hidden, vocab=vocab, runs=(BlockRun(block=block, count=layers),))
    return Job(model=model, recipe=Recipe(global_batch=16, sequence=sequence, precision=precision))


def selftest_rank(
    path: str, device: str, steps: int, grids: Sequence[Layout], estimated: Sequence[float | None]
) -> None:
    """All checks on this rank; the first rank writes them.

    Args:
        estimated: peak memory in bytes on each of the grids, where it is known.
    """
    where = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")
    alone = _losses(small_job(), Grid(Layout(micro_batch=16), where, None, 0))
    timed = timed_job(device)
    result = []
    for layout, bytes_ in zip(grids, estimated, strict=True):
        grid = Grid.of(layout, where)
        name = _name(layout)
        result.append(_parity(name, grid, alone))
        result += _timed(name, grid, timed, steps, bytes_)
    if not dist.is_initialized() or dist.get_rank() == 0:
        write_text(path, json.dumps([asdict(one) for one in result]))


def _name(layout: Layout) -> str:
    cut = [f"{axis}={getattr(layout, axis)}" for axis in ("x", "y", "z", "data", "pipeline")]
    return ",".join(one for one in cut if not one.endswith("=1")) or "x=1"


def _session(job: Job, grid: Grid, precision: Precision) -> Session:
    corpus = markov_corpus(job.model.vocab, tokens=1 << 18, seed=0)
    return Session(job, grid, RunSettings(precision=precision), corpus)


def _losses(job: Job, grid: Grid) -> list[float]:
    """Losses and norms of gradients of three steps in fp64, the same on every rank."""
    session = _session(job, grid, Precision.of("fp64"))
    values = [value for _ in range(3) for step in [session.step()] for value in (step.loss, step.gradient_norm)]
    shared = torch.tensor(values, dtype=torch.float64, device=grid.device)
    session.machine.collectives.all_reduce(shared, "pipeline", op=dist.ReduceOp.MAX).wait()  # the last stage's losses
    return shared.tolist()


def _parity(name: str, grid: Grid, alone: list[float]) -> SelftestFinding:
    """Losses and norms beside one rank's; the worst rank counts."""
    result = _losses(small_job(), grid)
    worst = max(abs(one - other) / abs(other) for one, other in zip(result, alone, strict=True))
    (worst,) = Stopwatch(grid, 1).slowest([worst])
    words = f"losses and gradients' norms differ by {worst:.1e} at most"
    return _finding("equal to one rank", name, worst <= LOSSES_DIFFER, words, relative_difference=worst)


def _finding(check: str, grid: str, holds: bool | None, words: str, **figures: float) -> SelftestFinding:
    """A check's finding; ``holds`` is None where there is nothing to hold it against."""
    verdict: Any = "seen" if holds is None else "holds" if holds else "fails"
    return SelftestFinding(check=check, grid=grid, verdict=verdict, found=words, figures=figures)


def _timed(name: str, grid: Grid, job: Job, steps: int, estimated: float | None) -> Iterable[SelftestFinding]:
    """Bytes, waiting, overlap, memory and speed of the larger job."""
    cuda = grid.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    session = _session(job, grid, Precision.of(job.recipe.precision))
    clock = Stopwatch(grid, steps)
    own_s = clock.together(session.step)
    if cuda:
        yield _memory(name, grid, estimated)
    with session.machine.collectives.logged(timed=True) as log:
        seconds = session.step().seconds
    predicted = step_collectives(
        job.model, job.recipe, grid.layout, stage=grid.coordinates["pipeline"], options=StepOptions()
    )
    equal = clock.slowest([float(Counter(log.issued) != predicted)]) == [0.0]
    if grid.layout.world > 1:
        count = len(log.issued)
        words = f"{counted(count, 'collective')}, each as predicted" if equal else "not the predicted collectives"
        yield _finding("collectives", name, equal, words, collectives=float(count))
        waiting = sum((log.exposed_s() or {}).values()) / seconds
        yield _finding("waiting", name, None, f"computation waits for {waiting:.1%} of a step", waiting=waiting)
    tokens_per_s = job.recipe.tokens / own_s
    words = f"{own_s * 1e3:.1f} ms a step, {tokens_per_s:,.0f} tokens/s"
    yield _finding("speed", name, None, words, seconds=own_s, tokens_per_s=tokens_per_s)


# On GPUs -----------------------------------------------------------------------------------------


def _memory(name: str, grid: Grid, estimated: float | None) -> SelftestFinding:
    """Peak memory of the fullest rank beside the estimate for this GPU."""
    (peak,) = Stopwatch(grid, 1).slowest([float(torch.cuda.max_memory_allocated())])
    if estimated is None:
        words = f"{peak / 2**30:.2f} GiB; the catalogue has no such GPU"
        return _finding("memory", name, None, words, peak_bytes=peak)
    off = peak / estimated - 1.0
    words = f"{peak / 2**30:.2f} GiB; {off:+.1%} of the estimate"
    return _finding("memory", name, abs(off) <= MEMORY_OFF, words, peak_bytes=peak, estimated_bytes=estimated)


def environment_facts(device: str) -> dict[str, str]:
    """What a reader of the figures needs to know of the machine."""
    result = {"torch": str(torch.__version__)}
    if device == "cuda":
        names = Counter(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
        result["gpus"] = ", ".join(f"{count} x {name}" for name, count in names.items())
        result["cuda"] = str(torch.version.cuda or torch.version.hip)
        if dist.is_nccl_available():
            result["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return result


def read_findings(path: Path) -> tuple[SelftestFinding, ...]:
    """What ``selftest_rank`` wrote."""
    return tuple(SelftestFinding(**one) for one in json.loads(path.read_text(encoding="utf-8")))
