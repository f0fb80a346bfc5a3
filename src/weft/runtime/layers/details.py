"""The numbers of a model that change neither time nor memory, from the ``config.json`` of Hugging Face.

``weft.model`` leaves them out of a ``Model``; training needs them.  Keys that a configuration leaves out have
the values that transformers documents for its model type.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, cast

from weft.errors import Unsupported
from weft.model._families import Fields
from weft.model.huggingface import read_text_part
from weft.model.spec import FeedForward, Model
from weft.runtime.layers.decoder import Activation, Details

DEFAULTS: Mapping[str, Details] = {
    "gemma": Details(activation="gelu-tanh", norm_epsilon=1e-6),
    "gemma2": Details(
        activation="gelu-tanh", norm_epsilon=1e-6, query_scale=256**-0.5, score_cap=50.0, logit_cap=30.0
    ),
    "gemma3_text": Details(
        activation="gelu-tanh", norm_epsilon=1e-6, rotary_theta=1e6, local_theta=1e4, query_scale=256**-0.5
    ),
    "gpt2": Details(activation="gelu-tanh"),
    "llama": Details(activation="silu", norm_epsilon=1e-6),
    "mistral": Details(activation="silu", norm_epsilon=1e-6),
    "mixtral": Details(activation="silu", norm_epsilon=1e-5, rotary_theta=1e6),
    "opt": Details(activation="relu"),
    "phi3": Details(activation="silu"),
    "qwen2": Details(activation="silu", norm_epsilon=1e-6),
    "qwen3": Details(activation="silu", norm_epsilon=1e-6),
    "qwen3_moe": Details(activation="silu", norm_epsilon=1e-6, expert_weights_normalized=False),
}
"""Details of model types that Weft trains, for configurations that leave them out."""
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Names of Hugging Face."""


def is_config(source: str) -> bool:
    """Whether a MODEL is a configuration of Hugging Face: a JSON file or a folder."""
    return os.path.isdir(source) or Path(source).suffix == ".json"


def read_details(source: str | os.PathLike[str]) -> Details:
    """The details of a ``config.json``, or of the folder that holds one.

    Raises:
        BadInput: it cannot be read, or a value is none.
        Unsupported: a model type, an activation or rotary positions that the runtime does not compute.
    """
    return details_of(*read_text_part(source))


def details_of(table: Mapping[str, Any], where: str) -> Details:
    """The details of a configuration's content.

    Raises:
        BadInput, Unsupported: as ``read_details``.
    """
    kind = table.get("model_type")
    if not isinstance(kind, str) or kind not in DEFAULTS:
        raise Unsupported(
            f"the runtime does not train models of type {kind!r}",
            where=f"{where}: model_type",
            remedy=f"choose one of {', '.join(DEFAULTS)}",
        )
    f, usual = Fields(data=table, kind=kind, where=where), DEFAULTS[kind]
    _check_order_and_scale(f)
    _check_rotary_share(f)
    epsilon = _number(f, usual.norm_epsilon, "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", most=0.1)
    read = replace(_rotary(f, usual), activation=_activation(f, usual.activation), norm_epsilon=epsilon)
    if kind == "qwen3_moe":
        read = replace(read, expert_weights_normalized=f.flag("norm_topk_prob", usual.expert_weights_normalized))
    return _gemma(f, read) if kind.startswith("gemma") else read


def in_words(details: Details, model: Model) -> str:
    """The details that matter to a model, in a line."""
    gated = any((kind.moe.expert if kind.moe else cast(FeedForward, kind.feed_forward)).gated for kind in model.kinds)
    words = [
        f"activation {details.activation or ('silu' if gated else 'gelu')}",
        f"norm epsilon {details.norm_epsilon:g}",
    ]
    if any(attention.rotary for attention in model.attentions):
        words.append(f"rotary theta {details.rotary_theta:g}")
    return ", ".join(words)


def _gemma(f: Fields, read: Details) -> Details:
    """What Gemma scales and bounds; a bound of null is none."""
    scaled = f.find("query_pre_attn_scalar") if f.kind != "gemma" else None
    query = read.query_scale if scaled is None else _number(f, 1.0, scaled) ** -0.5
    return replace(
        read,
        embedding_scale=f.integer("hidden_size") ** 0.5,
        query_scale=query,
        score_cap=_bound(f, read.score_cap, "attn_logit_softcapping"),
        logit_cap=_bound(f, read.logit_cap, "final_logit_softcapping"),
    )


