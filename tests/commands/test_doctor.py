"""``weft doctor``: it sees what is missing or wrong, and the extras are those of pyproject.toml."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator as Validator

import weft
from weft.commands import doctor
from weft.solvers import maxmin

Run = Callable[..., tuple[int, str, str]]
PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))["project"]


def packages_of(requirements: list[str]) -> set[str]:
    """Names of packages, those of ``weft[...]`` in its place."""
    found = set()
    for one in requirements:
        name, extras = re.fullmatch(r"([\w-]+)(?:\[([\w,]+)\])?(?:[<>=].*)?", one).groups()
        if name == "weft":
            for extra in extras.split(","):
                found |= packages_of(PROJECT["optional-dependencies"][extra])
        else:
            found.add(name.lower())
    return found


def test_it_knows_what_the_project_needs() -> None:
    assert packages_of(PROJECT["dependencies"]) == set(doctor.NEEDED)
    known = {name: set(packages) for name, (_, packages) in doctor.EXTRAS.items()}
    asked = PROJECT["optional-dependencies"]
    assert known == {name: packages_of(asked[name]) for name in asked if name not in ("all", "dev", "docs", "test")}
    assert packages_of(asked["all"]) == set().union(*known.values())


def test_all_is_well_here(weft: Run) -> None:
    code, out, err = weft("doctor", "--format", "json")
    found = json.loads(out)
    assert (code, err, found["ok"]) == (0, "", True)
    assert {one["check"]: one["ok"] for one in found["checks"]} == dict.fromkeys(doctor.CHECKS, True)
    assert all(found["packages"].values())
    assert found["kernels"]["files"] > 0
    assert Path(found["kernels"]["folder"]).is_dir()
    assert weft("doctor")[0] == 0


def test_the_document_obeys_its_schema() -> None:
    Validator(weft.schema("doctor")).validate(json.loads(doctor.diagnose().to_json()))


def test_a_check_takes_seconds_at_most() -> None:
    doctor.diagnose()  # kernels may have to be compiled
    begin = time.process_time()
    doctor.diagnose()
    assert time.process_time() - begin < 5


def test_rates_that_are_not_fair_are_found(weft: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = maxmin.solve
    monkeypatch.setattr(maxmin, "solve", lambda *problem: solve(*problem) * 0.99)
    code, out, _ = weft("doctor")
    assert code == 1
    assert [line for line in out.splitlines() if "FAILS" in line and "fair rates" in line]


def test_an_error_is_an_answer_that_does_not_hold(weft: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*problem: object) -> None:
        raise ImportError("no module named numba")

    monkeypatch.setattr(maxmin, "solve", broken)
    code, out, err = weft("doctor", "--format", "json")
    assert (code, err) == (1, "")
    (failed,) = (one for one in json.loads(out)["checks"] if not one["ok"])
    assert failed == {"check": "fair rates", "ok": False, "found": "ImportError: no module named numba"}


def test_what_is_missing_is_told_with_its_remedy(weft: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: None if name in ("ray", "numpy") else version(name))
    code, out, _ = weft("doctor")
    assert code == 1
    assert "numpy MISSING" in out
    (line,) = (line for line in out.splitlines() if line.split()[:1] == ["ray"])
    assert "pip install 'weft[ray]'" in line
