"""From what a user names (a file, or a preset) to a cluster."""

from __future__ import annotations

import os
from pathlib import Path

from weft.cluster.catalogue import load
from weft.cluster.spec import Cluster


def resolve(name_or_path: str | os.PathLike[str]) -> Cluster:
    """The cluster of a file (an existing one, or any path or name in .toml), else the preset of that name.

    >>> resolve("h100-64").spans
    (8, 64)

    Raises:
        BadInput: the file or the name cannot be used.
    """
    text = os.fspath(name_or_path)
    if text.lower().endswith(".toml") or os.sep in text or os.path.isfile(text):
        from weft.cluster.files import read_cluster  # pydantic loads only for files

        return read_cluster(Path(text))
    return load(text)
