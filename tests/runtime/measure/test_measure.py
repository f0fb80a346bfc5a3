"""Fits of measured times: what made the times is found again, and plans read it from the files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import Calibration, Cluster, Tier, accelerator, calibration, read_calibration
from weft.cluster.calibration import AttentionTime, constants, write_calibration
from weft.cluster.files import read_cluster
from weft.collectives.cost import Network, collective_s
from weft.errors import BadInput
from weft.estimation.kernels import KernelModel
from weft.layout import Layout
from weft.layout.measured import (
    KINDS,
    Measured,
    MeasuredKind,
    Product,
    Rank,
    Sample,
    measured_axes,
    measured_from_json,
    measured_to_json,
)
from weft.layout.mesh import spread
from weft.layout.operations import Gemm
from weft.layout.table import LayoutTable
from weft.runtime.measure.timing import DEVICES, accelerator_of, peak_flops, shapes
from weft.validation.measured import bounded_least_squares, describe, fit_kernels, fit_line, fit_network
from weft.views.validation import cluster_file

SIZES = tuple(4096 * 4**step for step in range(9))
LAYOUTS = (
    Layout(data=2),
    Layout(x=8),
    Layout(x=4, data=4),
    Layout(x=2, y=2, data=2),
    Layout(z=4, pipeline=2, order=("pipeline", "z", "x", "y", "context", "data")),
)
CPU = Rank(
    name="cpu-1-thread",
    memory_bytes=4e9,
    multiprocessors=1,
    copy_Bps=9e9,
    best_copy_Bps=1e10,
    host_Bps=9e9,
    launch_s=2e-6,
)

rates = st.floats(7.0, 11.5).map(lambda power: 10.0**power)
hops = st.floats(-6.5, -2.3).map(lambda power: 10.0**power)
launches = st.floats(-6.0, -4.0).map(lambda power: 10.0**power)


def line_samples(kind: MeasuredKind, ranks: int, latency_s: float, Bps: float) -> list[Sample]:
    """Times on a line; the factors of nccl-tests' performance notes."""
    sent = {"all-reduce": 2 * (ranks - 1) / ranks}.get(kind, (ranks - 1) / ranks)
    return [
        Sample(axis="x", kind=kind, ranks=ranks, bytes=size, seconds=latency_s + sent * size / Bps) for size in SIZES
    ]


def cluster_of(layout: Layout, tiers: list[tuple[float, float]]) -> Cluster:
    """A tier per axis of achieved bytes/s and hop latency, so that the default efficiencies give them."""
    default = Calibration()
    shares = [default.scale_up_efficiency] + [default.scale_out_efficiency] * (len(tiers) - 1)
    made = tuple(
        Tier(name=axis, size=getattr(layout, axis), kind="switch", bandwidth_Bps=Bps / share, latency_s=latency)
        for axis, (Bps, latency), share in zip(measured_axes(layout), tiers, shares, strict=True)
    )
    return Cluster(name="made", accelerator=accelerator("a100"), count=layout.world, tiers=made)


def modelled(sample: Sample, layout: Layout, cluster: Cluster, constants: Calibration) -> float:
    """Seconds of a sample's collective on a cluster."""
    network = Network.of(cluster, constants)
    group = spread(LayoutTable.of([layout]), (sample.axis,), network.spans)
    return float(collective_s(sample.kind, np.array([float(sample.bytes)]), group, network)[0])


def samples_of(layout: Layout, cluster: Cluster, constants: Calibration) -> tuple[Sample, ...]:
    """What a machine would show that is as the model says."""
    asked = [
        Sample(axis=axis, kind=kind, ranks=getattr(layout, axis), bytes=size, seconds=0.0)
        for axis in measured_axes(layout)
        for kind in KINDS
        for size in SIZES
    ]
    return tuple(replace(one, seconds=modelled(one, layout, cluster, constants)) for one in asked)


def products_of(kernels: KernelModel) -> tuple[Product, ...]:
    """Times of the shapes that are measured, as the model says."""
    found = []
    for m, n, k in shapes("cpu"):
        arrays = [np.array([float(side)]) for side in (m, n, k)]
        gemm = Gemm(name="product", phase="forward", m=arrays[0], n=arrays[1], k=arrays[2])
        seconds = float(kernels.seconds(gemm)[0])
        found.append(Product(precision="fp32", m=m, n=n, k=k, seconds=seconds))
    return tuple(found)


def measured_of(layout: Layout, samples: tuple[Sample, ...], rank: Rank = CPU) -> Measured:
    products = products_of(KernelModel(replace(accelerator("a100"), multiprocessors=1), Calibration(), "fp32"))
    attention = AttentionTime(batch=1, sequence=512, heads=12, kv_heads=4, qk_dim=64, v_dim=64, seconds=3e-3)
    parts = {"samples": samples, "products": products, "attention": (attention,)}
    return Measured(layout=layout, device="cpu", repeats=5, rank=rank, **parts)


