"""Accelerators and presets: sources, published figures, tiers that multiply to the count, names."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import catalogue, resolve
from weft.cluster.spec import Cluster
from weft.errors import BadInput, UnknownName, Unsupported

GROUPS = {
    "int8": "peaks",
    "fp32": "peaks",
    "fp16": "peaks",
    "bf16": "peaks",
    "fp8": "peaks",
    "fp4": "peaks",
    "multiprocessors": "multiprocessors",
    "memory": "memory",
    "memory_bandwidth": "memory_bandwidth",
    "scale_up_size": "scale_up",
    "scale_up_kind": "scale_up",
    "scale_up_bandwidth": "scale_up",
    "in_switch_reduction": "scale_up",
    "nic_bandwidth": "nic",
    "host_bandwidth": "host",
    "host_memory": "host_memory",
    "power": "power",
    "usd_per_hour": "usd_per_hour",
    "rail_domains": "rail_domains",
}
FAMILIES = [pattern.removesuffix("-<count>") for pattern in catalogue.names()]


@pytest.mark.parametrize("name", catalogue.entries())
def test_every_figure_has_its_source(name: str) -> None:
    entry = catalogue.entries()[name]
    figures = entry.keys() - {"vendor", "source"}
    assert figures == GROUPS.keys()
    for figure in figures:
        assert len(entry["source"][GROUPS[figure]]) >= len("assumption")


@pytest.mark.parametrize("name", catalogue.accelerator_names())
def test_every_accelerator_is_physically_plausible(name: str) -> None:
    chip = catalogue.accelerator(name)
    assert 0 < chip.fp32_flops < chip.fp16_flops
    fp8 = {"vr200": 35 / 8, "trainium2": 1299 / 667, "trainium3": 2517 / 671}.get(name.partition("-")[0], 2)
    assert chip.fp8_flops in (0, pytest.approx(fp8 * chip.bf16_flops, rel=1e-3), chip.bf16_flops)
    assert 15e9 < chip.memory_bytes < 300e9
    assert chip.nic_Bps < chip.scale_up_Bps < chip.memory_Bps
    assert 100 <= chip.power_w <= 2000


@pytest.mark.parametrize(
    ("name", "bf16", "memory_Bps", "scale_up", "size"),
    [
        ("a100", 312e12, 2.039e12, 300e9, 8),
        ("h100", 989.4e12, 3.35e12, 450e9, 8),
        ("H200", 989.4e12, 4.8e12, 450e9, 8),
        ("h800", 989.4e12, 3.35e12, 200e9, 8),
        ("b200", 2250e12, 8e12, 900e9, 8),
        ("gb200", 2500e12, 8e12, 900e9, 72),
        ("gb300", 2500e12, 8e12, 900e9, 72),
        ("vr200", 4000e12, 22e12, 1800e9, 72),
        ("trainium2", 667e12, 2.9e12, 512e9, 16),
        ("trainium2-ultra", 667e12, 2.9e12, 640e9, 64),
        ("trainium3", 671e12, 4.9e12, 1024e9, 144),
        ("mi250x", 191.5e12, 1.6384e12, 150e9, 8),
        ("mi300x", 1307.4e12, 5.3e12, 448e9, 8),
    ],
)
def test_data_sheet_figures(name: str, bf16: float, memory_Bps: float, scale_up: float, size: int) -> None:
    chip = catalogue.accelerator(name)
    assert (chip.bf16_flops, chip.memory_Bps, chip.scale_up_Bps) == (bf16, memory_Bps, scale_up)
    assert chip.scale_up_size == size


@pytest.mark.parametrize(("name", "tflops"), [("a100-80gb", 156.0), ("h100", 494.7), ("b200", 1125.0)])
def test_tf32_is_half_of_16_bits(name: str, tflops: float) -> None:
    """NVIDIA's data sheets."""
    assert catalogue.accelerator(name).peak_flops("tf32") == pytest.approx(tflops * 1e12, rel=3e-3)
    with pytest.raises(Unsupported, match="no matrix units for tf32"):
        catalogue.accelerator("v100-32gb").peak_flops("tf32")


def test_fp8_needs_matrix_units() -> None:
    with pytest.raises(Unsupported, match="no matrix units for fp8"):
        catalogue.accelerator("a100").peak_flops("fp8")
    assert catalogue.accelerator("gb300").peak_flops("nvfp4") == 15e15


