"""The roofline of single kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.calibration import Calibration, calibration_from
from weft.cluster.catalogue import accelerator
from weft.errors import Unsupported
from weft.estimation.kernels import KernelModel
from weft.layout.operations import FlashAttention, Gemm, Pass, Phase
from weft.model import PRECISIONS, Precision
from weft.validation.fit import prior_tables

H100 = accelerator("h100")
CONSTANTS = Calibration()


def kernels(precision: Precision = "bf16", constants: Calibration = CONSTANTS) -> KernelModel:
    return KernelModel(H100, constants, precision)


def gemm(m: float, n: float, k: float, copies: float = 1.0, *, core: bool = False) -> Gemm:
    arrays = [np.array([float(v)]) for v in (m, n, k)]
    role = "core" if core else "linear"
    return Gemm(name="g", phase="forward", m=arrays[0], n=arrays[1], k=arrays[2], copies=copies, role=role)


def seconds(operation: Gemm | FlashAttention | Pass, made: KernelModel | None = None) -> float:
    return float((made or kernels()).seconds(operation)[0])


sides = st.integers(1, 20_000)


@given(sides, sides, sides, st.sampled_from([1, 8, 64]))
def test_never_above_the_roofline(m: int, n: int, k: int, copies: int) -> None:
    """No kernel beats peak arithmetic or peak memory."""
    spent = seconds(gemm(m, n, k, copies))
    assert spent >= 2.0 * m * n * k * copies / H100.bf16_flops
    assert spent >= 2.0 * copies * (m * k + n * k + m * n) / H100.memory_Bps


@given(sides, sides, sides, st.integers(0, 2), st.integers(1, 500))
def test_larger_is_not_faster(m: int, n: int, k: int, side: int, more: int) -> None:
    grown = [m, n, k]
    grown[side] += more
    assert seconds(gemm(*grown)) >= seconds(gemm(m, n, k)) * (1 - 1e-12)


def test_large_square_products_reach_the_calibrated_share() -> None:
    spent = seconds(gemm(65536, 65536, 65536))
    share = 2.0 * 65536**3 / spent / H100.bf16_flops
    assert share == pytest.approx(CONSTANTS.gemm_efficiency, rel=0.01)


def test_small_products_do_not_fill_the_machine() -> None:
    """One 128 x 128 block is at most four tiles for 132 multiprocessors."""
    spent = seconds(gemm(128, 128, 8192), kernels(constants=replace(CONSTANTS, kernel_s=0.0)))
    assert 2.0 * 128 * 128 * 8192 / spent / H100.bf16_flops < 4 / 132


def test_thin_products_are_bound_by_memory() -> None:
    spent = seconds(gemm(16, 16384, 16384), kernels(constants=replace(CONSTANTS, kernel_s=0.0)))
    moved = 2.0 * (16 * 16384 + 16384**2 + 16 * 16384)
    assert spent == pytest.approx(moved / (H100.memory_Bps * CONSTANTS.memory_efficiency))


def test_norms_of_separate_kernels_move_more() -> None:
    eager = kernels(constants=replace(CONSTANTS, norm_overhead=6.0, kernel_s=0.0))
    fused = kernels(constants=replace(CONSTANTS, kernel_s=0.0))
    norm, other = (Pass(name=name, phase="forward", bytes=np.array([1e10])) for name in ("norms", "residuals"))
    assert seconds(norm, eager) == pytest.approx(6 * seconds(norm, fused))
    assert seconds(other, eager) == seconds(other, fused)


def test_attention_adds_arithmetic_and_memory() -> None:
    assert flash(1e13, 1e3) == pytest.approx(1e13 / (H100.bf16_flops * CONSTANTS.attention_efficiency), rel=0.01)
    assert flash(1e3, 1e10) == pytest.approx(1e10 / (H100.memory_Bps * CONSTANTS.memory_efficiency), rel=0.01)
    assert flash(1e13, 1e10) == pytest.approx(flash(1e13, 1e3) + flash(1e3, 1e10), rel=0.01)


def flash(flops: float, bytes_: float, *, pairs: float = 1e6, edges: int = 1, features: float = 128.0) -> float:
    """Seconds of one fused attention."""
    arrays = [np.array([value]) for value in (flops, bytes_, 1.0)]
    return seconds(
        FlashAttention(
            phase="forward",
            flops=arrays[0],
            bytes=arrays[1],
            calls=arrays[2],
            pairs=pairs,
            edges=edges,
            features=features,
        )
    )


def test_narrow_heads_and_short_rows_of_pairs_are_slower() -> None:
    """Exponentials do not shrink with the head; tiles at the mask's edge are computed whole."""
    assert flash(1e13, 1e3, features=64.0) > 1.1 * flash(1e13, 1e3) > 1.2 * flash(1e13, 1e3, features=256.0)
    assert flash(1e13, 1e3, pairs=64.0) == pytest.approx(2 * flash(1e13, 1e3), rel=0.01)
    assert flash(1e13, 1e3, pairs=128.0, edges=2) == pytest.approx(2 * flash(1e13, 1e3), rel=0.01)


def test_a_lower_power_limit_slows_products() -> None:
    constants = replace(CONSTANTS, reference_power_w=700.0, power_exponent=0.5, kernel_s=0.0)
    capped = KernelModel(replace(H100, power_w=350.0), constants, "bf16")
    usual = KernelModel(H100, constants, "bf16")
    assert seconds(gemm(8192, 8192, 8192), capped) == pytest.approx(2**0.5 * seconds(gemm(8192, 8192, 8192), usual))
    assert capped.memory_s(np.array([1e9])) == usual.memory_s(np.array([1e9]))


