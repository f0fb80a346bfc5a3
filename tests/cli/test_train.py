"""``weft train`` as a user runs it: results, files, refusals."""

import json
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from weft.cli.app import cli
from weft.errors import BadInput, WeftError

torch = pytest.importorskip("torch")

SMALL = ["--batch", "4", "--sequence", "32"]


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
    output = weft("train", "tiny-llama", *SMALL, "--steps", "3", "--metrics", str(metrics))
    assert [line.split()[0] for line in output.splitlines()[-3:]] == ["1/3", "2/3", "3/3"]
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        assert record["tokens_per_s"] == pytest.approx(4 * 32 / record["seconds"])
        assert record["mfu"] is None
        assert record["axes"] == []


def test_learns_a_text(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200, encoding="utf-8")
    metrics = tmp_path / "metrics.jsonl"
    arguments = ["--data", str(text), "--steps", "25", "--warmup", "2", "--rate", "0.01"]
    weft("train", "tiny-gpt", *SMALL, *arguments, "--metrics", str(metrics))
    found = losses(metrics)
    assert found[0] > 5.0
    assert found[-1] < 3.2


def test_resumed_equals_uninterrupted(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    common = ["train", "tiny-gpt", *SMALL]
    weft(*common, "--steps", "4", "--out", str(whole), "--save-every", "2")
    shutil.copytree(whole / "step-00000002", parts / "step-00000002")
    output = weft(*common, "--steps", "4", "--out", str(parts), "--resume")
    assert "resumed from" in output
    assert losses(parts / "metrics.jsonl") == losses(whole / "metrics.jsonl")[2:]
    assert (parts / "step-00000004" / "weft.json").exists()


def test_two_ranks_issue_what_was_predicted(tmp_path, capfd):
    out, alone = tmp_path / "out", tmp_path / "alone.jsonl"
    weft(*("train", "tiny-llama", *SMALL, "--layout", "x=2", "--steps", "3", "--compare"), "--out", str(out))
    assert "equal to the prediction on 2 of 2 ranks" in capfd.readouterr().out.replace("\n", " ")
    weft("train", "tiny-llama", *SMALL, "--steps", "3", "--metrics", str(alone))
    assert losses(out / "metrics.jsonl") == pytest.approx(losses(alone), rel=1e-5)


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
    step = next(line for line in output.splitlines() if line.startswith(" step   "))
    assert len(step.split()) == 6
    assert "%" in output.split("tokens/s")[1]


def test_a_trace_opens_as_json(tmp_path):
    profile = tmp_path / "profile.json"
    weft("train", "tiny-gpt", *SMALL, "--steps", "1", "--profile", str(profile))
    assert json.loads(profile.read_text(encoding="utf-8"))["traceEvents"]


def test_dry_run_traces_both_ends():
    output = weft("train", "llama-3.2-1b", "--layout", "x=4,z=8,pp=2,mbs=1", "--dry-run", "--batch", "32")
    assert output.count("Each collective (kind, axes, elements, width): equal to the prediction.") == 2
    assert "Rank 32 of 64 (pipeline stage 1)" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny-gpt", "--layout", "x=3"], "8 key-value heads .* x = 3"),
        (["tiny-gpt", "--layout", "cp=2"], "context = 2"),
        (["tiny-gpt", "--layout", "z=2,zero=2"], "zero = 2"),
        (["mixtral-8x7b"], "experts"),
        (["tiny-gpt", "--precision", "fp16"], "fp32 or bf16"),
        (["tiny-gpt", "--batch", "7", "--layout", "data=2"], "global batch 7, micro_batch 1 .* data 2 = 2"),
        (["tiny-gpt", "--sequence", "512"], "256 learned positions"),
        (["tiny-gpt", "--resume"], "--resume needs --out"),
        (["tiny-gpt", "--tokenizer", "t.json"], "--tokenizer needs --data"),
        (["tiny-gpt", "--data", "missing.txt"], "no such file"),
        (["--plan", "missing.json"], "no such file"),
        ([], "one MODEL needed"),
    ],
)
def test_refusals_name_what_to_change(arguments, message):
    with pytest.raises(WeftError, match=message):
        weft("train", *arguments)


@pytest.mark.parametrize("verb", ["train tiny-gpt", "train tiny-gpt --dry-run", "bench-comm --ranks 2"])
def test_without_pytorch_the_extra_is_named(verb):
    script = "import sys; sys.modules['torch'] = None; from weft.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script, *verb.split()], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "Error: weft.runtime needs the extra 'runtime' -- pip install 'weft[runtime]'"
    ]


def test_other_data_under_the_same_name_is_refused(tmp_path):
    text, moved, out = tmp_path / "text.txt", tmp_path / "moved.txt", tmp_path / "out"
    text.write_text("abc " * 200, encoding="utf-8")
    common = ["train", "tiny-gpt", *SMALL, "--out", str(out)]
    weft(*common, "--data", str(text), "--steps", "1")
    text.rename(moved)
    weft(*common, "--data", str(moved), "--steps", "2", "--resume")
    text.write_text("abd " * 200, encoding="utf-8")
    with pytest.raises(BadInput, match="was trained with data"):
        weft(*common, "--data", str(text), "--steps", "3", "--resume")


def test_what_cannot_be_written_is_said_before_training(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BadInput, match="is not a folder"):
        weft("train", "tiny-gpt", "--out", str(tmp_path / "file"))
    with pytest.raises(BadInput, match="cannot be written there"):
        weft("train", "tiny-gpt", "--profile", str(tmp_path / "none" / "p.json"))


def test_a_folder_with_checkpoints_is_not_begun_anew(tmp_path):
    common = ["train", "tiny-gpt", *SMALL, "--steps", "1", "--out", str(tmp_path)]
    weft(*common)
    with pytest.raises(BadInput, match=r"holds checkpoints already .* --resume"):
        weft(*common)
    with pytest.raises(BadInput, match="1 steps are done already"):
        weft(*common, "--resume")
    with pytest.raises(BadInput, match="seed = 0, this run has 5"):
        weft(*common[:-4], "--steps", "2", "--out", str(tmp_path), "--resume", "--seed", "5")
