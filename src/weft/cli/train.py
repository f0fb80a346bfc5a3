"""``weft train``: a job trained with its layout, measured beside its prediction."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from weft.cli.options import constants, recipe_changes, recipe_options
from weft.errors import BadInput, Unsupported

if TYPE_CHECKING:
    from weft.cli.train_rank import Request
    from weft.cluster import Cluster
    from weft.layout import Layout
    from weft.model import Job
    from weft.runtime.layers.decoder import Details
    from weft.runtime.run.session import Settings

USAGE = "weft train MODEL [--layout x=2,z=2] | weft train --plan plan.json [--rank N]"
TRIED = 100
"""Layouts of a plan that are tried for one that can be trained."""


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL]")
@click.option("--layout", "layout_text", metavar="TEXT", help="The grid, as x=2,y=2,z=2,data=1,mbs=4.")
@click.option("--plan", "plan_file", metavar="FILE", help="JSON of weft plan; takes its job and layout.")
@click.option("--rank", type=click.IntRange(1), default=1, show_default=True, help="Layout of --plan.")
@recipe_options
@click.option("--data", metavar="FILE", help="Text to learn, byte by byte (default: synthetic).")
@click.option("--tokenizer", metavar="FILE", help="tokenizer.json for --data instead of bytes.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Steps in all.")
@click.option(
    "--rate", type=click.FloatRange(0, 10, min_open=True), default=3e-4, show_default=True, help="Learning rate."
)
@click.option("--warmup", type=click.IntRange(0), default=10, show_default=True, help="Steps to reach it.")
@click.option(
    "--clip", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Greatest gradient norm."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and data.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where ranks compute; auto takes GPUs if there are enough.",
)
@click.option("--out", metavar="DIR", help="Checkpoints and metrics.jsonl go there.")
@click.option("--resume-from", metavar="DIR", help="Go on from this checkpoint instead, into --out.")
@click.option("--save-every", type=click.IntRange(1), metavar="N", help="Also save every N steps.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint of --out, on any grid.")
@click.option("--metrics", metavar="FILE", help="Metrics as JSON lines (default: metrics.jsonl of --out).")
@click.option("--profile", metavar="FILE.json", help="Trace of the last step for ui.perfetto.dev.")
@click.option("--no-overlap", is_flag=True, help="Nothing is communicated behind computation.")
@click.option("--weight-cache", is_flag=True, help="Keep gathered weights for the whole step.")
@click.option("--tune-products", is_flag=True, help="Time operand layouts of products (last bits vary).")
@click.option("--compare", is_flag=True, help="Print measured beside predicted communication and time.")
@click.option("--dry-run", is_flag=True, help="Trace one rank of each end, of any world, untrained.")
@click.option("--cluster", metavar="FILE", help="This machine, of weft bench-comm, for --compare and MFU.")
@click.option("--calibration", metavar="FILE", help="TOML file of constants for this machine.")
def train(names: tuple[str, ...], **values: Any) -> None:
    """Train MODEL on the ranks of torchrun, or on ranks that are started on this machine.

    The grid is the layout's x * y * z * data * pipeline; every grid gives the same losses.  Checkpoints
    load on any other grid.

    Exit code 1: --compare or --dry-run found other collectives than predicted.
    """
    from weft.runtime.run.ranks import run_ranks, said_once

    with said_once():
        _check(values)
        _check_written(names, values)
        job, layout, planned = _subject(names, values)
        if values["dry_run"]:
            _dry_run(job, layout, values)
            return
        request = _request(names, values, job, layout, planned)
    from weft.cli.train_rank import train_rank

    run_ranks(train_rank, (request,), layout.world, request.device)


def _request(
    names: tuple[str, ...], values: dict[str, Any], job: Job, layout: Layout, planned: Cluster | None
) -> Request:
    from weft.cli.train_rank import Request
    from weft.layout.trainable import check_trainable
    from weft.runtime.run.ranks import default_device

    _check_world(layout)
    check_trainable(job, layout)
    device = default_device(layout.world) if values["device"] == "auto" else values["device"]
    cluster = _cluster(values, planned, device)
    if values["calibration"] and cluster is None:
        raise BadInput("--calibration needs --cluster on CPUs", where="train")
    details, assumed = _details(names, job)
    return Request(
        job=job,
        layout=layout,
        device=device,
        settings=_settings(job, layout, values, details),
        cluster=cluster,
        described=cluster if values["cluster"] else None,
        planned_for=planned.name if planned else None,
        assumed=assumed,
        calibration=constants(values["calibration"], cluster) if cluster else None,
        **{name: values[name] for name in _PASSED},
    )


_PASSED = ("data", "tokenizer", "steps", "out", "save_every", "resume", "resume_from", "metrics", "profile", "compare")


def _dry_run(job: Job, layout: Layout, values: dict[str, Any]) -> None:
    """Trace the first rank of the first and of the last pipeline stage, beside the prediction."""
    from weft.cli.options import console
    from weft.cli.train_rank import Differs
    from weft.layout.mesh import groups
    from weft.layout.step import StepOptions, step_collectives
    from weft.report.tables.training_run import extrapolated, traced
    from weft.runtime.measure.trace import extrapolate
    from weft.runtime.run.ranks import speaks

    if not speaks():
        return
    settings = _settings(job, layout, values)
    options = StepOptions(weight_cache=values["weight_cache"])
    ends = groups(layout, "pipeline")[0][[0, -1]].tolist()
    equal = True
    for stage, rank in dict(zip((0, layout.pipeline - 1), ends, strict=True)).items():
        found = extrapolate(job, layout, rank=rank, precision=settings.precision, switches=settings.switches)
        predicted = step_collectives(job.model, job.recipe, layout, stage=stage, options=options)
        traced(console(), predicted=predicted, found=found.issued, rank=rank, ranks=layout.world, stage=stage)
        equal = equal and found.issued == predicted
    extrapolated(console(), micro_batches=found.micro_batches, traced=found.traced)
    if not equal:
        raise Differs("the traced collectives differ from the prediction")


_NEEDS = (
    ("rank", "plan_file"),
    ("tokenizer", "data"),
    ("save_every", "out"),
    ("resume", "out"),
    ("calibration", "compare"),
)
_TRACED = frozenset(
    {
        *("names", "layout_text", "plan_file", "rank", "batch", "sequence", "precision", "attention"),
        *("reduce_bf16", "no_overlap", "weight_cache", "dry_run"),
    }
)
"""What a dry run takes."""


def _check(values: dict[str, Any]) -> None:
    """Refuse what would be ignored, and files that could not be written."""
    context = click.get_current_context()
    flags = {str(option.name): option.opts[0] for option in context.command.params}
    given = {name for name in flags if context.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    for name in sorted(given - _TRACED) if values["dry_run"] else ():
        raise BadInput(f"{flags[name]} says nothing with --dry-run", where="train", remedy="drop one of them")
    for name, needed in _NEEDS:
        if name in given and needed not in given:
            raise BadInput(f"{flags[name]} needs {flags[needed]}", where="train")
    if values["resume"] and values["resume_from"]:
        raise BadInput("--resume and --resume-from are both given", where="train", remedy="drop one of them")
    if values["calibration"] and not values["cluster"] and not values["plan_file"]:
        raise BadInput("--calibration needs --cluster or --plan", where="train")
    profile = values["profile"]
    if profile and (Path(profile).is_dir() or not Path(profile).absolute().parent.is_dir()):
        raise BadInput("cannot be written there", where=profile, remedy="name a file in a folder that exists")
    if values["out"] and Path(values["out"]).exists() and not Path(values["out"]).is_dir():
        raise BadInput("is not a folder", where=values["out"], remedy="name a folder for checkpoints")


_READ = ("data", "tokenizer", "plan_file", "cluster", "calibration")
_WRITTEN = ("metrics", "profile")


def _check_written(names: tuple[str, ...], values: dict[str, Any]) -> None:
    """Refuse to write a file over one that is read, or over the other one."""
    given = [name for name in (*names, *(values[name] for name in _READ)) if name]
    taken = {os.path.realpath(name) for name in given if Path(name).is_file()}
    for option in _WRITTEN:
        path = values[option]
        if path is None:
            continue
        if os.path.realpath(path) in taken:
            raise BadInput(f"--{option} would overwrite a file of this run", where=path, remedy="name another file")
        if not Path(path).is_char_device():
            taken.add(os.path.realpath(path))


def _subject(names: tuple[str, ...], values: dict[str, Any]) -> tuple[Job, Layout, Cluster | None]:
    """Job and layout from a name or from a plan, and the plan's cluster."""
    from dataclasses import replace

    from weft.layout.text import parse_layout
    from weft.model import resolve_job
    from weft.model.resolve import complete_job
    from weft.runtime.run.ranks import launched_world

    changes = recipe_changes(values)
    if values["plan_file"] is not None:
        from weft.report.formats.json_in import read_plan

        if names or values["layout_text"]:
            raise BadInput("the plan already has a model and a layout", where="train --plan", remedy=USAGE)
        job, planned, layout = read_plan(values["plan_file"], values["rank"])
        _check_planned(job, layout, values["plan_file"])
        changed = complete_job(job.model, job.recipe, changes, origin=values["plan_file"])
        return changed, _overlapped(layout, values), planned
    if len(names) != 1:
        raise BadInput(f"{len(names)} names given, one MODEL needed", where="train", remedy=USAGE)
    job = resolve_job(names[0], changes)
    partial = parse_layout(values["layout_text"] or "x=1")
    layout = partial.complete(launched_world())
    if "micro_batch" not in partial.values:
        layout = replace(layout, micro_batch=_micro_batch(job, layout))
    return job, _overlapped(layout, values), None


