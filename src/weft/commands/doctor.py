"""``weft doctor``: what is installed, where kernels are kept, and whether Weft's answers hold on this machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

import weft
from weft.codec import Document, encode
from weft.commands.command_line import takes
from weft.commands.output import Output, report
from weft.results import Result
from weft.units import counted, format_seconds

if TYPE_CHECKING:
    from weft.views.blocks import Block

NEEDED = ("click", "highspy", "numba", "numpy", "pydantic", "pyyaml", "rich")
EXTRAS = {
    "plot": ("--chart", ("altair", "vl-convert-python")),
    "page": ("weft serve, weft report", ("altair", "jinja2", "starlette", "uvicorn", "vl-convert-python")),
    "parquet": ("sweeps as .parquet", ("pyarrow",)),
    "chakra": ("Chakra traces", ("protobuf",)),
    "ray": ("sweeps on a cluster", ("ray",)),
    "runtime": ("weft train, weft bench-comm", ("safetensors", "torch")),
    "tensorboard": ("weft train --tensorboard", ("tensorboard",)),
    "tokenizers": ("weft train on text", ("tokenizers",)),
}
"""Each extra: what it serves, and its packages."""


@dataclass(frozen=True, slots=True)
class Check(Document):
    """One thing that Weft was asked, whether the answer holds, and the answer in words."""

    DOCUMENT = "check=name ok found"

    name: str
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """Where compiled kernels are kept (None: nowhere), and what is there."""

    folder: str | None
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """An extra: what it serves, its packages with their versions, and how to install it (None: all are there)."""

    name: str
    serves: str
    packages: dict[str, str | None]
    install: str | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(Result):
    """Versions by package (None: missing), the kernels' cache, and the checks."""

    SCHEMA = "weft.doctor/1"
    DOCUMENT = "ok weft python system packages=needed extras kernels checks"

    packages: dict[str, str | None]
    kernels: Kernels
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """All that Weft needs is there, and every check holds."""
        return all(self.packages[name] for name in NEEDED) and all(one.ok for one in self.checks)

    @property
    def missing(self) -> dict[str, tuple[str, ...]]:
        """Packages that each extra lacks."""
        return {name: tuple(one for one in found if not self.packages[one]) for name, (_, found) in EXTRAS.items()}

    @property
    def weft(self) -> str:
        return weft.__version__

    @property
    def python(self) -> str:
        return platform.python_version()

    @property
    def system(self) -> str:
        return f"{platform.system()} {platform.machine()}"

    @property
    def needed(self) -> dict[str, str | None]:
        """Packages that every command needs, with their versions."""
        return {name: self.packages[name] for name in NEEDED}

    @property
    def extras(self) -> tuple[Extra, ...]:
        """What is installed of each extra."""
        return tuple(
            Extra(
                name=name,
                serves=serves,
                packages={one: self.packages[one] for one in packages},
                install=installing(name) if self.missing[name] else None,
            )
            for name, (serves, packages) in EXTRAS.items()
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        return [encode(one) for one in self.checks]

    def _facts(self) -> list[str]:
        return [f"{sum(one.ok for one in self.checks)} of {counted(len(self.checks), 'check')} hold"]


def diagnose() -> Diagnosis:
    """Look at packages and the kernels' cache, and check answers that carry their own proof."""
    names = {*NEEDED, *(one for _, packages in EXTRAS.values() for one in packages)}
    checks = tuple(checked(name, ask) for name, ask in CHECKS.items())
    return Diagnosis(packages={name: version(name) for name in sorted(names)}, kernels=kernels(), checks=checks)


def installing(extra: str) -> str:
    return f"pip install 'weft[{extra}]'"


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def kernels() -> Kernels:
    """The folder under which compiled kernels are kept, and Weft's files there."""
    from weft.solvers._jit import cache_folder

    try:
        folder = cache_folder()
    except ImportError:
        folder = None
    if folder is None:
        return Kernels(None, 0, 0)
    sizes = [path.stat().st_size for path in folder.rglob("*.nbc")]
    return Kernels(os.fspath(folder), len(sizes), sum(sizes))


def checked(name: str, ask: Callable[[], tuple[bool, str]]) -> Check:
    """Ask, and take any error for an answer that does not hold: what is broken is what is looked for."""
    try:
        return Check(name, *ask())
    except Exception as error:
        return Check(name, ok=False, found=f"{type(error).__name__}: {error}")


def _plan() -> tuple[bool, str]:
    best = weft.plan("gpt2-124m", "a100-8", top=1).best
    holds = best.lower_bound_s <= best.iteration_s and best.memory_bytes <= best.capacity_bytes
    return holds, f"{format_seconds(best.iteration_s)}, at least {format_seconds(best.lower_bound_s)}"


def _rates() -> tuple[bool, str]:
    import numpy as np

    from weft.solvers.maxmin import check, solve

    dice, flows, hops, links = np.random.default_rng(0), 200, 4, 50
    paths = np.concatenate([dice.choice(links, hops, replace=False) for _ in range(flows)])
    capacity = dice.uniform(1e9, 1e10, links)
    ones = np.ones(flows)
    problem = (capacity, np.arange(0, flows * hops + 1, hops), paths, np.ones(flows * hops), ones, ones * np.inf)
    wrong = check(solve(*problem), *problem)
    return wrong is None, wrong or f"{counted(flows, 'flow')} over {links} links share them max-min fair"


def _schedule() -> tuple[bool, str]:
    found: Any = weft.schedule("all-reduce", "1GiB", dims="switch:16:150GiB/s:1us,switch:8:50GiB/s:2us")
    over = found.time_s / found.bound_s - 1
    return -1e-9 <= over < 0.05, f"{over:.2%} above the bound"


def _simulate() -> tuple[bool, str]:
    found: Any = weft.simulate("gpt2-124m", "a100-16", "dp=16", batch=64)
    bound_s = found.result.lower_bound_s
    return bound_s <= found.iteration_s, f"{format_seconds(found.iteration_s)}, at least {format_seconds(bound_s)}"


CHECKS = {"plan": _plan, "fair rates": _rates, "schedule": _schedule, "simulate": _simulate}


@click.command("doctor")
@takes(out=Output)
@click.pass_context
def doctor_command(ctx: click.Context, out: Output) -> None:
    """Say what is installed, where kernels are kept, and whether Weft's answers hold here.

    The checks ask for answers that carry a proof: a plan beside its bound, rates with their certificate, a schedule
    and a simulation beside their bounds. Exit code 1 if one does not hold, or a package that Weft needs is missing.
    """
    found = diagnose()
    report(found, out, _view(found))
    ctx.exit(0 if found.ok else 1)


def _view(found: Diagnosis) -> Iterator[Block]:
    from weft.units import format_bytes
    from weft.views.blocks import Column, Fact, Grid, Heading, Paragraph

    whole = found.to_dict()
    needs = ", ".join(f"{name} {found.packages[name] or 'MISSING'}" for name in NEEDED)
    kept = found.kernels
    size = f"{counted(kept.files, 'file')}, {format_bytes(kept.bytes)}"
    where = f"{size} in {kept.folder}" if kept.folder else "kept nowhere: every run compiles them anew"
    yield Paragraph(f"Weft {whole['weft']} on Python {whole['python']}, {whole['system']}")
    yield Fact("Needs:", needs)
    yield Fact("Kernels:", where)
    yield Heading("Extras")
    yield Grid(
        [
            Column(heading="extra", cells=list(EXTRAS), left=True),
            Column(heading="serves", cells=[serves for serves, _ in EXTRAS.values()], left=True),
            Column(
                heading="",
                cells=[installing(name) if found.missing[name] else "installed" for name in EXTRAS],
                left=True,
            ),
        ]
    )
    yield Heading("Checks")
    yield Grid(
        [
            Column(heading="", cells=["holds" if one.ok else "FAILS" for one in found.checks], left=True),
            Column(heading="check", cells=[one.name for one in found.checks], left=True),
            Column(heading="found", cells=[one.found for one in found.checks], left=True),
        ]
    )
