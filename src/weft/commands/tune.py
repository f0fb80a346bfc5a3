"""``weft.tune``: what to change in a run that was measured."""

from __future__ import annotations

import csv
import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.commands.command_line import command
from weft.commands.estimate import run_subject, stated_world
from weft.commands.options import given_options, option, verb
from weft.commands.output import RowsOutput, VerboseOutput, report
from weft.commands.shared import (
    ConstantsOptions,
    RecipeOptions,
    Subject,
    cluster_of,
    constants_of,
    job_of,
    layout_of,
    planned_subject,
    stack_of,
)
from weft.errors import BadInput, NothingFeasible
from weft.files import CONFIGURATION_BYTES, read_text, write_folder
from weft.interop.launch import (
    batch_script,
    changed_settings,
    edited,
    launch_arguments,
    parse_run,
    read_run,
    settings_of,
)
from weft.interop.nccl_log import faults, is_nccl_log, read_nccl_logs
from weft.units import counted, parse_seconds

if TYPE_CHECKING:
    from weft.cluster import Calibration
    from weft.commands.shared import ClusterSource, JobSource
    from weft.estimation import Estimate
    from weft.layout import Layout
    from weft.search.tune import LayoutChange, SoftwareChange, Tuning

USAGE = "weft tune [MODEL] CLUSTER --run FILE --measured 9.2s, or MODEL CLUSTER --layout tp=8,pp=4 --measured 31%"
RUN_TOOLS = {
    "Megatron-LM": ("megatron", "megatron-core"),
    "torchtitan (TOML)": ("torchtitan-toml", "torchtitan"),
    "DeepSpeed": ("deepspeed", "deepspeed"),
}
"""By what ``read_run`` calls a tool: the format that writes its settings, and the framework whose speed it has."""
_BATCHES = {
    "megatron": "--global-batch-size",
    "torchtitan-toml": "training.global_batch_size",
    "deepspeed": "train_batch_size",
}
"""What sets the batch in each format."""
_OTHER_SPELLINGS = {
    "--num-layers-per-virtual-pipeline-stage": (
        "--num-virtual-stages-per-pipeline-rank",
        ("pipeline", "virtual_stages"),
    ),
    "--recompute-activations": ("--recompute-granularity", ("recompute",)),
}
"""Settings of Megatron-LM, each with the one that Weft writes instead and the fields of a layout that both set."""
_RATES: Mapping[str, Callable[[float, Estimate, float], float]] = {
    r"%( ?MFU)?": lambda value, estimate, tokens: estimate.iteration_s * estimate.mfu / (value / 100),
    r"T(F|FLOPS?|FLOP/s)?(/s)?(/GPU)?": lambda value, estimate, tokens: (
        estimate.iteration_s * estimate.model_tflops / value
    ),
    r"tok(ens)?(/s)?(/GPU)?|tps": lambda value, estimate, tokens: tokens / value,
}
"""Units of a speed, and the seconds of a step that it comes to; ``tokens`` are those of an accelerator and step."""


class TuneOptions(RecipeOptions, ConstantsOptions):
    """The run, what it was measured at, and what must stay."""

    group = "Job"
    run: str | None = option(
        None, "The run: a script, TOML or JSON of Megatron-LM, torchtitan or DeepSpeed, or a plan.", metavar="FILE"
    )
    layout: str | Layout | None = option(None, "The run's layout instead, as tp=8,pp=16,sp.", metavar="TEXT")
    measured: str | float | None = option(
        None, "Time of a step, as 9.2s, or speed of a GPU: 31% (MFU), 410TF, 5000tok.", metavar="VALUE"
    )
    also: tuple[str, ...] = option(
        (),
        "Another measured layout of the job, as tp=4,pp=4:9.8s, or a CSV of such rows (repeats).",
        metavar="TEXT|FILE",
    )
    trace: tuple[str, ...] = option(
        (),
        "A torch.profiler trace of a rank, or a log of NCCL_DEBUG=INFO (repeats): where its step loses time.",
        metavar="FILE",
    )
    keep: tuple[str, ...] = option((), "A setting to leave as it is, as tp (repeats).", metavar="NAME")


