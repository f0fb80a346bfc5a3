"""``weft design``: candidate networks for a job, side by side."""

from __future__ import annotations

from typing import Any

import click

from weft.cli.options import Progress, check_chart, deliver, deliver_chart, load_prices, recipe_changes, recipe_options
from weft.cli.outcome import show
from weft.errors import BadInput, NothingFeasible

DEFAULT_KINDS = "rail-only,rail-optimized,fat-tree"


@click.command()
@click.argument("model")
@click.argument("cluster")
@click.option("--fabrics", default=DEFAULT_KINDS, show_default=True, help="Networks to compare, by kind.")
@click.option("--radix", type=click.IntRange(2, 4096), default=64, show_default=True, help="Switch ports.")
@click.option("--sizes", metavar="K,...", help="Scale-up domain sizes to try (default: the cluster's own).")
@click.option("--batches", metavar="N,...", help="Global batches to try (default: the recipe's own).")
@click.option(
    "--layout", "layout_text", metavar="TEXT", help="Layout to compare with (default: the best by closed form)."
)
@click.option("--prices", default="rail-only-v5", show_default=True, help="Price preset or TOML file.")
@click.option(
    "--routing",
    type=click.Choice(["ecmp", "spray", "random"]),
    default="spray",
    show_default=True,
    help="How paths are chosen in the simulation.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of hashed and random paths.")
@click.option("--no-simulate", is_flag=True, help="Closed form only.")
@click.option("--no-failures", is_flag=True, help="Leave the study of failures out.")
@recipe_options
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output."
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
@click.option("--chart", metavar="FILE", help="Also draw cost against time (.svg, .png, .html).")
def design(model: str, cluster: str, **values: Any) -> None:
    """Compare networks for MODEL on CLUSTER: cost, power, speed, spine traffic, failures."""
    from weft.cluster import resolve
    from weft.layout.text import parse_layout
    from weft.model import resolve_job
    from weft.report.tables.design import design_table, design_to_json
    from weft.search.design import Options
    from weft.search.design import design as compare

    check_chart(values["chart"])
    job, where = resolve_job(model, recipe_changes(values)), resolve(cluster)
    layout = None
    if values["layout_text"] is not None:
        layout = parse_layout(values["layout_text"]).complete(where.count)
    options = Options(
        prices=load_prices(values["prices"]),
        radix=values["radix"],
        layout=layout,
        routing=values["routing"],
        seed=values["seed"],
        simulate=not values["no_simulate"],
        failures=not values["no_failures"],
    )
    kinds = [kind.strip() for kind in values["fabrics"].split(",") if kind.strip()]
    with Progress("simulating networks") as progress:
        study = compare(
            job,
            where,
            kinds,
            options,
            domains=_numbers(values["sizes"], "--sizes"),
            batches=_numbers(values["batches"], "--batches"),
            progress=progress,
        )
    if values["form"] == "json":
        deliver(design_to_json(study), values["output"])
    else:
        show(lambda screen: design_table(study, screen), values["output"])
    if not study.designs:
        raise NothingFeasible("; ".join(f"{one.kind}: {one.reason}" for one in study.rejected))
    if values["chart"] is not None:
        from weft.report.pictures.designs import design_chart

        deliver_chart(design_chart(study), values["chart"])


def _numbers(text: str | None, where: str) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and 0 < int(part) <= 10**7 for part in parts):
        raise BadInput(f"{text!r} is no list of positive numbers", where=where, remedy="write it like 8,64,256")
    return tuple(int(part) for part in parts)