def _overlapped(layout: Layout, values: dict[str, Any]) -> Layout:
    """The layout, with --no-overlap without its overlaps."""
    from dataclasses import replace

    if not values["no_overlap"]:
        return layout
    return replace(layout, overlap_tensor="none", overlap_reduce=False, overlap_gather=False)


def _check_planned(job: Job, layout: Layout, plan: str) -> None:
    """Refuse a planned layout that cannot be trained, naming one of the plan that can."""
    from weft.layout.trainable import check_runnable

    try:
        check_runnable(job.model, layout)
    except BadInput as error:
        other = _first_runnable(job, plan)
        advice = f"--rank {other} of this plan can be trained" if other else "weft plan --runnable plans others"
        error.remedy = f"{error.remedy}; {advice}"
        raise


def _first_runnable(job: Job, plan: str) -> int | None:
    """The first of a plan's layouts that the runtime trains."""
    from weft.layout.trainable import check_runnable
    from weft.report.formats.json_in import read_plan

    for rank in range(1, TRIED + 1):
        try:
            _, _, layout = read_plan(plan, rank)
        except BadInput:
            return None
        with suppress(BadInput):
            check_runnable(job.model, layout)
            return rank
    return None


def _check_world(layout: Layout) -> None:
    """Refuse ranks of torchrun that are not those of the layout."""
    from weft.runtime.core.grid import GRID_AXES
    from weft.runtime.run.ranks import launched_world

    world = launched_world()
    if world not in (None, layout.world):
        sizes = " x ".join(f"{axis}={getattr(layout, axis)}" for axis in GRID_AXES)
        raise BadInput(
            f"the layout needs {sizes} = {layout.world} ranks, but {world} were launched",
            where="train",
            remedy=f"launch {layout.world} ranks, or take another layout",
        )


