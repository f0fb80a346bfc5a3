"""The command line: outputs, files, exit codes, and one clear line for every bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

Run = Callable[..., tuple[int, str, str]]


SMALL = ("plan", "llama-3.2-1b", "h100-8", "--batch", "64", "--sequence", "2048")


def test_a_plan_file_is_estimated_and_launched(weft: Run, tmp_path) -> None:
    path = str(tmp_path / "plan.json")
    assert weft(*SMALL, "--format", "json", "-o", path)[0] == 0
    best = json.loads((tmp_path / "plan.json").read_text())["layouts"][0]
    _, out, _ = weft("estimate", "--plan", path, "--format", "json")
    assert json.loads(out)["estimate"]["iteration_s"] == best["iteration_s"]
    code, out, err = weft("launch", path, "--tool", "megatron")
    assert code == 0
    assert "--tensor-model-parallel-size" in out
    assert err.startswith("save as megatron.sh (-o megatron.sh), then run: bash megatron.sh\n")
    script = str(tmp_path / "my job.sh")
    code, _, err = weft("launch", path, "--tool", "megatron", "-o", script)
    assert err.startswith(f"run: bash '{script}'\n")


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(
    ("cluster", "layout", "warns"),
    [("gb200-512", "ep=64", False), ("gb200-576", "ep=64", True), ("gb200-576", "ep=8", False)],
)
def test_groups_that_straddle_racks_are_warned_of(weft: Run, cluster: str, layout: str, warns: bool) -> None:
    """EP 64 on racks of 72 once took 1.3 times as long without a word."""
    code, output = weft("estimate", "deepseek-v3", cluster, "--layout", layout, "--batch", "4608")[:2]
    assert code == (3 if "does NOT fit" in output else 0)
    assert ("ep groups straddle scale-up domains of 72" in output) == warns
    assert ("with 64 of 72 used (512 accelerators) they would not" in " ".join(output.split())) == warns
    assert ("64 of the 72 accelerators" in " ".join(output.split())) == (cluster == "gb200-512")


def test_a_plan_of_which_nothing_fits_names_enough_accelerators_once(weft: Run) -> None:
    code, out, err = weft("plan", "llama-3.1-70b", "a100-8", "--max", "pp=2")
    assert (code, err) == (3, "")
    assert out.count("No layout fits. Nearest to fitting: ") == 1
    enough = re.search(r"It fits on a100-(\d+), not on a100-(\d+)", out)
    assert enough is not None
    assert enough.groups() == ("16", "8")
    assert weft("plan", "llama-3.1-70b", "a100-16", "--max", "pp=2", "--top", "1")[0] == 0


def test_an_estimate_that_does_not_fit_names_the_changes_with_which_it_fits(weft: Run) -> None:
    code, out, err = weft("estimate", "llama-3.1-70b", "h100-64", "--layout", "tp=1")
    assert (code, err) == (3, "")
    changes = re.search(r"does NOT fit, [\d.]+ GiB missing; with (\S+) it fits", " ".join(out.split()))
    assert changes is not None
    code, out, _ = weft("estimate", "llama-3.1-70b", "h100-64", "--layout", changes[1])
    assert code == 0
    assert "NOT fit" not in out


def test_nothing_feasible_exits_with_3_and_still_writes_json(weft: Run) -> None:
    code, out, err = weft("plan", "llama-3.1-405b", "h100-8", "--format", "json")
    assert code == 3
    assert json.loads(out)["layouts"] == []
    assert err.count("\n") == 1
    assert "does-not-fit" in err
    assert "more memory per accelerator" in err


BAD = {
    "no value": (("design", "gpt2", "h100-16", "--sizes", ""), "--sizes: is empty"),
    "no such accelerator": (("info", "clusters", "foo"), "unknown accelerator"),
    "missing file": (("plan", "./no/config.json", "h100-8"), "no"),
    "count off the domain": (("plan", "gpt2", "h100-12"), "use 8 or 16"),
    "sequence beyond positions": (("plan", "gpt2", "h100-8", "--sequence", "4096"), "learned positions"),
    "no fp8 units": (("plan", "gpt2", "a100-8", "--precision", "fp8"), "no matrix units"),
    "contradiction": (("plan", "gpt2", "h100-8", "--fix", "dp=8", "--fix", "data=2", "--fix", "fsdp=2"), ""),
    "maximum of a switch": (("plan", "gpt2", "h100-8", "--max", "zero=1"), "no maximum"),
    "chart": (("plan", "gpt2", "h100-8", "--chart", "x.gif"), ".svg, .png or .pdf"),
    "chart folder": (("plan", "gpt2", "h100-8", "--chart", "/no/such/folder/x.svg"), "folder"),
    "output folder": (("plan", "gpt2", "h100-8", "-o", "/no/such/folder/x.txt"), "folder"),
    "plan missing": (("estimate", "--plan", "no.json"), "no such file"),
    "unknown code": (("info", "codes", "does-not-fitt"), "did you mean"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(refused: Callable[..., str], name: str) -> None:
    arguments, message = BAD[name]
    assert message in refused(*arguments)


@given(st.text(max_size=30), st.sampled_from(["--layout", "--fix", "--max", "--tokens", "--memory-margin"]))
def test_junk_options_never_crash(weft: Run, text: str, option: str) -> None:
    verb = "estimate" if option == "--layout" else "plan"
    code, _, _ = weft(verb, "gpt2", "h100-8", f"{option}={text}")
    assert code in (0, 2, 3)


@pytest.mark.parametrize("verb", [(), ("route",)])
def test_without_arguments_the_help_is_shown_whole(weft: Run, verb: tuple[str, ...]) -> None:
    code, out, err = weft(*verb)
    assert (code, err) == (0, "")
    assert out == weft(*verb, "--help")[1]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("plan", "gpt2", "h100-8", "--tp", "4"), "Write --fix tp=4."),
        (("estimate", "gpt2", "h100-8", "--pp", "4"), "Write --layout pp=4."),
        (("plan", "gpt2", "h100", "--nodes", "4"), "The cluster's name has the number of GPUs, as h100-64."),
        (("plan", "gpt2"), "For example: weft plan llama-3.1-405b h100-16384"),
        (("fabric", "bill"), "For example: weft fabric bill h100-1024 --spares 3%"),
        (("info",), "schemas, install. For example: weft info models [WORD]"),
        (("plan", "h100-64", "gpt2-124m"), "MODEL comes before CLUSTER"),
        (("plan", "gpt2", "h100-8", "--fix", "ep=8"), "--fix: gpt2-124m has no experts -- leave out ep and etp"),
        (("plan", "gpt2", "h100-8", "--fix", "tp=8", "--max", "tp=4"), "--fix and --max: the constraints exclude"),
    ],
)
def test_a_wrong_call_says_what_to_write(refused: Callable[..., str], words: tuple[str, ...], hint: str) -> None:
    assert hint in refused(*words)


def test_a_plan_names_the_part_of_the_cluster_that_is_faster(weft: Run) -> None:
    whole, part = (
        weft("plan", "llama-3.1-8b", f"h100-{count}", "--batch", "64", "--top", "1")[1] for count in (152, 128)
    )
    (line,) = [line for line in whole.splitlines() if "of the 152 accelerators are faster" in line]
    assert line.split("faster: ")[1].split(" per step")[0] == part.split(": ")[1].split(" per step")[0]
    assert "are faster" not in part


def test_a_rule_that_no_layout_keeps_is_named_first(weft: Run) -> None:
    code, out, _ = weft("plan", "llama-3.1-70b", "h100-64", "--fix", "tp=16")
    assert code == 3
    assert out.startswith("No layout can run: attention heads (or key-value heads) do not divide by tp; choose tp")


def test_help_of_a_command_groups_its_options(weft: Run) -> None:
    _, out, _ = weft("help", "plan")
    assert out == weft("plan", "--help")[1]
    headings = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Search:", "Job:", "Run:", "Network:", "Machine:", "Output:", "Options:"]


def test_a_file_of_another_kind_is_called_so(refused: Callable[..., str]) -> None:
    examples = Path(__file__).parents[2] / "examples"
    for verb, file, words in (
        ("arrange", "study.toml", "schema: 'weft.study/1' should be 'weft.site/1'"),
        ("sweep", "site.toml", "schema: 'weft.site/1' should be 'weft.study/1'"),
    ):
        assert words in refused(verb, str(examples / file))


def test_an_estimate_above_what_anybody_measured_says_so(weft: Run) -> None:
    _, out, _ = weft("estimate", "llama-3.1-8b", "a100-64", "--layout", "tp=2,sp")
    assert "is above" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("tune", "--model", "gpt2"), "it goes without a flag, weft tune [MODEL] [CLUSTER]"),
        (("plan", "gpt2", "--gpus", "8"), "The cluster's name has the number of GPUs, as h100-64."),
        (("plan", "gpt2", "--tp", "8"), "Write --fix tp=4."),
    ],
)
def test_an_option_that_is_none_is_answered_with_what_to_write(weft: Run, words: tuple[str, ...], advice: str) -> None:
    code, _, err = weft(*words)
    assert code == 2
    assert advice in err
