"""Comparisons against what they are made of: estimates, prices, and prices at which both cost the same."""

import json
from functools import cache

import pytest

import weft
from weft.cluster import resolve
from weft.commands.compare import _of_result
from weft.errors import BadInput, WeftError
from weft.estimation import estimate
from weft.model import resolve_job
from weft.search.comparison import Comparison, ExplainedLayout, causes
from weft.views.comparison import comparison_verdict

LAYOUTS = ("tp=1", "tp=2,sp", "tp=8", "pp=4,vpp=2,schedule=interleaved", "fsdp=8", "cp=2", "tp=2,pp=2,recompute=full")
PAIRS = [(one, LAYOUTS[(at + step) % len(LAYOUTS)]) for step in (1, 3) for at, one in enumerate(LAYOUTS)]
"""Every layout is twice the first and twice the second."""


@cache
def held(first: str, second: str, cluster: str = "h100-64") -> Comparison:
    return weft.compare("llama-3.1-8b", cluster, layout=(first, second))


@pytest.mark.slow_but(7)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_parts_add_up_and_have_reasons(pair: tuple[str, str]):
    found = held(*pair)
    one, other = found.sides
    (difference,) = found.differences
    assert sum(part.before for part in difference.time) == pytest.approx(one.iteration_s)
    assert sum(part.after for part in difference.time) == pytest.approx(other.iteration_s)
    assert sum(part.after for part in difference.memory) == pytest.approx(other.estimate.memory_bytes)
    assert difference.ratio == pytest.approx(other.iteration_s / one.iteration_s)
    for part in (*difference.time, *difference.memory):
        if abs(part.difference) > 0.01 * one.iteration_s and part.part != "reserve_bytes":
            assert part.why, part.part


def test_plan_and_comparison_state_one_error_of_a_difference():
    plan = weft.plan("llama-3.1-8b", "h100-64", top=3, order="time")
    (difference,) = weft.compare(
        "llama-3.1-8b", "h100-64", layout=[e.layout_text for e in plan.layouts[:2]]
    ).differences
    assert difference.error == pytest.approx(plan.ranked[1].layout_error)
    assert difference.tied == plan.ranked[1].tied


@pytest.mark.slow
def test_prices_at_which_both_cost_the_same():
    assert held("tp=1", "tp=8").differences[0].break_even_usd_per_hour is None  # one machine at one price
    found = weft.compare("llama-3.1-8b", "h100-64", "h200-64", layout="tp=2", usd_per_hour=("2", "3"))
    usd = found.differences[0].break_even_usd_per_hour
    equal = weft.compare("llama-3.1-8b", "h100-64", "h200-64", layout="tp=2", usd_per_hour=("2", str(usd)))
    first, second = (run.usd for run in equal.runs)
    assert first == pytest.approx(second)


@pytest.mark.slow_but(7)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_sides_tie_inside_the_error(pair: tuple[str, str]):
    (difference,) = held(*pair).differences
    assert difference.error is not None
    assert difference.tied == (max(difference.ratio, 1 / difference.ratio) <= 1 + difference.error)


@pytest.mark.parametrize(
    ("layouts", "start"),
    [
        (("tp=8", "tp=1"), "Only A fits in memory. If all did: "),
        (("tp=1", "dp=64"), "No side fits in memory. If all did: "),
        (("tp=8", "tp=4", "tp=1"), "C does NOT fit in memory. B, the fastest of 2 that fit, "),
    ],
)
def test_the_verdict_begins_with_what_fits(layouts: tuple[str, ...], start: str):
    found = weft.compare("llama-3.1-8b", "h100-64", layout=layouts)
    assert comparison_verdict(found).startswith(start)


def test_clusters_have_independent_errors_and_networks_unknown_ones():
    (difference,) = weft.compare("llama-3.1-8b", "h100-64", "h200-64", layout="tp=2").differences
    bars = [
        weft.estimate("llama-3.1-8b", cluster, "tp=2").estimate.error.error  # type: ignore[union-attr]
        for cluster in ("h100-64", "h200-64")
    ]
    assert difference.error == pytest.approx((bars[0] ** 2 + bars[1] ** 2) ** 0.5)  # type: ignore[operator]


