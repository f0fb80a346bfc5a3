"""Constants are found again in runs that they made, and stay at their prior where runs say nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.cluster.calibration import calibration_from, constants
from weft.validation.fit import BETWEEN, SPREADS, Parameter, _jobs, fit, fitted_parameters, kind_of, prior_tables
from weft.validation.inputs import prepare
from weft.validation.summary import Predictor

SHAPES = ((2048, 16, 8), (4096, 32, 16), (6144, 64, 24))
GEMM = Parameter(table="a100", constant="gemm_efficiency")
PASSES = Parameter(table="stack.megatron-lm-2022", constant="pass_overhead")
ATTENTION = Parameter(table="a100", constant="attention_efficiency")


@pytest.fixture
def runs(make):
    return [
        prepare(
            make(model=f"GPT {hidden}", hidden=hidden, heads=heads, layers=layers, tp=tp, micro_batch=batch,
                 global_batch=8 * batch // tp, family=f"of {tp}")
        )
        for hidden, heads, layers in SHAPES
        for tp in (1, 8)
        for batch in (1, 4)
    ]  # fmt: skip


def made_with(runs, **values):
    """The same runs, measured as constants of the prior and some others predict."""
    prior = prior_tables()
    truth = prior.replaced((one.table, one.constant, value) for one, value in values.values())
    seconds = Predictor(runs).predict(lambda *names: calibration_from(truth, *names)).seconds
    return [replace(run, measured_s=float(s)) for run, s in zip(runs, seconds, strict=True)]


def quiet(_: str) -> None:
    pass


@pytest.mark.slow
def test_finds_the_constants_that_made_the_runs(runs, monkeypatch) -> None:
    """Where little pulls them to their prior."""
    monkeypatch.setattr("weft.validation.fit.PULL", 0.03)
    measured = made_with(runs, gemm=(GEMM, 0.70), passes=(PASSES, 1.6))
    found = fit(Predictor(measured), prior_tables(), (GEMM, PASSES), quiet)
    assert found.values[GEMM] == pytest.approx(0.70, rel=0.02)
    assert found.values[PASSES] == pytest.approx(1.6, rel=0.05)
    exact = np.array([run.measured_s for run in measured])
    assert np.abs(found.seconds / exact - 1).max() < 0.01
    assert np.abs(found.without_family / exact - 1).max() < 0.03
    assert found.without_kind == pytest.approx(found.unfitted), (
        "all runs are of one kind, so that only the prior is left"
    )


@pytest.mark.slow
def test_what_runs_do_not_tell_stays(runs) -> None:
    """Megatron-LM's attention is unfused."""
    measured = made_with(runs, gemm=(GEMM, 0.70))
    found = fit(Predictor(measured), prior_tables(), (GEMM, ATTENTION), quiet)
    before = prior_tables().value("a100", "attention_efficiency")
    assert found.values[ATTENTION] == pytest.approx(before, rel=1e-6)


@pytest.mark.slow
def test_an_outlier_does_not_bend_the_fit(runs) -> None:
    measured = made_with(runs, gemm=(GEMM, 0.70))
    wrong = [replace(measured[0], measured_s=10 * measured[0].measured_s), *measured[1:]]
    found = fit(Predictor(wrong), prior_tables(), (GEMM,), quiet)
    assert found.values[GEMM] == pytest.approx(0.70, rel=0.05)


def test_every_fitted_constant_has_a_spread_and_lies_in_its_range() -> None:
    prior = prior_tables()
    ranges = {name: (low, high) for name, _, low, high, _ in constants()}
    for one in fitted_parameters(prior):
        low, high = ranges[one.constant]
        assert SPREADS[one.constant] > 0
        assert low <= prior.value(one.table, one.constant) <= high


def test_begins_with_the_prior_of_each_table(make) -> None:
    """Also where tables behind it have their own, as llm-foundry has on Hopper."""
    words = {
        "source": "MosaicML llm-foundry",
        "family": "",
        "precision": "bf16",
        "zero": 3,
        "tp": 1,
        "global_batch": 32,
    }
    runs = [prepare(make(**words, gpu=gpu, recompute="none")) for gpu in ("H100-80GB-SXM", "A100-80GB-SXM")]
    own = Parameter(table="stack.llm-foundry", constant="attention_share")
    tables, predictor = prior_tables(), Predictor(runs)
    found = fit(predictor, tables, (own,), quiet).unfitted
    assert found == pytest.approx(predictor.predict(lambda *names: calibration_from(tables, *names)).seconds)


def test_layouts_of_a_job_weigh_together_as_all_runs_do(runs) -> None:
    """A job of one layout, however often it ran, counts for nothing."""
    families = np.array([run.run.family for run in runs])
    other = replace(runs[0], layout=replace(runs[0].layout, overlap_reduce=True))
    for added, whole in ((runs[0], 0.0), (other, BETWEEN**2)):
        job, weights = _jobs([*runs, added], np.append(families, families[0]))
        assert np.bincount(job).max() == 2
        assert np.sum(weights**2) == pytest.approx(whole)
        assert (weights > 0).sum() == (2 if whole else 0)


def test_kinds_join_generation_framework_and_what_is_trained(make) -> None:
    usual = {"source": "NVIDIA NeMo 25.04", "precision": "bf16", "family": "", "recompute": "none", "tp": 4}
    names = [
        kind_of(
            prepare(make(**usual, gpu=gpu, seq=seq, model=model, layers=None, hidden=None, heads=None, vocab=None))
        )
        for gpu, seq, model in (
            ("H100-80GB-SXM", 4096, "llama-2-7b"),
            ("H200-SXM", 65536, "llama-2-7b"),
            ("B200-SXM", 4096, "mixtral-8x7b"),
        )
    ]
    assert names == ["h100 nemo dense", "h100 nemo long", "b200 nemo experts"]
