"""``weft bench selftest``: it holds here, it sees what is wrong, and it says where there is no GPU."""

import json
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from jsonschema import Draft202012Validator as Validator

import weft
from weft.commands.app import cli, main
from weft.commands.bench import estimated_bytes
from weft.runtime.measure import selftest
from weft.runtime.run.ranks import gpus


@pytest.mark.slow
def test_all_holds_on_one_rank(monkeypatch):
    monkeypatch.setattr("weft.commands.bench.STEPS", 1)
    done = CliRunner().invoke(cli, ["bench", "selftest", "--ranks", "1", "--format", "json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    Validator(weft.schema("selftest")).validate(found)
    assert {one["check"]: one["verdict"] for one in found["checks"]} == {"equal to one rank": "holds", "speed": "seen"}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_holds_on_every_grid(ranks, monkeypatch):
    monkeypatch.setattr("weft.commands.bench.STEPS", 1)
    done = CliRunner().invoke(cli, ["bench", "selftest", "--ranks", str(ranks), "--format", "json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert len({one["grid"] for one in found["checks"]}) == len(selftest._GRIDS[ranks])


def test_losses_that_differ_fail(monkeypatch):
    grid = SimpleNamespace(device=torch.device("cpu"), world=None)
    monkeypatch.setattr(selftest, "_losses", lambda job, grid: [1.0, 2.0])
    assert selftest._parity("x=2", grid, [1.0, 2.0]).verdict == "holds"
    assert selftest._parity("x=2", grid, [1.0, 2.0 + 1e-8]).verdict == "fails"


def test_memory_off_the_estimate_fails(monkeypatch):
    grid = SimpleNamespace(device=torch.device("cpu"), world=None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2**30)
    for estimated, verdict in ((2.0**30, "holds"), (1.2 * 2**30, "fails"), (None, "seen")):
        assert selftest._memory("x=2", grid, estimated).verdict == verdict


def test_memory_is_estimated_for_gpus_that_the_catalogue_has(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80e9))
    (layout, *_) = selftest.layouts(2, 16)
    parameters = selftest.timed_job("cuda").model.parameters
    assert 16 * parameters / 2 < estimated_bytes(layout, "h100") < 79e9


@pytest.mark.skipif(gpus() > 0, reason="there is one")
def test_where_there_is_no_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["weft", "bench", "selftest", "--gpu"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