@given(st.sampled_from(KINDS), st.integers(2, 64), hops, rates, st.floats(0.1, 10))
def test_a_line_is_found_again(kind: MeasuredKind, ranks: int, latency_s: float, Bps: float, scale: float) -> None:
    """Where the largest message shows the bandwidth; another clock scales it."""
    Bps = min(Bps, SIZES[-1] / latency_s)
    samples = line_samples(kind, ranks, latency_s, Bps)
    line = fit_line(samples)
    assert line.latency_s == pytest.approx(latency_s, rel=1e-6, abs=1e-9 * SIZES[0] / Bps)
    assert line.Bps == pytest.approx(Bps, rel=1e-6)
    assert line.r2 == pytest.approx(1.0)
    assert line.worst < 1e-6
    assert line.seconds(SIZES[3]) == pytest.approx(samples[3].seconds, rel=1e-6)
    slower = fit_line([replace(one, seconds=scale * one.seconds) for one in samples])
    assert slower.Bps * scale == pytest.approx(line.Bps, rel=1e-6)


@given(st.lists(st.floats(1e-6, 1.0), min_size=len(SIZES), max_size=len(SIZES)))
def test_a_line_of_any_times_is_physical(seconds: list[float]) -> None:
    times = zip(line_samples("all-gather", 2, 0.0, 1.0), seconds, strict=True)
    samples = [replace(one, seconds=spent) for one, spent in times]
    line = fit_line(samples)
    assert line.latency_s >= 0
    assert 0 < line.Bps <= 10.001 * max(one.bytes / 2 / one.seconds for one in samples)
    assert line.r2 <= 1.0
    assert np.isfinite(line.worst)


@given(st.data())
def test_bounded_least_squares_beats_its_neighbours(data: st.DataObject) -> None:
    """With one bounded unknown the answer is that of the box: no point of a grid inside is better."""
    numbers = st.lists(st.floats(-5, 5), min_size=4, max_size=4)
    matrix = np.stack([np.ones(4), np.array(data.draw(numbers))], axis=1)
    target = np.array(data.draw(numbers))
    low, high = np.array([-np.inf, 0.0]), np.array([np.inf, 1.0])
    found = bounded_least_squares(matrix, target, low, high)
    assert 0 <= found[1] <= 1
    least = np.sum((matrix @ found - target) ** 2)
    for second in np.linspace(0, 1, 21):
        rest = target - second * matrix[:, 1]
        assert least <= np.sum((rest - rest.mean()) ** 2) + 1e-6


@pytest.mark.slow
@given(st.data())
def test_a_network_is_found_again(data: st.DataObject) -> None:
    """Times that the model gives lead back to its latencies and bandwidths, whatever protocol is fastest."""
    layout = data.draw(st.sampled_from(LAYOUTS))
    tiers = [(data.draw(rates), data.draw(hops)) for _ in measured_axes(layout)]
    true = replace(Calibration(), collective_s=data.draw(launches))
    samples = samples_of(layout, cluster_of(layout, tiers), true)
    free = fit_network(samples, layout, low_launch_s=1e-6, high_launch_s=1e-4)
    assert max(one.worst for one in free.axes) < 1e-4
    known = fit_network(samples, layout, low_launch_s=true.collective_s, high_launch_s=true.collective_s)
    assert max(one.worst for one in known.axes) < 1e-4
    assert known.launch_s == pytest.approx(true.collective_s)
    for (Bps, _), one in zip(tiers, known.axes, strict=True):
        assert one.achieved_Bps == pytest.approx(Bps, rel=0.02) or Bps * one.latency_s > SIZES[-1]


@given(st.floats(0.45, 1.0), st.floats(0.0, 1000.0), st.floats(1e-6, 2e-5))
def test_kernels_are_found_again(efficiency: float, depth: float, kernel_s: float) -> None:
    chip = replace(accelerator("a100"), multiprocessors=1, fp32_flops=1e11, memory_Bps=1e15)
    true = replace(Calibration(), gemm_efficiency=efficiency, gemm_depth=depth, kernel_s=kernel_s)
    found = fit_kernels(products_of(KernelModel(chip, true, "fp32")), chip)
    assert found.gemm_efficiency == pytest.approx(efficiency, rel=1e-4)
    assert found.gemm_depth == pytest.approx(depth, rel=1e-3, abs=1e-2)
    assert found.worst < 1e-4


