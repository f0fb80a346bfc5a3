"""``weft bench selftest``: the runtime checked on the accelerators, or the CPU, of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import weft
from weft.codec import encode
from weft.commands.command_line import GroupedCommand, takes
from weft.commands.options import Options, option
from weft.commands.output import Output, report
from weft.errors import BadInput
from weft.layout.measured import SelftestFinding
from weft.results import Result
from weft.units import counted

if TYPE_CHECKING:
    from weft.layout import Layout
    from weft.views.blocks import Block


STEPS = 8
"""Steps that are timed."""


@dataclass(frozen=True, kw_only=True)
class SelftestOptions(Options):
    """The ranks that are checked."""

    group = "Machine"
    gpu: bool = option(False, "Use this machine's GPUs, one per rank.")
    ranks: int | None = option(None, "Ranks: 1, 2, 4 or 8 (default: all GPUs; 2 on CPUs).", metavar="N", least=1)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Selftest(Result):
    """The findings on each grid of the ranks."""

    SCHEMA = "weft.selftest/1"
    DOCUMENT = "ok weft device ranks machine=facts checks=findings"

    device: str
    ranks: int
    facts: dict[str, str]
    findings: tuple[SelftestFinding, ...]

    @property
    def ok(self) -> bool:
        """Nothing fails."""
        return all(one.verdict != "fails" for one in self.findings)

    @property
    def weft(self) -> str:
        return weft.__version__

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a check and grid."""
        return [encode(one) for one in self.findings]


def selftest(options: SelftestOptions) -> Selftest:
    """Check the runtime on every grid of this machine's ranks."""
    from weft.runtime.measure.selftest import (
        environment_facts,
        layouts,
        most_ranks,
        read_findings,
        selftest_rank,
        timed_job,
    )
    from weft.runtime.run.ranks import gpus, run_ranks

    device = "cuda" if options.gpu else "cpu"
    if options.gpu and not gpus():
        raise BadInput(
            "PyTorch finds no GPU here", where="--gpu", remedy="run it where there is one, or without --gpu on the CPU"
        )
    ranks = options.ranks or (most_ranks(gpus()) if options.gpu else 2)
    if most_ranks(ranks) != ranks:
        raise BadInput(f"there are no grids of {ranks} ranks", where="--ranks", remedy="give 1, 2, 4 or 8")
    every = layouts(ranks, timed_job(device).recipe.global_batch)
    tensor = [layout for layout in every if device == "cuda" and layout.x * layout.y > 1]
    findings: list[SelftestFinding] = []
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder) / "findings.json"
        for grids in (tensor, [layout for layout in every if layout not in tensor]):  # GPUs are set up for either
            if grids:
                estimated = [_estimated_bytes(layout, device) for layout in grids]
                run_ranks(selftest_rank, (str(path), device, STEPS, grids, estimated), ranks, device, None, grids[0])
                findings += read_findings(path)
    return Selftest(device=device, ranks=ranks, facts=environment_facts(device), findings=tuple(findings))


def _estimated_bytes(layout: Layout, device: str) -> float | None:
    """Peak memory of the fullest rank on this machine's GPUs; None where the catalogue does not have them."""
    import torch

    from weft.runtime.measure.timing import accelerator_of

    chip = accelerator_of(torch.cuda.get_device_name()) if device == "cuda" else None
    return None if chip is None else estimated_bytes(layout, chip.name, device)


def estimated_bytes(layout: Layout, chip: str, device: str = "cuda") -> float:
    """What tensors of the timed job's fullest rank allocate at most, on a server of a catalogue's accelerator."""
    from weft.cluster import calibration, load
    from weft.estimation import estimate, of_runtime
    from weft.runtime.measure.selftest import timed_job

    cluster = load(f"{chip}-{layout.world}")
    constants = of_runtime(calibration(cluster.accelerator.name))
    return estimate(timed_job(device), cluster, [layout], constants)[0].allocated_bytes


@click.command("selftest", cls=GroupedCommand)
@takes(options=SelftestOptions, out=Output)
@click.pass_context
def selftest_command(ctx: click.Context, options: SelftestOptions, out: Output) -> None:
    """Check the training runtime here: losses, collectives, memory, speed.

    Every grid of the ranks is compared with one rank in fp64 and with the predicted collectives, and its steps are
    timed; on GPUs also memory with the estimate.
    Exit code 1 if a check fails. To share the result: --format json -o FILE.
    """
    result = selftest(options)
    report(result, out, _view(result))
    ctx.exit(0 if result.ok else 1)


def _view(result: Selftest) -> Iterator[Block]:
    from weft.views.blocks import Blank, Paragraph, rows_grid

    findings = result.findings
    verdicts = [finding.verdict for finding in findings]
    failed, checks = verdicts.count("fails"), len(findings) - verdicts.count("seen")
    state = f"{failed:,} of {counted(checks, 'check')} FAILED" if failed else f"{counted(checks, 'check')} passed"
    yield Paragraph(f"{state} on {counted(result.ranks, 'rank')} ({result.device})", style="bold")
    yield Blank()
    names = {"holds": "passed", "fails": "FAILED", "seen": "measured"}
    rows = [(finding.grid, names[finding.verdict], finding.check, finding.found) for finding in findings]
    yield rows_grid(("grid", "", "check", "result"), rows, left=("grid", "", "check", "result"))
    facts = ", ".join(f"{name} {value}" for name, value in result.facts.items())
    yield Paragraph(f"Machine: {facts}", indent=2, hang=2)
