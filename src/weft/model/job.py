"""How a model is trained: the recipe, and the job = model + recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from weft.codec import Count, Name, Range
from weft.model.spec import Model

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
