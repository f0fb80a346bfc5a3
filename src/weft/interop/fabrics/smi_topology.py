"""One server from the matrix that ``nvidia-smi topo -m`` prints, as a fabric of one scale-up domain.

NV# joins two accelerators by # NVLinks, or all of them by a switch, where the links to every other one would be more
than a GPU has.  Every NIC is a node of role "nic" at the accelerator that is nearest (PIX before PXB, PHB, NODE and
SYS), the one with the fewest if several are.  Where some accelerator has no NVLink, PCI bridges (PIX, PXB), processors
(PHB, NODE) and the links between these (SYS) join them as well.

The matrix tells no speeds: an NVLink counts 25 GB/s per direction (generations 2 to 4; ``capacity_Bps`` gives
another), PCI what NCCL counts for 16 lanes of generation 4, and 16 GB/s between processors.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.errors import BadInput, InDoubt
from weft.fabric.assemble import ACCELERATOR, SCALE_UP_SWITCH, Cable, Node, assemble
from weft.fabric.spec import SCALE_UP, Fabric
from weft.interop.fabrics.nccl_topology import BETWEEN_CPUS_Bps

NVLINK_Bps, PCI_Bps = 25e9, 24e9
MOST_NVLINKS, MOST_DEVICES, LONGEST_LINE = 18, 256, 8000
_FAR = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SOC": 4, "SYS": 4}
_BRIDGE, _PROCESSOR, _ANYWHERE = 1, 3, 4
_NVLINKS = re.compile(r"NV(\d{1,3})")
_LEGEND = re.compile(r"(NIC\d{1,3}): ([\w.-]{1,60})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    """Devices in order, and what stands between two of them."""

    gpus: list[str]
    nics: list[str]
    between: dict[tuple[str, str], str]
    names: dict[str, str]

    def nvlinks(self, one: str, other: str) -> int:
        match = _NVLINKS.fullmatch(self.between[one, other])
        return int(match[1]) if match else 0

    def far(self, one: str, other: str) -> int:
        """How far apart two devices are over PCI."""
        return _FAR.get(self.between[one, other], 0)


def looks(text: str) -> bool:
    return re.search(r"^[ \t]++GPU0[ \t]", text[:20_000], re.MULTILINE) is not None


def read(
    text: str, *, where: str = "nvidia-smi topo", capacity_Bps: float | None = None, latency_s: float = 0.5e-6
) -> Fabric:
    """The server of a matrix; warns (``InDoubt``) that its speeds are assumed.

    Args:
        capacity_Bps: of an NVLink, bytes/s per direction.
        latency_s: of every link.

    Raises:
        BadInput: no matrix, or one that is not whole.
    """
    matrix = _matrix(text, where)
    rate = NVLINK_Bps if capacity_Bps is None else capacity_Bps
    warnings.warn(
        f"{where}: nvidia-smi tells no speeds: NVLinks of {rate / 1e9:g} GB/s and PCI of {PCI_Bps / 1e9:g} GB/s are"
        " assumed -- give --link-speed for NVLinks, or NCCL's topology file",
        InDoubt,
        stacklevel=2,
    )
    nodes = [Node(name=g, role=ACCELERATOR, domain=0, rail=i, place=g) for i, g in enumerate(matrix.gpus)]
    ways, joined = _nvlinks(matrix, rate)
    if any(end == "nvswitch" for way in ways for end in way[:2]):
        nodes.append(Node(name="nvswitch", role=SCALE_UP_SWITCH, place="NVLinks"))
    if len(matrix.gpus) > 1 and joined < set(matrix.gpus):
        tree = list(_pci(matrix))
        names = dict.fromkeys(end for way in tree for end in way[:2] if end not in matrix.gpus)
        nodes += [Node(name=name, role=name.rstrip("0123456789"), place="PCI") for name in names]
        ways += tree
    nodes += [Node(name=matrix.names.get(nic, nic), role="nic", place=nic) for nic in matrix.nics]
    ways += [(gpu, matrix.names.get(nic, nic), PCI_Bps, 1) for nic, gpu in _nearest(matrix)]
    links = [
        Cable(
            source=one,
            target=other,
            capacity_Bps=capacity,
            latency_s=latency_s,
            cables=cables,
            tier=SCALE_UP,
            place=f"{one} - {other}",
        )
        for one, other, capacity, cables in ways
    ]
    return assemble("nvidia-smi topology", nodes, links, where=where)


def _matrix(text: str, where: str) -> _Matrix:
    lines = [line[:LONGEST_LINE] for line in text.splitlines()]
    first = next((i for i, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and " X" not in line), None)
    if first is None:
        raise BadInput("has no heading with GPU0", where=where, remedy="give the output of nvidia-smi topo -m")
    columns = lines[first].partition("CPU")[0].split()
    gpus = [name for name in columns if re.fullmatch(r"GPU\d{1,3}", name)]
    if len(set(columns)) < len(columns) or len(columns) > MOST_DEVICES:
        raise BadInput("names a device twice, or too many", where=f"{where}: line {first + 1}")
    between: dict[tuple[str, str], str] = {}
    for number, line in enumerate(lines[first + 1 :], start=first + 2):
        cells = line.split()
        if not cells or cells[0] not in columns:
            continue
        found = cells[1 : len(columns) + 1]
        known = [cell == "X" or cell in _FAR or _NVLINKS.fullmatch(cell) is not None for cell in found]
        if len(found) < len(columns) or not all(known):
            problem = f"{cells[0]} has not {len(columns)} known entries"
            raise BadInput(problem, where=f"{where}: line {number}", remedy="give the whole output")
        between |= {(cells[0], column): cell for column, cell in zip(columns, found, strict=True)}
    missing = [name for name in columns if (name, name) not in between]
    if missing:
        raise BadInput(f"has no row for {missing[0]}", where=where, remedy="give the whole output")
    legend = {match[1]: match[2] for line in lines if (match := _LEGEND.fullmatch(line.strip()))}
    return _Matrix(gpus=gpus, nics=[name for name in columns if name not in gpus], between=between, names=legend)


_Way = tuple[str, str, float, int]


def _nvlinks(matrix: _Matrix, rate: float) -> tuple[list[_Way], set[str]]:
    """NVLinks between pairs, or to a switch; and the accelerators that have some."""
    pairs = [(a, b, matrix.nvlinks(a, b)) for i, a in enumerate(matrix.gpus) for b in matrix.gpus[i + 1 :]]
    linked = [(a, b, count) for a, b, count in pairs if count]
    joined = {end for a, b, _ in linked for end in (a, b)}
    every = {gpu: sum(count for a, b, count in linked if gpu in (a, b)) for gpu in joined}
    if every and max(every.values()) > MOST_NVLINKS:
        most = {gpu: max(count for a, b, count in linked if gpu in (a, b)) for gpu in matrix.gpus if gpu in joined}
        return [(gpu, "nvswitch", count * rate, count) for gpu, count in most.items()], joined
    return [(a, b, count * rate, count) for a, b, count in linked], joined


def _pci(matrix: _Matrix) -> Iterator[_Way]:
    """Accelerators below bridges, bridges below processors, and processors joined in pairs."""
    cpus = _groups(matrix, matrix.gpus, _PROCESSOR)
    for number, cpu in enumerate(cpus):
        for group in _groups(matrix, cpu, _BRIDGE):
            bridge = f"pci{matrix.gpus.index(group[0])}" if len(group) > 1 else group[0]
            yield from ((gpu, bridge, PCI_Bps, 1) for gpu in group if bridge != gpu)
            yield bridge, f"cpu{number}", PCI_Bps, 1
        yield from ((f"cpu{number}", f"cpu{other}", BETWEEN_CPUS_Bps, 1) for other in range(number + 1, len(cpus)))


def _groups(matrix: _Matrix, gpus: Sequence[str], within: int) -> list[list[str]]:
    """Accelerators in groups of those that are near; NVLinks tell nothing of PCI and count as anywhere."""
    groups: list[list[str]] = []
    for gpu in gpus:
        near = [g for g in groups if any(_FAR.get(matrix.between[one, gpu], _ANYWHERE) <= within for one in g)]
        groups = [g for g in groups if g not in near] + [[*(one for g in near for one in g), gpu]]
    return sorted(groups, key=lambda group: gpus.index(group[0]))


def _nearest(matrix: _Matrix) -> Iterator[tuple[str, str]]:
    """Every NIC with its accelerator."""
    taken = dict.fromkeys(matrix.gpus, 0)
    for nic in matrix.nics:
        gpu = min(matrix.gpus, key=lambda one: (matrix.far(nic, one), taken[one]))
        taken[gpu] += 1
        yield nic, gpu