@pytest.mark.parametrize("with_constants", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: "-".join(measured_axes(one)))
def test_the_files_give_the_measured_times(layout: Layout, with_constants: bool, tmp_path: Path) -> None:
    """Collectives as on this kind of machine: slow starts that no default has, and gigabytes a second."""
    tiers = [(1e9 / (1 + i), 3e-4 * (1 + i)) for i in range(len(measured_axes(layout)))]
    launch_s = 5e-5 if with_constants else Calibration().collective_s
    true = replace(Calibration(), collective_s=launch_s)
    samples = samples_of(layout, cluster_of(layout, tiers), true)
    found = describe(measured_of(layout, samples), with_constants=with_constants)
    machine, kept = tmp_path / "machine.toml", tmp_path / "constants.toml"
    machine.write_text(cluster_file(found, constants=str(kept) if with_constants else None))
    kept.write_text(write_calibration(found.constants, source="a test", measured=found.by_shape()))
    cluster = read_cluster(machine)
    assert replace(cluster, defaults=()) == replace(found.cluster, defaults=())
    assert [tier.name for tier in cluster.tiers] == list(measured_axes(layout))
    base = calibration(cluster.accelerator.name)
    used = read_calibration(str(kept), cluster.accelerator.name) if with_constants else base
    assert not with_constants or used.measured.attention == found.measured.attention
    for one in samples:
        spent = modelled(one, layout, cluster, used)
        assert spent == pytest.approx(one.seconds, rel=0.01)
        tree = one.kind == "all-reduce" and one.ranks > 2 and one.axis != measured_axes(layout)[0]
        line = found.line(one.axis, one.kind).seconds(one.bytes)
        assert line == pytest.approx(spent, rel=0.15 if tree else 0.02), "a line has no change of algorithm"


def test_what_no_plan_takes_is_brought_within_its_range() -> None:
    """A slow host: constants stay plausible, and a note says which do not tell all."""
    layout = Layout(data=2)
    samples = samples_of(layout, cluster_of(layout, [(1e8, 5e-3)]), Calibration())
    late = tuple(replace(one, seconds=one.seconds + 0.1) for one in samples)
    slow = replace(CPU, launch_s=3e-4, copy_Bps=3e9)
    found = describe(measured_of(layout, late, slow), with_constants=True)
    ranges = {name: (low, high) for name, _, low, high, _ in constants()}
    assert all(ranges[name][0] <= value <= ranges[name][1] for name, value in found.constants.items())
    assert [note.split(" ")[0] for note in found.notes] == ["launch_s", "collective_s"]
    achieved = found.cluster.accelerator.memory_Bps * found.constants["memory_efficiency"]
    assert achieved == pytest.approx(slow.copy_Bps, rel=1e-3)


def test_one_rank_has_a_cluster_too() -> None:
    found = describe(measured_of(Layout(), ()), with_constants=True)
    assert read_cluster(cluster_file(found, constants=None)) == found.cluster
    assert found.cluster.count == 1
    assert found.lines == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": None}, "layout: None is not a table"),
        ({"rank": {"name": "cpu"}}, "rank.memory_bytes: is missing"),
        ({"samples": [7]}, "7 is not a table"),
        ({"repeats": 10**20}, "less than or equal to 1000000000"),
        ({"other": 1}, "other: is not a known field"),
    ],
)
def test_measurements_that_are_none(change: dict[str, object], words: str) -> None:
    good = json.loads(measured_to_json(measured_of(LAYOUTS[0], line_samples("all-reduce", 2, 1e-6, 1e9))))
    with pytest.raises(BadInput, match=words):
        measured_from_json(json.dumps(good | change))
    with pytest.raises(BadInput, match="nested too deeply"):
        measured_from_json("[" * 100_000)


def test_measurements_read_back_equal() -> None:
    layout = LAYOUTS[-1]
    measured = measured_of(layout, samples_of(layout, cluster_of(layout, [(1e9, 1e-4)] * 2), Calibration()))
    assert measured_from_json(measured_to_json(measured)) == measured


# GPUs by their names -------------------------------------------------------------------------------


def test_gpus_are_found_by_the_names_of_their_boards():
    for device, name in DEVICES.items():
        assert accelerator_of(device) == accelerator(name)
    for other in ("NVIDIA H800 PCIe", "NVIDIA H20-3e", "NVIDIA L40", "NVIDIA A10G", "AMD Instinct MI308X", ""):
        assert accelerator_of(other) is None
    assert peak_flops(None, "bf16") is None
    assert peak_flops(accelerator_of("NVIDIA H100 80GB HBM3"), "bf16") == pytest.approx(989.4e12)
    assert peak_flops(accelerator_of("NVIDIA H100 PCIe"), "bf16") == pytest.approx(756e12)
    assert peak_flops(accelerator_of("Tesla V100-SXM2-32GB"), "bf16") is None
