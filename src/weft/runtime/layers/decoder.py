"""GPT and Llama over the grid: one decoder, built from Weft's description of a model.

Hidden states are rows: (tokens of this rank, features / y), or (tokens / x, features / y) with sequence
parallelism.  A pipeline stage has some of the blocks, the first one the embedding, the last one the head.
Attention has its heads split over x: multi-head or grouped-query, with or without rotation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from weft.errors import BadInput, Unsupported
from weft.layout.check import check_runnable
from weft.model._families import Fields
from weft.model.huggingface import read_text_part
from weft.model.spec import Attention, Block, FeedForward, Model
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Matrix, share
from weft.runtime.layers.attention import (
    Core,
    HeadNorms,
    Seen,
    capped,
    gather_heads,
    gather_sequence,
    own_tokens,
    ring_attention,
)
from weft.runtime.layers.experts import Activation, Experts4D, FeedForward4D
from weft.runtime.layers.linear import Linear4D
from weft.runtime.layers.norm import Norm4D
from weft.runtime.layers.vocabulary import Embedding4D, Head4D, cross_entropy, positions_table, vocabulary_matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What changes numbers but neither time nor memory, and so is in no ``Model``."""

    activation: Activation | None = None
    """None: SiLU for gated feed-forward layers, GELU otherwise."""
    norm_epsilon: float = 1e-5
    rotary_theta: float = 10000.0
    local_theta: float | None = None
    """Of attention with a window, where that differs; its positions are not scaled."""
    rotary_factor: float | None = None
    """By which positions are stretched: all, or with the next three those of low frequencies (Llama 3)."""
    rotary_low: float | None = None
    rotary_high: float | None = None
    rotary_original: float | None = None
    query_scale: float | None = None
    """Of scores before the softmax; None: 1 / sqrt(features of a head)."""
    score_cap: float | None = None
    """Scores s become cap tanh(s / cap) (Gemma 2, arXiv 2408.00118, section 2); ``logit_cap`` bounds logits."""
    logit_cap: float | None = None
    embedding_scale: float | None = None
    """By which token embeddings are multiplied."""
    expert_weights_normalized: bool = True
    """The weights of a token's experts add up to 1."""
    balance: float = 0.01
    """Factor of the loss that balances experts (arXiv 2101.03961)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive blocks of a model on one rank.

    Attributes:
        blocks: their indices in the model.
        recomputed: how many of them, from the first, are computed again in the backward pass.
        first: the embedding is before them.
        last: the head is behind them.
    """

    blocks: tuple[int, ...]
    recomputed: int
    first: bool
    last: bool


class Block4D(nn.Module):
    """Norm, attention, norm, feed-forward, each pair with its residual; of four norms two are behind the halves."""

    def __init__(
        self, machine: Machine, name: str, block: Block, details: Details, *, sequence: int, rotary: Rotary | None
    ) -> None:
        super().__init__()

        def norm(which: str) -> Norm4D:
            return Norm4D(
                machine, f"{name}.{which}", block.hidden, centred=block.norm_bias, epsilon=details.norm_epsilon
            )

        self.norm1, self.norm2 = norm("norm1"), norm("norm2")
        behind = block.norms > 2
        self.norm3: nn.Module = norm("norm3") if behind else nn.Identity()
        self.norm4: nn.Module = norm("norm4") if behind else nn.Identity()
        attention = cast(Attention, block.attention)
        self.attention = Attention4D(
            machine, name, block.hidden, attention, sequence=sequence, rotary=rotary, details=details
        )
        self.feed_forward: nn.Module
        if block.moe is not None:
            self.feed_forward = Experts4D(
                machine,
                name,
                block.hidden,
                block.moe,
                normalized=details.expert_weights_normalized,
                balance=details.balance,
                sequence=sequence,
                activation=details.activation,
            )
        else:
            feed = cast(FeedForward, block.feed_forward)
            self.feed_forward = FeedForward4D(machine, name, block.hidden, feed, details.activation)

    def forward(self, rows: Tensor, seen: Seen | None = None) -> Tensor:
        rows = rows + self.norm3(self.attention(self.norm1(rows), seen))
        return rows + self.norm4(self.feed_forward(self.norm2(rows)))  # type: ignore[no-any-return]


