"""Batch scripts of SLURM: what they would start, as a shell runs them."""

import os
import subprocess

import weft
from weft.interop.launch import launch_arguments
from weft.layout.text import parse_layout
from weft.model.resolve import RecipeChanges

JOB = weft.resolve_job("tiny-llama", RecipeChanges(global_batch=32, sequence=64, precision="bf16"))
CLUSTER = weft.resolve_cluster("h100-16")


def started(text, folder, *more):
    """The words after srun, and where ranks meet."""
    for name, script in (
        ("srun", 'echo "$MASTER_ADDR:$MASTER_PORT"; printf "%s\\n" "$@"'),
        ("scontrol", "echo a; echo b"),
    ):
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    (folder / "train.slurm").write_text(text)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "a,b"}
    command = ["bash", str(folder / "train.slurm"), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.splitlines()


def test_the_script_starts_every_rank_of_the_layout(tmp_path):
    layout = parse_layout("x=2,z=2,data=4,zero=1,sequence_parallel=true").complete(16)
    found = launch_arguments("slurm", JOB, CLUSTER, layout)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n" in found.text
    meet, _, *words = started(found.text, tmp_path, "--data", "a file.txt")
    assert meet == "a:29500"
    assert words[:3] == ["weft", "train", "tiny-llama"]
    options = dict(zip(words[3:-2:2], words[4:-2:2], strict=True))
    assert parse_layout(options["--layout"]).complete(16) == layout
    assert (options["--batch"], options["--sequence"], options["--precision"]) == ("32", "64", "bf16")
    assert words[-2:] == ["--data", "a file.txt"]
