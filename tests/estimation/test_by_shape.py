"""Measured shapes speak for themselves and for what is near, and for nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.cluster import accelerator, calibration, load
from weft.cluster.calibration import AttentionTime, Measurements, MemoryTime, ProductTime
from weft.estimation.iteration import Estimator
from weft.estimation.kernels import KernelModel, ShapeTable
from weft.estimation.result import EstimateTable
from weft.layout.operations import Gemm, Pass
from weft.layout.table import LayoutTable
from weft.layout.text import parse_layout

H100 = accelerator("h100")
PLAIN = calibration("h100")


def kernels(**measured: object) -> KernelModel:
    return KernelModel(H100, replace(PLAIN, measured=Measurements(**measured)), "bf16")  # type: ignore[arg-type]


def gemm(m: float, n: float, k: float, copies: float = 1.0) -> Gemm:
    sides = (np.array([float(side)]) for side in (m, n, k))
    return Gemm(name="one", phase="forward", **dict(zip("mnk", sides, strict=True)), copies=np.array([copies]))


shapes = st.lists(st.tuples(*[st.integers(1, 40)] * 3), min_size=1, max_size=8)


@given(shapes, shapes)
def test_the_nearest_shape_within_a_factor_of_two_counts(
    known: list[tuple[int, ...]], asked: list[tuple[int, ...]]
) -> None:
    """Against every pair, one by one."""
    ratios = np.arange(2.0, 2.0 + len(known))
    table = ShapeTable(np.log2(np.array(known, dtype=float)), ratios)
    found = table.scale([np.array(column, dtype=float) for column in zip(*asked, strict=True)])
    for one, ratio in zip(asked, found, strict=True):
        away = [[abs(np.log2(a / b)) for a, b in zip(one, other, strict=True)] for other in known]
        near = [sum(off) for off in away if max(off) <= 1]
        if not near:
            assert ratio == 1.0
        else:
            expected = [i for i, off in enumerate(away) if max(off) <= 1 and sum(off) <= min(near) + 1e-9]
            assert ratio in ratios[expected]


def test_a_product_near_a_measured_one_is_as_far_off_the_model() -> None:
    slow = kernels(products=(ProductTime(m=4096, n=4096, k=4096, seconds=1e-3),))
    plain = KernelModel(H100, PLAIN, "bf16")
    assert slow.seconds(gemm(4096, 4096, 4096))[0] == pytest.approx(1e-3)
    ratio = 1e-3 / plain.seconds(gemm(4096, 4096, 4096))[0]
    assert slow.seconds(gemm(4096, 4096, 6144)) == pytest.approx(ratio * plain.seconds(gemm(4096, 4096, 6144)))
    for far in (gemm(4096, 4096, 9000), gemm(4096, 4096, 4096, copies=2.0)):
        assert slow.seconds(far) == plain.seconds(far)


def test_a_memory_bound_kernel_takes_its_own_line_else_the_default() -> None:
    some = kernels(memory=(MemoryTime(name="default", Bps=1e12, latency_s=1e-5), MemoryTime(name="norms", Bps=2e12)))
    for name, expected in (("norms", 5e-4), ("residuals", 1e-5 + 1e-3 * PLAIN.pass_overhead)):
        one = Pass(name=name, phase="forward", bytes=np.array([1e9, 0.0]))
        assert some.seconds(one) == pytest.approx([expected, 0.0])


def test_attention_of_an_estimate_takes_what_was_measured() -> None:
    """All 32 layers of Llama 3.1 8B on one rank's heads, forward and backward."""
    job, cluster = weft.resolve_job("llama-3.1-8b"), load("h100-64")
    sequence = float(job.recipe.sequence)
    shape = {"batch": 1.0, "sequence": sequence, "heads": 16.0, "kv_heads": 4.0, "qk_dim": 128.0, "v_dim": 128.0}
    table = LayoutTable.of([parse_layout("tp=2,mbs=1").complete(64)])

    def time(forward_s: float, backward_s: float) -> EstimateTable:
        both = (("forward", forward_s), ("input-gradient", backward_s))
        times = [AttentionTime(**shape, phase=phase, seconds=seconds) for phase, seconds in both]
        constants = replace(PLAIN, measured=Measurements(attention=tuple(times)))
        return Estimator(job, cluster, constants).evaluate(table)

    empty = Estimator(job, cluster, replace(PLAIN, measured=Measurements())).evaluate(table)
    assert empty.iteration_s == Estimator(job, cluster, PLAIN).evaluate(table).iteration_s
    less, more = time(0.1, 0.3), time(0.2, 0.7)
    micro_batches = job.recipe.global_batch / 32
    assert (more.forward_s - less.forward_s)[0] == pytest.approx(32 * micro_batches * 0.1, rel=1e-6)
    assert (more.backward_s - less.backward_s)[0] == pytest.approx(32 * micro_batches * 0.4, rel=1e-6)


def test_an_estimate_says_what_was_measured() -> None:
    one = ProductTime(m=4096, n=6144, k=4096, seconds=1e-3, phase="forward")
    constants = replace(PLAIN, measured=Measurements(products=(one, replace(one, n=28000.0))))
    found = weft.estimate("llama-3.1-8b", "h100-8", "mbs=1", calibration=constants, sequence=4096)
    words = "of 17 shapes of products and attention 1 as measured, 2 from near ones, 14 by the closed form (h100"
    assert any(line.startswith(words) for line in found.job.defaults), found.job.defaults
