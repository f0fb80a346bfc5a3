"""``weft plan``: ranked layouts of a model on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import (
    Progress,
    check_chart,
    constants,
    output_options,
    recipe_changes,
    recipe_options,
    training_options,
)
from weft.cli.outcome import show_plan
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.model import Job
    from weft.search import Plan, Space


SPARE = 10
"""Meshes searched for per layout shown, of which near-equal ones are left out."""


@click.command()
@click.argument("model")
@click.argument("cluster")
@recipe_options
@click.option(
    "--space",
    "space_name",
    type=click.Choice(["standard", "4d", "wide"]),
    default="standard",
    show_default=True,
    help="Layouts to try: what Megatron-LM and torchtitan run; also AxoNN's y axis; every switch.",
)
@click.option("--fix", multiple=True, metavar="NAME=VALUE", help="Pin a degree or switch, as tp=8 (repeats).")
@click.option("--max", "most", multiple=True, metavar="NAME=N", help="Bound a degree, as pp=16 (repeats).")
@click.option("--runnable", is_flag=True, help="Only layouts that weft train runs.")
@click.option("--memory-margin", default="0%", show_default=True, metavar="SHARE", help="Memory to leave free, as 5%.")
@click.option("--top", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Layouts to show.")
@click.option("--variants", is_flag=True, help="Rank every layout, also near-equal ones.")
@click.option("--pareto", is_flag=True, help="Also show time against memory.")
@training_options
@output_options
def plan(model: str, cluster: str, **values: Any) -> None:
    """Rank the layouts of MODEL on CLUSTER.

    MODEL is a name (weft models), a Hugging Face config.json or a Megatron-LM script; CLUSTER a name such as
    h100-1024 (weft clusters) or a TOML file.
    """
    from weft.cluster import resolve
    from weft.model import resolve_job
    from weft.search import distinct

    check_chart(values["chart"])
    job = resolve_job(model, recipe_changes(values))
    where = resolve(cluster)
    found = _search(job, where, values)
    if not found.considered:
        raise BadInput("the constraints exclude every layout", where="--fix and --max", remedy="drop or loosen one")
    show_plan(found if values["variants"] else distinct(found, values["top"]), values)


def _search(job: Job, cluster: Cluster, values: dict[str, Any]) -> Plan:
    from weft.search import SPACES, runnable
    from weft.search import plan as search

    space = _constrain(SPACES[values["space_name"]], cluster.count, values["fix"], values["most"])
    if values["runnable"]:
        space = runnable(space, job.model)
    margin = _share(values["memory_margin"], "--memory-margin")
    calibration = constants(values["calibration"], cluster, values["stack"])
    with Progress("evaluating layouts") as progress:
        return search(
            job,
            cluster,
            space=space,
            top=values["top"] if values["variants"] else SPARE * values["top"],
            per_mesh=not values["variants"],
            memory_margin=margin,
            constants=calibration,
            progress=progress,
        )


def _constrain(space: Space, count: int, fix: tuple[str, ...], most: tuple[str, ...]) -> Space:
    """The space with ``--fix`` and ``--max`` applied."""
    from weft.layout.spec import AXES
    from weft.layout.text import parse_layout

    fixed: dict[str, Any] = {}
    for text in fix:
        part = parse_layout(text, where="--fix")
        if twice := sorted(set(fixed) & set(part.values)):
            raise BadInput(f"{twice[0]} is fixed twice", where="--fix", remedy="give it once")
        fixed |= dict(part.values)
        if part.data_parallel is not None:
            fixed["data_parallel"] = part.data_parallel
    for name in (*AXES, "data_parallel"):
        if count % fixed.get(name, 1):
            raise BadInput(
                f"{name} = {fixed[name]} does not divide {count} accelerators",
                where="--fix",
                remedy="choose a divisor of the number of accelerators",
            )
    maximum: dict[str, int] = {}
    for text in most:
        part = parse_layout(text, where="--max")
        bounds = dict(part.values) | ({"data_parallel": part.data_parallel} if part.data_parallel else {})
        for name, value in bounds.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise BadInput(f"{name} has no maximum", where="--max", remedy="use --fix for switches")
            maximum[name] = value
    return space.constrained(fixed, maximum)


def _share(text: str, where: str) -> float:
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise BadInput(f"{text!r} is not a share", where=where, remedy="write it like 5% or 0.05") from None
    if not 0 <= share < 1:
        raise BadInput(f"{text!r} is outside 0% to 100%", where=where, remedy="write it like 5% or 0.05")
    return share
