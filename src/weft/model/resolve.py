"""From what a user names (catalogue entry, ``config.json``, Megatron-LM script) to a job with its recipe."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput, UnknownName
from weft.files import read_text
from weft.model import catalogue
from weft.model.catalogue import ModelSource
from weft.model.job import PRECISIONS, AttentionKernel, Job, Recipe
from weft.model.spec import Model
from weft.solvers import largest_divisor

DEFAULT_TOKENS = 4 * 2**20
"""Tokens of a global batch where nobody says: the 4M of Llama 2's pre-training, as a power of two."""
DEFAULT_SEQUENCE = 4096
LARGEST_BATCH = 10**7
LARGEST_SEQUENCE = 10**8
SCRIPT_BYTES = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChanges:
    """What the user sets on top of a model's own recipe; None keeps it."""

    global_batch: int | None = None
    sequence: int | None = None
    precision: str | None = None
    attention: AttentionKernel | None = None
    dropout: bool | None = None
    gradient_bytes: int | None = None

    def __or__(self, second: RecipeChanges) -> RecipeChanges:
        """These changes, and those of ``second`` on top."""
        return replace(self, **second.stated())

    def stated(self) -> dict[str, Any]:
        """What is set, by field of ``Recipe``."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def even_batch(batch: int, accelerators: int) -> int:
    """The batch nearest to ``batch`` that as many data-parallel ranks share evenly as it has sequences for.

    >>> even_batch(1024, 1000), even_batch(1024, 16384)
    (1000, 1024)
    """
    ranks = largest_divisor(accelerators, batch)
    return max(round(batch / ranks), 1) * ranks


def resolve_job(
    source: str, changes: RecipeChanges | None = None, *, stand_in: bool = False, accelerators: int = 1
) -> Job:
    """The job of a catalogue name, a Hugging Face ``config.json`` (or its folder), an application of Calculon
    or a Megatron-LM script.

    Every value that nobody gave is listed in ``Job.defaults``, and before them what of a ``config.json`` was left
    out.  With ``stand_in`` what Weft does not model of one is read as full attention and feed-forward blocks of the
    same widths, which is listed too.  ``accelerators`` share the global batch evenly where nobody gave one.

    >>> job = resolve_job("llama-3.1-8b", RecipeChanges(global_batch=512))
    >>> job.model.layers, job.recipe.global_batch
    (32, 512)

    Raises:
        BadInput: an unreadable or malformed file, or a recipe value out of range.
        UnknownName: no such catalogue entry or file.
        Unsupported: a model that Weft does not cover.
    """
    entry, origin, notes = _entry(source, stand_in)
    if stand_in and not any(note.startswith("dense equivalent") for note in notes):
        notes = (*notes, "dense equivalent: nothing to replace, Weft models all of it")
    return _job_of_entry(entry, changes or RecipeChanges(), origin, notes, accelerators)


def named_job(name: str, changes: RecipeChanges | None = None) -> Job:
    """The job of a catalogue name; no file is looked at.

    Raises:
        BadInput: a recipe value out of range.
        UnknownName: no such catalogue entry.
    """
    entry, origin, notes = _known(name)
    return _job_of_entry(entry, changes or RecipeChanges(), origin, notes)


def config_job(text: str, changes: RecipeChanges | None = None, *, where: str, accelerators: int = 1) -> Job:
    """The job of the text of a Hugging Face ``config.json``; ``where`` names it in messages, ``accelerators`` as of
    ``resolve_job``.

    Raises:
        BadInput: malformed text, or a value out of range.
        Unsupported: a model that Weft does not cover.
    """
    from weft.model.huggingface import read_config_noted

    data = parse_json(text, where, remedy="give a Hugging Face config.json")
    if not isinstance(data, dict):
        raise BadInput(f"holds a {type(data).__name__}, not an object", where=where)
    read = read_config_noted(data, where=where)
    entry = ModelSource(model=read.model, recipe=None, source=where)
    return _job_of_entry(entry, changes or RecipeChanges(), read.model.name, read.notes, accelerators)


def _job_of_entry(
    entry: ModelSource, changes: RecipeChanges, origin: str, notes: tuple[str, ...], accelerators: int = 1
) -> Job:
    job = complete_job(entry.model, entry.recipe, changes, origin=origin, accelerators=accelerators)
    return replace(job, defaults=(*notes, *job.defaults), stack=entry.stack, space=entry.space)


def changed_job(job: Job, changes: RecipeChanges, *, origin: str) -> Job:
    """A job with the user's changes of its recipe."""
    changed = complete_job(job.model, job.recipe, changes, origin=origin)
    return replace(changed, stack=job.stack, space=job.space)


