"""Scripts followed without a shell: what bash would run where it is decided, and what stays open."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.model import _shell
from weft.model.megatron_args import parse_arguments


def commands(text: str, **given: object) -> list[list[str]]:
    found = _shell.run(text, where="run.sh", **given)  # type: ignore[arg-type]
    return [[_shell.shown(word) for word in words] for words in found.commands]


BASH = shutil.which("bash")

DECIDED = {
    "defaults": 'A=${B:-3}; C=${A:-4}; show $A "$C" ${D-5} ${A:+6} ${B:=7} $B',
    "quotes": 'A=\'x y\'; show $A "$A" \'$A\' "a\\"b" \\$A "a"\'b\'c',
    "continued": "show --a 1 \\\n  --b \\\n 2 # a comment --c\nshow d#e",
    "arrays": 'A=(1 "2 3" # four\n 4); A+=(5); B=("${A[@]}" 6); show ${A[@]} ; show "${B[@]}" ${#B[@]} ${B[1]}',
    "strings": 'A=" --a 1 \\\n --b 2"; A+=" --c"; show $A',
    "arithmetic": "A=8; B=2; show $(($A*$B)) $((A / 3 + (B - 1) % 2)) $((-7/2)) $((0))",
    "if": 'A=1; if [ "$A" = 2 ]; then show 2; elif [[ $A == 1 && -n "$A" ]]; then show 1; else show 3; fi; show end',
    "tests": 'A=5; [ $A -gt 4 ] && show a; [ $A -lt 4 ] && show b; [ -z "$A" ] || show c; ! [ 1 = 2 ] && show d',
    "patterns": 'A=llama3-8b; [[ $A == *"8b" ]] && show a; [[ $A != gpt* ]] && show b',
    "case": 'A=8B; case "$A" in 7B|6B) show x;; "8B") show y ;; *) show z;; esac',
    "empty case": "A=q; case $A in (1) show x;; esac; show end",
    "while": "while [ $# -gt 0 ]; do show never; shift; done; show end",
    "function": "f() {\n show in $A\n}\nA=1; f\nfunction g { show g; }; g",
    "exit": "show a; exit 0; show b",
    "nested": "if [ 1 = 1 ]; then if [ 1 = 2 ]; then show a; else show b; fi; fi; { show c; }; ( show d )",
    "redirected": "show a > /dev/null 2>&1; show b 2>/dev/null | cat; show c &>/dev/null",
    "assignment before a command": "A=1 show x; show y",
    "export": 'export A=1 B="2 3"; show $A "$B"; unset A; show ${A:-gone}',
    "split": 'A=("--x 1" "--y"); show ${A[@]} "${A[@]}"',
    "empty": 'A=""; show $A "$A" end; B=(); show "${B[@]}" end',
    "here": "A=1; bash <<EOF\nshow $A\nEOF\nbash <<'EOF'\nB=2; show $B\nEOF\nshow after",
}


@pytest.mark.skipif(BASH is None, reason="needs bash as the oracle")
@pytest.mark.parametrize("name", sorted(DECIDED))
def test_words_are_those_of_bash(name: str, tmp_path: Path) -> None:
    """A program of the name ``show`` writes its arguments; bash runs the same text with nothing in the environment."""
    text = DECIDED[name]
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


PRETRAIN = """#!/bin/bash
# Pretrains a small decoder.  --num-layers 99
GPUS=8
NODES=${SLURM_NNODES:-"4"}
WORLD=$(($GPUS*$NODES))
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
    --seq-length 1024 --pipeline-model-parallel-size $((WORLD / 16)) "
DTYPE=fp8
EXTRA=()
if [[ "$DTYPE" == "fp8" ]]; then
    EXTRA+=("--fp8-format hybrid" "--bf16")
else
    EXTRA+=(--fp16)
