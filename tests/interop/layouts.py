"""Layouts for the tests of launchers."""

from typing import Any

from hypothesis import strategies as st

from weft.layout.spec import Layout, Recompute, TensorOverlap

CHOICES = {
    "x": (1, 2, 8),
    "z": (1, 1, 4),
    "data": (1, 2, 6),
    "pipeline": (1, 2, 4),
    "context": (1, 2),
    "micro_batch": (1, 2, 3, 4),
    "zero": (0, 1, 2),
    "recompute": tuple(Recompute),
    "overlap_tensor": tuple(TensorOverlap),
    "sequence_parallel": (False, True),
    "overlap_reduce": (False, True),
    "overlap_gather": (False, True),
    "offload_optimizer": (False, True),
    "offload_activations": (False, True),
}


def layouts(**others: tuple[Any, ...]) -> st.SearchStrategy[Layout]:
    """Any of these choices, with ``others`` in their place or beside them."""
    return st.builds(Layout, **{name: st.sampled_from(choices) for name, choices in (CHOICES | others).items()})
