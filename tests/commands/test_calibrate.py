"""``weft validate --fit`` as a user runs it: a fit of a small table, its file, and refusals."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from weft.cluster.calibration import read_calibration
from weft.commands.app import cli
from weft.errors import BadInput

RUNS = Path(__file__).with_name("published_runs.csv")


def weft(*arguments: str):
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    constants, errors = folder / "mine.toml", folder / "errors.json"
    result = weft("validate", str(RUNS), "--fit", str(constants), "--errors", str(errors))
    assert result.exit_code == 0, result.output
    return result.stdout, constants, errors


@pytest.mark.slow
def test_constants_can_be_used(fitted) -> None:
    _, constants, _ = fitted
    tables = tomllib.loads(constants.read_text(encoding="utf-8"))
    assert tables["a100"]["provenance"] == "calibrated"
    found = read_calibration(str(constants), "a100-80gb", "megatron-lm-2022")
    assert found.gemm_efficiency == pytest.approx(tables["a100"]["gemm_efficiency"])
    again = weft("validate", str(RUNS), "--calibration", str(constants), "--format", "json")
    assert json.loads(again.stdout)["overall"]["mape"] < 0.2


@pytest.mark.slow
def test_errors_of_every_predicted_run(fitted) -> None:
    _, _, errors = fitted
    columns = json.loads(errors.read_text(encoding="utf-8"))
    del columns["contrast"]
    plain = json.loads(weft("validate", str(RUNS), "--format", "json").stdout)
    assert {len(values) for values in columns.values()} == {plain["overall"]["predicted"]}


def test_runs_of_unknown_machines(tmp_path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("id,family,model,gpu,gpus,iter_s\na,b,Mamba 3B,A100-80GB-SXM,8,1.0\n", encoding="utf-8")
    with pytest.raises(BadInput, match="no run that can be predicted"):
        weft("validate", str(table), "--fit", str(tmp_path / "mine.toml"))


def test_a_trace_gives_times_by_shape(tmp_path) -> None:
    arguments = {"External id": 1, "Input Dims": [[128, 64], [64, 256]], "Input type": ["float", "float"]}
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 9.0, "args": arguments}
    trace, constants = tmp_path / "trace.json", tmp_path / "mine.toml"
    trace.write_text(json.dumps({"traceEvents": [event, event]}), encoding="utf-8")
    result = weft("bench", "--trace", str(trace), "--calibration-output", str(constants))
    assert "(128 x 64) by (64 x 256)" in result.stdout
    measured = read_calibration(str(constants), "h100").measured
    assert measured is not None
    assert (measured.products[0].m, measured.products[0].seconds) == (128, 9e-6)
    with pytest.raises(BadInput, match="--ranks: has no effect with --trace"):
        weft("bench", "--trace", str(trace), "--ranks", "2")
