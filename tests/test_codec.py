"""The codec: records as JSON types and back; what is wrong is said with its place and a remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from weft.codec import Also, Coded, Count, Document, Name, OneOf, Positive, Range, decode, encode, schema
from weft.errors import BadInput


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable(Document):
    KIND = "cable"
    length_m: Annotated[float, Range(0, 100, above=True), Also("length")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fibre(Document):
    KIND = "fibre"
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack(Document):
    DOCUMENT = "name from=first links sizes words twice note?"
    name: Name
    first: Count = 1
    links: tuple[Annotated[Cable | Fibre, OneOf()], ...] = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    words: Annotated[tuple[str, ...], Coded(lambda raw: tuple(raw.split("/")), "/".join, str)] = ()
    note: Literal["old", "new"] | None = None

    @property
    def twice(self) -> int:
        return 2 * self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Document):
    DOCUMENT = "rack.* floor"
    rack: Rack
    floor: int


RACK = Rack(
    name="a", first=3, links=(Cable(length_m=2.0), Fibre(colour=Colour.BLUE)), sizes={"x": (1, 2)}, words=("b", "c")
)
DOCUMENT = {
    "name": "a",
    "from": 3,
    "links": [{"kind": "cable", "length_m": 2.0}, {"kind": "fibre", "colour": "blue"}],
    "sizes": {"x": [1, 2]},
    "words": "b/c",
    "twice": 6,
}


def test_there_and_back() -> None:
    assert encode(RACK) == DOCUMENT
    assert list(encode(RACK)) == list(DOCUMENT)
    assert decode(Rack, DOCUMENT, "rack.toml") == RACK
    assert decode(Rack, {"name": "a"}, "rack.toml") == Rack(name="a")
    assert encode(np.array([1.5, 2.0])) == [1.5, 2.0]
    assert encode(Row(rack=RACK, floor=2)) == DOCUMENT | {"floor": 2}


def test_either_name_is_read() -> None:
    assert decode(Cable, {"length": 2}, "x") == decode(Cable, {"length_m": 2.0}, "x")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nmae": "b"}, "rack.toml: nmae: is not a known field -- did you mean name?"),
        ({"name": ""}, "rack.toml: name: '' should have at least 1 character"),
        ({"name": "\n"}, "rack.toml: name: "),
        ({"name": 3}, "rack.toml: name: 3 is not text"),
        ({"from": 0}, "rack.toml: from: 0 should be greater than or equal to 1"),
        ({"from": True}, "rack.toml: from: True is not a whole number"),
        ({"from": 10**40}, "rack.toml: from: a huge number should be less than or equal to 1000000000"),
        ({"links": {}}, "rack.toml: links: {} is not a list"),
        ({"links": [{"kind": "cabel"}]}, "links[0].kind: unknown kind 'cabel' -- did you mean cable"),
        ({"links": [{"kind": "fibre"}, {"kind": "cable"}]}, "links[1].length: is missing -- add it"),
        ({"links": [{"kind": "cable", "length": 0}]}, "links[0].length: 0 is not positive"),
        ({"links": [{"kind": "cable", "length": math.nan}]}, "links[0].length: nan is not a finite number"),
        (
            {"links": [{"kind": "cable", "length": 1, "length_m": 1}]},
            "links[0].length_m: is given twice, under its short and its full name -- keep one",
        ),
        ({"sizes": {"x": [1, "2"]}}, "sizes.x[1]: '2' is not a whole number"),
        ({"note": "odl"}, "note: unknown note 'odl' -- did you mean old?"),
        ({"note": []}, "note: [] should be 'old' or 'new'"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        decode(Rack, DOCUMENT | change, "rack.toml")
    assert problem in str(caught.value)


@pytest.mark.parametrize("wrong", [None, 3, [], "name"])
def test_anything_else_is_no_table(wrong: object) -> None:
    with pytest.raises(BadInput, match=r"^rack.toml: .* is not a table of fields"):
        decode(Rack, wrong, "rack.toml")


def test_numbers_alone() -> None:
    assert decode(Positive, 2, "price") == 2.0
    with pytest.raises(BadInput, match="price: 0 is not positive"):
        decode(Positive, 0, "price")


def test_the_schema_takes_what_the_codec_takes() -> None:
    check = Draft202012Validator(schema(Rack))
    assert check.is_valid(DOCUMENT)
    assert check.is_valid({"name": "a", "links": [{"kind": "cable", "length": 2}]})
    for wrong in ({"from": 2}, {"name": ""}, {"name": "a", "links": [{"kind": "cable"}]}, {"name": "a", "more": 1}):
        assert not check.is_valid(wrong)
