"""Layers of the runtime on one GPU, each beside what it replaced: milliseconds, peak memory and difference.

    python benchmarks/gpu_layers.py [experts] [window] [documents] [caps] [ring] [embedding] [entropy]

Each section takes less than a minute.  Figures are ms, GiB above what was held before, and "off", a relative
difference of root mean squares.  A case that fails is printed, and the next one runs.  Without a GPU nothing is timed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import Queue
from types import SimpleNamespace
from typing import Any

import bench
import torch
from torch import Tensor
from torch.nn import functional

from weft.layout.spec import Layout
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.layers import attention
from weft.runtime.layers.attention import Core
from weft.runtime.layers.experts import grouped_outer, grouped_product
from weft.runtime.layers.vocabulary import Embedding4D, cross_entropy

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
Figures = dict[str, float]


def main() -> None:
    parser = bench.parser(__doc__)
    parser.add_argument("sections", nargs="*", help="default: all")
    options = parser.parse_args()
    if not GPU and not options.tiny:
        raise SystemExit("PyTorch finds no GPU here: run it where there is one")
    torch.manual_seed(0)
    figures: Figures = {}
    for section in options.sections or SECTIONS:
        for name, case in SECTIONS[section].items():
            try:
                results = {f"{name}: {key}": value for key, value in case().items()}
            except Exception as error:
                print(f"{name}: failed: {type(error).__name__}: {error}", flush=True)
                continue
            for key, value in results.items():
                print(f"{key}: {value}", flush=True)
            figures |= results
            torch.cuda.empty_cache()
    bench.record(options, figures, torch.cuda.get_device_name() if GPU else "no GPU")


def measured(**works: Callable[[], object]) -> Figures:
    """Median of five times and peak memory of each."""
    figures: Figures = {}
    for name, work in works.items():
        for _ in range(2):
            work()
        if not GPU:
            continue
        torch.cuda.synchronize()
        before, times = torch.cuda.memory_allocated(), []
        torch.cuda.reset_peak_memory_stats()
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        figures[f"{name} ms"] = round(sorted(times)[2], 3)
        figures[f"{name} GiB"] = round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)
    return figures


def difference(result: Tensor, wanted: Tensor) -> float:
    result, wanted = result.detach().double(), wanted.detach().double()
    return float(f"{((result - wanted).square().mean() / wanted.square().mean()).sqrt():.3g}")


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def alone() -> Machine:
    return Machine.of(Grid.of(Layout(), DEVICE), precision=Precision.of("bf16"))


# Experts -----------------------------------------------------------------------------------------


def _products(count: int, copies: int, hidden: int, width: int) -> Figures:
    """One product for each expert in turn, and grouped; any number of copies each, and none of the last."""
    chosen = torch.randint(count - 1, (copies,), device=DEVICE).sort().values
    ends = torch.searchsorted(chosen, torch.arange(count, device=DEVICE), right=True, out_int32=True)
    rows, slopes, weights = random(copies, hidden), random(copies, width), random(count, width, hidden)

    def in_turn(join: Any, product: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
        first, last = (
            part if part is weights else torch.tensor_split(part, ends[:-1].tolist()) for part in (left, right)
        )
        return join([product(*pair) for pair in zip(first, last, strict=True)])

    ways: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "forward": (
            partial(in_turn, torch.cat, lambda part, matrix: part @ matrix.t(), rows, weights),
            partial(grouped_product, rows, weights.mT, ends),
        ),
        "gradient of rows": (
            partial(in_turn, torch.cat, torch.matmul, slopes, weights),
            partial(grouped_product, slopes, weights, ends),
        ),
        "gradient of weights": (
            partial(in_turn, torch.stack, lambda slope, part: slope.t() @ part, slopes, rows),
            partial(grouped_outer, slopes, rows, ends),
        ),
    }
    figures: Figures = {}
    for name, (old, new) in ways.items():
        figures |= measured(**{f"{name} in turn": old, f"{name} grouped": new})
        figures[f"{name} off"] = difference(new(), old())
    return figures


# Attention ---------------------------------------------------------------------------------------


def _masked(core: Core, *, packed: bool) -> Figures:
    """Attention forward and backward, in blocks, with a whole mask, and causal without more."""
    size, heads, kv_heads = (8192, 32, 8) if GPU else (256, 4, 2)
    parts = [random(1, count, size, 128).requires_grad_() for count in (heads, kv_heads, kv_heads)]
    documents = (torch.arange(size, device=DEVICE) // (size // 4)).unsqueeze(0) if packed else None

    def trained(of: Core, seen: Any) -> list[Tensor]:
        for part in parts:
            part.grad = None
        out = of(*parts, seen)
        out.backward(torch.ones_like(out))
        return [out, *(part.grad for part in parts)]

    blocks, whole = (core.seen(size, like, documents) for like in (parts[0], parts[0].float()))
    figures = measured(
        mask=partial(core.seen, size, parts[0], documents),
        blocks=partial(trained, core, blocks),
        whole=partial(trained, core, whole),
        causal=partial(trained, Core(), None),
    )
    pairs = zip(trained(core, blocks), trained(core, whole), strict=True)
    return figures | {"off": max(difference(new, old) for new, old in pairs)}


def _ring_errors(features: int) -> Figures:
    """Against fp64: of the output, and of gradients of queries, keys and values."""
    size, heads, groups = 8192 if GPU else 256, 8, 4
    parts = [random(1, count, size, features) for count in (heads, heads // groups, heads // groups, heads)]
    exact = [part.double().requires_grad_() for part in parts[:3]]
    outputs = []
    for head in range(heads):  # fp64 keeps all scores of a head
        query, *both = (part[:, [head // (groups if index else 1)]] for index, part in enumerate(exact))
        outputs.append(functional.scaled_dot_product_attention(query, *both, is_causal=True))
        outputs[-1].backward(parts[3][:, [head]].double())
    wanted = [torch.cat(outputs, 1), *(part.grad for part in exact)]
    return {
        f"{ranks} ranks, {what} off": difference(result, want)
        for ranks in (1, 2, 8)
        for what, result, want in zip(("out", "queries", "keys", "values"), _around(ranks, parts), wanted, strict=True)
    }


def _around(ranks: int, parts: list[Tensor]) -> list[Tensor]:
    """Output and gradients of a ring whose ranks are threads: what one passes on, the next takes from its queue."""
    queues: list[Queue[Tensor]] = [Queue() for _ in range(ranks)]
    results: dict[int, list[Tensor]] = {}
    size = parts[0].shape[2]

    @torch.no_grad()
    def run(place: int) -> None:
        def pass_on(values: Tensor, axis: str) -> Any:
            queues[(place + 1) % ranks].put(values.clone())
            return SimpleNamespace(wait=partial(queues[place].get, timeout=20))

        grid = Grid(Layout(context=ranks), DEVICE, None, place)
        precision, collectives = Precision.of("bf16"), SimpleNamespace(pass_on=pass_on)
        machine: Any = SimpleNamespace(grid=grid, precision=precision, collectives=collectives)
        tokens = attention.own_tokens(grid, size).to(DEVICE)
        queries, keys, values, slope = (part[:, :, tokens] for part in parts)
        state: Any = SimpleNamespace()
        state.save_for_backward = lambda *saved: setattr(state, "saved_tensors", saved)
        out = attention._Ring.forward(state, queries, torch.stack((keys, values)), machine, True)
        slopes = attention._Ring.backward(state, slope)
        results[place] = [tokens, out, slopes[0], *slopes[1]]

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    order = torch.cat([results[place][0] for place in range(ranks)]).argsort()
    return [torch.cat([results[place][i] for place in range(ranks)], dim=2)[:, :, order] for i in range(1, 5)]


# Vocabulary --------------------------------------------------------------------------------------


def _embedding() -> Figures:
    vocab, hidden, tokens = (131072, 8192, 8192) if GPU else (512, 64, 128)
    table = Embedding4D(alone(), "words", vocab, hidden).table
    table.shard.grad = torch.zeros_like(table.shard)
    ids, slope = torch.randint(vocab, (tokens,), device=DEVICE), random(tokens, hidden)

    def whole() -> None:
        rows = slope.new_zeros(table.block_shape, dtype=torch.float32)
        table.scatter(rows.index_add_(0, ids, slope.float()))

    return measured(whole=whole, rows=lambda: table.scatter_rows(slope, ids))


def _loss(vocab: int) -> Figures:
    tokens = 8192 if GPU else 64
    machine, targets = alone(), torch.randint(vocab, (tokens,), device=DEVICE)
    logits, weights = random(tokens, vocab).requires_grad_(), torch.rand(tokens, device=DEVICE)

    def trained(losses: Callable[[], Tensor]) -> Tensor:
        logits.grad = None
        (losses() * weights).sum().backward()
        return logits.grad

    plain = partial(trained, lambda: functional.cross_entropy(logits.float(), targets, reduction="none"))
    pieces = partial(trained, lambda: cross_entropy(machine, logits, targets, vocab))
    return measured(plain=plain, pieces=pieces) | {"off": difference(pieces(), plain())}


SIZES = ((128, 65536, 2048, 768), (8, 16384, 4096, 14336)) if GPU else ((8, 256, 64, 32),)
SECTIONS: dict[str, dict[str, Callable[[], Figures]]] = {
    "experts": {
        f"{count} experts of {hidden} x {width}, {copies} copies": partial(_products, count, copies, hidden, width)
        for count, copies, hidden, width in SIZES
    },
    "window": {"a window of 1,024": partial(_masked, Core(window=1024), packed=False)},
    "documents": {"four documents": partial(_masked, Core(), packed=True)},
    "caps": {"a soft cap": partial(_masked, Core(cap=30.0), packed=False)},
    "ring": {f"a ring of heads of {size} features": partial(_ring_errors, size) for size in (64, 100, 128, 12)},
    "embedding": {"gradient of an embedding": _embedding},
    "entropy": {f"a vocabulary of {size}": partial(_loss, size) for size in ((32000, 131072) if GPU else (512,))},
}


if __name__ == "__main__":
    main()
