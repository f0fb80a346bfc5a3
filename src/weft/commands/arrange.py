"""``weft.arrange``: where the jobs of a site run, when they send, and by which routes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from weft.commands.command_line import GroupedCommand, takes
from weft.commands.options import Options, given_options, option, verb
from weft.commands.output import Output, check_chart, check_file, console, deliver, deliver_chart
from weft.commands.shared import path_of
from weft.errors import BadInput, NothingFeasible

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement
    from weft.arrangement.site import Site


@dataclass(frozen=True, kw_only=True)
class ArrangeOptions(Options):
    """How long to search, and from where."""

    budget: str | float = option(
        "60s", "Processor time for the search; what is best by then is taken.", metavar="TIME"
    )
    seed: int = option(0, "Seed of the search.", least=0)


@verb(ArrangeOptions)
def arrange(
    site: str | os.PathLike[str] | Site,
    options: ArrangeOptions | None = None,
    *,
    progress: Callable[[float, float], object] | None = None,
    spent: Callable[[float, float], object] | None = None,
    **given: Any,
) -> Arrangement:
    """Choose hosts, routes, times and classes for all jobs of a site together, and say how far from optimal it is.

    >>> import weft, tempfile, pathlib
    >>> text = 'schema = "weft.site/1"\\nname = "two"\\ncluster = "a100-32"\\nfabric = "fat-tree"\\n'
    >>> for name in ("a", "b"):
    ...     text += f'[[jobs]]\\nname = "{name}"\\nmodel = "gpt2-124m"\\nlayout = "dp=16"\\nbatch = 64\\n'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "site.toml"
    ...     _ = path.write_text(text)
    ...     found = weft.arrange(path)
    >>> found.gap, found.policy("arrange") <= found.policy("hashed")
    (0.0, True)

    Args:
        site: a site file (TOML), or what was read of one.
        options: the options as a record instead of keywords.
        progress: called with the objective of each better arrangement and the bound.
        spent: called now and then with the processor seconds that the search has taken and those of its budget.

    Raises:
        BadInput: the file cannot be used, or its hosts and jobs do not fit together.
        NothingFeasible: a job is larger than what is free, or a limit cannot be kept; says the best reachable.
    """
    options = given_options(ArrangeOptions, options, given)
    from weft.arrangement.search import Search
    from weft.arrangement.site import Site, read_site
    from weft.units import parse_seconds

    budget_s = parse_seconds(options.budget, "--budget")
    if not budget_s > 0:
        raise BadInput(f"{options.budget!r} is no time to search in", where="--budget", remedy="write it like 60s")
    read = site if isinstance(site, Site) else read_site(path_of(site, "SITE"))
    arrangement = Search(read, budget_s=budget_s, seed=options.seed, progress=progress, spent=spent).run()
    worst = float(arrangement.best.slowdown.max())
    if read.max_slowdown is not None and worst > read.max_slowdown * (1 + 1e-9):
        name = read.jobs[int(arrangement.best.slowdown.argmax())].name
        raise NothingFeasible(
            f"max_slowdown {read.max_slowdown:g} cannot be kept: the best found is {worst:.4f}, of {name}"
            f" -- raise the limit to {worst * 1.0001:.4f}, or take a job out"
        )
    return arrangement


@dataclass(frozen=True, kw_only=True)
class ArrangeOutput(Output):
    """Output options of ``weft arrange``."""

    output: str | None = option(None, "Also write the arrangement (JSON).", "-o", "--output", metavar="FILE")
    chart: str | None = option(
        None, "Also draw seats, link loads and a timeline (.svg, .png, .pdf, .html).", metavar="FILE"
    )


@click.command("arrange", cls=GroupedCommand)
@click.argument("site", metavar="SITE.toml")
@takes(options=ArrangeOptions, out=ArrangeOutput)
def arrange_command(site: str, options: ArrangeOptions, out: ArrangeOutput) -> None:
    """Arrange the jobs of a site: hosts, layouts, routes, times and classes together, with a bound.

    SITE.toml names the fabric, the hosts, what its switches can do, and the jobs. An interrupt (Ctrl-C) ends the
    search with the best so far. What -o writes, weft simulate, route, schedule, launch and train read
    (--arrangement).
    """
    check_file(out.output, "-o")
    check_chart(out.chart)
    screen = console(error=True)

    def progress(value: float, bound: float) -> None:
        if screen.is_terminal:
            screen.print(f"objective {value:.6g}, bound {bound:.6g}", style="dim")

    result = arrange(site, options, progress=progress)
    if out.output is not None:
        deliver(result.to_json(), out.output)
    if out.form == "json":
        if out.output is None:
            deliver(result.to_json(), None)
    else:
        from weft.views.arrangement import arrangement_view
        from weft.views.terminal import print_blocks

        print_blocks(arrangement_view(result), wide=out.wide)
    if out.chart is not None:
        from weft.views.charts.arrangement import CHARTS

        deliver_chart(CHARTS["all"](result), out.chart)
