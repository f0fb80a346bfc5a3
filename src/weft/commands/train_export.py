"""``weft train export``: a trained model as one safetensors file, or as a folder of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import click

from weft.commands.command_line import GroupedCommand, Once
from weft.errors import BadInput


@click.command("export", cls=GroupedCommand)
@click.argument("folder", metavar="CHECKPOINT")
@click.argument("file", metavar="FILE.safetensors|DIR")
@click.option(
    "--to", cls=Once, type=click.Choice(["weft", "hf"]), default="weft", help="Parameter names; hf writes a folder."
)
@click.option("--config", cls=Once, metavar="DIR", help="config.json for --to hf (default: the run's own).")
@click.option(
    "--dtype", cls=Once, type=click.Choice(["fp32", "bf16", "fp16"]), help="Format for --to hf (default: as trained)."
)
def export_command(folder: str, file: str, to: str, config: str | None, dtype: str | None) -> None:
    """Write the parameters of CHECKPOINT (a step's folder of weft train --out).

    The result is one file under Weft's names, or with --to hf a folder that transformers loads, without the
    optimizer's state.
    """
    from weft.checkpoints import check_checkpoint

    check_checkpoint(Path(folder))
    if to == "hf":
        from weft.runtime.checkpoints.hub import export_hub

        export_hub(folder, file, config=config, dtype=dtype)
    else:
        for name, value in (("--config", config), ("--dtype", dtype)):
            if value is not None:
                raise BadInput(f"{name} has no effect without --to hf", where="train export", remedy="drop it")
        if not file.endswith(".safetensors"):
            raise BadInput("does not end in .safetensors", where=file, remedy="name it like model.safetensors")
        from weft.runtime.checkpoints.hub import export

        export(folder, file)
    click.echo(f"Wrote {file}")