def test_all_ranks_wait_for_the_slowest_board() -> None:
    constants = replace(CONSTANTS, reference_power_w=H100.power_w, clock_spread=0.02, kernel_s=0.0)
    alone, thousand = (KernelModel(H100, constants, "bf16", ranks=count) for count in (1, 1000))
    large = gemm(8192, 8192, 8192)
    drawn = np.random.default_rng(1).normal(size=(2000, 1000)).max(axis=1).mean()
    assert seconds(large, thousand) == pytest.approx(seconds(large, alone) / (1 - 0.02 * drawn), rel=1e-3)
    assert thousand.memory_s(np.array([1e9])) == alone.memory_s(np.array([1e9]))


def test_unfused_software_moves_more() -> None:
    plain, routed = (Pass(name=name, phase="forward", bytes=np.array([1e10])) for name in ("p", "expert.p"))
    constants = replace(CONSTANTS, pass_overhead=2.0, routing_overhead=1.5)
    slow = kernels(constants=constants)
    assert seconds(plain, slow) == pytest.approx(2 * seconds(plain), rel=0.01)
    assert seconds(routed, slow) == pytest.approx(3 * seconds(routed), rel=0.01)


def test_eight_bits_gain_more_on_larger_products() -> None:
    """Quantization passes and fixed costs eat the gain of small products."""
    gains = [seconds(gemm(n, n, n)) / seconds(gemm(n, n, n), kernels("fp8")) for n in (256, 2048, 16384)]
    assert gains == sorted(gains)
    assert 1.4 < gains[-1] < 2.0


def test_a_prologue_takes_the_same_time_in_fewer_bits() -> None:
    """Only the work along k gets faster."""
    same = replace(CONSTANTS, low_precision_efficiency=CONSTANTS.gemm_efficiency, gemm_depth=512.0)
    fast = replace(H100, memory_Bps=np.inf)

    def prologue_s(precision: Precision) -> float:
        made = KernelModel(fast, same, precision)
        return 2.0 * seconds(gemm(8192, 8192, 4096), made) - seconds(gemm(8192, 8192, 8192), made)

    assert prologue_s("fp8") == pytest.approx(prologue_s("bf16"), rel=1e-6)


def test_attention_scores_and_logits_stay_in_16_bits() -> None:
    core = gemm(8192, 8192, 8192, core=True)
    assert seconds(core, kernels("fp8")) == seconds(core)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_runs_or_is_refused(precision: Precision) -> None:
    made = kernels(precision)
    if H100.fp4_flops == 0 and precision == "nvfp4":
        with pytest.raises(Unsupported, match="nvfp4"):
            made.peak(core=False)
    else:
        assert made.peak(core=False) >= made.peak(core=True) * 0.05
        assert seconds(gemm(4096, 4096, 4096), made) > 0


SHARES_B200 = [
    # SimuMax, configs/system/b200_bf16_ceperm.json: grouped products of (experts, rows, inputs, outputs) in bf16 with
    # gradients accumulated in fp32, and the share of 2250 TFLOP/s forward, for the inputs' and the weights' gradient.
    (256, 128, 7168, 4096, (0.208, 0.226, 0.077)),
    (160, 154, 5120, 3072, (0.200, 0.195, 0.094)),
    (128, 256, 7168, 4096, (0.271, 0.333, 0.147)),
    (64, 512, 7168, 4096, (0.367, 0.405, 0.219)),
    (40, 616, 1536, 5120, (0.326, 0.281, 0.272)),
    (32, 1024, 7168, 4096, (0.457, 0.435, 0.289)),
    (20, 1232, 5120, 3072, (0.513, 0.422, 0.328)),
    (40, 2460, 5120, 3072, (0.487, 0.452, 0.417)),
    (40, 9832, 1536, 5120, (0.445, 0.463, 0.413)),
]


def achieved(experts: int, rows: int, inputs: int, outputs: int) -> list[float]:
    """Shares of B200's peak forward, for the inputs' and for the weights' gradient, by kernel benchmarks alone."""
    chip = accelerator("b200")
    made = KernelModel(chip, calibration_from(prior_tables(), "b200"), "bf16", gradient_bytes=4.0)
    flops = 2.0 * experts * rows * inputs * outputs
    shapes: list[tuple[Phase, int, int, int]] = [
        ("forward", rows, outputs, inputs),
        ("input-gradient", rows, inputs, outputs),
        ("weight-gradient", outputs, inputs, rows),
    ]
    products = (replace(gemm(m, n, k, experts), name="expert.fc1", phase=phase) for phase, m, n, k in shapes)
    return [flops / seconds(one, made) / chip.bf16_flops for one in products]


def test_experts_products_take_as_long_as_measured() -> None:
    """Many small products reach a fraction of what few large ones do, and accumulating gradients costs most."""
    errors = np.array([np.log(np.divide(achieved(*shape), shares)) for *shape, shares in SHARES_B200])
    assert np.abs(errors).max() < np.log(1.4)
    assert np.abs(errors).mean() < 0.15


def test_scales_by_row_cost_passes_and_gain_no_speed() -> None:
    """torchtitan, 70B on 256 H100: 599.6 tokens/s by row, 809.8 by tensor."""
    product = gemm(8192, 8192, 8192)
    by_row, by_tensor, half = (seconds(product, kernels(precision)) for precision in ("fp8-rowwise", "fp8", "bf16"))
    assert by_row > half > by_tensor
