"""Scripts read without a shell: the words that bash would give, what stays open, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from weft.errors import BadInput
from weft.model.megatron_args import parse_arguments, read_script


def commands(text: str) -> list[list[str]]:
    return [one.flat for one in read_script(text, where="run.sh").commands]


BASH = shutil.which("bash")

READ = {
    "defaults": 'A=${B:-3}; C=${A:-4}; show $A "$C" ${D:-5 6} "${E:-"7"}" ${F:-} ${1:-8} ${G:-${A:-9}}',
    "quotes": 'A=\'x y\'; show $A "$A" \'$A\' "a\\"b" "\\$A" \\$A "a"\'b\'c "it\'s"',
    "values with quotes": 'A=\'"x y" \\ z\'; show $A "$A"',
    "continued": "show --a 1 \\\n  --b \\\n 2 # a comment --c\nshow d#e",
    "arrays": 'A=(1 "2 3" # four (4)\n 4); B=("${A[@]}" 6); show ${A[@]} "${B[@]}" ${A} "${A[*]}"',
    "strings": 'A=" --a 1 \\\n --b 2"; show $A',
    "set again": "A=1; A=$A-2; show $A",
    "exit": "show a; exit 0; show b",
    "redirected": "show a > /dev/null 2>&1; show b 2>/dev/null | cat; show c &>/dev/null; cat < /dev/null; show d",
    "assignment before a command": "A=1 show x; show y",
    "export": 'export A=1 B="2 3"; show $A "$B"',
    "split": 'A=("--x 1" "--y"); show ${A[@]} "${A[@]}"',
    "empty": 'A=""; show $A "$A" end; B=(); show "${B[@]}" end',
    "what does not matter": 'A=$(date); B=$((1 + 2)); if [ -z "$A" ]; then C=1; fi; for D in 1; do E=1; done; show a',
    "a text for a program": "A=1; cat <<EOF\nA=2\nshow b\nEOF\nshow $A",
    "after another": "cd /tmp && show a",
}


@pytest.mark.skipif(BASH is None, reason="needs bash as the oracle")
@pytest.mark.parametrize("name", sorted(READ))
def test_words_are_those_of_bash(name: str, tmp_path: Path) -> None:
    """A program of the name ``show`` writes its arguments; bash runs the same text with nothing in the environment."""
    text = READ[name]
    log = tmp_path / "log"
    log.touch()
    show = tmp_path / "show"
    show.write_text(f'#!/bin/sh\n(printf "%s\\037" show "$@"; echo) >> {log}\n', encoding="utf-8")
    show.chmod(0o755)
    subprocess.run([str(BASH), "-c", text], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    expected = [line.split("\037")[:-1] for line in log.read_text(encoding="utf-8").splitlines()]
    assert expected
    quoted = [[part for word in words for part in (word.split() if "--" in word else [word])] for words in expected]
    found = [words for words in commands(text) if words[0] == "show"]
    assert found == quoted


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("A=$(nproc)\npython t.py --a $A", 1, "$(nproc)"),
        ("A=`nproc`\npython t.py --a $A", 1, "`nproc`"),
        ("\npython t.py --a $((2 * 4))", 2, "$((2 * 4))"),
        ("A=(--a 1)\nA+=(--b 2)\npython t.py ${A[@]}", 2, "A+=(--b 2)"),
        ("A=1\nB=(\n --a $(x (y) z)\n)\nC=(${B[@]})\npython t.py ${C[@]}", 2, "$(x (y) z)"),
        ("if [ -z $X ]; then\n A=1\nfi\npython t.py --a $A", 2, "A=1"),
        ("A=1\n[ -z $X ] && A=2\npython t.py --a $A", 2, "A=2"),
        ("case $1 in\n a) L=12 ;;\nesac\npython t.py --a $L", 2, "L=12"),
        ("for A in 1 2; do\n echo $A\ndone\npython t.py --a $A", 1, "for A in 1 2"),
        ("for A in 1 2; do\n python t.py --a 3\ndone", 2, "python t.py --a 3"),
        ("f() {\n python t.py --a 3\n}\nf", 2, "python t.py --a 3"),
        ("function f {\n A=3\n}\nf\npython t.py --a $A", 2, "A=3"),
        ("(\npython t.py --a 3\n)", 2, "python t.py --a 3"),
        ("python t.py --a ${A#x}", 1, "${A#x}"),
        ("python t.py --a ${A[1]}", 1, "${A[1]}"),
        ("unset A\npython t.py --a $A", 1, "unset A"),
        ("sbatch <<EOF\npython t.py --a 1\nEOF", 1, "<< python t.py --a 1"),
        ("python t.py --a 'x", 1, "'x"),
        ('OPTIONS="--a $(nproc)"', 1, "$(nproc)"),
    ],
)
def test_other_syntax_is_refused_where_it_matters(text: str, line: int, named: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_arguments(text, where="run.sh")
    assert str(caught.value) == f"run.sh: line {line}: {named} is not read -- paste the expanded arguments"


PRETRAIN = """#!/bin/bash
# Pretrains a small decoder.  --num-layers 99
GPUS=8
NODES=${SLURM_NNODES:-"4"}
WORLD=$(($GPUS*$NODES))  # does not matter
OUT=$1
if [ -z "${OUT}" ]; then
    echo "usage: run.sh OUT --bf16"; exit 1
