"""What ``weft train`` makes of its model."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.commands.shared import path_of
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.commands.shared import JobSource
    from weft.commands.train import TrainOptions
    from weft.commands.train_rank import EvaluationRequest
    from weft.model import Job
    from weft.runtime.layers.decoder import Details

HELD_OUT = 0.05
"""Share of the data that is evaluated where nobody says."""


def details_of_model(model: JobSource | None, job: Job) -> tuple[Details, tuple[str, ...]]:
    """The model's numbers from its config.json, else the catalogue's or usual ones, which are noted."""
    from weft.model import catalogue
    from weft.runtime.layers.decoder import Details
    from weft.runtime.layers.details import DEFAULTS, details_of, in_words, is_config, read_details

    if isinstance(model, str | os.PathLike) and is_config(path_of(model, "MODEL")):
        return read_details(path_of(model, "MODEL")), ()
    known = catalogue.configuration(job.model)
    modelled = known is not None and known.get("model_type") in DEFAULTS
    details = details_of(known, f"catalogue: {job.model.name}") if known and modelled else Details()
    return details, (f"{in_words(details, job.model)} (a config.json would say)",)


def details_of_run(details: Details, job: Job, asked: TrainOptions) -> Details:
    """The same with what a run changes of them.

    Raises:
        BadInput: an option that says nothing of the model.
    """
    model = job.model
    if asked.document_end is not None and asked.document_end >= model.vocab:
        problem = f"token {asked.document_end} is outside the vocabulary of {model.name}"
        raise BadInput(problem, where="--document-end", remedy=f"give 0 to {model.vocab - 1}")
    wanted = {"balance": asked.expert_balance, "expert_capacity": asked.expert_capacity}
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if given and not any(kind.moe for kind in model.kinds):
        where = "--expert-balance" if "balance" in given else "--expert-capacity"
        raise BadInput(f"{model.name} has no experts", where=where, remedy="drop it")
    return replace(details, document_end=asked.document_end, **given)


def config_text(model: JobSource | None, job: Job) -> str | None:
    """The text of the model's config.json, where it has one: what ``weft export-checkpoint --to hf`` needs."""
    from weft.model import catalogue
    from weft.model.huggingface import read_text_part
    from weft.runtime.layers.details import is_config

    if isinstance(model, str | os.PathLike) and is_config(path_of(model, "MODEL")):
        table: dict[str, Any] | None = read_text_part(path_of(model, "MODEL"))[0]
    else:
        table = catalogue.configuration(job.model)
    return None if table is None else json.dumps(table, indent=2) + "\n"


def evaluation_of(asked: TrainOptions) -> EvaluationRequest | None:
    from weft.commands.train_data import parse_data
    from weft.commands.train_rank import EvaluationRequest

    if asked.eval_every is None:
        return None
    return EvaluationRequest(
        every=asked.eval_every,
        batches=asked.eval_batches,
        data=parse_data(asked.eval_data, "--eval-data"),
        share=asked.eval_share or HELD_OUT,
    )
