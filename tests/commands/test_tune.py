"""``weft tune``: a run's file and a measured step give a verdict, changes in the tool's own words, and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import weft
from weft.commands.app import cli
from weft.commands.tune import _measured_s
from weft.errors import BadInput
from weft.interop.launch import changed_settings, edited, launch_arguments, read_run
from weft.search.tune import Tuning
from weft.views import view_of
from weft.views.terminal import to_text

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = str(EXAMPLES / "megatron-llama-2-70b.sh")
STAYS = ("global-batch", "precision", "order", "micro-batch", "zero", "dp", "fsdp")
SHORT = [word for name in STAYS for word in ("--keep", name)]
"""Makes the search short, where it is not what a test is about."""


def told(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["tune", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def of_script() -> Tuning:
    return weft.tune(cluster="h100-512", run=SCRIPT, measured="18%")


def test_the_verdict_comes_first_and_the_flags_are_those_of_the_script(of_script: Tuning) -> None:
    text = to_text(view_of(of_script))
    assert text.startswith(
        "You run at 18% MFU (5.11 s per step); this layout should reach 25% (estimate ±26%). Look outside the layout"
    )
    assert "recompute full -> none" in text
    assert "Set in your file: --tensor-model-parallel-size 2" in text
    assert "Remove in your file: --recompute-granularity" in text
    assert told("h100-512", "--run", SCRIPT, "--measured", "28%", *SHORT).startswith(
        "You run at 28% MFU (3.29 s per step), normal"
    )
    found = json.loads(of_script.to_json())
    assert found["measured_mfu"] == pytest.approx(0.18)
    speedups = [change["speedup"] for change in found["changes"]]
    assert speedups == sorted(speedups, reverse=True)
    for change in found["changes"]:
        assert change["interval"][0] < change["speedup"] < change["interval"][1]
        assert change["memory_bytes"] < 80e9
        assert change["flags"]
        assert change["layout_text"]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("more", ["", "--num-layers-per-virtual-pipeline-stage 5", "--recompute-activations"])
def test_flags_lead_to_the_layout(tmp_path: Path, more: str) -> None:
    """The changed script, with the flags of a change in place of the run's, reads back as its layout."""
    text = Path(SCRIPT).read_text(encoding="utf-8").replace("$TP", "8").replace("$PP", "8")
    text = text.replace("--bf16", f"--bf16 {more}").replace(
        "--recompute-granularity full --recompute-method uniform", ""
    )
    text = text.replace(" --recompute-num-layers 1", "")
    script = tmp_path / "run.sh"
    script.write_text(text, encoding="utf-8")
    result = weft.tune(cluster="h100-512", run=str(script), measured="18%")
    assert result.changes
    for number, change in enumerate(result.changes):
        words = text.replace("\\\n", " ").split(" --")
        for flag in change.flags:
            name = flag.removeprefix("without ").split()[0].removeprefix("--")
            words = [word for word in words if word.split()[0] != name]
            words += [] if flag.startswith("without ") else [flag.removeprefix("--")]
        path = tmp_path / f"{number}.sh"
        path.write_text(" --".join(word.strip() for word in words), encoding="utf-8")
        assert read_run(path, world=512).layout == change.estimate.layout


@pytest.fixture(scope="module")
def tuned() -> Tuning:
    return weft.tune("llama-3.1-8b", "h100-64", "tp=8", measured=12.0)


@pytest.mark.parametrize("value", ["{0.measured_s}s", "{1}% MFU", "{2}TF", "{3}tps", "{4} ms"])
def test_every_unit_is_the_same_step(tuned: Tuning, value: str) -> None:
    expected = tuned.expected
    text = value.format(
        tuned,
        100 * tuned.measured_mfu,
        expected.model_tflops * expected.iteration_s / 12.0,
        expected.tokens_per_s * expected.iteration_s / 12.0 / 64,
        12000,
    )
    assert tuned.measured_s == 12.0
    tokens = expected.tokens_per_s * expected.iteration_s / 64
    assert _measured_s(text, expected, tokens, "--measured") == pytest.approx(12.0)


