"""Steps for TensorBoard and Weights & Biases."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch")

import weft
from weft.errors import BadInput, MissingExtra
from weft.runtime.run import loggers

RECORD = {"step": 3, "loss": 2.5, "mfu": None, "axes": [{"axes": ["x"], "exposed_s": 0.25}]}
SCALARS = {"loss": 2.5, "exposed_s/x": 0.25}


class Service:
    """What stands for the package: it keeps what it is told."""

    def __init__(self):
        self.begun, self.told, self.ended = [], [], 0

    def module(self):
        made = ModuleType("wandb")
        made.init = self.init
        return made

    def init(self, **how):
        self.begun.append(how)
        return SimpleNamespace(
            id="a1b2", log=lambda values, step: self.told.append((step, values)), finish=self.finish
        )

    def finish(self):
        self.ended += 1


@pytest.fixture
def service(monkeypatch):
    found = Service()
    monkeypatch.setitem(sys.modules, "wandb", found.module())
    return found


def test_a_run_goes_on_under_its_name(service, tmp_path):
    for done in (0, 2, 0):
        with loggers.logged("wandb=mine", {"model": "m"}, done=done, out=tmp_path) as tell:
            tell(RECORD)
    assert [one["id"] for one in service.begun] == [None, "a1b2", None]
    assert {one["project"] for one in service.begun} == {"mine"}
    assert service.told == [(3, SCALARS)] * 3
    assert service.ended == 3


def test_training_tells_every_step(service, tmp_path):
    found = weft.train("tiny-gpt", steps=2, batch=2, sequence=16, log=("wandb=mine",), out=str(tmp_path))
    assert [step for step, _ in service.told] == [1, 2]
    assert [values["loss"] for _, values in service.told] == [one.loss for one in found.steps]
    assert service.begun[0]["config"]["model"] == "tiny-gpt"


def test_what_cannot_be_begun_is_said(monkeypatch, service):
    def refuse(**how):
        raise RuntimeError("no key\nmore")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with pytest.raises(BadInput, match="no key"), loggers.logged("wandb=mine", {}, done=0, out=None):
        pass
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match="wandb"), loggers.logged("wandb=mine", {}, done=0, out=None):
        pass


@pytest.mark.parametrize("text", ["", "tensorboard", "mlflow=x", "wandb="])
def test_logs_that_are_none_are_refused(text):
    with pytest.raises(BadInput, match="--log"):
        loggers.parse_log(text)


def test_tensorboard_reads_what_was_told(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for done, losses in ((0, [3.0, 2.0, 9.0]), (2, [1.0])):
        with loggers.logged(f"tensorboard={tmp_path}", {}, done=done, out=None) as tell:
            for step, loss in enumerate(losses, done + 1):
                tell({"step": step, "loss": loss})
    events = reader.EventAccumulator(str(tmp_path)).Reload()
    assert [(one.step, one.value) for one in events.Scalars("loss")] == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_offline_runs_of_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb.sdk")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    with loggers.logged("wandb=mine", {"model": "m"}, done=0, out=tmp_path) as tell:
        tell(RECORD)
    assert list((tmp_path / "wandb").glob("offline-run-*"))
    assert json.dumps((tmp_path / loggers.RUN).read_text())
