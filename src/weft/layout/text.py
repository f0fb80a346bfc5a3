"""Layouts as people and files write them: ``tp=8,pp=16,dp=4,mbs=2`` and plain dictionaries.

Both forms take the fields of ``Layout``, the short names of ``ALIASES`` and ``dp`` (z * data).
A form may leave fields out; ``PartialLayout.complete`` fills them in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from weft.codec import Coded, table_of
from weft.errors import BadInput, UnknownName
from weft.layout.spec import (
    ALIASES,
    AXES,
    FIELDS,
    SWITCHES,
    VOCABULARIES,
    Layout,
    PipelineSchedule,
    checked_field,
    shown,
)

_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Layout)}
_SHORT = {name: short for short, name in ALIASES.items()}
DEGREES = (
    ("tp", "x"),
    ("y", "y"),
    ("cp", "context"),
    ("pp", "pipeline"),
    ("dp", "data_parallel"),
    ("fsdp", "z"),
    ("ep", "expert"),
    ("etp", "expert_tensor"),
)
"""The field's short word and the field of each degree; ``dp`` is z * data."""
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialLayout:
    """Some fields of a layout, checked one by one.

    ``data_parallel`` is the users' ``dp`` (z * data), None when it was not given.
    ``where`` names the source in errors.
    """

    values: Mapping[str, Any]
    data_parallel: int | None = None
    where: str = "--layout"

    def complete(self, world: int | None = None) -> Layout:
        """The layout with defaults for what is missing.

        ``dp`` gives whichever of z and data is missing (data when both are).  With a ``world`` and
        neither ``data`` nor ``dp``, data takes the accelerators that the other axes leave.
        ``virtual_stages`` > 1 means interleaved 1F1B unless a schedule is given, ZB-V means two of them;
        with z > 1 (ZeRO-3) ``zero`` is 0 unless given.

        Raises:
            BadInput: dp is not a multiple of its parts, or the mesh does not make up the world.
        """
        values = dict(self.values)
        if self.data_parallel is not None:
            values |= self._split_data_parallel(self.data_parallel)
        elif world is not None and "data" not in values:
            values["data"] = self._remaining(world)
        if values.get("virtual_stages", 1) > 1:
            values.setdefault("schedule", "interleaved")
        if values.get("schedule") == PipelineSchedule.ZBV:
            values.setdefault("virtual_stages", 2)
        if values.get("z", 1) > 1:
            values.setdefault("zero", 0)
        layout = Layout(**values)
        if world is not None and layout.world != world:
            raise BadInput(
                f"{_product(layout)} = {layout.world}, but there are {world} accelerators",
                where=self.where,
                remedy="change a degree; leave data out to let it take what remains",
            )
        return layout

    def _split_data_parallel(self, degree: int) -> dict[str, int]:
        known = "z" if "z" in self.values else "data"
        partner = "data" if known == "z" else "z"
        part = int(self.values.get(known, degree if known == "data" else 1))
        quotient = int(self.values[partner]) if partner in self.values else degree // part
        if part * quotient != degree:
            product = (
                f"{known} {part} * {partner} {quotient} = {part * quotient}"
                if partner in self.values
                else f"{known} {part}"
            )
            problem = f"dp is z * data, and {product} does not give dp {degree}"
            raise BadInput(problem, where=self.where, remedy="give dp, or z and data, but let them agree")
        return {known: part, partner: quotient}

    def _remaining(self, world: int) -> int:
        layout = Layout(**self.values)
        degree, left = divmod(world, layout.world)
        if left or degree < 1:
            raise BadInput(
                f"{_product(layout)} = {layout.world} does not divide {world} accelerators",
                where=self.where,
                remedy="choose degrees whose product divides the number of accelerators",
            )
        return degree


def _product(layout: Layout) -> str:
    return " * ".join(f"{axis} {getattr(layout, axis)}" for axis in AXES)


