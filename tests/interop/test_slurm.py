"""Batch scripts of SLURM: what they would start, as a shell runs them."""

import os
import subprocess

import pytest

import weft
from weft.commands.launch import arranged_arguments
from weft.errors import BadInput
from weft.interop.launch import launch_arguments
from weft.interop.slurm import arranged
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


def test_an_arranged_job_starts_on_its_hosts_in_their_order(tmp_path):
    hosts = ["n7", "n7", "n2", "n2"]
    text = arranged("my job", hosts, 2, {"NCCL_X": "1", "NCCL_FILE": "/a b"}, str(tmp_path / "list"))
    assert "#SBATCH --job-name=my-job\n#SBATCH --nodes=2\n#SBATCH --nodelist=n[2,7]\n#SBATCH --ntasks=4\n" in text
    assert f"export SLURM_HOSTFILE={tmp_path}/list\nexport NCCL_X=1\nexport NCCL_FILE='/a b'\n" in text
    meet, *words = started(text, tmp_path, "python", "a file.py")
    assert meet == "n7:29500"
    assert words[:4] == ["--kill-on-bad-exit=1", "--distribution=arbitrary", "--nodes=2", "--ntasks=4"]
    ranks = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "PATH": os.environ["PATH"]}
    (tmp_path / "python").write_text('#!/bin/bash\necho "$RANK $LOCAL_RANK $WORLD_SIZE $1"\n')
    (tmp_path / "python").chmod(0o755)
    command = [*words[4:7], words[7], str(tmp_path / "python"), *words[9:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ranks)
    assert done.stdout == "3 1 4 a file.py\n"


@pytest.mark.parametrize("name", ["a b", "a;b", "a\nb", "$(x)", ""])
def test_names_that_no_host_has_are_refused(name):
    with pytest.raises(BadInput, match="not a name for hosts"):
        arranged("job", [name], 1, {}, "list")


def test_the_script_of_an_arrangement_trains_its_job_there(arranged_site, tmp_path):
    path = tmp_path / "arranged.json"
    path.write_text(arranged_site.to_json())
    with pytest.raises(BadInput, match="--files FOLDER"):
        arranged_arguments("slurm", str(path), "running")
    arguments, _ = arranged_arguments("slurm", str(path), "running", start_at="1e9", folder=str(tmp_path / "files"))
    hosts = (tmp_path / "files" / "slurm_hostfile").read_text().split()
    _, *words = started(arguments.text, tmp_path, "--data", "x")
    assert words[2:4] == ["--nodes=4", "--ntasks=32"]
    assert words[4:] == [
        *("weft", "train", "--arrangement", str(path), "--job", "running", "--start-at", "1e9", "--device", "cuda"),
        *("--out", str(tmp_path / "files" / "run"), "--save-every", "100", "--steps", "1000", "--data", "x"),
    ]
    assert (tmp_path / "files" / "job.slurm").read_text().splitlines()[:12] == arguments.text.splitlines()[:12]
    assert f"MASTER_ADDR={hosts[0]} " in arguments.text
