"""``weft.arrange``: where the jobs of a site run, when they send, and by which routes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput, NothingFeasible
from weft.verbs.options import Options, given_options, option, verb
from weft.verbs.shared import path_of

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
    asked = given_options(ArrangeOptions, options, given)
    from weft.arrangement.search import Search
    from weft.arrangement.site import Site, read_site
    from weft.units import parse_seconds

    budget_s = parse_seconds(asked.budget, "--budget")
    if not budget_s > 0:
        raise BadInput(f"{asked.budget!r} is no time to search in", where="--budget", remedy="write it like 60s")
    read = site if isinstance(site, Site) else read_site(path_of(site, "SITE"))
    arrangement = Search(read, budget_s=budget_s, seed=asked.seed, progress=progress, spent=spent).run()
    worst = float(arrangement.best.slowdown.max())
    if read.max_slowdown is not None and worst > read.max_slowdown * (1 + 1e-9):
        name = read.jobs[int(arrangement.best.slowdown.argmax())].name
        raise NothingFeasible(
            f"max_slowdown {read.max_slowdown:g} cannot be kept: the best found is {worst:.4f}, of {name}"
            f" -- raise the limit to {worst * 1.0001:.4f}, or take a job out"
        )
    return arrangement
