"""Failure files: classes of failures with their rates, and times and bandwidths of recovery.

The presets of the package and users' TOML files (``weft.failures/1``) have the same fields.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Annotated, Any, Literal

from weft.codec import Coded, Document, Range, decode, encode, table_of
from weft.documents import parse_toml
from weft.errors import BadInput, UnknownName
from weft.files import read_text
from weft.reliability.renewal import Recovery

SCHEMA = "weft.failures/1"
DEFAULT = "llama-3"
MAX_FILE_BYTES = 100_000
Component = Literal["accelerator", "host", "nic", "access-link", "fabric-link", "leaf", "spine", "core", "job"]
"""What is counted: a link is a cable, from an accelerator (access) or between switches (fabric); a leaf is a first
switch, of a rail too, a spine one above it, a core any other."""
Takes = Literal["host", "rail", "leaf", "job", "fabric", "nothing"]
"""What a failure takes down: the host; all hosts with an accelerator on its rail, or under its leaf; the job's
processes and no host; what the fabric's graph says; nothing, where only speed is lost."""
Source = Annotated[str, Range(0, 1000)]
NETWORK = ("access-link", "fabric-link", "leaf", "spine", "core")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass(Document):
    """One class of failures.

    Each component fails every ``mtbf_hours``, or a job ``failures_per_accelerator_hour`` times its
    accelerators.  ``heals`` is the share that needs no repair: a restart is enough, or a link comes back by itself.
    Where the job goes on, links keep ``capacity`` of theirs, and the job runs at ``speed``, which None leaves to
    the simulator.  ``planned`` ones come with a checkpoint.
    """

    DOCUMENT = """
        component mtbf_hours failures_per_accelerator_hour repair_hours takes heals capacity speed planned source"""

    name: str = ""
    component: Component
    mtbf_hours: Annotated[float, Range(0, 1e15, above=True)] | None = None
    failures_per_accelerator_hour: Annotated[float, Range(0, 1e6)] | None = None
    repair_hours: Annotated[float, Range(0, 1e6)] = 0.0
    takes: Takes = "host"
    heals: Annotated[float, Range(0, 1)] = 0.0
    capacity: Annotated[float, Range(0, 1, below=True)] = 0.0
    speed: Annotated[float, Range(0, 1, above=True)] | None = None
    planned: bool = False
    source: Source = ""

    def rate(self, components: float, accelerators: float) -> float:
        """Failures a second of a job with so many of them."""
        if self.mtbf_hours is not None:
            return components / self.mtbf_hours / 3600.0
        return accelerators * (self.failures_per_accelerator_hour or 0.0) / 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureBook:
    """What fails, and how long it takes to go on."""

    name: str
    source: str
    recovery: Recovery
    classes: tuple[FailureClass, ...]


_CHANGES = Coded(lambda raw: table_of(raw, ""), shape=Recovery)
"""Fields of the recovery, which replace those of the preset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFile:
    """A failure file: ``like`` names a preset whose classes and times it changes or adds to."""

    schema: Literal["weft.failures/1"] | None = None
    like: Annotated[str, Range(0, 100)] | None = None
    name: Annotated[str, Range(1, 100)] | None = None
    source: Source | None = None
    recovery: Annotated[Mapping[str, Any], _CHANGES] = field(default_factory=dict)
    classes: Annotated[Mapping[str, FailureClass], Range(0, 100)] = field(default_factory=dict)


def preset(name: str) -> FailureBook:
    """The failures of a preset.

    Raises:
        UnknownName: there is none of this name.
    """
    tables = _tables()
    if name not in tables:
        raise UnknownName("failure preset", name, tables, where="--failures")
    return _book(tables[name], name)


def read_failures(path: str | os.PathLike[str]) -> FailureBook:
    """The failures of a TOML file; ``like`` names a preset whose classes and times it changes or adds to."""
    where = os.fspath(path)
    return failures_from_toml(read_text(path, where=where, largest=MAX_FILE_BYTES), where=where)


def failures_from_toml(text: str, *, where: str = "failures") -> FailureBook:
    """The failures of a TOML text, as ``read_failures``."""
    table = parse_toml(text, where)
    if "schema" not in table:
        raise BadInput("is missing", where=f"{where}: schema", remedy=f'add schema = "{SCHEMA}"')
    return _book(table, where)


def _book(table: dict[str, Any], where: str) -> FailureBook:
    file = decode(FailureFile, table, where)
    base = preset(file.like) if file.like is not None else None
    known = {inner.name: inner for inner in base.classes} if base else {}
    for name, inner in file.classes.items():
        place = f"{where}: classes.{name[:60]}"
        if (inner.mtbf_hours is None) == (inner.failures_per_accelerator_hour is None):
            raise BadInput("needs mtbf_hours or failures_per_accelerator_hour, and not both", where=place)
        if inner.component == "job" and inner.takes not in ("job", "nothing"):
            raise BadInput(f"a job takes no {inner.takes}", where=f"{place}.takes", remedy='write takes = "job"')
        if inner.takes == "fabric" and inner.component not in NETWORK:
            remedy = f"use one of {', '.join(NETWORK)}, or another takes"
            raise BadInput(f"{inner.component} is not a part of a fabric", where=f"{place}.takes", remedy=remedy)
        if not 1 <= len(name) <= 60:
            raise BadInput("its name has no character, or more than 60", where=place, remedy="name it in a word")
        known[name] = renamed = replace(inner, name=name)
        away_hours = renamed.repair_hours * (1.0 - renamed.heals)
        if away_hours * renamed.rate(1.0, 1.0) * 3600.0 > 1.0:
            problem = f"a part is in repair for {away_hours:g} hours of each {1.0 / renamed.rate(1.0, 1.0) / 3600.0:g}"
            remedy = "give a shorter repair, or a longer time between failures"
            raise BadInput(problem, where=f"{place}.repair_hours", remedy=remedy)
    if not known:
        raise BadInput("there is no class", where=f"{where}: classes", remedy=f'add one, or like = "{DEFAULT}"')
    recovery = decode(Recovery, encode(base.recovery if base else Recovery()) | file.recovery, f"{where}: recovery")
    source = file.source or (base.source if base else where)
    return FailureBook(name=file.name or where, source=source, recovery=recovery, classes=tuple(known.values()))


@functools.cache
def _tables() -> dict[str, dict[str, Any]]:
    text = resources.files("weft.reliability").joinpath("data", "failures.toml").read_text(encoding="utf-8")
    return parse_toml(text, "failures.toml")
