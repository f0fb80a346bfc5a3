"""Long runs: checkpoints while training goes on, restarts, ranks that hang."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import ranks_at_work
import torch
from models import layout_of
from ranks import grid_of
from test_training import session

import weft
from weft.checkpoints import step_folder, step_folders
from weft.commands import train_rank
from weft.errors import BadInput, WeftError
from weft.layout.spec import Layout
from weft.runtime.checkpoints import checkpoint
from weft.runtime.core.grid import Grid
from weft.runtime.run.folder import CheckpointSaving
from weft.runtime.run.ranks import run_ranks

ALONE = Layout(micro_batch=16)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def save_both_ways(layout, root):
    """The same run's checkpoints, at once and in the background, while it trains on."""
    running, root = session(grid_of(layout), "gpt"), Path(root)
    behind = CheckpointSaving(background=True, keep=2)
    for step in range(1, 4):
        running.step()
        running.save(step_folder(root / "now", step))
        stood_s = running.save(step_folder(root / "behind", step), behind)
        assert stood_s >= 0
    running.step()
    behind.wait()


def test_checkpoints_in_the_background_are_those_of_the_moment(ranks, tmp_path):
    ranks.run(save_both_ways, layout_of((2, 2, 2, 1), micro_batches=1), str(tmp_path))
    assert list(step_folders(tmp_path / "behind")) == [2, 3], "the newest two are kept"
    for step in (2, 3):
        assert contents(step_folder(tmp_path / "behind", step)) == contents(step_folder(tmp_path / "now", step))


@pytest.mark.parametrize("late", ["write", "copy"])
def test_a_late_checkpoint_is_of_its_moment(tmp_path, monkeypatch, late):
    """Training does not wait for the disk; the update of the next step waits for a copy, and its gradients do not."""
    running, passed = session(Grid.of(ALONE), "gpt"), []
    kind, name = (checkpoint._RankFile, "write") if late == "write" else (CheckpointSaving, "_copy_of")
    method, run = getattr(kind, name), running._passes.run

    def slowly(*given):
        while True not in passed:
            time.sleep(0.001)
        return method(*given)

    def noted(*given):
        loss = run(*given)
        passed.append(late == "copy")
        return loss

    monkeypatch.setattr(kind, name, slowly)
    monkeypatch.setattr(running._passes, "run", noted)
    saving = CheckpointSaving(background=True)
    wanted = [piece.values.clone() for piece in running.optimizer.pieces()]
    running.save(tmp_path / "saved", saving)
    running.step()
    passed.append(True)
    saving.wait()
    running.load(tmp_path / "saved")
    for piece, values in zip(running.optimizer.pieces(), wanted, strict=True):
        assert torch.equal(piece.values, values)


def test_a_problem_in_the_background_is_told(tmp_path):
    running, saving = session(Grid.of(ALONE), "gpt"), CheckpointSaving(background=True)
    (tmp_path / "file").touch()
    running.save(tmp_path / "file" / "saved", saving)
    with pytest.raises(BadInput, match="Not a directory"):
        saving.wait()
    saving.wait()


@pytest.mark.parametrize("background", [False, True])
def test_a_disk_that_does_not_give_back_what_was_written_is_told(tmp_path, monkeypatch, background):
    running, saving = session(Grid.of(ALONE), "gpt"), CheckpointSaving(background=background)
    write = checkpoint._RankFile.write

    def spoil(file, share):
        write(file, share)
        raw = bytearray(file._path.read_bytes())
        raw[100] ^= 1
        file._path.write_bytes(raw)

    monkeypatch.setattr(checkpoint._RankFile, "write", spoil)

    def save():
        running.save(tmp_path / "saved", saving)
        saving.wait()

    with pytest.raises(checkpoint.Damaged, match=r"0\.bin: the disk does not give back"):
        save()
    assert not (tmp_path / "saved").exists()


# Ranks that hang or die ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_collective_that_a_rank_does_not_come_to_is_named():
    with pytest.raises(WeftError, match=r"rank [01] gave up waiting in all-reduce over data: .*[Tt]imed out") as found:
        run_ranks(ranks_at_work.hang, (), 3, "cpu", 4.0)
    assert found.value.temporary


TRAINED = {"layout": "x=2", "steps": 5, "batch": 4, "sequence": 16, "save_every": 2, "device": "cpu"}


@pytest.mark.slow
def test_a_run_whose_rank_died_goes_on(tmp_path, monkeypatch, capsys):
    """In place, from its last checkpoint, with the losses of a run that did not die."""
    wanted = weft.train("tiny-gpt", **{**TRAINED, "save_every": None})
    monkeypatch.setattr(train_rank, "train_rank", ranks_at_work.train_mortally)
    out = tmp_path / "out"
    found = weft.train("tiny-gpt", **TRAINED, out=str(out), restart="on-failure", keep=1, quiet=False)
    assert (tmp_path / "died").exists()
    said = capsys.readouterr().out
    assert "continuing from" in said
    assert "step-00000002" in said
    assert [one.loss for one in found.steps] == [one.loss for one in wanted.steps]
    assert list(step_folders(out)) == [5]
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert "checkpoint_s" in json.loads(lines[-1])


CHAIN = (
    (Layout(x=2, z=2, micro_batch=8), 3),
    (Layout(data=2, zero=1, micro_batch=8), 6),
    (Layout(pipeline=2, micro_batch=4), 7),
    (Layout(y=2, z=2, micro_batch=4), 10),
    (Layout(x=2, micro_batch=16), None),
)
"""Layouts, and after how many steps their last rank is killed."""


@pytest.mark.slow
def test_a_chain_of_kills_on_other_grids_has_the_losses_of_a_run_that_was_not_disturbed(tmp_path):
    """fp64: sums in another order differ by less than 1e-10."""
    for layout, dies_at in CHAIN:
        if dies_at is None:
            run_ranks(ranks_at_work.go_on, (layout, str(tmp_path), dies_at), layout.world)
        else:
            with pytest.raises(WeftError, match="was killed by SIGKILL"):
                run_ranks(ranks_at_work.go_on, (layout, str(tmp_path), dies_at), layout.world)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, ranks_at_work.CHAINED + 1))
    wanted = session(Grid.of(ALONE), "stages")
    for record in records:
        step = wanted.step()
        assert record["loss"] == pytest.approx(step.loss, abs=1e-10)
        assert record["norm"] == pytest.approx(step.gradient_norm, abs=1e-10)


@pytest.mark.slow
def test_errors_of_the_user_are_not_tried_again(tmp_path):
    again = {**TRAINED, "steps": 2, "out": str(tmp_path / "out"), "restart": "on-failure"}
    weft.train("tiny-gpt", **again)
    with pytest.raises(BadInput, match="already done"):
        weft.train("tiny-gpt", **again)
