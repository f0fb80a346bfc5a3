"""What one GPU shows of the runtime: numbers, peak memory, speed, hidden communication and races.

    python benchmarks/gpu.py [memory] [overlap] [speed] [compiled] [compiled-small] [races] [numbers]

Each section is a process of its own, takes about a minute at most, and prints one JSON line for each case.  A case
that fails is printed and the next one runs.  A rank of eight runs alone: its collectives are emulated by a sleeping
kernel and a copy on a stream of their own, so that time, memory and overlap are those of one rank while the values are
not.  ``--tiny`` is a rehearsal, on the CPU where there is no GPU.
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import bench
import torch
from peer import Peer
from torch import Tensor

from weft.cluster import calibration, load
from weft.estimation import estimate, of_runtime
from weft.layout.spec import Layout, TensorOverlap
from weft.layout.text import parse_layout
from weft.model.job import Job, Recipe, model_flops
from weft.model.spec import Attention, Block, BlockRun, FeedForward, MixtureOfExperts, Model
from weft.runtime.core.collectives import Collectives, Pending
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Precision
from weft.runtime.layers.decoder import Details
from weft.runtime.measure.timing import accelerator_of, peak_flops
from weft.runtime.measure.trace import on_fake_ranks
from weft.runtime.run import session as sessions
from weft.runtime.run.data import markov_corpus

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
RANKS = 8
GRIDS = (
    *("z=8", "x=8", "x=8,sequence_parallel=true", "x=2,z=4", "x=2,y=2,z=2"),
    *("data=8", "z=4,data=2", "context=2,z=4", "z=8,recompute=full"),
)
LINK_BPS, LATENCY_S = 300e9, 15e-6
"""Of an emulated collective: bandwidth of its ring, and what any one takes."""
LIVE = 14
"""Places in the code that hold most at the peak, which are printed."""
SECTION_S = 120
Case = tuple[str, Callable[[], dict[str, Any]]]
WIDE, SMALL, SMALLEST = "7B wide, 16k tokens", "124M, 16k tokens", "124M, 2k tokens"


# Jobs -------------------------------------------------------------------------------------------


def job_of(
    kind: str = "llama", *, layers: int = 2, hidden: int = 64, heads: int = 8, intermediate: int = 192,
    vocab: int = 256, sequence: int = 32, batch: int = 16, precision: str = "fp32", window: int | None = None,
) -> Job:  # fmt: skip
    """A decoder of one kind of blocks: "llama", "gpt" or "mixture"."""
    gpt = kind == "gpt"
    attention = Attention(
        heads=heads, kv_heads=heads, head_dim=hidden // heads, window=window,
        qkv_bias=gpt, out_bias=gpt, rotary=not gpt,
    )  # fmt: skip
    feed = FeedForward(intermediate=intermediate, gated=not gpt, bias=gpt)
    layer = MixtureOfExperts(experts=8, top_k=2, expert=feed) if kind == "mixture" else feed
    block = Block(hidden=hidden, attention=attention, feed_forward=layer, norm_bias=gpt)
    model = Model(
        name=kind, hidden=hidden, vocab=vocab, runs=(BlockRun(block=block, count=layers),),
        positions=sequence if gpt else 0, norm_bias=gpt, tied_embeddings=gpt,
    )  # fmt: skip
    return Job(model=model, recipe=Recipe(global_batch=batch, sequence=sequence, precision=precision))


def wide_job(batch: int, *, tiny: bool) -> Job:
    """Four blocks as wide as Llama 7B's."""
    if tiny:
        return job_of(batch=batch, precision="bf16")
    return job_of(
        layers=4, hidden=4096, heads=32, intermediate=11008, vocab=32000, sequence=2048, batch=batch, precision="bf16"
    )


def small_job(batch: int, *, tiny: bool) -> Job:
    """124 million parameters."""
    if tiny:
        return job_of(batch=batch, precision="bf16")
    return job_of(
        layers=12, hidden=768, heads=12, intermediate=2048, vocab=50304, sequence=1024, batch=batch, precision="bf16"
    )


