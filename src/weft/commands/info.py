"""``weft info``: models, clusters, frameworks, formats, rejection codes, schemas, and the installation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weft.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from weft.views.blocks import Block

TOPICS = ("models", "clusters", "frameworks", "formats", "codes", "schemas", "install")


@click.command("info")
@click.argument("topic", type=click.Choice(TOPICS))
@click.argument("name", required=False)
@click.option("--wide", is_flag=True, help="Show all columns, however wide.")
@click.pass_context
def info_command(ctx: click.Context, topic: str, name: str | None, wide: bool) -> None:
    """List what Weft knows, or check the installation.

    \b
    weft info models [WORD]       models whose name contains WORD
    weft info clusters [WORD]     accelerators, and names of clusters
    weft info frameworks [NAME]   training frameworks for --stack
    weft info formats [NOUN]      files of other tools that Weft reads and writes
    weft info codes [CODE]        why layouts are rejected, and what helps
    weft info schemas [NAME]      JSON Schemas of files and results, or one of them
    weft info install             installed packages and self-checks (exit code 1 if one fails)
    """
    from weft.views.terminal import print_blocks

    if topic == "schemas" and name is not None:
        import json

        from weft.commands.schema import schema as schema_of

        click.echo(json.dumps(schema_of(name), indent=1))
        return
    if topic in _TABLES:
        print_blocks(_TABLES[topic](name), wide=wide)
        return
    if name is not None:
        raise BadInput(f"takes no name, {name[:40]!r} was given", where="weft info install", remedy="drop it")
    from weft.commands.installation import installation, installation_view

    result = installation()
    print_blocks(installation_view(result), wide=wide)
    ctx.exit(0 if result.ok else 1)


def _models(word: str | None) -> Iterator[Block]:
    from weft.model import load, names
    from weft.units import counted, format_count
    from weft.views.blocks import Column, Paragraph, Table

    chosen = [name for name in names() if word is None or word.lower() in name]
    if not chosen:
        raise UnknownName("model", str(word), names(), listed="weft info models")
    entries = [load(name) for name in chosen]
    recipes = [entry.recipe for entry in entries]
    batches = [f"{recipe.global_batch:,} x {recipe.sequence:,}" if recipe else "-" for recipe in recipes]
    yield Paragraph(f"{counted(len(chosen), 'model')}; any Hugging Face config.json works too", style="bold")
    yield Table(
        Column("model", chosen, left=True),
        Column("parameters", [format_count(entry.model.parameters) for entry in entries]),
        Column("batch x sequence", batches),
        Column("precision", [recipe.precision if recipe else "-" for recipe in recipes], left=True),
        Column("source", [entry.source for entry in entries], left=True, drop=1),
    )


def _clusters(word: str | None) -> Iterator[Block]:
    from weft.cluster import accelerator, accelerator_names, names
    from weft.units import counted, format_si
    from weft.views.blocks import Column, Paragraph, Table

    patterns, chosen = (
        [known for known in every if word is None or word.lower() in known.lower()]
        for every in (names(), accelerator_names())
    )
    if not patterns and not chosen:
        raise UnknownName("accelerator", str(word), accelerator_names(), listed="weft info clusters")
    yield Paragraph(
        f"{counted(len(chosen), 'accelerator')}; a cluster is ACCELERATOR-COUNT, as h100-1024, or a TOML file",
        style="bold",
    )
    chips = [accelerator(name) for name in chosen]
    if chips:
        flops = [max(chip.bf16_flops, chip.fp16_flops) for chip in chips]
        yield Table(
            Column("accelerator", chosen, left=True),
            Column("16-bit", [format_si(value, "FLOP/s") for value in flops]),
            Column("memory GiB", [f"{chip.memory_bytes / 2**30:.1f}" for chip in chips]),
            Column("memory", [format_si(chip.memory_Bps, "B/s") for chip in chips], drop=2),
            Column("domain", [f"{chip.scale_up_size:,}" for chip in chips]),
            Column("scale-up", [format_si(chip.scale_up_Bps, "B/s") for chip in chips]),
            Column("NIC", [format_si(chip.nic_Bps, "B/s") for chip in chips], drop=1),
        )
        yield Paragraph(
            "Domain: accelerators joined by scale-up links. Speeds: per accelerator and direction.", indent=2
        )
    special = [name for name in patterns if name.removesuffix("-<count>") not in accelerator_names()]
    if special:
        yield Paragraph(f"More clusters: {', '.join(special)}", indent=2, hang=2)


def _frameworks(name: str | None) -> Iterator[Block]:
    from weft.cluster.calibration import shipped_tables, stack_names
    from weft.units import counted
    from weft.validation.runs import stacks
    from weft.views.blocks import Column, Paragraph, Table

    tables, known = shipped_tables().tables, stacks()
    if name is not None and name not in stack_names():
        raise UnknownName("framework", name, stack_names(), listed="weft info frameworks")
    if name is not None:
        yield Paragraph(f"{name}: {tables[f'stack.{name}']['source']}", hang=2)
        return
    chosen = stack_names()
    titles = [known[framework].title if framework in known else "weft.runtime" for framework in chosen]
    sources = [str(tables[f"stack.{framework}"]["source"]) for framework in chosen]
    yield Paragraph(f"{counted(len(chosen), 'framework')} for --stack", style="bold")
    yield Table(
        Column("framework", chosen, left=True),
        Column("title", titles, left=True),
        Column("source of its constants", sources, left=True, drop=1),
    )


def _formats(noun: str | None) -> Iterator[Block]:
    from weft.interop.formats import FORMATS
    from weft.units import counted
    from weft.views.blocks import Paragraph, rows_grid

    nouns = {form.noun: None for form in FORMATS}
    if noun is not None and noun not in nouns:
        raise UnknownName("noun", noun, nouns, listed="weft info formats")
    rows = []
    for form in FORMATS:
        if noun in (None, form.noun):
            uses = " and ".join(use for use, function in (("read", form.reader), ("write", form.writer)) if function)
            rows.append((form.noun, form.name, uses, form.title))
    yield Paragraph(f"{counted(len(rows), 'file format')}", style="bold")
    yield rows_grid(("holds", "format", "Weft can", "title"), rows, left=("holds", "format", "Weft can", "title"))


def _codes(code: str | None) -> Iterator[Block]:
    from weft.layout.check import REASONS, REMEDIES
    from weft.views.blocks import Paragraph

    if code is not None and code not in REASONS:
        raise UnknownName("rejection code", code, REASONS, listed="weft info codes")
    if code is None:
        yield Paragraph(f"{len(REASONS)} reasons to reject a layout, and what helps", style="bold")
    for name, reason in REASONS.items():
        if code in (None, name):
            yield Paragraph(f"{name}: {reason}; {REMEDIES[name]}", hang=2)


def _schemas(name: str | None) -> Iterator[Block]:
    from weft.commands.schema import TITLES
    from weft.units import counted
    from weft.views.blocks import Paragraph, rows_grid

    yield Paragraph(f"{counted(len(TITLES), 'schema')}; one of them: weft info schemas NAME", style="bold")
    yield rows_grid(("schema", "describes"), list(TITLES.items()), left=("schema", "describes"))


_TABLES = {
    "models": _models,
    "clusters": _clusters,
    "frameworks": _frameworks,
    "formats": _formats,
    "codes": _codes,
    "schemas": _schemas,
}
