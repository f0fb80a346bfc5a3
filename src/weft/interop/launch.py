"""Launch files of a layout for the tools that run it, and what a run's launch file says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import BadInput, NothingFeasible
from weft.files import CONFIGURATION_BYTES, read_text
from weft.interop.formats import formats_of, writer_of
from weft.model.settings import flatten

if TYPE_CHECKING:
    from weft.cluster.spec import Cluster
    from weft.layout.spec import Layout
    from weft.model.job import AttentionKernel, Job, Precision
    from weft.model.resolve import RecipeChanges
    from weft.model.spec import Model

TOOLS = tuple(formats_of("layout"))
MASTER = '--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}"'
_LARGEST_HOST = 16
_RACK_SCALE_HOST = 4
_TOML_TABLES = ("[training]", "[parallelism]", "[model]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArguments:
    """A configuration that a launcher can run.

    ``written_for`` names the version whose names of settings it uses; it is also in the text, where the format
    has comments.  ``text`` is the content of ``file``; ``command`` starts it on every host.  ``notes`` say what the
    launcher does otherwise than planned, or leaves to the user.
    """

    tool: str
    written_for: str
    text: str
    file: str
    command: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfiguration:
    """A run as its configuration states it.

    ``model`` and the fields of the recipe (``global_batch`` in sequences, ``sequence`` in tokens, ``precision``,
    ``attention``, ``dropout``, ``gradient_bytes``) are None where it does not say; ``problem`` says why there is no
    model.  ``world`` counts accelerators.  ``ignored`` names settings that were not used, ``notes`` what was assumed.
    """

    tool: str
    layout: Layout
    world: int
    model: Model | None = None
    global_batch: int | None = None
    sequence: int | None = None
    precision: Precision | None = None
    attention: AttentionKernel | None = None
    dropout: bool | None = None
    gradient_bytes: int | None = None
    problem: str = "does not state the model"
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def changes(self) -> RecipeChanges:
        """What it says of the recipe."""
        from weft.model.resolve import RecipeChanges

        names = ("global_batch", "sequence", "precision", "attention", "dropout", "gradient_bytes")
        return RecipeChanges(**{name: getattr(self, name) for name in names})


def launch_arguments(tool: str, job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """Launch arguments of a layout for one of ``TOOLS``."""
    written: LaunchArguments = writer_of("layout", tool, "tool")(job, cluster, layout)
    return written


_EXPORT = "export "


def changed_settings(before: str, after: str) -> tuple[str, ...]:
    """What the second of two launch files sets otherwise than the first, in the tool's own words."""
    known = dict.fromkeys(settings_of(before))
    wanted = dict.fromkeys(settings_of(after))
    names = set(map(_name, wanted))
    dropped = [name for name in map(_name, known) if name not in names]
    return (*(setting for setting in wanted if setting not in known), *(f"without {name}" for name in dropped))


def _name(setting: str) -> str:
    """What a setting sets; of a variable with ``export``."""
    return re.match(rf"({_EXPORT})?[^ =:]+", setting)[0]  # type: ignore[index]


def settings_of(text: str) -> Iterator[str]:
    """The arguments and assignments of a launch file."""
    if text.lstrip().startswith("{"):
        yield from (f"{name}: {json.dumps(value)}" for name, value in flatten(json.loads(text)).items())
        return
    table = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            table = f"{line[1:-1]}."
        elif line.startswith("#"):
            continue
        elif "--" in line:
            yield from (part.strip(" \\") for part in re.split(r"\s(?=--)", f" {line}") if part.startswith("--"))
        elif "=" in line:
            yield table + line.partition("  #")[0]


def edited(text: str, settings: Sequence[str]) -> str:
    """A launch file with settings as ``changed_settings`` names them, the rest of it as it was."""
    if text.lstrip().startswith("{"):
        return _edited_json(text, settings)
    lines = text.splitlines(keepends=True)
    for setting in settings:
        name, _, value = setting.removeprefix("without ").partition(" ")
        if f"{name} " == _EXPORT:
            _edit_exports(lines, value.partition("=")[0], None if setting.startswith("without ") else value)
        elif not name.startswith("--"):
            table, _, key = name.rpartition(".")
            _edit_toml(lines, table, key, None if setting.startswith("without ") else value.removeprefix("= "))
        else:
            _edit_arguments(lines, name, None if setting.startswith("without ") else value)
    return "".join(lines)


