"""The error between two layouts of one job, by how far they differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.estimation.trust import COVERED, Known, Traits, contrast, layout_of, shipped_contrast, shipped_runs
from weft.layout.spec import Layout
from weft.layout.text import format_layout

USUAL = Traits(accelerator="a100", kind="dense")


def run(layout, error, job=0, family="one"):
    text = format_layout(layout)
    facts = {"precision": "bf16", "world": layout.world, "parameters": 10**9, "mfu": 0.4, "traits": USUAL}
    facts |= {"sequence": 4096, "head_dim": 128, "expert_width": None, "scale_up_Bps": 3e11, "scale_out_Bps": 25e9}
    return Known(run="r", family=family, job=job, layout=text, error=error, without_kind=error, unfitted=0.0, **facts)


def jobs(spread, change, count=200, seed=0):
    """Jobs of two layouts that differ by ``change``; the difference of their logarithmic errors has ``spread``."""
    draws = np.random.default_rng(seed).normal(scale=spread, size=count)
    pairs = []
    for job, draw in enumerate(draws):
        pairs += [run(Layout(data=8), 0.3, job), run(change, float(1.3 * np.exp(draw) - 1.0), job)]
    return pairs


def test_what_layouts_share_cancels() -> None:
    """Both layouts of each job are 50 % off alike."""
    found = contrast([run(layout, 0.5, job) for job in range(9) for layout in (Layout(), Layout(pipeline=2))])
    assert found.covered([Layout(), Layout(pipeline=2)]).max() < 0.01


def test_each_trait_has_its_own_error() -> None:
    known = jobs(0.2, Layout(x=2, data=4)) + [
        run(layout, error, 1000 + job)
        for job in range(200)
        for layout, error in ((Layout(data=8), 0.1), (Layout(data=8, micro_batch=2), 0.1 + 0.01 * (job % 2)))
    ]
    found = contrast(known)
    deviations = found.between([Layout(data=8), Layout(x=2, data=4), Layout(data=8, micro_batch=2)])
    assert deviations[0, 1] == pytest.approx(0.2, rel=0.25)
    assert deviations[0, 2] < 0.05


def test_the_stated_share_of_pairs_is_covered() -> None:
    known = jobs(0.1, Layout(x=4, data=2))
    found = contrast(known)
    within = np.log1p(found.covered([Layout(data=8), Layout(x=4, data=2)])[0, 1])
    sizes = [abs(np.log1p(b.error) - np.log1p(a.error)) for a, b in zip(known[::2], known[1::2], strict=True)]
    assert np.mean(np.array(sizes) <= within * (1 + 1e-9)) == pytest.approx(COVERED, abs=0.01)


def test_one_layout_a_job_tells_nothing() -> None:
    assert contrast([run(Layout(), 0.1, 1), run(Layout(x=2), 0.2, 2), run(Layout(), 0.2, 1)]) is None


LAYOUTS = st.builds(
    Layout,
    x=st.sampled_from([1, 2, 8]),
    pipeline=st.sampled_from([1, 4, 16]),
    data=st.sampled_from([1, 8]),
    micro_batch=st.sampled_from([1, 2]),
    recompute=st.sampled_from(["none", "selective", "full"]),
)


@given(st.lists(LAYOUTS, min_size=1, max_size=6, unique=True))
def test_errors_of_any_layouts(layouts) -> None:
    deviations = shipped_contrast().between(layouts)
    assert np.allclose(deviations, deviations.T)
    assert (np.diag(deviations) == 0).all()


def test_far_layouts_are_told_apart_less() -> None:
    found = shipped_contrast()
    near, far = Layout(data=4, x=4), Layout(x=2, pipeline=4, data=2, micro_batch=4)
    errors = found.covered([Layout(data=8, x=2), near, far])
    assert 0.02 < errors[0, 1] < errors[0, 2] < 0.6


@pytest.mark.slow
def test_the_error_covers_unseen_sources() -> None:
    """The error between layouts, by all sources but one, covers as many of that one's pairs as stated."""
    known = shipped_runs()
    inside = []
    for family in {one.family for one in known}:
        error = contrast([one for one in known if one.family != family])
        jobs: dict[int, dict[str, Known]] = {}
        for one in known:
            if one.family == family:
                jobs.setdefault(one.job, {}).setdefault(one.layout, one)
        for runs in jobs.values():
            bars = np.log1p(error.covered([layout_of(text) for text in runs]))
            logs = np.log1p([one.error for one in runs.values()])
            pairs = np.triu_indices(len(runs), 1)
            if len(runs) > 1:
                inside.append(np.mean(np.abs(logs[:, None] - logs)[pairs] <= bars[pairs]))
    assert contrast(known).variances == pytest.approx(shipped_contrast().variances, rel=1e-9)
    assert len(inside) > 100
    assert np.mean(inside) == pytest.approx(COVERED, abs=0.07)
