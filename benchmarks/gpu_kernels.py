"""Throughput of one GPU's products, attention and experts by shape, and bandwidth of its element-wise kernels.

    python benchmarks/gpu_kernels.py

Figures are TFLOP/s; GB/s of what must move for element-wise kernels.  Names are: product, features, features inside,
tp, tokens, product, phase; attention, library, features of keys and of values, sequence, phase (causal); experts,
features, features inside, experts, rows of each, product.  All in bf16.  The record that Weft holds is of an H100 SXM
(``tests/estimation/test_measured_kernels.py`` compares the model with it).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import bench
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

MODELS = ((4096, 14336), (8192, 28672), (5120, 13824))
"""Features of a block's input and of its feed-forward layer."""
EXPERTS = ((2048, 768), (2880, 2880), (4096, 1536), (7168, 2048), (4096, 14336), (6144, 10752))
LIBRARIES = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
HEADS = ((64, 64), (128, 128), (256, 256), (192, 128))
"""Features of a head's keys and values."""
ATTENTION_TOKENS, ATTENTION_HEADS = 16384, 16
MOST_ROWS, MOST_WEIGHTS = 65536, 1 << 31
"""Rows of all experts, and elements of their first matrices over two: what fits one GPU."""


def main() -> None:
    options = bench.parser(__doc__).parse_args()
    gpu = torch.cuda.is_available()
    if not gpu and not options.tiny:
        raise SystemExit("PyTorch finds no GPU here: run it where there is one")
    shrink = 64 if options.tiny else 1
    figures: dict[str, float] = {}
    for part in (products, attention, grouped, passes):
        for name, figure in part(torch.device("cuda" if gpu else "cpu"), shrink):
            print(f"{name}: {figure}", flush=True)
            figures[name] = figure
    device = f"{torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}" if gpu else "no GPU"
    bench.record(options, figures, device)


