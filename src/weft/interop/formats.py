"""The formats of other tools that Weft reads and writes: one table, for commands, documentation and tests.

A format is a module that reads a text (``read``) or writes a noun of Weft's (``write``); where a module has several,
its functions name their nouns.  Readers raise ``BadInput`` for what they cannot use, writers ``Unsupported`` for what
their format cannot hold, and those of layouts ``NothingFeasible`` for what their tool cannot run.  A module is
imported when its format is used, so that this table costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from weft.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Format:
    """A format of one noun.

    Attributes:
        noun: what is read or written: "fabric", "wiring", "routes", "traffic", "schedule", "layout", "trace".
        name: the word of the command line; unique for its noun.
        title: one line about it, for help and documentation.
        reader: ``module:function`` below ``weft``, which takes a text, or a path where a file may be binary; "" where
            the format is only written.
        writer: the same of the function that gives the text, or texts by file name.
        file: the name of the file that the text is written to, where the format has one.
    """

    noun: str
    name: str
    title: str
    reader: str = ""
    writer: str = ""
    file: str = ""

    @property
    def read(self) -> Callable[..., Any]:
        result: Callable[..., Any] = resolve_name(f"weft.{self.reader}")
        return result

    @property
    def write(self) -> Callable[..., Any]:
        result: Callable[..., Any] = resolve_name(f"weft.{self.writer}")
        return result


def _of(noun: str, *rows: tuple[str, ...]) -> tuple[Format, ...]:
    """Formats of a noun from rows of the other attributes."""
    return tuple(Format(noun, *row) for row in rows)


FABRICS = _of(
    "fabric",
    ("json", "Weft's JSON", "fabric.files:fabric_from_json", "fabric.files:fabric_to_json"),
    ("nccl", "NCCL's topology XML", "interop.nccl_topology:read"),
    ("ibnetdiscover", "output of ibnetdiscover", "interop.ibnetdiscover:read"),
    ("slurm", "SLURM topology", "interop.slurm_topology:read", "interop.slurm_topology:write"),
    ("slurm-conf", "SLURM topology.conf", "", "interop.slurm_topology:write_conf"),
    ("toml", "Weft's TOML", "fabric.files:fabric_from_toml"),
)
WIRINGS = _of(
    "wiring",
    ("ibnetdiscover", "output of ibnetdiscover", "interop.ibnetdiscover:read_wiring"),
    ("lldp", "lldpcli -f json", "interop.lldp:read_wiring"),
    ("p2p", "cabling plan (CSV)", "interop.cabling:read_wiring", "interop.cabling:write"),
)
ROUTES = _of(
    "routes",
    (
        "opensm",
        "forwarding tables for opensm -R file -U (--fabric: ibnetdiscover's output)",
        "interop.opensm:read_tables",
        "interop.opensm:write",
    ),
    ("frr", "FRR configurations of switches: static routes by destination, BGP", "", "interop.frr:write"),
    ("roce-csv", "RoCEv2 UDP source ports by queue pair", "", "interop.roce:write", "roce-ports.csv"),
    ("nccl", "/etc/nccl.conf", "", "interop.nccl:write_environment", "nccl.conf"),
    ("json", "every flow's path", "interop.routes_json:read", "interop.routes_json:write", "routes.json"),
)
SCHEDULES = _of(
    "schedule",
    ("msccl", "MSCCL XML", "", "interop.msccl:write_msccl"),
    ("nccl-tuner", "NCCL's tuner file (CSV)", "", "interop.nccl:write_tuner"),
    ("astra-network", "ASTRA-sim network.yml", "interop.astra:read_network", "interop.astra:write_network"),
    ("astra-system", "ASTRA-sim system file", "interop.astra:read_system", "interop.astra:write_system"),
    ("chakra", "Chakra execution traces", "interop.chakra:read_trace", "interop.chakra:write_traces"),
)
TRAFFICS = _of(
    "traffic",
    ("flows", "flows as CSV", "interop.flow_tables:read_csv", ""),
    ("events", "the arrival of every job, for weft route watch", "interop.events:read_event", ""),
    ("counters", "counters of links as CSV", "interop.events:read_counters", ""),
)
TRACES = _of(
    "trace",
    ("torch", "trace of PyTorch's profiler (Kineto)", "interop.kineto:read_kineto", ""),
    ("kernel-times", "times of kernels in a Kineto trace", "interop.kernel_times:read_kernel_times", ""),
)
LAYOUTS = _of(
    "layout",
    ("megatron", "Megatron-LM", "interop.megatron:read", "interop.megatron:write"),
    ("torchtitan", "torchtitan", "interop.torchtitan:read", "interop.torchtitan:write"),
    ("torchtitan-toml", "torchtitan job file", "", "interop.torchtitan:write_toml"),
    ("deepspeed", "DeepSpeed JSON", "interop.deepspeed:read", "interop.deepspeed:write"),
    ("calculon", "Calculon", "interop.calculon:read", "interop.calculon:write"),
    ("calculon-application", "Calculon application", "", "interop.calculon:write_application"),
    ("slurm", "SLURM script", "", "interop.slurm:write"),
)

FORMATS = (*FABRICS, *WIRINGS, *ROUTES, *SCHEDULES, *TRAFFICS, *TRACES, *LAYOUTS)


def formats_of(noun: str) -> dict[str, Format]:
    """The formats of a noun, by name."""
    return {form.name: form for form in FORMATS if form.noun == noun}


def writer_of(noun: str, name: str, what: str) -> Callable[..., Any]:
    """What writes a noun in the format of a name; ``what`` says in messages what the name names.

    Raises:
        UnknownName: no such format, or one that is only read.
    """
    written = {form.name: form for form in FORMATS if form.noun == noun and form.writer}
    if name not in written:
        raise UnknownName(what, name, written)
    return written[name].write
