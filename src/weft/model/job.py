"""How a model is trained: the recipe, the job = model + recipe, as a dictionary too, and FLOPs of an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import Annotated, Literal, get_args

from weft.codec import Coded, Count, Name, Range, decode
from weft.errors import BadInput
from weft.model.spec import MOST_LAYERS, Attention, Block, LatentAttention, Model

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp8-rowwise", "mxfp8", "nvfp4", "int8"]
"""Arithmetic of the linear layers; attention and everything else stay in 16 bits below fp16.  tf32 rounds the
operands of matrix products in fp32; fp8 has a scale a tensor, fp8-rowwise one a row."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

AttentionKernel = Literal["flash", "unfused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What one iteration trains on.

    ``global_batch`` counts sequences of ``sequence`` tokens.  ``attention`` is the kernel: ``flash`` skips masked
    tiles and keeps no score matrix, ``unfused`` computes and stores the full square (Megatron-LM before 2023).
    ``dropout`` adds the masks and passes of dropout layers.  ``gradient_bytes`` is the width of gradients as
    accumulated and reduced (4: Megatron's fp32 main gradients; 2: reduced in bf16).
    """

    global_batch: Count
    sequence: Count
    precision: Precision = "bf16"
    attention: AttentionKernel = "flash"
    dropout: bool = False
    gradient_bytes: Annotated[int, Range(1, 8)] = 4

    @property
    def whole(self) -> bool:
        """Whether weights and activations are kept in 32 bits."""
        return self.precision in ("fp32", "tf32")

    @property
    def element_bytes(self) -> float:
        """Width of a weight and of an activation as computed with (8 and 4 bits are cast on the fly)."""
        return 4.0 if self.whole else 2.0

    @property
    def optimizer_bytes(self) -> float:
        """Adam's state per parameter: two fp32 moments, and the fp32 master weight of mixed precision."""
        return 8.0 if self.whole else 12.0

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.global_batch * self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model and how it is trained; ``defaults`` lists, for people, every value that was assumed.

    ``stack`` is the software of the recipe's authors and ``space`` the space of layouts that it runs, by their names
    in ``weft.cluster`` and ``weft.search``; None where a recipe does not say.
    """

    model: Model
    recipe: Recipe
    defaults: tuple[Name, ...] = ()
    stack: Name | None = None
    space: Name | None = None


def job_from_dict(mapping: object, *, where: str = "job") -> Job:
    """The job of a dictionary; fields with a default may be left out.

    Raises:
        BadInput: a field is unknown, missing, of the wrong kind or out of range, or contradicts another.
    """
    job = decode(Job, mapping, where)
    _check(job.model, f"{where}.model")
    return job


WrittenJob = Annotated[Job, Coded(lambda raw: job_from_dict(raw, where=""), shape=Job)]
"""A job in a document."""


def _check(model: Model, where: str) -> None:
    """What fields must agree on with each other."""
    if not 1 <= model.layers <= MOST_LAYERS:
        problem = f"{model.layers} layers in all"
        raise BadInput(problem, where=f"{where}.runs", remedy=f"use 1 to {MOST_LAYERS}")
    for i, run in enumerate(model.runs):
        _check_block(run.block, model.hidden, f"{where}.runs[{i}].block")
    for i, block in enumerate(model.prediction_blocks):
        _check_block(block, model.hidden, f"{where}.prediction_blocks[{i}]")


def _check_block(block: Block, hidden: int, place: str) -> None:
    attention, state, moe = block.attention, block.state_space, block.moe
    if block.hidden != hidden:
        raise BadInput(f"{block.hidden} differs from the model's {hidden}", where=f"{place}.hidden")
    if not block.branches:
        raise BadInput("has neither attention nor state space nor feed-forward part", where=place)
    if attention and attention.heads % attention.kv_heads:
        problem = f"{attention.heads} heads do not share {attention.kv_heads} key-value heads evenly"
        raise BadInput(problem, where=f"{place}.attention")
    if state and state.heads % state.groups:
        problem = f"{state.heads} heads do not share {state.groups} groups evenly"
        raise BadInput(problem, where=f"{place}.state_space")
    if moe and moe.top_k > moe.experts:
        problem = f"{moe.top_k} is more than the {moe.experts} experts"
        raise BadInput(problem, where=f"{place}.feed_forward.top_k")


# FLOPs: the work that the mathematics needs, by the field's convention ----------------------------------


def model_flops(model: Model, recipe: Recipe, *, causal: bool = False) -> float:
    """FLOPs of forward and backward of one iteration, without recomputation.

    Two FLOPs per multiply-add, backward twice the forward.  Attention scores count the whole square of the
    sequence (of the window or chunk, where there is one) as in PaLM (arXiv 2204.02311, appendix B) and Narayanan
    et al. (arXiv 2104.04473, eq. 3), state spaces their chunked form (``StateSpace.token_flops``); ``causal``
    counts only what the causal mask leaves.  Embedding look-ups, norms and the optimizer are not counted.
    """
    blocks = fsum(run.count * block_forward_flops(run.block, recipe, causal=causal) for run in model.runs)
    head = 2.0 * model.hidden * model.vocab * recipe.tokens
    # A multi-token-prediction module: its blocks, its input projection and the shared head.
    module = fsum(block_forward_flops(block, recipe, causal=causal) for block in model.prediction_module)
    module += 2.0 * recipe.tokens * (2 * model.hidden * model.hidden + model.hidden * model.vocab)
    return 3.0 * (blocks + head + model.prediction_layers * module)


def block_forward_flops(block: Block, recipe: Recipe, *, causal: bool = False) -> float:
    """Forward FLOPs of one block on the whole batch."""
    linear = sum(linear.active * linear.inputs * linear.outputs for linear in block.linears())
    state = block.state_space
    scan = state.token_flops(recipe.sequence, causal=causal) * recipe.tokens if state else 0.0
    return 2.0 * recipe.tokens * linear + attention_forward_flops(block, recipe, causal=causal) + scan


def attention_forward_flops(block: Block, recipe: Recipe, *, causal: bool = False) -> float:
    """Forward FLOPs of one block's attention core (scores and their product with the values) on the whole
    batch; 0 for a block without attention."""
    attention = block.attention
    if attention is None:
        return 0.0
    keys = min(attention.window or recipe.sequence, recipe.sequence)
    seen = score_pairs(attention, recipe.sequence) / recipe.sequence if causal else keys
    return 2.0 * recipe.tokens * seen * attention.heads * (attention.qk_dim + attention.v_dim)


def score_pairs(attention: Attention | LatentAttention, sequence: float) -> float:
    """Query-key pairs of one sequence and head that a causal, and windowed or chunked, mask leaves."""
    reach = min(attention.window or sequence, sequence)
    if isinstance(attention, Attention) and attention.chunked:
        periods, remainder = divmod(sequence, reach)
        return periods * reach * (reach + 1) / 2 + remainder * (remainder + 1) / 2
    return reach * sequence - reach * (reach - 1) / 2
