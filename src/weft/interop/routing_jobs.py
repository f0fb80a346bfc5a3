"""Job files of the routing paper's code (arXiv 2503.05324; github.com/ofircohen205/dcn-simulators).

One file a job, ``job_<id>-<MODEL>.txt``; a header, then a line for each edge of a ring:
``src dst src_tor dst_tor start_time flow_size compute_time stage_index``, times in ns, sizes in bytes.  Each
stage is a separate ring that runs a ring all-reduce, 2 (ring - 1) rounds.  Node numbers are those of a
two-layer Clos: ToRs first, then spines, then the hosts ToR by ToR.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.errors import BadInput
from weft.fabric.build import start
from weft.fabric.families import clos
from weft.fabric.spec import SCALE_UP, Fabric, Ints
from weft.files import read_text
from weft.routing.traffic import JobTraffic, job_traffic, merged

COLUMNS = "src dst src_tor dst_tor start_time flow_size compute_time stage_index"
_NAME = re.compile(r"job_(\d+)-(.+)\.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """Which numbers the nodes of a two-layer Clos have in job files: the paper's by default."""

    tors: int = 64
    spines: int = 32
    hosts_per_tor: int = 32

    @property
    def first_host(self) -> int:
        return self.tors + self.spines

    @property
    def hosts(self) -> int:
        return self.tors * self.hosts_per_tor


def numbering(fabric: Fabric) -> Numbering:
    """The numbers that the nodes of a two-layer fabric have: its leaves, the other switches, its
    accelerators.
    """
    hosts = fabric.accelerators
    nics = np.flatnonzero((fabric.tier > SCALE_UP) & (fabric.source < hosts))
    leaf = np.full(hosts, -1, dtype=np.int64)
    leaf[fabric.source[nics]] = fabric.target[nics]
    tors = len(np.unique(leaf))
    if hosts % tors or np.any(leaf != np.repeat(np.unique(leaf), hosts // tors)):
        raise BadInput(
            f"the hosts of {fabric.name} are not in order below leaves of one size",
            where="job files",
            remedy="give the flows as CSV",
        )
    spines = int(np.count_nonzero(fabric.role != 0)) - tors
    return Numbering(tors=tors, spines=spines, hosts_per_tor=hosts // tors)


def paper_fabric(numbering: Numbering | None = None) -> Fabric:
    """The paper's network: 64 ToRs with 32 hosts each, 32 spines, all links of 100 Gb/s, no latency.

    Another numbering gives the network that it numbers, each ToR joined to each spine once.
    """
    form = numbering or Numbering()
    members = np.arange(form.hosts, dtype=np.int64)
    builder = start(f"{form.tors} ToRs x {form.spines} spines", form.hosts, None)
    shape = clos.ClosShape(
        radix=max(form.hosts_per_tor + form.spines, form.tors),
        units=(form.tors, 1),
        joins=(form.hosts_per_tor, form.tors),
        per_unit=(1, form.spines),
        uplinks=(form.spines, 0),
    )
    clos.wire(
        builder,
        members,
        members // form.hosts_per_tor,
        shape,
        port_Bps=12.5e9,
        nic_latency_s=0.0,
        switch_latency_s=0.0,
    )
    return builder.build()


def read_jobs(folder: str | os.PathLike[str], numbering: Numbering | None = None) -> JobTraffic:
    """All jobs of a folder of job files, by their ids."""
    where = os.fspath(folder)
    try:
        names = sorted(os.listdir(where))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=where, remedy="give a folder of job files") from None
    result = sorted((int(match[1]), match[2], match[0]) for name in names if (match := _NAME.fullmatch(name)))
    if not result:
        raise BadInput("holds no job file", where=where, remedy="name them like job_0-BLOOM.txt")
    form = numbering or Numbering()
    paths = [(Path(where, file), f"job_{number}-{model}") for number, model, file in result]
    return merged([parse_job(read_text(path, where=str(path)), name, form, str(path)) for path, name in paths])


def parse_job(text: str, name: str, numbering: Numbering, where: str) -> JobTraffic:
    """The job of a file's text, under a name."""
    table = _numbers(text, where)
    source = _hosts(table[:, 0], table[:, 2], numbering, where)
    target = _hosts(table[:, 1], table[:, 3], numbering, where)
    stages, stage = np.unique(table[:, 7], return_inverse=True)
    start, size, pause = table[:, 4] / 1e9, table[:, 5].astype(np.float64), table[:, 6] / 1e9
    if len(np.unique(table[:, 4])) > 1 or len(np.unique(table[:, 6])) > 1:
        raise BadInput("its lines differ in start_time or compute_time", where=where, remedy="one job a file")
    return job_traffic(
        source,
        target,
        size,
        collective=stage,
        rounds=_rounds(source, target, stage, len(stages), where),
        names=[f"stage {number}" for number in stages.tolist()],
        job=np.zeros(len(stages), dtype=np.int64),
        jobs=(name,),
        start_s=start[:1],
        pause_s=pause[:1],
    )


def _numbers(text: str, where: str) -> Ints:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if len(words) != 8 or not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
            raise BadInput(
                f"{line[:60]!r} is not a flow", where=f"{where}: line {number}", remedy=f"8 whole numbers: {COLUMNS}"
            )
        rows.append([int(word) for word in words])
    if not rows:
        raise BadInput("holds no flow", where=where, remedy=f"a line a flow: {COLUMNS}")
    return np.array(rows, dtype=np.int64)


def _hosts(numbers: Ints, tors: Ints, form: Numbering, where: str) -> Ints:
    hosts = numbers - form.first_host
    strange = np.flatnonzero((hosts < 0) | (hosts >= form.hosts))
    if len(strange):
        last = form.first_host + form.hosts - 1
        raise BadInput(
            f"node {numbers[strange[0]]} is not a host",
            where=where,
            remedy=f"hosts are {form.first_host} to {last} on {form.tors} ToRs x {form.spines} spines",
        )
    wrong = np.flatnonzero(hosts // form.hosts_per_tor != tors)
    if len(wrong):
        host, tor = numbers[wrong[0]], tors[wrong[0]]
        raise BadInput(
            f"host {host} is not below ToR {tor}",
            where=where,
            remedy="the ToR follows from the host's number; correct one of them",
        )
    return hosts


def _rounds(source: Ints, target: Ints, stage: Ints, stages: int, where: str) -> Ints:
    """2 (r-1) for a stage that is one ring of r hosts, or several rings of r hosts each."""
    rounds = np.zeros(stages, dtype=np.int64)
    for number in range(stages):
        after = dict(zip(source[stage == number].tolist(), target[stage == number].tolist(), strict=True))
        if len(after) != int((stage == number).sum()) or set(after) != set(after.values()):
            raise BadInput(
                f"stage {number} is not a ring", where=where, remedy="each host sends to one and receives from one"
            )
        lengths = _cycles(after)
        if len(lengths) > 1:
            raise BadInput(
                f"stage {number} holds rings of {' and '.join(map(str, sorted(lengths)))}",
                where=where,
                remedy="give each ring its own stage",
            )
        rounds[number] = 2 * (lengths.pop() - 1)
    return rounds


def _cycles(after: dict[int, int]) -> set[int]:
    """Lengths of the cycles of a permutation."""
    left, lengths = set(after), set()
    while left:
        node, length = min(left), 0
        while node in left:
            left.discard(node)
            node, length = after[node], length + 1
        lengths.add(length)
    return lengths
