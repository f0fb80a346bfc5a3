"""``weft simulate --failed``: parts are drawn by their rates, and an iteration runs on what is left."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import weft
from weft.commands.shared import cluster_of
from weft.errors import BadInput, NothingFeasible
from weft.fabric.catalogue import for_cluster
from weft.reliability.classes import failures_from_toml, preset
from weft.reliability.job import broken, drawn_failures, parts_of, stranded_accelerators

FAT_TREE = {"fabric": "fat-tree", "radix": 16}
BOOK = """
schema = "weft.failures/1"
[classes.leaf]
component = "leaf"
mtbf_hours = 100
[classes.spine]
component = "spine"
mtbf_hours = 300
[classes.never]
component = "access-link"
failures_per_accelerator_hour = 0
"""


def job(**options):
    return weft.simulate("llama-3.1-8b", "h100-64", "tp=8,dp=8,sp", **(FAT_TREE | options))


def test_parts_are_drawn_by_their_rates():
    fabric = for_cluster("fat-tree", cluster_of("h100-64"), radix=16)
    book = failures_from_toml(BOOK)
    draws = [drawn_failures(fabric, book, 1, seed=draw, where="here")[0] for draw in range(2000)]
    assert draws == [drawn_failures(fabric, book, 1, seed=draw, where="here")[0] for draw in range(2000)]
    leaves, spines = len(parts_of(fabric, "leaf")), len(parts_of(fabric, "spine"))
    kinds = Counter(kind for kind, _, _ in draws)
    assert set(kinds) == {"leaf", "spine"}
    assert kinds["leaf"] / 2000 == pytest.approx(leaves / (leaves + spines / 3), abs=0.03)
    everything = drawn_failures(fabric, book, leaves + spines, seed=1, where="here")
    assert len(set(everything)) == leaves + spines
    with pytest.raises(BadInput, match=f"here: {leaves + spines + 1} parts cannot fail at once"):
        drawn_failures(fabric, book, leaves + spines + 1, seed=1, where="here")


def test_the_iteration_is_that_of_the_fabric_with_the_parts_down():
    fabric = for_cluster("fat-tree", cluster_of("h100-64"), radix=16)
    parts = drawn_failures(fabric, preset("llama-3"), 3, seed=0, where="--failed")
    found, by_hand = job(failed=3), job(fabric=broken(fabric, parts))
    assert found.iteration_s == by_hand.iteration_s
    assert found.to_dict()["failed"] == list(found.failed)
    links = ("access-link accelerator-22 - leaf-2", "access-link accelerator-23 - leaf-2")
    assert found.failed == (*links, "spine spine-3")
    assert job().failed == ()


def test_a_job_that_is_cut_off_has_no_iteration():
    with pytest.raises(
        NothingFeasible, match=r"8 of the job's 64 accelerators are cut off by .*leaf leaf-2"
    ) as caught:
        job(failed=3, seed=1)
    assert caught.value.exit_code == 3
    with pytest.raises(BadInput, match="--failed: 5000 parts"):
        job(failed=5000)


def test_a_job_in_one_domain_needs_no_network():
    fabric = for_cluster("fat-tree", cluster_of("h100-64"), radix=16)
    network = failures_from_toml(BOOK)
    broke = broken(fabric, drawn_failures(fabric, network, 12, seed=0, where="here"))
    assert stranded_accelerators(broke, np.arange(64)).size
    found = [weft.simulate("gpt2-124m", "h100-8", "dp=8", batch=64, fabric=one).iteration_s for one in (fabric, broke)]
    assert found[0] == found[1]


def test_a_study_has_states_of_the_network():
    axes = {"model": "llama-3.1-8b", "cluster": "h100-64", "layout": "tp=8,dp=8,sp", "fabric": "fat-tree"}
    axes |= {"radix": 16, "failed": [0, 3], "seed": [0, 1]}
    with weft.sweep({"compute": "simulate", "axes": axes}, workers=1) as found:
        rows = list(found.rows())
    assert [one["failure"] for one in rows] == [None, None, None, "nothing-feasible"]
    assert rows[2]["iteration_s"] == job(failed=3).iteration_s
