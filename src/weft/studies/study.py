"""Study files (``weft.study/1``): which command is computed at which points, and the points in order."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from weft.codec import Range, decode
from weft.documents import parse_toml
from weft.errors import BadInput, UnknownName
from weft.files import CONFIGURATION_BYTES, read_bytes, read_text

SCHEMA = "weft.study/1"
Value = str | int | float | bool
MOST_VALUES = 100_000
_Text = Annotated[str, Range(1, 500)]


@dataclass(frozen=True, slots=True)
class AxisKind:
    """A setting that a study may vary.

    Attributes:
        column: its name in results; the unit is in the name.
        parse: turns a written value into SI; takes the value and its place.
        file: whether a value may name a file, whose content then counts.
    """

    column: str
    parse: Callable[[Any, str], Value]
    file: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A computation at a point: its name, its axes by name, and those that a study must have."""

    name: str
    axes: Mapping[str, AxisKind]
    needed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting and its values."""

    name: str
    kind: AxisKind
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A computation over axes, and the points to skip, as values by the number of their axis."""

    name: str
    computation: Computation
    axes: tuple[Axis, ...]
    skip: tuple[Mapping[int, tuple[Value, ...]], ...]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """A study file; the computation checks its axes."""

    schema: Literal["weft.study/1"]
    name: _Text = "sweep"
    compute: _Text = "plan"
    axes: Annotated[Mapping[str, Any], Range(1, 64)]
    skip: Annotated[tuple[Mapping[str, Any], ...], Range(0, 64)] = ()


def read_study(path: str | os.PathLike[str], computation: Callable[[str, str], Computation]) -> Study:
    """The study of a TOML file; ``computation`` takes a name and its place.

    Raises:
        BadInput: the file cannot be read, or a field is unknown, missing or wrong.
    """
    where = os.fspath(path)
    text = read_text(path, where=where, largest=CONFIGURATION_BYTES, remedy="name a study file (weft.study/1)")
    return study_from_dict(parse_toml(text, where), computation, where=where)


def study_from_dict(
    mapping: Mapping[str, Any], computation: Callable[[str, str], Computation], *, where: str = "study"
) -> Study:
    """The study of a dictionary with the fields of a study file.

    Raises:
        BadInput: a field is unknown, missing or wrong.
        UnknownName: no such computation or axis.
    """
    file = decode(StudyFile, mapping, where)
    chosen = computation(file.compute, f"{where}: compute")
    axes: list[Axis] = []
    for written, values in file.axes.items():
        place = f"{where}: axes.{written}"
        axis = _axis(axis_name(written, chosen, place), values, chosen, place)
        if twice := [earlier.name for earlier in axes if earlier.kind.column == axis.kind.column]:
            raise BadInput(f"is the same as {twice[0]}", where=place, remedy="keep one of them")
        axes.append(axis)
    for name in chosen.needed:
        if name not in [axis.name for axis in axes]:
            raise BadInput(f"{file.compute} needs {name}", where=f"{where}: axes", remedy=f"add {name} = [...]")
    return Study(
        name=file.name,
        computation=chosen,
        axes=tuple(axes),
        skip=tuple(_skip(rule, axes, chosen, f"{where}: skip") for rule in file.skip),
        document=dict(mapping),
    )


def axis_name(written: str, computation: Computation, where: str) -> str:
    """The name of an axis, which may be written in the plural."""
    for suffix, instead in (("", ""), ("s", ""), ("es", ""), ("ies", "y")):
        name = written.removesuffix(suffix) + instead if written.endswith(suffix) else written
        if name in computation.axes:
            return name
    raise UnknownName(f"axis of {computation.name}", written[:60], computation.axes, where=where)