def test_what_is_kept_stays(tuned: Tuning) -> None:
    result = weft.tune("llama-3.1-8b", "h100-64", "tp=8", measured="31%", keep=STAYS)
    assert tuned.recipe
    assert result.recipe == ()
    for change in result.changes:
        layout = change.estimate.layout
        assert (layout.micro_batch, layout.zero, layout.dp, layout.z) == (1, 1, 8, 1)


def test_a_plan_is_a_run(tmp_path: Path) -> None:
    plan = weft.plan("gpt2-124m", "a100-8", top=1)
    plan.save(tmp_path / "plan.json")
    result = weft.tune(run=str(tmp_path / "plan.json"), measured=plan.best.iteration_s)
    assert result.layout == plan.best.layout
    assert result.slower == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layout": "tp=8"}, "--measured: is needed"),
        ({"measured": "9s"}, "give either --run or --layout"),
        ({"layout": "tp=8", "run": SCRIPT, "measured": "9s"}, "give either --run or --layout"),
        ({"layout": "tp=8", "measured": "nine"}, "--measured"),
        ({"layout": "tp=8", "measured": "9.2.1%"}, "--measured"),
        ({"layout": "tp=8", "measured": "18"}, "'18' has no unit -- write 18s or 18%"),
        ({"layout": "tp=8", "measured": "9s", "stack": "nosuch"}, "--stack"),
        ({"run": SCRIPT, "measured": "9s"}, "it has 80 layers of 8,192, but llama-3.1-8b 32 layers of 4,096"),
        ({"layout": "tp=8", "measured": "0.31"}, "'0.31' has no unit -- write 0.31s or 31%"),
        ({"layout": "tp=8", "measured": "0%"}, "not above 0"),
        ({"layout": "tp=8", "measured": "200%"}, "1.81 times as fast as this machine's peaks allow"),
        ({"layout": "tp=8", "measured": "9s", "keep": ("size",)}, "--keep"),
        ({"run": "absent.sh", "measured": "9s"}, "absent.sh"),
        ({"layout": "tp=8", "measured": "9s", "also": "9s"}, "--also: '9s' has no layout and value"),
        ({"layout": "tp=8", "measured": "9s", "also": "tp=4:9"}, "--also: '9' has no unit"),
    ],
)
def test_what_cannot_be_used_is_one_message(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as found:
        weft.tune("llama-3.1-8b", "h100-64", **given)
    assert "\n" not in str(found.value)


def test_other_measured_layouts_correct_and_are_proposed_as_measured(tmp_path: Path) -> None:
    rows = tmp_path / "runs.csv"
    rows.write_text('layout,measured\ntp=4,6s\n"tp=4,mbs=2",5.5s\n', encoding="utf-8")
    asked = ("llama-3.2-1b", "h100-8", "tp=8")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("layout,step\ntp=4,6s\n", encoding="utf-8")
    with pytest.raises(
        BadInput, match=r"wrong\.csv: line 1: 'layout' has no layout and value -- write .* a CSV with the"
    ):
        weft.tune(*asked, measured="12s", also=(str(wrong),))
    alone = weft.tune(*asked, measured="12s", keep=STAYS)
    by_file = weft.tune(*asked, measured="12s", keep=STAYS, also=(str(rows),))
    by_text = weft.tune(*asked, measured="12s", keep=STAYS, also=("tp=4:6s", "tp=4,mbs=2:5.5s"))
    assert by_file.to_json() == by_text.to_json() != alone.to_json()
    assert [(run.layout.tp, run.layout.micro_batch, run.measured_s) for run in by_file.others] == [
        (4, 1, 6),
        (4, 2, 5.5),
    ]


def test_the_changed_script_is_the_script_but_for_the_change(tmp_path: Path, of_script: Tuning) -> None:
    out = tmp_path / "changed"
    told("h100-512", "--run", SCRIPT, "--measured", "18%", "--write", str(out))
    before, path = Path(SCRIPT).read_text(encoding="utf-8").splitlines(), out / Path(SCRIPT).name
    after = path.read_text(encoding="utf-8").splitlines()
    best = of_script.changes[0]
    assert read_run(path, world=512).layout == best.estimate.layout
    assert "TP=2" in after, "a variable keeps its name"
    assert len([line for line in before if line not in after]) <= 3
    arguments = ["tune", "h100-512", "--run", SCRIPT, "--measured", "18%", "--write", str(tmp_path), *SHORT]
    other = CliRunner().invoke(cli, arguments)
    assert isinstance(other.exception, BadInput), "a folder with other files is left alone"


def test_without_a_file_complete_launch_files_are_written(tmp_path: Path) -> None:
    out = tmp_path / "new"
    told("llama-3.2-1b", "h100-16", "--layout", "tp=8", "--measured", "31%", "--write", str(out), *SHORT[:8])
    assert sorted(path.name for path in out.iterdir()) == ["job.sbatch", "megatron.sh"]
    best = weft.tune("llama-3.2-1b", "h100-16", "tp=8", measured="31%", keep=STAYS[:4]).changes[0]
    assert read_run(out / "megatron.sh", world=16).layout == best.estimate.layout
    assert "#SBATCH --nodes=2" in (out / "job.sbatch").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "settings", "result"),
    [
        ("run --num-layers 8 --a-b 2 \\\n  --c\n", ("--a-b 4", "without --c"), "run --num-layers 8 --a-b 4\n"),
        ("# --a 1\nrun --a=1 --b\n", ("--a 2",), "# --a 1\nrun --a=2 --b\n"),
        ("A=1\nrun --a $A --b\n", ("--a 2",), "A=2\nrun --a $A --b\n"),
        ("X=(\n  --num-layers 8\n)\n", ("--new x",), "X=(\n  --new x\n  --num-layers 8\n)\n"),
        ("[a]\nx = 1 # why\n\n[b]\ny = 2\n", ("a.x = 3", "a.z = true"), "[a]\nx = 3 # why\nz = true\n\n[b]\ny = 2\n"),
        ("[a]\nx = 1\n", ('c.y = "w"', "without a.x"), '[a]\n\n[c]\ny = "w"\n'),
        ("# run\nexport A=1  # why\nrun --b\n", ("without export A", "export C=2"), "# run\nexport C=2\nrun --b\n"),
        ('{\n  "a": {"x": 1}\n}', ("a.x: 2",), '{\n  "a": {\n    "x": 2\n  }\n}\n'),
    ],
)
def test_an_edit_changes_its_setting_alone(text: str, settings: tuple[str, ...], result: str) -> None:
    assert edited(text, settings) == result


