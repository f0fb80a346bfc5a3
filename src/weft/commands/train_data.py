"""What ``weft train`` is told of its data: files with weights, of text or of tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence

from weft.errors import BadInput

_LARGEST_WEIGHT = 1e9

Files = tuple[tuple[str, float], ...]
"""Paths and weights."""


def parse_data(given: Sequence[str | os.PathLike[str]], where: str) -> Files:
    """Paths and weights of FILE or FILE=WEIGHT.

    Raises:
        BadInput: a weight is no number above 0.
    """
    found = []
    for one in (os.fspath(each) for each in given):
        path, sign, weight = one.rpartition("=")
        try:
            share = float(weight) if sign else None
        except ValueError:
            share = None
        if share is not None and not 0 < share < _LARGEST_WEIGHT:
            raise BadInput(f"{one!r:.80}: a weight is above 0", where=where, remedy="give FILE=0.3")
        if sign and share is None and not os.path.exists(one):
            problem = f"{weight!r:.40} is no weight, and there is no file {one!r:.80}"
            raise BadInput(problem, where=where, remedy="give FILE or FILE=WEIGHT, as text.txt=0.3")
        found.append((one, 1.0) if share is None else (path, share))
    return tuple(found)
