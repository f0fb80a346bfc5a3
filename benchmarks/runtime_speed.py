"""Seconds per training step of ``weft.runtime`` and of PyTorch's own tensor, sharded and data parallelism.

The same Llama on every grid of 1, 2 and 4 ranks with y = 1 (PyTorch has no y), on gloo ranks of this machine: both
take steps in turn in one run, the one that was second before goes first, and the ratio of their medians is reported.
PyTorch's side: ``parallelize_module`` over x (embedding and loss vocabulary-parallel), ``fully_shard`` over z and over
data beside x or z, with resharding after forward, DistributedDataParallel over data alone, fused AdamW.

    python benchmarks/runtime_speed.py
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import bench
import torch
import torch.distributed as dist
from peer import Peer

from weft.layout import Layout
from weft.model.job import Job, Recipe
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model
from weft.runtime.core.grid import Grid
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.optimizer import AdamSettings
from weft.runtime.run.ranks import run_ranks
from weft.runtime.run.session import RunSettings, Session

HIDDEN, HEADS, INTERMEDIATE, LAYERS, VOCABULARY = 256, 8, 768, 4, 1024
SEQUENCE, BATCH, STEPS = 128, 16, 16
GRIDS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))
GRIDS += ((4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2))
"""Ranks along x, z and data."""


def job() -> Job:
    """A small Llama with multi-head attention."""
    block = Block(
        hidden=HIDDEN,
        attention=Attention(heads=HEADS, kv_heads=HEADS, head_dim=HIDDEN // HEADS),
        feed_forward=FeedForward(intermediate=INTERMEDIATE),
    )
    model = Model(name="speed", hidden=HIDDEN, vocab=VOCABULARY, runs=(BlockRun(block=block, count=LAYERS),))
    return Job(model=model, recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))


def compare(path: str, grid: tuple[int, int, int], steps: int) -> None:
    """Both sides in turn on this rank; the first rank writes median seconds."""
    x, z, data = grid
    layout = Layout(x=x, z=z, data=data, micro_batch=BATCH // (z * data), zero=0)
    corpus = markov_corpus(VOCABULARY, tokens=1 << 16, seed=0)
    session = Session(job(), Grid.of(layout), RunSettings(adam=AdamSettings()), corpus)
    peer = Peer(job(), layout, torch.device("cpu"))
    share = BATCH // (z * data)
    ids = torch.randint(VOCABULARY, (share, SEQUENCE + 1))
    times: dict[str, list[float]] = {"weft": [], "peer": []}
    turns = [("weft", session.step), ("peer", lambda: peer.step(ids[:, :-1], ids[:, 1:]))]
    for step in range(steps + 2):
        turns.reverse()
        for name, run in turns:
            if dist.is_initialized():
                dist.barrier()
            start = time.perf_counter()
            run()
            if step >= 2:
                times[name].append(time.perf_counter() - start)
    if not dist.is_initialized() or dist.get_rank() == 0:
        Path(path).write_text(json.dumps([statistics.median(times[name]) for name in ("weft", "peer")]))


def main() -> None:
    options, ratios = bench.parser(__doc__).parse_args(), {}
    print("  x   z data  ranks   weft ms  torch ms  ratio")
    for x, z, data in GRIDS[1:2] if options.tiny else GRIDS:
        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            path = Path(folder) / "seconds.json"
            run_ranks(compare, (str(path), (x, z, data), 1 if options.tiny else STEPS), x * z * data)
            ours, theirs = json.loads(path.read_text())
        ratios[x, z, data] = ours / theirs
        text = (
            f"{x:>3} {z:>3} {data:>4} {x * z * data:>6} {ours * 1e3:>9.1f} {theirs * 1e3:>9.1f} {ours / theirs:>6.2f}"
        )
        print(text, flush=True)
    figures = {f"x{x}_z{z}_data{data}_ratio": ratio for (x, z, data), ratio in ratios.items()}
    for key, of in (
        ("tensor_parallel", [ratio for (x, _, _), ratio in ratios.items() if x > 1]),
        ("sharded", [ratio for (x, z, _), ratio in ratios.items() if x == 1 and z > 1]),
        ("copied", [ratio for (x, z, data), ratio in ratios.items() if x * z == 1 and data > 1]),
        ("one_rank", [ratio for grid, ratio in ratios.items() if grid == (1, 1, 1)]),
    ):
        if of:
            figures |= {f"{key}_least_ratio": min(of), f"{key}_most_ratio": max(of)}
    bench.record(options, figures)


if __name__ == "__main__":
    main()
