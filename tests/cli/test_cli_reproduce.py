"""``weft reproduce``: the list, tables, documents and pictures of studies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator as Validator

import weft as library
from weft.reproductions.catalogue import STUDIES

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_prints_its_source_and_conditions(weft: Run, name: str) -> None:
    code, out, err = weft("reproduce", name)
    assert (code, err) == (0, "")
    found = library.reproduce(name)
    assert all(one.split(",")[0] in out for one in found.conditions)
    assert found.conditions
    assert "arXiv" in found.source
    Validator(library.schema("reproduction")).validate(json.loads(found.to_json()))
    assert len({tuple(row) for row in found.rows}) == 1


def test_the_list_names_every_study(weft: Run) -> None:
    code, out, _ = weft("reproduce")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(STUDIES)


def test_studies_are_drawn_where_they_have_a_picture(weft: Run, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    assert weft("reproduce", "rail-only-v1", "--sizes", "32,64", "--chart", str(tmp_path / "v1.svg"))[0] == 0
    assert "one domain" in (tmp_path / "v1.svg").read_text("utf-8")
    code, _, err = weft("reproduce", "rail-only-hfu", "--chart", str(tmp_path / "none.svg"))
    assert (code, "has no picture" in err) == (2, True)


@pytest.mark.parametrize("option", ["--nic-bandwidth", "--scale-up-bandwidth"])
@pytest.mark.parametrize("speed", ["0", "0 GB/s", "-5"])
def test_bandwidths_that_are_not_positive_are_refused(weft: Run, option: str, speed: str) -> None:
    """0 was read as "not given", and the paper's 50 GB/s stood in; -5 took "-51.8 y"."""
    code, out, err = weft("reproduce", "rail-only-v1", option, speed)
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {option}: {float(speed.split()[0])!r} is not a finite number above 0")


def test_pictures_name_their_source_and_units() -> None:
    from weft.report.pictures.reproduction import reproduction_chart

    drawn = reproduction_chart(library.reproduce("rail-only-v1")).to_dict()
    assert drawn["title"]["subtitle"].startswith("arXiv 2307.12169")
    assert "time of an iteration (s)" in str(drawn)
    assert "points" not in drawn["title"]["subtitle"]
