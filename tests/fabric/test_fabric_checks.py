"""The oracle of fabrics finds every fault."""

from dataclasses import replace

import numpy as np
import pytest
import soundness

from weft.fabric import Fabric
from weft.fabric.checks import components
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
    soundness.check(FABRIC)


BAD = [
    (with_value("names", 3, "accelerator-2"), "a name for each node"),
    (replace(FABRIC, names=FABRIC.names[:-1]), "a name for each node"),
    (with_value("capacity_Bps", 0, 0.0), "have a capacity"),
    (with_value("capacity_Bps", 0, np.nan), "have a capacity"),
    (with_value("capacity_Bps", 0, np.inf), "have a capacity"),
    (with_value("capacity_Bps", 0, -1.0), "have a capacity"),
    (with_value("latency_s", 1, -1e-6), "latencies are finite"),
    (with_value("target", 0, 0), "leave their node"),
    (with_value("target", 0, 9999), "nodes that exist"),
    (without([0]), "have a reverse"),
    (with_value("domain", 0, 7), "of one size"),
    (replace(FABRIC, domain=np.roll(FABRIC.domain, 1)), "stay in a domain"),
    (replace(FABRIC, rail=FABRIC.rail[:-1]), "a domain and a rail"),
    (FABRIC.failed(nodes=np.array([5])), "reach each other"),
    (replace(FABRIC, up=FABRIC.tier == 0), "reach each other"),
]


@pytest.mark.parametrize(("fabric", "message"), BAD)
def test_each_fault_is_found(fabric, message):
    with pytest.raises(AssertionError, match=message):
        soundness.check(fabric)


def test_failed_links_may_lack_capacity():
    spine = FABRIC.nodes_of("spine")[:1]
    down = FABRIC.failed(nodes=spine)
    soundness.check(replace(down, capacity_Bps=np.where(down.up, down.capacity_Bps, 0)))


def test_components_of_a_long_chain():
    chain = np.random.default_rng(0).permutation(2000)
    label = components(2001, chain[:-1], chain[1:])
    assert (label[:2000] == 0).all()
    assert label[2000] == 2000