@verb(TuneOptions)
def tune(
    model: JobSource | None = None,
    cluster: ClusterSource | None = None,
    layout: str | Layout | None = None,
    options: TuneOptions | None = None,
    **given: Any,
) -> Tuning:
    """The changes of a measured run that gain most, best first.

    >>> import weft
    >>> tuned = weft.tune("llama-3.1-8b", "h100-64", "tp=8", measured="31%")
    >>> tuned.changes[0].speedup > 1.2
    True

    Args:
        model: as for ``weft.plan``; left out where ``run`` states it.
        cluster: as for ``weft.plan``; left out with a plan.
        layout: the run's layout, as text or as a record, where there is no ``run``.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or a measured step that no such machine reaches.
    """
    options = given_options(TuneOptions, options, given | ({} if layout is None else {"layout": layout}))
    if options.measured is None and not options.trace:
        raise BadInput("is needed", where="--measured", remedy="give a step's time, as 9.2s, or the MFU, as 31%")
    if (options.run is None) == (options.layout is None):
        raise BadInput("give either --run or --layout", where="tune", remedy=USAGE)
    subject, tool = _subject(model, cluster, options)
    from weft.cluster.calibration import calibration
    from weft.estimation import estimate
    from weft.search import SPACES, STANDARD
    from weft.search import tune as search

    job, where = subject.job, subject.cluster
    form, framework = RUN_TOOLS.get(tool, (None, None))
    stack = stack_of(options, job, where) if options.stack or framework is None else framework
    own = constants_of(options, where, job) if options.calibration else None
    constants = own or calibration(where.accelerator.name, stack)
    text = read_text(str(options.run), where=str(options.run)) if form else ""
    constants, software, unknown = _software(form or "", text, subject, constants)

    def measured_s(layout: Layout, value: str | float, name: str) -> float:
        expected = estimate(job, where, [layout], constants)[0]
        return _measured_s(value, expected, job.recipe.tokens / where.count, name)

    logs = [path for path in options.trace if is_nccl_log(path)]
    traces = [path for path in options.trace if path not in logs]
    gap = None
    if traces:
        from weft.interop.step_trace import read_step_trace
        from weft.search.tune import step_gap

        expected = estimate(job, where, [subject.layout], constants)[0]
        gap = step_gap([read_step_trace(path) for path in traces], expected, subject.layout, where, constants)
    measured = options.measured if options.measured is not None else gap.step_s if gap else None
    if measured is None:
        raise BadInput("is needed", where="--measured", remedy="a log of NCCL has no times: add it, as 9.2s or 31%")
    result = search.tune(
        job,
        where,
        subject.layout,
        measured_s(subject.layout, measured, "--measured"),
        space=SPACES[job.space or STANDARD.name],
        stack=stack,
        others=[
            search.MeasuredLayout(layout=layout, measured_s=measured_s(layout, value, "--also"))
            for layout, value in _others(options.also, subject)
        ],
        software=software,
        unknown=unknown,
        keep=tuple(field for field in map(_field, options.keep) if field != "order"),  # which nothing changes
        constants=constants,
        flags=None if form is None else _flags(form, subject, text),
    )
    return replace(result, gap=gap, network=_network(logs, subject.layout))


def _network(logs: Sequence[str], layout: Layout) -> tuple[str, ...]:
    """What logs of NCCL say is wrong with the network."""
    if not logs:
        return ()
    log = read_nccl_logs(*logs)
    if log.ranks and layout.world % log.ranks:  # a job may have no communicator of all ranks
        problem = f"its largest communicator has {counted(log.ranks, 'rank')}, the layout {layout.world:,}"
        raise BadInput(problem, where=logs[0], remedy="give the log and the layout of one run")
    return tuple(faults(log)) or ("the logs of NCCL show nothing that slows it down",)


def _others(rows: Sequence[str], subject: Subject) -> Iterator[tuple[Layout, str]]:
    """Layouts with their measured values, of texts and of the rows of files."""
    for row in rows:
        if os.path.isfile(row):
            text = read_text(row, where=row, largest=CONFIGURATION_BYTES)
            cells = [[cell.strip() for cell in line if cell.strip()] for line in csv.reader(text.splitlines())]
            found = [
                (f"{row}: line {number}", ",".join(line[:-1]), line[-1])
                for number, line in enumerate(cells, start=1)
                if line and line[-1].lower() != "measured"
            ]
        else:
            found = [("--also", *row.rpartition(":")[::2])]
        for where, layout, value in found:
            if "=" not in layout:
                remedy = "write LAYOUT:VALUE, as tp=4,pp=4:9.8s, or name a CSV with the columns layout and measured"
                raise BadInput(f"{(layout or value)[:60]!r} has no layout and value", where=where, remedy=remedy)
            like = _like(subject.layout, layout, subject.cluster.count, where)
            yield layout_of(like, subject.job, subject.cluster), value