def _bound(f: Fields, usual: float | None, key: str) -> float | None:
    if key in f.data and f.data[key] is None:
        return None
    return _number(f, usual, key) if usual is not None or f.has(key) else None


def _activation(f: Fields, usual: Activation | None) -> Activation | None:
    key = f.find("hidden_activation" if f.kind in ("gemma2", "gemma3_text") else "hidden_act", "activation_function")
    if key is None:
        return usual
    name = f.word(key, "")
    if f.kind == "gemma" and name == "gelu":
        return usual  # what the first configurations say and do not mean (transformers, issue 29402)
    if name not in ACTIVATIONS:
        raise _unsupported(f, key, f"choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _rotary(f: Fields, usual: Details) -> Details:
    """Rotary positions; since version 5 transformers keeps them within ``rope_parameters``, Gemma 3's by layer."""
    theta = usual.rotary_theta
    read = replace(usual, rotary_theta=_number(f, theta, "rope_theta"))
    if usual.local_theta is not None:
        read = replace(read, local_theta=_number(f, usual.local_theta, "rope_local_base_freq"))
    for key in ("rope_scaling", "rope_parameters"):
        rope = f.inner(key)
        if read.local_theta is not None and rope.find("full_attention", "sliding_attention"):
            local, rope = rope.inner("sliding_attention"), rope.inner("full_attention")
            if local.word("rope_type", "default") != "default":
                raise _unsupported(local, "rope_type", "positions within windows are not scaled; remove it")
            read = replace(read, local_theta=_number(local, usual.local_theta or theta, "rope_theta"))
        read = replace(_scaled(f, rope, read), rotary_theta=_number(rope, read.rotary_theta, "rope_theta"))
    return read


def _scaled(f: Fields, rope: Fields, read: Details) -> Details:
    """With the stretching of positions that a table says: none, all alike, or Llama 3's."""
    key = rope.find("rope_type", "type")
    kind = "default" if key is None else rope.word(key, "default")
    if key is None or kind == "default":
        return read
    if kind not in ("linear", "llama3"):
        raise _unsupported(rope, key, "choose default, linear or llama3; remove it to train from the start")
    read = replace(read, rotary_factor=_number(rope, None, "factor"))
    if kind == "linear":
        return read
    return replace(
        read,
        rotary_low=_number(rope, None, "low_freq_factor"),
        rotary_high=_number(rope, None, "high_freq_factor"),
        rotary_original=_original(f, rope),
    )


def _original(f: Fields, rope: Fields) -> float:
    """Positions of the training before they were stretched."""
    own = "original_max_position_embeddings"
    return _number(rope if rope.has(own) and not f.has(own) else f, None, own, "max_position_embeddings")


def _check_rotary_share(f: Fields) -> None:
    """Refuse heads that are rotated in part."""
    for fields in (f, f.inner("rope_parameters")):
        key = fields.find("partial_rotary_factor")
        if key is not None:
            if _number(fields, 1.0, key) != 1.0:
                raise _unsupported(fields, key, "the runtime rotates whole heads: set it to 1")
            return


def _check_order_and_scale(f: Fields) -> None:
    """Refuse scores scaled by other than the square root of a head's features, and norms behind their layers."""
    for key, usual in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("do_layer_norm_before", True),
    ):
        if f.flag(key, usual) != usual:
            raise _unsupported(f, key, f"set it to {str(usual).lower()}")


def _number(f: Fields, usual: float | None, *names: str, most: float = 1e12) -> float:
    """The positive number under the first name that is set; without a usual one there must be one."""
    key = f.find(*names)
    if key is None:
        if usual is None:
            raise f.missing(*names)
        return usual
    value: Any = f.data[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise f.bad(key, f"{value!r:.40} is not a number")
    if not (isfinite(value) and 0 < value <= most):
        raise f.bad(key, f"{value!r:.40} is outside 0 to {most:g}")
    return float(value)


def _unsupported(f: Fields, key: str, remedy: str) -> Unsupported:
    return Unsupported(
        f"the runtime does not compute {key} = {f.data[key]!r:.60}", where=f"{f.where}: {key}", remedy=remedy
    )
