"""Conditions: what they mean, and that nothing else gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput, UnknownName
from weft.studies.conditions import Condition

VALUES = {"batch": 256, "cluster.count": 64, "model": "gpt2", "none": None}


def holds(text: str) -> bool:
    return Condition(text, VALUES, "where")(VALUES.get)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cluster.count >= batch / 4", True),
        ("cluster.count > batch / 4", False),
        ("0 < batch - 2 * cluster.count <= 128 and not model == 'x'", True),
        ("model in ['gpt2', 'gpt3']", True),
        ("model not in ('gpt2',)", False),
        ("batch % 100 == 56 or 1 > 2", True),
        ("-batch // 3 < 0", True),
        ("none < 3", False),
        ("not none < 3", True),
        ("none + 1 > 0", False),
        ("batch / 0 > 1", False),
        ("1 > 2 and batch > 'x'", False),
    ],
)
def test_what_conditions_mean(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os')", "batch.__class__ == 1", "(lambda: 1)()", "[one for one in (1,)] == 1", "batch ** 9 > 1"),
        *("f'{batch}' == ''", "batch if 1 else 2", "", "batch >", "1 < 2; 3", "batch = 3", "'a' * 10 == 'x'"),
        *("(" * 300 + "1" + ")" * 300, "x" * 501, "batch[0] == 1", "b'1' == batch", "1j == 2", "{1} == 2"),
        *("batch > 'text'", "'a' + 1 == 2", "(batch := 3) > 1", "not " * 100 + "-batch.a", "\0"),
    ],
)
def test_nothing_else_gets_through(text: str) -> None:
    with pytest.raises(BadInput):
        holds(text)


def test_a_name_that_is_not_known_is_refused_with_near_ones() -> None:
    with pytest.raises(UnknownName, match=r"did you mean batch\?"):
        Condition("batsh > 3", VALUES, "where")


NUMBERS = st.integers(-20, 20).map(str) | st.just("batch")


@given(
    st.recursive(
        NUMBERS, lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ), max_leaves=8,
    ),
    st.sampled_from(["<", "<=", "==", "!=", ">", ">="]),
    NUMBERS,
)  # fmt: skip
def test_arithmetic_is_python_s(left: str, sign: str, right: str) -> None:
    text = f"{left} {sign} {right}"
    try:
        expected = eval(text, {"batch": 256})
    except ZeroDivisionError:
        expected = False
    assert holds(text) == expected
