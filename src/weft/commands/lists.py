"""``weft models``, ``weft clusters``, ``weft stacks``, ``weft schema``, ``weft explain``: what is known by name."""

from __future__ import annotations

import click

from weft.errors import UnknownName


@click.command("models")
@click.argument("word", required=False)
def models_command(word: str | None) -> None:
    """List the models of the catalogue (those whose name holds WORD)."""
    from weft.model import load, names
    from weft.units import format_count

    found = [name for name in names() if word is None or word.lower() in name]
    if not found:
        raise UnknownName("model", str(word), names(), listed="weft models")
    for name in found:
        entry = load(name)
        recipe = entry.recipe
        shown = f"{recipe.global_batch} x {recipe.sequence} {recipe.precision}" if recipe else "-"
        click.echo(f"{name:28s} {format_count(entry.model.parameters):>8s}  {shown:22s} {entry.source}")


@click.command("clusters")
@click.argument("word", required=False)
def clusters_command(word: str | None) -> None:
    """List the accelerators and the patterns of cluster names (those whose name holds WORD)."""
    from weft.cluster import accelerator, accelerator_names, names
    from weft.units import format_si

    patterns, chips = (
        [one for one in known if word is None or word.lower() in one.lower()]
        for known in (names(), accelerator_names())
    )
    if not patterns and not chips:
        raise UnknownName("accelerator", str(word), accelerator_names(), listed="weft clusters")
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


@click.command("stacks")
def stacks_command() -> None:
    """List the training software whose constants are known, for --stack."""
    from weft.cluster.calibration import shipped_tables, stack_names
    from weft.validation.runs import stacks as known

    tables = shipped_tables().tables
    for name in stack_names():
        title = known()[name].title if name in known() else "weft.runtime"
        click.echo(f"{name:18s}  {title:58s}  {tables[f'stack.{name}']['source']}")


@click.command("explain")
@click.argument("code", required=False, metavar="[CODE]")
def explain_command(code: str | None) -> None:
    """Say what a rejection CODE means (all of them without one)."""
    from weft.layout.check import REASONS, REMEDIES

    if code is not None and code not in REASONS:
        raise UnknownName("rejection code", code, REASONS, listed="weft explain")
    for name, reason in REASONS.items():
        if code in (None, name):
            click.echo(f"{name}: {reason}; {REMEDIES[name]}")


@click.command("schema")
@click.argument("name", required=False)
def schema_command(name: str | None) -> None:
    """Print the JSON Schema of a file or document (their list without a NAME)."""
    import json

    from weft.commands.schema import TITLES
    from weft.commands.schema import schema as schema_of

    if name is not None:
        click.echo(json.dumps(schema_of(name), indent=1))
        return
    for known, title in TITLES.items():
        click.echo(f"{known:20s} {title}")
