"""Jobs of a real SLURM (sixteen nodes on this machine): read as a site, arranged, and started where they belong."""

import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack

import pytest

import weft
from weft.arrangement.bundle import read_bundle
from weft.commands.launch import arranged_arguments
from weft.fabric.catalogue import for_cluster
from weft.interop.slurm import read_queue
from weft.interop.slurm_topology import read as read_topology
from weft.interop.slurm_topology import write_conf

TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scontrol", "sinfo")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason="no SLURM or munge"),
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="slurmd needs root"),
]
CLUSTER = "examples/two-jobs-cluster.toml"
NODES = [f"node{i:02}" for i in range(16)]
CONF = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
TopologyPlugin=topology/tree
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node[00-15] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    """A run of ports that nobody listens on."""
    for first in range(20000 + os.getpid() % 10000, 60000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def until(holds, what, seconds=60):
    """Wait for something to hold."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.2)


class Slurm:
    """A running SLURM, and its tools."""

    def __init__(self, folder, topology):
        self.folder, self.daemons = folder, []
        first = free_ports(len(NODES) + 1)
        for name in ("state", *NODES):
            (folder / name).mkdir()
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        text = CONF.format(folder=folder, port=first, first=first + 1, last=first + len(NODES))
        (folder / "slurm.conf").write_text(text)
        for gpu in ("gpu0", "gpu1"):
            (folder / gpu).touch()
        (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={folder}/gpu[0-1]\n")
        (folder / "topology.conf").write_text(topology)
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self, *command):
        with open(self.folder / f"daemon-{len(self.daemons)}.out", "wb") as log:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def open(self):
        files = {"socket": "munge", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        options = (f"--{name}={self.folder / file}" for name, file in files.items())
        self.start("munged", "--foreground", "--force", *options)
        until((self.folder / "munge").exists, "munged does not start")
        self.start("slurmctld", "-D", "-c")
        for node in NODES:
            self.start("slurmd", "-D", "-N", node)
        until(lambda: sum(self.nodes().values()) == len(NODES), "nodes do not come up")

    def close(self):
        try:
            self.run("scancel", "--user=root")
            until(lambda: not self.run("squeue", "--noheader"), "jobs do not end")
        finally:
            for daemon in reversed(self.daemons):
                daemon.terminate()
                try:
                    daemon.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    daemon.kill()

    def run(self, *command, **more):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, **more)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def nodes(self):
        done = subprocess.run(["sinfo", "--json"], env=self.environment, capture_output=True, text=True, timeout=60)
        return read_queue(done.stdout).nodes if done.returncode == 0 else {}

    def jobs(self):
        return {job.name: job for job in read_queue(self.run("squeue", "--json")).jobs}


@pytest.fixture
def slurm(tmp_path):
    fabric = for_cluster("fat-tree", weft.resolve_cluster(CLUSTER), radix=16, oversubscription=4.0)
    folder = tmp_path / "slurm"
    folder.mkdir()
    running = Slurm(folder, write_conf(fabric))
    try:
        running.open()
        yield running
    finally:
        running.close()


SITE = """\
schema = "weft.site/1"
name = "real"
cluster = "cluster.toml"
fabric = "topology.txt"
oversubscription = [4.0]
slurm = ["jobs.json", "nodes.json"]
[switches]
routing = ["ecmp", "planned"]
"""
JOBS = {
    "a": {"layout": "x=2,data=4", "hosts": ["node12", "node00", "node08", "node04"]},
    "b": {"layout": "data=4", "may": "reorder"},
    "c": {"layout": "x=2"},
    "d": {},
}
SUBMITTED = {
    "a": ["--nodelist=node[00,04,08,12]"],
    "b": ["--nodelist=node[01,05]"],
    "c": ["--nodes=4", "--hold"],
    "d": ["--nodes=2", "--hold"],
    "other": ["--nodelist=node09"],
}


def test_jobs_of_a_queue_start_where_they_are_arranged(slurm, tmp_path):
    slurm.run("scontrol", "update", "nodename=node15", "state=drain", "reason=test")
    for name, options in SUBMITTED.items():
        words = [f"--job-name={name}", f"--output={tmp_path}/%j.out", "--exclusive", *options]
        slurm.run("sbatch", *words, "--wrap=sleep 600")
    until(lambda: sum(len(job.nodes) for job in slurm.jobs().values()) == 7, "jobs do not start")
    (tmp_path / "jobs.json").write_text(slurm.run("squeue", "--json"))
    (tmp_path / "nodes.json").write_text(slurm.run("sinfo", "--json"))
    (tmp_path / "topology.txt").write_text(slurm.run("scontrol", "show", "topology"))
    written = (slurm.folder / "topology.conf").read_text()
    assert write_conf(read_topology((tmp_path / "topology.txt").read_text())) == written

    shutil.copy(CLUSTER, tmp_path / "cluster.toml")
    lines = [SITE]
    for name, fields in JOBS.items():
        lines += ["[[jobs]]", 'model = "tiny-gpt"', "batch = 8"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in ({"name": name} | fields).items()]
    (tmp_path / "site.toml").write_text("\n".join(lines) + "\n")
    arrangement = weft.arrange(tmp_path / "site.toml", budget="5s")
    path = tmp_path / "arranged.json"
    path.write_text(arrangement.to_json())
    bundle = read_bundle(path)
    hosts = {job.name: bundle.host_names(number) for number, job in enumerate(bundle.site.jobs)}
    assert {name: len(set(nodes)) for name, nodes in hosts.items()} == {"a": 4, "b": 2, "c": 4, "d": 2}
    assert list(dict.fromkeys(hosts["a"])) == JOBS["a"]["hosts"]  # not the order in which SLURM would start ranks
    assert set(hosts["b"]) == {"node01", "node05"}
    assert not {"node09", "node15"} & {node for nodes in hosts.values() for node in nodes}

    slurm.run("scancel", *(str(job.number) for name, job in slurm.jobs().items() if name != "other"))
    until(lambda: set(slurm.jobs()) == {"other"}, "jobs do not end")
    program = 'echo $RANK $SLURMD_NODENAME $WORLD_SIZE $MASTER_ADDR; until [ -e "$0" ]; do sleep 0.2; done'
    for name in JOBS:
        arranged_arguments("slurm", str(path), name, folder=str(tmp_path / name))
        script = str(tmp_path / name / "job.slurm")
        slurm.run("sbatch", script, "bash", "-c", program, str(tmp_path / "go"), cwd=tmp_path)
    until(lambda: sum(len(job.nodes) for job in slurm.jobs().values()) == 13, "arranged jobs do not start")
    running = slurm.jobs()
    assert {name: set(running[name].nodes) for name in JOBS} == {name: set(nodes) for name, nodes in hosts.items()}
    (tmp_path / "go").touch()
    until(lambda: set(slurm.jobs()) == {"other"}, "arranged jobs do not end")
    for name, nodes in hosts.items():
        (out,) = tmp_path.glob(f"{name}-*.out")
        ranks = sorted((line.split() for line in out.read_text().splitlines()), key=lambda words: int(words[0]))
        assert ranks == [[str(rank), node, str(len(nodes)), nodes[0]] for rank, node in enumerate(nodes)]
