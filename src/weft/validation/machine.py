"""The cluster of a run: the accelerator that its name means, the scale-up domain and the network."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from weft.cluster import catalogue
from weft.cluster.spec import Accelerator, Cluster, TierKind
from weft.errors import BadInput
from weft.validation.divide import largest_divisor
from weft.validation.runs import Run

SITES = {"perlmutter": ("perlmutter-80gb", 4), "frontier": ("frontier", 8), "alps": ("alps", 4)}
"""Machines of the catalogue that a table may name, and the accelerators of their nodes."""

_JOINED = (
    (re.compile(r"\b\d+\s*x\s*"), ""),
    (re.compile(r"(\d+)\s*(gi?b)\b"), r"\1gb"),
    (re.compile(r"\b(tpu|gaudi|rtx|dgx|hgx)[\s_-]*(v?\d)"), r"\1-\2"),
    (re.compile(r"\bgaudi-(\d)"), r"gaudi\1"),
    (re.compile(r"v5[\s_-]*lite(pod)?"), "v5e"),
    (re.compile(r"\btrillium\b"), "tpu-v6e"),
)
_GIGABYTES = re.compile(r"(?<![\d.])(\d{2,3})\s*gi?b\b(?!/s)", re.I)
_MEMORY_SPEED = re.compile(r"(\d+(?:\.\d+)?)\s*TB/s", re.I)
_POWER = re.compile(r"(\d{2,4})\s*W\b")
_NETWORK = re.compile(
    r"(?:(\d+)\s*[x×]\s*)?(\d+(?:\.\d+)?)\s*(Gb/s|Gbps|Gbit/s|GB/s)[^;,.)]{0,20}?"  # noqa: RUF001
    r"(?:per|/|a)\s*(node|server|host|gpu|accelerator|gcd|chip)",
    re.I,
)
USABLE = 0.98
"""Share of the memory on the label that an application sees, where only that is known."""
SAME = 0.08
"""Relative difference up to which a stated memory is the catalogue's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A cluster and what was assumed of it."""

    cluster: Cluster
    assumptions: tuple[str, ...]


def machine(run: Run) -> Machine:
    """The cluster of a run.

    Raises:
        BadInput: no accelerator of the catalogue is named.
    """
    count = run.gpus or 1
    words = f"{run.gpu} {run.source}".lower()
    for site, (preset, node) in SITES.items():
        if re.search(rf"\b{site}\b", words) and count % node == 0:
            cluster = catalogue.load(f"{preset}-{count}")
            return Machine(cluster=cluster, assumptions=(f"network of {preset}",))
    assumed: list[str] = []
    chip = _stated(run, named_accelerator(run.gpu), assumed)
    domain = _domain(run, chip, count, assumed)
    chip = replace(chip, scale_up_size=domain, nic_Bps=_nic(run, chip, assumed))
    kind: TierKind | None = "switch" if "dgx-2" in run.gpu.lower() else None
    tiers = catalogue.default_tiers(chip, count, kind=kind)
    name = f"{chip.name} x {count}"
    return Machine(cluster=Cluster(name=name, accelerator=chip, count=count, tiers=tiers), assumptions=tuple(assumed))


def named_accelerator(text: str) -> Accelerator:
    """The accelerator of the catalogue whose name has most words in common with ``text``, all of them in it.

    Raises:
        BadInput: there is none.
    """
    words = _words(text)
    fitting = [name for name in catalogue.accelerator_names() if set(name.split("-")) <= words]
    if not fitting:
        raise BadInput(f"accelerator {text!r} is not in the catalogue")
    return catalogue.accelerator(max(fitting, key=lambda name: (len(name.split("-")), len(name), name)))


def _words(text: str) -> set[str]:
    plain = text.lower()
    for pattern, put in _JOINED:
        plain = pattern.sub(put, plain)
    return set(re.split(r"[^a-z0-9]+", plain))


def _stated(run: Run, chip: Accelerator, assumed: list[str]) -> Accelerator:
    """The accelerator with the memory, its bandwidth and the power that the name states."""
    stated = chip
    if found := _GIGABYTES.search(run.gpu):
        memory = float(found[1]) * 1e9
        if abs(memory / chip.memory_bytes - 1) > SAME:
            stated = replace(stated, memory_bytes=USABLE * memory)
    if found := _MEMORY_SPEED.search(run.gpu):
        stated = replace(stated, memory_Bps=float(found[1]) * 1e12)
    if found := _POWER.search(run.gpu):
        stated = replace(stated, power_w=float(found[1]))
    if stated != chip:
        assumed.append(f"{chip.name} but for the memory and power that the accelerator's name states")
    return stated


def _domain(run: Run, chip: Accelerator, count: int, assumed: list[str]) -> int:
    """Accelerators of a scale-up domain: the most that fill domains evenly, up to the stated size."""
    size = run.nodes_gpus or chip.scale_up_size
    if run.nodes_gpus is None:
        assumed.append(f"scale-up domains of {size} (not stated)")
    domain = largest_divisor(count, size)
    if domain < min(size, count):
        assumed.append(f"{domain} accelerators used of each scale-up domain of {size}")
    return domain


def _nic(run: Run, chip: Accelerator, assumed: list[str]) -> float:
    """Bytes/s per accelerator and direction between domains."""
    node = run.nodes_gpus or chip.scale_up_size
    if (run.gpus or 1) <= node:
        return chip.nic_Bps
    found = _NETWORK.search(f"{run.notes}; {run.gpu}")
    if found is None:
        assumed.append(f"network of {chip.nic_Bps * 8e-9:g} Gb/s an accelerator (as {chip.name}; not stated)")
        return chip.nic_Bps
    links, speed, unit, owner = found.groups()
    Bps = float(links or 1) * float(speed) * (1e9 if unit[1] == "B" else 1.25e8)
    return Bps / (node if owner.lower() in ("node", "server", "host") else 1)
