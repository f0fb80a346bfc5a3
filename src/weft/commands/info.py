"""``weft info``: what is known by name, and what codes and documents mean."""

from __future__ import annotations

import click

from weft.errors import UnknownName


@click.command("info")
@click.argument("topic", type=click.Choice(["models", "clusters", "stacks", "codes", "schemas"]))
@click.argument("name", required=False)
def info_command(topic: str, name: str | None) -> None:
    """List what is known of a TOPIC, or say what of it a NAME means.

    \b
    weft info models [WORD]     models of the catalogue (those whose name holds WORD)
    weft info clusters [WORD]   accelerators and the patterns of cluster names
    weft info stacks            training software whose constants are known, for --stack
    weft info codes [CODE]      what rejections mean
    weft info schemas [NAME]    the JSON Schemas of files and documents, or one of them
    """
    {"models": _models, "clusters": _clusters, "stacks": _stacks, "codes": _codes, "schemas": _schemas}[topic](name)


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


def _stacks(name: str | None) -> None:
    from weft.cluster.calibration import shipped_tables, stack_names
    from weft.validation.runs import stacks as known

    tables = shipped_tables().tables
    if name is not None and name not in stack_names():
        raise UnknownName("software", name, stack_names(), listed="weft info stacks")
    for stack in stack_names() if name is None else (name,):
        title = known()[stack].title if stack in known() else "weft.runtime"
        click.echo(f"{stack:18s}  {title:58s}  {tables[f'stack.{stack}']['source']}")


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
