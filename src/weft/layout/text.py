"""Layouts as people and files write them: ``tp=8,pp=16,dp=4,mbs=2`` and plain dictionaries.

Both forms take the fields of ``Layout``, the short names of ``ALIASES``, ``dp`` (z * data) and ``zero=3``, which
shares the weights among all data-parallel ranks as ``fsdp`` does.
A form may leave fields out; ``PartialLayout.complete`` fills them in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Annotated, Any

from weft.codec import Coded, table_of
from weft.errors import BadInput
from weft.layout.spec import (
    ALIASES,
    FIELDS,
    FLAGS,
    VOCABULARIES,
    Layout,
    PipelineSchedule,
    checked_field,
    shown,
    word_of,
)

_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Layout)}
DEGREES = (
    ("tp", "x"),
    ("y", "y"),
    ("cp", "context"),
    ("pp", "pipeline"),
    ("dp", "dp"),
    ("fsdp", "z"),
    ("ep", "expert"),
    ("etp", "expert_tensor"),
)
"""The users' word for each degree, and the attribute of ``Layout`` that has it."""
OPTION_FIELDS = FIELDS[len(DEGREES) :]
"""The fields of ``Layout`` that are not degrees."""
KEYS = ("dp", *(word_of(name) for name in FIELDS))
"""What a layout's text may set, in the users' words."""
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialLayout:
    """Some fields of a layout, checked one by one.

    ``data_parallel`` is the users' ``dp`` (z * data), None when it was not given.
    ``rest`` is the axis that takes the accelerators that the others leave.
    ``where`` names the source in errors.
    """

    values: Mapping[str, Any]
    data_parallel: int | None = None
    rest: str = "data"
    where: str = "--layout"

    def complete(self, world: int | None = None) -> Layout:
        """The layout with defaults for what is missing.

        ``dp`` gives whichever of z and data is missing (data when both are).  With a ``world`` and
        neither ``rest`` nor ``dp``, ``rest`` takes the accelerators that the other axes leave.
        ``virtual_stages`` > 1 means interleaved 1F1B unless a schedule is given, ZB-V means two of them;
        with z > 1 (ZeRO-3) ``zero`` is 0 unless given.

        Raises:
            BadInput: dp is not a multiple of its parts, or the mesh does not make up the world.
        """
        values = dict(self.values)
        if self.data_parallel is not None:
            values |= self._split_data_parallel(self.data_parallel)
        elif world is not None and self.rest not in values:
            values[self.rest] = self._remaining(world)
        if values.get("virtual_stages", 1) > 1:
            values.setdefault("schedule", "interleaved")
        if values.get("schedule") == PipelineSchedule.ZBV:
            values.setdefault("virtual_stages", 2)
        if values.get("z", 1) > 1:
            values.setdefault("zero", 0)
        layout = Layout(**values)
        if world is not None and layout.world != world:
            raise BadInput(
                f"{product(layout)}, but there are {world} accelerators",
                where=self.where,
                remedy="change a degree, or leave dp out to let it take what remains",
            )
        return layout

    def _split_data_parallel(self, degree: int) -> dict[str, int]:
        known = "z" if "z" in self.values else "data"
        partner = "data" if known == "z" else "z"
        part = int(self.values.get(known, degree if known == "data" else 1))
        quotient = int(self.values[partner]) if partner in self.values else degree // part
        if part * quotient != degree:
            if partner in self.values:
                problem = f"fsdp={self.values['z']} * data={self.values['data']} is not dp={degree}"
            else:
                problem = f"dp={degree} is not a multiple of {word_of(known)}={part}"
            raise BadInput(problem, where=self.where, remedy="change one of them, or leave one out")
        return {known: part, partner: quotient}

    def _remaining(self, world: int) -> int:
        layout = Layout(**self.values)
        degree, left = divmod(world, layout.world)
        if left or degree < 1:
            raise BadInput(
                f"{product(layout)} does not divide {world} accelerators",
                where=self.where,
                remedy="choose degrees whose product divides the number of accelerators",
            )
        return degree


def product(layout: Layout) -> str:
    """The degrees and the number of accelerators that they multiply to: "tp 8 * pp 4 = 32"."""
    degrees = {short: getattr(layout, short) for short in ("tp", "y", "cp", "pp", "dp")}
    factors = [f"{short} {degree}" for short, degree in degrees.items() if degree > 1] or ["dp 1"]
    return " * ".join(factors) + (f" = {layout.world}" if len(factors) > 1 else "")


