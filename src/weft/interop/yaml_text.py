"""YAML of foreign files: lists, tables and texts, read from PyYAML's events within bounds.

Every value stays the text of the file: a name may look like a number, a date or a flag (``1e9``, ``0123``, ``1:30``,
``no``), and a reader that wants a number gets all of its digits.  Nothing is constructed from tags; anchors, aliases
and tags are refused, so that a small file cannot stand for a large value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import yaml

from weft.errors import BadInput

Value: TypeAlias = "str | list[Value] | dict[str, Value]"
DEEPEST = 64
LARGEST = 16_000_000
"""Characters: a lab that Weft writes has about one thousand per accelerator."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser is ten times as fast as the one in Python; both give the same events."""


class _YamlReader:
    def __init__(self, events: Iterator[Any], where: str, remedy: str | None) -> None:
        self.events, self.where, self.remedy = events, where, remedy

    def bad(self, what: str, mark: Any) -> BadInput:
        place = self.where if mark is None else f"{self.where}: line {mark.line + 1}"
        return BadInput(what, where=place, remedy=self.remedy)

    def value(self, event: Any, depth: int = 0) -> Value:
        """The value that begins with an event."""
        if isinstance(event, yaml.AliasEvent):
            raise self.bad(f"aliases are refused: *{str(event.anchor)[:40]}", event.start_mark)
        if event.anchor is not None:
            raise self.bad(f"anchors are refused: &{event.anchor[:40]}", event.start_mark)
        if event.tag is not None:
            raise self.bad(f"tags are refused: {event.tag[:40]}", event.start_mark)
        if depth > DEEPEST:
            raise self.bad("nested too deeply", event.start_mark)
        if isinstance(event, yaml.ScalarEvent):
            return str(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self.value(item, depth + 1) for item in self.until(yaml.SequenceEndEvent)]
        table: dict[str, Value] = {}
        for item in self.until(yaml.MappingEndEvent):
            key = self.value(item, depth + 1)
            if not isinstance(key, str):
                raise self.bad("a key is a list or a table", item.start_mark)
            if key in table:
                raise self.bad(f"{key[:40]} is given twice", item.start_mark)
            table[key] = self.value(next(self.events), depth + 1)
        return table

    def until(self, end: type[Any]) -> Iterator[Any]:
        """First events of the values up to the end of what holds them."""
        while not isinstance(event := next(self.events), end):
            yield event


def parse_yaml(text: str, *, where: str, remedy: str | None = None) -> Value:
    """The value of a YAML text; a missing value is the empty text.

    Args:
        remedy: what messages tell people to do.
    """
    if len(text) > LARGEST:
        raise BadInput(f"is larger than {LARGEST // 10**6} MB", where=where)
    reader = _YamlReader(iter(()), where, remedy)
    try:
        reader.events = (one for one in yaml.parse(text, Loader=_LOADER) if not isinstance(one, yaml.StreamStartEvent))
        if isinstance(next(reader.events), yaml.StreamEndEvent):
            raise BadInput("is empty", where=where)
        result = reader.value(next(reader.events))
        next(reader.events)
        if not isinstance(more := next(reader.events), yaml.StreamEndEvent):
            raise reader.bad("several documents are refused", more.start_mark)
    except (yaml.YAMLError, UnicodeError) as error:
        problem = getattr(error, "problem", None) or "has characters that YAML cannot hold"
        raise reader.bad(f"not valid YAML: {problem}", getattr(error, "problem_mark", None)) from None
    if result == "":
        raise BadInput("is empty", where=where)
    return result