fi
DIST=(
    --nproc_per_node $GPUS
    --nnodes $NODES
)
MODEL=(
    --num-layers 12   # twelve
    # --hidden-size 1
    --hidden-size 768 \\
    --num-attention-heads 12
    --max-position-embeddings ${SEQ}
)
TRAIN=" --global-batch-size 32 \\
    --seq-length 1024 --pipeline-model-parallel-size 2 "
EXTRA=("--fp8-format hybrid" "--bf16")
torchrun ${DIST[@]} pretrain_gpt.py ${MODEL[@]} $TRAIN "${EXTRA[@]}" --save "$OUT" "$@"
"""


def test_a_script_in_the_style_of_the_examples() -> None:
    found = parse_arguments(PRETRAIN)
    assert found.program == "pretrain_gpt.py"
    assert dict(found.data) == {
        "--nproc_per_node": "8",
        "--nnodes": "4",
        "--num-layers": "12",
        "--hidden-size": "768",
        "--num-attention-heads": "12",
        "--max-position-embeddings": "$SEQ",
        "--global-batch-size": "32",
        "--seq-length": "1024",
        "--pipeline-model-parallel-size": "2",
        "--fp8-format": "hybrid",
        "--bf16": "",
        "--save": "$1",
    }
    assert found.notes == ("what $@ holds is not in the text",)
    with pytest.raises(BadInput, match=r"--max-position-embeddings: is not stated: '\$SEQ' has no value in the text"):
        found.integer("--max-position-embeddings")


def test_texts_within_texts() -> None:
    text = 'ARGS="--a 1 --b"\nCMD="cd /x; python train.py $ARGS"\nsrun bash -c "${CMD}"\n'
    assert ["srun", "bash", "-c", "cd", "/x;", "python", "train.py", "--a", "1", "--b"] in commands(text)
    assert parse_arguments(text).data == {"--a": "1", "--b": ""}
    assert parse_arguments('OPTIONS=" --a 2 "').data == {"--a": "2"}
    assert parse_arguments("python prepare.py --a 1\npython train.py --num-layers 2").data == {"--num-layers": "2"}


def test_a_script_of_slurm() -> None:
    text = """#!/bin/bash
#SBATCH --nodes=4
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
source activate.sh
eval "SEQ=128"
srun --ntasks-per-node=8 python pretrain_gpt.py --num-layers 2 --seq-length ${SEQ:-64} &> log
"""
    found = parse_arguments(text)
    assert (found.text("--num-layers"), found.text("--seq-length")) == ("2", "64")
    assert found.notes == ("what source activate.sh sets is not read", 'what eval "SEQ=128" sets is not read')


def test_nothing_runs(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    commands(f"touch {mark}; A=$(touch {mark}); `touch {mark}`; eval touch {mark}; show $((__import__('os')))")
    assert not mark.exists()


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    "text", ["A=(1); " + 'A=("${A[@]}" "${A[@]}"); ' * 40, "A=1; " + 'A="$A$A$A$A"; ' * 40 + "show $A"]
)
def test_bounds(text: str) -> None:
    with pytest.raises(BadInput, match="longer than"):
        commands(text)
