"""The folder of a run: locked, without leftovers, each step's record once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import weft
from weft.checkpoints import check_checkpoint, check_free, last_checkpoint, step_folder
from weft.errors import BadInput, MissingExtra
from weft.runtime.checkpoints.checkpoint import save
from weft.runtime.run.folder import locked, metrics_file, tensorboard_log, write_record


def test_one_run_at_a_time(tmp_path):
    folder = tmp_path / "deep" / "run"
    with locked(folder), pytest.raises(BadInput, match="another run writes there"), locked(folder):
        pass
    with locked(folder):
        pass


@pytest.mark.slow
def test_a_lock_ends_with_its_process(tmp_path):
    script = "import os, sys; from pathlib import Path; from weft.runtime.run.folder import locked\n"
    script += "with locked(Path(sys.argv[1])): os._exit(1)"
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == 1
    with locked(tmp_path):
        pass


def test_folders_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be written"), locked(tmp_path / "file" / "run"):
        pass


def test_checkpoints_that_would_be_met_are_refused(tmp_path):
    check_free(tmp_path, None)
    for step in (2, 4):
        save(step_folder(tmp_path, step), [], {})
    step_folder(tmp_path, 6).mkdir()
    check_free(tmp_path, 6)
    with pytest.raises(BadInput, match="holds checkpoints already -- give --resume"):
        check_free(tmp_path, None)
    with pytest.raises(BadInput, match=r"holds step-00000004, step-00000006, later than step 2 -- .*--out"):
        check_free(tmp_path, 2)
    assert last_checkpoint(tmp_path) == step_folder(tmp_path, 4)


def test_checkpoints_that_are_none(tmp_path):
    with pytest.raises(BadInput, match="holds no checkpoint"):
        last_checkpoint(tmp_path)
    save(step_folder(tmp_path, 2), [], {})
    check_checkpoint(step_folder(tmp_path, 2))
    for folder in (step_folder(tmp_path, 3), tmp_path):
        with pytest.raises(BadInput, match=r"is not a checkpoint -- there are .*step-00000002"):
            check_checkpoint(folder)
    with pytest.raises(BadInput, match="is not a checkpoint -- check the path"):
        check_checkpoint(tmp_path / "a" / "b")


def steps(path):
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


def record(path, after, *numbers):
    with metrics_file(path, after) as file:
        for number in numbers:
            write_record(file, {"step": number})


def test_each_step_has_one_record(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    record(path, 0, 1, 2, 3, 4, 5)
    record(path, 3, 4, 5, 6)
    assert steps(path) == [1, 2, 3, 4, 5, 6]
    record(path, 0, 1)
    assert steps(path) == [1]
    record(tmp_path / "other.jsonl", 7, 8)
    assert steps(tmp_path / "other.jsonl") == [8]
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("cut", ['{"step": 3, "lo', '{"step": 3}', '{"step"', "null"])
def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path, cut):
    path = tmp_path / "metrics.jsonl"
    record(path, 0, 1, 2)
    path.write_text(path.read_text() + cut)
    record(path, 3, 4)
    assert steps(path) == [1, 2, 4]


def test_files_that_hold_something_else(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for other in ("hello", "[" * 100_000, '{"step": ' + "9" * 5000 + "}"):
        path.write_text(f'{{"step": 1}}\n{other}\n{{"step": 2}}\n')
        with pytest.raises(BadInput, match="line 2 is not a record of a step"):
            record(path, 2)
        assert other in path.read_text()
    with pytest.raises(BadInput, match="cannot be written"):
        record(tmp_path / "metrics.jsonl" / "deeper", 0)


@pytest.mark.parametrize("text", ["hello\n", "hello", '{"step": 1}\n{"loss": 2}\n', "[1, 2]", '{"a": 1}'])
def test_a_new_run_overwrites_records_alone(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match="is not a record of a step"):
        record(path, 0, 1)
    assert path.read_text() == text


def test_a_full_device_is_named():
    with pytest.raises(BadInput, match="/dev/full: cannot be written: No space left"):
        record(Path("/dev/full"), 0, 1)


def test_numbers_are_finite(tmp_path):
    with metrics_file(tmp_path / "m", 0) as file, pytest.raises(ValueError, match="JSON"):
        write_record(file, {"loss": float("nan")})


def test_tensorboard_reads_what_was_told(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for after, losses in ((0, [3.0, 2.0, 9.0]), (2, [1.0])):
        with tensorboard_log(str(tmp_path), after) as tell:
            for step, loss in enumerate(losses, after + 1):
                tell({"step": step, "loss": loss, "mfu": None, "axes": [{"axes": ["x"], "exposed_s": 0.25}]})
    events = reader.EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["loss", "exposed_s/x"]
    assert [(one.step, one.value) for one in events.Scalars("loss")] == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_training_tells_tensorboard_every_step(tmp_path, monkeypatch):
    writer = MagicMock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=writer))
    found = weft.train("tiny-gpt", steps=2, batch=2, sequence=16, tensorboard=str(tmp_path))
    writer.assert_called_once_with(log_dir=str(tmp_path), purge_step=1)
    told = [call.args[1:] for call in writer.return_value.add_scalar.call_args_list if call.args[0] == "loss"]
    assert told == [(one.loss, one.step) for one in found.steps]


def test_tensorboard_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match="tensorboard"), tensorboard_log(str(tmp_path), 0):
        pass
