"""The points of a study, in order: the product of its axes without the skipped points."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.errors import BadInput
from weft.files import read_bytes
from weft.studies.study import Study, Value

KEY_BYTES = 16
LIMIT = 1_000_000
"""Most points of a study by default."""


class Points:
    """The points of a study; the last axis changes fastest.

    Attributes:
        study: the study.
        columns: names of its axes in results.
        files: digest of each file that a value names.

    Args:
        files: earlier digests; by default those of the files as they are.
        limit: most points, with skipped ones.

    Raises:
        BadInput: no point or too many.
    """

    def __init__(self, study: Study, *, files: Mapping[str, str] | None = None, limit: int = LIMIT) -> None:
        self.study = study
        self.columns = tuple(axis.kind.column for axis in study.axes)
        raw = prod(len(axis.values) for axis in study.axes)
        if raw > limit:
            problem = f"{raw:,} points are more than {limit:,}"
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
