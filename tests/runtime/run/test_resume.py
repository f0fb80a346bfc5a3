"""Where runs go on: one checkpoint for all ranks, the newest that is not damaged."""

from __future__ import annotations

import pytest
from models import layout_of
from ranks import grid_of
from test_training import session

from weft.checkpoints import remove_old, step_folder, step_folders
from weft.errors import BadInput
from weft.layout.spec import Layout
from weft.runtime.core.grid import Grid
from weft.runtime.run.session import load_latest

ALONE = Layout(micro_batch=16)


def saved(root, *steps):
    """A run that saves after each step; its parameters then."""
    running = session(Grid.of(ALONE), "gpt")
    for step in range(1, max(steps) + 1):
        running.step()
        if step in steps:
            running.save(step_folder(root, step))
    return [piece.values.clone() for piece in running.optimizer.pieces()]


def spoil(folder):
    """Change one byte of the values."""
    raw = bytearray((folder / "0.bin").read_bytes())
    raw[len(raw) // 2] ^= 1
    (folder / "0.bin").write_bytes(raw)


GRID = layout_of((2, 2, 2, 1), micro_batches=1)


def load_own(root):
    """Each rank loads what it takes for the latest: rank 3 another step than the rest."""
    running = session(grid_of(GRID), "gpt")
    match = "ranks load different checkpoints: rank 0 has step 2 .*rank 3 has step 1"
    with pytest.raises(BadInput, match=match):
        running.load(step_folder(root, 1 if running.grid.rank == 3 else 2))


def test_ranks_do_not_go_on_from_different_checkpoints(ranks, tmp_path):
    saved(tmp_path, 1, 2)
    ranks.run(load_own, tmp_path)


def load_newest(root):
    running = session(grid_of(GRID), "gpt")
    found = load_latest(running, root)
    running.step()
    return running.steps_done, found.skipped


def test_a_damaged_checkpoint_is_passed_over(ranks, tmp_path):
    """By all ranks alike, with a message, and what follows may write the step anew."""
    saved(tmp_path, 1, 2)
    spoil(step_folder(tmp_path, 2))
    for done, skipped in ranks.run(load_newest, tmp_path):
        assert done == 2
        assert "0.bin: the values of" in skipped[0]
    assert list(step_folders(tmp_path)) == [1]
    assert (tmp_path / "step-00000002.damaged" / "0.bin").exists()


def test_what_a_crash_cut_short_is_passed_over(tmp_path):
    saved(tmp_path, 1, 2, 3)
    (step_folder(tmp_path, 3) / "tensors.json").write_text("{")
    (step_folder(tmp_path, 2) / "0.bin").unlink()
    running = session(Grid.of(ALONE), "gpt")
    found = load_latest(running, tmp_path)
    assert (running.steps_done, len(found.skipped)) == (1, 2)


def test_no_good_checkpoint_is_left(tmp_path):
    saved(tmp_path, 1)
    spoil(step_folder(tmp_path, 1))
    with pytest.raises(BadInput, match=r"every checkpoint is damaged; the newest: .*0.bin: the values"):
        load_latest(session(Grid.of(ALONE), "gpt"), tmp_path)
    assert list(step_folders(tmp_path)) == [1], "nothing is renamed"


def test_a_checkpoint_of_another_run_is_not_passed_over(tmp_path):
    saved(tmp_path, 1, 2)
    with pytest.raises(BadInput, match="was trained with seed = 3, this run has 4"):
        load_latest(session(Grid.of(ALONE), "gpt", seed=4), tmp_path)


def test_old_checkpoints_are_removed(tmp_path):
    saved(tmp_path, 1, 2, 3)
    assert [folder.name for folder in remove_old(tmp_path, 2)] == ["step-00000001"]
    assert list(step_folders(tmp_path)) == [2, 3]
    assert remove_old(tmp_path, 5) == []
