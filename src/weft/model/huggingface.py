"""Read a Hugging Face ``config.json`` offline: shapes only, never code.

Keys that change neither shape nor cost are ignored; those that do and are not modelled are refused by name.
Optional keys take the defaults that transformers documents for the model type.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput, UnknownName, Unsupported
from weft.files import read_text
from weft.model import _families
from weft.model._families import (
    OTHER_TASKS,
    dense_equivalent,
    grouped_attention,
    layers_of_kind,
    routing,
    shared_moe,
    stack,
)
from weft.model._fields import STAND_IN, Fields, rope
from weft.model.spec import Attention, Block, FeedForward, MixtureOfExperts, Model, StateSpace

DELTA_CHUNK = 64
"""Tokens of a chunk of gated DeltaNet, which no configuration names (kernels of flash-linear-attention)."""
LIGHTNING_CHUNK = 256
"""Tokens of a block of lightning attention (MiniMax-01, arXiv 2501.08313, section 2.2.1; transformers' default)."""

_PARTS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_SYNONYMS = {"linear_attention": "mamba", "full_attention": "attention"}


def _layer_parts(f: Fields, pattern: str, listed: str) -> list[str]:
    """The part that each layer has, of a pattern such as ``M-M*ME`` or of a list of words."""
    text = f.word(pattern, "")
    words = f.data.get(listed)
    if not text and isinstance(words, list | tuple):
        names = f.words(listed, len(words)) or ()
        parts = [_SYNONYMS.get(word, word) for word in names]
        name = listed
    else:
        # Bars part pipeline stages in Megatron's patterns.
        parts = [_PARTS.get(letter, letter) for letter in text.replace("|", "")]
        name = pattern
    for part in parts:
        if part not in _PARTS.values():
            raise f.bad(
                name, f"{part!r} is no kind of block", f"use {', '.join(_PARTS)} or {', '.join(_PARTS.values())}"
            )
    return parts


def _mamba(f: Fields, *, heads: int, head_dim: int, groups: int, state: int, chunk: int, bias: bool) -> StateSpace:
    """Mamba-2 (arXiv 2405.21060): decays, skips and biases of the step per head, a norm over all heads."""
    if heads % groups:
        raise f.bad("n_groups", f"{heads} heads do not share {groups} groups evenly")
    return StateSpace(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=state,
        chunk=chunk,
        kernel=f.integer("conv_kernel", "mamba_d_conv", default=4),
        kernel_bias=f.flag("use_conv_bias", f.flag("mamba_conv_bias", True)),
        bias=bias,
        extra_parameters=3 * heads + heads * head_dim,
    )


def _nemotron_moe(f: Fields) -> MixtureOfExperts:
    """Ungated experts, on projected tokens where ``moe_latent_size`` is set (LatentMoE).

    The balancing bias is a buffer, which the published counts leave out.
    """
    moe = shared_moe(f, balance_bias=False)
    bias = f.flag("mlp_bias", False)
    width = f.integer("moe_shared_expert_intermediate_size", default=moe.shared.intermediate if moe.shared else 1)
    return replace(
        moe,
        expert=replace(moe.expert, gated=False, bias=bias),
        shared=FeedForward(intermediate=width, gated=False, bias=bias) if moe.shared else None,
        latent=f.optional_integer("moe_latent_size"),
    )


def _nemotron_block(f: Fields, part: str) -> Block:
    """A block of one part and its norm; attention has no positions (arXiv 2504.03624, section 2.1)."""
    hidden = f.integer("hidden_size")
    alone = Block(hidden=hidden, attention=None, feed_forward=None, norms=1)
    if part == "mamba":
        state = _mamba(
            f,
            heads=f.integer("mamba_num_heads"),
            head_dim=f.integer("mamba_head_dim", default=64),
            groups=f.integer("n_groups", "mamba_n_groups", default=8),
            state=f.integer("ssm_state_size", default=128),
            chunk=f.integer("chunk_size", default=128),
            bias=f.flag("use_bias", False),
        )
        return replace(alone, state_space=state)
    if part == "attention":
        bias = f.flag("attention_bias", False)
        width = f.integer("attention_head_dim", default=128)
        attention = grouped_attention(f, hidden, kv_default=8, head_default=width, qkv_bias=bias, out_bias=bias)
        return replace(alone, attention=replace(attention, rotary=False))
    if part == "moe":
        return replace(alone, feed_forward=_nemotron_moe(f))
    width, bias = f.integer("intermediate_size"), f.flag("mlp_bias", False)
    return replace(alone, feed_forward=FeedForward(intermediate=width, gated=False, bias=bias))


def _nemotron_blocks(f: Fields, parts: Iterable[str]) -> list[Block]:
    made: dict[str, Block] = {}
    return [made.setdefault(part, made.get(part) or _nemotron_block(f, part)) for part in parts]


def nemotron_h(f: Fields, name: str) -> Model:
    """Nemotron-H, Nemotron Nano 2 and Nemotron 3: blocks of one part each, in the order of a pattern."""
    parts = _layer_parts(f, "hybrid_override_pattern", "layers_block_type")
    if not parts:
        raise f.missing("hybrid_override_pattern", "layers_block_type")
    layers = f.optional_integer("num_hidden_layers")
    if layers is not None and layers != len(parts):
        raise f.bad("num_hidden_layers", f"{layers} layers, but the pattern has {len(parts)}")
    model = stack(f, name, _nemotron_blocks(f, parts), tied=False)
    # Megatron-Bridge's mtp_num_layers counts passes, configurations modules.
    modules = f.integer("mtp_num_layers", "num_nextn_predict_layers", default=0, least=0, most=64)
    if not modules:
        return model
    ahead = _layer_parts(f, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    if not ahead:
        raise f.missing("mtp_hybrid_override_pattern", "mtp_layers_block_type")
    return replace(
        model,
        prediction_layers=modules,
        prediction_blocks=tuple(_nemotron_blocks(f, ahead)),
        prediction_shared=f.flag("mtp_use_repeated_layer", False),
    )


def mamba2(f: Fields, name: str) -> Model:
    """Mamba-2 alone (Codestral Mamba): state-space blocks without feed-forward parts."""
    hidden = f.integer("hidden_size")
    head_dim = f.integer("head_dim", default=64)
    state = _mamba(
        f,
        heads=f.integer("num_heads", default=128),
        head_dim=head_dim,
        groups=f.integer("n_groups", default=8),
        state=f.integer("state_size", default=128),
        chunk=f.integer("chunk_size", default=256),
        bias=f.flag("use_bias", False),
    )
    if state.inner != f.integer("expand", default=2) * hidden:
        raise f.bad("num_heads", f"{state.heads} heads of {head_dim} are not expand x hidden_size features")
    block = Block(hidden=hidden, attention=None, feed_forward=None, state_space=state, norms=1)
    return stack(f, name, [block] * f.layers("num_hidden_layers"), tied=False)


def _mamba_beside_attention(f: Fields) -> StateSpace:
    """Mamba-2 as Bamba and Granite name its keys."""
    hidden = f.integer("hidden_size")
    heads = f.integer("mamba_n_heads", default=128)
    inner = f.integer("mamba_expand", default=2) * hidden
    width = f.data.get("mamba_d_head")
    head_dim = inner // heads if width in (None, "auto") else f.integer("mamba_d_head")
    if heads * head_dim != inner:
        raise f.bad("mamba_n_heads", f"{heads} heads of {head_dim} are not mamba_expand x hidden_size features")
    return _mamba(
        f,
        heads=heads,
        head_dim=head_dim,
        groups=f.integer("mamba_n_groups", default=1),
        state=f.integer("mamba_d_state", default=256),
        chunk=f.integer("mamba_chunk_size", default=256),
        bias=f.flag("mamba_proj_bias", False),
    )


def bamba(f: Fields, name: str) -> Model:
    """Bamba: Mamba-2 but in ``attn_layer_indices``, a gated feed-forward part in each block."""
    hidden, layers = f.integer("hidden_size"), f.layers("num_hidden_layers")
    bias = f.flag("attention_bias", False)
    attention = grouped_attention(f, hidden, kv_default=8, qkv_bias=bias, out_bias=bias)
    feed = FeedForward(intermediate=f.integer("intermediate_size"), bias=f.flag("mlp_bias", False))
    full = Block(hidden=hidden, attention=attention, feed_forward=feed)
    state = replace(full, attention=None, state_space=_mamba_beside_attention(f))
    whole = f.integers("attn_layer_indices")
    return stack(f, name, [full if layer in whole else state for layer in range(layers)], tied=False)


def granitemoehybrid(f: Fields, name: str) -> Model:
    """Granite 4: Mamba-2 or attention as ``layer_types`` says, experts (where there are any) beside a shared part."""
    hidden, layers = f.integer("hidden_size"), f.layers("num_hidden_layers")
    kinds = f.words("layer_types", layers)
    if kinds is None:
        raise f.missing("layer_types")
    if not set(kinds) <= {"attention", "mamba"}:
        raise f.unsupported("layer_types")
    bias = f.flag("attention_bias", False)
    attention = grouped_attention(f, hidden, qkv_bias=bias, out_bias=bias)
    attention = replace(attention, rotary=f.word("position_embedding_type", "rope") == "rope")
    shared = FeedForward(intermediate=f.integer("shared_intermediate_size", default=1024))
    feed: FeedForward | MixtureOfExperts = shared
    if f.integer("num_local_experts", default=8, least=0):
        experts, top_k = routing(f, "num_local_experts")
        expert = FeedForward(intermediate=f.integer("intermediate_size"))
        feed = MixtureOfExperts(experts=experts, top_k=top_k, expert=expert, shared=shared)
    full = Block(hidden=hidden, attention=attention, feed_forward=feed)
    made = {"attention": full, "mamba": full}
    if "mamba" in kinds:
        made["mamba"] = replace(full, attention=None, state_space=_mamba_beside_attention(f))
    return stack(f, name, [made[kind] for kind in kinds], tied=False)


def _delta_net(f: Fields) -> StateSpace:
    """Gated DeltaNet (arXiv 2412.06464): decay and write strength per value head, a norm of one head."""
    heads, width = f.integer("linear_num_value_heads", default=32), f.integer("linear_value_head_dim", default=128)
    groups = f.integer("linear_num_key_heads", default=16)
    if heads % groups:
        raise f.bad("linear_num_key_heads", f"{heads} value heads do not share {groups} key heads evenly")
    return StateSpace(
        heads=heads,
        head_dim=width,
        groups=groups,
        state=f.integer("linear_key_head_dim", default=128),
        chunk=DELTA_CHUNK,
        kernel=f.integer("linear_conv_kernel_dim", default=4),
        scalars=2,
        update="delta",
        extra_parameters=2 * heads + width,
    )


def _qwen_feed(f: Fields, layer: int) -> FeedForward | MixtureOfExperts:
    """Experts beside a gated shared one; a dense part in the dense type, and in layers that are named."""
    step = f.integer("decoder_sparse_step", default=1)
    if f.kind == "qwen3_5_text" or layer in f.integers("mlp_only_layers") or (layer + 1) % step:
        return FeedForward(intermediate=f.integer("intermediate_size"))
    experts, top_k = routing(f, "num_experts")
    return MixtureOfExperts(
        experts=experts,
        top_k=top_k,
        expert=FeedForward(intermediate=f.integer("moe_intermediate_size")),
        shared=FeedForward(intermediate=f.integer("shared_expert_intermediate_size")),
        shared_gate=True,
    )


def qwen3_next(f: Fields, name: str) -> Model:
    """Qwen3-Next and Qwen3.5: gated DeltaNet in all but every fourth layer, gated attention there."""
    f.only("attn_output_gate", True)
    hidden, layers = f.integer("hidden_size"), f.layers("num_hidden_layers")
    bias = f.flag("attention_bias", False)
    attention = grouped_attention(
        f, hidden, kv_default=2, head_default=256, qkv_bias=bias, out_bias=bias, head_norms=True
    )
    period = f.integer("full_attention_interval", default=4)
    recurrent = layers_of_kind(f, "linear_attention", layers, ((layer + 1) % period != 0 for layer in range(layers)))
    full = Block(hidden=hidden, attention=replace(attention, gated=True), feed_forward=None)
    state = replace(full, attention=None, state_space=_delta_net(f))
    blocks = [
        replace(state if recurrent[layer] else full, feed_forward=_qwen_feed(f, layer)) for layer in range(layers)
    ]
    model = stack(f, name, blocks, tied=False)
    ahead = f.integer("mtp_num_hidden_layers", default=0, least=0, most=64)
    if not ahead:
        return model
    return replace(
        model, prediction_layers=1, prediction_blocks=(replace(full, feed_forward=blocks[-1].feed_forward),) * ahead
    )


def _lightning(attention: Attention) -> StateSpace:
    """Lightning attention: keys, queries and values of every head, fixed decays, a norm over all heads."""
    return StateSpace(
        heads=attention.heads,
        head_dim=attention.head_dim,
        groups=attention.heads,
        state=attention.head_dim,
        chunk=LIGHTNING_CHUNK,
        scalars=0,
        extra_parameters=attention.heads * attention.head_dim,
    )


def minimax(f: Fields, name: str) -> Model:
    """MiniMax-Text-01 and M1: lightning attention in seven of eight layers, experts in each."""
    f.only("shared_intermediate_size", 0)
    hidden, layers = f.integer("hidden_size"), f.layers("num_hidden_layers")
    attention = grouped_attention(f, hidden, kv_default=8)
    experts, top_k = routing(f, "num_local_experts")
    moe = MixtureOfExperts(
        experts=experts, top_k=top_k, expert=FeedForward(intermediate=f.integer("intermediate_size"))
    )
    listed = f.integers("attn_type_list")
    if listed and (len(listed) != layers or not set(listed) <= {0, 1}):
        raise f.bad("attn_type_list", f"is no list of {layers} times 0 (lightning) or 1 (softmax)")
    kinds = [kind == 0 for kind in listed] or [(layer + 1) % 2 != 0 for layer in range(layers)]
    recurrent = layers_of_kind(f, "linear_attention", layers, kinds)
    full = Block(hidden=hidden, attention=attention, feed_forward=moe)
    state = replace(full, attention=None, state_space=_lightning(attention))
    return stack(f, name, [state if one else full for one in recurrent], tied=False)


LARGEST_CONFIGURATION_BYTES = 4_000_000

_BUILDERS: dict[str, Callable[[Fields, str], Model]] = {
    "bamba": bamba,
    "bloom": _families.bloom,
    "deepseek_v2": _families.deepseek_v2,
    "deepseek_v3": _families.deepseek_v3,
    "falcon": _families.falcon,
    "gemma": _families.gemma,
    "gemma2": _families.gemma2,
    "gemma3": _families.gemma3,
    "gemma3_text": _families.gemma3,
    "glm4_moe": _families.glm4_moe,
    "gpt2": _families.gpt2,
    "gpt_neox": _families.gpt_neox,
    "gpt_oss": _families.gpt_oss,
    "granitemoehybrid": granitemoehybrid,
    "kimi_k2": _families.deepseek_v3,
    "llama": _families.llama,
    "llama4": _families.llama4,
    "llama4_text": _families.llama4,
    "mamba2": mamba2,
    "minimax": _families.minimax_m2_or(minimax),
    "minimax_m1": minimax,
    "minimax_m2": _families.minimax_m2,
    "minimax_text_01": minimax,
    "mistral": _families.mistral,
    "mixtral": _families.mixtral,
    "mpt": _families.mpt,
    "nemotron": _families.nemotron,
    "nemotron_h": nemotron_h,
    "opt": _families.opt,
    "palm": _families.palm,
    "phi3": _families.phi3,
    "qwen2": _families.qwen2,
    "qwen2_moe": _families.qwen2_moe,
    "qwen3": _families.qwen3,
    "qwen3_5_moe_text": qwen3_next,
    "qwen3_5_text": qwen3_next,
    "qwen3_moe": _families.qwen3_moe,
    "qwen3_next": qwen3_next,
}

MODEL_TYPES = tuple(sorted(_BUILDERS))
"""The values of ``model_type`` that can be read; ``palm`` is Weft's own (PaLM published none)."""

_KNOWN_NOT_MODELLED = ("deepseek_v32", "deepseek_v4", "falcon_h1", "glm_moe_dsa", "jamba", "kimi_linear", "mamba")

_FAMILIES = dict[str, object](_BUILDERS) | {kind: kind for kind in _KNOWN_NOT_MODELLED}

_EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")

_MIXTURES = frozenset(
    {
        "deepseek_v2",
        "deepseek_v3",
        "glm4_moe",
        "granitemoehybrid",
        "gpt_oss",
        "kimi_k2",
        "llama4",
        "llama4_text",
        "minimax",
        "minimax_m1",
        "minimax_m2",
        "minimax_text_01",
        "mixtral",
        "nemotron_h",
        "qwen2_moe",
        "qwen3_5_moe_text",
        "qwen3_moe",
        "qwen3_next",
    }
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
    """A model, and what was left out of the configuration that it is of, or stands in for it."""

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
        return _build(source, name or _own_name(source), where or "config", stand_in)
    path = _config_file(Path(source))
    default = path.parent.name if path.name == "config.json" else path.stem
    return _build(_read_json(path), name or default or "model", where or str(path), stand_in)


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
    told = f"{model.parameters / 1e9:.4g}B parameters, which the model's own need not equal"
    return ReadModel(model=model, notes=(*notes, f"{note} ({told})"))


def _modelled(fields: Fields, name: str) -> Model:
    """The model of a configuration without a stand-in."""
    builder = _BUILDERS.get(fields.kind)
    if builder is None:
        raise _unknown_type(fields.kind, fields.where)
    _check_values(fields)
    _check_shape_keys(fields)
    _check_task(fields)
    _check_architecture(fields)
    model = builder(fields, name)
    return replace(model, rope=rope(fields, model))


def _unknown_type(kind: str, where: str) -> BadInput:
    """A refusal that names a way round, where there is one."""
    modelled = f"modelled types: {', '.join(MODEL_TYPES)}"
    if kind in OTHER_TASKS:
        return Unsupported(f"model type {kind!r} is no decoder of text", where=f"{where}: model_type", remedy=modelled)
    if kind in _KNOWN_NOT_MODELLED:
        problem = f"model type {kind!r} is not modelled"
        return Unsupported(problem, where=f"{where}: model_type", remedy=f"{STAND_IN}; {modelled}")
    error = UnknownName("model type", kind[:80], MODEL_TYPES, where=f"{where}: model_type")
    error.remedy = f"{error.remedy}; supported: {', '.join(MODEL_TYPES)}; {STAND_IN}"
    return error


def _check_shape_keys(f: Fields) -> None:
    """Refuse settings that change the shape of any family."""
    for key in ("is_encoder_decoder", *(_SHAPE_FLAGS if f.kind not in _QK_NORMS else ())):
        f.only(key, False)
    if f.kind not in _MIXTURES:
        for key in _EXPERT_KEYS:
            f.only(key, 0, 1)


def _check_values(f: Fields) -> None:
    """Refuse values that no model can have, also of keys that not every family reads."""
    for key in _POSITIONS:
        f.optional_integer(key)
    for key, value in f.data.items():
        drops = "dropout" in key or key.endswith("pdrop")
        if drops and isinstance(value, int | float) and not 0 <= value <= 1:
            raise f.bad(key, f"{reprlib.repr(value)} is not a share from 0 to 1")


def _check_architecture(f: Fields) -> None:
    """Refuse an architecture that is another model type's."""
    names = f.data.get("architectures")
    for name in names if isinstance(names, list) else ():
        family = str(name).partition("For")[0].lower()
        other = next((kind for kind in _FAMILIES if kind.replace("_", "") == family), f.kind)
        if _FAMILIES[other] is not _FAMILIES[f.kind] and f.kind != "minimax":
            problem = f"{f.kind!r} does not go with the architecture {str(name)[:80]!r}"
            raise f.bad("model_type", problem, f'write "{other}", or correct architectures')


def _check_task(f: Fields) -> None:
    """Refuse heads other than a language model's."""
    names = f.data.get("architectures")
    if isinstance(names, list) and any(str(item).endswith(_HEADS_OF_OTHER_TASKS) for item in names):
        raise f.unsupported("architectures")
