"""Seconds per training step of ``weft.runtime`` and of PyTorch's own tensor parallelism + ``fully_shard``.

The same Llama on the same grids with y = 1, on gloo ranks of this machine: both take steps in turn in one
run, and the ratio of their medians is reported.  PyTorch's side: ``parallelize_module`` over x (embedding and
loss vocabulary-parallel), ``fully_shard`` over z and data with resharding after forward, fused AdamW.

    python benchmarks/runtime_speed.py
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import bench
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional

from weft.layout import Layout
from weft.model.job import Job, Recipe
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model
from weft.runtime.core.grid import Grid
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.optimizer import AdamSettings
from weft.runtime.run.ranks import run_ranks
from weft.runtime.run.session import RunSettings, Session

HIDDEN, HEADS, INTERMEDIATE, LAYERS, VOCABULARY = 256, 8, 768, 4, 1024
SEQUENCE, BATCH, STEPS = 128, 16, 8
GRIDS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 4, 1), (4, 1, 1), (2, 1, 2), (1, 2, 2))


def job() -> Job:
    """A small Llama with multi-head attention."""
    block = Block(
        hidden=HIDDEN,
        attention=Attention(heads=HEADS, kv_heads=HEADS, head_dim=HIDDEN // HEADS),
        feed_forward=FeedForward(intermediate=INTERMEDIATE),
    )
    model = Model(name="speed", hidden=HIDDEN, vocab=VOCABULARY, runs=(BlockRun(block=block, count=LAYERS),))
    return Job(model=model, recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))


class PlainBlock(nn.Module):
    """The same block in plain PyTorch; ``heads`` are those of this rank."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, eps=1e-5), nn.RMSNorm(HIDDEN, eps=1e-5)
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))
        self.proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, INTERMEDIATE, bias=False) for _ in range(2))
        self.down = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        normed = self.norm1(rows)

        def heads(linear: nn.Linear) -> Tensor:
            return linear(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)

        def rotated(values: Tensor) -> Tensor:
            first, second = values.chunk(2, dim=-1)
            return values * cosine + torch.cat((-second, first), dim=-1) * sine

        mixed = functional.scaled_dot_product_attention(
            rotated(heads(self.q)), rotated(heads(self.k)), heads(self.v), is_causal=True
        )
        rows = rows + self.proj(mixed.transpose(1, 2).flatten(2))
        normed = self.norm2(rows)
        return rows + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Plain(nn.Module):
    """The same decoder in plain PyTorch."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(PlainBlock(heads) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        features = HIDDEN // HEADS
        half = torch.arange(0, features, 2) / features
        angles = torch.outer(torch.arange(SEQUENCE), 10000.0**-half).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.embedding(ids)
        for block in self.blocks:
            rows = block(rows, self.cosine, self.sine)
        return self.head(self.norm(rows))


class Peer:
    """PyTorch's tensor parallelism over x, and ``fully_shard`` over z (and data, as HSDP)."""

    def __init__(self, x: int, z: int, data: int) -> None:
        torch.manual_seed(0)
        self.x, self.ranks = x, x * z * data
        self.model = Plain(HEADS // x)
        self.replica = 0
        if self.ranks > 1:
            mesh = init_device_mesh("cpu", (data, z, x), mesh_dim_names=("data", "z", "x"))
            self.replica = mesh.get_local_rank("data") * z + mesh.get_local_rank("z")
            if x > 1:
                self._cut_tensors(mesh["x"])
            if z * data > 1:
                shard = mesh["data", "z"] if data > 1 else mesh["z"]
                for block in self.model.blocks:
                    fully_shard(block, mesh=shard)
                fully_shard(self.model, mesh=shard)
        by_mesh: dict[Any, list[Tensor]] = {}
        for parameter in self.model.parameters():
            by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        self.adam = torch.optim.AdamW(
            [{"params": alike} for alike in by_mesh.values()], lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    def _cut_tensors(self, mesh: Any) -> None:
        out, into = ColwiseParallel, RowwiseParallel
        parallelize_module(
            self.model,
            mesh,
            {
                "embedding": RowwiseParallel(input_layouts=Replicate()),
                "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
            },
        )
        for block in self.model.blocks:
            plan = {name: out() for name in ("q", "k", "v", "gate", "up")}
            parallelize_module(block, mesh, plan | {"proj": into(), "down": into()})

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        self.adam.zero_grad()
        if self.x > 1:
            with loss_parallel():
                self._loss(inputs, targets).backward()
        else:
            self._loss(inputs, targets).backward()
        self._clip(1.0)
        self.adam.step()

    def _clip(self, maximum: float) -> None:
        """As ``clip_grad_norm_``, which does not take parameters on different meshes together."""
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        square = torch.zeros(())
        for mesh in dict.fromkeys(getattr(gradient, "device_mesh", None) for gradient in gradients):
            alike = [gradient for gradient in gradients if getattr(gradient, "device_mesh", None) == mesh]
            norm = nn.utils.get_total_norm(alike, foreach=False)
            square += (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
        scale = (maximum / (square.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            (gradient.to_local() if isinstance(gradient, DTensor) else gradient).mul_(scale)

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())


def compare(path: str, grid: tuple[int, int, int], steps: int) -> None:
    """Both sides in turn on this rank; the first rank writes median seconds."""
    x, z, data = grid
    layout = Layout(x=x, z=z, data=data, micro_batch=BATCH // (z * data), zero=0)
    corpus = markov_corpus(VOCABULARY, tokens=1 << 16, seed=0)
    session = Session(job(), Grid.of(layout), RunSettings(adam=AdamSettings()), corpus)
    peer = Peer(x, z, data)
    share = BATCH // (z * data)
    ids = torch.randint(VOCABULARY, (share, SEQUENCE + 1))
    times: dict[str, list[float]] = {"weft": [], "peer": []}
    for step in range(steps + 2):
        for name, run in (("weft", session.step), ("peer", lambda: peer.step(ids[:, :-1], ids[:, 1:]))):
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
        ("sharded_only", [ratio for (x, z, data), ratio in ratios.items() if x == 1 and z * data > 1]),
        ("one_rank", [ratio for grid, ratio in ratios.items() if grid == (1, 1, 1)]),
    ):
        if of:
            figures |= {f"{key}_least_ratio": min(of), f"{key}_most_ratio": max(of)}
    bench.record(options, figures)


if __name__ == "__main__":
    main()
