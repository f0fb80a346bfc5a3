"""``weft.arrange``: where the jobs of a site run, when they send, and by which routes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.commands.command_line import command
from weft.commands.options import Options, given_options, option, verb
from weft.commands.output import Output, chart_option, deliver, file_option, report
from weft.commands.shared import path_of
from weft.errors import BadInput, NothingFeasible
from weft.units import parse_seconds

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement
    from weft.arrangement.site import Site


class ArrangeOptions(Options):
    """How long to search, and from where."""

    group = "Search"
    budget: str | float = option("60s", "Processor time for the search.", metavar="TIME")
    seed: int = option(0, "Seed of the search.", metavar="N", least=0)


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
    ...     arrangement = weft.arrange(path)
    >>> arrangement.gap, arrangement.policy("arrange") <= arrangement.policy("hashed")
    (0.0, True)

    Args:
        site: a site file (TOML), or the site of one.
        progress: called with the objective of each better arrangement and the bound.
        spent: called during the search with the processor seconds taken and those of the budget.

    Raises:
        BadInput: the file cannot be used, or its hosts and jobs do not fit together.
        NothingFeasible: a job needs more hosts than are free, or a limit cannot be kept; says the best reachable.
    """
    options = given_options(ArrangeOptions, options, given)
    from weft.arrangement.search import Search
    from weft.arrangement.site import Site, read_site

    budget_s = parse_seconds(options.budget, "--budget")
    if not budget_s > 0:
        raise BadInput(f"{options.budget!r} is not above 0", where="--budget", remedy="write it like 60s")
    if not isinstance(site, Site):
        site = read_site(path_of(site, "SITE"))
    arrangement = Search(site, budget_s=budget_s, seed=options.seed, progress=progress, spent=spent).run()
    worst = float(arrangement.best.slowdown.max())
    if site.max_slowdown is not None and worst > site.max_slowdown * (1 + 1e-9):
        name = site.jobs[int(arrangement.best.slowdown.argmax())].name
        raise NothingFeasible(
            f"max_slowdown {site.max_slowdown:g} cannot be kept: {name} is slowed down {worst:.4f}x at best"
            f" -- raise the limit to {worst * 1.0001:.4f}, or take a job out"
        )
    return arrangement


class ArrangeOutput(Output):
    """Output options of ``weft arrange``."""

    output: str | None = file_option("Also write the arrangement (JSON).", "-o", "--output")
    verbose: bool = option(False, "Also show other policies, placement, links and assumptions.")
    chart: str | None = chart_option("where jobs run")


@command("SITE.toml", options=ArrangeOptions, out=ArrangeOutput)
def arrange_command(site: str, options: ArrangeOptions, out: ArrangeOutput) -> None:
    """Choose hosts, layouts, routes, start times and traffic classes for all jobs of a site together.

    SITE.toml names the network, the hosts, what the switches can do, and the jobs (docs/arrange.md). Ctrl-C ends the
    search with the best arrangement so far. weft simulate, route, launch and train read the file of -o
    (--arrangement).

    \b
    weft arrange examples/site.toml -o arranged.json
    """
    from weft.views.terminal import terminal

    screen = terminal(error=True)

    def progress(value: float, bound: float) -> None:
        if screen.is_terminal:
            screen.print(f"objective {value:.6g}, bound {bound:.6g}", style="dim")

    result = arrange(site, options, progress=progress)
    if out.form == "table" and out.output is not None:
        deliver(result.to_json(), out.output)
        out = out.changed(output=None)
    report(result, out)
