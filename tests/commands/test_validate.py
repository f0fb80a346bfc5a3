"""``weft validate`` on figures of papers: arXiv 2205.05198 table 5, 2104.04473 t. 1, 2407.21783 t. 4."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RUNS = (Path(__file__).parent / "published_runs.csv").read_text(encoding="utf-8")


@pytest.fixture
def runs(tmp_path: Path) -> str:
    file = tmp_path / "runs.csv"
    file.write_text(RUNS)
    return str(file)


DRIFT = {"k-1t": 0.125, "k-": 0.065, "sc21-": 0.05, "llama3-": 0.05}
"""Largest errors of published runs by the beginning of their names, just above what they are: Korthikanti et
al. (arXiv 2205.05198, table 5), Narayanan et al. (2104.04473, table 1), Llama 3 (2407.21783, table 4)."""


def test_published_runs_do_not_drift(weft, runs: str) -> None:
    _, out, _ = weft("validate", runs, "--format", "json")
    predicted = [one for one in json.loads(out)["runs"] if one["error"] is not None]
    assert len(predicted) == 11
    for one in predicted:
        bound = next(bound for name, bound in DRIFT.items() if one["id"].startswith(name))
        assert abs(one["error"]) <= bound, one["id"]


def test_calibration(weft, runs: str, tmp_path: Path) -> None:
    constants = tmp_path / "slow.toml"
    constants.write_text("gemm_efficiency = 0.4\n")
    _, out, _ = weft("validate", runs, "--format", "json", "--calibration", str(constants))
    assert json.loads(out)["overall"]["bias"] > 0.3
    constants.write_text("gemm_efficiency = 7\n")
    code, _, err = weft("validate", runs, "--calibration", str(constants))
    assert code == 2
    assert "gemm_efficiency = 7" in err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot(weft, runs: str, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("altair")
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    for target in (first, second):
        assert weft("validate", runs, "--plot", str(target))[0] == 0
    assert first.read_bytes() == second.read_bytes()
    assert (b"korthikanti" in first.read_bytes()) == (suffix != "png")


def test_plot_without_the_extra(refused, runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.commands.output.find_spec", lambda name: None)
    assert "--plot needs the extra weft[plot] -- pip install " in refused("validate", runs, "--plot", "runs.svg")


def test_refusals(refused, runs: str, tmp_path: Path) -> None:
    for arguments, message in (
        ((runs, "--plot", "runs.gif"), "does not end in .svg, .png or .pdf"),
        ((runs, "--plot", str(tmp_path / "no" / "a.svg")), "folder does not exist"),
        ((runs, "-o", str(tmp_path / "no" / "a")), "folder does not exist"),
        ((str(tmp_path / "absent.csv"),), "no such file"),
        ((runs, "--family", "none"), "there are: elsewhere, korthikanti, sc21"),
    ):
        assert message in refused("validate", *arguments)
