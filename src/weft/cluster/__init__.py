"""On what: accelerators, tiers and clusters.

Functions raise ``BadInput`` for input that cannot be used.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from weft.cluster.calibration import Calibration, calibration, read_calibration
from weft.cluster.catalogue import MAX_COUNT, accelerator, accelerator_names, load, names
from weft.cluster.spec import Accelerator, Cluster, Tier, TierKind
from weft.codec import Coded, table_of
from weft.errors import BadInput
from weft.files import CONFIGURATION_BYTES, read_text

SYSTEM = re.compile(r"(?P<path>.+\.json)(?::(?P<count>\d{1,9}))?")
"""A file of Calculon's, and how many accelerators of it."""


def resolve(name_or_path: str | os.PathLike[str]) -> Cluster:
    """The cluster of a file (an existing one, or any path or name in .toml), of a system of Calculon
    (``system.json:1024``: so many accelerators), else the preset of that name.

    >>> resolve("h100-64").spans
    (8, 64)
    """
    text = os.fspath(name_or_path)
    if system := SYSTEM.fullmatch(text):
        return _system(system["path"], system["count"])
    if text.lower().endswith(".toml") or os.sep in text or os.path.isfile(text):
        from weft.cluster.files import read_cluster  # pydantic loads only for files

        return read_cluster(Path(text))
    return load(text)


def _system(path: str, count: str | None) -> Cluster:
    from weft.cluster.calculon import is_system, system_cluster
    from weft.documents import parse_json

    remedy = f"as {path}:1024"
    values = parse_json(read_text(path, largest=CONFIGURATION_BYTES, remedy="give a system of Calculon"), path)
    if not is_system(values):
        raise BadInput("is JSON, but no system of Calculon", where=path, remedy="give a TOML file or a preset")
    if count is None:
        raise BadInput("does not say how many accelerators there are", where=path, remedy=remedy)
    if not 1 <= int(count) <= MAX_COUNT:
        raise BadInput(f"{count} is not between 1 and {MAX_COUNT:,}", where=path, remedy=remedy)
    return system_cluster(values, int(count), Path(path).stem, where=path)


def _read(raw: Any) -> Cluster:
    from weft.cluster.files import cluster_from_dict

    return cluster_from_dict(table_of(raw, ""), where="")


WrittenCluster = Annotated[Cluster, Coded(_read, shape=Cluster)]
"""A cluster in a document."""


__all__ = [
    "Accelerator",
    "Calibration",
    "Cluster",
    "Tier",
    "TierKind",
    "WrittenCluster",
    "accelerator",
    "accelerator_names",
    "calibration",
    "load",
    "names",
    "read_calibration",
    "resolve",
]
