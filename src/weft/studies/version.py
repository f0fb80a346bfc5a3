"""What results follow from beside their input: Weft's version, its sources and its constants."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version as installed
from pathlib import Path

import weft

_KINDS = (".py", ".toml", ".json", ".csv", ".yaml")


@cache
def version() -> str:
    """Weft's version, and a hash of its sources and data."""
    root = Path(weft.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(one for one in root.rglob("*") if one.suffix in _KINDS):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{installed('weft')} ({digest.hexdigest()[:16]})"
