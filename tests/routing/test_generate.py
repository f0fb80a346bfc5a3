"""The paper's workloads made anew: sizes, placement, and what is refused."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from weft.errors import BadInput, UnknownName
from weft.fabric.families import clos
from weft.fabric.spec import Fabric
from weft.routing.traffic import JobTraffic, check_traffic, generate

REFERENCE = {
    ("BLOOM", 2): 7333333334,
    ("BLOOM", 4): 3666666667,
    ("BLOOM", 8): 1833333334,
    ("GPT_3", 2): 5468750000,
    ("GPT_3", 4): 2734375000,
    ("GPT_3", 8): 1367187500,
    ("LLaMA2_70B", 2): 1093750000,
    ("LLaMA2_70B", 4): 546875000,
}
"""Bytes of a flow by model and ring, as in the job files of the paper's code."""
STAGES = {"BLOOM": 48, "GPT_3": 64, "LLaMA2_70B": 128}
PAUSE = {"BLOOM": 1.23877, "GPT_3": 1.00962, "LLaMA2_70B": 2.69231}
JOBS = [("BLOOM", 4), ("GPT_3", 8), ("LLaMA2_70B", 2), ("BLOOM", 2)]


def rings(traffic: JobTraffic) -> list[list[int]]:
    """The hosts of every collective in the order of its ring, from its first flow on."""
    after: dict[int, dict[int, int]] = defaultdict(dict)
    for group, a, b in zip(traffic.collective, traffic.source, traffic.target, strict=True):
        assert int(a) not in after[int(group)]
        after[int(group)][int(a)] = int(b)
    found = []
    for group in sorted(after):
        ring = [next(iter(after[group]))]
        while (follower := after[group][ring[-1]]) != ring[0]:
            ring.append(follower)
        assert len(ring) == len(after[group])
        found.append(ring)
    return found


@pytest.mark.parametrize(("model", "ring"), REFERENCE)
def test_the_reference_table(paper_network: Fabric, model: str, ring: int) -> None:
    traffic = generate(paper_network, [(model, ring)])
    assert set(traffic.bytes.tolist()) == {REFERENCE[model, ring]}
    assert len(traffic) == STAGES[model] * ring
    assert set(traffic.rounds.tolist()) == {2 * (ring - 1)}
    assert traffic.pause_s.tolist() == [PAUSE[model]]
    assert PAUSE[model] + 1 <= traffic.start_s[0] <= PAUSE[model] + 10
    assert [len(each) for each in rings(traffic)] == [ring] * STAGES[model]


@pytest.mark.parametrize("seed", range(4))
def test_copies_fill_groups_of_eight_hosts_below_one_leaf(paper_network: Fabric, seed: int) -> None:
    traffic = generate(paper_network, JOBS, seed=seed)
    check_traffic(paper_network, traffic)
    taken: set[int] = set()
    for job, (model, ring) in enumerate(JOBS):
        one = traffic.only([job])
        assert one.jobs == (f"job_{job}-{model}",)
        copies = np.array(rings(one)).T
        assert copies.shape == (ring, STAGES[model])
        for copy in copies:
            groups = copy.reshape(-1, 8)
            assert np.all(groups == groups[:, :1] + np.arange(8))
            assert np.all(groups[:, 0] % 8 == 0)
        hosts = set(copies.ravel().tolist())
        assert len(hosts) == copies.size
        assert not hosts & taken
        taken |= hosts


def test_the_seed_decides(paper_network: Fabric) -> None:
    first, again, other = (generate(paper_network, JOBS, seed=seed) for seed in (5, 5, 6))
    for field in ("source", "target", "start_s"):
        assert getattr(first, field).tolist() == getattr(again, field).tolist()
        assert getattr(first, field).tolist() != getattr(other, field).tolist()


def test_a_full_network_has_room_to_the_last_group() -> None:
    fabric = clos.build(128, radix=32, bandwidth_Bps=1e9, tiers=2)
    assert sorted(generate(fabric, [("GPT_3", 2)]).source.tolist()) == list(range(128))
    with pytest.raises(BadInput, match="no room left for a copy of 64"):
        generate(fabric, [("GPT_3", 3)])
    with pytest.raises(BadInput, match="no room left"):  # leaves of fewer hosts hold no group
        generate(clos.build(98, radix=14, bandwidth_Bps=1e9, tiers=2), [("BLOOM", 2)])


@pytest.mark.parametrize(
    ("jobs", "error", "message"),
    [
        ([("BLOM", 2)], UnknownName, "known: BLOOM, GPT_3"),
        ([("BLOOM", 1)], BadInput, "a ring of 1"),
        ([("BLOOM", 0)], BadInput, "a ring of 0"),
        ([("GPT_3", 100)], BadInput, "no room left"),
        ([], BadInput, "no job is given"),
    ],
)
def test_what_is_refused(
    paper_network: Fabric, jobs: list[tuple[str, int]], error: type[BadInput], message: str
) -> None:
    with pytest.raises(error, match=message):
        generate(paper_network, jobs)
