"""Prices and powers of network parts: presets of the package, and users' TOML files."""

from __future__ import annotations

import functools
import os
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from weft.errors import UnknownName
from weft.fabric.edge import parse_toml, read_text, validate

DEFAULT = "rail-only-v5"
MAX_FILE_BYTES = 100_000
_Figure = Annotated[float, Field(ge=0, le=1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars and watts of one part each: a switch port, a transceiver, a cable, a NIC."""

    name: str
    usd_per_switch_port: float
    usd_per_transceiver: float
    usd_per_cable: float
    usd_per_nic: float
    watts_per_switch_port: float
    watts_per_transceiver: float
    watts_per_nic: float
    source: str = ""


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    like: str | None = Field(None, max_length=100)
    name: str | None = Field(None, min_length=1, max_length=100)
    usd_per_switch_port: _Figure | None = None
    usd_per_transceiver: _Figure | None = None
    usd_per_cable: _Figure | None = None
    usd_per_nic: _Figure | None = None
    watts_per_switch_port: _Figure | None = None
    watts_per_transceiver: _Figure | None = None
    watts_per_nic: _Figure | None = None
    source: str | None = Field(None, max_length=500)


def presets() -> tuple[str, ...]:
    """Names of the presets, sorted."""
    return tuple(sorted(_tables()))


def preset(name: str) -> Prices:
    """The prices of a preset.

    Raises:
        UnknownName: there is none of this name.
    """
    tables = _tables()
    if name not in tables:
        raise UnknownName("price preset", name, tables, where="prices")
    return Prices(name=name, **tables[name])


def read_prices(path: str | os.PathLike[str]) -> Prices:
    """The prices of a TOML file; fields that it leaves out are those of the preset named by ``like``.

    Raises:
        BadInput: the file cannot be read, or a field is unknown, negative or not finite.
    """
    where = os.fspath(path)
    return prices_from_toml(read_text(path, where=where, largest=MAX_FILE_BYTES), where=where)


def prices_from_toml(text: str, *, where: str = "prices") -> Prices:
    """The prices of a TOML text, as ``read_prices``."""
    given = validate(_Fields, parse_toml(text, where), where).model_dump(exclude_none=True)
    base = preset(given.pop("like", DEFAULT))
    return Prices(**asdict(base) | {"name": where, "source": where} | given)


@functools.cache
def _tables() -> dict[str, dict[str, Any]]:
    text = resources.files("weft.fabric").joinpath("data", "prices.toml").read_text(encoding="utf-8")
    tables = parse_toml(text, "prices.toml")
    return {name: validate(_Fields, table, name).model_dump(exclude_none=True) for name, table in tables.items()}
