"""Model FLOPs of an iteration: the work that the mathematics needs, by the field's convention."""

from __future__ import annotations

from math import fsum

from weft.model.job import Recipe
from weft.model.spec import Attention, Block, LatentAttention, Model


def model_flops(model: Model, recipe: Recipe, *, causal: bool = False) -> float:
    """FLOPs of forward and backward of one iteration, without recomputation.

    Two FLOPs per multiply-add, backward twice the forward.  Attention scores count the whole square of the
    sequence (of the window or chunk, where there is one) as in PaLM (arXiv 2204.02311, appendix B) and Narayanan
    et al. (arXiv 2104.04473, eq. 3), state spaces their chunked form (``StateSpace.token_flops``); ``causal``
    counts only what the causal mask leaves.  Embedding look-ups, norms and the optimizer are not counted.
    """
    blocks = fsum(run.count * block_forward_flops(run.block, recipe, causal=causal) for run in model.runs)
    head = 2.0 * model.hidden * model.vocab * recipe.tokens
    prediction = model.prediction_layers * prediction_forward_flops(model, recipe, causal=causal)
    return 3.0 * (blocks + head + prediction)


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


def prediction_forward_flops(model: Model, recipe: Recipe, *, causal: bool = False) -> float:
    """Forward FLOPs of one multi-token-prediction module: its blocks, its input projection and the
    shared head."""
    blocks = fsum(block_forward_flops(block, recipe, causal=causal) for block in model.prediction_module)
    return blocks + 2.0 * recipe.tokens * (2 * model.hidden * model.hidden + model.hidden * model.vocab)
