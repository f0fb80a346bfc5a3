"""How simulated flows are routed and carried: hashed over an ideal transport where nobody names one."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

import weft
from weft.commands.compare import CompareOptions
from weft.commands.design import DesignOptions
from weft.commands.estimate import GoodputOptions
from weft.commands.networks import ROUTING, ROUTINGS
from weft.commands.plan import PlanOptions
from weft.commands.simulate import SimulateOptions
from weft.errors import BadInput
from weft.views.design import design_view
from weft.views.ranking import network_plan_view
from weft.views.simulation import iteration_view
from weft.views.terminal import print_blocks

RECORDS = (CompareOptions, DesignOptions, GoodputOptions, PlanOptions, SimulateOptions)
JOB = ("llama-3.2-1b", "h100-64")
HOW = {"batch": 64, "sequence": 2048, "radix": 8}
LAYOUT = "tp=2,dp=32,sp"


def lines(view, report):
    file = io.StringIO()
    print_blocks(view(report), Console(width=160, file=file))
    return file.getvalue().splitlines()


def test_every_verb_hashes_unless_told():
    assert ROUTING == "ecmp"
    assert {(record.__name__, record().routing) for record in RECORDS} == {(one.__name__, ROUTING) for one in RECORDS}
    assert ROUTINGS[0] == ROUTING


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("routing", "words"), [("spray", "packet spraying"), ("ecmp", "ECMP hashing")])
def test_output_says_how_flows_were_routed(routing, words):
    run = weft.simulate(*JOB, LAYOUT, fabric="fat-tree", routing=routing, **HOW)
    assert f"  On fat-tree, {words}, ideal transport; layout {LAYOUT}" in lines(iteration_view, run)
    plan = weft.plan("gpt2-124m", "a100-8", batch=8, fabric="rail-only", routing=routing)
    assert f"  On rail-only, {words}, ideal transport" in lines(network_plan_view, plan)


def test_design_hashes_and_sprays_side_by_side():
    asked = {"layout": LAYOUT, "oversubscription": "2", "no_failures": True} | HOW
    study = weft.design(*JOB, fabrics="rail-only,fat-tree", **asked)
    for one in study.designs:
        hashed, sprayed = (
            weft.simulate(*JOB, LAYOUT, fabric=one.kind, routing=routing, **HOW) for routing in ("ecmp", "spray")
        )
        assert (one.simulated_s, one.sprayed_s) == (hashed.iteration_s, sprayed.iteration_s)
    assert any(one.simulated_s > one.sprayed_s * 1.001 for one in study.designs)
    shown = lines(design_view, study)
    assert "(routes: ECMP hashing, ideal transport)" in shown[0]
    assert any(re.search("hashed +sprayed", line) for line in shown)
    sprayed = weft.design(*JOB, fabrics="fat-tree", routing="spray", **asked)
    assert {one.sprayed_s for one in sprayed.designs} == {None}
    assert "(routes: packet spraying, ideal transport)" in lines(design_view, sprayed)[0]


# Transports -------------------------------------------------------------------------------------

SMALL = {"fabric": "fat-tree", "radix": 4, "batch": 64}


def simulated(routing="ecmp"):
    return weft.simulate("gpt2-124m", "a100-16", "dp=16", routing=routing, **SMALL)


def test_queue_pairs_bring_hashing_near_spraying():
    one, many, sprayed = (simulated(how) for how in ("roce-ecmp", "roce-ecmp:64", "roce-adaptive"))
    assert sprayed.iteration_s <= many.iteration_s * (1 + 1e-9) < one.iteration_s
    assert [run.to_dict()["transport"] for run in (one, many, sprayed)] == [
        "roce-ecmp",
        "roce-ecmp:64",
        "roce-adaptive",
    ]
    assert simulated().to_dict()["transport"] == "ideal"


def test_every_verb_says_the_transport():
    asked = {"radix": 4, "batch": 64, "routing": "roce-ecmp:2"}
    planned = weft.plan("gpt2-124m", "a100-16", fabric="fat-tree", top=1, axis_order="usual", **asked)
    designed = weft.design("gpt2-124m", "a100-16", layout="dp=16", fabrics="fat-tree", no_failures=True, **asked)
    assert [one.to_dict()["transport"] for one in (planned, designed)] == ["roce-ecmp:2"] * 2


def test_a_transport_is_never_faster_than_the_ideal_on_its_paths_and_says_what_links_reach():
    ideal = simulated("spray")
    for transport in ("roce-adaptive", "packet-spray", "infiniband"):
        found = simulated(transport)
        assert found.iteration_s >= ideal.iteration_s * (1 - 1e-9)
        reached, most = ([tier["reached"] for tier in run.to_dict()["tiers"]] for run in (found, ideal))
        assert most[0] == reached[0]
        assert all(0 < there <= here <= 1 for here, there in zip(most, reached, strict=True))
        assert min(reached) <= 0.88


@pytest.mark.parametrize(
    ("routing", "words"),
    [
        ("infiniband:2", "change nothing on infiniband"),
        ("spray:2", "transport"),
        ("tcp", "transport"),
        ("roce-ecmp:129", "128"),
    ],
)
def test_what_cannot_carry_flows(routing, words):
    with pytest.raises(BadInput, match=words):
        simulated(routing)
    with pytest.raises(BadInput, match="needs --fabric"):
        weft.compare("gpt2-124m", "a100-16", layout=("dp=16", "tp=2,dp=8"), routing="roce-ecmp")
