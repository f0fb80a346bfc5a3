"""Sites for tests, written as text; helpers of this folder are modules beside its tests."""

import json
import sys
from pathlib import Path

import pytest

from weft.arrangement.site import read_site

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def site_file(tmp_path):
    """Writes a site file of a cluster and jobs, each a table; ``tail`` are more lines."""

    def write(cluster, jobs, *, tail=(), radix=64, ratio=4.0):
        lines = ['schema = "weft.site/1"', 'name = "site"', f'cluster = "{cluster}"', 'fabric = "fat-tree"']
        lines += [f"radix = {radix}", f"oversubscription = [{ratio}]", *tail]
        for number, job in enumerate(jobs):
            fields = {"name": f"job-{number}", "model": "gpt2-124m", "batch": 64} | job
            lines += ["[[jobs]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
        path = tmp_path / "site.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def site_of(site_file):
    """The site of such a file."""
    return lambda *given, **named: read_site(site_file(*given, **named))
