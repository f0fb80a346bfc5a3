"""What a page asks: its form from the options record of a verb, its answer from the views of the result.

Models, clusters, sites and runs are a known name, or the name of a text that was pasted; no name of a file is taken.
A pasted text is kept under a name made of its content, so that an address that holds the name shows the same page
later.  What cannot be used raises BadInput.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlencode

from weft.commands.options import Option, Options, options_of
from weft.errors import BadInput
from weft.files import CONTROLS, read_text, write_text

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.model import Job, RecipeChanges
    from weft.views.blocks import Block

PASTED = "pasted-"
TEXT_BYTES = 4_000_000
Kind = Literal["model", "cluster", "site", "runs"]
_NAME = re.compile(r"pasted-[0-9a-f]{24}")
_ENDINGS: dict[Kind, str] = {"model": ".json", "cluster": ".toml", "site": ".toml", "runs": ".csv"}


@dataclass(frozen=True, slots=True)
class Text:
    """What names a model, a cluster or a network.

    Attributes:
        name: as the address has it.
        pasted: the pasted text of that name; None for one that is known.
    """

    name: str
    pasted: str | None = None


class Texts:
    """The pasted texts of a server, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, kind: Kind, text: str) -> str:
        """Keep a text; the name that it has from now on."""
        text = checked_text(text, f"the pasted {kind}")
        name = PASTED + hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()[:24]
        place = self.folder / f"{name}{_ENDINGS[kind]}"
        if not place.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(place, text + "\n")
        return name

    def keep_pasted(self, form: Mapping[str, str], kinds: Iterable[Kind]) -> dict[str, str]:
        """The names of the texts that a form holds, kept; the field of a kind is its name and "_text"."""
        pasted = {kind: form.get(f"{kind}_text", "") for kind in kinds}
        return {kind: self.keep(kind, text) for kind, text in pasted.items() if text.strip()}

    def find(self, kind: Kind, name: str) -> Text:
        """The text of a name, or the name itself where it is none of a pasted text."""
        name = name.strip()
        if not name.startswith(PASTED):
            return Text(name)
        place = self.folder / f"{name}{_ENDINGS[kind]}"
        if not _NAME.fullmatch(name) or not place.is_file():
            raise BadInput(f"nothing is kept under {name[:40]!r}", where=kind, remedy=f"paste the {kind} again")
        return Text(name, read_text(place, where=kind, largest=TEXT_BYTES + 1))


def checked_text(text: str, where: str) -> str:
    """A pasted text with plain line ends."""
    text = text.replace("\r\n", "\n").strip()
    if not text:
        raise BadInput("is empty", where=where, remedy="paste its text")
    try:
        large = len(text.encode()) > TEXT_BYTES
    except UnicodeEncodeError:
        raise BadInput("has an invalid character", where=where, remedy="paste plain text") from None
    if large:
        raise BadInput(f"is larger than {TEXT_BYTES / 1e6:g} MB", where=where)
    if odd := CONTROLS.search(text):
        problem = f"holds the control character {ord(odd[0]):#04x}"
        raise BadInput(problem, where=where, remedy="paste plain text")
    return text


def job_of_text(source: Text, changes: RecipeChanges, accelerators: int) -> Job:
    """The job of a known name or of a pasted config.json; a batch that nobody gave divides among the accelerators."""
    from weft.model.resolve import config_job, named_job

    if source.pasted is None:
        return named_job(source.name, changes)
    return config_job(source.pasted, changes, where="the pasted model", accelerators=accelerators)


def cluster_of_text(source: Text) -> Cluster:
    """The cluster of a known name or of a pasted TOML text."""
    from weft.cluster import load

    if source.pasted is None:
        return load(source.name)
    from weft.cluster.files import cluster_from_dict  # pydantic loads only for texts
    from weft.documents import parse_toml

    where = "the pasted cluster"
    return cluster_from_dict(parse_toml(source.pasted, where), where=where)


