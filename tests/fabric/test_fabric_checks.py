"""Fabrics that no traffic can cross are refused by name."""

from dataclasses import replace

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric import Fabric, checks
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos

FABRIC = clos.build(
    16, radix=8, bandwidth_Bps=50e9, scale_up=Dimension(size=4, kind="fully-connected", bandwidth_Bps=450e9)
)


def with_value(field: str, index: int, value: object) -> Fabric:
    values = getattr(FABRIC, field)
    if isinstance(values, tuple):
        return replace(FABRIC, **{field: (*values[:index], value, *values[index + 1 :])})
    changed = values.copy()
    changed[index] = value
    return replace(FABRIC, **{field: changed})


def without(links: list[int]) -> Fabric:
    kept = np.setdiff1d(np.arange(FABRIC.links), links)
    fields = ("source", "target", "capacity_Bps", "latency_s", "cables", "tier", "up")
    return replace(FABRIC, **{field: getattr(FABRIC, field)[kept] for field in fields})


def test_generated_fabrics_pass():
    checks.check(FABRIC)


BAD = [
    (with_value("names", 3, "accelerator-2"), "names of nodes repeat: accelerator-2"),
    (replace(FABRIC, names=FABRIC.names[:-1]), "names for"),
    (with_value("capacity_Bps", 0, 0.0), "without capacity: accelerator-0 -> accelerator-1"),
    (with_value("capacity_Bps", 0, np.nan), "without capacity: accelerator-0 -> accelerator-1"),
    (with_value("capacity_Bps", 0, np.inf), "without capacity: accelerator-0 -> accelerator-1"),
    (with_value("capacity_Bps", 0, -1.0), "without capacity: accelerator-0 -> accelerator-1"),
    (with_value("latency_s", 1, -1e-6), "latencies below 0 or not finite: accelerator-1 -> accelerator-0"),
    (with_value("target", 0, 0), "join a node to itself: accelerator-0 -> accelerator-0"),
    (with_value("target", 0, 9999), "a node that does not exist"),
    (without([0]), "without the reverse direction: accelerator-1 -> accelerator-0"),
    (with_value("domain", 0, 7), "scale-up domains have 1 to 4 accelerators"),
    (replace(FABRIC, domain=np.roll(FABRIC.domain, 1)), "scale-up links leave their domain: accelerator-0"),
    (replace(FABRIC, rail=FABRIC.rail[:-1]), "given for every accelerator"),
    (FABRIC.failed(nodes=np.array([5])), "1 of 16 accelerators cannot reach accelerator-0: accelerator-5"),
    (replace(FABRIC, up=FABRIC.tier == 0), "12 of 16 .* accelerator-4, .* and 7 more"),
]


@pytest.mark.parametrize(("fabric", "message"), BAD)
def test_offenders_are_named(fabric, message):
    with pytest.raises(BadInput, match=message):
        checks.check(fabric)


def test_failed_links_may_lack_capacity():
    spine = FABRIC.nodes_of("spine")[:1]
    down = FABRIC.failed(nodes=spine)
    checks.check(replace(down, capacity_Bps=np.where(down.up, down.capacity_Bps, 0)))


def test_components_of_a_long_chain():
    chain = np.random.default_rng(0).permutation(2000)
    label = checks.components(2001, chain[:-1], chain[1:])
    assert (label[:2000] == 0).all()
    assert label[2000] == 2000
