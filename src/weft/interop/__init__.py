"""Other tools' formats: launch arguments for a layout, and the layout of an existing run.

``megatron``, ``torchtitan``, ``deepspeed`` and ``nanotron`` each have
``launch_arguments(job, cluster, layout)``; ``read_run`` reads what Megatron-LM, torchtitan and DeepSpeed run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import BadInput
from weft.files import CONFIGURATION_BYTES, read_text

if TYPE_CHECKING:
    from weft.interop.training.launchers import RunConfiguration


def read_run(path: str | Path, *, world: int | None = None, vocab: int | None = None) -> RunConfiguration:
    """What a run's configuration says: Megatron-LM script or arguments, torchtitan TOML, or DeepSpeed JSON.

    The format follows from the name's extension, and from the content where that says nothing.
    ``world`` counts accelerators (needed where the file does not say); ``vocab`` is the vocabulary of a
    Megatron-LM tokenizer.

    Raises:
        BadInput: the file cannot be read, is in no known format, or holds a value that cannot be used.
    """
    from weft.interop.training import deepspeed, megatron, torchtitan

    where = str(path)
    if world is not None and world < 1:
        raise BadInput(f"{world} accelerators", where="world", remedy="give a positive number")
    text = read_text(path, where=where, largest=CONFIGURATION_BYTES, remedy="give a script, TOML or JSON file")
    suffix = Path(path).suffix.lower()
    if suffix == ".json" or text.lstrip().startswith("{"):
        return deepspeed.read(text, where=where, world=world)
    if suffix == ".toml" or (suffix not in (".sh", ".bash") and _looks_like_toml(text)):
        return torchtitan.read(text, where=where, world=world)
    if suffix in (".yaml", ".yml", ".py"):
        raise BadInput(
            f"run configurations in {suffix} files are not read",
            where=where,
            remedy="give a Megatron-LM script, a torchtitan TOML or a DeepSpeed JSON, or use --layout",
        )
    return megatron.read(text, where=where, world=world, vocab=vocab)


def _looks_like_toml(text: str) -> bool:
    tables = ("[training]", "[parallelism]", "[model]")
    return any(line.strip().startswith(tables) for line in text.splitlines())
