"""Sweeps of real verbs: rows are what the verbs say, the command line writes and shows them, bad input is refused."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import weft
from weft.cluster.catalogue import with_domain
from weft.cluster.files import parameters, with_parameters
from weft.commands.app import cli
from weft.commands.sweep import VERBS, cluster_at, computation, compute
from weft.errors import BadInput, WeftError
from weft.views.study import study_verdict
from weft.views.words import told

EXAMPLE = Path(__file__).parents[2] / "examples" / "study.toml"
SMALL = {"model": "gpt2-124m", "cluster": "a100-16"}


def rows(**study: Any) -> list[dict[str, Any]]:
    with weft.sweep(study, workers=1) as found:
        return found.to_dicts()


def test_a_plan_is_the_best_of_weft_plan() -> None:
    best = weft.plan("gpt2-124m", "a100-16", top=1, batch=32).best
    found = compute("plan", SMALL | {"batch": 32})
    assert found["iteration_s"] == best.iteration_s
    assert {name: found[name] for name in best.row()} == best.row()


def test_an_estimate_of_a_planned_layout_is_the_plan_s() -> None:
    planned = compute("plan", SMALL)
    for layout in ({}, {"layout": "planned"}, {"layout": planned["layout_text"].replace(" ", ",")}):
        try:
            found = compute("estimate", SMALL | layout)
        except BadInput:  # the text for people is no layout to read
            continue
        assert found["iteration_s"] == planned["iteration_s"]


def test_tokens_add_what_the_run_costs() -> None:
    found = compute("plan", SMALL | {"tokens": "1B", "usd_per_hour": 2.0})
    run = weft.plan("gpt2-124m", "a100-16", top=1, tokens="1B", usd_per_hour=2.0).ranked[0].run
    assert found["expected_days"] == run.expected_days
    assert {name: value for name, value in found.items() if name.startswith("run_")}


def test_goodput_is_that_of_the_function() -> None:
    row = compute("estimate", SMALL | {"layout": "dp=16", "tokens": "1B"})
    alone = weft.goodput("gpt2-124m", "a100-16", "dp=16", tokens="1B")
    assert row["goodput"] == pytest.approx(alone.goodput)


def test_simulations_and_designs_are_those_of_the_verbs() -> None:
    values = SMALL | {"layout": "dp=16", "fabric": "rail-only", "batch": 64}
    simulated = weft.simulate("gpt2-124m", "a100-16", "dp=16", fabric="rail-only", batch=64)
    assert compute("simulate", values)["iteration_s"] == simulated.iteration_s
    designed = weft.design("gpt2-124m", "a100-16", fabrics="rail-only", layout="dp=16", batch=64)
    found = compute("design", values)
    assert found["usd"] == designed.designs[0].bill.usd
    assert found["simulated_s"] == designed.designs[0].simulated_s


def test_sites_are_arranged_at_points() -> None:
    site = str(Path(__file__).parents[2] / "examples" / "two-jobs.toml")
    with weft.sweep({"compute": "arrange", "axes": {"site": site, "seed": 1}}, workers=1) as found:
        (row,) = found.rows()
    again = weft.arrange(site, seed=1)
    assert (row["seed"], row["failure"]) == (1, None)
    assert (row["objective"], row["bound"]) == (again.objective, again.bound)
    assert row["worst_slowdown"] >= 1.0


def test_collectives_routes_and_sites() -> None:
    found = compute("schedule", {"collective": "all-reduce", "bytes": 1e9, "cluster": "a100-16"})
    assert found["time_s"] == weft.schedule("all-reduce", "1GB", cluster="a100-16").time_s
    routed = compute("route", {"model": "llama-3.1-8b", "cluster": "h100-64", "layout": "tp=8,dp=8", "radix": 8})
    again = weft.route(cluster="h100-64", radix=8, job="llama-3.1-8b tp=8,dp=8")
    assert (routed["alpha"], routed["alpha_bound"]) == (again.plan.alpha, again.plan.alpha_bound)


def test_clusters_take_counts_and_figures() -> None:
    slow = cluster_at({"cluster": "h100-64", "nic_Bps": 25e9, "oversubscription": 2.0})
    own = weft.resolve_cluster("h100-64")
    assert slow.accelerator == replace(own.accelerator, nic_Bps=25e9)
    assert slow.tiers[0] == own.tiers[0]
    assert slow.tiers[1] == replace(own.tiers[1], bandwidth_Bps=25e9, oversubscription=2.0)
    assert cluster_at({"cluster": "h100-64", "count": 128}) == weft.resolve_cluster("h100-128")
    assert cluster_at({"cluster": "h100", "count": 128}) == weft.resolve_cluster("h100-128")
    assert cluster_at({"cluster": "h100-64", "scale_up_size": 4}).tiers == with_domain(own, 4).tiers
    narrow = cluster_at({"cluster": "h100-64", "scale_up_size": 16, "nic_Bps": 25e9})
    assert [(tier.size, tier.bandwidth_Bps) for tier in narrow.tiers] == [(16, 450e9), (4, 25e9)]
    far = cluster_at({"cluster": "h100-64", "nic_latency_s": 1e-5})
    assert far.tiers == (own.tiers[0], replace(own.tiers[1], latency_s=1e-5))
    near = cluster_at({"cluster": "h100-64", "scale_up_latency_s": 1e-7})
    assert near.tiers == (replace(own.tiers[0], latency_s=1e-7), own.tiers[1])
    for field in parameters().values():
        assert with_parameters(own, {field: getattr(own.accelerator, field) or 0.0}) == own


def test_a_file_s_count_changes_its_outermost_tier(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\ncount = 16\naccelerator = "h100"\n')
    found = cluster_at({"cluster": str(path), "count": 32})
    assert (found.count, found.spans) == (32, (8, 32))
    with pytest.raises(BadInput, match="20 accelerators do not fill units of 8"):
        cluster_at({"cluster": str(path), "count": 20})


def test_a_file_that_changes_is_computed_anew(tmp_path: Path) -> None:
    path, state = tmp_path / "mine.toml", str(tmp_path / "state")
    study = {"axes": {"model": "gpt2-124m", "cluster": str(path), "layout": "dp=8"}, "compute": "estimate"}
    path.write_text('name = "mine"\ncount = 8\naccelerator = "h100"\n')
    with weft.sweep(study, workers=1, state=state) as first:
        assert first.counts.computed == 1
    with weft.sweep(study, workers=1, state=state) as again:
        assert again.counts.computed == 0
    path.write_text('name = "mine"\ncount = 8\naccelerator = "a100"\n')
    with weft.sweep(study, workers=1, state=state) as changed:
        assert changed.counts.computed == 1
        assert changed.to_dicts()[0]["iteration_s"] == weft.estimate("gpt2-124m", path, "dp=8").estimate.iteration_s


def test_what_cannot_be_is_a_row() -> None:
    axes = {"model": "llama-3.1-405b", "cluster": "a100-8", "precision": ["bf16", "fp8"]}
    found = rows(axes=axes)
    assert [row["failure"] for row in found] == ["nothing-feasible", "unsupported"]
    assert "none of" in found[0]["message"]
    assert all(set(row) == set(found[0]) for row in found)


@pytest.mark.parametrize("name", VERBS)
def test_every_computation_says_its_axes(name: str) -> None:
    found = computation(name)
    assert set(found.needed) <= set(found.axes)
    columns = [kind.column for kind in found.axes.values()]
    assert len(columns) == len(set(columns)), "two axes of one column"


def invoked(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["sweep", *words])
    if isinstance(done.exception, WeftError):
        return done.exception.exit_code, str(done.exception)
    assert done.exception is None, done.exception
    return done.exit_code, done.output


SHORT = ("--models", "gpt2-124m", "--clusters", "a100-8,a100-16", "--axis", "batch=32,64", "--compute", "estimate")


def test_the_command_line_writes_goes_on_and_shows(tmp_path: Path) -> None:
    out, state = tmp_path / "out.csv", str(tmp_path / "state")
    code, said = invoked(*SHORT, "--workers", "1", "--state", state, "-o", str(out))
    assert code == 0
    assert "4 computed, 0 known" in said
    found = list(csv.DictReader(out.read_text().splitlines()))
    assert [(row["cluster"], row["batch"]) for row in found] == [
        ("a100-8", "32"), ("a100-8", "64"), ("a100-16", "32"), ("a100-16", "64")
    ]  # fmt: skip
    before = out.read_bytes()
    assert "0 computed, 4 known" in invoked(*SHORT, "--workers", "2", "--state", state, "-o", str(out))[1]
    assert out.read_bytes() == before
    shown = invoked("show", state, "--where", "batch=64", "--format", "json")[1]
    assert [row["cluster"] for row in json.loads(shown)] == ["a100-8", "a100-16"]


def test_a_dry_run_counts_and_keeps_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code, said = invoked(*SHORT, "--dry-run", "--state", str(state), "--workers", "2")
    assert code == 0
    assert "4 points, 0 known, 4 to compute" in said
    assert "on 2" in said
    assert not state.exists()
    assert "60 points" in invoked(str(EXAMPLE), "--dry-run")[1]


@pytest.mark.slow
def test_parquet_holds_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out.parquet"
    assert invoked(*SHORT, "--workers", "1", "-o", str(out))[0] == 0
    before = out.read_bytes()
    assert invoked(*SHORT, "--workers", "2", "-o", str(out))[0] == 0
    assert out.read_bytes() == before
    with weft.sweep(models="gpt2-124m", clusters="a100-8,a100-16", axis="batch=32,64", compute="estimate") as found:
        assert parquet.read_table(out).to_pylist() == found.to_dicts()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("no-such.toml",), "no such file"),
        ((str(EXAMPLE), "--models", "gpt2"), "a study file has its own axes"),
        (("--models", "gpt2-125m", "--clusters", "a100-8"), "unknown model 'gpt2-125m'"),
        (("--models", "gpt2-124m", "--clusters", "b100-8"), "unknown cluster 'b100-8'"),
        (("--models", "gpt2-124m", "--clusters", "a100-8", "--axis", "fabric=tree"), "unknown kind of fabric 'tree'"),
        (("--models", "gpt2-124m", "--clusters", "a100-8", "--axis", "precision=fp7"), "unknown precision 'fp7'"),
        (("--models", "gpt2-124m", "--clusters", "a100-8", "--axis", "batch=0"), "axes.batch"),
        (("--models", "gpt2-124m"), "plan needs cluster"),
        (("--models", "gpt2-124m", "--clusters", "a100-8", "--compute", "fly"), "unknown computation 'fly'"),
        ((*SHORT, "--axis", "colour=red"), "unknown axis of estimate 'colour'"),
        ((*SHORT, "--axis", "nic_bandwidth=fast"), "'fast' is not a quantity"),
        ((*SHORT, "--axis", "nic_latency=2 s"), "too large"),
        ((*SHORT, "--axis", "scale_up_size=3.5"), "is not a whole number"),
        ((*SHORT, "--axis", "stack=mine"), "unknown framework 'mine'"),
        ((*SHORT, "--workers", "many"), "not a number of workers"),
        ((*SHORT, "-o", "out.xlsx"), "does not end in .csv or .parquet"),
        (("show", "no-such", "--chart", "out.svg"), "needs --x"),
        (("show", "no-such"), "is not the state of a sweep"),
    ],
)
def test_bad_input_is_one_message(words: tuple[str, ...], problem: str) -> None:
    code, said = invoked(*words)
    assert code == 2
    assert problem in said


def test_the_fastest_point_is_named_for_each_model() -> None:
    """Tokens of models of different sizes do not compare."""
    axes = {"model": ["gpt2-124m", "llama-3.2-1b"], "cluster": "a100-8", "layout": "dp=8", "sequence": 512}
    with weft.sweep({"axes": axes | {"batch": [8, 64]}, "compute": "estimate"}, workers=1) as found:
        verdict = study_verdict(found.rows(), found)
        for model in axes["model"]:
            speeds = [row["tokens_per_s"] for row in found.rows() if row["model"] == model]
            assert f"{told('tokens_per_s', max(speeds))} (model {model}, batch " in verdict


def test_without_extras_one_line_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, words in (("ray", ("--workers", "ray")), ("pyarrow", ("-o", "out.parquet"))):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        code, said = invoked(*SHORT, *words)
        assert code == 2
        assert "needs the extra weft[" in said


def test_a_price_without_tokens_is_a_message_in_each_row() -> None:
    found = rows(axes=SMALL | {"usd_per_hour": 3}, compute="plan")
    assert "add --tokens" in found[0]["message"]


def test_a_plain_script_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import weft\n"
        "found = weft.sweep(models='gpt2-124m', clusters='a100-8', compute='estimate',\n"
        "                   axis=('batch=8,16,32', 'layout=dp=8'), workers=2)\n"
        "print(len([row for row in found.rows() if row['failure'] is None]))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