@pytest.mark.slow
def test_a_dispatcher_is_a_change_with_flags(tmp_path: Path) -> None:
    script = tmp_path / "moe.sh"
    plan = weft.plan("qwen3-30b-a3b", "h100-16", fix=("ep=16", "tp=1", "pp=1"), top=1)
    text = launch_arguments("megatron", plan.job, plan.cluster, plan.best.layout).text
    script.write_text(text, encoding="utf-8")
    found = {
        setting.name: change
        for change in weft.tune(cluster="h100-16", run=str(script), measured="15%").changes
        for setting in change.settings
    }
    assert found["dispatcher"].speedup > 1.2
    assert "--moe-token-dispatcher-type flex" in found["dispatcher"].flags
    script.write_text(text.replace("--bf16", " ".join(["--bf16", *found["dispatcher"].flags])), encoding="utf-8")
    on = weft.tune(cluster="h100-16", run=str(script), measured="15%")
    assert all(setting.name != "dispatcher" for change in on.changes for setting in change.settings)


def test_a_step_that_no_layout_explains_says_so() -> None:
    text = told("llama-2-7b", "h100-64", "--layout", "fsdp=8,mbs=2", "--batch", "128", "--measured", "1000tok")
    assert "No layout explains a step" in text
    assert "network" in text.split("Change")[0]


def test_a_layout_that_cannot_fit_is_another_than_what_runs() -> None:
    text = told("llama-3.1-70b", "h100-64", "--layout", "fsdp=64", "--batch", "128", "--measured", "30s")
    assert re.search(
        r"but this layout needs \d+ of 79 GiB, so the run is another: check recompu", " ".join(text.split())
    )


