"""How long training stands still for a checkpoint, in the foreground and in the background, as a share of a step.

A Llama of 15 million parameters on two gloo ranks of this machine (data = 2, ZeRO-1, one thread each), whose step
lasts about a second.  Both kinds of checkpoint are taken in turn in one run.  What a checkpoint in the background
costs is what the run stands still, and by how much the steps beside it are longer while ranks compute on all cores.

    python benchmarks/checkpoint_stall.py
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import bench

from weft.layout import Layout
from weft.model.job import Job, Recipe
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model
from weft.runtime.core.grid import Grid
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.ranks import run_ranks
from weft.runtime.run.saving import Saving
from weft.runtime.run.session import RunSettings, Session

HIDDEN, HEADS, INTERMEDIATE, LAYERS, VOCABULARY = 512, 8, 1536, 4, 1024
SEQUENCE, BATCH, ROUNDS = 128, 16, 4
PLAIN = 3
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


def measure(root: str, layers: int, rounds: int) -> None:
    """One rank's times; the first rank writes them."""
    layout = Layout(data=2, zero=1, micro_batch=BATCH // 2)
    session = Session(job(layers), Grid.of(layout), RunSettings(), markov_corpus(VOCABULARY, tokens=1 << 16, seed=0))
    at_once, behind = Saving(keep=1), Saving(background=True, keep=1)
    names = ("plain", "foreground", "replicas", "background", "held", "beside")
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        session.step()
        times["plain"] += [session.step().seconds for _ in range(PLAIN)]
        start = time.perf_counter()
        session.check_replicas()
        times["replicas"].append(time.perf_counter() - start)
        times["foreground"].append(session.save(Path(root, "now", f"step-{number:08d}"), at_once))
        times["background"].append(session.save(Path(root, "behind", f"step-{number:08d}"), behind))
        beside = [session.step().seconds for _ in range(PLAIN)]
        times["beside"].append(sum(beside) - PLAIN * statistics.median(times["plain"]))
        times["held"].append(behind.held_s)
        behind.wait()
    if session.grid.rank == 0:
        state = sum(piece.values.nbytes for piece in session.optimizer.pieces())
        Path(root, "times.json").write_text(json.dumps(times | {"state": state}))


def main() -> None:
    options = bench.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        run_ranks(measure, (folder, 1 if options.tiny else LAYERS, 1 if options.tiny else ROUNDS), 2)
        found = json.loads(Path(folder, "times.json").read_text())
    state_MB = found.pop("state") / 1e6
    first = {name: times[0] for name, times in found.items()}
    step_s = statistics.median(found["plain"])
    usual = {name: statistics.median(times[1:]) for name, times in found.items()}
    stood = [one + held for one, held in zip(found["background"], found["held"], strict=True)]
    figures = {
        "step_s": step_s,
        "state_MB": state_MB,
        "foreground_share": usual["foreground"] / step_s,
        "background_share": statistics.median(stood[1:]) / step_s,
        "background_most_share": max(stood[1:]) / step_s,
        "first_background_share": stood[0] / step_s,
        "replicas_share": usual["replicas"] / step_s,
        "held_share": usual["held"] / step_s,
        "beside_share": usual["beside"] / step_s,
    }
    print(f"step {step_s:.2f} s, {state_MB:.0f} MB of state a rank, first foreground {first['foreground']:.2f} s")
    for name, value in figures.items():
        if name.endswith("_share"):
            print(f"{name.removesuffix('_share').replace('_', ' '):18s} {value:7.1%} of a step")
    bench.record(options, figures)


if __name__ == "__main__":
    main()
