"""The edge where files of fabrics and prices enter: text, JSON, TOML and fields, with messages for people."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args

from weft.errors import BadInput

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    Fields = TypeVar("Fields", bound=BaseModel)

LARGEST_FILE_BYTES = 256_000_000


def read_text(path: str | os.PathLike[str], *, where: str, largest: int = LARGEST_FILE_BYTES) -> str:
    """The text of a file in UTF-8.

    Raises:
        BadInput: no such file, a directory, larger than ``largest`` bytes, or not text.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(largest + 1)
    except FileNotFoundError:
        raise BadInput("no such file", where=where, remedy="check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot be read: {reason}", where=where) from None
    if len(raw) > largest:
        raise BadInput(f"is larger than {largest // 10**6} MB", where=where)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("is not a text file in UTF-8", where=where) from None


def parse_json(text: str, where: str) -> Any:
    """What a JSON text holds; keys may be given once, and every number is finite.

    Raises:
        BadInput: anything else, with the line.
    """
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadInput(f"not valid JSON: {reason}", where=where) from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        BadInput: it is none, with the line.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).split(";")[0]
        raise BadInput(f"not valid TOML: {reason}", where=where) from None


def validate(kind: type[Fields], table: object, where: str) -> Fields:
    """``table`` as the fields of a pydantic model.

    Raises:
        BadInput: the first field that is unknown, missing or wrong.
    """
    from pydantic import ValidationError

    if not isinstance(table, dict):
        raise BadInput("is not a table of fields", where=where)
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise _first_problem(kind, error, where) from None


def _first_problem(kind: type[BaseModel], error: ValidationError, where: str) -> BadInput:
    first = min(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
    path = ""
    for part in first["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("str", "float", "int"):
            path += f".{part}" if path else part
    place = f"{where}: {path}" if path else where
    if first["type"] == "missing":
        return BadInput("is missing", where=place, remedy="add it")
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _names(kind), n=2)
        return BadInput(
            "is not a known field", where=place, remedy=f"did you mean {' or '.join(near)}?" if near else "remove it"
        )
    problem = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return BadInput(f"{_shown(first['input'])} {problem}", where=place)


def _names(kind: type[BaseModel]) -> set[str]:
    """Fields of a model and of the models in its fields."""
    from pydantic import BaseModel

    found = set()
    for name, info in kind.model_fields.items():
        found.add(info.alias or name)
        for inner in get_args(info.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                found |= _names(inner)
    return found


def _shown(value: object) -> str:
    if not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and abs(value) > 10**30:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key is given twice")
    return table
