"""``weft fabric``, ``weft simulate`` and ``weft design``: results, files and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import weft as library

Run = Callable[..., tuple[int, str, str]]


SCENARIO = """3 4 2 10.0
0 1 100 2 0 1
2 1 50 2 2 1
0 3
3 1
2 3
3 0
"""
"""Two flows share the link into host 1: 5 B/s each; the short one ends at 10 s, the long one at 15 s."""


def test_two_flows_share_a_link(weft: Run, tmp_path) -> None:
    path = tmp_path / "scenario.txt"
    path.write_text(SCENARIO)
    code, out, _ = weft("simulate", "--flows", str(path), "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "weft.simulate/1"
    assert found["makespan_s"] == pytest.approx(15.0)
    assert [flow["completion_s"] for flow in found["flows"]] == pytest.approx([15.0, 10.0])
    assert found["links"][1]["utilization"] == pytest.approx(1.0)
    assert "end after 15.00 s" in weft("simulate", "--flows", str(path))[1]


def test_without_a_layout_the_planned_one_is_simulated(weft: Run) -> None:
    job = {"model": "gpt2-124m", "cluster": "a100-8", "batch": 8}
    run, plan = library.simulate(**job), library.plan(**job, top=1)
    assert (run.planned, run.layout) == (True, plan.best.layout)
    assert not library.simulate(**job, layout=run.layout).planned
    assert repr(run).startswith("With the planned layout ")


BAD = {
    "no arguments": (("simulate",), "MODEL and CLUSTER are needed"),
    "job alone": (("simulate", "gpt2", "h100-8", "--job", "a"), "needs --arrangement"),
    "unknown fabric": (("simulate", "gpt2", "h100-16", "--layout", "dp=16", "--fabric", "fat-three"), "fat-tree"),
    "unknown kind": (("fabric", "h100-64", "--kind", "rail"), "rail-only"),
    "sizes": (("design", "gpt2", "h100-16", "--sizes", "8,x"), "whole number"),
    "kind in a list": (("design", "gpt2", "h100-16", "--fabrics", "fat-three"), "did you mean fat-tree"),
    "odd sizes": (("design", "gpt2", "h100-16", "--sizes", "4,3"), "domains of 3 do not divide 16"),
    "no oversubscription": (("fabric", "h100-64", "--kind", "fat-tree 0:1"), "below 1 -- say it like fat-tree 2:1"),
    **{
        option: (("fabric", "h100-64", option, "abc"), f"{option}: has no effect on a network that is built")
        for option in ("--link-speed", "--scale-up", "--hosts", "--host-map", "--exclude")
    },
    "upside down": (("fabric", "h100-64", "--kind", "fat-tree 1:2"), "is not a ratio to 1 -- write ports down"),
    "tokens": (("design", "gpt2", "h100-16", "--tokens=-5"), "Error: --tokens: -5.0 is not a finite number above 0"),
    "prices": (("design", "gpt2", "h100-16", "--prices", "cheap"), "price preset"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(refused: Callable[..., str], name: str) -> None:
    arguments, message = BAD[name]
    assert message in refused(*arguments)


def test_a_topology_has_hosts_of_its_cluster(weft: Run, refused: Callable[..., str], tmp_path, monkeypatch) -> None:
    """SLURM's nodes are hosts, each with its GPUs and NICs; a cluster of another size is refused."""
    monkeypatch.chdir(tmp_path)
    Path("topology.conf").write_text("SwitchName=leaf Nodes=n[1-4]\n")
    for command in ((), ("bill",)):
        out = weft("fabric", *command, "h100-32", "--kind", "topology.conf")[1]
        assert out.startswith("SLURM topology, 1 switch for 32 GPUs: $")
    assert "32 NICs" in weft("fabric", "h100-32", "--kind", "topology.conf")[1]
    assert "topology.conf: has 32 accelerators, h100-64 64" in refused("fabric", "h100-64", "--kind", "topology.conf")


def test_a_picture_that_is_no_svg_is_refused(weft: Run, tmp_path) -> None:
    path = tmp_path / "network.png"
    code, out, err = weft("fabric", "h100-64", "--picture", str(path))
    assert (code, out, path.exists()) == (2, "", False)
    assert "does not end in .svg" in err


def test_simulate_and_the_bill_count_the_same_switches(weft: Run) -> None:
    shown = weft(
        "simulate",
        "llama-3.1-8b",
        "h100-64",
        "--layout",
        "tp=8,dp=8",
        "--fabric",
        "fat-tree",
        "--radix",
        "8",
        "--verbose",
    )
    assert "40 switches and 8 of scale-up domains" in shown[1]
    assert "40 switches for 64 GPUs" in weft("fabric", "h100-64", "--kind", "fat-tree", "--radix", "8")[1]