def _cluster(values: dict[str, Any], planned: Cluster | None, device: str) -> Cluster | None:
    """What times are predicted for: the machine of --cluster, or the plan's where this one has GPUs too."""
    from weft.cluster import resolve

    if values["cluster"]:
        return resolve(values["cluster"])
    return planned if device == "cuda" else None


def _micro_batch(job: Job, layout: Layout) -> int:
    """A rank's whole share of the batch at once, or with a pipeline twice as many parts as stages."""
    share, rest = divmod(job.recipe.global_batch, layout.data_parallel)
    parts = 2 * layout.pipeline if layout.pipeline > 1 else 1
    return share // parts if share and not rest and share % parts == 0 else 1


def _details(names: tuple[str, ...], job: Job) -> tuple[Details, tuple[str, ...]]:
    """The model's numbers from its config.json, else usual ones, which are noted."""
    from weft.runtime.convert.details import in_words, is_config, read_details
    from weft.runtime.layers.decoder import Details

    if names and is_config(names[0]):
        return read_details(names[0]), ()
    details = Details()
    return details, (f"{in_words(details, job.model)} (a config.json would say)",)


def _settings(job: Job, layout: Layout, values: dict[str, Any], details: Details | None = None) -> Settings:
    from dataclasses import replace

    import torch

    from weft.runtime.core.overlap import Switches
    from weft.runtime.core.precision import Precision
    from weft.runtime.layers.decoder import Details
    from weft.runtime.run.optimizer import AdamSettings
    from weft.runtime.run.session import Settings

    recipe = job.recipe
    if recipe.precision not in ("fp32", "bf16"):
        raise Unsupported(
            f"{recipe.precision}: the runtime computes in fp32 or bf16",
            where="precision",
            remedy="give --precision bf16",
        )
    if recipe.gradient_bytes not in (2, 4):
        raise Unsupported(
            f"{recipe.gradient_bytes}: the runtime sums gradients in 4 bytes, or in 2 (bfloat16)",
            where="gradient_bytes",
            remedy="set it to 4, or give --reduce-bf16",
        )
    precision = Precision.of(recipe.precision)
    if recipe.gradient_bytes == 2:
        precision = replace(precision, reduce=torch.bfloat16)
    return Settings(
        seed=values["seed"],
        adam=AdamSettings(rate=values["rate"], warmup=values["warmup"], steps=values["steps"], clip=values["clip"]),
        details=details or Details(),
        precision=precision,
        switches=replace(Switches.of(layout), weight_cache=values["weight_cache"]),
        tuned=values["tune_products"],
    )
