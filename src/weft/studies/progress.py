"""How far a study is, in a file beside its state: while a study runs, nobody else can read the state."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.documents import parse_json
from weft.files import CONFIGURATION_BYTES, read_text, write_text
from weft.records import Reader

FILE = "progress.json"
_READER = Reader(limits=dict.fromkeys(("points", "known", "left"), (0, 10**9)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a study is.

    Attributes:
        study: its name.
        compute: what it computes.
        points: of the study.
        known: results that there are.
        left: results that there are to be; points that are the same have one.
    """

    study: str
    compute: str
    points: int
    known: int
    left: int


def write_progress(folder: str | os.PathLike[str], progress: Progress) -> None:
    """Say how far a study is.

    Raises:
        BadInput: the file cannot be written.
    """
    write_text(Path(folder, FILE), json.dumps(asdict(progress)) + "\n")


def read_progress(folder: str | os.PathLike[str]) -> Progress:
    """How far the study of a folder is, or was when it ended.

    Raises:
        BadInput: the file cannot be read, or is none of Weft's.
    """
    where = os.fspath(Path(folder, FILE))
    text = read_text(where, largest=CONFIGURATION_BYTES, remedy="run weft sweep with --state there")
    return _READER.read(Progress, parse_json(text, where), where)
