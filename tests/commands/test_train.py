"""``weft train`` as a user runs it: results, files, refusals."""

import errno
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

from weft.commands.app import cli
from weft.errors import BadInput, WeftError
from weft.model import catalogue

torch = pytest.importorskip("torch")

SMALL = ["--batch", "4", "--sequence", "32"]
PROGRAM = [sys.executable, "-c", "from weft.commands.app import main; main()"]


@pytest.fixture(autouse=True)
def one_thread():
    """Tests beside each other leave no core for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weft(*arguments: str) -> str:
    """What the program prints; expected errors are raised."""
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def losses(path) -> list[float]:
    return [json.loads(line)["loss"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_step_line_per_step_and_metrics(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    output = weft("train", "tiny-llama", *SMALL, "--steps", "3", "--out", str(tmp_path))
    assert [line.split()[0] for line in output.splitlines()[-5:-2]] == ["1/3", "2/3", "3/3"]
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        assert record["tokens_per_s"] == pytest.approx(4 * 32 / record["seconds"])
        assert record["mfu"] is None
        assert record["axes"] == []


def test_resumed_equals_uninterrupted(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    common = ["train", "tiny-gpt", *SMALL]
    weft(*common, "--steps", "4", "--out", str(whole), "--save-every", "2")
    shutil.copytree(whole / "step-00000002", parts / "step-00000002")
    output = weft(*common, "--steps", "4", "--out", str(parts), "--resume")
    assert "Resumed from" in output
    assert losses(parts / "metrics.jsonl") == losses(whole / "metrics.jsonl")[2:]
    assert (parts / "step-00000004" / "weft.json").exists()


@pytest.mark.slow
def test_two_ranks_issue_what_was_predicted(tmp_path, capfd):
    out, alone = tmp_path / "out", tmp_path / "alone"
    weft(*("train", "tiny-llama", *SMALL, "--layout", "x=2", "--steps", "3", "--compare"), "--out", str(out))
    assert "equal to the prediction on 2 of 2 ranks" in capfd.readouterr().out.replace("\n", " ")
    weft("train", "tiny-llama", *SMALL, "--steps", "3", "--out", str(alone))
    assert losses(out / "metrics.jsonl") == pytest.approx(losses(alone / "metrics.jsonl"), rel=1e-5)


@pytest.mark.slow
def test_a_plan_and_a_described_machine(tmp_path):
    plan, machine = tmp_path / "plan.json", tmp_path / "machine.toml"
    machine.write_text(
        'name = "one core"\naccelerator = {name = "core", fp32 = "50 GFLOP/s", bf16 = "50 GFLOP/s",'
        ' memory = "8 GB", memory_bandwidth = "10 GB/s", scale_up_size = 1,'
        ' scale_up_bandwidth = "1 GB/s", nic_bandwidth = "1 GB/s", host_bandwidth = "10 GB/s",'
        ' multiprocessors = 1, power = "50 W"}\ncount = 1\n',
        encoding="utf-8",
    )
    weft("plan", "tiny-llama", str(machine), *SMALL, "--format", "json", "-o", str(plan))
    output = weft("train", "--plan", str(plan), "--steps", "3", "--compare")
    assert "times are not compared with the plan's" in output.replace("\n", " ")
    output = weft("train", "--plan", str(plan), "--steps", "3", "--compare", "--cluster", str(machine))
    step = next(line for line in output.splitlines() if line.startswith("  step "))
    assert len(step.split()) == 6
    assert "%" in output.split("tokens/s")[1]


def test_experts_are_compared_with_the_estimate():
    small = ("--batch", "1", "--sequence", "16", "--steps", "1")
    output = weft("train", "tiny-mixtral", *small, "--expert-balance", "0", "--compare", "--cluster", "h100-1")
    step = next(line for line in output.splitlines() if line.startswith("  step "))
    assert len(step.split()) == 6


@pytest.mark.slow
def test_dry_run_traces_both_ends():
    output = weft("train", "llama-3.2-1b", "--layout", "x=4,z=8,pp=2,mbs=1", "--dry-run", "--batch", "32")
    assert output.startswith("Collectives are equal to the prediction on ranks 0 and 32 of 64 ")
    assert "Rank 32 (pipeline stage 1)" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny-gpt", "--layout", "x=3"], "8 key-value heads .* tp = 3"),
        (["deepseek-v3"], "latent attention"),
        (["--from", "missing"], "missing: no such folder"),
        (["tiny-gpt", "--from", "."], "--from already has a model"),
        (["tiny-gpt", "--eval-batches", "2"], "--eval-batches: needs --eval-every"),
        (["tiny-gpt", "--precision", "fp16"], "--precision: fp16: the runtime computes in fp32, tf32, bf16"),
        (["tiny-gpt", "--batch", "7", "--layout", "data=2"], "global batch 7, micro-batch 1 .* dp 2 = 2"),
        (["tiny-gpt", "--sequence", "512"], "256 learned positions"),
        (["tiny-gpt", "--expert-balance", "1"], "--expert-balance: tiny-gpt has no experts -- drop it"),
        (["tiny-gpt", "--resume"], "--resume: needs --out"),
        (["tiny-gpt", "--data", "missing.txt"], "no such file"),
        (["tiny-gpt", "--save-every", "2"], "--save-every: needs --out"),
        (["tiny-gpt", "--rank", "1"], "--rank: needs --plan"),
        (["tiny-gpt", "--compare", "--calibration", "c.toml"], "--calibration needs --cluster or --plan"),
        (["tiny-gpt", "--cluster", "c.toml", "--calibration", "c.toml"], "--calibration: needs --compare"),
        (["tiny-gpt", "--out", "o", "--resume", "--resume-from", "o"], "--resume and --resume-from exclude"),
        (["tiny-gpt", "--resume-from", "missing"], "missing: is not a checkpoint"),
        *(
            (["tiny-gpt", "--dry-run", *more], f"{more[0]} has no effect with --dry-run")
            for more in (["--out", "o"], ["--steps", "21"], ["--profile", "p.json"], ["--rate", "1"])
        ),
        (["tiny-gpt", "--clip", "nan"], "clip: nan is out of range"),
        (["tiny-gpt", "--clip", "inf"], "clip: inf is out of range"),
        (["tiny-gpt", "--rate", "nan"], "rate: nan is out of range"),
        (["--plan", "missing.json"], "no such file"),
        (["--steps", "1"], "one MODEL needed"),
    ],
)
def test_refusals_name_what_to_change(arguments, message):
    with pytest.raises(WeftError, match=message):
        weft("train", *arguments)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("verb", ["train tiny-gpt", "train tiny-gpt --dry-run", "bench --ranks 2"])
def test_without_pytorch_the_extra_is_named(verb):
    script = "import sys; sys.modules['torch'] = None; from weft.commands.app import main; main()"
    done = subprocess.run([sys.executable, "-c", script, *verb.split()], capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: weft.runtime needs the extra weft[runtime] -- pip install ")


def test_other_data_under_the_same_name_is_refused(tmp_path):
    text, moved, out = tmp_path / "text.txt", tmp_path / "moved.txt", tmp_path / "out"
    text.write_text("abc " * 200, encoding="utf-8")
    common = ["train", "tiny-gpt", *SMALL, "--out", str(out)]
    weft(*common, "--data", str(text), "--steps", "1")
    text.rename(moved)
    weft(*common, "--data", str(moved), "--steps", "2", "--resume")
    text.write_text("abd " * 200, encoding="utf-8")
    with pytest.raises(BadInput, match="was trained on other data"):
        weft(*common, "--data", str(text), "--steps", "3", "--resume")


def test_what_cannot_be_written_or_is_read_is_said_before_training(tmp_path):
    text, other = tmp_path / "text.txt", tmp_path / "folder" / ".." / "text.txt"
    text.write_text("abc " * 200, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    own = "--profile would overwrite a file of this run"
    for options, told in (
        (("--out", text), "is not a folder"),
        (("--profile", tmp_path / "none" / "p.json"), "cannot be written there"),
        (("--data", text, "--profile", text), own),
        (("--data", text, "--profile", other), own),
    ):
        with pytest.raises(BadInput, match=told):
            weft("train", "tiny-gpt", *SMALL, *map(str, options))
    assert text.read_text(encoding="utf-8").startswith("abc")


def test_gradients_are_reduced_in_two_bytes_whatever_is_computed():
    for precision in ("fp32", "bf16"):
        options = ["--precision", precision, "--reduce-bf16", "--layout", "x=2,z=2,data=2", "--batch", "8"]
        assert "are equal to the prediction" in weft("train", "tiny-llama", *options, "--dry-run")


@pytest.mark.slow
def test_a_folder_with_checkpoints_is_not_begun_anew(tmp_path):
    common = ["train", "tiny-gpt", *SMALL, "--steps", "1", "--out", str(tmp_path)]
    weft(*common)
    with pytest.raises(BadInput, match=r"holds checkpoints already .* --resume"):
        weft(*common)
    with pytest.raises(BadInput, match="1 step already done"):
        weft(*common, "--resume")
    with pytest.raises(BadInput, match="seed = 0, this run has 5"):
        weft(*common[:-4], "--steps", "2", "--out", str(tmp_path), "--resume", "--seed", "5")


# Ends of runs -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_diverges_saves_nothing(tmp_path, monkeypatch):
    """Good checkpoints stay the last ones, and metrics hold numbers only."""
    out = tmp_path / "out"
    common = ["train", "tiny-gpt", *SMALL, "--out", str(out)]
    weft(*common, "--steps", "2")
    from weft.runtime.run.session import Session

    load = Session.load

    def broken(self, folder):
        state = load(self, folder)
        self.flat.owned[0].leaf.data.fill_(float("inf"))
        return state

    monkeypatch.setattr(Session, "load", broken)
    with pytest.raises(BadInput, match="step 3: the loss is nan") as stopped:
        weft(*common, "--steps", "6", "--resume", "--save-every", "1")
    assert stopped.value.exit_code == 2
    assert sorted(path.name for path in out.glob("step-*")) == ["step-00000002"]
    assert len(losses(out / "metrics.jsonl")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["x=1", pytest.param("x=2", marks=pytest.mark.slow)])
def test_nobody_reads_on(layout):
    arguments = ["train", "tiny-gpt", *SMALL, "--steps", "200", "--layout", layout]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*PROGRAM, *arguments], **pipes) as run:
        assert "858,880 parameters" in run.stdout.readline()
        run.stdout.close()
        assert run.stderr.read() == ""
        assert run.wait(300) in (1, 141)


def test_metrics_into_a_closed_pipe_are_no_bad_input(tmp_path, monkeypatch):
    def broken(file, record):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("weft.commands.train_rank.write_record", broken)
    result = CliRunner().invoke(cli, ["train", "tiny-gpt", *SMALL, "--out", str(tmp_path / "m")])
    assert result.exit_code == 1
    assert "Error" not in result.output


@pytest.mark.slow
def test_the_trace_comes_after_the_last_checkpoint(tmp_path, monkeypatch):
    profile, out = tmp_path / "profile.json", tmp_path / "out"

    def fail(self, path):
        assert (out / "step-00000001" / "weft.json").exists()
        raise RuntimeError("no space")

    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", fail)
    with pytest.raises(BadInput, match="cannot be written: no space"):
        weft("train", "tiny-gpt", *SMALL, "--steps", "1", "--profile", str(profile), "--out", str(out))
    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", lambda self, path: None)
    with pytest.raises(BadInput, match=r"cannot be written: .*No such file"):
        weft("train", "tiny-gpt", *SMALL, "--steps", "1", "--profile", str(profile))


# Going on -----------------------------------------------------------------------------------------


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    from weft.runtime.run.folder import locked

    with locked(tmp_path), pytest.raises(BadInput, match="another run writes there"):
        weft("train", "tiny-gpt", *SMALL, "--out", str(tmp_path))


@pytest.mark.slow
def test_what_has_changed_is_said_and_metrics_hold_each_step_once(tmp_path):
    common = ["train", "tiny-gpt", *SMALL, "--out", str(tmp_path)]
    weft(*common, "--steps", "2")
    with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 3, "loss": 9.0}\n{"step": 4, "lo')
    output = weft(*common, "--steps", "4", "--rate", "0.0001", "--resume")
    assert "Changed since the checkpoint: rate 0.0003 -> 0.0001" in output
    assert "Changed since the checkpoint: steps 2 -> 4 (where the cosine ends" in output
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    with pytest.raises(BadInput, match=r"precision.* -- give the same --precision"):
        weft(*common, "--steps", "6", "--precision", "bf16", "--resume")


@pytest.mark.slow
def test_going_on_from_an_earlier_checkpoint(tmp_path):
    whole, branch = tmp_path / "whole", tmp_path / "branch"
    common = ["train", "tiny-gpt", *SMALL, "--steps", "4"]
    weft(*common, "--out", str(whole), "--save-every", "2")
    early = str(whole / "step-00000002")
    with pytest.raises(BadInput, match="holds step-00000004, later than step 2 -- give another --out"):
        weft(*common, "--out", str(whole), "--resume-from", early)
    with pytest.raises(BadInput, match=r"is not a checkpoint -- there are .*step-00000002, .*step-00000004"):
        weft(*common, "--out", str(branch), "--resume-from", str(whole / "step-00000003"))
    weft(*common, "--out", str(branch), "--resume-from", early)
    assert losses(branch / "metrics.jsonl") == losses(whole / "metrics.jsonl")[2:]


# Predictions --------------------------------------------------------------------------------------


def one_more(*arguments, **more):
    from weft.layout.step import Issue

    return Counter([Issue("all-reduce", ("x",), 1, 4)])


@pytest.mark.slow
def test_other_collectives_than_predicted_are_a_failure(monkeypatch):
    monkeypatch.setattr("weft.commands.train_rank.step_collectives", one_more)
    result = CliRunner().invoke(cli, ["train", "tiny-gpt", *SMALL, "--steps", "1", "--compare"])
    assert "NOT equal to the prediction on 1 of 1 rank" in result.output.replace("\n", " ")
    assert result.exception.exit_code == 1
    monkeypatch.setattr("weft.layout.step.step_collectives", one_more)
    result = CliRunner().invoke(cli, ["train", "tiny-gpt", "--dry-run"])
    assert "NOT equal to the prediction" in result.output
    assert result.exception.exit_code == 1


@pytest.mark.slow
def test_a_plan_names_what_can_be_trained(tmp_path):
    from weft.commands.read import read_plan
    from weft.layout.check import check_runnable

    plan, runnable = tmp_path / "plan.json", tmp_path / "runnable.json"
    asked = [
        "plan",
        "tiny-llama",
        "h100-8",
        *SMALL,
        "--variants",
        "--space",
        "wide",
        "--top",
        "50",
        "--format",
        "json",
    ]
    weft(*asked, "-o", str(plan))
    refused = {}
    for rank in range(1, 51):
        job, _, layout = read_plan(plan, rank)
        try:
            check_runnable(job.model, layout)
        except BadInput as error:
            refused[rank] = error
    first = min(set(range(1, 51)) - refused.keys())
    message = re.escape(f"{next(iter(refused.values()))}; --rank {first} of this plan can be trained")
    with pytest.raises(BadInput, match=message):
        weft("train", "--plan", str(plan), "--rank", str(next(iter(refused))), "--steps", "1")
    weft("plan", "tiny-llama", "h100-8", *SMALL, "--runnable", "--format", "json", "-o", str(runnable))
    assert "equal to the prediction" in weft("train", "--plan", str(runnable), "--dry-run")


@pytest.mark.slow
def test_a_configuration_says_how_it_computes(tmp_path):
    config = tmp_path / "config.json"
    values = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 256, "rope_theta": 500000.0, "rms_norm_eps": 0.001,
    }  # fmt: skip
    config.write_text(json.dumps(values))
    curves = []
    for change in ({}, {"rope_theta": 10.0}, {"rms_norm_eps": 1e-6}, {"hidden_act": "relu"}):
        config.write_text(json.dumps(values | change))
        out = tmp_path / str(len(curves))
        output = weft("train", str(config), *SMALL, "--steps", "2", "--out", str(out))
        assert "activation" not in output
        curves.append(losses(out / "metrics.jsonl"))
    assert len({tuple(curve) for curve in curves}) == 4
    assert "Assumed: activation silu, norm epsilon 1e-05, rotary theta 10000" in weft(
        "train", "tiny-llama", *SMALL, "--steps", "1"
    )
    config.write_text(json.dumps(values | {"rope_scaling": {"rope_type": "llama3"}}))
    with pytest.raises(BadInput, match=r"config.json: rope_scaling"):
        weft("train", str(config), "--steps", "1")


@pytest.mark.slow
def test_launched_ranks_say_a_problem_once(tmp_path):
    base = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [*PROGRAM, "train", "tiny-gpt", "--layout"]
    for layout, message in (("x=3", "x 3 * y 1"), ("x=2,cp=2", "x 2 * y 1")):
        said = []
        for rank in ("0", "1"):
            env = base | {"RANK": rank, "LOCAL_RANK": rank}
            done = subprocess.run([*command, layout], env=env, capture_output=True, text=True)
            assert done.returncode == 2
            said.append(done.stderr)
        assert said[0].startswith("Error: ")
        assert said[1] == ""
        assert message in said[0] or "accelerators" in said[0]


def test_a_trained_model_leaves_as_one_file(tmp_path):
    run, file = tmp_path / "run", tmp_path / "model.safetensors"
    weft("train", "tiny-llama", *SMALL, "--steps", "1", "--out", str(run))
    output = weft("train", "export", str(run / "step-00000001"), str(file))
    assert output == f"Wrote {file}\n"
    size = int.from_bytes(file.read_bytes()[:8], "little")
    header = json.loads(file.read_bytes()[8 : 8 + size])
    assert json.loads(header.pop("__metadata__")["weft"])["step"] == 1
    assert {entry["dtype"] for entry in header.values()} == {"F32"}
    assert "embedding.weight" in header
    with pytest.raises(BadInput, match=r"does not end in \.safetensors"):
        weft("train", "export", str(run / "step-00000001"), str(tmp_path / "model.bin"))


def test_a_model_goes_out_to_the_hub_and_comes_back(tmp_path):
    """And held-out shards are evaluated, before and after the run goes on."""
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, 4000).astype(np.uint16))
    data = ["--data", f"{tmp_path}/a.npy", "--eval-every", "1"]
    run, hub = tmp_path / "run", tmp_path / "hub"
    assert "held out" in weft("train", "tiny-llama", *SMALL, "--steps", "1", "--out", str(run), *data)
    weft("train", "export", str(run / "step-00000001"), str(hub), "--to", "hf", "--dtype", "bf16")
    weft("train", "--from", str(hub), *SMALL, "--steps", "2", "--precision", "fp32", *data)
    weft("train", "tiny-llama", *SMALL, "--steps", "2", "--out", str(run), "--resume", *data)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(one["perplexity"] == pytest.approx(math.exp(one["eval_loss"])) for one in records)
    with pytest.raises(BadInput, match="without --to hf"):
        weft("train", "export", str(run / "step-00000001"), str(tmp_path / "m.safetensors"), "--dtype", "bf16")


@pytest.mark.slow
def test_runs_killed_at_random_leave_whole_checkpoints(tmp_path):
    """Each run goes on from the one before; every folder with a checkpoint's name can be read whole."""
    from weft.runtime.checkpoints.hub import export

    draw, out = random.Random(1), tmp_path / "run"
    command = [
        sys.executable,
        "-c",
        "from weft.commands.app import main; main()",
        "train",
        "tiny-gpt",
        *SMALL,
        "--steps",
        "400",
    ]
    saving = [*command, "--out", str(out), "--save-every", "1"]
    killed = 0
    for _ in range(12):
        resume = ["--resume"] if list(out.glob("step-*[0-9]")) else []
        running = subprocess.Popen([*saving, *resume], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("Saved"):
                break
        else:
            pytest.fail("nothing was saved")
        time.sleep(draw.uniform(0, 0.3))
        running.kill()
        running.communicate()
        killed += running.returncode == -9
        for folder in sorted(out.glob("step-*[0-9]"))[-3:]:
            export(folder, tmp_path / "whole.safetensors")
    assert killed == 12


def test_folders_taken_for_others_are_told(tmp_path):
    """A run's folder for one of its checkpoints, and for one of the hub."""
    run = tmp_path / "run"
    (run / "step-00000002").mkdir(parents=True)
    (run / "step-00000002" / "weft.json").write_text("{}")
    (run / "config.json").write_text(json.dumps(catalogue.configuration(catalogue.load("tiny-llama").model)))
    with pytest.raises(BadInput, match=r"run: is not a checkpoint -- there are .*step-00000002"):
        weft("train", "export", str(run), str(tmp_path / "out"), "--to", "hf")
    with pytest.raises(BadInput, match=r"run: holds no weights .* with --resume or --resume-from"):
        weft("train", "--from", str(run), "--batch", "4", "--sequence", "16")
