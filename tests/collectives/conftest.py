"""The six platforms of Themis (arXiv 2110.04478, table 2), for all tests of schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from weft.fabric.dimension import Dimension, DimensionKind

Latency = Literal["paper", "1 ns", "none"]
Platform = Callable[..., tuple[Dimension, ...]]

GB_PER_GBIT = 2.0**30 / 8
"""The paper's GB are 2**30 bytes: its baseline of 1000 MiB takes as long as that says."""
KINDS: dict[str, DimensionKind] = {"SW": "switch", "Ring": "ring", "FC": "fully-connected"}
TABLE_2 = {
    "2D-SW_SW": ((16, 64), (1200, 800), (700, 1700)),
    "3D-SW_SW_SW_homo": ((16, 8, 8), (800, 800, 800), (700, 700, 1700)),
    "3D-SW_SW_SW_hetero": ((16, 8, 8), (1600, 800, 400), (700, 700, 1700)),
    "3D-FC_Ring_SW": ((8, 16, 8), (1400, 800, 400), (700, 700, 1700)),
    "4D-Ring_SW_SW_SW": ((4, 4, 8, 8), (2000, 1600, 800, 400), (20, 700, 700, 1700)),
    "4D-Ring_FC_Ring_SW": ((4, 8, 4, 8), (3000, 1400, 1200, 800), (20, 700, 700, 1700)),
}
"""Sizes, Gb/s per accelerator and direction, latency of a step in ns."""


def platform(name: str, latency: Latency = "paper") -> tuple[Dimension, ...]:
    """A platform of table 2.

    ``1 ns`` is the latency of a hop in the inputs that were published with the paper: a switch has two hops.
    """
    kinds = [KINDS[part] for part in name.split("-")[1].split("_") if part in KINDS]
    hops = {"paper": None, "1 ns": 1.0, "none": 0.0}[latency]
    return tuple(
        Dimension(
            size=size,
            kind=kind,
            bandwidth_Bps=gbit * GB_PER_GBIT,
            latency_s=(ns if hops is None else hops * (2 if kind == "switch" else 1)) * 1e-9,
        )
        for kind, size, gbit, ns in zip(kinds, *TABLE_2[name], strict=True)
    )


@pytest.fixture(scope="session", name="platform")
def platform_fixture() -> Platform:
    return platform


@pytest.fixture(scope="session")
def platforms() -> tuple[str, ...]:
    return tuple(TABLE_2)