def _edit_exports(lines: list[str], name: str, value: str | None) -> None:
    """Set, add or take out (None) a variable of a script."""
    lines[:] = [line for line in lines if not re.match(rf"\s*export {name}=", line)]
    if value is not None:
        begin = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
        lines.insert(begin, f"{_EXPORT}{value}\n")


def _edited_json(text: str, settings: Sequence[str]) -> str:
    """JSON with the indentation that it had."""
    tables = json.loads(text)
    for setting in settings:
        name, _, value = setting.removeprefix("without ").partition(": ")
        *path, key = name.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        if setting.startswith("without "):
            table.pop(key, None)
        else:
            table[key] = json.loads(value)
    indent = re.search(r"\n([ \t]+)\"", text)
    return json.dumps(tables, indent=indent[1] if indent else None) + "\n"


def _edit_toml(lines: list[str], table: str, key: str, value: str | None) -> None:
    """Set, add or take out (None) a key of a table."""
    headers = [number for number, line in enumerate(lines) if line.strip().startswith("[")]
    begin = next((number for number in headers if lines[number].split("#")[0].strip() == f"[{table}]"), None)
    if begin is None:
        if value is not None:
            lines += [f"\n[{table}]\n", f"{key} = {value}\n"]
        return
    end = next((number for number in headers if number > begin), len(lines))
    place = next((n for n in range(begin + 1, end) if re.match(rf"\s*{re.escape(key)}\s*=", lines[n])), None)
    if place is not None and value is None:
        del lines[place]
    elif place is not None:
        lines[place] = re.sub(r"(=\s*)(\"[^\"]*\"|\[[^\]]*\]|[^\s#]+)", rf"\g<1>{value}", lines[place], count=1)
    elif value is not None:
        while not lines[end - 1].strip():
            end -= 1
        lines.insert(end, f"{key} = {value}\n")


_WORD = r"(?!--)[^\s\\\"')]+"
_NEAR = re.compile(r"--(tensor-model-parallel-size|micro-batch-size|num-layers)(?![\w-])")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


def _edit_arguments(lines: list[str], name: str, value: str | None) -> None:
    """Set, add or take out (None) an argument of a command, or of a variable that a command has."""
    pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])(?:([ =]+)({_WORD}(?: +{_WORD})*))?")
    code = [number for number, line in enumerate(lines) if not line.lstrip().startswith("#")]
    place = next((number for number in code if pattern.search(lines[number])), None)
    if place is None:
        # Before another argument, within the same list.
        near = next((number for number in code if _NEAR.search(lines[number])), None)
        if value is None or near is None:
            return
        line, new = lines[near], f"{name} {value}".strip()
        if begin := re.match(r"\s*(?=--)", line):
            end = " \\\n" if line.rstrip().endswith("\\") else "\n"
            lines.insert(near, begin[0] + new + end)
        else:
            lines[near] = _NEAR.sub(rf"{new} \g<0>", line, count=1)
        return
    if value is None:
        lines[place] = re.sub(r"(?<=\S)  +(?=\S)", " ", pattern.sub("", lines[place], count=1))
        if lines[place].strip() in ("", "\\"):
            ends = lines.pop(place).strip() == ""
            if ends and lines[place - 1].rstrip().endswith("\\"):
                lines[place - 1] = lines[place - 1].rstrip().removesuffix("\\").rstrip() + "\n"
        return
    found = pattern.search(lines[place])
    variable = _VARIABLE.fullmatch(found[2]) if found and found[2] else None
    defined = [n for n in code if variable and re.match(rf"\s*(export )?{variable[1]}=", lines[n])]
    if variable and len(defined) == 1:
        lines[defined[0]] = re.sub(r"=.*", f"={value}", lines[defined[0]], count=1)
    else:
        lines[place] = pattern.sub(lambda match: f"{name}{match[1] or ' '}{value}".strip(), lines[place], count=1)


def read_run(path: str | Path, *, world: int | None = None, vocab: int | None = None) -> RunConfiguration:
    """What a run's configuration says.

    Megatron-LM scripts and arguments, torchtitan job files (TOML), DeepSpeed JSON, executions of Calculon.  The format
    follows from the name's extension, and from the content where that says nothing.
    ``world`` counts accelerators (needed where the file does not say); ``vocab`` is the vocabulary of a
    Megatron-LM tokenizer.  Nothing is executed.

    Raises:
        Unsupported: it trains something that is not modelled.
    """
    where, remedy = str(path), "give a script, TOML or JSON"
    text = read_text(where, where=where, largest=CONFIGURATION_BYTES, remedy=remedy)
    suffix = Path(where).suffix.lower()
    if suffix in (".py", ".yaml", ".yml"):
        raise BadInput("configurations in Python and YAML are not read", where=where, remedy=f"{remedy}, or --layout")
    return parse_run(text, where=where, world=world, vocab=vocab)


