"""Other tools' formats: launch arguments for a layout, and the layout of an existing run.

``megatron``, ``torchtitan``, ``deepspeed`` and ``calculon`` each have
``launch_arguments(job, cluster, layout)``; ``read_run`` reads what these tools run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import BadInput
from weft.files import CONFIGURATION_BYTES, read_text

if TYPE_CHECKING:
    from weft.interop.training.launchers import RunConfiguration


def read_run(path: str | Path, *, world: int | None = None, vocab: int | None = None) -> RunConfiguration:
    """What a run's configuration says.

    Megatron-LM scripts and arguments, torchtitan job files (TOML), DeepSpeed JSON, executions of Calculon.  The format
    follows from the name's extension, and from the content where that says nothing.
    ``world`` counts accelerators (needed where the file does not say); ``vocab`` is the vocabulary of a
    Megatron-LM tokenizer.  Nothing is executed.

    Raises:
        BadInput: the file cannot be read, is in no known format, or holds a value that cannot be used.
        Unsupported: it trains something that is not modelled.
    """
    from weft.interop.training import calculon, deepspeed, megatron, torchtitan

    if world is not None and world < 1:
        raise BadInput(f"{world} accelerators", where="world", remedy="give a positive number")
    where, remedy = str(path), "give a script, TOML or JSON"
    text = read_text(where, where=where, largest=CONFIGURATION_BYTES, remedy=remedy)
    suffix = Path(where).suffix.lower()
    if suffix in (".py", ".yaml", ".yml"):
        raise BadInput("configurations in Python and YAML are not read", where=where, remedy=f"{remedy}, or --layout")
    if suffix == ".json" or text.lstrip().startswith("{"):
        if calculon.is_execution(text):
            return calculon.read(text, where=where, world=world)
        return deepspeed.read(text, where=where, world=world)
    if suffix == ".toml" or (suffix not in (".sh", ".bash") and _looks_like_toml(text)):
        return torchtitan.read(text, where=where, world=world)
    return megatron.read(text, where=where, world=world, vocab=vocab)


def _looks_like_toml(text: str) -> bool:
    tables = ("[training]", "[parallelism]", "[model]")
    return any(line.strip().startswith(tables) for line in text.splitlines())
