"""Models, clusters, sites and runs as a browser may give them: a known name, or the name of a text that was pasted.

No name of a file is taken.  A pasted text is kept under a name made of its content, so that an address that holds the
name shows the same page later.  What cannot be used raises BadInput.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from weft.errors import BadInput
from weft.files import CONTROLS, read_text, write_text

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.model import Job, RecipeChanges

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
