"""``weft train``: a job trained with its layout, measured beside its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import constants, recipe_changes, recipe_options
from weft.errors import BadInput, Unsupported

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.layout import Layout
    from weft.model import Job
    from weft.runtime.session import Settings

USAGE = "weft train MODEL [--layout x=2,z=2] | weft train --plan plan.json [--rank N]"


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
    "--rate",
    type=click.FloatRange(0, 10, min_open=True),
    default=3e-4,
    show_default=True,
    help="Learning rate.",
)
@click.option("--warmup", type=click.IntRange(0), default=10, show_default=True, help="Steps to reach it.")
@click.option(
    "--clip",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Greatest gradient norm.",
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
@click.option("--save-every", type=click.IntRange(1), metavar="N", help="Also save every N steps.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint of --out, on any grid.")
@click.option("--metrics", metavar="FILE", help="Metrics as JSON lines (default: metrics.jsonl of --out).")
@click.option("--profile", metavar="FILE.json", help="Trace of the last step for ui.perfetto.dev.")
@click.option("--no-overlap", is_flag=True, help="Nothing is communicated behind computation.")
@click.option("--weight-cache", is_flag=True, help="Keep gathered weights for the whole step.")
@click.option("--tune-products", is_flag=True, help="Try operand layouts of each matrix product.")
@click.option("--compare", is_flag=True, help="Print measured beside predicted communication and time.")
@click.option("--dry-run", is_flag=True, help="Trace one rank of each end, of any world; needs no ranks.")
@click.option("--cluster", metavar="FILE", help="This machine, of weft bench-comm, for --compare and MFU.")
@click.option("--calibration", metavar="FILE", help="TOML file of constants for this machine.")
def train(names: tuple[str, ...], **values: Any) -> None:
    """Train MODEL on the ranks of torchrun, or on ranks that are started on this machine.

    The grid is the layout's x * y * z * data * pipeline (see weft explain); every grid gives the same
    losses.  Checkpoints load on any other grid.
    """
    _check(values)
    from weft.runtime.launch import default_device, run_ranks

    job, layout, planned = _subject(names, values)
    from dataclasses import replace

    from weft.cli.train_rank import Request, train_rank

    if values["no_overlap"]:
        layout = replace(layout, overlap_tensor="none", overlap_reduce=False, overlap_gather=False)
    if values["dry_run"]:
        _dry_run(job, layout, values)
        return
    device = default_device(layout.world) if values["device"] == "auto" else values["device"]
    cluster = _cluster(values, planned, device)
    request = Request(
        job=job,
        layout=layout,
        device=device,
        settings=_settings(job, layout, values),
        cluster=cluster,
        planned_for=planned.name if planned else None,
        calibration=constants(values["calibration"], cluster) if cluster else None,
        **{name: values[name] for name in _PASSED},
    )
    run_ranks(train_rank, (request,), layout.world, device)


_PASSED = (
    "data",
    "tokenizer",
    "steps",
    "out",
    "save_every",
    "resume",
    "metrics",
    "profile",
    "compare",
)


def _dry_run(job: Job, layout: Layout, values: dict[str, Any]) -> None:
    """Trace the first rank of the first and of the last pipeline stage, beside the prediction."""
    from weft.cli.options import console
    from weft.layout.iteration import StepOptions, step_collectives
    from weft.layout.mesh import groups
    from weft.report.training_run import traced
    from weft.runtime.trace import trace

    settings = _settings(job, layout, values)
    options = StepOptions(weight_cache=values["weight_cache"])
    ends = groups(layout, "pipeline")[0][[0, -1]].tolist()
    for stage, rank in dict(zip((0, layout.pipeline - 1), ends, strict=True)).items():
        found = trace(job, layout, rank=rank, precision=settings.precision, switches=settings.switches)
        predicted = step_collectives(job.model, job.recipe, layout, stage=stage, options=options)
        traced(console(), predicted=predicted, found=found, rank=rank, ranks=layout.world, stage=stage)


def _check(values: dict[str, Any]) -> None:
    for name, needed in (("save_every", "out"), ("resume", "out"), ("tokenizer", "data")):
        if values[name] and values[needed] is None:
            raise BadInput(f"--{name.replace('_', '-')} needs --{needed}", where="train")
    profile = values["profile"]
    if profile and (Path(profile).is_dir() or not Path(profile).absolute().parent.is_dir()):
        raise BadInput("cannot be written there", where=profile, remedy="name a file in a folder that exists")
    if values["out"] and Path(values["out"]).exists() and not Path(values["out"]).is_dir():
        raise BadInput("is not a folder", where=values["out"], remedy="name a folder for checkpoints")
    if values["calibration"] and not values["cluster"] and not values["plan_file"]:
        raise BadInput("--calibration needs --cluster or --plan", where="train")


def _subject(names: tuple[str, ...], values: dict[str, Any]) -> tuple[Job, Layout, Cluster | None]:
    """Job and layout from a name or from a plan, and the plan's cluster."""
    from dataclasses import replace

    from weft.layout.text import parse_layout
    from weft.model import resolve_job
    from weft.model.resolve import complete_job

    changes = recipe_changes(values)
    if values["plan_file"] is not None:
        from weft.report.json_in import read_plan

        if names or values["layout_text"]:
            raise BadInput("the plan already has a model and a layout", where="train --plan", remedy=USAGE)
        job, planned, layout = read_plan(values["plan_file"], values["rank"])
        changed = complete_job(job.model, job.recipe, changes, origin=values["plan_file"])
        return changed, layout, planned
    if len(names) != 1:
        raise BadInput(f"{len(names)} names given, one MODEL needed", where="train", remedy=USAGE)
    job = resolve_job(names[0], changes)
    partial = parse_layout(values["layout_text"] or "x=1")
    layout = partial.complete(_launched())
    if "micro_batch" not in partial.values:
        layout = replace(layout, micro_batch=_micro_batch(job, layout))
    return job, layout, None


