"""Blocks as Markdown, for pull requests: no figure, and no name that acts as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from weft.views.blocks import Block, Copied, Fact, Figure, Heading, Paragraph, Table

_ACTS = re.compile(r"([\\`*_\[\]|~#@!])")
_TICKS = re.compile("`+")


def to_markdown(title: str, blocks: Iterable[Block]) -> str:
    """A report as Markdown."""
    shown = (block for block in blocks if not isinstance(block, Figure))
    parts = [f"# {_inert(title)}"]
    for fact, run in groupby(shown, key=lambda block: isinstance(block, Fact)):
        texts = [text for block in run for text in _block(block)]
        parts += ["\n".join(texts)] if fact else texts
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield f"## {_inert(block.text)}"
        case Fact():
            yield f"- **{_inert(block.name.rstrip(':'))}**: {_inert(block.text)}"
        case Paragraph():
            yield _inert(block.text)
        case Copied():
            text = block.text.strip("\n")
            fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))  # which nothing within it ends
            yield from (f"{_inert(block.label)}:", f"{fence}\n{text}\n{fence}")
        case Table():
            columns = [column for column in block.columns if column.cells]
            if columns and columns[0].cells:
                rule = "|".join("---" if column.left else "---:" for column in columns)
                rows = zip(*(column.cells for column in columns), strict=True)
                heads = _row([column.heading for column in columns])
                yield "\n".join([heads, f"|{rule}|", *map(_row, rows)])


def _inert(text: str) -> str:
    """Text that Markdown and HTML show as it is, in one line."""
    return _ACTS.sub(r"\\\1", escape(" ".join(text.split()), quote=False))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_inert, cells))} |"
