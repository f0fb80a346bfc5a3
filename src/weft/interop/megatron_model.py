"""The arguments of Megatron-LM that state a model; ``weft.model.megatron_args`` reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from weft.model.megatron_args import LATENT, MIXTURE, Flag
from weft.model.spec import Attention, FeedForward, LatentAttention, MixtureOfExperts, Model


def model_reasons(model: Model) -> Iterator[str]:
    """Why a model has no arguments."""
    if any(block.state_space or block.branches < 2 for block in model.kinds):
        yield "Weft does not write --hybrid-layer-pattern (state-space blocks, blocks of one part)"
    if any(block.moe and block.moe.latent for block in model.kinds):
        yield "Weft does not write --moe-latent-size (experts of projected tokens)"
    if any(
        isinstance(attention, Attention) and (attention.gated or attention.chunked) for attention in model.attentions
    ):
        yield "Weft does not write gated or chunked attention"


def model_notes(model: Model) -> Iterator[str]:
    """What the arguments say otherwise than the model."""
    attentions = model.attentions
    if any(block.parallel for block in model.kinds):
        yield "parallel attention and feed-forward blocks need an own layer spec (--spec)"
    if any(block.norms != 2 for block in model.kinds):
        yield "blocks with other than two norms need an own layer spec (--spec)"
    if any(isinstance(attention, Attention) and attention.extra_parameters for attention in attentions):
        yield "norms over all heads and learned relative biases have no argument"
    if model.embedding_norm or model.embedding_features:
        yield "a normed or narrower embedding has no argument"
    if len({attention.window for attention in attentions} - {None}) > 1:
        yield "only one window size can be given; the largest is used"
    if attentions[0].rotary and model.rope is None:
        yield "the base of the rotary positions is not known: set --rotary-base (Megatron-LM's is 10000)"
    if not model.positions and not attentions[0].rotary:
        yield "positions other than learned or rotary (ALiBi) have no argument"
    if len({block.moe.expert.intermediate for block in model.kinds if block.moe}) > 1:
        yield "layers with experts of different widths need --heterogeneous-layers-config-path"


def model_arguments(model: Model) -> list[Mapping[str, object]]:
    """Groups of a model's arguments, each with whether it is written."""
    block = model.kinds[0]
    experts = next((kind.moe for kind in model.kinds if kind.moe), None)
    dense = next((kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, FeedForward)), None)
    widest = dense or (experts.expert if experts else None)
    layers = [kind.moe.expert if kind.moe else dense for kind in model.kinds]
    biased = {linear.part == "attention" for linear in block.linears() if linear.bias}
    size = {
        f"--num-layers {model.layers}": True,
        f"--hidden-size {model.hidden}": True,
        f"--ffn-hidden-size {widest.intermediate if widest else 0}": True,
        f"--vocab-size {model.vocab} --tokenizer-type NullTokenizer --mock-data": True,
    }
    style = {
        f"--normalization {'LayerNorm' if block.norm_bias else 'RMSNorm'}": True,
        "--swiglu": any(layer and layer.gated for layer in layers),
        "--untie-embeddings-and-output-weights": not model.tied_embeddings,
        "--disable-bias-linear": False not in biased,
        "--add-qkv-bias": biased == {True},
        f"--mtp-num-layers {model.prediction_layers}": model.prediction_layers,
    }
    return [size, style, _attention(model), _positions(model), _experts(model, experts) if experts else {}]


def _options(table: Sequence[Flag], record: object) -> dict[str, object]:
    """The flags of a record's fields: a number with its value, a switch alone."""
    values = {flag: getattr(record, field) for flag, field, _ in table}
    return {flag if value is True else f"{flag} {value}": value not in (None, False) for flag, value in values.items()}


def _attention(model: Model) -> dict[str, object]:
    attention = model.attentions[0]
    flags: dict[str, object] = {f"--num-attention-heads {attention.heads}": True}
    if isinstance(attention, LatentAttention):
        return flags | {"--multi-latent-attention": True} | _options(LATENT, attention)
    return flags | {
        f"--group-query-attention --num-query-groups {attention.kv_heads}": attention.kv_heads != attention.heads,
        f"--kv-channels {attention.head_dim}": attention.heads * attention.head_dim != model.hidden,
        "--qk-layernorm": attention.head_norms,
        "--softmax-type learnable": attention.sinks,
    }


def _positions(model: Model) -> dict[str, object]:
    """How positions are told, and which layers see a window only."""
    windows = [model.attentions[kind].window for kind in model.block_sequence()]
    widest = max((window for window in windows if window is not None), default=None)
    kind = "learned_absolute" if model.positions else "rope" if model.attentions[0].rotary else "none"
    window: dict[str, object] = {}
    if widest is not None:
        placed = pattern([int(window is not None) for window in windows])
        window = {f"--window-size {widest - 1},0": True, f'--window-attn-skip-freq "{placed}"': None in windows}
    rope = model.rope
    if kind != "rope" or rope is None:
        return {f"--position-embedding-type {kind}": True, **window}
    yarn, latent = rope.scaling == "yarn", isinstance(model.attentions[0], LatentAttention)
    return {
        f"--position-embedding-type {'yarn' if yarn and not latent else 'rope'}": True,
        f"--rotary-base {round(rope.base)}": True,
        f"--rotary-percent {rope.share:g}": rope.share != 1,
        f"--rope-type {'yarn' if yarn else 'rope'}": latent,
        f"--rotary-scaling-factor {rope.factor:g}": yarn,
        f"--use-rope-scaling --rope-scaling-factor {rope.factor:g}": rope.scaling == "llama3",
        f"--rotary-seq-len-interpolation-factor {round(rope.factor)}": rope.scaling == "linear",
        **window,
    }


def _experts(model: Model, experts: MixtureOfExperts) -> dict[str, object]:
    shared, placed = experts.shared, [int(model.kinds[kind].moe is not None) for kind in model.block_sequence()]
    return _options(MIXTURE, experts) | {
        f"--moe-ffn-hidden-size {experts.expert.intermediate}": True,
        "--moe-grouped-gemm --moe-token-dispatcher-type alltoall": True,
        f"--moe-shared-expert-intermediate-size {shared.intermediate if shared else 0}": shared,
        "--moe-shared-expert-gate": shared and experts.shared_gate,
        f'--moe-layer-freq "{pattern(placed)}"': not all(placed),
    }


def pattern(values: list[int]) -> str:
    """A list of 0 and 1 as the shortest repeated expression: [1, 0, 1, 0, 1] is "([1]*1+[0]*1)*2+[1]*1".

    The result is a Python list expression without blanks, the form that Megatron-LM evaluates.
    """
    size = len(values)
    period = next(p for p in range(1, size + 1) if all(values[i] == values[i % p] for i in range(size)))
    periods, remainder = divmod(size, period)
    unit = _runs(values[:period])
    if periods > 1 and "+" in unit:
        unit = f"({unit})*{periods}"
    elif periods > 1:
        unit = f"[{values[0]}]*{size}"
    return f"{unit}+{_runs(values[:remainder])}" if remainder else unit


def _runs(values: list[int]) -> str:
    return "+".join(f"[{value}]*{len(list(run))}" for value, run in groupby(values))