def test_a_file_without_a_batch_gets_the_one_that_it_had(tmp_path: Path) -> None:
    """torchtitan's is the local batch times the ranks, which the layout changes."""
    job = tmp_path / "job.toml"
    job.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 16\nseq_len = 8192\n'
        '[activation_checkpoint]\nmode = "full"\n',
        encoding="utf-8",
    )
    told("h100-64", "--run", str(job), "--measured", "25%", "--write", str(tmp_path / "new"))
    before, after = read_run(job, world=64), read_run(tmp_path / "new" / "job.toml", world=64)
    assert before.layout != after.layout
    assert before.global_batch == after.global_batch == 1024
    with pytest.raises(BadInput, match="it starts 512 accelerators, the cluster has 64"):
        weft.tune(cluster="h100-64", run=SCRIPT, measured="9s")


def test_settings_that_changed_keep_their_tables() -> None:
    before = "[training]\nbatch = 2\n[parallelism]\ntensor = 8\n# said = 1\n"
    assert changed_settings(before, before) == ()
    assert changed_settings("export A=1  # why\nexport B=1\n", "export A=2\n") == ("export A=2", "without export B")
    assert changed_settings(before, before.replace("8", "4").replace("batch = 2\n", "")) == (
        "parallelism.tensor = 4",
        "without training.batch",
    )


def test_a_trace_says_where_the_step_loses_time(tmp_path: Path) -> None:
    """Two products with a second between them that the host did not use: 1 s of the step is lost in host gaps."""
    path = tmp_path / "rank0.json"
    arguments = {"device": 0, "stream": 7, "correlation": 5}
    kernel = {"ph": "X", "cat": "kernel", "name": "nvjet_gemm", "ts": 0, "dur": 4e6, "args": arguments}
    sent = kernel | {"name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ts": 4e6, "dur": 1e6}
    late = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 6e6, "dur": 1, "args": arguments}
    head = {"distributedInfo": {"rank": 0, "world_size": 8}}
    events = [kernel | {"args": {"device": 0}}, sent | {"args": {"device": 0}}, kernel | {"ts": 6e6}, late]
    path.write_text(json.dumps({**head, "traceEvents": events}))
    arguments_of_run = ["tune", "llama-3.2-1b", "h100-8", "--layout", "tp=8", "--trace", str(path), *SHORT]
    answer = CliRunner().invoke(cli, [*arguments_of_run, "--format", "json"])
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    parts = {part["name"]: part["measured_s"] for part in document["gap"]["parts"]}
    assert document["measured_s"] == pytest.approx(10.0)
    assert parts["computation"] == pytest.approx(8.0)
    assert parts["host gaps"] == parts["other groups"] == pytest.approx(1.0)
    shown = CliRunner().invoke(cli, arguments_of_run).stdout
    assert "Where the step goes: 10.00 s traced (rank0.json)" in shown
    assert "10% in host gaps: launch-bound" in shown


def test_a_log_of_nccl_says_what_is_wrong_with_the_network(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(
        "node-0:1:9 [0] NCCL INFO comm 0x1 rank 0 nranks 16 cudaDev 0\n"
        "node-0:1:9 [7] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0\n"
    )
    run = ("llama-3.1-8b", "h100-16", "--layout", "tp=8", "--measured", "20%", "--trace", str(log), *SHORT)
    verdict, network = told(*run).split("\n\n")[:2]
    assert verdict.startswith("You run at 20% MFU")
    assert network.startswith("  Network: NCCL sends over TCP sockets")
    assert "TCP sockets" in told("llama-3.1-8b", "h100-32", *run[2:])  # no communicator of all ranks
    refused = CliRunner().invoke(cli, ["tune", "llama-3.1-8b", "h100-8", *run[2:]])
    assert isinstance(refused.exception, BadInput)
    assert "its largest communicator has 16 ranks, the layout 8" in str(refused.exception)
    alone = CliRunner().invoke(cli, ["tune", *run[:4], *run[6:]])
    assert "a log of NCCL has no times" in str(alone.exception)