def parse_layout(text: str, *, where: str = "--layout") -> PartialLayout:
    """Fields from ``"x=8,pipeline=16,sp"``; items are separated by commas or blanks, a bare switch is on.

    Raises:
        BadInput: an unknown or repeated name, or a value of the wrong kind; ``where`` is shown in front.
    """
    pairs = []
    for item in re.split(r"[,\s]+", text.strip().strip(",")):
        name, equals, value = item.partition("=")
        if not item:
            raise BadInput("the layout is empty", where=where, remedy="write it like x=8,pipeline=4,data=2")
        if not equals and _field_name(name, where) in SWITCHES:
            value = "true"
        elif not value:
            raise BadInput(f"{shown(item)} has no value", where=where, remedy="write it like x=8,pipeline=4")
        pairs.append((name, _from_text(name, value, where)))
    return _collect(pairs, where)


def layout_from_dict(values: Mapping[str, Any], *, where: str = "layout", world: int | None = None) -> Layout:
    """The layout of a dictionary as JSON or TOML gives it; integers and booleans must not be strings.

    Raises:
        BadInput: an unknown or repeated name, a value of the wrong kind, or degrees that do not fit
            ``world``.
    """
    if not isinstance(values, Mapping):
        raise BadInput(f"a layout is a table of fields, not {shown(values)}", where=where, remedy='like {"x": 8}')
    return _collect(((str(name), value) for name, value in values.items()), where).complete(world)


WrittenLayout = Annotated[Layout, Coded(lambda raw: layout_from_dict(table_of(raw, ""), where=""), shape=Layout)]
"""A layout in a document, of which fields may be left out."""


def layout_to_dict(layout: Layout) -> dict[str, Any]:
    """Every field under its own name, with JSON types; ``layout_from_dict`` reads it back."""
    return {name: list(layout.order) if name == "order" else getattr(layout, name) for name in FIELDS}


def format_layout(layout: Layout, *, whole: bool = False) -> str:
    """The layout as people write it, to be given to ``--layout`` again: degrees in the field's short words, then
    whatever differs from the defaults; ``whole``: micro-batch, ZeRO and recomputation in any case.

    >>> format_layout(Layout(x=8, z=2, data=4, pipeline=4, zero=0, sequence_parallel=True))
    'tp=8,pp=4,dp=8,fsdp=2,zero=0,sp'
    """
    items = [format_degrees(layout)]
    for name in FIELDS[len(DEGREES) :]:
        value = getattr(layout, name)
        wanted = name == "schedule" and layout.virtual_stages > 1
        wanted |= (name == "zero" and layout.z > 1) or (name == "virtual_stages" and layout.schedule.wraps)
        wanted |= whole and name in ("micro_batch", "zero", "recompute")
        if wanted or value != _DEFAULTS[name]:
            items.append(_SHORT.get(name, name) + ("" if value is True else f"={_to_text(value)}"))
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
    for given, raw in pairs:
        name = _field_name(given, where)
        if name in values:
            raise BadInput(f"{name} is given twice (again as {given})", where=where, remedy="give it once")
        values[name] = checked_field(name, raw, f"{where}: {given}")
    data_parallel = values.pop("dp", None)
    return PartialLayout(values=values, data_parallel=data_parallel, where=where)


def _field_name(given: str, where: str) -> str:
    name = given.strip().lower().replace("-", "_")
    name = ALIASES.get(name, name)
    if name not in FIELDS and name != "dp":
        raise UnknownName("layout field", given[:40], (*FIELDS, *ALIASES, "dp"), where=where)
    return name


def _from_text(text: str, value: str, where: str) -> Any:
    """The value with the type that the field wants, or the text itself for ``checked_field`` to refuse."""
    name = _field_name(text, where)
    if name in SWITCHES:
        return _TRUTH.get(value.lower(), value)
    if name == "order":
        return value.split("/")
    if name not in VOCABULARIES and re.fullmatch(r"[+-]?[0-9]{1,18}", value, re.ASCII):
        return int(value)
    return value
