"""What logs of NCCL_DEBUG=INFO (NCCL or RCCL) say of the network that a run really uses."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.errors import BadInput
from weft.files import read_text
from weft.units import counted

LARGEST_BYTES = 500 * 10**6
LONGEST_LINE = 100_000
"""Of a ring's ranks; longer lines are of other programs."""
FEW = 4
"""GPUs for each NIC from which on there are few NICs."""
_LINE = re.compile(
    r"(?<![^\s:>\]])([^\s:>\]]+):(\d{1,10}):(\d{1,10}) \[(\d{1,4})\] (?:\S+:\d+ )?NCCL (INFO|WARN) (.*)"
)
_CHANNEL = re.compile(
    r"(?:Channel|Ring) (\d{1,4})(?:/\d+)? : (\d{1,9})(?:\[\w+\])? -> (\d{1,9})(?:\[\w+\])?"
    r" (?:\[(send|receive)\] )?via (.+)"
)
_RING = re.compile(r"Channel (\d{1,4})/\d{1,4} :((?:\s+\d{1,9}){2,})\s*$")
_HOP = re.compile(r"Ring (\d{1,4}) : (\d{1,9}) -> (\d{1,9}) -> (\d{1,9})\s*$")
_TREE = re.compile(r"\[(\d{1,4})\] (?:-?\d{1,9}/){2}-?\d{1,9}->(\d{1,9})->(-?\d{1,9})(?!\S)")
_OF_SETUP = re.compile(r"Trees \[|Ring \d{1,4} : \d+ -> \d+ ->|Channel \d{1,4}/\d{1,4} :\s")
_COMMUNICATOR = re.compile(
    r"\bcomm (0x[0-9a-f]{1,16}) rank (\d{1,9}) n[rR]anks (\d{1,9})\b"
    r"(?:.* nvmlDev (\d{1,4})\b)?(?:.* commId (0x[0-9a-f]{1,16}))?"
)
_OPERATION = re.compile(
    r"(\w{1,20}): opCount [0-9a-f]+ sendbuff \S+ recvbuff \S+ count (\d{1,15}) datatype (\d{1,2}) op \d+"
    r" root (\d{1,9}) comm (0x[0-9a-f]{1,16}) "
)
_CHOICE = re.compile(r"(\w{1,20}): (\d{1,18}) Bytes -> Algo (\w{1,20}) ")
_TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of NCCL's datatypes by their numbers."""
_RANKS = re.compile(r"\brank \d+ n[rR]anks (\d{1,9})\b")
_DEVICE = re.compile(r"\[(\d{1,4})\]([^\s:]{1,99}):\S+")
_SET = re.compile(r"\b(NCCL_\w+) set by environment to (\S+?)\.?\s*$")
_JSON = re.compile(rb"\s*(?:\{|\[\s*(?:\{|$)|\x1f\x8b)")
"""How traces begin: an object, a list of objects, or a packed file."""
_HARMFUL: Mapping[str, tuple[str, str]] = {
    "NCCL_P2P_DISABLE": ("1", "GPUs of a host do not exchange over NVLink"),
    "NCCL_IB_DISABLE": ("1", "InfiniBand and RoCE are off"),
    "NCCL_NET_GDR_LEVEL": ("0|LOC", "GPUDirect RDMA is off"),
    "NCCL_MAX_NCHANNELS": ("[1-4]", "few channels"),
    "NCCL_MAX_CTAS": ("[1-4]", "few channels"),
}
"""Variables, the values that slow NCCL down, and what they do."""


class Gpu(NamedTuple):
    """A GPU of a process; ``device`` is its number on the host where the log has it, otherwise in the process."""

    host: str
    process: int
    number: int
    device: int


class Operation(NamedTuple):
    """A call of a collective, or of Send to ``root``; ``bytes`` are its count times the size of the type."""

    name: str
    bytes: int
    root: int
    communicator: int


