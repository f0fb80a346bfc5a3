"""How tests run: on the cores there are, and with the same examples every time.

Folders run on all cores (at most 8); a named file or test runs in this process, which starts faster, and so does
everything with ``-n 0``, ``--pdb`` or ``-p no:xdist``.  The tests of a file share a process, and its fixtures.

``slow_but(n)`` lets the first n cases of a test run by default; the others are slow.
A test states ``max_examples`` only where an example is dear.  Hypothesis has no deadline, since machines are shared.
``HYPOTHESIS_PROFILE=thorough`` draws more examples, ``HYPOTHESIS_PROFILE=explore`` draws new ones.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from weft import solvers

MOST_WORKERS = 8

# Whether a test is the first to use a kernel depends on the tests before it; its output must not.
solvers.heard.update((solvers.FOR_GOOD, solvers.FOR_NOW))

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=15,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.large_base_example],
)
settings.register_profile("thorough", settings.get_profile("repeatable"), max_examples=200)
settings.register_profile("explore", settings.get_profile("thorough"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Tell xdist how many workers to start, where the command line does not."""
    option = config.option
    undecided = config.pluginmanager.hasplugin("xdist") and option.numprocesses is None and option.dist == "no"
    if not undecided or hasattr(config, "workerinput") or option.usepdb or option.collectonly:
        return
    if all(Path(word).is_dir() for word in config.args):
        option.numprocesses = min(os.cpu_count() or 1, MOST_WORKERS)
        option.dist = "loadgroup"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal whole files; the tests of a group are dealt as one file."""
    from xdist.scheduler.loadgroup import LoadGroupScheduling

    class FileScheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = super()._split_scope(nodeid)
            return nodeid.partition("::")[0] if scope == nodeid else scope

    return FileScheduling(config, log) if config.option.dist == "loadgroup" else None


@pytest.fixture(scope="session")
def arranged_site() -> Any:
    """The example site, arranged as far as a second of search comes."""
    import weft

    return weft.arrange(Path(__file__).parents[1] / "examples" / "site.toml", budget="1s")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow the cases of a test after those that ``slow_but`` lets run by default."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("slow_but")
        if marker is None:
            continue
        function = item.nodeid.partition("[")[0]
        seen[function] += 1
        if seen[function] > marker.args[0]:
            item.add_marker(pytest.mark.slow)