def sizes(cluster: Cluster) -> list[tuple[str, int]]:
    return [(tier.name, tier.size) for tier in cluster.tiers]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100-4", [("scale-up", 4)]),
        ("a100-8", [("scale-up", 8)]),
        ("v100-256", [("scale-up", 8), ("rail", 32)]),
        ("a100-512", [("scale-up", 8), ("rail", 32), ("spine", 2)]),
        ("h100-16384", [("scale-up", 8), ("rail", 32), ("spine", 64)]),
        ("h100-2240", [("scale-up", 8), ("network", 280)]),
        ("gb200-nvl72-4608", [("scale-up", 72), ("rail", 8), ("spine", 8)]),
        ("gb200-64", [("scale-up", 64)]),
        ("gb200-96", [("scale-up", 48), ("rail", 2)]),
        ("gb200-128", [("scale-up", 64), ("rail", 2)]),
        ("gb300-256", [("scale-up", 64), ("rail", 4)]),
        ("vr200-nvl72-512", [("scale-up", 64), ("rail", 8)]),
        ("trainium2-64", [("scale-up", 16), ("rail", 4)]),
        ("trainium2-ultra-512", [("scale-up", 64), ("rail", 8)]),
        ("trainium3-288", [("scale-up", 144), ("rail", 2)]),
        ("gb200-204", [("scale-up", 68), ("rail", 3)]),
        ("gh200-rail-only-32768", [("scale-up", 256), ("rail", 128)]),
        ("h100-rail-only-1024", [("scale-up", 8), ("rail", 128)]),
        ("perlmutter-1024", [("scale-up", 4), ("slingshot", 256)]),
        ("frontier-32768", [("scale-up", 8), ("slingshot", 4096)]),
        ("alps-6144", [("scale-up", 4), ("slingshot", 1536)]),
    ],
)
def test_tiers_of_presets(name: str, expected: list[tuple[str, int]]) -> None:
    assert sizes(catalogue.load(name)) == expected


@given(st.sampled_from(FAMILIES), st.integers(1, 200_000))
def test_any_count_multiplies_out_or_is_refused_with_a_valid_one(family: str, count: int) -> None:
    size = catalogue.load(f"{family}-1").accelerator.scale_up_size
    try:
        cluster = catalogue.load(f"{family}-{count}")
    except BadInput as error:
        assert count > size
        below, above = (int(word) for word in str(error).split("use ")[1].split(" or "))
        assert below < count < above
        cluster, count = catalogue.load(f"{family}-{above}"), above
        assert catalogue.load(f"{family}-{below}").count == below
    assert prod(tier.size for tier in cluster.tiers) == cluster.count == count
    used = cluster.tiers[0].size
    assert used <= size
    assert (used in (count, size) and not cluster.spares) or cluster.spares == count // used * (size - used) > 0
    assert all(tier.latency_s > 0 and tier.effective_Bps > 0 for tier in cluster.tiers)


@pytest.mark.parametrize("count", [128, 256, 512, 4096])
def test_racks_of_72_are_used_by_64(count: int) -> None:
    """As in all of NVIDIA's recipes of several racks; the racks are paid for whole."""
    cluster = catalogue.load(f"gb200-{count}")
    assert (cluster.tiers[0].size, cluster.spares_per_domain, cluster.spares) == (64, 8, count // 8)
    assert cluster.defaults[0].startswith("64 of the 72 accelerators of each scale-up domain used")


@pytest.mark.parametrize(("count", "nearest"), [(73, "72 or 80"), (200, "192 or 204"), (1000, "960 or 1008")])
def test_counts_that_no_racks_share_evenly_are_refused(count: int, nearest: str) -> None:
    with pytest.raises(BadInput, match=f"do not fill scale-up domains of 72 .* use {nearest}"):
        catalogue.load(f"gb200-{count}")


def test_machine_families() -> None:
    perlmutter = catalogue.load("perlmutter-64")
    assert perlmutter.accelerator.memory_bytes < 43e9
    assert perlmutter.tiers[0].kind == "fully-connected"
    assert catalogue.load("perlmutter-80gb-64").accelerator.memory_bytes > 80e9
    assert catalogue.load("frontier-64").tiers[1].bandwidth_Bps == 12.5e9
    rail_only = catalogue.load("gh200-rail-only-1024")
    assert (rail_only.tiers[0].bandwidth_Bps, rail_only.tiers[1].bandwidth_Bps) == (450e9, 50e9)
    assert rail_only.tiers[0].in_network_reduction


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h10-1024", "did you mean h100-1024"),
        ("frontir-64", "did you mean frontier-64"),
        ("h100", "has no count -- write it like h100-1024"),
        ("h100-0", "has 0 accelerators"),
        ("h100-99999999", "use 1 to 10000000"),
        ("h100-12", "use 8 or 16"),
        ("", "unknown cluster"),
        ("-8", "unknown cluster"),
        ("h100-1e3", "unknown cluster"),
    ],
)
def test_names_that_do_not_work(name: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        catalogue.load(name)


def test_unknown_accelerator_names_the_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        catalogue.accelerator("a101")


def test_resolve_takes_presets_and_files(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text('name = "mine"\naccelerator = "a100"\ncount = 16\n')
    assert resolve(file).name == "mine"
    assert resolve("a100-16").name == "a100-16"
    with pytest.raises(BadInput, match="no such file"):
        resolve("missing.toml")