def _cluster(values: dict[str, Any], planned: Cluster | None, device: str) -> Cluster | None:
    """What times are predicted for: the machine of --cluster, or the plan's where this one has GPUs too."""
    from weft.cluster import resolve

    if values["cluster"]:
        return resolve(values["cluster"])
    return planned if device == "cuda" else None


def _launched() -> int | None:
    """Ranks that torchrun started, if it did."""
    import os

    world = os.environ.get("WORLD_SIZE", "")
    return int(world) if world.isdecimal() and "RANK" in os.environ else None


def _micro_batch(job: Job, layout: Layout) -> int:
    """A rank's whole share of the batch at once, or with a pipeline twice as many parts as stages."""
    share, rest = divmod(job.recipe.global_batch, layout.data_parallel)
    parts = 2 * layout.pipeline if layout.pipeline > 1 else 1
    return share // parts if share and not rest and share % parts == 0 else 1


def _settings(job: Job, layout: Layout, values: dict[str, Any]) -> Settings:
    from dataclasses import replace

    from weft.runtime.optimizer import AdamSettings
    from weft.runtime.overlap import Switches
    from weft.runtime.precision import Precision
    from weft.runtime.session import Settings

    recipe = job.recipe
    if recipe.precision not in ("fp32", "bf16"):
        raise Unsupported(
            f"{recipe.precision}: the runtime computes in fp32 or bf16",
            where="precision",
            remedy="give --precision bf16",
        )
    precision = Precision.of(recipe.precision)
    if recipe.gradient_bytes == 2:
        precision = replace(precision, reduce=precision.compute)
    return Settings(
        seed=values["seed"],
        adam=AdamSettings(
            rate=values["rate"], warmup=values["warmup"], steps=values["steps"], clip=values["clip"]
        ),
        precision=precision,
        switches=replace(Switches.of(layout), weight_cache=values["weight_cache"]),
        tuned=values["tune_products"],
    )