class Decoder4D(nn.Module):
    """One rank's part of a decoder, or of one of its pipeline stages.

    Args:
        sequence: tokens of one sequence, of which a rank of context has ``own_tokens``.
        stage: the blocks to build, and what is around them.

    Raises:
        Unsupported: the model or its layout has something that the runtime cannot compute.
        BadInput: a size cannot be divided over the grid.
    """

    def __init__(
        self, machine: Machine, model: Model, *, sequence: int, stage: Stage, details: Details | None = None
    ) -> None:
        super().__init__()
        check_runnable(model, machine.grid.layout)
        if model.positions and sequence > model.positions:
            raise BadInput(
                f"a sequence of {sequence} tokens is longer than the model's {model.positions} positions",
                where="sequence",
                remedy="shorten the sequence",
            )
        self.details = details = details or Details()
        self.machine, self.model, self.stage = machine, model, stage
        self.first, self.last = stage.first, stage.last
        self._places = own_tokens(machine.grid, sequence).to(machine.grid.device)
        self.sequence, self._whole_sequence = len(self._places), sequence
        self.embedding = Embedding4D(machine, "embedding", model.vocab, model.hidden) if stage.first else None
        self.positions = None
        if stage.first and model.positions:
            self.positions = positions_table(machine, "positions", model.positions, model.hidden)
        self.blocks = nn.ModuleList(_blocks(machine, model, details, stage, sequence))
        self._cores = [cast(Attention4D, block.attention).core for block in self.blocks]
        self._seen: Mapping[Core, Seen | None] = {}
        """Which keys queries see in each kind of block."""
        self.norm = self.head = None
        if stage.last:
            if model.final_norm:
                self.norm = Norm4D(
                    machine, "norm", model.hidden, centred=model.norm_bias, epsilon=details.norm_epsilon
                )
            self.head = Head4D(
                machine,
                "head",
                model.vocab,
                model.hidden,
                bias=model.head_bias,
                table=self._tied_table() if model.tied_embeddings else None,
            )
        if model.tied_embeddings and stage.first != stage.last:
            for part in (self.embedding, self.head):
                if part is not None:
                    part.table.holding = replace(part.table.holding, on_ends=True)

    def _tied_table(self) -> Matrix:
        """The embedding's matrix, or the last stage's copy of it, which the head alone uses."""
        if self.embedding is not None:
            return self.embedding.table
        table = vocabulary_matrix(self.machine, "embedding", self.model.vocab, self.model.hidden)
        table.uses = 0
        return table

    def forward(self, given: Tensor) -> Tensor:
        """Token ids (batch, sequence) or, after the first stage, hidden rows; to logits or hidden rows.

        Logits have shape (tokens, padded vocabulary / (x y)).
        """
        rows = given if self.embedding is None else self._embed(given)
        if not self._seen:
            like = rows.new_empty(0, dtype=self.machine.precision.compute)
            self._seen = {core: core.seen(self._whole_sequence, like) for core in self._cores}
        seen = self._seen
        for index, (block, core) in enumerate(zip(self.blocks, self._cores, strict=True)):
            if index < self.stage.recomputed and torch.is_grad_enabled():
                rows = checkpoint(block, rows, seen[core], use_reentrant=False, preserve_rng_state=False)
            else:
                rows = block(rows, seen[core])
        if self.head is None:
            return rows
        logits: Tensor = self.head(rows if self.norm is None else self.norm(rows))
        return logits if self.details.logit_cap is None else capped(logits, self.details.logit_cap)

    def takes(self, micro_batch: int) -> Tensor:
        """What a micro-batch is to this stage, without values (``weft.runtime.run.pipeline.StageModule``)."""
        if self.stage.first:
            return torch.empty(micro_batch, self.sequence, dtype=torch.int64, device="meta")
        return self._between(micro_batch)

    def gives(self, micro_batch: int) -> Tensor:
        """What the stage makes of a micro-batch, without values."""
        if self.head is None:
            return self._between(micro_batch)
        return self._empty(micro_batch * self.sequence, self.head.table.block_shape[0])

    def _between(self, micro_batch: int) -> Tensor:
        grid, rows = self.machine.grid, micro_batch * self.sequence
        if self.machine.rows_cut:
            rows = grid.divided(rows, "x", what="tokens of a micro-batch")
        return self._empty(rows, grid.divided(self.model.hidden, "y", what="hidden"))

    def _empty(self, rows: int, width: int) -> Tensor:
        dtype = self.machine.precision.compute
        return torch.empty(rows, width, dtype=dtype, device="meta", requires_grad=True)

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each of the rank's tokens, shape (tokens,); ``targets`` is (batch, sequence)."""
        return cross_entropy(self.machine, logits, targets.reshape(-1), self.model.vocab)

    def _embed(self, ids: Tensor) -> Tensor:
        assert self.embedding is not None
        rows = cast(Tensor, self.embedding(ids.reshape(-1))).to(self.machine.precision.compute)
        if self.details.embedding_scale is not None:
            rows = rows * rows.new_tensor(self.details.embedding_scale)
        if self.positions is None:
            return rows
        places = self._places.to(ids.device).expand(ids.shape).reshape(-1)
        if self.machine.rows_cut:
            grid = self.machine.grid
            start, stop = share(len(places), grid.size("x"), grid.index("x"))
            places = places[start:stop]
        return rows + functional.embedding(places, self.positions())


