"""What logs of NCCL_DEBUG=INFO (NCCL or RCCL) say of the network that a run really uses."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.errors import BadInput
from weft.files import read_text
from weft.units import counted

LARGEST_BYTES = 500 * 10**6
LONGEST_LINE = 4000
"""Longer lines list the ranks of a ring, or are of other programs: connections, devices and settings are short."""
FEW = 4
"""GPUs for each NIC from which on there are few NICs."""
_LINE = re.compile(r"(?<![^\s:>\]])([^\s:>\]]+):(\d{1,10}):\d{1,10} \[(\d{1,4})\] (?:\S+:\d+ )?NCCL (INFO|WARN) (.*)")
_CHANNEL = re.compile(r"(?:Channel|Ring) \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[(send|receive)\] )?via (.+)")
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


def is_nccl_log(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a log with lines of NCCL, and no JSON trace (which may be packed)."""
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
    for line in text.splitlines():
        if len(line) > LONGEST_LINE or "NCCL " not in line or not (matched := _LINE.search(line)):
            continue
        host, process, gpu, level, words = matched.groups()
        hosts[host].add((process, gpu))
        if level == "WARN":
            warning = warning or f"{host}: {words.strip()}"
        elif channel := _CHANNEL.search(words):
            way, via = channel.groups()
            transport, network, device = [*via.split("/"), "", ""][:3]
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
    )


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
