"""``weft export-checkpoint``: a trained model as one safetensors file."""

from __future__ import annotations

import click

from weft.errors import BadInput


@click.command("export-checkpoint")
@click.argument("folder", metavar="CHECKPOINT")
@click.argument("file", metavar="FILE.safetensors")
def export_checkpoint(folder: str, file: str) -> None:
    """Write the parameters of CHECKPOINT (a step's folder of weft train --out) whole to one file.

    Names are Weft's own; the optimizer's state is left out.
    """
    if not file.endswith(".safetensors"):
        raise BadInput("does not end in .safetensors", where=file, remedy="name the file so")
    from weft.runtime.checkpoints.export import export

    export(folder, file)
    click.echo(f"written {file}")