def parse_run(text: str, *, where: str, world: int | None = None, vocab: int | None = None) -> RunConfiguration:
    """What the text of a run's configuration says; ``where`` is its file's name."""
    if world is not None and world < 1:
        raise BadInput(f"{world} accelerators", where="world", remedy="give a positive number")
    suffix = Path(where).suffix.lower()
    has_tables = any(line.strip().startswith(_TOML_TABLES) for line in text.splitlines())
    more: dict[str, int | None] = {}
    if suffix == ".json" or text.lstrip().startswith("{"):
        is_execution = '"tensor_par"' in text and '"activation_recompute"' in text
        name = "calculon" if is_execution else "deepspeed"
    elif suffix == ".toml" or (suffix not in (".sh", ".bash") and has_tables):
        name = "torchtitan"
    else:
        name, more = "megatron", {"vocab": vocab}
    run: RunConfiguration = formats_of("layout")[name].read(text, where=where, world=world, **more)
    return run


def batch_script(cluster: Cluster, layout: Layout, command: str) -> str:
    """A script for ``sbatch`` that runs a command of ``torchrun`` on every host."""
    hosts, each = process_grid(cluster, layout)
    return (
        f"#!/bin/bash\n#SBATCH --nodes={hosts}\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node={each}\n"
        '#SBATCH --exclusive\nexport MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"\n'
        f"srun --kill-on-bad-exit=1 bash -c 'NODE_RANK=$SLURM_NODEID exec {command}'\n"
    )


def true_of(table: Mapping[str, object]) -> tuple[str, ...]:
    """The texts of a table whose conditions hold."""
    return tuple(text for text, holds in table.items() if holds)


def refuse(tool: str, reasons: Iterable[str]) -> None:
    """Refuse a layout that a tool cannot run."""
    if text := "; ".join(reasons):
        raise NothingFeasible(
            f"{tool} cannot run this layout: {text} -- choose another tool, or pin what it can run with --fix"
        )


def common_reasons(job: Job, cluster: Cluster, layout: Layout) -> Iterator[str]:
    """Why no launcher can run a layout: too large, a broken batch, or an axis that only Weft has."""
    if layout.y > 1:
        yield f"y is {layout.y}: no launcher splits the other side of a linear layer"
    if layout.world > cluster.count:
        yield f"it needs {layout.world} accelerators of {cluster.count}"
    share = layout.micro_batch * layout.dp
    if job.recipe.global_batch % share:
        product = f"micro_batch {layout.micro_batch} * z {layout.z} * data {layout.data} = {share}"
        yield f"the global batch {job.recipe.global_batch} is not a multiple of {product}"


def micro_batches(job: Job, layout: Layout) -> int:
    """Micro-batches of a data-parallel rank in one iteration."""
    return job.recipe.global_batch // (layout.micro_batch * layout.dp)


def placed_like(layout: Layout, *axes: str) -> bool:
    """Whether the placement is that of ``axes``, inner to outer, leaving out axes of degree 1."""
    return [axis for axis in layout.order if getattr(layout, axis) > 1] == [
        axis for axis in axes if getattr(layout, axis) > 1
    ]


def process_grid(cluster: Cluster, layout: Layout) -> tuple[int, int]:
    """Hosts, and processes on each: as many as a host holds and the world allows in equal shares.

    A host is the scale-up domain, or 4 accelerators where that spans a rack (GB200 NVL72).
    """
    domain = max(cluster.accelerator.scale_up_size, 1)
    host = domain if domain <= _LARGEST_HOST else _RACK_SCALE_HOST
    each = next(n for n in range(min(host, layout.world), 0, -1) if layout.world % n == 0)
    return layout.world // each, each


def torchrun(cluster: Cluster, layout: Layout) -> str:
    """The start of a torchrun command; every host runs it."""
    hosts, each = process_grid(cluster, layout)
    return f"torchrun --nnodes {hosts} --nproc-per-node {each}" + (f" {MASTER}" if hosts > 1 else "")
