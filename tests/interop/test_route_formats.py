"""Every kind of export passes its own check, or is refused for a reason."""

import csv
import io
import json

import pytest

from weft.errors import BadInput, Unsupported
from weft.interop import route_formats
from weft.interop.route_formats import EXPORTS, Export, export

KINDS = ["frr", "roce-csv", "nccl", "json"]


def test_the_kinds():
    assert set(KINDS) <= set(EXPORTS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_and_the_same_twice(planned, kind):
    files = export(kind, *planned(16, radix=4))
    assert files
    assert all(text.endswith("\n") for text in files.values())
    assert files == export(kind, *planned(16, radix=4))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nccl"])
def test_split_flows_cannot_be_pinned(planned, kind):
    with pytest.raises(Unsupported, match="split over several paths"):
        export(kind, *planned(8, mode="spray"))


def test_unknown_kinds(planned):
    with pytest.raises(BadInput, match=r"unknown export of routes 'fr'.*did you mean"):
        export("fr", *planned(8))


def test_texts_that_fail_their_check_are_not_handed_out(planned, monkeypatch):
    broken = Export(write=lambda *_: {"a.json": "{}", "b.txt": ""}, lint={".json": lambda _: ("one", "two")})
    monkeypatch.setitem(route_formats.EXPORTS, "json", broken)
    with pytest.raises(BadInput, match=r"json: a.json: fails its check: one \(and 1 more\)"):
        export("json", *planned(8))
    monkeypatch.setitem(route_formats.EXPORTS, "json", Export(write=lambda *_: {}, lint={}))
    with pytest.raises(BadInput, match="json: nothing to write"):
        export("json", *planned(8))


def test_what_stands_in_the_tables(planned):
    fabric, traffic, routed = planned(8)
    rows = list(csv.DictReader(io.StringIO(export("roce-csv", fabric, traffic, routed)["roce-ports.csv"])))
    flows = json.loads(export("json", fabric, traffic, routed)["routes.json"])["flows"]
    assert [row["expected_path"].split("|") for row in rows] == [flow["path"] for flow in flows]