def _blocks(machine: Machine, model: Model, details: Details, stage: Stage, sequence: int) -> Iterable[Block4D]:
    kinds, kind_of = model.kinds, model.block_sequence()
    tables: dict[tuple[int, bool], Rotary] = {}
    for index in stage.blocks:
        block = kinds[kind_of[index]]
        attention = cast(Attention, block.attention)
        rotary = None
        if attention.rotary:
            width, local = attention.head_dim, attention.window is not None and details.local_theta is not None
            rotary = tables.get((width, local))
            if rotary is None:
                rotary = tables[width, local] = Rotary(machine, frequencies(width, details, local=local), sequence)
        yield Block4D(machine, f"blocks.{index}", block, details, sequence=sequence, rotary=rotary)


class Rotary(nn.Module):
    """Cosines and sines of rotary positions (arXiv 2104.09864), shape (this rank's positions, features / 2) each."""

    def __init__(self, machine: Machine, turns: Tensor, positions: int) -> None:
        super().__init__()
        angles = torch.outer(own_tokens(machine.grid, positions).double(), turns)
        device, compute = machine.grid.device, machine.precision.compute
        self.cosine: Tensor
        self.sine: Tensor
        self.register_buffer("cosine", angles.cos().to(device, compute), persistent=False)
        self.register_buffer("sine", angles.sin().to(device, compute), persistent=False)

    def forward(self) -> tuple[Tensor, Tensor]:
        return self.cosine, self.sine


def frequencies(features: int, details: Details, *, local: bool = False) -> Tensor:
    """Radians per position of each pair of a head's features, shape (features / 2,), fp64.

    ``local``: of attention with a window and a separate theta.  With a band (``rotary_low`` to ``rotary_high``
    turns in ``rotary_original`` positions) slow pairs are stretched, fast ones left, and those between blended, as
    Llama 3.1 has it (Hugging Face transformers, ``modeling_rope_utils``).
    """
    half = torch.arange(0, features, 2, dtype=torch.float64) / features
    if local and details.local_theta is not None:
        return torch.as_tensor(details.local_theta**-half)
    turns = torch.as_tensor(details.rotary_theta**-half)
    if details.rotary_factor is None:
        return turns
    stretched = turns / details.rotary_factor
    low, high, original = details.rotary_low, details.rotary_high, details.rotary_original
    if low is None or high is None or original is None:
        return stretched
    kept = ((original * turns / (2 * math.pi) - low) / (high - low)).clamp(0.0, 1.0)
    return kept * turns + (1 - kept) * stretched


