"""Read a Hugging Face ``config.json`` offline: shapes only, never code.

Keys that change neither shape nor cost are ignored; those that do and are not modelled are refused by name.
Optional keys take the defaults that transformers documents for the model type.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path

from weft.documents import parse_json
from weft.errors import BadInput, UnknownName, Unsupported
from weft.files import read_text
from weft.model import _families
from weft.model._fields import Fields
from weft.model.spec import Model

LARGEST_CONFIGURATION_BYTES = 4_000_000

_BUILDERS: dict[str, Callable[[Fields, str], Model]] = {
    "bloom": _families.bloom,
    "deepseek_v2": _families.deepseek_v2,
    "deepseek_v3": _families.deepseek_v3,
    "falcon": _families.falcon,
    "gemma": _families.gemma,
    "gemma2": _families.gemma2,
    "gemma3": _families.gemma3,
    "gemma3_text": _families.gemma3,
    "gpt2": _families.gpt2,
    "gpt_neox": _families.gpt_neox,
    "gpt_oss": _families.gpt_oss,
    "llama": _families.llama,
    "mistral": _families.mistral,
    "mixtral": _families.mixtral,
    "mpt": _families.mpt,
    "nemotron": _families.nemotron,
    "opt": _families.opt,
    "palm": _families.palm,
    "phi3": _families.phi3,
    "qwen2": _families.qwen2,
    "qwen2_moe": _families.qwen2_moe,
    "qwen3": _families.qwen3,
    "qwen3_moe": _families.qwen3_moe,
}

MODEL_TYPES = tuple(sorted(_BUILDERS))
"""The values of ``model_type`` that can be read; ``palm`` is Weft's own (PaLM published none)."""

_KNOWN_NOT_MODELLED = (
    "bamba",
    "bert",
    "clip",
    "jamba",
    "llama4",
    "llama4_text",
    "mamba",
    "mamba2",
    "t5",
    "vit",
    "whisper",
)

_EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")

_MIXTURES = frozenset({"deepseek_v2", "deepseek_v3", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe"})

_SHAPE_FLAGS = ("qk_layernorm", "use_qk_norm")

_HEADS_OF_OTHER_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "RewardModel")


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
    if isinstance(source, Mapping):
        return _build(source, name or _own_name(source), where or "config")
    path = _config_file(Path(source))
    default = path.parent.name if path.name == "config.json" else path.stem
    return _build(_read_json(path), name or default or "model", where or str(path))


def _own_name(data: Mapping[str, object]) -> str:
    given = data.get("_name_or_path") or data.get("model_type")
    return given.rstrip("/").rpartition("/")[2] if isinstance(given, str) else "model"


def _config_file(path: Path) -> Path:
    """The path itself, or ``config.json`` within a folder.

    Raises:
        BadInput: no such regular file.
    """
    try:
        found = path / "config.json" if os.path.isdir(path) else path
        if os.path.isfile(found):
            return found
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be opened ({error})", where=reprlib.repr(str(path))) from None
    raise BadInput("no such file", where=str(found), remedy="give a config.json or a folder that holds one")


def _read_json(path: Path) -> Mapping[str, object]:
    """The object in a JSON file of at most ``LARGEST_CONFIGURATION_BYTES``."""
    where, remedy = str(path), "give the model's config.json"
    text = read_text(path, where=where, largest=LARGEST_CONFIGURATION_BYTES, remedy=remedy)
    data = parse_json(text, where, remedy=remedy)
    if not isinstance(data, dict):
        raise BadInput(f"holds a {type(data).__name__}, not an object", where=where)
    return data


def _build(data: Mapping[str, object], name: str, where: str) -> Model:
    kind = data.get("model_type")
    if not isinstance(kind, str):
        remedy = f"add one of {', '.join(MODEL_TYPES)}"
        raise BadInput("model_type is missing or not text", where=where, remedy=remedy)
    builder = _BUILDERS.get(kind)
    if builder is None:
        raise _unknown_type(kind, where)
    fields = Fields(data=data, kind=kind, where=where)
    _check_shape_keys(fields)
    _check_task(fields)
    return builder(fields, name)


def _unknown_type(kind: str, where: str) -> BadInput:
    if kind in _KNOWN_NOT_MODELLED:
        remedy = f"modelled types: {', '.join(MODEL_TYPES)}"
        return Unsupported(f"model type {kind!r} is not modelled", where=f"{where}: model_type", remedy=remedy)
    error = UnknownName("model type", kind[:80], MODEL_TYPES, where=f"{where}: model_type")
    error.remedy = f"{error.remedy}; supported: {', '.join(MODEL_TYPES)}"
    return error


def _check_shape_keys(f: Fields) -> None:
    """Refuse settings that change the shape of any family."""
    for key in ("is_encoder_decoder", *_SHAPE_FLAGS):
        f.only(key, False)
    if f.kind not in _MIXTURES:
        for key in _EXPERT_KEYS:
            f.only(key, 0, 1)


def _check_task(f: Fields) -> None:
    """Refuse heads other than a language model's."""
    names = f.data.get("architectures")
    if isinstance(names, list) and any(str(item).endswith(_HEADS_OF_OTHER_TASKS) for item in names):
        raise f.unsupported("architectures")