def products(device: torch.device, shrink: int) -> Iterator[tuple[str, float]]:
    """The four products of a block, cut over tensor parallelism."""
    for hidden, wide in MODELS[: 1 if shrink > 1 else None]:
        for tp in (1, 2, 4, 8):
            for tokens in (2048, 8192):
                cut = {"up": (hidden, 2 * wide // tp), "down": (wide // tp, hidden)}
                cut |= {"qkv": (hidden, 3 * hidden // tp), "out": (hidden // tp, hidden)}
                for name, (k, n) in cut.items():
                    k, n, m = k // shrink, n // shrink, tokens // shrink
                    rows, weight, gradient = (_random(device, *shape) for shape in ((m, k), (n, k), (m, n)))
                    ways = {
                        "forward": _seconds(lambda a=rows, b=weight: a @ b.t()),
                        "input-gradient": _seconds(lambda a=gradient, b=weight: a @ b),
                        "weight-gradient": _seconds(lambda a=gradient, b=rows: a.t() @ b),
                    }
                    for phase, seconds in ways.items():
                        rate = round(2 * m * n * k / seconds / 1e12, 1)
                        yield f"product {hidden} {wide} {tp} {tokens} {name} {phase}", rate


def attention(device: torch.device, shrink: int) -> Iterator[tuple[str, float]]:
    """Causal attention by library, features of a head and sequence; the same number of tokens each time."""
    for library, backend in LIBRARIES.items() if shrink == 1 else {"math": SDPBackend.MATH}.items():
        for qk, v in HEADS:
            for sequence in (512, 1024, 2048, 4096, 8192, 32768):
                batch = max(1, ATTENTION_TOKENS // sequence)
                size = sequence // shrink
                q, k, value = (
                    _random(device, batch, ATTENTION_HEADS, size, features).requires_grad_()
                    for features in (qk, qk, v)
                )
                flops = batch * ATTENTION_HEADS * size * size * (qk + v)
                try:
                    with sdpa_kernel(backend):
                        forward, backward = _attention_seconds(q, k, value)
                except RuntimeError:  # the library has no kernel for these features
                    continue
                yield f"attention {library} {qk} {v} {sequence} forward", round(flops / forward / 1e12, 1)
                yield f"attention {library} {qk} {v} {sequence} backward", round(2.5 * flops / backward / 1e12, 1)


def _attention_seconds(q: Tensor, k: Tensor, v: Tensor) -> tuple[float, float]:
    def forward() -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    out = forward()
    gradient = torch.randn_like(out)
    backward = _seconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), 5)
    return _seconds(forward, 5), backward


def grouped(device: torch.device, shrink: int) -> Iterator[tuple[str, float]]:
    """Experts' products in one kernel: up, down, and up's two gradients."""
    if device.type == "cpu":
        return
    for hidden, wide in EXPERTS:
        for experts in (1, 8, 32):
            for rows in (256, 1024, 4096):
                if experts * rows > MOST_ROWS or experts * wide * hidden > MOST_WEIGHTS:
                    continue
                shapes = ((experts * rows, hidden), (experts * rows, wide), (experts * rows, 2 * wide))
                x, y, g = (_random(device, *shape) for shape in shapes)
                up, down = _random(device, experts, hidden, 2 * wide), _random(device, experts, wide, hidden)
                ends = (torch.arange(1, experts + 1, device=device) * rows).to(torch.int32)
                flops = 2 * experts * rows * hidden * wide
                ways = {
                    "up": 2 * flops / _seconds(lambda a=x, b=up, e=ends: torch._grouped_mm(a, b, offs=e)),
                    "down": flops / _seconds(lambda a=y, b=down, e=ends: torch._grouped_mm(a, b, offs=e)),
                    "up-input": 2 * flops / _seconds(lambda a=g, b=up, e=ends: torch._grouped_mm(a, b.mT, offs=e)),
                    "up-weight": 2 * flops / _seconds(lambda a=x, b=g, e=ends: torch._grouped_mm(a.t(), b, offs=e)),
                }
                for name, rate in ways.items():
                    yield f"experts {hidden} {wide} {experts} {rows} {name}", round(rate / 1e12, 1)


def passes(device: torch.device, shrink: int) -> Iterator[tuple[str, float]]:
    """Element-wise kernels on 8,192 tokens of 8,192 features."""
    size = 8192 // shrink
    x, y, scale = _random(device, size, size), _random(device, size, size), _random(device, size)
    gate, up = _random(device, size, 4 * size), _random(device, size, 4 * size)
    moved: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (2 * x.nbytes, lambda: y.copy_(x)),
        "add": (3 * x.nbytes, lambda: x + y),
        "rms_norm": (2 * x.nbytes, lambda: functional.rms_norm(x, (size,), scale)),
        "layer_norm": (2 * x.nbytes, lambda: functional.layer_norm(x, (size,), scale, scale)),
        "rms_norm of single operations": (2 * x.nbytes, lambda: _rms_norm(x, scale)),
        "swiglu of two operations": (3 * gate.nbytes, lambda: functional.silu(gate) * up),
        "gelu": (2 * gate.nbytes, lambda: functional.gelu(gate)),
    }
    for name, (bytes_, kernel) in moved.items():
        yield f"pass {name}", round(bytes_ / _seconds(kernel) / 1e9)


def _rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    return (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * scale


def _random(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def _seconds(kernel: Callable[[], object], repeat: int = 10) -> float:
    """Mean time of a kernel after three to warm up, on the device's own clock where it has one."""
    for _ in range(3):
        kernel()
    if not torch.cuda.is_available():
        begin = time.perf_counter()
        kernel()
        return time.perf_counter() - begin
    begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_event.record()
    for _ in range(repeat):
        kernel()
    end_event.record()
    torch.cuda.synchronize()
    return begin_event.elapsed_time(end_event) / repeat / 1e3


if __name__ == "__main__":
    main()
