"""Route plans in other tools' formats: every kind of export, checked before it is handed out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from weft.errors import BadInput, UnknownName
from weft.fabric.spec import Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops import frr, nccl_env, roce, routes_json
from weft.routing.traffic import JobTraffic

Files: TypeAlias = dict[str, str]
Write: TypeAlias = Callable[[Fabric, JobTraffic, Routes], Files]
Lint: TypeAlias = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A kind of export: ``write`` gives texts by file name, ``lint`` checks some by how the name ends."""

    write: Write
    lint: dict[str, Lint]


def _roce_csv(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> Files:
    return {"roce-ports.csv": roce.write_csv(roce.source_ports(fabric, traffic, routes))}


def _nccl(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> Files:
    return {"nccl.conf": nccl_env.write(fabric, traffic, routes)}


def _json(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> Files:
    return {"routes.json": routes_json.write(fabric, traffic, routes)}


EXPORTS: dict[str, Export] = {
    "frr": Export(write=frr.write, lint={}),
    "roce-csv": Export(write=_roce_csv, lint={".csv": roce.lint_csv}),
    "nccl": Export(write=_nccl, lint={".conf": nccl_env.lint}),
    "json": Export(write=_json, lint={".json": routes_json.lint}),
}


def export(kind: str, fabric: Fabric, traffic: JobTraffic, routes: Routes) -> Files:
    """A plan in one of the kinds of ``EXPORTS``, as texts by file name.

    Raises:
        UnknownName: no such kind.
        Unsupported: the kind cannot hold the plan.
        BadInput: the routes are not of this traffic and fabric, or a text fails its own check.
    """
    if kind not in EXPORTS:
        raise UnknownName("export of routes", kind, EXPORTS)
    return checked(kind, EXPORTS[kind].write(fabric, traffic, routes))


def checked(kind: str, files: Files) -> Files:
    """The texts of a kind of export, which pass its own check.

    Raises:
        BadInput: one does not, or there is none.
    """
    if not files:
        raise BadInput("nothing to write", where=kind, remedy="give a fabric with switches that the kind configures")
    for name, text in files.items():
        for ending, lint in EXPORTS[kind].lint.items():
            problems = lint(text) if name.endswith(ending) else ()
            if problems:
                more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
                raise BadInput(f"fails its check: {problems[0]}{more}", where=f"{kind}: {name}")
    return files
