"""PyTorch's own parallelism on the grids of the runtime, which benchmarks time beside it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from weft.errors import Unsupported
from weft.layout.spec import Layout
from weft.model.job import Job
from weft.model.spec import Attention, Block, FeedForward
from weft.runtime.run.optimizer import AdamSettings


class PlainBlock(nn.Module):
    """A Llama block; ``heads`` and ``kv_heads`` are those of this rank."""

    def __init__(self, block: Block, degree: int) -> None:
        super().__init__()
        attention, forward = block.attention, block.feed_forward
        assert isinstance(attention, Attention)
        assert isinstance(forward, FeedForward)
        hidden, wide = block.hidden, attention.heads * attention.head_dim
        narrow = attention.kv_heads * attention.head_dim
        self.heads, self.kv_heads = attention.heads // degree, attention.kv_heads // degree
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.q, self.k, self.v = (nn.Linear(hidden, out, bias=False) for out in (wide, narrow, narrow))
        self.proj = nn.Linear(wide, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, forward.intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(forward.intermediate, hidden, bias=False)

    def forward(self, rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        normed = self.norm1(rows)

        def heads(linear: nn.Linear, count: int) -> Tensor:
            result: Tensor = linear(normed)
            return result.view(*result.shape[:-1], count, -1).transpose(1, 2)

        def rotated(values: Tensor) -> Tensor:
            first, second = values.chunk(2, dim=-1)
            return (values * cosine + torch.cat((-second, first), dim=-1) * sine).to(values.dtype)

        mixed = functional.scaled_dot_product_attention(
            rotated(heads(self.q, self.heads)),
            rotated(heads(self.k, self.kv_heads)),
            heads(self.v, self.kv_heads),
            is_causal=True,
            enable_gqa=self.heads != self.kv_heads,
        )
        rows = rows + self.proj(mixed.transpose(1, 2).flatten(2))
        normed = self.norm2(rows)
        forward: Tensor = self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return rows + forward


class Plain(nn.Module):
    """A Llama whose heads are cut ``degree`` times."""

    def __init__(self, job: Job, degree: int = 1) -> None:
        super().__init__()
        model = job.model
        blocks = [run.block for run in model.runs for _ in range(run.count)]
        attention = blocks[0].attention
        assert isinstance(attention, Attention)
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        self.blocks = nn.ModuleList(PlainBlock(block, degree) for block in blocks)
        self.norm = nn.RMSNorm(model.hidden, eps=1e-5)
        self.head = nn.Linear(model.hidden, model.vocab, bias=False)
        half = torch.arange(0, attention.head_dim, 2) / attention.head_dim
        angles = torch.outer(torch.arange(job.recipe.sequence), 10000.0**-half).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.embedding(ids)
        for block in self.blocks:
            rows = block(rows, self.cosine, self.sine)
        logits: Tensor = self.head(self.norm(rows))
        return logits


class Peer:
    """PyTorch's tensor parallelism over x, ``fully_shard`` over z (and data, as HSDP), fused AdamW and clipping.

    A layout of data parallelism only trains in DistributedDataParallel.

    Args:
        job: a Llama without tied embeddings; its precision is fp32 or bf16 (parameters in fp32, as Weft's).
        layout: x, z and data; the whole share of the batch is one micro-batch.

    Attributes:
        means: what of PyTorch it trains by, in its names.

    Raises:
        Unsupported: the layout cuts y or has a pipeline: PyTorch has neither in these two.
    """

    def __init__(self, job: Job, layout: Layout, device: torch.device) -> None:
        if layout.y * layout.pipeline > 1:
            raise Unsupported("y and pipeline are in neither of PyTorch's two", where="layout")
        torch.manual_seed(0)
        self.x, half = layout.x, job.recipe.precision == "bf16"
        with device:
            model = Plain(job, layout.x)
        self.model: nn.Module = model
        sharded = layout.z > 1 or (layout.x > 1 and layout.data > 1)
        means = ("parallelize_module", layout.x > 1), ("fully_shard", sharded)
        alone = "the plain model" if layout.world == 1 else "DistributedDataParallel"
        self.means = " + ".join(name for name, used in means if used) or alone
        if layout.world > 1:
            shape = (layout.data, layout.z, layout.x)
            mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "z", "x"))
            if layout.x > 1:
                _cut_tensors(model, mesh["x"])
            if sharded:
                policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if half else None
                _shard(model, mesh["data", "z"] if layout.data > 1 else mesh["z"], policy or MixedPrecisionPolicy())
            elif layout.data > 1:
                self.model = DistributedDataParallel(model, process_group=mesh.get_group("data"))
        self._cast: AbstractContextManager[Any] = (
            torch.autocast(device.type, dtype=torch.bfloat16) if half and not sharded else nullcontext()
        )
        by_mesh: dict[Any, list[Tensor]] = {}
        for parameter in self.model.parameters():
            by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        adam = AdamSettings()
        self.adam = torch.optim.AdamW(
            [{"params": alike} for alike in by_mesh.values()],
            lr=adam.rate,
            betas=adam.betas,
            weight_decay=adam.weight_decay,
            fused=True,
        )

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Train on this rank's rows, shape (rows, sequence)."""
        self.adam.zero_grad()
        with loss_parallel() if self.x > 1 else nullcontext():
            with self._cast:
                logits = self.model(inputs)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        parameters = [one for one in self.model.parameters() if one.grad is not None]
        clip([one.grad for one in parameters if one.grad is not None], 1.0)
        self.adam.step()


def _cut_tensors(model: Plain, mesh: Any) -> None:
    out, into = ColwiseParallel, RowwiseParallel
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"embedding": into(input_layouts=Replicate()), "head": head})
    for block in model.blocks:
        plan = {name: out() for name in ("q", "k", "v", "gate", "up")}
        parallelize_module(block, mesh, plan | {"proj": into(), "down": into()})


def _shard(model: Plain, mesh: Any, policy: MixedPrecisionPolicy) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def clip(gradients: Sequence[Tensor], maximum: float) -> None:
    """As ``clip_grad_norm_``, which does not take parameters on different meshes together."""
    square = torch.zeros((), device=gradients[0].device)
    for mesh in dict.fromkeys(getattr(gradient, "device_mesh", None) for gradient in gradients):
        alike = [gradient for gradient in gradients if getattr(gradient, "device_mesh", None) == mesh]
        norm = nn.utils.get_total_norm(alike, foreach=False)
        square += (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    scale = (maximum / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        (gradient.to_local() if isinstance(gradient, DTensor) else gradient).mul_(scale)
