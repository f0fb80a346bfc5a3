"""Other tools' formats: launch arguments for a layout, and the layout of an existing run.

``megatron``, ``torchtitan``, ``deepspeed`` and ``calculon`` each have
``launch_arguments(job, cluster, layout)``; ``read_run`` reads what these tools, Megatron-Bridge, NeMo and MaxText run.
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

    Megatron-LM scripts and arguments, torchtitan job files (TOML) and recipes (Python), Megatron-Bridge and NeMo
    recipes (Python) and overrides (YAML), MaxText configurations (YAML), DeepSpeed JSON, executions of Calculon.  The
    format follows from the
    name's extension, and from the content where that says nothing; ``FILE.py:NAME`` names one recipe of several.
    ``world`` counts accelerators (needed where the file does not say); ``vocab`` is the vocabulary of a
    Megatron-LM tokenizer.  Nothing is executed.

    Raises:
        BadInput: the file cannot be read, is in no known format, or holds a value that cannot be used.
        Unsupported: it trains something that is not modelled.
    """
    from weft.interop.training import calculon, deepspeed, megatron, torchtitan
    from weft.model._shell import beside

    if world is not None and world < 1:
        raise BadInput(f"{world} accelerators", where="world", remedy="give a positive number")
    where, _, function = str(path).partition(".py:")
    where = f"{where}.py" if function else where
    text = read_text(
        where, where=where, largest=CONFIGURATION_BYTES, remedy="give a script, recipe, TOML, YAML or JSON"
    )
    suffix = Path(where).suffix.lower()
    if suffix == ".py":
        return _read_recipe(text, where, function or None, world)
    if suffix == ".json" or text.lstrip().startswith("{"):
        if calculon.is_execution(text):
            return calculon.read(text, where=where, world=world)
        return deepspeed.read(text, where=where, world=world)
    if suffix == ".toml" or (suffix not in (".sh", ".bash") and _looks_like_toml(text)):
        return torchtitan.read(text, where=where, world=world)
    if suffix in (".yaml", ".yml"):
        return _read_yaml(text, where, world)
    return megatron.read(text, where=where, world=world, vocab=vocab, include=beside(where))


def _read_recipe(text: str, where: str, function: str | None, world: int | None) -> RunConfiguration:
    from weft.interop.training import bridge, torchtitan

    reader = torchtitan.read_recipe if "torchtitan" in text else bridge.read_recipe
    return reader(text, function=function, where=where, path=Path(where), world=world)


def _read_yaml(text: str, where: str, world: int | None) -> RunConfiguration:
    from weft.interop.text.yaml import parse_yaml, scalars
    from weft.interop.training import bridge, maxtext

    tables = scalars(parse_yaml(text, where=where))
    if not isinstance(tables, dict):
        raise BadInput("is not a table of settings", where=where, remedy="give a run's configuration")
    if maxtext.TYPICAL & set(tables):
        return maxtext.read(tables, where=where, world=world)
    if any(isinstance(tables.get(name), dict) for name in bridge.TABLES):
        return bridge.read_yaml(tables, where=where, world=world)
    raise BadInput(
        "is neither a MaxText configuration nor Megatron-Bridge's tables (model, train, ddp, ...)",
        where=where,
        remedy="give the file that the run was started with, or use --layout",
    )


def _looks_like_toml(text: str) -> bool:
    tables = ("[training]", "[parallelism]", "[model]")
    return any(line.strip().startswith(tables) for line in text.splitlines())
