"""The documentation as a site: it builds without a warning, asks no other machine, and shows every public name."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft.commands.app import VERBS

ROOT = Path(__file__).resolve().parents[1]
ASKED = re.compile(
    r"""<(?:script|img|iframe|source|embed|object)\b[^>]*\b(?:src|data)=["']?(?:https?:)?//"""
    r"""|<link\b[^>]*\bhref=["']?(?:https?:)?//|@import|url\(\s*["']?(?:https?:)?//"""
)
"""What a browser would load from another machine; links that a reader may follow are not meant."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("sphinx", "furo", "myst_nb", "latex2mathml"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    ended = subprocess.run([*command, ROOT / "docs", folder / "html"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder / "html"


@pytest.mark.slow
def test_pages_ask_no_other_machine(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(pages) > 20
    assert {path.name: found[0] for path in pages if (found := ASKED.search(path.read_text("utf-8")))} == {}


@pytest.mark.slow
def test_reference_shows_every_command_and_every_public_name(site: Path) -> None:
    commands = (site / "reference" / "cli.html").read_text("utf-8")
    assert {name for name in VERBS if f'id="weft-{name}"' not in commands} == set()
    names = html.unescape((site / "reference" / "api.html").read_text("utf-8"))
    public = {name for name in weft.__all__ if name != "__version__"}
    assert {name for name in public if not re.search(rf'id="weft\.(?:\w+\.)*{name}"', names)} == set()


def test_requests_are_seen() -> None:
    assert ASKED.search('<script src="https://cdn.example/a.js">')
    assert ASKED.search('<link rel="stylesheet" href="//cdn.example/a.css">')
    assert not ASKED.search('<a href="https://arxiv.org/abs/2110.04478">')
