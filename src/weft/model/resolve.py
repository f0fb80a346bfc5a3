"""From what a user names (catalogue entry, ``config.json``, Megatron-LM script) to a job with its recipe."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from weft.errors import BadInput, UnknownName
from weft.files import read_text
from weft.model import catalogue
from weft.model.job import PRECISIONS, AttentionKernel, Job, Recipe
from weft.model.spec import Model

DEFAULT_TOKENS = 4 * 2**20
"""Tokens of a global batch where nobody says: the 4M of Llama 2's pre-training, as a power of two."""
DEFAULT_SEQUENCE = 4096
LARGEST_BATCH = 10**7
LARGEST_SEQUENCE = 10**8
SCRIPT_BYTES = 4_000_000
_SCRIPT = "give the script that starts the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChanges:
    """What the user sets on top of a model's own recipe; None keeps it."""

    global_batch: int | None = None
    sequence: int | None = None
    precision: str | None = None
    attention: AttentionKernel | None = None
    dropout: bool | None = None
    gradient_bytes: int | None = None


def resolve_job(source: str, changes: RecipeChanges | None = None) -> Job:
    """The job of a catalogue name, a Hugging Face ``config.json`` (or its folder) or a Megatron-LM script.

    Every value that nobody gave is listed in ``Job.defaults``.

    >>> job = resolve_job("llama-3.1-8b", RecipeChanges(global_batch=512))
    >>> job.model.layers, job.recipe.global_batch
    (32, 512)

    Raises:
        BadInput: an unreadable or malformed file, or a recipe value out of range.
        UnknownName: no such catalogue entry or file.
        Unsupported: a model that Weft does not cover.
    """
    model, recipe, origin = _model(source)
    return complete_job(model, recipe, changes or RecipeChanges(), origin=origin)


def complete_job(model: Model, recipe: Recipe | None, changes: RecipeChanges, *, origin: str) -> Job:
    """A job from a model, the recipe it came with (if any) and the user's changes."""
    _check(changes)
    if recipe is None:
        sequence = changes.sequence or min(DEFAULT_SEQUENCE, model.positions or DEFAULT_SEQUENCE)
        recipe = Recipe(global_batch=max(DEFAULT_TOKENS // sequence, 1), sequence=sequence)
        origin = f"no recipe with {origin}"
        if changes.global_batch is None:
            origin += "; about 4M tokens a batch"
    taken = [
        text
        for given, text in (
            (changes.global_batch, f"global batch {recipe.global_batch} sequences"),
            (changes.sequence, f"sequence {recipe.sequence} tokens"),
            (changes.precision, f"precision {recipe.precision}"),
        )
        if given is None
    ]
    defaults = (f"{', '.join(taken)} ({origin})",) if taken else ()
    given = {name: value for name in _NAMES if (value := getattr(changes, name)) is not None}
    recipe = replace(recipe, **given)
    if 0 < model.positions < recipe.sequence:
        raise BadInput(
            f"sequence {recipe.sequence} exceeds the {model.positions} learned positions of {model.name}",
            where="recipe",
            remedy=f"use --sequence {model.positions} or less",
        )
    return Job(model=model, recipe=recipe, defaults=defaults)


_NAMES = ("global_batch", "sequence", "precision", "attention", "dropout", "gradient_bytes")


def _check(changes: RecipeChanges) -> None:
    for name, value, most in (
        ("global_batch", changes.global_batch, LARGEST_BATCH),
        ("sequence", changes.sequence, LARGEST_SEQUENCE),
    ):
        if value is not None and not 1 <= value <= most:
            raise BadInput(f"{name} = {value} is outside 1 to {most:,}", where="recipe")
    if changes.precision is not None and changes.precision not in PRECISIONS:
        raise UnknownName("precision", changes.precision, PRECISIONS, where="recipe")


def _model(source: str) -> tuple[Model, Recipe | None, str]:
    path = Path(source)
    if os.path.isdir(path) or path.suffix == ".json":
        from weft.model.huggingface import read_config

        return read_config(path), None, path.name
    if os.path.isfile(path):
        from weft.model.megatron_args import read_megatron_job

        job = read_megatron_job(read_text(path, largest=SCRIPT_BYTES, remedy=_SCRIPT), name=path.stem)
        return job.model, job.recipe, path.name
    if path.suffix in (".sh", ".txt", ".toml", ".yaml"):
        raise BadInput("no such file", where=source, remedy="give a config.json, a script or a name")
    if source.startswith((".", "/", "~")):
        raise BadInput("no such file", where=source, remedy="give a config.json, a script or a name")
    entry = catalogue.load(source)
    origin = entry.model.name if entry.recipe is None else f"recipe of {entry.model.name}: {entry.source}"
    return entry.model, entry.recipe, origin
