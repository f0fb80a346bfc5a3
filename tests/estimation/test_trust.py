"""The error that is stated with an estimate: of the most similar measured runs that are enough."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.catalogue import load
from weft.estimation import trust
from weft.estimation.trust import (
    COVERED,
    FEWEST,
    FIGURES,
    GROWTH,
    Known,
    Published,
    Traits,
    best_published,
    covered,
    error_bar,
    grown,
    shipped_runs,
    widened_bar,
)
from weft.model import resolve_job

USUAL = Traits(accelerator="a100", kind="dense")


def known(error=0.1, family="one", unfitted=0.3, mfu=0.4, world=8, precision="bf16", parameters=7 * 10**10, **changes):
    facts = {"layout": "data=8", "precision": precision, "world": world, "mfu": mfu, "parameters": parameters}
    facts |= {"sequence": 4096, "head_dim": 128, "expert_width": None, "scale_up_Bps": 3e11, "scale_out_Bps": 25e9}
    traits = replace(USUAL, **changes)
    return Known(
        run="r", family=family, job=0, traits=traits, error=error, without_kind=error, unfitted=unfitted, **facts
    )


def both(error=0.1, **changes):
    """Enough runs of two sources."""
    return [known(error, family=family, **changes) for family in ("one", "two") for _ in range(FEWEST // 2)]


def test_the_nearest_circle_that_has_enough() -> None:
    near, far = both(0.05), both(0.5, accelerator="h100")
    assert error_bar(USUAL, near + far).error == 0.05
    wider = error_bar(USUAL, near[1:] + far)
    assert (wider.error, wider.runs, wider.sources) == (0.5, 2 * FEWEST - 1, 2)
    assert "any accelerator" in wider.alike


def test_figures_outside_what_was_measured_widen_the_bar_and_are_named() -> None:
    job, cluster = resolve_job("llama-3.1-8b"), load("h100-64")
    plain = widened_bar(job, cluster)
    assert plain == error_bar(Traits.of(job, cluster))
    assert plain.outside == ()
    long = widened_bar(replace(job, recipe=replace(job.recipe, sequence=10**8)), cluster)
    assert long.outside == ("sequence 100,000,000 (at most 524,288 measured)",)
    assert long.error == pytest.approx(grown(plain.error, np.log2(10**8 / 524_288)))
    short = widened_bar(replace(job, recipe=replace(job.recipe, sequence=1)), cluster)
    assert short.outside == ("sequence 1 (at least 1,024 measured)",)
    slow = replace(cluster, tiers=(replace(cluster.tiers[0], bandwidth_Bps=1e9), *cluster.tiers[1:]))
    assert widened_bar(job, slow).outside == ("scale-up bandwidth 1 GB/s (at least 450 GB/s measured)",)
    assert widened_bar(job, slow).error == pytest.approx(grown(plain.error, np.log2(450)))
    block = replace(job.model.runs[0].block, attention=replace(job.model.kinds[0].attention, head_dim=1))
    narrow = replace(job, model=replace(job.model, runs=(replace(job.model.runs[0], block=block),)))
    assert "head dimension 1 (at least 128 measured)" in widened_bar(narrow, cluster).outside
    assert (plain.runs, plain.sources, plain.alike) == (long.runs, long.sources, long.alike)


@given(sequence=st.integers(1, 10**8), factor=st.floats(1.0, 100.0))
def test_farther_outside_is_never_surer(sequence, factor) -> None:
    job, cluster = resolve_job("llama-3.1-8b"), load("h100-64")
    farther = max(1, int(sequence / factor)) if sequence < 1024 else int(sequence * factor)
    jobs = [replace(job, recipe=replace(job.recipe, sequence=tokens)) for tokens in (sequence, farther)]
    errors = [widened_bar(each, cluster).error for each in jobs]
    assert errors[0] <= errors[1]
    slower = replace(cluster, tiers=(replace(cluster.tiers[0], bandwidth_Bps=1e9), *cluster.tiers[1:]))
    assert widened_bar(jobs[0], slower).error > errors[0]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("growth", "share"), [(GROWTH, 0.955), (0.0, 0.88)])
def test_the_bar_grows_as_errors_of_runs_outside_the_other_sources_range_do(growth, share, monkeypatch) -> None:
    """Every source's runs against bar and ranges of the others."""
    monkeypatch.setattr(trust, "GROWTH", growth)
    runs, hits = shipped_runs(), []
    for family in sorted({one.family for one in runs}):
        others = [one for one in runs if one.family != family]
        own = [one for one in runs if one.family == family]
        for traits in dict.fromkeys(one.traits for one in own):
            bar = error_bar(traits, others).error
            same = [one for one in others if one.traits == traits]
            similar = same or [one for one in others if one.traits.kind == traits.kind]
            for one in own:
                beyond = trust.outside({name: getattr(one, name) for name in FIGURES}, similar)
                if one.traits == traits and beyond:
                    far = sum(doublings for *_, doublings in beyond)
                    hits.append((family, abs(one.error) <= grown(bar, far)))
    assert len(hits) > 250
    counts = Counter(family for family, _ in hits)
    weights = {family: 1 / np.sqrt(count) for family, count in counts.items()}
    whole = sum(weights[family] for family, _ in hits)
    assert sum(weights[family] for family, hit in hits if hit) / whole == pytest.approx(share, abs=0.02)


