"""Jobs as plain dictionaries of JSON types: the whole model and its recipe, which read back equal.

A record is a table of its fields; attention and feed-forward, with alternatives, also name a ``kind``.
"""

from __future__ import annotations

from typing import Annotated

from weft.codec import Coded, decode
from weft.errors import BadInput
from weft.model.job import Job
from weft.model.spec import MOST_LAYERS, Block, Model


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