@dataclass(slots=True, kw_only=True)
class Communicator:
    """Ranks that communicate, and connections (channel, from, to): in rings, towards the roots of trees, and all.
    ``mixed``: two processes say that they have one rank."""

    size: int
    mixed: bool = False
    members: dict[int, Gpu] = field(default_factory=dict)
    rings: set[tuple[int, int, int]] = field(default_factory=set)
    trees: set[tuple[int, int, int]] = field(default_factory=set)
    connections: set[tuple[int, int, int]] = field(default_factory=set)

    def inside(self, links: set[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
        """Those between ranks that it has: broken lines name others."""
        return {link for link in links if 0 <= min(link[1:]) <= max(link[1:]) < self.size}


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclLog:
    """The connections of all communicators, as the processes of the logs report them.

    Attributes:
        ranks: of the largest communicator; 0 where no line says.
        hosts: for each host that logged, how many GPUs did: ranks would not do, each communicator numbers its own.
        devices: for each host, the devices over which its ranks send to other hosts, by name where the log has it.
        network: what NCCL calls its transport between hosts: IB, Socket, or a plugin's name; empty where none sends.
        direct, copied: channels between hosts with GPUDirect RDMA and without.
        local: channels inside hosts by transport: P2P, SHM.
        settings: variables of NCCL that the environment sets.
        warning: the first warning.
        communicators: of several ranks, in the order in which they appear.
        operations: of each GPU in order, where the log has them (``NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL``).
        over_trees: names and bytes of operations that NCCL says it sends over trees (subsystem TUNING).
    """

    ranks: int
    hosts: Mapping[str, int]
    devices: Mapping[str, frozenset[str]]
    network: str
    direct: int
    copied: int
    local: Mapping[str, int]
    settings: Mapping[str, str]
    warning: str
    communicators: tuple[Communicator, ...] = ()
    operations: Mapping[Gpu, Sequence[Operation]] = field(default_factory=dict)
    over_trees: frozenset[tuple[str, int]] = frozenset()


def is_nccl_log(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a log with lines of NCCL, and no JSON trace (which may be packed)."""
    if not os.path.isfile(path):  # what a pipe gives cannot be read twice
        return False
    try:
        with open(path, "rb") as file:
            if _JSON.match(file.readline(1 << 16)):
                return False
            file.seek(0)
            return any(b"NCCL INFO" in line for line in file)
    except OSError:
        return False


def read_nccl_logs(*paths: str) -> NcclLog:
    """The connections that the logs of a run tell of; lines of other programs, and broken ones, are passed over.

    Raises:
        BadInput: no line tells of a connection or a rank.
    """
    where = ", ".join(paths[:3])
    text = "\n".join(read_text(path, largest=LARGEST_BYTES, raw=True, coloured=True) for path in paths)
    hosts: dict[str, set[tuple[str, str]]] = defaultdict(set)
    devices: dict[str, set[str]] = defaultdict(set)
    local, networks = Counter[str](), Counter[str]()
    names: dict[tuple[str, str], str] = {}
    settings: dict[str, str] = {}
    ranks = direct = copied = 0
    warning = ""
    groups = _Setups()
    for line in text.splitlines():
        if len(line) > LONGEST_LINE or "NCCL " not in line or not (matched := _LINE.search(line)):
            continue
        host, process, thread, gpu, level, words = matched.groups()
        hosts[host].add((process, gpu))
        if level == "INFO":
            groups.read(Gpu(host, int(process), int(gpu), int(gpu)), thread, words)
        if level == "WARN":
            warning = warning or f"{host}: {words.strip()}"
        elif channel := _CHANNEL.search(words):
            way, via = channel.groups()[3:]  # RCCL adds the communicator
            transport, network, device = [*via.partition(" comm ")[0].split("/"), "", ""][:3]
            if transport != "NET":
                local[transport] += 1
            elif way == "send":
                networks[network] += 1
                devices[host].add(device.partition("(")[0])
                direct += "GDRDMA" in via
                copied += "GDRDMA" not in via
        elif setting := _SET.search(words):
            settings[setting[1]] = setting[2]
        elif ": Using [" in words and "NET/" in words:
            names |= {(host, number): name for number, name in _DEVICE.findall(words)}
        elif size := _RANKS.search(words):
            ranks = max(ranks, int(size[1]))
    if not (ranks or local or networks):
        raise BadInput(
            "has no lines of NCCL's connections", where=where, remedy="run with NCCL_DEBUG=INFO and keep its start"
        )
    return NcclLog(
        ranks=ranks,
        hosts={host: len(each) for host, each in sorted(hosts.items())},
        devices={
            host: frozenset(names.get((host, device), device) for device in each)
            for host, each in sorted(devices.items())
        },
        network=max(networks, key=networks.__getitem__, default=""),
        direct=direct,
        copied=copied,
        local=dict(sorted(local.items())),
        settings=dict(sorted(settings.items())),
        warning=warning,
        communicators=tuple(groups.communicators),
        operations=groups.operations,
        over_trees=frozenset(groups.over_trees),
    )


class _Setups:
    """Communicators and operations, from the lines of all processes."""

    def __init__(self) -> None:
        self.communicators: list[Communicator] = []
        self.operations: dict[Gpu, list[Operation]] = defaultdict(list)
        self.over_trees: set[tuple[str, int]] = set()
        self._numbers: dict[tuple[str, int], int] = {}
        self._set_up = Counter[tuple[str, int, int]]()
        self._of_pointer: dict[tuple[str, int, str], tuple[int, Gpu]] = {}
        self._last: dict[tuple[str, int, str], tuple[int, Gpu]] = {}
        self._latest: dict[Gpu, tuple[int, Gpu]] = {}
        self._in_setup: set[tuple[str, int, str]] = set()
        self._waiting: dict[tuple[str, int, str], list[str]] = defaultdict(list)

    def read(self, gpu: Gpu, thread: str, words: str) -> None:
        """Take what a line says; pointers are of a process, and lines of a setup follow each other in a thread."""
        process = gpu.host, gpu.process
        if operation := _OPERATION.search(words):
            name, count, kind, root, pointer = operation.groups()
            number, member = self._of_pointer.get((*process, pointer), (-1, gpu))
            known = number >= 0 and int(root) < self.communicators[number].size
            if known and int(kind) < len(_TYPE_BYTES):
                size = int(count) * _TYPE_BYTES[int(kind)]
                self.operations[member].append(Operation(name, size, int(root), number))
            return
        if choice := _CHOICE.search(words):
            if choice[3].upper() in ("0", "TREE"):
                self.over_trees.add((choice[1], int(choice[2])))
            return
        place = (*process, thread)
        if stated := _COMMUNICATOR.search(words):
            self._join(gpu, thread, stated)
            if words.rstrip().endswith("COMPLETE"):
                self._in_setup.discard(place)
            else:
                self._in_setup.add(place)
            for line in self._waiting.pop(place, ()):
                self._connect(self._last[place][0], line)
        elif place not in self._in_setup and (place in self._waiting or _OF_SETUP.match(words)):
            # Before NCCL 2.17 a communicator is named only where its setup ends.
            self._waiting[place].append(words)
        else:
            self._connect((self._last.get(place) or self._latest.get(gpu) or (-1, gpu))[0], words)

    def _connect(self, number: int, words: str) -> None:
        """Add the rings, trees or connections of a line to a communicator."""
        if number < 0:
            return
        communicator = self.communicators[number]
        if ring := _RING.match(words):
            ranks = [int(word) for word in ring[2].split()]
            links = {(int(ring[1]), a, b) for a, b in zip(ranks, [*ranks[1:], ranks[0]], strict=True)}
            communicator.rings |= communicator.inside(links)
        elif hop := _HOP.match(words):
            channel, before, own, after = map(int, hop.groups())
            communicator.rings |= communicator.inside({(channel, before, own), (channel, own, after)})
        elif words.startswith("Trees"):
            found = [[int(word) for word in tree] for tree in _TREE.findall(words)]
            communicator.trees |= communicator.inside({(channel, own, up) for channel, own, up in found})
        elif connection := _CHANNEL.match(words):
            channel, source, target = map(int, connection.groups()[:3])
            communicator.connections |= communicator.inside({(channel, source, target)})

    def _join(self, gpu: Gpu, thread: str, stated: re.Match[str]) -> None:
        """A rank of a communicator: new, or set up before."""
        pointer, rank, size, device, name = stated.groups()
        place = gpu.host, gpu.process, pointer
        member = gpu._replace(device=int(device)) if device else gpu
        if place not in self._of_pointer or name:
            # Without its name (before NCCL 2.17), a process's first communicator of a size belongs to the first of
            # the others.
            alike = (*place[:2], int(size))
            key = (name or f"number {self._set_up[alike]}", int(size))
            self._set_up[alike] += place not in self._of_pointer
            if key not in self._numbers:
                self._numbers[key] = len(self.communicators)
                self.communicators.append(Communicator(size=int(size)))
            self._of_pointer[place] = self._numbers[key], member
            communicator = self.communicators[self._numbers[key]]
            communicator.mixed |= communicator.members.setdefault(int(rank), member) != member
        self._last[(*place[:2], thread)] = self._latest[gpu] = self._of_pointer[place]


def faults(log: NcclLog) -> Iterator[str]:
    """What slows this network down and what to do about it, the worst first."""
    if log.network.startswith("Socket"):
        yield (
            "NCCL sends over TCP sockets, not over InfiniBand or RoCE: pass the devices into the container, load the"
            " verbs library or the cloud's plugin, look for 'NET/IB : No device found' and NCCL_IB_HCA"
        )
    elif log.copied > log.direct:
        yield (
            f"{log.copied} of {log.copied + log.direct} connections between hosts go through host memory, without"
            " GPUDirect RDMA: load nvidia-peermem or a DMA-BUF driver, and turn PCIe ACS off"
        )
    if not log.network.startswith("Socket") and (host := _few_devices(log)):
        used, gpus = log.devices[host], log.hosts[host]
        yield (
            f"host {host} sends over {counted(len(used), 'NIC')} for {counted(gpus, 'GPU')}"
            f" ({', '.join(sorted(used))}): check NCCL_IB_HCA, links that are down (ibstat), and that the container"
            " sees all"
        )
    if log.local.get("SHM", 0) > log.local.get("P2P", 0):
        yield (
            "GPUs of a host exchange through shared memory, not over NVLink: NCCL_P2P_DISABLE, IOMMU or ACS, or"
            " containers that see one GPU each"
        )
    for name, (values, effect) in _HARMFUL.items():
        if re.fullmatch(values, log.settings.get(name, ""), re.IGNORECASE):
            yield f"{name}={log.settings[name]} is set: {effect}"
    if log.warning:
        yield f"NCCL warns: {log.warning[:200]}"


def _few_devices(log: NcclLog) -> str | None:
    """A host that sends over fewer NICs than one of as many GPUs, or over one for four GPUs or more."""
    most = Counter[int]()
    for host, used in log.devices.items():
        most[log.hosts[host]] = max(most[log.hosts[host]], len(used))
    for host, used in log.devices.items():
        if len(used) < most[log.hosts[host]] or len(used) * FEW <= log.hosts[host]:
            return host
    return None
