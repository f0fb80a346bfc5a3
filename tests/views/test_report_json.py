"""Plan and estimate files: complete, deterministic, and readable again."""

import json
from dataclasses import replace

import pytest

from weft.commands.read import read, read_plan
from weft.errors import BadInput
from weft.estimation.iteration import estimate
from weft.estimation.report import EstimateReport, sensitivities
from weft.estimation.training import training_run
from weft.search import SPACES
from weft.search.ranking import plan


@pytest.fixture
def plan_file(small_plan, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(small_plan.to_json(), encoding="utf-8")
    return path


def test_the_file_alone_gives_the_same_plan_again(small_plan, plan_file):
    job, cluster, _ = read_plan(plan_file)
    assert plan(job, cluster, top=6).to_json() == small_plan.to_json()


def test_counts_and_parts_add_up(small_plan):
    document = json.loads(small_plan.to_json())
    assert document["schema"] == "weft.plan/1"
    assert document["considered"] == document["feasible"] + sum(document["rejected"].values())
    assert document["feasible"] <= document["evaluated"] <= document["considered"]
    for layout in (*document["layouts"], *document["pareto"]):
        assert sum(layout["time"].values()) == pytest.approx(layout["iteration_s"])
        assert sum(layout["memory"].values()) == pytest.approx(layout["memory_bytes"])
        assert layout["lower_bound_s"] <= layout["iteration_s"]
    assert document["defaults"] == ["batch of 64 sequences"]


def test_a_plan_without_layouts_is_written_but_has_no_rank(starved_plan, tmp_path):
    text = starved_plan.to_json()
    assert json.loads(text)["layouts"] == []
    assert json.loads(text)["advice"]["rejected"]["fits"] is False
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match="holds no layout"):
        read_plan(path)


def test_estimate_with_sensitivities_and_run(small_plan, tmp_path):
    job, cluster, layout = small_plan.job, small_plan.cluster, small_plan.layouts[0].layout
    found = estimate(job, cluster, [layout])[0]
    what_if = sensitivities(job, cluster, layout)
    run = training_run(found, job, cluster, tokens=1e9)
    report = EstimateReport(job=job, cluster=cluster, estimate=found, sensitivities=what_if, run=run)
    text = report.to_json()
    document = json.loads(text)
    assert document["schema"] == "weft.estimate/1"
    assert document["estimate"]["iteration_s"] == found.iteration_s
    assert [one["change"] for one in document["sensitivities"]] == [one.change for one in what_if]
    assert document["run"]["failures"] is None
    assert text.endswith("}\n")
    assert text.isascii()
    path = tmp_path / "estimate.json"
    path.write_text(text, encoding="utf-8")
    assert read(path) == report


def test_plans_read_back_equal(small_plan, starved_plan, tmp_path):
    best = small_plan.layouts[0]
    run = training_run(best, small_plan.job, small_plan.cluster, tokens=1e12, mtbf_s=1e8, usd_per_accelerator_hour=2.0)
    bounded = plan(
        small_plan.job,
        small_plan.cluster,
        space=SPACES["4d"].constrained({"x": 2, "schedule": "1f1b", "sequence_parallel": False}, {"pipeline": 4}),
        memory_margin=0.05,
        per_mesh=True,
        top=3,
    )
    for found in (
        small_plan,
        starved_plan,
        bounded,
        replace(small_plan, ranked=(replace(small_plan.ranked[0], run=run),)),
    ):
        path = tmp_path / "plan.json"
        path.write_text(found.to_json(), encoding="utf-8")
        again = read(path)
        assert again == found
        assert again.to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"weft.plan/1"', '"weft.plan/9"', "weft.plan/9"),
        ('"count": 32,\n  "tiers"', '"count": 33,\n  "tiers"', "cluster"),
        ('"schema"', '"scheme"', "schema is missing"),
        ('"considered"', '"schema"', "given twice"),
        ('"evaluated": ', '"evaluated": NaN, "more": ', "NaN"),
        ('"rank": 1,\n   "layout": {', '"rank": 1,\n   "layout": {"q": 1,', "layouts[0]"),
    ],
)
def test_changed_files_are_refused(plan_file, old, new, message):
    text = plan_file.read_text(encoding="utf-8")
    plan_file.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        read_plan(plan_file)
    assert message in str(caught.value)
    assert "plan.json" in str(caught.value)


def test_layouts_that_cannot_run_are_refused(small_plan, tmp_path):
    document = json.loads(small_plan.to_json())
    path = tmp_path / "plan.json"
    for change, message in (({"data": 1000}, "accelerators"), ({"micro_batch": 1000}, "batch-not-divisible")):
        document["layouts"][0]["layout"].update(change)
        path.write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(BadInput, match=message):
            read_plan(path)
        document = json.loads(small_plan.to_json())


@pytest.mark.parametrize("rank", [0, -1, 7])
def test_ranks_out_of_range(plan_file, rank):
    with pytest.raises(BadInput, match="choose 1 to 6"):
        read_plan(plan_file, rank)