def session_of(job: Job, grid: Grid, precision: str = "bf16", *, drawn: bool = False, **settings: Any) -> Any:
    """A training run of one rank; its first values are ``drawn`` as in training, or quickly on the device."""
    corpus = markov_corpus(job.model.vocab, tokens=1 << 18, seed=0)
    settings_of_run = sessions.RunSettings(precision=Precision.of(precision), **settings)
    with nullcontext() if drawn else mock.patch.object(sessions, "initialize"):
        session = sessions.Session(job, grid, settings_of_run, corpus)
    for holding in () if drawn else session.flat.holdings:
        holding.parameter.data.normal_(0.0, 0.02) if holding.matrix else holding.parameter.data.fill_(1.0)
    return session


def alone(layout: Layout, device: torch.device = DEVICE) -> Grid:
    """The grid of one rank."""
    return Grid(layout, device, None, 0)


def layout_of(text: str, ranks: int, micro_batch: int) -> Layout:
    layout = parse_layout(text).complete(ranks)
    return replace(layout, micro_batch=micro_batch, zero=int(layout.data > 1))


# A rank of many, alone --------------------------------------------------------------------------


class Emulated(Collectives):
    """Collectives as NCCL issues them: one stream for each set of ranks, behind what the caller's stream has queued;
    a sleeping kernel as long as the ring takes, and a copy."""

    link_Bps = LINK_BPS
    latency_s = LATENCY_S
    seconds = 0.0
    count = 0
    cycles_per_s = 0.0
    streams: dict[tuple[str, ...], Any] = {}

    def all_reduce(self, values: Tensor, *axes: str, **_: Any) -> Pending:
        return self._run("all-reduce", axes, values, values, None, 2.0, lambda: values.mul_(1))

    def all_gather(self, shard: Tensor, *axes: str, counted: Tensor | None = None) -> Pending:
        size, shard = self.grid.size(*axes), shard.detach().contiguous()
        if size == 1:
            return Pending(shard)
        whole = shard.new_empty((shard.shape[0] * size, *shard.shape[1:]))
        return self._run(
            "all-gather", axes, whole, whole, shard, 1.0, lambda: whole.view(size, -1).copy_(shard.view(-1))
        )

    def reduce_scatter(self, values: Tensor, *axes: str, counted: Tensor | None = None) -> Pending:
        size, values = self.grid.size(*axes), values.contiguous()
        if size == 1:
            return Pending(values)
        part = values.new_empty((values.shape[0] // size, *values.shape[1:]))
        return self._run("reduce-scatter", axes, values, part, values, 1.0, lambda: part.copy_(values[: len(part)]))

    def pass_on(self, values: Tensor, axis: str) -> Pending:
        values = values.contiguous()
        received = torch.empty_like(values)
        return self._run("exchange", (axis,), values, received, values, 1.0, lambda: received.copy_(values))

    def _run(
        self, kind: Any, axes: tuple[str, ...], full: Tensor, result: Tensor, inputs: Tensor | None, passes: float,
        copy: Callable[[], object],
    ) -> Pending:  # fmt: skip
        size = self.grid.size(*axes)
        if size == 1:
            return Pending(result)
        took_s = self.latency_s + passes * (size - 1) / size * full.nbytes / self.link_Bps
        Emulated.seconds += took_s
        Emulated.count += 1
        if not CUDA:
            copy()
            return self._issued(kind, axes, full, result, _Event(None), inputs)
        stream = self.streams.setdefault(self.grid.axes(*axes), torch.cuda.Stream())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if took_s:
                torch.cuda._sleep(int(took_s * self.cycles_per_s))
            copy()
            return self._issued(kind, axes, full, result, _Event(stream.record_event()), inputs)


class _Event:
    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> None:
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)


@contextmanager
def one_of_many(layout: Layout, *, link_Bps: float = LINK_BPS, latency_s: float = LATENCY_S) -> Iterator[Grid]:
    """Inside, this process is rank 0 of a layout, with emulated collectives."""
    if layout.world == 1:
        yield alone(layout)
        return
    if CUDA and not Emulated.cycles_per_s:
        torch.cuda._sleep(10**7)
        Emulated.cycles_per_s = 1e8 / _device_s(lambda: torch.cuda._sleep(10**8))
    Emulated.link_Bps, Emulated.latency_s = link_Bps, latency_s
    with mock.patch("weft.runtime.core.machine.Collectives", Emulated), on_fake_ranks(layout, 0, DEVICE.type) as grid:
        yield grid


# Measuring --------------------------------------------------------------------------------------


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def _device_s(action: Callable[[], object]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    synchronize()
    before.record()
    action()
    after.record()
    synchronize()
    return before.elapsed_time(after) / 1e3


def step_s(step: Callable[[], object], steps: int = 6) -> float:
    """The median of some steps after three."""
    for _ in range(3):
        step()
    times = []
    for _ in range(steps):
        synchronize()
        begin = time.perf_counter()
        step()
        synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times)[steps // 2]


def kernels_of(step: Callable[[], object], top: int = 12) -> dict[str, Any]:
    """Kernels of one step: how many, their time, and those that take most as (ms, times, name)."""
    if not CUDA:
        return {}
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        synchronize()
    spent, times = Counter[str](), Counter[str]()
    for event in profiler.events():
        if str(event.device_type).endswith("CUDA"):
            spent[event.name[:70]] += event.time_range.end - event.time_range.start
            times[event.name[:70]] += 1
    most = [(round(us / 1e3, 2), times[name], name) for name, us in spent.most_common(top)]
    return {"kernels": times.total(), "kernels_ms": spent.total() / 1e3, "top": most}


@contextmanager
def history() -> Iterator[list[tuple[int, int, str]]]:
    """Inside allocations are recorded; afterwards what was live at the peak as (MiB, allocations, places)."""
    live: list[tuple[int, int, str]] = []
    if not CUDA:
        yield live
        return
    torch.cuda.memory._record_memory_history(max_entries=400_000, stacks="python")
    try:
        yield live
        synchronize()
        events = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    held: dict[int, Any] = {}
    now = most = 0
    at_peak: list[Any] = []
    for event in events:
        if event["action"] == "alloc":
            held[event["addr"]] = event
            now += event["size"]
            if now > most:
                most, at_peak = now, []
        elif event["action"] == "free_requested" and event["addr"] in held:
            at_peak = at_peak or list(held.values()) if now == most else at_peak
            now -= held.pop(event["addr"])["size"]
    bytes_of, times = Counter[str](), Counter[str]()
    for event in at_peak:
        frames = [frame for frame in event["frames"] if "weft" in frame["filename"]]
        place = " < ".join(f"{Path(frame['filename']).name}:{frame['line']} {frame['name']}" for frame in frames[:3])
        bytes_of[place] += event["size"]
        times[place] += 1
    live += [(round(size / 2**20), times[place], place) for place, size in bytes_of.most_common(LIVE)]


# Sections ---------------------------------------------------------------------------------------


def numbers(tiny: bool) -> Iterator[Case]:
    """Losses and gradients' norms of three steps in fp64, against the CPU's."""
    cases: dict[str, tuple[Job, dict[str, Any]]] = {
        "llama": (job_of(), {}),
        "gpt": (job_of("gpt"), {}),
        "mixture": (job_of("mixture"), {}),
        "window": (job_of(window=8), {}),
        "soft caps": (job_of(), {"details": Details(score_cap=20.0, logit_cap=15.0)}),
        "recompute": (job_of(), {}),
        "compiled": (job_of(), {"compiled": "inductor" if CUDA else "aot_eager"}),
    }

    def compare(job: Job, settings: dict[str, Any], layout: Layout) -> dict[str, Any]:
        both = []
        for device, more in ((DEVICE, settings), (torch.device("cpu"), settings | {"compiled": None})):
            session = session_of(job, alone(layout, device), "fp64", drawn=True, **more)
            both.append(
                [value for _ in range(3) for one in [session.step()] for value in (one.loss, one.gradient_norm)]
            )
        worst = max(abs(a - b) / abs(b) for a, b in zip(*both, strict=True))
        return {"relative": worst, "ok": worst < 1e-9}

    for name, (job, settings) in cases.items():
        layout = Layout(micro_batch=8, recompute="full" if name == "recompute" else "none")
        yield name, partial(compare, job, settings, layout)


def memory(tiny: bool) -> Iterator[Case]:
    """The allocator's peak against the estimate, of one rank of ten grids, and what was live at it."""

    def peak(layout: Layout) -> dict[str, Any]:
        job = wide_job(layout.micro_batch * layout.dp * 2, tiny=tiny)
        name = accelerator_of(torch.cuda.get_device_name()).name if CUDA else "h100"
        constants = of_runtime(calibration(name))
        estimated = estimate(job, load(f"{name}-{layout.world}"), [layout], constants)[0].allocated_bytes
        result: dict[str, Any] = {"estimated_GiB": estimated / 2**30}
        # Python frames of recomputation, which the backward pass begins, cannot be recorded.
        for recorded in (False, True) if layout.recompute == "none" else (False,):
            with one_of_many(layout, link_Bps=math.inf, latency_s=0.0) as grid:
                if CUDA:
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                with history() if recorded else nullcontext([]) as live:
                    session = session_of(job, grid)
                    for _ in range(3):
                        session.step()
                del session
            gc.collect()
            if recorded:
                result["live"] = live
            elif CUDA:
                most = torch.cuda.max_memory_allocated()
                off = most / estimated - 1.0
                result |= {"peak_GiB": most / 2**30, "off": off, "ok": abs(off) <= 0.03}
                result["reserved_GiB"] = torch.cuda.max_memory_reserved() / 2**30
        return result

    for text in ("x=1", *GRIDS):
        yield text, partial(peak, layout_of(text, 1 if text == "x=1" else RANKS, 4))


def speed(tiny: bool, *, names: tuple[str, ...], compiled: bool) -> Iterator[Case]:
    """Seconds of a step beside plain PyTorch's, both eager or both compiled."""
    jobs = {WIDE: wide_job(8, tiny=tiny), SMALL: small_job(16, tiny=tiny), SMALLEST: small_job(2, tiny=tiny)}

    def compare(job: Job) -> dict[str, Any]:
        layout, result = Layout(micro_batch=job.recipe.global_batch), {}
        backend = ("inductor" if CUDA else "aot_eager") if compiled else None

        def weft() -> Callable[[], object]:
            return session_of(job, alone(layout), compiled=backend).step  # type: ignore[no-any-return]

        def plain() -> Callable[[], object]:
            peer = Peer(job, layout, DEVICE)
            if compiled and CUDA:
                peer.model = torch.compile(peer.model)  # type: ignore[assignment]
            ids = torch.randint(job.model.vocab, (layout.micro_batch, job.recipe.sequence), device=DEVICE)
            return partial(peer.step, ids, ids)

        chip = accelerator_of(torch.cuda.get_device_name()) if CUDA else None
        peak = peak_flops(chip, "bf16") or math.inf
        for name, make in (("weft", weft), ("plain", plain)):
            if CUDA:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            step = make()
            step()
            result[name] = figures = {"first_s": time.perf_counter() - begin, "step_s": step_s(step)}
            figures["mfu"] = model_flops(job.model, job.recipe) / figures["step_s"] / peak
            if CUDA:
                figures["peak_GiB"] = torch.cuda.max_memory_allocated() / 2**30
            result[name] |= kernels_of(step)
            del step
            gc.collect()
        ratio = result["plain"]["step_s"] / result["weft"]["step_s"]
        return result | {"speed": ratio, "ok": ratio >= 0.97}

    for name in names:
        yield name, partial(compare, jobs[name])


def overlap(tiny: bool) -> Iterator[Case]:
    """How much of a step's emulated collectives is hidden, with overlap and without."""

    def hidden(layout: Layout) -> dict[str, Any]:
        job, result = wide_job(layout.micro_batch * layout.dp * 2, tiny=tiny), {}
        off = replace(layout, overlap_tensor=TensorOverlap.NONE, overlap_reduce=False, overlap_gather=False)
        cases = {"alone": (math.inf, 0.0, layout), "on": (LINK_BPS, LATENCY_S, layout)}
        cases["off"] = (LINK_BPS, LATENCY_S, off)
        for name, (link_Bps, latency_s, one) in cases.items():
            with one_of_many(one, link_Bps=link_Bps, latency_s=latency_s) as grid:
                session = session_of(job, grid)
                session.step()
                Emulated.seconds, Emulated.count = 0.0, 0
                session.step()
                result |= {"collectives_s": Emulated.seconds, "collectives": Emulated.count}
                result[f"{name}_s"] = step_s(session.step)
                del session
            gc.collect()
        for name in ("on", "off"):
            result[f"{name}_hidden"] = 1.0 - (result[f"{name}_s"] - result["alone_s"]) / result["collectives_s"]
        return result | {"ok": result["on_hidden"] >= 0.8}

    for text in ("z=8", "data=8", "x=2,z=4", "z=4,data=2"):
        yield text, partial(hidden, layout_of(text, RANKS, 4))


def races(tiny: bool) -> Iterator[Case]:
    """PyTorch's stream sanitizer: no two streams touch memory without an event between them."""

    def steps(layout: Layout) -> dict[str, Any]:
        with one_of_many(layout) as grid:
            session = session_of(job_of(hidden=128, batch=4 * layout.dp), grid)
            for _ in range(3):
                session.step()
            synchronize()
        return {}

    for text in ("z=2,data=2", "x=2,z=2", "z=4", "data=4", "z=2,data=2,zero=2"):
        layout = layout_of(text, 4, 2)
        yield text, partial(steps, replace(layout, zero=2) if "zero=2" in text else layout)


SECTIONS: dict[str, Callable[[bool], Iterator[Case]]] = {
    "memory": memory,
    "overlap": overlap,
    "speed": partial(speed, names=(WIDE, SMALL, SMALLEST), compiled=False),
    "compiled": partial(speed, names=(WIDE,), compiled=True),
    "compiled-small": partial(speed, names=(SMALL,), compiled=True),
    "races": races,
    "numbers": numbers,
}
ENVIRONMENT = {"races": {"TORCH_CUDA_SANITIZER": "1"}, "numbers": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}


def run_section(name: str, *, tiny: bool) -> None:
    """All cases of a section, one line each; the tiny form has the first."""
    for case, action in [*SECTIONS[name](tiny)][: 1 if tiny else None]:
        begin = time.perf_counter()
        try:
            figures: dict[str, Any] = {"ok": True} | action()
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-6:]
            places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
            figures = {"ok": False, "error": f"{type(error).__name__}: {str(error)[:400]}", "where": places}
        took_s = round(time.perf_counter() - begin, 1)
        print(json.dumps({"section": name, "name": case} | figures | {"took_s": took_s}, default=str), flush=True)
        gc.collect()


def lines_of(section: str, *, tiny: bool) -> Iterator[str]:
    """What a section prints in a process of its own."""
    command = [sys.executable, __file__, section, "--inside", *(["--tiny"] if tiny else [])]
    environment = os.environ | (ENVIRONMENT.get(section, {}) if CUDA else {})
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(SECTION_S, process.kill)
    watchdog.start()
    assert process.stdout is not None
    yield from process.stdout
    code = process.wait()
    watchdog.cancel()
    if code:
        yield json.dumps({"section": section, "name": "ends", "ok": False, "code": code})


def numbers_in(figures: dict[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Figures of a case, those within others behind their names."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from numbers_in(value, f"{prefix}, {name}")
        elif isinstance(value, int | float):
            yield f"{prefix}, {name}", float(value)


def main() -> None:
    parser = bench.parser(__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--inside", action="store_true", help="run a section in this process")
    options = parser.parse_args()
    if not (CUDA or options.tiny):
        raise SystemExit("PyTorch finds no GPU here: run it where there is one, or with --tiny")
    if options.inside:
        run_section(options.sections[0], tiny=options.tiny)
        return
    device = torch.cuda.get_device_name() if CUDA else "no GPU"
    print(json.dumps({"section": "machine", "name": device, "torch": torch.__version__}), flush=True)
    figures: dict[str, float] = {}
    for section in options.sections or SECTIONS:
        for line in lines_of(section, tiny=options.tiny):
            print(line.rstrip(), flush=True)
            if line.startswith("{"):
                told = json.loads(line)
                figures |= dict(numbers_in(told, f"{told.pop('section')}, {told.pop('name')}"))
    bench.record(options, figures, device)


if __name__ == "__main__":
    main()