Progress = Callable[[int, int], None] | None
_Record = TypeVar("_Record", bound=Options)
_YES = "yes"
_FLAGS = re.compile(r" \([^()]*(?:--|repeats)[^()]*\)")
"""What the help of an option says of the command line alone."""
_LABELS = {
    "fix": "Fixed degrees and switches",
    "max": "Largest degrees",
    "space": "Layouts to try",
    "order": "Rank by",
    "stack": "Training software",
    "top": "Layouts shown",
    "batch": "Batch (sequences)",
    "sequence": "Sequence (tokens)",
    "fabrics": "Kinds of network",
    "sizes": "Scale-up domain sizes",
    "batches": "Batches to compare",
    "radix": "Ports of a switch",
    "dims": "Dimensions",
    "active": "Chunks at a time",
    "measured": "Measured step or speed",
    "keep": "Setting to leave as it is",
}
"""Labels of options whose names say too little beside a field."""
_PLAIN = ("batch", "sequence", "radix")
"""Options whose labels say what their help would repeat."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form.

    Attributes:
        kind: "text", "number", "choice" or "area".
        choices: all values of a choice, values that a text suggests.
        placeholder: the value that counts where none is given.
        slide: least, most and steps per doubling of a slider.
    """

    name: str
    label: str
    kind: str = "text"
    help: str = ""
    choices: tuple[str, ...] = ()
    placeholder: str = ""
    slide: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Fields that stand together; those with a title are folded."""

    fields: tuple[Field, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What an address asks of a page.

    Attributes:
        path: of the page.
        given: name and text of each field; what is empty is left out.
        texts: the fields that name a model, a cluster, a site or runs, with the texts that were pasted.
    """

    path: str
    given: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, Text], ...]

    def get(self, name: str, default: str = "") -> str:
        """The text of a field."""
        return dict(self.given).get(name, default)

    def text(self, name: str) -> Text:
        """What a field names."""
        return dict(self.texts).get(name, Text(""))

    def number(self, name: str, low: float, high: float) -> float | None:
        """The number of a field, None where it is empty."""
        text = self.get(name).replace(",", "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise BadInput(f"{text[:40]!r} is not a number from {low:g} to {high:,g}", where=name)
        return value

    def whole(self, name: str, low: int = 1, high: int = 10**9) -> int | None:
        """The whole number of a field, None where it is empty."""
        value = self.number(name, low, high)
        if value is not None and value != int(value):
            raise BadInput(f"{value:g} is not a whole number", where=name)
        return None if value is None else int(value)

    def options(self, record: type[_Record], names: Iterable[str], **more: Any) -> _Record:
        """The options record of the fields among ``names``."""
        values: dict[str, Any] = {}
        for option in options_of(record):
            text = self.get(option.name)
            if option.name not in names or not text:
                continue
            if option.kind == "flag":
                values[option.name] = text == _YES
            elif option.kind == "number":
                values[option.name] = self.number(option.name, -1e18, 1e18)
            else:
                values[option.name] = (text,) if option.kind in ("texts", "integers") else text
        return record(**values | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: its form, its computation and its views.

    Attributes:
        needed: fields without which nothing is asked.
        sources: the fields that name a text which may be pasted.
        looks: fields that choose what is shown of a result; they start no computation.
        shows: views of a result, the first by default.
        example: fields that fill the form where the address has none.
        row: the field that a row of a table leads to.
        section: the name of the section about such a row.
        compute: the result; called in a worker.
        view: the blocks of a view of a result.
        saved: the part of a result that its JSON and CSV files have.
        files: more of them by name, each with a function that gives its name, type and content.
        time_s: limit of the work, where it may take long.
    """

    title: str
    groups: tuple[Group, ...]
    needed: tuple[str, ...]
    sources: Mapping[str, Kind] = field(default_factory=dict)
    looks: tuple[str, ...] = ()
    shows: tuple[str, ...] = ("answer",)
    example: Mapping[str, str] = field(default_factory=dict)
    row: str = ""
    section: str = ""
    compute: Callable[[PageRequest, Progress], Any]
    view: Callable[[Any, PageRequest, str], Iterable[Block]]
    saved: Callable[[Any, PageRequest], Any] = lambda result, asked: result
    files: Mapping[str, Callable[[Any, PageRequest], tuple[str, str, str]]] = field(default_factory=dict)
    time_s: float | None = None

    @property
    def path(self) -> str:
        """Where it is."""
        return f"/{self.title.lower()}"

    @property
    def names(self) -> tuple[str, ...]:
        """All fields of its address."""
        fields = [each.name for group in self.groups for each in group.fields if each.kind != "area"]
        return tuple(dict.fromkeys((*fields, *self.looks, "show")))

    @property
    def file_paths(self) -> dict[str, str]:
        """Where each of its files is, by name."""
        return {name: f"{self.path}/{name.lower().replace(' ', '-')}" for name in ("JSON", "CSV", *self.files)}

    def shown(self, show: str) -> str:
        """The view of a name, the first where there is none of that name."""
        return show if show in self.shows else self.shows[0]

    def address(self, given: Mapping[str, str], path: str = "", **changed: str) -> str:
        """The address of what is given; what is empty is left out."""
        fields = {name: value for name, value in {**given, **changed}.items() if value}
        return f"{path or self.path}?{urlencode(fields)}"


def fields_of(record: type[Options], *names: str) -> tuple[Field, ...]:
    """The fields of options."""
    options = {option.name: option for option in options_of(record)}
    return tuple(_field(options[name]) for name in names)


def _field(option: Option) -> Field:
    kind = "text"
    choices: tuple[str, ...] = ()
    if option.choices or option.kind == "flag":
        kind, choices = "choice", ("", *(option.choices or (_YES,)))
    elif option.kind in ("integer", "number"):
        kind = "number"
    shown = "" if option.default in (None, False, ()) else str(option.default)
    label = _LABELS.get(option.name) or option.name.capitalize()
    text = "" if option.name in _PLAIN else _FLAGS.sub("", option.help)
    return Field(option.name, label, kind, text, choices, shown)
