"""YAML of foreign files: what is read, what is refused, and that no text ends in a traceback."""

import pytest

from weft.errors import BadInput
from weft.interop.yaml_text import DEEPEST, LARGEST, parse_yaml

FORMS = """%YAML 1.1
---
a:
- 1
- 'it''s'
-
  b: [x, "y\\n"]
c:   d # e
f:
g: {}
h: |
  one
    two
i: >-
  folded
  text
"key: with": {x: 1, y: [2]}
"""


def test_forms():
    assert parse_yaml(FORMS, where="x") == {
        "a": ["1", "it's", {"b": ["x", "y\n"]}],
        "c": "d",
        "f": "",
        "g": {},
        "h": "one\n  two\n",
        "i": "folded text",
        "key: with": {"x": "1", "y": ["2"]},
    }


@pytest.mark.parametrize("text", ["1e9", "0123", "1:30", "no", "on", "~", "null", "2026-11-22", "0x1f", "=", ".inf"])
def test_values_stay_the_text_of_the_file(text):
    assert parse_yaml(f"- {text}", where="x") == [text]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "x: is empty"),
        ("---\n...\n", "x: is empty"),
        ("a: 1\nb: &x 2", "x: line 2: anchors are refused: &x"),
        ("a: *x", "line 1: aliases are refused"),
        ("a: !!python/object/apply:os.system [ls]", "line 1: tags are refused: tag:yaml.org,2002:python/object"),
        ("a: 1\na: 2", "line 2: a is given twice -- do so"),
        ("? [a]\n: b", "line 1: a key is a list or a table"),
        ("a: 1\n---\nb: 1", "line 2: several documents"),
        ("a: [1", "line 2: not valid YAML: .*expected"),
        ("a: b: c", "line 1: not valid YAML: mapping values are not allowed"),
        ("a: \x07", "not valid YAML"),
        ("[" * (DEEPEST + 2), "nested too deeply"),
        ("a" * (LARGEST + 1), "is larger than 16 MB"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(BadInput, match=words):
        parse_yaml(text, where="x", remedy="do so")


def test_the_deepest_is_read():
    found = parse_yaml("[" * DEEPEST + "]" * DEEPEST, where="x")
    for _ in range(DEEPEST - 1):
        (found,) = found
    assert found == []
