"""The model of a run: the catalogue's where the name is known, else built from the columns."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from weft.errors import BadInput, UnknownName
from weft.model import catalogue
from weft.model.spec import Attention, Block, BlockRun, FeedForward, MixtureOfExperts, Model
from weft.validation.runs import Run

Style = Literal["plain", "unbiased", "gated"]

_ASIDE = re.compile(
    r"\([^()]*\)|\[[^\[\]]*\]|\b(cut|reduced) to .*|\b(instruct|base|chat|hf|pretrain|dense|moe)\b", re.I
)
_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*b\b", re.I)
_NO_PREDICTION = re.compile(r"(w/o|without|no)\s+mtp", re.I)
HEAD_FEATURES = 128
"""Features of a head where heads are not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model and what was assumed of it."""

    model: Model
    assumptions: tuple[str, ...]


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(files("weft.validation").joinpath("data", "models.toml").read_text(encoding="utf-8"))


def shape(run: Run, *, prediction: bool) -> ModelShape:
    """The model of a run; ``prediction``: the software trains multi-token-prediction modules.

    Raises:
        BadInput: neither shape nor a known name, a model that Weft does not describe, or a shape that
            contradicts itself.
    """
    known = _catalogued(run.model)
    if known is not None and _agrees(run, known):
        return _from_catalogue(run, known, prediction=prediction)
    for pattern, reason in _data()["unsupported"].items():
        if re.search(pattern, run.model, re.I):
            raise BadInput(f"{run.model}: {reason}")
    if run.layers is None or run.hidden is None:
        raise BadInput(f"{run.model or 'model'}: neither its shape nor a model of the catalogue")
    return _from_columns(run, run.layers, run.hidden)


@cache
def _catalogued(model: str) -> Model | None:
    for name in _spellings(model):
        try:
            return catalogue.load(name).model
        except UnknownName:
            continue
    return None


def _spellings(name: str) -> Iterator[str]:
    """The name as catalogues may write it: without remarks, points or the publisher."""
    bare = _ASIDE.sub(" ", name).strip(" -_,;:")
    yield bare
    yield bare.replace(".", "")
    yield re.sub(r"(?<=\d)\.0\b", "", bare)
    yield re.sub(r"^(meta|nvidia|mistralai|google|openai)[\s_/-]+", "", bare, flags=re.I)


def _agrees(run: Run, model: Model) -> bool:
    """Whether the columns state the same width and heads as the model."""
    pairs = [(run.hidden, model.hidden)]
    for attention in model.attentions[:1]:
        pairs += [(run.heads, attention.heads), (run.kv_heads, attention.kv_heads)]
    return all(stated in (None, own) for stated, own in pairs)


def _from_catalogue(run: Run, known: Model, *, prediction: bool) -> ModelShape:
    model, assumed = known, [f"what the columns leave out of the shape as {known.name} in the catalogue"]
    if run.layers is not None and run.layers != known.layers:
        model = replace(_with_layers(known, run.layers), prediction_layers=0)
        assumed.append(f"{run.layers} layers in the proportions of the {known.layers} of {known.name}")
    if run.vocab is not None:
        model = replace(model, vocab=run.vocab)
    if run.experts and (run.experts, run.topk) != _routing(model):
        model = _with_experts(model, run.experts, run.topk)
    if model.prediction_layers and (not prediction or _NO_PREDICTION.search(run.remarks)):
        model = replace(model, prediction_layers=0)
        assumed.append("no multi-token-prediction module trained")
    if model.positions and run.seq:
        model = replace(model, positions=max(model.positions, run.seq))
    return ModelShape(model=model, assumptions=tuple(assumed))


def _with_layers(model: Model, layers: int) -> Model:
    """Another number of layers, at least one of each kind, else in the model's proportions."""
    counts = {kind: sum(run.count for run in model.runs if run.block == kind) for kind in model.kinds}
    least = min(len(counts), layers)
    shares = [max(1, round(layers * count / model.layers)) for count in counts.values()][:least]
    shares[shares.index(max(shares))] += layers - sum(shares)
    runs = tuple(BlockRun(block=kind, count=count) for kind, count in zip(list(counts)[:least], shares, strict=True))
    return replace(model, runs=runs)


def _routing(model: Model) -> tuple[int, int] | None:
    moe = next((kind.moe for kind in model.kinds if kind.moe), None)
    return (moe.experts, moe.top_k) if moe else None


