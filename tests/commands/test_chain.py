"""One plan, and every verb that goes on from it: nothing is typed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import weft as library
from weft.cluster.catalogue import load
from weft.fabric.catalogue import for_cluster
from weft.fabric.files import fabric_to_json

Run = Callable[..., tuple[int, str, str]]
SMALL = ("--fabric", "fat-tree", "--radix", "8")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two layouts for 32 accelerators, the second of tp=4; made once."""
    folder = tmp_path_factory.mktemp("plans")
    for name, fix in (("plan.json", ()), ("cut.json", ("tp=4", "dp=8"))):
        found = library.plan("gpt2-124m", "h100-32", batch=64, top=2, runnable=True, fix=fix)
        (folder / name).write_text(found.to_json())
    return folder


def as_json(weft: Run, *arguments: str) -> dict:
    code, out, err = weft(*arguments, "--format", "json")
    assert (code, err) == (0, ""), err
    return json.loads(out)


def test_a_plan_goes_through_every_verb(weft: Run, planned: Path) -> None:
    pytest.importorskip("torch")
    plan = ("--plan", str(planned / "plan.json"))
    document = json.loads((planned / "plan.json").read_text())
    first = document["layouts"][0]
    assert as_json(weft, "estimate", *plan)["estimate"]["iteration_s"] == pytest.approx(first["iteration_s"])
    simulated = as_json(weft, "simulate", *plan, *SMALL)
    assert simulated["layout"] == first["layout"]
    assert simulated["closed_form_s"] == pytest.approx(first["iteration_s"])
    second = as_json(weft, "simulate", *plan, "--rank", "2", *SMALL)
    assert second["layout"] == document["layouts"][1]["layout"]
    routed = as_json(weft, "route", *plan, *SMALL)
    assert [one["job"] for one in routed["jobs"]] == ["gpt2-124m"]
    assert as_json(weft, "schedule", *plan)["schema"].startswith("weft.")
    study = as_json(weft, "design", *plan, "--fabrics", "rail-only", "--no-failures", "--no-simulate")
    assert study["designs"][0]["kind"] == "rail-only"
    code, out, err = weft("launch", plan[1], "--tool", "megatron")
    assert code == 0
    assert "then run: bash megatron.sh" in err
    assert "each with NODE_RANK=0, 1, ... and MASTER_ADDR=" in err
    assert "torchrun" in out
    code, out, err = weft("train", *plan, "--dry-run")
    assert (code, err) == (0, ""), err
    assert "rank 0" in out.lower()


@pytest.mark.slow
def test_routes_of_a_plan_carry_its_iteration(weft: Run, planned: Path, tmp_path: Path) -> None:
    """What weft route writes for a plan, weft simulate takes; its own routers do the same."""
    plan, routes = ("--plan", str(planned / "cut.json")), tmp_path / "routes.json"
    code, _, err = weft("route", *plan, *SMALL, "--paths", "--format", "json", "-o", str(routes))
    assert (code, err[:15]) == (0, "Planned routes:")
    from_file = as_json(weft, "simulate", *plan, *SMALL, "--routes", str(routes))
    planned_here = as_json(weft, "simulate", *plan, *SMALL, "--routing", "planned")
    hashed = as_json(weft, "simulate", *plan, *SMALL)
    assert from_file["routing"] == str(routes)
    assert planned_here["routing"] == "planned"
    assert from_file["iteration_s"] == pytest.approx(planned_here["iteration_s"], rel=1e-12)
    assert from_file["iteration_s"] < hashed["iteration_s"]
    code, exported, _ = weft("route", "export", "json", *plan, *SMALL)
    routes.write_text(exported)
    again = as_json(weft, "simulate", *plan, *SMALL, "--routes", str(routes))
    assert again["iteration_s"] == from_file["iteration_s"]
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"host-{number}\n" for number in (3, 2, 1, 0)))
    code, out, err = weft("simulate", *plan, *SMALL, "--routes", str(routes), "--placement", str(hosts))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "have no route: accelerator-" in err
    without = tmp_path / "figures.json"
    weft("route", *plan, *SMALL, "--format", "json", "-o", str(without))
    assert "lists no paths" in weft("simulate", *plan, *SMALL, "--routes", str(without))[2]
    twice = weft("simulate", *plan, *SMALL, "--routes", str(routes), "--routing", "spray")
    assert (twice[0], "--routing spray" in twice[2]) == (2, True)


