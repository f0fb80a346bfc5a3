"""Decisions as lines: columns that align, and JSON that says what was moved where."""

from __future__ import annotations

from itertools import pairwise

import pytest

from weft.fabric.families import clos
from weft.routing.controller import Decision, Gain, Move
from weft.routing.telemetry import LinkChange
from weft.views.route import change_lines, decision_line, heading_line, reason

FABRIC = clos.build(8, radix=4, bandwidth_Bps=1e9, tiers=2)
LINKS = {
    (FABRIC.names[a], FABRIC.names[b]): link
    for link, (a, b) in enumerate(zip(FABRIC.source.tolist(), FABRIC.target.tolist(), strict=True))
}
NODES = ["accelerator-0", "leaf-0", "spine-1", "leaf-3", "accelerator-6"]
MOVE = Move(flow=("a", "ring", 0, 6, 2), path=tuple(LINKS[ends] for ends in pairwise(NODES)), new=False)
GAIN = Gain(before=0.25, after=0.8, bound=1.0, mean_before=0.5, mean_after=0.9)
CHANGES = (
    LinkChange(ends=(8, 12), kind="avoided", value=1e-3),
    LinkChange(ends=(9, 12), kind="kept", value=1e-3),
    LinkChange(ends=(8, 13), kind="back", value=0.0),
    LinkChange(ends=(12, 8), kind="beyond", value=0.35),
    LinkChange(ends=(12, 8), kind="released", value=0.0),
)


def decision(**changes) -> Decision:
    fields = {
        "number": 3,
        "time_s": 9.5,
        "kind": "switch-down",
        "how": "repaired",
        "flows": 12345,
        "alpha": 1.25,
        "alpha_bound": 1.0,
        "placed": 4,
        "moved": 1,
        "cut": 2,
        "cut_jobs": ("a", "b"),
        "moves": (MOVE,),
        "solve_s": 0.0123,
        "gain": GAIN,
    }
    return Decision(**fields | changes)


def test_columns_align() -> None:
    head = heading_line().split("\n")[1]
    line = decision_line(decision(placed=1234, about="spine-1"))
    said = "1,234 flows lost their path; 1 flow moved against collisions; 2 flows of a and b cut off;"
    said += " no better routes yet"
    assert " ".join(line.split()) == f"3 9.50 s switch-down spine-1 1,234 1 25.0% 80.0% 100.0% {said}"
    assert head.index("placed") + len("placed") == line.index("1,234") + len("1,234")
    for column, cell in (("event", "switch-down"), ("of", "spine-1"), ("reason", said)):
        assert head.index(column) == line.index(cell)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "job-arrives", "moved": 0, "cut": 0, "alpha": 1.0}, "4 new flows"),
        ({"kind": "tick", "placed": 0, "moved": 0, "cut": 0, "alpha": 1.0}, "at the best possible"),
        ({"kind": "measured", "placed": 0, "moved": 0, "cut": 0, "withheld": True}, "moves would gain less than 5%"),
        (
            {"how": "replanned", "placed": 0, "cut": 0, "alpha": 1.0},
            "all planned again: 1 flow moved against collisions",
        ),
        ({"how": "rolled-back"}, "the network did not take the change"),
    ],
)
def test_reasons(changes: dict[str, object], said: str) -> None:
    assert reason(decision(**changes)) == said


def test_what_measurements_changed() -> None:
    lines = change_lines(decision(changes=CHANGES), FABRIC)
    assert lines == [
        "leaf-0 - spine-0 loses 0.001 of its packets: avoided",
        "leaf-1 - spine-0 loses 0.001 of its packets: kept, because no other path leads there",
        "leaf-0 - spine-1 no longer loses packets: used again",
        "spine-0 -> leaf-0 carries unknown traffic of 35.0% of its capacity: left to it",
        "spine-0 -> leaf-0 no longer carries unknown traffic",
    ]