def test_one_source_is_not_enough() -> None:
    alone = [known(0.05) for _ in range(100)]
    other = [known(0.4, family="two", accelerator="h100") for _ in range(30)]
    found = error_bar(USUAL, alone + other)
    assert (found.error, found.sources) == (0.4, 2)


def test_sources_weigh_the_same_whatever_their_runs() -> None:
    """Of nine sources that of rank (9 + 1) 0.8 by their own errors, which four of five of their runs are within."""
    runs = [known(place / 100, family=f"{place}") for place in range(1, 10) for _ in range(4 * place)]
    runs += [known(0.9, family=f"{place}") for place in range(1, 10) for _ in range(place)]
    assert error_bar(USUAL, runs).error == 0.08
    assert error_bar(USUAL, [one for one in runs if one.family in "123"]).error == 0.03


def test_a_kind_without_runs_takes_the_larger_error_of_all_kinds() -> None:
    runs = both(0.05) + both(0.1, kind="experts")
    found = error_bar(replace(USUAL, kind="state-space"), runs)
    assert (found.error, found.runs, found.alike) == (0.3, len(runs), "models of any kind, none of them state-space")
    own = both(0.4, kind="state-space")
    assert error_bar(replace(USUAL, kind="state-space"), runs + own).error == 0.4
    nobody = replace(USUAL, kind="state-space", accelerator="nobody's")
    assert error_bar(nobody, runs).error == 0.3


def test_without_runs_on_the_accelerator_the_larger_error_counts() -> None:
    found = error_bar(replace(USUAL, accelerator="nobody's"), both(0.05) + both(0.1, kind="experts"))
    assert (found.error, found.runs) == (0.3, FEWEST)
    assert error_bar(replace(USUAL, accelerator="nobody's"), both(0.4)).error == 0.4
    assert "none of them on nobody's" in found.alike


@given(st.lists(st.tuples(st.floats(-0.9, 3.0), st.sampled_from("abc")), min_size=FEWEST, max_size=60))
def test_the_stated_share_is_within_it(runs) -> None:
    errors, families = np.array([error for error, _ in runs]), np.array([family for _, family in runs])
    found = error_bar(USUAL, [known(error, family=family) for error, family in runs])
    assert found.runs == len(runs)
    inside = [np.mean(np.abs(errors[families == name]) <= found.error) for name in set(families)]
    assert np.mean(np.array(inside) >= COVERED - 1e-9) >= COVERED


def test_how_many_runs_the_bars_of_the_others_cover() -> None:
    runs = [known(0.1), known(0.3), *(known(0.2, family=name) for name in ("two", "three") for _ in range(9))]
    assert covered(runs) == {"one": 0.5, "three": 1.0, "two": 1.0}


def test_the_best_published_run_is_alike() -> None:
    job, cluster = resolve_job("llama-3.1-70b"), load("a100-256")
    alike, better = known(mfu=0.4, world=16), known(mfu=0.5, world=4096)
    others = [known(mfu=0.9, world=4097), known(mfu=0.9, world=256, kind="experts")]
    others += [known(mfu=0.8, world=256, parameters=10**10), replace(known(mfu=0.8), sequence=1024)]
    elsewhere = [known(mfu=0.95, precision="fp8"), known(mfu=0.95, accelerator="h100")]
    assert best_published(job, cluster, [alike, better, *others, *elsewhere]) == Published(
        alike=better, highest=others[0]
    )
    assert best_published(job, cluster, [alike, *others]).alike == alike
    assert best_published(job, cluster, others).alike is None
    assert best_published(job, cluster, elsewhere) == Published(alike=None, highest=None)
    assert 0.3 < best_published(job, load("h100-512")).alike.mfu < 0.6


def test_fine_experts_are_not_compared_with_coarse_ones() -> None:
    job, cluster = resolve_job("mixtral-8x7b"), load("a100-64")
    coarse, fine = (
        replace(known(mfu=mfu, kind="experts", parameters=job.model.parameters), expert_width=width)
        for mfu, width in ((0.3, 16384), (0.2, 2048))
    )
    assert best_published(job, cluster, [coarse, fine]).alike == coarse
    assert best_published(job, cluster, [fine]).alike is None


def test_what_is_shipped() -> None:
    runs = shipped_runs()
    assert len(runs) > 1000
    assert len({one.run for one in runs}) == len(runs)
    assert {one.traits.accelerator for one in runs} >= {"a100", "h100", "b200", "gb200", "gb300", "v100"}
    assert error_bar(USUAL).sources > 1


@pytest.mark.parametrize("accelerator", ["mi250x", "nobody's"])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_every_estimate_has_a_bar(accelerator, kind) -> None:
    wide = error_bar(replace(USUAL, accelerator=accelerator, kind=kind)).error
    assert wide is not None
    seen = {one.traits.accelerator for one in shipped_runs()}
    assert accelerator not in seen
    assert wide == max(wide, *(error_bar(Traits(accelerator=name, kind=kind)).error for name in seen))
