"""Ranks for the tests of these rooms, whose modules import each other by name, here and in the ranks."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *sorted(str(room) for room in HERE.iterdir() if room.is_dir())]

from ranks import Ranks  # noqa: E402

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py", "*/test_*.py"]


def pytest_collection_modifyitems(items):
    """Workers that run tests beside each other start the ranks once."""
    for item in items:
        if "ranks" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("ranks"))


@pytest.fixture(scope="session")
def ranks():
    """Eight processes; ``ranks.run(case, *arguments)``."""
    started = Ranks()
    yield started
    started.close()


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tests beside each other leave no core for more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
