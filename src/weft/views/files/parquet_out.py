"""Rows as Parquet, through pyarrow (extra ``parquet``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import IO, Any

from weft.errors import MissingExtra

ROWS = 50_000
"""Of a row group."""


def check_parquet(option: str) -> None:
    """Refuse Parquet where pyarrow is not installed.

    Raises:
        MissingExtra: it is not.
    """
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise MissingExtra(f"{option} FILE.parquet", "parquet")


def write_parquet(file: IO[bytes], rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type]) -> None:
    """Write rows as they come; the same rows give the same bytes with the same pyarrow.

    Args:
        columns: names, and bool, int, float or str.
    """
    import pyarrow
    import pyarrow.parquet

    forms = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, forms[kind]) for name, kind in columns.items()])
    waiting = iter(rows)
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while group := list(islice(waiting, ROWS)):
            arrays = [
                pyarrow.array([_as(kind, row.get(name)) for row in group], type=forms[kind])
                for name, kind in columns.items()
            ]
            writer.write_table(pyarrow.table(arrays, schema=schema))


def _as(kind: type, value: Any) -> Any:
    return None if value is None else kind(value)
