"""XML without document types, entities and external files, with line numbers and bounds on size and depth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from weft.errors import BadInput

DEEPEST, MOST_ELEMENTS, LONGEST_TEXT = 64, 4_000_000, 10_000


@dataclass(slots=True, kw_only=True)
class Element:
    """An element: tag (without namespace prefix), attributes, children in order, text, and its line."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""


class _Builder:
    def __init__(self, where: str) -> None:
        self.where, self.open, self.count = where, list[Element](), 0
        self.root: Element | None = None
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.data
        self.parser.StartDoctypeDeclHandler = self.refuse
        self.parser.EntityDeclHandler = self.refuse

    def refuse(self, *_: Any) -> None:
        raise BadInput("has a document type or entities", where=self.where, remedy="remove <!DOCTYPE ...>")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) >= DEEPEST or self.count > MOST_ELEMENTS:
            problem = "nested too deeply" if len(self.open) >= DEEPEST else "has too many elements"
            raise BadInput(problem, where=f"{self.where}: line {self.parser.CurrentLineNumber}")
        line = self.parser.CurrentLineNumber
        element = Element(tag=tag.rpartition(":")[2], attributes=attributes, line=line)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def end(self, _: str) -> None:
        self.open.pop()

    def data(self, text: str) -> None:
        if self.open and len(self.open[-1].text) < LONGEST_TEXT:
            self.open[-1].text += text[:LONGEST_TEXT]


def parse_xml(text: str, *, where: str) -> Element:
    """The root element of an XML text.

    Raises:
        BadInput: not well formed, nested too deeply, too large, or with a document type or entities.
    """
    builder = _Builder(where)
    try:
        builder.parser.Parse(text, True)
    except expat.ExpatError as error:
        raise BadInput(f"not valid XML: {error}", where=where) from None
    except (UnicodeError, ValueError):
        raise BadInput("not valid XML: has characters that XML cannot hold", where=where) from None
    if builder.root is None:
        raise BadInput("not valid XML: has no element", where=where)
    return builder.root