def parse_layout(text: str, *, where: str = "--layout") -> PartialLayout:
    """Fields from ``"tp=8,pp=16,sp"``; items are separated by commas or blanks, a word alone means true.

    Raises:
        BadInput: an unknown or repeated name, or a value of the wrong kind; ``where`` is shown in front.
    """
    pairs = []
    for item in re.split(r"[,\s]+", text.strip().strip(",")):
        name, equals, value = item.partition("=")
        if not item:
            raise BadInput("the layout is empty", where=where, remedy="write it like tp=8,pp=4,dp=2")
        if not equals and field_name(name, where) in FLAGS:
            value = "true"
        elif not value:
            raise BadInput(f"{shown(item)} has no value", where=where, remedy="write it like tp=8,pp=4")
        pairs.append((name, _from_text(name, value, where)))
    return _collect(pairs, where)


def layout_from_dict(values: Mapping[str, Any], *, where: str = "layout", world: int | None = None) -> Layout:
    """The layout of a dictionary as JSON or TOML gives it; integers and booleans must not be strings.

    Raises:
        BadInput: an unknown or repeated name, a value of the wrong kind, or degrees that do not fit
            ``world``.
    """
    if not isinstance(values, Mapping):
        raise BadInput(f"a layout is a table of fields, not {shown(values)}", where=where, remedy='like {"tp": 8}')
    return _collect(((str(name), value) for name, value in values.items()), where).complete(world)


WrittenLayout = Annotated[Layout, Coded(lambda raw: layout_from_dict(table_of(raw, ""), where=""), shape=Layout)]
"""A layout in a document, of which fields may be left out."""


def format_layout(layout: Layout, *, whole: bool = False) -> str:
    """The layout as people write it, to be given to ``--layout`` again: degrees in the field's short words, then
    whatever differs from the defaults; ``whole``: micro-batch, ZeRO and recomputation in any case.

    >>> format_layout(Layout(x=8, z=2, data=4, pipeline=4, zero=0, sequence_parallel=True))
    'tp=8,pp=4,dp=8,fsdp=2,sp'
    """
    items, sharded = [format_degrees(layout)], layout.fsdp > 1
    for name in OPTION_FIELDS:
        value = getattr(layout, name)
        wanted = name == "schedule" and layout.virtual_stages > 1
        wanted |= name == "virtual_stages" and layout.schedule.wraps
        wanted |= whole and (name in ("micro_batch", "recompute") or (name == "zero" and not sharded))
        usual = 0 if name == "zero" and sharded else _DEFAULTS[name]
        if wanted or value != usual:
            items.append(word_of(name) + ("" if value is True else f"={_to_text(value)}"))
    return ",".join(items)


def format_degrees(layout: Layout) -> str:
    """The degrees alone, those of 1 left out except dp: "tp=8,pp=16,dp=128"."""
    degrees = ((short, getattr(layout, name)) for short, name in DEGREES)
    return ",".join(f"{short}={degree}" for short, degree in degrees if degree > 1 or short == "dp")


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "/".join(value) if isinstance(value, tuple) else str(value)


def _collect(pairs: Iterable[tuple[str, Any]], where: str) -> PartialLayout:
    values: dict[str, Any] = {}
    for key, raw in pairs:
        name = field_name(key, where)
        if name in values:
            raise BadInput(f"{word_of(name)} is given twice", where=where, remedy="give it once")
        fully_sharded = name == "zero" and raw == 3 and not isinstance(raw, bool)
        values[name] = 3 if fully_sharded else checked_field(name, raw, f"{where}: {key}")
    data_parallel = values.pop("dp", None)
    if values.get("zero") != 3:
        return PartialLayout(values=values, data_parallel=data_parallel, where=where)
    del values["zero"]
    if "z" in values:
        return PartialLayout(values=values, data_parallel=data_parallel, where=where)
    if values.setdefault("data", 1) != 1:
        problem = f"zero=3 shares the weights among all data-parallel ranks, data={values['data']} copies them"
        raise BadInput(problem, where=where, remedy="drop data, or give fsdp=N, the ranks that share them")
    return PartialLayout(values=values, data_parallel=data_parallel, rest="z", where=where)


def field_name(key: str, where: str) -> str:
    """The field of ``Layout`` that people mean by a key, or dp.  Raises BadInput where there is none."""
    name = key.strip().lower().replace("-", "_")
    name = ALIASES.get(name, name)
    if name not in FIELDS and name != "dp":
        near = get_close_matches(name, {*KEYS, *FIELDS}, n=2, cutoff=0.5)
        suggestion = f"did you mean {' or '.join(near)}? " if near else ""
        raise BadInput(f"unknown key {key[:40]!r}", where=where, remedy=f"{suggestion}Keys: {', '.join(KEYS)}")
    return name


def _from_text(text: str, value: str, where: str) -> Any:
    """The value with the type that the field wants, or the text for ``checked_field`` to refuse."""
    name = field_name(text, where)
    if name in FLAGS:
        return _TRUTH.get(value.lower(), value)
    if name == "order":
        return value.split("/")
    if name not in VOCABULARIES and re.fullmatch(r"[+-]?[0-9]{1,18}", value, re.ASCII):
        return int(value)
    return value