def complete_job(
    model: Model, recipe: Recipe | None, changes: RecipeChanges, *, origin: str, accelerators: int = 1
) -> Job:
    """A job from a model, the recipe it came with (if any) and the user's changes; ``accelerators`` as of
    ``resolve_job``."""
    limits = (("--batch", changes.global_batch, LARGEST_BATCH), ("--sequence", changes.sequence, LARGEST_SEQUENCE))
    for option, value, most in limits:
        if value is not None and not 1 <= value <= most:
            raise BadInput(f"{value} is outside 1 to {most:,}", where=option)
    if changes.precision is not None and changes.precision not in PRECISIONS:
        raise UnknownName("precision", changes.precision, PRECISIONS, where="--precision")
    if recipe is None:
        sequence = changes.sequence or min(DEFAULT_SEQUENCE, model.positions or DEFAULT_SEQUENCE)
        usual = max(DEFAULT_TOKENS // sequence, 1)
        recipe = Recipe(global_batch=even_batch(usual, accelerators), sequence=sequence)
        origin = f"no recipe with {origin}"
        if changes.global_batch is None:
            shared = f" that divides among {accelerators:,} accelerators" if recipe.global_batch != usual else ""
            origin += f"; about 4M tokens a batch{shared}"
    replaced = [
        text
        for changed, text in (
            (changes.global_batch, f"global batch {recipe.global_batch} sequences"),
            (changes.sequence, f"sequence {recipe.sequence} tokens"),
            (changes.precision, f"precision {recipe.precision}"),
        )
        if changed is None
    ]
    defaults = (f"{', '.join(replaced)} ({origin})",) if replaced else ()
    recipe = replace(recipe, **changes.stated())
    if 0 < model.positions < recipe.sequence:
        raise BadInput(
            f"sequence {recipe.sequence} exceeds the {model.positions} learned positions of {model.name}",
            where="--sequence",
            remedy=f"use --sequence {model.positions} or less",
        )
    return Job(model=model, recipe=recipe, defaults=defaults)


def _entry(source: str, stand_in: bool) -> tuple[ModelSource, str, tuple[str, ...]]:
    """What a source says of a model and its recipe, what the source is called, and what was left out."""
    path = Path(source)
    if os.path.isdir(path) or path.suffix == ".json":
        from weft.model.calculon import read_application
        from weft.model.huggingface import read_config_noted

        if (application := read_application(path)) is not None:
            model, sequence = application
            recipe = Recipe(global_batch=max(DEFAULT_TOKENS // sequence, 1), sequence=sequence)
            return ModelSource(model=model, recipe=recipe, source=path.name), path.name, ()
        read = read_config_noted(path, stand_in=stand_in)
        return ModelSource(model=read.model, recipe=None, source=path.name), path.name, read.notes
    if os.path.isfile(path):
        from weft.model.megatron_args import parse_arguments, read_megatron_job

        text = read_text(path, largest=SCRIPT_BYTES, remedy="give the script that starts the run")
        arguments = parse_arguments(text, where=source)
        job = read_megatron_job(arguments, name=path.stem)
        called = "; ".join((path.name, *arguments.notes))
        return ModelSource(model=job.model, recipe=job.recipe, source=called), called, ()
    if path.suffix in (".sh", ".txt", ".toml", ".yaml") or source.startswith((".", "/", "~")):
        raise BadInput("no such file", where=source, remedy="give a config.json, a script or a name")
    return _known(source)


def _known(name: str) -> tuple[ModelSource, str, tuple[str, ...]]:
    """What the catalogue says of a model."""
    entry = catalogue.load(name)
    origin = entry.model.name if entry.recipe is None else f"recipe of {entry.model.name}: {entry.source}"
    return entry, origin, ()