fi
if [ -d /data ]; then EXTRA+=(--use-checkpoint-opt_param-scheduler); fi
torchrun ${DIST[@]} pretrain_gpt.py ${MODEL[@]} $TRAIN "${EXTRA[@]}" --save "$OUT" "$@"
"""


def test_a_script_in_the_style_of_the_examples() -> None:
    found = parse_arguments(PRETRAIN)
    assert found.program == "pretrain_gpt.py"
    assert dict(found.values) == {
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
    assert found.notes == (
        "left out, because the text does not decide a condition: --use-checkpoint-opt_param-scheduler",
        "what $@ holds is not in the text",
    )
    with pytest.raises(BadInput, match=r"--max-position-embeddings: is not stated: '\$SEQ' has no value in the text"):
        found.integer("--max-position-embeddings")


def test_what_branches_disagree_on_is_open() -> None:
    text = "case $1 in\n a) L=12; H=1 ;;\n b) L=24; H=1 ;;\n *) echo usage; exit 1 ;;\nesac\nshow $L $H"
    assert commands(text)[-1] == ["show", "$L", "$H"]
    assert commands("if probe; then L=1; else L=1; fi; show $L")[-1] == ["show", "1"]
    assert commands("for L in 1 2; do show $L; done") == [["show", "$L"]]
    text = "A=$(nproc --all); B=`date +%s`; show $A $B ${A%x} $((RANDOM + 1)) ${!A}"
    assert commands(text) == [["show", "$(nproc)", "$(date)", "$A", "$RANDOM", "$A"]]


def test_texts_within_texts() -> None:
    text = 'ARGS="--a 1 --b"\nCMD="cd /x; python train.py $ARGS"\nsbatch <<EOF\nsrun bash -c "${CMD}"\nEOF\n'
    assert ["srun", "bash", "-c", "cd", "/x;", "python", "train.py", "--a", "1", "--b"] in commands(text)
    assert parse_arguments(text).values == {"--a": "1", "--b": ""}
    assert parse_arguments('OPTIONS=" --a 2 "').values == {"--a": "2"}
    assert parse_arguments("python prepare.py --a 1\npython train.py --num-layers 2").values == {"--num-layers": "2"}


def test_sourced_files_come_from_beside_the_script_only(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    (folder / "conf").mkdir(parents=True)
    (tmp_path / "outside.sh").write_text("TP=9\n", encoding="utf-8")
    (folder / "conf" / "common.sh").write_text('TP=${TP:-4}\nCOMMON="--a $TP"\n', encoding="utf-8")
    script = folder / "run.sh"
    where = 'D="$(dirname "$(readlink -f "$0")")"\n'
    text = where + 'source "$D/conf/common.sh"\n. ../outside.sh\nsource $CONF\npython t.py $COMMON --tp $TP\n'
    script.write_text(text, encoding="utf-8")
    found = parse_arguments(text, include=_shell.beside(script))
    assert found.values == {"--a": "4", "--tp": "4"}
    assert found.notes == ("../outside.sh, which it sources, is not read", "$CONF, which it sources, is not read")
    itself = f"source {script.name}\n"
    script.write_text(itself, encoding="utf-8")
    with pytest.raises(BadInput, match="nested too deeply"):
        parse_arguments(itself, include=_shell.beside(script))


def test_nothing_runs(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"touch {mark}; A=$(touch {mark}); `touch {mark}`; eval touch {mark}; show $((__import__('os')))"
    assert ["touch", str(mark)] in commands(text)
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        "if " * 100 + "x",
        "( " * 100,
        "A=1; " + 'A="$A$A$A$A"; ' * 40 + "show $A",
        "A=(1); " + 'A+=("${A[@]}" "${A[@]}"); ' * 40 + "show",
        "f() { f; f; f; f; }; f; f",
    ],
)
def test_bounds(text: str) -> None:
    with pytest.raises(BadInput, match=r"nested too deeply|longer than"):
        commands(text)


WORDS = "if then fi case in esac ;; for do done ( ) { } $( ${ ` && || | <<E E A= $A --a [ ] [[ ]] =("
PIECES = [*WORDS.split(" "), '"', "'", "\n", " ", ";", "\\", "#"]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40))
def test_any_text_is_followed_or_refused(pieces: list[str]) -> None:
    for text in ("".join(pieces), " ".join(pieces)):
        try:
            assert all(_shell.MARK not in word for words in commands(text) for word in words)
        except BadInput as error:
            refused = str(error)
        else:
            continue
        assert "nested" in refused
