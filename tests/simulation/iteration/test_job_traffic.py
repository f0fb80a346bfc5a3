"""The network flows of a planned job against plain enumeration and the simulator's own count."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from weft.cluster.calibration import calibration
from weft.cluster.catalogue import load
from weft.errors import BadInput
from weft.estimation.iteration import Estimator
from weft.fabric.catalogue import for_cluster
from weft.fabric.placement import Placement
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.layout.text import parse_layout
from weft.model import Job, resolve_job
from weft.routing.traffic import JobTraffic, check_traffic
from weft.simulation.iteration.contention import Wires
from weft.simulation.iteration.demand import demand, totals
from weft.simulation.iteration.evaluator import planned_traffic
from weft.simulation.iteration.simulate import usage

CLUSTER = load("h100-32")
FABRIC = for_cluster("fat-tree", CLUSTER, radix=8)
"""4 domains of 8."""


def job(model: str = "llama-3.1-8b") -> Job:
    return resolve_job(model)


def layout(text: str) -> Layout:
    return parse_layout(text).complete()


def pairs(traffic: JobTraffic) -> dict[tuple[int, int], float]:
    """Bytes from accelerator to accelerator."""
    found: dict[tuple[int, int], float] = defaultdict(float)
    for source, target, size in zip(traffic.source, traffic.target, traffic.bytes, strict=True):
        found[int(source), int(target)] += float(size)
    return found


def asked(wanted_job: Job, chosen: Layout):
    """What stages ask of every collective, and the layout's wires."""
    closed = Estimator(wanted_job, CLUSTER, None)
    wanted = totals(chosen, demand(chosen, next(iter(closed.frames(LayoutTable.of([chosen]))))))
    wires = Wires(chosen, CLUSTER, FABRIC, calibration(CLUSTER.accelerator.name), routing="spray")
    return wanted, wires


def test_data_parallelism_over_nodes_is_a_ring_for_every_rank_of_a_node() -> None:
    """8 rings over 4 nodes: 2 (r - 1)/r of a rank's gradients (4 bytes) and weights to the next."""
    one, chosen = job(), layout("tp=8,dp=4")
    found = planned_traffic(one, CLUSTER, chosen, FABRIC, name="x")
    assert found.jobs == ("x",)
    got = pairs(found)
    assert set(got) == {(host, (host + 8) % 32) for host in range(32)}
    parameters = one.model.parameters / 8
    assert max(got.values()) == pytest.approx(min(got.values()))
    low, high = (3 / 4 * parameters * each for each in (4 + 2, 4 + 4))
    assert 0.99 * low <= got[0, 8] <= 1.01 * high


def test_stages_send_to_the_next_and_gradients_back() -> None:
    """A stage of 8 a node: every rank to its namesakes beside, the same bytes there and back."""
    got = planned_traffic(job(), CLUSTER, layout("tp=8,pp=4"), FABRIC)
    sends = np.array([got.names[c].startswith("send") for c in got.collective.tolist()])
    there = {(host, host + 8) for host in range(24)}
    back = {(b, a) for a, b in there}
    found = pairs(got)
    assert {(a, b) for a, b in zip(got.source[sends].tolist(), got.target[sends].tolist(), strict=True)} == (
        there | back
    )
    assert all(found[a, b] > 0 for a, b in there)
    size = got.bytes[sends]
    assert size.max() == pytest.approx(size.min())


LAYOUTS = [
    ("llama-3.1-8b", "tp=8,dp=4"),
    ("llama-3.1-8b", "tp=8,pp=4"),
    ("llama-3.1-8b", "tp=4,dp=8"),
    ("llama-3.1-8b", "tp=8,pp=2,dp=2"),
    ("llama-3.1-8b", "tp=4,pp=2,dp=4"),
    ("gpt2", "dp=32"),
    ("mixtral-8x7b", "tp=4,dp=8,ep=8,sp"),
]


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(("model", "text"), LAYOUTS)
def test_every_nic_carries_what_the_simulator_counts(model: str, text: str) -> None:
    one, chosen = job(model), layout(text)
    found = planned_traffic(one, CLUSTER, chosen, FABRIC)
    check_traffic(FABRIC, found)
    assert np.all(FABRIC.domain[found.source] != FABRIC.domain[found.target])
    wanted, wires = asked(one, chosen)
    link_bytes, _ = usage(chosen, FABRIC, wires.placement, {key: wires.messages(key) for key in wanted}, wanted)
    nic = FABRIC.tier == 1
    for ends, mine in ((FABRIC.source, found.source), (FABRIC.target, found.target)):
        at = nic & (ends < FABRIC.accelerators)
        there = np.bincount(ends[at], link_bytes[at], FABRIC.accelerators)
        assert np.bincount(mine, found.bytes, FABRIC.accelerators) == pytest.approx(there, rel=1e-9)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(("model", "text"), LAYOUTS)
def test_the_busiest_nic_is_full_and_all_flows_end_together(model: str, text: str) -> None:
    found = planned_traffic(job(model), CLUSTER, layout(text), FABRIC)
    nic_Bps = float(FABRIC.capacity_Bps[FABRIC.tier == 1][0])
    out = np.bincount(found.source, found.cap_Bps, 32)
    into = np.bincount(found.target, found.cap_Bps, 32)
    assert max(out.max(), into.max()) == pytest.approx(nic_Bps)
    seconds = found.bytes / found.cap_Bps
    assert seconds == pytest.approx(np.full(len(found), seconds[0]))
    assert found.pause_s[0] >= 0


@pytest.mark.parametrize(
    ("text", "first", "message"),
    [
        ("tp=8", 0, "sends nothing over the network"),
        ("tp=3,dp=4", 0, "heads"),
        ("tp=8,dp=4", 1, "accelerator"),
        ("tp=8,dp=8", 0, "accelerator"),
    ],
)
def test_what_is_refused(text: str, first: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        planned_traffic(
            job(), CLUSTER, layout(text), FABRIC, placement=Placement.in_order(layout(text).world, first=first)
        )
