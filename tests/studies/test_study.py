"""Studies: which points they have, in which order, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.studies.study import Points, study_from_dict


def points(**fields: Any) -> Points:
    import trivial

    document = {"schema": "weft.study/1", "compute": "sum"} | fields
    return Points(study_from_dict(document, trivial.computation))


def values(found: Points) -> list[tuple[Any, ...]]:
    return [found[number] for number in range(len(found))]


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True), min_size=1, max_size=3))
def test_the_last_axis_changes_fastest(lists: list[list[int]]) -> None:
    found = points(axes=dict(zip("abc", lists, strict=False)))
    assert values(found) == list(itertools.product(*lists))


def test_values_are_skipped() -> None:
    found = points(axes={"a": [1, 2, 3], "b": [1, 2, 3]}, skip=[{"a": 1, "b": [2, 3]}, {"bs": 1}])
    assert values(found) == [(2, 2), (2, 3), (3, 2), (3, 3)]


def test_keys_tell_points_apart_and_not_the_order_of_axes() -> None:
    one = points(axes={"a": [1, 2], "b": [1, 2]})
    other = points(axes={"b": [2, 1], "a": [1]})
    keys, again = one.keys("1").tolist(), other.keys("1").tolist()
    assert len(set(keys)) == 4
    assert again == [keys[1], keys[0]]
    assert not set(keys) & set(one.keys("2").tolist())


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"axes": {"d": [1]}}, "unknown axis of sum 'd'"),
        ({"axes": {"b": [1]}}, "sum needs a"),
        ({"axes": {}}, "axes"),
        ({"axes": {"a": []}}, "has no values"),
        ({"axes": {"a": [1, 1]}}, "1 is given twice"),
        ({"axes": {"a": [1], "as": [2]}}, "is the same as a"),
        ({"axes": {"a": ["x"]}}, "axes.a: 'x' is not a whole number"),
        ({"axes": {"a": {"from": 1}}}, "axes.a: .* is not a whole number"),
        ({"axes": {"a": [1]}, "skip": [{"b": 1}]}, "b is not an axis of the study"),
        ({"axes": {"a": [1]}, "skip": [{"d": 1}]}, "unknown axis of sum 'd'"),
        ({"axes": {"a": [1]}, "skip": [{"a": 1}]}, "all points are skipped"),
        ({"axes": {"a": [1]}, "skip": [{}]}, "skip: has no axes"),
        ({"axes": {"a": [1]}, "skipp": []}, "did you mean skip"),
        ({"axes": {"a": list(range(1, 1002)), "b": list(range(1, 1001))}}, "1,001,000 points are more than 1,000,000"),
    ],
)
def test_bad_studies_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        points(**fields)
