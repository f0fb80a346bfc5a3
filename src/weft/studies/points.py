"""The points of a study, in order: the product of its axes and samples, less what conditions leave out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.errors import BadInput
from weft.files import read_bytes
from weft.studies.conditions import Condition
from weft.studies.sobol import sobol
from weft.studies.study import Axis, Study, Value

KEY_BYTES = 16
LIMIT = 1_000_000
"""Points that a study may have where nobody says more."""


class Points:
    """The points of a study; the last axis changes fastest, and a sample faster than all.

    Attributes:
        study: the study.
        limit: most points, before conditions.
        columns: what results call its axes.
        files: digest of each file that a value names.

    Args:
        files: digests as they were; by default those of the files that are there.

    Raises:
        BadInput: no point or too many, or a condition that cannot be used.
    """

    def __init__(self, study: Study, *, files: Mapping[str, str] | None = None, limit: int = LIMIT) -> None:
        self.study, self.limit = study, limit
        self.columns = tuple(axis.kind.column for axis in study.axes)
        drawn = study.sample.axes if study.sample else ()
        self._grid = [i for i in range(len(study.axes)) if i not in drawn]
        self._sizes = [len(study.axes[i].values) for i in self._grid]
        raw = prod(self._sizes) * (study.sample.count if study.sample else 1)
        if raw > limit:
            problem = f"{raw:,} points are more than {limit:,}"
            raise BadInput(problem, where=study.name, remedy="take values out, or give --limit")
        self._draws = sobol(study.sample.count, len(drawn), study.sample.seed) if study.sample else None
        self.files = _digests(study) if files is None else dict(files)
        self._kept: NDArray[np.int64] = np.arange(raw, dtype=np.int64)
        if study.where:
            self._kept = self._chosen(raw)
        if not len(self._kept):
            raise BadInput("no point is left", where=f"{study.name}: where", remedy="loosen a condition")

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, number: int) -> tuple[Value, ...]:
        """The values of a point, one an axis."""
        return self._values(int(self._kept[number]))

    def table(self, number: int) -> dict[str, Value]:
        """The values of a point by column."""
        return dict(zip(self.columns, self[number], strict=True))

    def keys(self, version: str) -> NDArray[np.void]:
        """What tells points apart, also between studies: the hash of all that a result follows from."""
        same = {"version": version, "compute": self.study.computation.name}
        found = bytearray()
        for number in range(len(self)):
            values = self.table(number)
            files = {name: self.files[text] for name, text in values.items() if text in self.files}
            text = json.dumps(same | {"values": values, "files": files}, sort_keys=True)
            found += hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()
        return np.frombuffer(bytes(found), dtype=f"V{KEY_BYTES}")

    def _values(self, raw: int) -> tuple[Value, ...]:
        axes, found = self.study.axes, dict[int, Value]()
        if self._draws is not None and self.study.sample is not None:
            raw, draw = divmod(raw, len(self._draws))
            for place, share in zip(self.study.sample.axes, self._draws[draw].tolist(), strict=True):
                found[place] = _drawn(axes[place], share)
        for place, size in zip(reversed(self._grid), reversed(self._sizes), strict=True):
            raw, index = divmod(raw, size)
            found[place] = axes[place].values[index]
        return tuple(found[place] for place in range(len(axes)))

    def _chosen(self, raw: int) -> NDArray[np.int64]:
        """The points for which all conditions hold."""
        facts, axes = self.study.computation.facts, self.study.axes
        columns = {one.name: one.kind.column for one in axes} | {column: column for column in self.columns}
        known = {*columns, *facts}
        conditions = [Condition(text, known, f"{self.study.name}: where") for text in self.study.where]

        def chosen() -> Iterator[int]:
            for number in range(raw):
                values = dict(zip(self.columns, self._values(number), strict=True))

                def look(name: str, values: Mapping[str, Value] = values) -> Value | None:
                    return values[columns[name]] if name in columns else facts[name](values)

                if all(one(look) for one in conditions):
                    yield number

        return np.fromiter(chosen(), dtype=np.int64)


def _drawn(axis: Axis, share: float) -> Value:
    if axis.range is not None:
        return axis.range.at(share)
    return axis.values[int(share * len(axis.values))]


def _digests(study: Study) -> dict[str, str]:
    names = (one for axis in study.axes if axis.kind.file for one in axis.values)
    return {
        name: hashlib.sha256(read_bytes(name, where=name)).hexdigest()
        for name in names
        if isinstance(name, str) and os.path.isfile(name)
    }
