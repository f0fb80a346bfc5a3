"""How long training stands still for a checkpoint, in the foreground and in the background, as a share of a step.

A Llama of 15 million parameters on two gloo ranks of this machine (data = 2, ZeRO-1, one thread each), whose step
lasts about a second.  Both kinds of checkpoint are taken in turn in one run: how long the run stands still, by the
wall and in CPU seconds of the thread that trains, which other work on the machine does not change, and what the thread
that writes in the background computes meanwhile (copy, two checksums, reading back).

    python benchmarks/checkpoint_stall.py
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import bench

from weft.layout import Layout
from weft.model.job import Job, Recipe
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model
from weft.runtime.core.grid import Grid
from weft.runtime.core.parameters import check_replicas
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.folder import CheckpointSaving
from weft.runtime.run.ranks import run_ranks
from weft.runtime.run.session import RunSettings, Session

HIDDEN, HEADS, INTERMEDIATE, LAYERS, VOCABULARY = 512, 8, 1536, 4, 1024
SEQUENCE, BATCH, ROUNDS = 128, 16, 4
STEPS = 3
"""Steps of a round without any checkpoint, and beside one."""


def job(layers: int) -> Job:
    """A small Llama with multi-head attention."""
    block = Block(
        hidden=HIDDEN,
        attention=Attention(heads=HEADS, kv_heads=HEADS, head_dim=HIDDEN // HEADS),
        feed_forward=FeedForward(intermediate=INTERMEDIATE),
    )
    model = Model(name="stall", hidden=HIDDEN, vocab=VOCABULARY, runs=(BlockRun(block=block, count=layers),))
    return Job(model=model, recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of something: the wall's, those that the training thread computed, and those of all threads."""

    wall_s: float
    own_s: float
    all_s: float

    @classmethod
    def on(cls, action: Callable[[], object]) -> Spent:
        begin = time.perf_counter(), time.thread_time(), time.process_time()
        action()
        end = time.perf_counter(), time.thread_time(), time.process_time()
        wall_s, own_s, all_s = (after - before for before, after in zip(begin, end, strict=True))
        return cls(wall_s=wall_s, own_s=own_s, all_s=all_s)


def measure(root: str, layers: int, rounds: int) -> None:
    """One rank's times; the first rank writes them."""
    layout = Layout(data=2, zero=1, micro_batch=BATCH // 2)
    session = Session(job(layers), Grid.of(layout), RunSettings(), markov_corpus(VOCABULARY, tokens=1 << 16, seed=0))
    at_once, behind = CheckpointSaving(keep=1), CheckpointSaving(background=True, keep=1)
    times: dict[str, list[Spent]] = {name: [] for name in ("plain", "replicas", "foreground", "background", "beside")}
    held = []
    for number in range(rounds + 1):
        name = f"step-{number:08d}"
        session.step()
        times["plain"] += [Spent.on(session.step) for _ in range(STEPS)]
        times["replicas"].append(Spent.on(partial(check_replicas, session.machine, session.flat.holdings)))
        times["foreground"].append(Spent.on(partial(session.save, Path(root, "now", name), at_once)))
        times["background"].append(Spent.on(partial(session.save, Path(root, "behind", name), behind)))
        times["beside"] += [Spent.on(session.step) for _ in range(STEPS)]
        held.append(behind.held_s)
        behind.wait()
    if session.grid.rank == 0:
        state = sum(piece.values.nbytes for piece in session.optimizer.pieces())
        found = {name: [asdict(one) for one in some] for name, some in times.items()}
        Path(root, "times.json").write_text(json.dumps(found | {"held": held, "state": state}))


def main() -> None:
    options = bench.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        run_ranks(measure, (folder, 1 if options.tiny else LAYERS, 1 if options.tiny else ROUNDS), 2)
        found = json.loads(Path(folder, "times.json").read_text())

    def usual(name: str, clock: str) -> float:
        return float(statistics.median(one[clock] for one in found[name][1:]))

    step_s, step_cpu_s = usual("plain", "wall_s"), usual("plain", "own_s")
    stood = [one["wall_s"] + held for one, held in zip(found["background"], found["held"], strict=True)]
    longer = sum(one["all_s"] for one in found["beside"]) / len(found["held"]) - STEPS * usual("plain", "all_s")
    figures = {
        "step_s": step_s,
        "step_cpu_s": step_cpu_s,
        "state_MB": found["state"] / 1e6,
        "foreground_share": usual("foreground", "wall_s") / step_s,
        "background_share": statistics.median(stood[1:]) / step_s,
        "background_most_share": max(stood[1:]) / step_s,
        "background_first_share": stood[0] / step_s,
        "replicas_share": usual("replicas", "wall_s") / step_s,
        "foreground_cpu_share": usual("foreground", "own_s") / step_cpu_s,
        "background_cpu_share": usual("background", "own_s") / step_cpu_s,
        "writer_cpu_share": longer / step_cpu_s,
    }
    print(f"step {step_s:.2f} s ({step_cpu_s:.2f} CPU-s), {figures['state_MB']:.0f} MB of state a rank")
    for name, value in figures.items():
        if name.endswith("_share"):
            print(f"{name.removesuffix('_share').replace('_', ' '):18s} {value:7.1%} of a step")
    bench.record(options, figures)


if __name__ == "__main__":
    main()