def _like(run: Layout, text: str, count: int, where: str) -> Layout:
    """A layout as a text has it, and what that does not say as the run has it."""
    from weft.layout.text import parse_layout

    partial = parse_layout(text, where=where)
    values = {
        field.name: getattr(run, field.name) for field in fields(run) if field.name not in ("z", "data", "schedule")
    }
    values |= {} if run.z == 1 or run.data == 1 else {"z": run.z}
    values |= partial.values
    alone = [name for name, axis in (("virtual_stages", "pipeline"), ("sequence_parallel", "x")) if values[axis] == 1]
    values = {name: value for name, value in values.items() if name not in alone}
    rest = "z" if run.z > 1 and run.data == 1 else "data"
    return replace(partial, values=values, rest=rest).complete(count)


def _software(
    form: str, text: str, subject: Subject, constants: Calibration
) -> tuple[Calibration, list[SoftwareChange], tuple[str, ...]]:
    """The constants of a run with what its file switches on; switches that are off; what the estimate leaves out."""
    from weft.cluster.calibration import with_constants
    from weft.interop.software import SWITCHES, is_on, unknown, works
    from weft.search.tune import SettingChange, SoftwareChange

    job, cluster, layout = subject.job, subject.cluster, subject.layout
    here = [switch for switch in SWITCHES if form in (*switch.tools, "") and works(switch, job, cluster, layout)]
    stated = {switch.constant: switch.value for switch in here if is_on(switch, form, text)}
    base = with_constants(constants, stated, where="the run's file")
    off = [
        SoftwareChange(
            setting=SettingChange(name=switch.name, before=switch.off, after=switch.on),
            constants=with_constants(base, {switch.constant: switch.value}, where="the run's file"),
            flags=switch.tools[form][1] if form else (),
        )
        for switch in here
        if switch.constant not in stated
    ]
    return base, off, tuple(unknown(form, text, job, layout))


def _subject(model: JobSource | None, cluster: ClusterSource | None, options: TuneOptions) -> tuple[Subject, str]:
    """The run, and the tool whose file it is."""
    if options.run is None:
        if model is None or cluster is None or options.layout is None:
            raise BadInput("MODEL and CLUSTER are needed with --layout", where="tune", remedy=USAGE)
        where = cluster_of(cluster)
        job = job_of(model, options, where.count)
        return Subject(job=job, cluster=where, layout=layout_of(options.layout, job, where)), ""
    text = read_text(options.run, where=options.run, largest=CONFIGURATION_BYTES)
    if '"weft.plan/' in text[:200]:
        if model is not None or cluster is not None:
            raise BadInput("the plan has model and cluster", where="tune --run", remedy="leave them out")
        return planned_subject(options.run, 1, options), ""
    subject = run_subject(model, cluster, options, options.run, usage=USAGE)
    started, count = stated_world(options.run), subject.cluster.count
    if started not in (None, count):
        problem = f"it starts {counted(started or 0, 'accelerator')}, the cluster has {count:,}"
        raise BadInput(problem, where=options.run, remedy="name the cluster on which it was measured")
    return subject, read_run(options.run, world=count).tool


def _measured_s(text: str | float, estimate: Estimate, tokens: float, where: str) -> float:
    """Seconds of a step from its time or its speed; ``tokens`` are those of a GPU and step."""
    if matched := re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)((?:[eE][+-]?\d+)?)\s*([kK]?)(\D*)", str(text)):
        number, exponent, thousand, unit = matched.groups()
        if isinstance(text, str) and not thousand + unit:
            percent = f"{float(number + exponent) * 100:g}" if float(number + exponent) <= 1 else text
            raise BadInput(f"{text!r} has no unit", where=where, remedy=f"write {text}s or {percent}%")
        for pattern, seconds in _RATES.items():
            if re.fullmatch(pattern, unit.strip(), re.IGNORECASE):
                value = float(number + exponent) * (1000 if thousand else 1)
                if value <= 0:
                    raise BadInput(f"{text!r} is not above 0", where=where)
                return seconds(value, estimate, tokens)
    return parse_seconds(text, where)


def _field(name: str) -> str:
    """The field of a layout or a recipe that a person means."""
    from weft.layout.text import field_name

    word = name.lower().replace("-", "_")
    return word if word in ("global_batch", "precision") else field_name(name, "--keep")


