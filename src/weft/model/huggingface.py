"""Read a Hugging Face ``config.json`` offline: shapes only, never code.

Keys that change neither shape nor cost are ignored; those that do and are not modelled are refused by name.
Optional keys take the defaults that transformers documents for the model type.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput, UnknownName, Unsupported
from weft.files import read_text
from weft.model._families import BUILDERS, STAND_IN, Fields, dense_equivalent, rope
from weft.model.spec import Model

LARGEST_CONFIGURATION_BYTES = 4_000_000

MODEL_TYPES = tuple(sorted(BUILDERS))
"""The values of ``model_type`` that can be read."""

OTHER_TASKS = frozenset({"bert", "clip", "t5", "vit", "whisper"})
"""Types that are not decoders of text, for which there is no stand-in."""
_KNOWN_NOT_MODELLED = ("deepseek_v32", "deepseek_v4", "falcon_h1", "glm_moe_dsa", "jamba", "kimi_linear", "mamba")

_FAMILIES = dict[str, object](BUILDERS) | {kind: kind for kind in _KNOWN_NOT_MODELLED}

_EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")

_MIXTURES = frozenset(
    (
        *("deepseek_v2", "deepseek_v3", "glm4_moe", "granitemoehybrid", "gpt_oss", "kimi_k2", "llama4", "llama4_text"),
        *("minimax", "minimax_m1", "minimax_m2", "minimax_text_01", "mixtral", "nemotron_h"),
        *("qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next"),
    )
)

_SHAPE_FLAGS = ("qk_layernorm", "use_qk_norm")
_QK_NORMS = frozenset({"glm4_moe", "llama4", "llama4_text", "minimax", "minimax_m2"})
"""Types whose query-key norms are read."""

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Where configurations of several modalities keep their language model."""

_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
_HEADS_OF_OTHER_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "RewardModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadModel:
    """A model, with notes on what it leaves out of its configuration, or replaces."""

    model: Model
    notes: tuple[str, ...]


def read_config(
    source: str | PathLike[str] | Mapping[str, object], *, name: str | None = None, where: str | None = None
) -> Model:
    """The model of a ``config.json`` (path, or folder that holds one) or of its parsed content.

    >>> shape = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    >>> read_config({"model_type": "gpt2"} | shape, name="small").parameters
    124439808

    ``name`` names the model (default: from the path, or the configuration's own); ``where`` names the source
    in messages.

    Raises:
        BadInput: unreadable, not a JSON object, a required key missing, or a value out of range.
        Unsupported: a setting or architecture that Weft does not model.
        UnknownName: an unknown ``model_type``.
    """
    return read_config_noted(source, name=name, where=where).model


def read_text_part(source: str | PathLike[str]) -> tuple[dict[str, Any], str]:
    """A ``config.json`` (or that of a folder), of several modalities the text's, and what messages call it.

    Raises:
        BadInput: it cannot be read.
    """
    path = _config_file(Path(source))
    where = str(path)
    table = parse_json(read_text(path, where=where), where)
    if not isinstance(table, dict):
        return {}, where
    inner = table.get("text_config")
    return (inner, f"{where}: text_config") if isinstance(inner, dict) else (table, where)


def read_config_noted(
    source: str | PathLike[str] | Mapping[str, object],
    *,
    name: str | None = None,
    where: str | None = None,
    stand_in: bool = False,
) -> ReadModel:
    """As ``read_config``, with notes on what was left out: of several modalities the text part is read.

    With ``stand_in`` what is not modelled is read as full attention and feed-forward blocks of the same widths,
    which the notes say.
    """
    if isinstance(source, Mapping):
        own = source.get("_name_or_path") or source.get("model_type")
        name = name or (own.rstrip("/").rpartition("/")[2] if isinstance(own, str) else "model")
        return _build(source, name, where or "config", stand_in)
    path = _config_file(Path(source))
    default = path.absolute().parent.name if path.name == "config.json" else path.stem
    remedy = "give the model's config.json"
    text = read_text(path, where=str(path), largest=LARGEST_CONFIGURATION_BYTES, remedy=remedy)
    data = parse_json(text, str(path), remedy=remedy)
    if not isinstance(data, dict):
        raise BadInput(f"holds a {type(data).__name__}, not an object", where=str(path))
    return _build(data, name or default or "model", where or str(path), stand_in)


