"""``weft info``: models, clusters, frameworks, formats, rejection codes, schemas, and the installation."""

from __future__ import annotations

import click

from weft.errors import BadInput, UnknownName

TOPICS = ("models", "clusters", "frameworks", "formats", "codes", "schemas", "install")


@click.command("info")
@click.argument("topic", type=click.Choice(TOPICS))
@click.argument("name", required=False)
@click.pass_context
def info_command(ctx: click.Context, topic: str, name: str | None) -> None:
    """List models, clusters, frameworks, formats, codes or schemas, or check the installation.

    \b
    weft info models [WORD]       models of the catalogue (those whose name contains WORD)
    weft info clusters [WORD]     accelerators, and the patterns of cluster names
    weft info frameworks [NAME]   training software with known constants, for --stack
    weft info formats [NOUN]      files of other tools that Weft reads and writes
    weft info codes [CODE]        why layouts are rejected, and what helps
    weft info schemas [NAME]      the JSON Schemas of files and documents, or one of them
    weft info install             installed packages, and checks of Weft's answers (exit code 1 if one fails)
    """
    lists = {
        "models": _models,
        "clusters": _clusters,
        "frameworks": _frameworks,
        "formats": _formats,
        "codes": _codes,
        "schemas": _schemas,
    }
    if topic in lists:
        lists[topic](name)
        return
    if name is not None:
        raise BadInput(f"takes no name, {name[:40]!r} was given", where="weft info install", remedy="drop it")
    from weft.commands.installation import installation, installation_view
    from weft.views.terminal import print_blocks

    result = installation()
    print_blocks(installation_view(result))
    ctx.exit(0 if result.ok else 1)


def _models(word: str | None) -> None:
    from weft.model import load, names
    from weft.units import format_count

    result = [name for name in names() if word is None or word.lower() in name]
    if not result:
        raise UnknownName("model", str(word), names(), listed="weft info models")
    for name in result:
        entry = load(name)
        recipe = entry.recipe
        shown = f"{recipe.global_batch} x {recipe.sequence} {recipe.precision}" if recipe else "-"
        click.echo(f"{name:28s} {format_count(entry.model.parameters):>8s}  {shown:22s} {entry.source}")


def _clusters(word: str | None) -> None:
    from weft.cluster import accelerator, accelerator_names, names
    from weft.units import format_si

    patterns, chips = (
        [one for one in known if word is None or word.lower() in one.lower()]
        for known in (names(), accelerator_names())
    )
    if not patterns and not chips:
        raise UnknownName("accelerator", str(word), accelerator_names(), listed="weft info clusters")
    if patterns:
        click.echo("Clusters, by pattern (or give a TOML file, see examples/):")
    for name in patterns:
        click.echo(f"  {name}")
    if chips:
        click.echo("\n" * bool(patterns) + "Accelerators (per direction for links):")
    for name in chips:
        chip = accelerator(name)
        click.echo(
            f"  {name:12s} 16-bit {format_si(max(chip.bf16_flops, chip.fp16_flops), 'FLOP/s'):>14s}"
            f"  memory {chip.memory_bytes / 2**30:6.1f} GiB at {format_si(chip.memory_Bps, 'B/s'):>9s}"
            f"  scale-up {chip.scale_up_size:3d} at {format_si(chip.scale_up_Bps, 'B/s'):>8s}"
            f"  NIC {format_si(chip.nic_Bps, 'B/s')}"
        )


def _frameworks(name: str | None) -> None:
    from weft.cluster.calibration import shipped_tables, stack_names
    from weft.validation.runs import stacks

    tables, known = shipped_tables().tables, stacks()
    if name is not None and name not in stack_names():
        raise UnknownName("framework", name, stack_names(), listed="weft info frameworks")
    for framework in stack_names() if name is None else (name,):
        title = known[framework].title if framework in known else "weft.runtime"
        click.echo(f"{framework:18s}  {title:58s}  {tables[f'stack.{framework}']['source']}")


def _formats(noun: str | None) -> None:
    from weft.interop.formats import FORMATS

    nouns = {form.noun: None for form in FORMATS}
    if noun is not None and noun not in nouns:
        raise UnknownName("noun", noun, nouns, listed="weft info formats")
    for form in FORMATS:
        if noun in (None, form.noun):
            uses = " and ".join(use for use, function in (("read", form.reader), ("write", form.writer)) if function)
            click.echo(f"{form.noun:9s} {form.name:21s} {uses:15s} {form.title}")


def _codes(code: str | None) -> None:
    from weft.layout.check import REASONS, REMEDIES

    if code is not None and code not in REASONS:
        raise UnknownName("rejection code", code, REASONS, listed="weft info codes")
    for name, reason in REASONS.items():
        if code in (None, name):
            click.echo(f"{name}: {reason}; {REMEDIES[name]}")


def _schemas(name: str | None) -> None:
    import json

    from weft.commands.schema import TITLES
    from weft.commands.schema import schema as schema_of

    if name is not None:
        click.echo(json.dumps(schema_of(name), indent=1))
        return
    for known, title in TITLES.items():
        click.echo(f"{known:20s} {title}")
