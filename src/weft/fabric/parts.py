"""Media of cables by reach and rate, and models of switches, as their makers describe them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from weft.documents import parse_toml
from weft.errors import BadInput, UnknownName
from weft.fabric.spec import Floats

RATES_GBPS = (100, 200, 400, 800)
"""Rates that cables are sold for; one that carries less is the next one up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """A kind of cable.

    ``lengths_m`` are those on sale, ``reach_m`` the longest that works.  With ``optics`` a cable is a fiber with a
    transceiver at either end, otherwise its ends are part of it; ``active`` ends are optical.  ``watts`` are a whole
    cable's by rate, where known.
    """

    name: str
    what: str
    rates_Gbps: tuple[int, ...]
    reach_m: float
    lengths_m: tuple[float, ...]
    source: str
    date: str
    watts: tuple[float, ...] = ()
    optics: bool = False
    active: bool = False

    def watts_at(self, rate_Gbps: int) -> float | None:
        """Watts of a cable at a rate; None where nobody says."""
        return self.watts[self.rates_Gbps.index(rate_Gbps)] if self.watts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchModel:
    """A switch on sale: ``ports`` of ``rate_Gbps`` (which break out into slower ones) in so many rack ``units``."""

    name: str
    ports: int
    rate_Gbps: int
    units: int
    source: str
    date: str


@functools.cache
def media() -> tuple[Medium, ...]:
    """All media, those first that are taken first."""
    return tuple(Medium(**{key: _tupled(value) for key, value in table.items()}) for table in _tables()["media"])


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@functools.cache
def switch_models() -> tuple[SwitchModel, ...]:
    """All models of switches, the smallest first."""
    return tuple(SwitchModel(**table) for table in _tables()["switches"])


@functools.cache
def _tables() -> dict[str, list[dict[str, Any]]]:
    text = resources.files("weft.fabric").joinpath("data", "parts.toml").read_text(encoding="utf-8")
    return parse_toml(text, "parts.toml")


def allowed(names: tuple[str, ...], where: str) -> tuple[Medium, ...]:
    """The media of some names, in that order; all without names.

    Raises:
        UnknownName: there is no such medium.
    """
    known = {one.name: one for one in media()}
    for name in names:
        if name not in known:
            raise UnknownName("medium", name, known, where=f"{where}: media")
    return tuple(known[name] for name in names) if names else media()


def model_for(ports: int, rate_Gbps: float) -> SwitchModel | None:
    """The first model with so many ports of a rate, its own ports broken out where they are faster."""
    for one in switch_models():
        if one.rate_Gbps >= rate_Gbps and one.ports * int(one.rate_Gbps // rate_Gbps) >= ports:
            return one
    return None


def rate_class(rate_Gbps: float, where: str) -> int:
    """The rate that a cable of that rate is sold for.

    Raises:
        BadInput: no cable is that fast.
    """
    for one in RATES_GBPS:
        if rate_Gbps <= one * 1.001:
            return one
    raise BadInput(
        f"a cable carries {rate_Gbps:,.0f} Gb/s, more than {RATES_GBPS[-1]}",
        where=where,
        remedy="say with `cables` in the fabric file how many cables a link bundles",
    )


def chosen(length_m: Floats, rate_Gbps: int, among: tuple[Medium, ...]) -> tuple[list[Medium | None], Floats]:
    """For each length, the first medium that is sold that long at a rate (None: no medium is), and the length sold."""
    picked: list[Medium | None] = [None] * len(length_m)
    sold = np.asarray(length_m, dtype=np.float64).copy()
    for i, length in enumerate(length_m.tolist()):
        for one in among:
            longer = [each for each in one.lengths_m if each >= length - 1e-9]
            if rate_Gbps in one.rates_Gbps and longer:
                picked[i], sold[i] = one, longer[0]
                break
    return picked, sold
