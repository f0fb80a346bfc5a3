"""Times of kernels by the prior's constants beside those that ``benchmarks/gpu_kernels.py`` measured on an H100."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from weft.cluster.calibration import calibration_from
from weft.cluster.catalogue import accelerator
from weft.estimation.kernels import KernelModel
from weft.layout.operations import AttentionShape, Gemm, causal_attention
from weft.layout.table import Floats
from weft.validation.fit import prior_tables

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "gpu_kernels.json"
MEASURED: dict[str, float] = json.loads(RECORD.read_text(encoding="utf-8"))["figures"]
H100 = KernelModel(accelerator("h100"), calibration_from(prior_tables(), "h100"), "bf16", gradient_bytes=2.0)
ENOUGH_S = 2e-4
"""Seconds of a kernel that the host of that machine, which takes 0.1 ms to issue one from Python, does not hide."""


def _named(kind: str) -> Iterator[tuple[list[str], float]]:
    for name, rate in MEASURED.items():
        first, *rest = name.split()
        if first == kind:
            yield rest, rate * 1e12


def _product(m: int, n: int, k: int, copies: int = 1) -> float:
    sides = [np.array([float(side)]) for side in (m, n, k)]
    return float(H100.seconds(Gemm(name="g", phase="forward", m=sides[0], n=sides[1], k=sides[2], copies=copies))[0])


def test_products_cut_over_tensor_parallelism() -> None:
    """One factor for all (clock and library); the rest is the shape's doing, and hardly differs by degree."""
    errors: dict[int, list[float]] = {}
    for (hidden, wide, tp, tokens, name, phase), rate in _named("product"):
        h, f, t, m = int(hidden), int(wide), int(tp), int(tokens)
        k, n = {"up": (h, 2 * f // t), "down": (f // t, h), "qkv": (h, 3 * h // t), "out": (h // t, h)}[name]
        sides = {"forward": (m, n, k), "input-gradient": (m, k, n), "weight-gradient": (n, k, m)}[phase]
        measured_s = 2.0 * m * n * k / rate
        if measured_s > ENOUGH_S:
            errors.setdefault(t, []).append(np.log(_product(*sides) / measured_s))
    middle = np.median(np.concatenate(list(errors.values())))
    assert abs(middle) < 0.15
    for degree, found in errors.items():
        assert len(found) > 20, degree
        assert abs(np.median(found) - middle) < 0.07, degree
        assert np.median(np.abs(np.array(found) - middle)) < 0.07, degree


def test_grouped_products_of_experts() -> None:
    """As fast as the same tiles of one product, for experts of 768 features inside as for those of 14,336."""
    errors: dict[int, list[float]] = {}
    for (hidden, wide, count, rows, name), rate in _named("experts"):
        h, f, experts, m = (int(word) for word in (hidden, wide, count, rows))
        n, k, taken = {"up": (2 * f, h, m), "down": (h, f, m), "up-input": (h, 2 * f, m), "up-weight": (2 * f, m, h)}[
            name
        ]
        measured_s = 2.0 * experts * n * k * taken / rate
        launched_s = (experts - 1) * H100.calibration.kernel_s
        if measured_s > ENOUGH_S:
            errors.setdefault(f, []).append(np.log((_product(taken, n, k, experts) - launched_s) / measured_s))
    middle = np.median(np.concatenate(list(errors.values())))
    for found in errors.values():
        assert abs(np.median(found) - middle) < 0.08
        assert np.mean(np.abs(np.array(found) - middle)) < 0.12


def _attention_s(heads: int, features: tuple[int, int], sequence: int) -> float:
    ones = np.ones(1)
    shape = AttentionShape(
        batch=max(1.0, 16384 / sequence) * ones,
        sequence=sequence * ones,
        heads=heads * ones,
        kv_heads=heads * ones,
        qk_dim=features[0],
        v_dim=features[1],
    )
    times: list[Floats] = [H100.seconds(call) for call in causal_attention(shape)]
    return float(sum(time[0] for time in times))


def _measured_attention() -> dict[tuple[str, tuple[int, int], int], float]:
    """Seconds of both passes by library, features of a head and sequence."""
    found: dict[tuple[str, tuple[int, int], int], float] = {}
    for (library, qk, v, sequence, phase), rate in _named("attention"):
        length = int(sequence)
        flops = max(1, 16384 // length) * 16 * length**2 * (int(qk) + int(v))
        key = (library, (int(qk), int(v)), length)
        found[key] = found.get(key, 0.0) + (2.5 if phase == "backward" else 1.0) * flops / rate
    return found


@pytest.mark.parametrize(("features", "worst"), [((64, 64), 0.22), ((128, 128), 0.06), ((192, 128), 0.2)])
def test_attention_of_cudnn_by_sequence(features: tuple[int, int], worst: float) -> None:
    """From 1,024 to 32,768 tokens the rate grows by 1.9 times; arithmetic and traffic are added."""
    measured = _measured_attention()
    errors = [
        np.log(_attention_s(16, features, sequence) / measured["cudnn", features, sequence])
        for sequence in (1024, 2048, 4096, 8192, 32768)
    ]
    assert np.abs(errors).max() < worst


def test_the_share_of_flash_attention_2() -> None:
    """What ``stack.fsdp_on_h`` says of FlashAttention-2 beside cuDNN."""
    measured = _measured_attention()
    shares = [
        measured["cudnn", (128, 128), sequence] / measured["flash", (128, 128), sequence]
        for sequence in (2048, 4096, 8192, 32768)
    ]
    stated = calibration_from(prior_tables(), "h100", "fsdp").attention_share
    assert stated == pytest.approx(np.mean(shares), rel=0.1)
