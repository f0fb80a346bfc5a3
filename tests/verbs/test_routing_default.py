"""One way to route where nobody names one, said first."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

import weft
from weft.commands.check_fabric import CheckOptions
from weft.commands.compare import CompareOptions
from weft.commands.design import DesignOptions
from weft.commands.goodput import GoodputOptions
from weft.commands.networks import ROUTING, ROUTINGS
from weft.commands.plan import PlanOptions
from weft.commands.schedule import ScheduleOptions
from weft.commands.simulate import SimulateOptions
from weft.views.design import design_view
from weft.views.ranking import network_plan_view
from weft.views.simulation import iteration_view
from weft.views.terminal import print_blocks

RECORDS = (
    *(CheckOptions, CompareOptions, DesignOptions, GoodputOptions, PlanOptions, ScheduleOptions),
    SimulateOptions,
)
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


@pytest.mark.parametrize(("routing", "words"), [("ecmp", "ECMP hashing"), ("spray", "packet spraying")])
def test_the_first_line_says_how_flows_were_routed(routing, words):
    run = weft.simulate(*JOB, LAYOUT, fabric="fat-tree", routing=routing, **HOW)
    assert lines(iteration_view, run)[0] == f"Routing: {words}, ideal transport"
    plan = weft.plan("gpt2-124m", "a100-8", batch=8, fabric="rail-only", routing=routing)
    assert lines(network_plan_view, plan)[0] == f"Routing: {words}, ideal transport"


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
    assert shown[0] == "Routing: ECMP hashing, ideal transport; column sprayed: packet spraying"
    assert any(re.search("hashed +sprayed", line) for line in shown)
    sprayed = weft.design(*JOB, fabrics="fat-tree", routing="spray", **asked)
    assert {one.sprayed_s for one in sprayed.designs} == {None}
    assert lines(design_view, sprayed)[0] == "Routing: packet spraying, ideal transport"
