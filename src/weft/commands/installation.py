"""``weft info install``: installed packages, compiled kernels, and answers that carry their own proof."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft
from weft.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from weft.views.blocks import Block

NEEDED = ("click", "highspy", "numba", "numpy", "pydantic", "pyyaml", "rich")
EXTRAS = {
    "plot": ("--chart", ("altair", "vl-convert-python")),
    "page": ("weft serve, weft report", ("altair", "jinja2", "starlette", "uvicorn", "vl-convert-python")),
    "dataframe": ("to_dataframe() of results", ("pandas",)),
    "parquet": ("sweeps as .parquet", ("pyarrow",)),
    "chakra": ("Chakra traces", ("protobuf",)),
    "ray": ("sweeps on a cluster", ("ray",)),
    "runtime": ("weft train, weft bench", ("safetensors", "torch")),
    "tensorboard": ("weft train --tensorboard", ("tensorboard",)),
    "tokenizers": ("weft train on text", ("tokenizers",)),
}
"""Each extra: what it serves, and its packages."""


@dataclass(frozen=True, slots=True)
class Check:
    """A test of the installation, whether it holds, and its answer in words."""

    name: str
    holds: bool
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Versions by package (None: missing), the folder of compiled kernels (None: none), and the checks."""

    packages: dict[str, str | None]
    kernels: Path | None
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Every needed package is installed, and every check holds."""
        return all(self.packages[name] for name in NEEDED) and all(check.holds for check in self.checks)

    def lacks(self, extra: str) -> bool:
        """Whether a package of an extra is missing."""
        return not all(self.packages[name] for name in EXTRAS[extra][1])


def installation() -> Installation:
    """Look at packages and the kernels' folder, and run the checks."""
    names = {*NEEDED, *(name for _, packages in EXTRAS.values() for name in packages)}
    checks = tuple(checked(name, run) for name, run in CHECKS.items())
    return Installation(packages={name: version(name) for name in sorted(names)}, kernels=_kernels(), checks=checks)


def version(package: str) -> str | None:
    """The version of a package; None where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _kernels() -> Path | None:
    from weft.solvers._jit import cache_folder

    try:
        return cache_folder()
    except ImportError:
        return None


def checked(name: str, run: Callable[[], tuple[bool, str]]) -> Check:
    """Run a check; any error means that it does not hold."""
    try:
        return Check(name, *run())
    except Exception as error:
        return Check(name, holds=False, answer=f"{type(error).__name__}: {error}")


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
    result: Any = weft.schedule("all-reduce", "1GiB", dims="switch:16:150GiB/s:1us,switch:8:50GiB/s:2us")
    over = result.time_s / result.bound_s - 1
    return -1e-9 <= over < 0.05, f"{over:.2%} above the bound"


def _simulate() -> tuple[bool, str]:
    result: Any = weft.simulate("gpt2-124m", "a100-16", "dp=16", batch=64)
    bound_s = result.result.lower_bound_s
    return bound_s <= result.iteration_s, f"{format_seconds(result.iteration_s)}, at least {format_seconds(bound_s)}"


CHECKS = {"plan": _plan, "fair rates": _rates, "schedule": _schedule, "simulate": _simulate}


def installation_view(result: Installation) -> Iterator[Block]:
    """The installation for people."""
    from weft.views.blocks import Heading, Paragraph, rows_grid

    missing = [name for name in NEEDED if not result.packages[name]]
    failed = sum(not check.holds for check in result.checks)
    problem = f"missing: {', '.join(missing)}; " if missing else ""
    passed = f"{len(result.checks) - failed} of {counted(len(result.checks), 'check')} passed"
    state = "is installed correctly" if result.ok else "is NOT installed correctly"
    yield Paragraph(f"Weft {weft.__version__} {state}: {problem}{passed}", style="bold")
    yield Heading("Extras")
    states = [f"pip install 'weft[{name}]'" if result.lacks(name) else "installed" for name in EXTRAS]
    extras = [(name, serves, state) for (name, (serves, _)), state in zip(EXTRAS.items(), states, strict=True)]
    yield rows_grid(("extra", "needed by", ""), extras, left=("extra", "needed by", ""))
    yield Heading("Checks")
    checks = [("passed" if check.holds else "FAILED", check.name, check.answer) for check in result.checks]
    yield rows_grid(("", "check", "answer"), checks, left=("", "check", "answer"))
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    versions = ", ".join(f"{name} {result.packages[name] or 'MISSING'}" for name in NEEDED)
    yield Paragraph(f"{machine}; {versions}", indent=2, hang=2)
    yield Paragraph(f"Compiled kernels: {_kernel_files(result.kernels)}", indent=2, hang=2)


def _kernel_files(folder: Path | None) -> str:
    """Number, size and folder of the compiled kernels."""
    if folder is None:
        return "no folder is writable, so that every run compiles them again"
    sizes = [path.stat().st_size for path in folder.rglob("*.nbc")]
    return f"{counted(len(sizes), 'file')}, {format_bytes(sum(sizes))} in {folder}"
