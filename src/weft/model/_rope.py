"""Rotary positions of a Hugging Face configuration."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, Literal

from weft.model._fields import Fields
from weft.model.spec import Model, Rope

_BASES = {"gemma3": 1e6, "gemma3_text": 1e6, "gpt_oss": 150_000.0, "mixtral": 1e6}
"""Defaults of transformers; 10,000 elsewhere."""
_SHARES = {"gpt_neox": 0.25, "nemotron": 0.5}
_SCALINGS: Mapping[str, Literal["none", "linear", "llama3", "yarn"]] = {
    "default": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}


def rope(fields: Fields, model: Model) -> Rope | None:
    """How positions rotate; None where they do not, or in a way that has no name here (dynamic, longrope).

    Raises:
        BadInput: a value that is no number or out of range.
    """
    if not any(attention.rotary for attention in model.attentions):
        return None
    f = fields.inner("text_config") if fields.has("text_config") else fields
    scaled = f.inner("rope_parameters" if f.has("rope_parameters") else "rope_scaling")
    named = scaled.find("rope_type", "type")
    kind = str(scaled.data[named]) if named else "default"
    if kind not in _SCALINGS:
        return None
    base = _number(
        scaled if scaled.has("rope_theta") else f, ("rope_theta", "rotary_emb_base"), _BASES, f.kind, 10_000.0
    )
    share = _number(
        scaled if scaled.has("partial_rotary_factor") else f,
        ("partial_rotary_factor", "rotary_pct", "rope_percent"),
        _SHARES,
        f.kind,
        1.0,
    )
    factor = 1.0 if _SCALINGS[kind] == "none" else _number(scaled, ("factor",), {}, f.kind, 1.0)
    return Rope(base=base, share=share, scaling=_SCALINGS[kind], factor=factor)


def _number(f: Fields, names: tuple[str, ...], defaults: Mapping[str, float], kind: str, default: float) -> float:
    name = f.find(*names)
    if name is None:
        return defaults.get(kind, default)
    value: Any = f.data[name]
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1e12
    if not usable or not math.isfinite(value):
        raise f.bad(name, f"{reprlib.repr(value)} is not a positive number")
    return float(value)