def _flags(form: str, subject: Subject, text: str) -> Callable[[Layout], tuple[str, ...] | None] | None:
    """Writes what to change in a tool's own file, whose ``text`` it is; None for a layout that the tool cannot run."""
    job, cluster = subject.job, subject.cluster
    try:
        before = launch_arguments(form, job, cluster, subject.layout).text
    except NothingFeasible:
        return None

    def flags(layout: Layout) -> tuple[str, ...] | None:
        try:
            after = launch_arguments(form, job, cluster, layout).text
        except NothingFeasible:
            return None
        changed = [
            setting
            for setting in changed_settings(before, after)
            if not setting.startswith("without ") or re.split(r"[. ]", setting)[-1] in text
        ]
        # A file that does not state its batch would change it with the ranks.
        batch = _BATCHES[form]
        if changed and batch.rpartition(".")[2] not in text:
            changed += [setting for setting in settings_of(after) if setting.startswith(batch)]
        # Where the file says it by another setting, that makes way for the one that is written here.
        for other, (name, names) in _OTHER_SPELLINGS.items():
            if other in text and any(getattr(layout, field) != getattr(subject.layout, field) for field in names):
                changed += [setting for setting in settings_of(after) if setting.startswith(name)]
                changed.append(f"without {other}")
        return tuple(dict.fromkeys(changed))

    return flags


class TuneOutput(VerboseOutput, RowsOutput):
    """Output options of ``weft tune``."""

    write: str | None = option(
        None, "Also write the run's file with the best change, or launch files.", metavar="FOLDER"
    )


@command(options=TuneOptions, out=TuneOutput)
def tune_command(model: str | None, cluster: str | None, options: TuneOptions, out: TuneOutput) -> None:
    """What to change in a run that was measured, and how much it gains.

    MODEL and CLUSTER as for weft plan.  With --run MODEL may be left out where the script states it, with a plan both.
    The measured step corrects the predictions: gains are those of this machine, and their intervals hold for four of
    five such changes.
    """
    if cluster is None:
        model, cluster = None, model
    result = tune(model, cluster, options=options)
    report(result, out)
    if out.write is not None:
        for line in write_change(result, options.run, out.write):
            click.echo(line, err=True)


def write_change(result: Tuning, run: str | None, folder: str) -> Iterator[str]:
    """Write the run's own file with the best change, or complete launch files where it has none; yields what it did.

    Raises:
        BadInput: there is no change, no tool runs it, or the folder holds other files.
    """
    if not result.changes:
        raise BadInput("there is no change to write", where="--write")
    change, name = result.changes[0], Path(run or "").name
    text = "" if run is None else read_text(run, where=run, largest=CONFIGURATION_BYTES)
    tool = next((form for form, stack in RUN_TOOLS.values() if result.stack.startswith(stack)), "megatron")
    own = change.flags and _edited(result, change, text, name)
    if own:
        lines = list(difflib.unified_diff(text.splitlines(), own.splitlines(), lineterm="", n=0))[2:]
        write_folder(folder, {name: own.encode()})
        yield f"wrote {Path(folder) / name}; what changed:"
        yield from (f"  {line}" for line in lines if not line.startswith("@@"))
        yield from _by_hand(tool, result, change)
        return
    made = launch_arguments(tool, result.job, result.cluster, change.estimate.layout)
    script = batch_script(result.cluster, change.estimate.layout, made.command)
    write_folder(folder, {made.file: made.text.encode(), "job.sbatch": script.encode()})
    yield f"wrote {made.file} and job.sbatch in {folder}; start it with sbatch job.sbatch, or on each node:"
    yield f"  {made.command}"
    yield from (f"note: {note}" for note in made.notes)


def _by_hand(tool: str, result: Tuning, change: LayoutChange) -> Iterator[str]:
    """What a changed file does not do by itself."""
    before, after = result.expected.layout, change.estimate.layout
    known = launch_arguments(tool, result.job, result.cluster, before).notes
    notes = launch_arguments(tool, result.job, result.cluster, after).notes
    yield from (f"note: {note}" for note in notes if note not in known)
    if (before.x, before.pipeline, before.expert) != (after.x, after.pipeline, after.expert):
        yield (
            "note: check that the run still finds its checkpoints, whose folder may be named by the layout, and that"
            " their format (torch_dist, DCP) loads in another layout"
        )


def _edited(result: Tuning, change: LayoutChange, text: str, name: str) -> str | None:
    """The run's file with a change; None where it does not read back as the changed layout."""
    new, world = edited(text, change.flags), result.cluster.count
    try:
        return new if parse_run(new, where=name, world=world).layout == change.estimate.layout else None
    except BadInput:
        return None