def test_work_and_rate_multiply_to_the_time():
    job, cluster = resolve_job("llama-3.1-8b"), resolve("h100-64")
    found = weft.estimate(job, cluster, "tp=2,recompute=full")
    traced = ExplainedLayout.of(job, cluster, found.layout, None, "megatron-core")
    computing = sum(
        part.value for part in found.estimate.time if part.name in ("forward_s", "backward_s", "recompute_s")
    )
    assert traced.flops * job.recipe.tokens / traced.rate_flops == pytest.approx(computing)
    plain = ExplainedLayout.of(job, cluster, weft.estimate(job, cluster, "tp=2").layout, None, "megatron-core")
    assert any("recompute none -> full" in one for one in causes("recompute_s", plain, traced))


def test_simulated_sides_say_what_the_network_adds():
    found = weft.compare("llama-3.1-8b", "h100-64", layout="tp=2,pp=2", fabric=("rail-optimized", "fat-tree"))
    network = found.differences[0].time[-1]
    assert network.part == "network_s"
    for side, value in zip(found.sides, (network.before, network.after), strict=True):
        assert side.simulated_s == pytest.approx(side.estimate.iteration_s + value)
    alone = weft.simulate("llama-3.1-8b", "h100-64", "tp=2,pp=2", fabric="fat-tree")
    assert found.sides[1].simulated_s == alone.iteration_s  # type: ignore[union-attr]
    assert found.differences[0].error is None


@pytest.mark.parametrize(
    ("clusters", "layouts", "problem"),
    [
        (("h100-64", "h100-1000"), (), "h100-1000: none of .* layouts is feasible .*--batch 500 would work"),
        (("h100-64",), ("tp=8", "tp=64"), "tp=64: layout .heads-not-divisible."),
        (("h100-64",), ("tp=8", "tp=0"), "tp=0: --layout"),
    ],
)
def test_the_side_that_cannot_be_estimated_is_named(clusters, layouts, problem):
    with pytest.raises(WeftError, match=problem) as refused:
        weft.compare("llama-3.1-8b", *clusters, layout=layouts)
    assert refused.value.exit_code == (2 if layouts else 3)


def test_results_compare_as_files_and_as_objects(tmp_path):
    plan, one = weft.plan("gpt2-124m", "a100-8", top=1), weft.estimate("gpt2-124m", "a100-8", "x=2")
    plan.save(tmp_path / "a.json")
    one.save(tmp_path / "b.json")
    of_files = weft.compare(str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    of_objects = weft.compare(plan, one)
    assert of_files.differences[0].time == of_objects.differences[0].time
    assert [side.label for side in of_files.sides] == ["a", "b"]
    document = json.loads(of_files.to_json())
    assert document["schema"] == "weft.comparison/1"
    assert len(document["sides"]) == 2
    assert set(of_files.to_dicts()[0]) == set(Comparison.COLUMNS)


@pytest.mark.parametrize(
    ("subjects", "options", "problem"),
    [
        (("llama-3.1-8b",), {}, "MODEL and CLUSTER are needed"),
        (("llama-3.1-8b", "h100-64"), {}, "1 side"),
        (("llama-3.1-8b", "h100-64"), {"layout": tuple(["tp=1"] * 9)}, "9 sides"),
        (
            ("llama-3.1-8b", "h100-64", "h200-64"),
            {"layout": "tp=2", "usd_per_hour": ("1", "2", "3")},
            "3 prices for 2 sides",
        ),
        (("llama-3.1-8b", "h100-64", "h200-64"), {"layout": "tp=2", "usd_per_hour": ("-1",)}, "--usd-per-hour"),
        (("llama-3.1-8b", "h100-64", "h200-64"), {"routing": "spray"}, "needs --fabric"),
        (("llama-3.1-8b", "h100-64", "h200-65"), {}, "65"),
    ],
)
def test_what_cannot_be_compared(subjects, options, problem):
    with pytest.raises(BadInput, match=problem):
        weft.compare(*subjects, **options)


def test_a_report_is_compared_by_the_constants_that_it_was_made_with() -> None:
    report = weft.estimate("llama-3.1-8b", "tpu-v5p-16", layout="dp=16")
    side = _of_result(report, "")
    again = estimate(side.job, side.cluster, [report.layout], side.constants)[0]
    assert side.stack == "maxtext"
    assert again.iteration_s == report.estimate.iteration_s