def split_heads(
    fused: Tensor, heads: int, kv_heads: int, angles: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a fused output, the first two rotated.

    The halves of the features turn against each other (arXiv 2104.09864, as in Hugging Face's Llama).

    Args:
        fused: shape (batch, sequence, heads + 2 kv_heads, features).
        angles: cosines and sines, shape (at least sequence, features / 2) each; None for no rotation.

    Returns:
        Queries (batch, heads, sequence, features), keys and values (batch, kv_heads, sequence, features).
    """
    both, values = fused.split((heads + kv_heads, kv_heads), dim=2)  # type: ignore[no-untyped-call]
    if angles is not None:
        cosine, sine = (table[: fused.shape[1]].unsqueeze(1) for table in angles)
        first, second = both.chunk(2, dim=-1)
        both = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
        values = values.clone()  # or all of ``fused`` would be kept for backward
    queries, keys = both.split((heads, kv_heads), dim=2)
    return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)


class Attention4D(nn.Module):
    """Rows (tokens [/ x], hidden / y) to rows of the same shape; each rank computes its heads.

    A token attends to itself and to earlier ones of its sequence (of the attention's window, where it has one).

    Args:
        sequence: tokens of one sequence.
        rotary: positions for queries and keys, or None.

    Raises:
        BadInput: heads or key-value heads cannot be divided over x.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        hidden: int,
        attention: Attention,
        *,
        sequence: int,
        rotary: Rotary | None,
        details: Details | None = None,
    ) -> None:
        super().__init__()
        grid, features = machine.grid, attention.head_dim
        self.heads = grid.divided(attention.heads, "x", what=f"{name}: heads")
        self.kv_heads = grid.divided(attention.kv_heads, "x", what=f"{name}: kv_heads")
        self.machine, self.features, self.rotary = machine, features, rotary
        self.sequence = sequence // grid.size("context")
        self.recompute_core = grid.layout.recompute == "selective"
        """Scores are computed again in the backward pass instead of kept."""
        details = details or Details()
        window = attention.window if attention.window is not None and attention.window < sequence else None
        self.core = Core(window=window, scale=details.query_scale, cap=details.score_cap)
        self.head_norms = HeadNorms(machine, name, features, details.norm_epsilon) if attention.head_norms else None
        keys = attention.kv_heads * features
        self.qkv = Linear4D(
            machine, f"{name}.qkv", hidden, (attention.heads * features, keys, keys), bias=attention.qkv_bias
        )
        self.proj = Linear4D(
            machine, f"{name}.proj", attention.heads * features, hidden, kind="transposed", bias=attention.out_bias
        )

    def forward(self, rows: Tensor, seen: Seen | None = None) -> Tensor:
        fused = self.qkv(rows).view(-1, self.sequence, self.heads + 2 * self.kv_heads, self.features)
        if self.head_norms is not None:
            fused = self.head_norms(fused, self.heads, self.kv_heads)
        angles = None if self.rotary is None else self.rotary()
        queries, keys, values = split_heads(fused, self.heads, self.kv_heads, angles)
        mixed = self._mixed(queries, keys, values, seen)
        return self.proj(mixed.transpose(1, 2).reshape(-1, self.heads * self.features))  # type: ignore[no-any-return]

    def _mixed(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Seen | None) -> Tensor:
        """A ring keeps no scores, so that there is nothing to compute again."""
        if self.machine.grid.size("context") == 1:
            return self._whole_core(queries, keys, values, seen)
        if self.machine.grid.layout.context_method == "ring":
            return ring_attention(self.machine, self.core, queries, keys, values)
        queries, keys, values = gather_sequence(self.machine, (queries, keys, values))
        return gather_heads(self.machine, self._whole_core(queries, keys, values, seen))

    def _whole_core(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Seen | None) -> Tensor:
        if not self.recompute_core:
            return self.core(queries, keys, values, seen)
        return checkpoint(  # type: ignore[no-any-return]
            self.core, queries, keys, values, seen, use_reentrant=False, preserve_rng_state=False
        )


# Details of a config.json ------------------------------------------------------------------------

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
    own = "original_max_position_embeddings"  # before positions were stretched
    return replace(
        read,
        rotary_low=_number(rope, None, "low_freq_factor"),
        rotary_high=_number(rope, None, "high_freq_factor"),
        rotary_original=_number(rope if rope.has(own) and not f.has(own) else f, None, own, "max_position_embeddings"),
    )


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
    if not (math.isfinite(value) and 0 < value <= most):
        raise f.bad(key, f"{value!r:.40} is outside 0 to {most:g}")
    return float(value)


def _unsupported(f: Fields, key: str, remedy: str) -> Unsupported:
    return Unsupported(
        f"the runtime does not compute {key} = {f.data[key]!r:.60}", where=f"{f.where}: {key}", remedy=remedy
    )