@pytest.mark.slow
def test_a_placement_goes_through_simulate_and_route(weft: Run, planned: Path, tmp_path: Path) -> None:
    plan, hosts = ("--plan", str(planned / "cut.json")), tmp_path / "hosts"
    hosts.write_text("".join(f"host-{number} slots=8\n" for number in range(4)))
    plain = as_json(weft, "simulate", *plan, *SMALL, "--routing", "spray")
    placed = as_json(weft, "simulate", *plan, *SMALL, "--routing", "spray", "--placement", str(hosts))
    assert placed["iteration_s"] == plain["iteration_s"]
    hosts.write_text("".join(f"host-{number % 4}\n" for number in range(32)))
    scattered = as_json(weft, "simulate", *plan, *SMALL, "--routing", "spray", "--placement", str(hosts))
    assert scattered["iteration_s"] > plain["iteration_s"] * 1.1
    plainly, routed = (as_json(weft, "route", *plan, *SMALL, *more) for more in ((), ("--placement", str(hosts))))
    assert routed["jobs"][0]["all_reduce_s"] > plainly["jobs"][0]["all_reduce_s"] * 2
    hosts.write_text("host-0\nhost-7\n")
    for verb in (("simulate",), ("route",)):
        code, out, err = weft(*verb, *plan, *SMALL, "--placement", str(hosts))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "line 2: unknown host or accelerator 'host-7'" in err


@pytest.mark.slow
def test_several_plans_on_one_fabric(weft: Run, planned: Path, tmp_path: Path) -> None:
    """Two jobs of 32 on 64 accelerators: one behind the other, or interleaved host by host."""
    plans = ("--plan", str(planned / "cut.json"), "--plan", str(planned / "plan.json"))
    found = as_json(weft, "route", *plans, "--cluster", "h100-64", *SMALL, "--paths")
    assert [one["job"] for one in found["jobs"]] == ["plan 0: gpt2-124m", "plan 1: gpt2-124m"]
    sides = {flow["job"]: set() for flow in found["flows"]}
    for flow in found["flows"]:
        sides[flow["job"]].add(int(flow["source"].split("-")[1]) // 32)
    assert sides == {"plan 0: gpt2-124m": {0}, "plan 1: gpt2-124m": {1}}
    files = []
    for job in range(2):
        files += ["--placement", str(tmp_path / f"{job}")]
        (tmp_path / f"{job}").write_text("".join(f"host-{2 * number + job}\n" for number in range(4)))
    mixed = as_json(weft, "route", *plans, *files, "--cluster", "h100-64", *SMALL, "--paths")
    hosts = {flow["job"]: set() for flow in mixed["flows"]}
    for flow in mixed["flows"]:
        hosts[flow["job"]].add(int(flow["source"].split("-")[1]) // 8 % 2)
    assert hosts == {"plan 0: gpt2-124m": {0}, "plan 1: gpt2-124m": {1}}
    network = tmp_path / "net.json"
    network.write_text(fabric_to_json(for_cluster("fat-tree", load("h100-64"), radix=8)))
    filed = as_json(weft, "route", *plans, *files, "--fabric", str(network), "--paths")
    assert filed["alpha"] == mixed["alpha"]
    routes = tmp_path / "routes.json"
    routes.write_text(json.dumps(mixed))
    shared = ("--placement", files[1], "--fabric", str(network), "--routes", str(routes))
    assert as_json(weft, "simulate", "--plan", plans[1], *shared)["layout"]["x"] == 4
    assert "need one network" in weft("route", *plans)[2]
    assert "3 placements for 2 plans" in weft("route", *plans, *files, "--placement", "x", "--cluster", "h100-64")[2]


def test_routes_and_simulation_agree_on_what_links_reach(weft: Run, planned: Path) -> None:
    """What the busiest NIC needs for an iteration is the same in both."""
    plan = ("--plan", str(planned / "plan.json"), *SMALL)
    simulated, routed = as_json(weft, "simulate", *plan, "--routing", "planned"), as_json(weft, "route", *plan)
    network = [row for row in simulated["collectives"] if row["axes"] == "data"]
    seconds = sum(row["calls"] * row["everybody_s"] for row in network)
    assert routed["jobs"][0]["all_reduce_s"] == pytest.approx(seconds, rel=1e-6)


def test_what_is_in_the_plan_is_not_given_again(weft: Run, planned: Path) -> None:
    plan = ("--plan", str(planned / "plan.json"))
    for arguments in (
        ("simulate", "gpt2-124m", "h100-32", *plan),
        ("simulate", *plan, "--layout", "dp=32"),
        ("estimate", "gpt2-124m", "h100-32", *plan),
        ("design", "gpt2-124m", "h100-32", *plan),
    ):
        code, out, err = weft(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
    assert "there is no rank 9" in weft("simulate", *plan, "--rank", "9")[2]
    assert "--rank" in weft("simulate", "gpt2-124m", "h100-32", "--layout", "dp=32", "--rank", "2")[2]


def test_functions_take_the_objects_that_functions_give() -> None:
    """The same chain from Python."""
    found = library.plan("gpt2-124m", "h100-32", batch=64, top=1)
    network = for_cluster("fat-tree", load("h100-32"), radix=8)
    routes = library.route(network, plan=found)
    run = library.simulate(plan=found, fabric=network, routes=routes)
    assert run.result.routing == "auto"
    assert repr(routes).startswith("Planned routes: ")
    assert " per step, " in repr(run)
    assert routes.to_dicts()[0]["path"].startswith("accelerator-")
    assert {row["kind"] for row in run.to_dicts()} >= {"reduce-scatter"}
    assert len(repr(run)) < 200
