"""Times of products and fused attention by shape, from a trace of PyTorch's profiler with ``record_shapes=True``.

An operator (``cpu_op``) states the sizes of its inputs; the GPU's kernels carry the operator's ``External id``.
An operator without kernels ran on the CPU and takes its own time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from weft.cluster.calibration import AttentionTime, MeasuredPhase, Measurements, ProductTime, write_calibration
from weft.codec import encode
from weft.errors import BadInput
from weft.interop.torch_records import number, read_events
from weft.model.job import Precision
from weft.results import Result

PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1, "aten::_scaled_mm": 0}
"""Operators, and which of their inputs is the first factor."""
PRECISIONS: dict[str, Precision] = {
    "float": "fp32",
    "c10::half": "fp16",
    "c10::bfloat16": "bf16",
    "c10::float8_e4m3fn": "fp8",
    "c10::float8_e5m2": "fp8",
}
_ATTENTION = ("flash", "cudnn", "efficient")
_DIGITS = 5
"""Significant digits of a time."""
_REMEDY = "profile with record_shapes=True, on the GPU with ProfilerActivity.CPU and CUDA"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Traced(Result):
    """Medians of what a trace holds.

    Attributes:
        source: the trace.
        measured: products and attention by shape.
        calls: how often each was seen, products first.
    """

    SCHEMA = "weft.trace-kernels/1"
    DOCUMENT = "source kernels"

    source: str
    measured: Measurements
    calls: tuple[int, ...]

    def to_toml(self) -> str:
        """The times as a file that ``calibration`` of other verbs takes."""
        return write_calibration({}, source=f"kernels of {self.source}", measured=self.measured)

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """What each shape is, its sizes, the median of its seconds, and how often it was seen."""
        kinds = [("product", product) for product in self.measured.products]
        every = [*kinds, *(("attention", attention) for attention in self.measured.attention)]
        return [
            {"kind": kind, **encode(entry), "calls": calls}
            for (kind, entry), calls in zip(every, self.calls, strict=True)
        ]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a shape."""
        return self.kernels


def read_kernel_times(path: str | os.PathLike[str]) -> Traced:
    """What a trace (.json or .json.gz) says of products and causal attention: the median of each shape's calls."""
    where = os.fspath(path)
    kernel_s: dict[int, float] = {}
    operators: list[tuple[str, dict[str, Any]]] = []
    graphics = False
    for i, event in enumerate(read_events(path, where)):
        place, arguments = f"{where}: event {i}: dur", event.get("args")
        if event.get("ph") != "X":
            continue
        if str(event.get("cat")).lower() == "kernel":
            graphics = True
            owner = arguments.get("External id") if isinstance(arguments, dict) else None
            if isinstance(owner, int):
                kernel_s[owner] = kernel_s.get(owner, 0.0) + 1e-6 * number(event.get("dur"), place)
        elif event.get("cat") == "cpu_op" and isinstance(arguments, dict):
            operators.append((place, event))
    times: dict[ProductTime | AttentionTime, list[float]] = {}
    for place, event in operators:
        owner, shape = event["args"].get("External id"), _shape(event)
        seconds = kernel_s.get(owner) if isinstance(owner, int) else None
        if seconds is None and not graphics:
            seconds = 1e-6 * number(event.get("dur"), place)
        if shape is not None and seconds:
            times.setdefault(shape, []).append(seconds)
    if not times:
        raise BadInput("names no shape of a product or of attention", where=where, remedy=_REMEDY)
    rounded = {shape: float(f"{median(calls):.{_DIGITS}g}") for shape, calls in times.items()}
    timed = [(replace(shape, seconds=rounded[shape]), len(calls)) for shape, calls in times.items()]
    products = [(time, calls) for time, calls in timed if isinstance(time, ProductTime)]
    attention = [(time, calls) for time, calls in timed if isinstance(time, AttentionTime)]
    return Traced(
        source=os.path.basename(where),
        measured=Measurements(
            products=tuple(time for time, _ in products), attention=tuple(time for time, _ in attention)
        ),
        calls=tuple(calls for _, calls in (*products, *attention)),
    )


def _shape(event: dict[str, Any]) -> ProductTime | AttentionTime | None:
    """The shape of an operator that is a product or causal attention, its seconds still to come."""
    name, arguments = str(event.get("name")), event["args"]
    sizes = [_sizes(sizes) for sizes in _listed(arguments, "Input Dims")]
    first = PRODUCTS.get(name, 0)
    types = [str(kind).lower() for kind in _listed(arguments, "Input type")]
    if len(sizes) < first + 2 or len(types) <= first or types[first] not in PRECISIONS:
        return None
    precision = PRECISIONS[types[first]]
    if name in PRODUCTS:
        return _product(sizes[first], sizes[first + 1], precision)
    causal = "True" in [str(value) for value in _listed(arguments, "Concrete Inputs")]
    fused = name.startswith("aten::_scaled_dot_product_") and any(kind in name for kind in _ATTENTION)
    if not fused or not causal:
        return None
    backward = "backward" in name
    return _attention(sizes[1:4] if backward else sizes[:3], "input-gradient" if backward else "forward", precision)


def _product(left: tuple[int, ...], right: tuple[int, ...], precision: Precision) -> ProductTime | None:
    if len(left) not in (2, 3) or len(right) != len(left) or left[-1] != right[-2]:
        return None
    groups = float(left[0]) if len(left) == 3 else 1.0
    m, n, k = float(left[-2]), float(right[-1]), float(left[-1])
    return ProductTime(m=m, n=n, k=k, groups=groups, precision=precision, seconds=0.0) if m * n * k * groups else None


def _attention(sizes: Sequence[tuple[int, ...]], phase: MeasuredPhase, precision: Precision) -> AttentionTime | None:
    """Queries, keys and values of (batch, heads, sequence, width)."""
    if len(sizes) < 3 or any(len(size) != 4 for size in sizes) or sizes[0][2] != sizes[1][2]:
        return None
    (batch, heads, sequence, qk_dim), (_, kv_heads, _, _), (_, _, _, v_dim) = (map(float, size) for size in sizes)
    if not batch * heads * sequence * qk_dim * kv_heads * v_dim:
        return None
    shape = {"batch": batch, "sequence": sequence, "heads": heads, "kv_heads": kv_heads}
    return AttentionTime(**shape, qk_dim=qk_dim, v_dim=v_dim, phase=phase, precision=precision, seconds=0.0)


def _listed(arguments: dict[str, Any], name: str) -> list[Any]:
    value = arguments.get(name)
    return value if isinstance(value, list) else []


def _sizes(value: object) -> tuple[int, ...]:
    """The sizes of one input, none where it is not a tensor."""
    if isinstance(value, list) and all(type(side) is int and 0 <= side < 2**53 for side in value):
        return tuple(value)
    return ()
