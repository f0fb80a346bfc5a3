"""``weft bench selftest`` on the ranks of a machine: equal losses, bytes as predicted, overlap, memory, speed."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from weft.errors import Unsupported
from weft.files import write_text
from weft.layout.measured import SelftestFinding
from weft.layout.spec import Layout
from weft.layout.step import StepOptions, step_collectives
from weft.model.job import Job, Recipe
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model
from weft.runtime.core.grid import Grid
from weft.runtime.core.precision import Precision
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.optimizer import AdamSettings
from weft.runtime.run.session import RunSettings, Session
from weft.units import counted

MOST_RANKS = 8
LOSSES_DIFFER = 1e-9
"""Largest relative difference of losses in fp64 from one rank's."""
LARGEST_RATIO = {"cuda": 1.1}
"""Seconds of a step beside PyTorch's, on devices that ranks have to themselves."""
MEMORY_OFF = 0.1
"""Largest relative difference of peak memory from the estimate."""
WARM_UPS, STEPS = 3, 8
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
    worst = _most(grid, worst)
    words = f"losses and gradients' norms differ by {worst:.1e} at most"
    return _finding("equal to one rank", name, worst <= LOSSES_DIFFER, words, relative_difference=worst)


def _finding(check: str, grid: str, holds: bool | None, words: str, **figures: float) -> SelftestFinding:
    """A check's finding; ``holds`` is None where there is nothing to hold it against."""
    verdict: Any = "seen" if holds is None else "holds" if holds else "fails"
    return SelftestFinding(check=check, grid=grid, verdict=verdict, found=words, figures=figures)


def _most(grid: Grid, value: float) -> float:
    """The largest of all ranks' values."""
    shared = torch.tensor([value], dtype=torch.float64, device=grid.device)
    if dist.is_initialized():
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)


def _timed(name: str, grid: Grid, job: Job, steps: int, estimated: float | None) -> Iterable[SelftestFinding]:
    """Bytes, waiting, overlap, memory and speed of the larger job."""
    cuda = grid.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    session = _session(job, grid, Precision.of(job.recipe.precision))
    own_s = _seconds(session.step, grid, steps)
    if cuda:
        yield _memory(name, grid, estimated)
    with session.machine.collectives.logged(timed=True) as log:
        seconds = session.step().seconds
    predicted = step_collectives(
        job.model, job.recipe, grid.layout, stage=grid.coordinates["pipeline"], options=StepOptions()
    )
    equal = _most(grid, float(Counter(log.issued) != predicted)) == 0
    if grid.layout.world > 1:
        count = len(log.issued)
        words = f"{counted(count, 'collective')}, each as predicted" if equal else "not the predicted collectives"
        yield _finding("collectives", name, equal, words, collectives=float(count))
        waiting = sum((log.exposed_s() or {}).values()) / seconds
        yield _finding("waiting", name, None, f"computation waits for {waiting:.1%} of a step", waiting=waiting)
        if cuda:
            yield _overlap(name, grid, session.step)
    tokens_per_s = job.recipe.tokens / own_s
    words = f"{own_s * 1e3:.1f} ms a step, {tokens_per_s:,.0f} tokens/s"
    yield _finding("speed", name, None, words, seconds=own_s, tokens_per_s=tokens_per_s)
    del session
    if grid.layout.y * grid.layout.pipeline == 1:
        yield _beside(name, grid, job, steps, own_s)


def _seconds(step: Callable[[], Any], grid: Grid, steps: int) -> float:
    """Median seconds of a step of the slowest rank."""
    times = []
    for number in range(WARM_UPS + steps):
        if dist.is_initialized():
            dist.barrier()
        start = perf_counter()
        step()
        if grid.device.type == "cuda":
            torch.cuda.synchronize()
        if number >= WARM_UPS:
            times.append(perf_counter() - start)
    return _most(grid, statistics.median(times))


def _beside(name: str, grid: Grid, job: Job, steps: int, own_s: float) -> SelftestFinding:
    """The same steps by PyTorch's own means on the same grid."""
    if grid.device.type == "cuda":
        torch.cuda.empty_cache()
    peer = Peer(job, grid.layout, grid.device)
    share = (grid.layout.micro_batch, job.recipe.sequence)
    ids = torch.randint(job.model.vocab, share, device=grid.device)
    peer_s = _seconds(lambda: peer.step(ids, ids), grid, steps)
    ratio, most = own_s / peer_s, LARGEST_RATIO.get(grid.device.type)
    holds = None if most is None else ratio <= most
    words = f"{ratio:.2f} of the time of {peer.means} ({peer_s * 1e3:.1f} ms)"
    return _finding("speed beside PyTorch", name, holds, words, ratio=ratio, peer_seconds=peer_s)


# On GPUs -----------------------------------------------------------------------------------------


def _memory(name: str, grid: Grid, estimated: float | None) -> SelftestFinding:
    """Peak memory of the fullest rank beside the estimate for this GPU."""
    peak = _most(grid, float(torch.cuda.max_memory_allocated()))
    if estimated is None:
        words = f"{peak / 2**30:.2f} GiB; the catalogue has no such GPU"
        return _finding("memory", name, None, words, peak_bytes=peak)
    off = peak / estimated - 1.0
    words = f"{peak / 2**30:.2f} GiB; {off:+.1%} of the estimate"
    return _finding("memory", name, abs(off) <= MEMORY_OFF, words, peak_bytes=peak, estimated_bytes=estimated)


def _overlap(name: str, grid: Grid, step: Callable[[], Any]) -> SelftestFinding:
    """The share of collectives' time in which other kernels run, of one profiled step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as traced:
        step()
        torch.cuda.synchronize()
    spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for event in traced.events():
        if str(event.device_type).endswith("CUDA"):
            spans["nccl" in event.name.lower()].append((event.time_range.start, event.time_range.end))
    total, both = hidden(spans[True], spans[False])
    least = -_most(grid, -(both / total if total else 0.0))
    words = f"{least:.1%} of the collectives' time passes beside other kernels"
    return _finding("overlap", name, least > 0.0, words, hidden=least)


def hidden(some: Iterable[tuple[float, float]], others: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """How long the union of some spans is, and how much of it lies in the union of others."""
    result, other = _union(some), _union(others)
    both = sum(max(min(end, stop) - max(begin, start), 0.0) for begin, end in result for start, stop in other)
    return sum(end - begin for begin, end in result), both


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans that do not meet, in order."""
    result: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


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


# PyTorch's own parallelism -----------------------------------------------------------------------


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