def _config_file(path: Path) -> Path:
    """The path itself, or ``config.json`` within a folder."""
    try:
        result = path / "config.json" if os.path.isdir(path) else path
        if os.path.isfile(result):
            return result
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be opened ({error})", where=reprlib.repr(str(path))) from None
    raise BadInput("no such file", where=str(result), remedy="give a config.json or a folder that holds one")


def _build(data: Mapping[str, object], name: str, where: str, stand_in: bool) -> ReadModel:
    kind = data.get("model_type")
    whole = Fields(data=data, kind=str(kind), where=where)
    part = whole.find(*_TEXT_PARTS)
    notes: tuple[str, ...] = ()
    if part is not None:
        _check_task(whole)
        data, where = whole.inner(part).data, f"{where}: {part}"
        kind = data.get("model_type", kind)
        notes = (f"{name} without its other modalities: the language model of {part}",)
    if not isinstance(kind, str):
        remedy = f"add one of {', '.join(MODEL_TYPES)}"
        raise BadInput("model_type is missing or not text", where=where, remedy=remedy)
    fields = Fields(data=data, kind=kind, where=where)
    try:
        return ReadModel(model=_modelled(fields, name), notes=notes)
    except (Unsupported, UnknownName) as refused:
        if not stand_in or kind in OTHER_TASKS:
            raise
        reason = refused.what
    _check_task(fields)
    fields.only("is_encoder_decoder", False)
    model = dense_equivalent(fields, name)
    note = f"dense equivalent: {reason}; all {model.layers} blocks as full attention and feed-forward parts"
    words = f"{model.parameters / 1e9:.4g}B parameters, which the model's own need not equal"
    return ReadModel(model=model, notes=(*notes, f"{note} ({words})"))


def _modelled(fields: Fields, name: str) -> Model:
    """The model of a configuration without a stand-in."""
    builder = BUILDERS.get(fields.kind)
    if builder is None:
        raise _unknown_type(fields.kind, fields.where)
    for key in _POSITIONS:
        fields.optional_integer(key)
    for key, value in fields.data.items():
        drops = "dropout" in key or key.endswith("pdrop")
        if drops and isinstance(value, int | float) and not 0 <= value <= 1:
            raise fields.bad(key, f"{reprlib.repr(value)} is not a share from 0 to 1")
    # Settings that change the shape of any family.
    for key in ("is_encoder_decoder", *(_SHAPE_FLAGS if fields.kind not in _QK_NORMS else ())):
        fields.only(key, False)
    for key in _EXPERT_KEYS if fields.kind not in _MIXTURES else ():
        fields.only(key, 0, 1)
    _check_task(fields)
    _check_architecture(fields)
    model = builder(fields, name)
    return replace(model, rope=rope(fields, model))


def _unknown_type(kind: str, where: str) -> BadInput:
    """A refusal that names a way round, where there is one."""
    modelled = f"modelled types: {', '.join(MODEL_TYPES)}"
    if kind in OTHER_TASKS:
        return Unsupported(
            f"model type {kind!r} is not a decoder of text", where=f"{where}: model_type", remedy=modelled
        )
    if kind in _KNOWN_NOT_MODELLED:
        problem = f"model type {kind!r} is not modelled"
        return Unsupported(problem, where=f"{where}: model_type", remedy=f"{STAND_IN}; {modelled}")
    error = UnknownName("model type", kind[:80], MODEL_TYPES, where=f"{where}: model_type")
    error.remedy = f"{error.remedy}; supported: {', '.join(MODEL_TYPES)}; {STAND_IN}"
    return error


def _check_architecture(f: Fields) -> None:
    """Refuse an architecture that is another model type's."""
    names = f.data.get("architectures")
    for name in names if isinstance(names, list) else ():
        family = str(name).partition("For")[0].lower()
        similar = next((kind for kind in _FAMILIES if kind.replace("_", "") == family), f.kind)
        if _FAMILIES[similar] is not _FAMILIES[f.kind] and f.kind != "minimax":
            problem = f"{f.kind!r} does not go with the architecture {str(name)[:80]!r}"
            raise f.bad("model_type", problem, f'write "{similar}", or correct architectures')


def _check_task(f: Fields) -> None:
    """Refuse heads other than a language model's."""
    names = f.data.get("architectures")
    if isinstance(names, list) and any(str(item).endswith(_HEADS_OF_OTHER_TASKS) for item in names):
        raise f.unsupported("architectures")