def _with_experts(model: Model, experts: int, top_k: int | None) -> Model:
    runs = []
    for run in model.runs:
        moe = run.block.moe
        changed = moe and replace(moe, experts=experts, top_k=min(top_k or moe.top_k, experts))
        block = replace(run.block, feed_forward=changed) if changed else run.block
        runs.append(replace(run, block=block))
    return replace(model, runs=tuple(runs))


def _from_columns(run: Run, layers: int, hidden: int) -> ModelShape:
    assumed: list[str] = []
    heads = run.heads or max(hidden // HEAD_FEATURES, 1)
    if run.heads is None:
        assumed.append(f"{heads} heads of {HEAD_FEATURES} features")
    kv_heads = run.kv_heads or heads
    if run.kv_heads is None:
        assumed.append("as many key-value heads as heads")
    if heads % kv_heads or hidden < heads:
        raise BadInput(f"{heads} heads, {kv_heads} key-value heads and {hidden} features contradict each other")
    style, why = _style(run, layers, hidden, heads, kv_heads)
    assumed.append(f"{style} block ({why})")
    if run.vocab is None:
        default = _data()["vocabulary"][style]
        assumed.append(f"vocabulary {default['tokens']:,} ({default['source']}; not stated)")
    ffn = run.ffn or _ffn(hidden, style)
    if run.ffn is None:
        assumed.append(f"feed-forward width {ffn:,}")
    model = _build(run, style, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn)
    if run.experts and run.experts > 1 and run.topk is None:
        assumed.append("2 experts a token")
    if run.params_b is not None and model.tied_embeddings:
        model, untied = _untied(model, run.params_b)
        assumed += ["embeddings not tied (by the number of parameters)"] if untied else []
    return ModelShape(model=model, assumptions=tuple(assumed))


def _untied(model: Model, params_b: float) -> tuple[Model, bool]:
    """The model with an output projection of its own, where that comes nearer to its parameters."""
    untied = replace(model, tied_embeddings=False)
    nearer = abs(untied.parameters / 1e9 - params_b) < abs(model.parameters / 1e9 - params_b)
    return (untied, True) if nearer else (model, False)


def _ffn(hidden: int, style: Style) -> int:
    """Four times the width; gated, a multiple of 256 that holds as many parameters."""
    return 4 * hidden if style != "gated" else -(-8 * hidden // 3 // 256) * 256


def _style(run: Run, layers: int, hidden: int, heads: int, kv_heads: int) -> tuple[Style, str]:
    """The family of the block: by name, else by the number of parameters, else by its proportions."""
    for style, pattern in _data()["families"].items():
        if re.search(pattern, run.model, re.I):
            return style, "by the model's name"
    stated = run.params_b or _named_size(run.model)
    if stated is not None and run.ffn is not None and not run.experts:
        sizes = {
            style: _build(
                run, style, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=run.ffn
            ).parameters
            for style in ("gated", "plain")
        }
        best = min(sizes, key=lambda style: abs(sizes[style] / 1e9 / stated - 1))
        return ("plain" if best == "plain" else "gated"), "by the number of parameters"
    if run.ffn in (None, 4 * hidden) and kv_heads == heads:
        return "plain", "by its proportions"
    return "gated", "by its proportions"


def _named_size(name: str) -> float | None:
    found = _SIZE.findall(name)
    return float(found[0]) if len(found) == 1 else None


def _build(run: Run, style: Style, *, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> Model:
    plain, gated = style == "plain", style == "gated"
    attention = Attention(
        heads=heads, kv_heads=kv_heads, head_dim=hidden // heads, qkv_bias=plain, out_bias=plain, rotary=gated
    )
    layer = FeedForward(intermediate=ffn, gated=gated, bias=plain)
    feed: FeedForward | MixtureOfExperts = layer
    if run.experts and run.experts > 1:
        feed = MixtureOfExperts(experts=run.experts, top_k=min(run.topk or 2, run.experts), expert=layer)
    block = Block(hidden=hidden, attention=attention, feed_forward=feed, norm_bias=plain)
    return Model(
        name=run.model or "unnamed",
        hidden=hidden,
        vocab=run.vocab or _data()["vocabulary"][style]["tokens"],
        runs=(BlockRun(block=block, count=layers),),
        tied_embeddings=not gated,
        positions=0 if gated else run.seq or 2048,
        norm_bias=plain,
    )
