"""Lists of hosts in rank order, in the forms that launchers take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cluster.catalogue import load
from weft.errors import BadInput
from weft.fabric.catalogue import for_cluster
from weft.fabric.placement import Placement, host_names, read_placement

FABRIC = for_cluster("rail-only", load("h100-32"))
"""4 hosts of 8."""
SWAPPED = [*range(8, 16), *range(8)]


def read(tmp_path, text, ranks=16, fabric=FABRIC):
    path = tmp_path / "hosts"
    path.write_text(text)
    return read_placement(path, fabric, ranks).accelerators.tolist()


FORMS = {
    "hosts": "host-1\nhost-0\n",
    "slots of MPI and DeepSpeed": "# two hosts\nhost-1 slots=8\nhost-0 slots=8  # the last\n",
    "slots of Hydra": "host-1:8\nhost-0:8\n",
    "more slots and hosts than ranks": "host-1 slots=8\nhost-0 slots=8\nhost-2\n",
    "a line a rank": "host-1\n" * 8 + "host-0\n" * 8,
    "accelerators": "".join(f"accelerator-{number}\n" for number in SWAPPED),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(tmp_path, form):
    assert read(tmp_path, FORMS[form]) == SWAPPED


def test_few_slots_of_many_hosts(tmp_path):
    assert read(tmp_path, "host-3 slots=1\nhost-0 slots=2\nhost-3 slots=1\n", ranks=4) == [24, 0, 1, 25]


def test_hosts_have_the_names_of_a_file(tmp_path):
    names = tuple(f"node{number // 8}/eth{number % 8}" for number in range(32)) + FABRIC.names[32:]
    named = replace(FABRIC, names=names)
    assert host_names(named)[7:9] == ("node0", "node1")
    assert read(tmp_path, "node1\nnode0\n", fabric=named) == SWAPPED
    assert read(tmp_path, "node2/eth1\nnode0/eth0\n", ranks=2, fabric=named) == [17, 0]


BAD = {
    "unknown host or accelerator 'host-9'": "host-1\nhost-9\n",
    "line 3: host-1 has 8 accelerators, fewer than": "host-1 slots=4\nhost-1 slots=4\nhost-1 slots=4\n",
    "accelerator-8 is given twice": "host-1\naccelerator-8\n",
    "8 places for 16 ranks": "host-1\n",
    "lists no host": "# nothing\n\n",
    "is not a host with slots": "host-1 with 8\n",
    "'rank,host' is not a host with slots": "rank,host\n0,host-0\n",
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_refused(tmp_path, message):
    with pytest.raises(BadInput, match=message):
        read(tmp_path, BAD[message])


def test_a_placement_fits_its_fabric():
    Placement.in_order(16, first=16).check(16, FABRIC)
    with pytest.raises(BadInput, match="different accelerators"):
        Placement.in_order(16, first=17).check(16, FABRIC)
    with pytest.raises(BadInput, match="do not fit"):
        Placement.in_order(33).check(33, FABRIC)