def _axis(name: str, values: Any, computation: Computation, where: str) -> Axis:
    kind = computation.axes[name]
    listed = values if isinstance(values, list) else [values]
    if not listed:
        raise BadInput("has no values", where=where, remedy="give at least one")
    if len(listed) > MOST_VALUES:
        raise BadInput(f"has {len(listed):,} values", where=where, remedy=f"give at most {MOST_VALUES:,}")
    try:
        parsed = tuple(kind.parse(value, where) for value in listed)
    except BadInput as error:
        error.where = where
        raise
    value, times = Counter(parsed).most_common(1)[0]
    if times > 1:
        raise BadInput(f"{str(value)[:60]} is given twice", where=where, remedy="give each value once")
    return Axis(name=name, kind=kind, values=parsed)


def _skip(
    rule: Mapping[str, Any], axes: Sequence[Axis], computation: Computation, where: str
) -> Mapping[int, tuple[Value, ...]]:
    """Values by the number of their axis; a point that has one of each is left out."""
    names = [axis.name for axis in axes]
    result = {}
    for written, values in rule.items():
        name = axis_name(written, computation, where)
        if name not in names:
            raise BadInput(f"{name} is not an axis of the study", where=where, remedy="remove it")
        result[names.index(name)] = _axis(name, values, computation, f"{where}.{written}").values
    if not result:
        raise BadInput("has no axes", where=where, remedy='write it like { fabric = "fat-tree", radix = [32, 64] }')
    return result


KEY_BYTES = 16
MOST_POINTS = 1_000_000
"""Of a study, with skipped ones."""


class Points:
    """The points of a study; the last axis changes fastest.

    Attributes:
        study: the study.
        columns: names of its axes in results.
        files: digest of each file that a value names.

    Args:
        files: earlier digests; by default those of the files as they are.

    Raises:
        BadInput: no point or too many.
    """

    def __init__(self, study: Study, *, files: Mapping[str, str] | None = None) -> None:
        self.study = study
        self.columns = tuple(axis.kind.column for axis in study.axes)
        raw = prod(len(axis.values) for axis in study.axes)
        if raw > MOST_POINTS:
            problem = f"{raw:,} points are more than {MOST_POINTS:,}"
            raise BadInput(problem, where=study.name, remedy="take values out")
        named = [value for axis in study.axes if axis.kind.file for value in axis.values]
        if files is None:
            existing = [name for name in named if isinstance(name, str) and os.path.isfile(name)]
            files = {name: hashlib.sha256(read_bytes(name, where=name)).hexdigest() for name in existing}
        self.files = dict(files)
        self._kept: NDArray[np.int64] = np.arange(raw, dtype=np.int64)
        if study.skip:
            points = [self._values(number) for number in range(raw)]
            self._kept = np.flatnonzero(
                [
                    not any(all(point[place] in values for place, values in skip.items()) for skip in study.skip)
                    for point in points
                ]
            )
        if not len(self._kept):
            raise BadInput("all points are skipped", where=f"{study.name}: skip", remedy="skip fewer")

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, number: int) -> tuple[Value, ...]:
        """The values of a point, one an axis."""
        return self._values(int(self._kept[number]))

    def table(self, number: int) -> dict[str, Value]:
        """The values of a point by column."""
        return dict(zip(self.columns, self[number], strict=True))

    def keys(self, version: str) -> NDArray[np.void]:
        """The hash of everything that each result depends on; equal points of two studies have the same."""
        same = {"version": version, "compute": self.study.computation.name}
        result = bytearray()
        for number in range(len(self)):
            values = self.table(number)
            files = {name: self.files[text] for name, text in values.items() if text in self.files}
            text = json.dumps(same | {"values": values, "files": files}, sort_keys=True)
            result += hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()
        return np.frombuffer(bytes(result), dtype=f"V{KEY_BYTES}")

    def _values(self, raw: int) -> tuple[Value, ...]:
        result = []
        for axis in reversed(self.study.axes):
            raw, index = divmod(raw, len(axis.values))
            result.append(axis.values[index])
        return tuple(reversed(result))
