"""``weft info install``: it sees what is missing or wrong, and the extras are those of pyproject.toml."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.commands import info as installation
from weft.solvers import maxmin

Run = Callable[..., tuple[int, str, str]]
PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))["project"]


def packages_of(requirements: list[str]) -> set[str]:
    """Names of packages, those of ``weft[...]`` in its place."""
    packages = set()
    for requirement in requirements:
        name, extras = re.fullmatch(r"([\w-]+)(?:\[([\w,]+)\])?(?:[<>=].*)?", requirement).groups()
        if name == "weft":
            for extra in extras.split(","):
                packages |= packages_of(PROJECT["optional-dependencies"][extra])
        else:
            packages.add(name.lower())
    return packages


def test_it_knows_what_the_project_needs() -> None:
    assert packages_of(PROJECT["dependencies"]) == set(installation.NEEDED)
    known = {name: set(packages) for name, (_, packages) in installation.EXTRAS.items()}
    extras = PROJECT["optional-dependencies"]
    assert known == {name: packages_of(extras[name]) for name in extras if name not in ("all", "dev", "docs", "test")}
    assert packages_of(extras["all"]) == set().union(*known.values())


def test_all_is_well_here_and_takes_seconds_at_most(weft: Run) -> None:
    code, out, err = weft("info", "install")
    assert (code, err) == (0, "")
    assert out.count("  passed  ") == len(installation.CHECKS)
    assert re.search(r"Compiled kernels: [1-9]\d* files", out)
    begin = time.process_time()  # the kernels are compiled
    installation.installation()
    assert time.process_time() - begin < 5


def test_rates_that_are_not_fair_are_found(weft: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = maxmin.solve
    monkeypatch.setattr(maxmin, "solve", lambda *problem: solve(*problem) * 0.99)
    code, out, _ = weft("info", "install")
    assert code == 1
    assert [line for line in out.splitlines() if "FAILED" in line and "fair rates" in line]


def test_missing_packages_are_shown_with_their_remedy(weft: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    version = installation.version
    monkeypatch.setattr(installation, "version", lambda name: None if name in ("ray", "numpy") else version(name))
    code, out, _ = weft("info", "install")
    assert code == 1
    assert "numpy MISSING" in out
    (line,) = (line for line in out.splitlines() if line.split()[:1] == ["ray"])
    assert "pip install 'weft[ray]'" in line
