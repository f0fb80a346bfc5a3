"""``weft info``: models, clusters, frameworks, formats, rejection codes, schemas, and the installation."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from typing import Any

import click

import weft
from weft import codec
from weft.cluster import accelerator_names
from weft.cluster.calibration import shipped_tables, stack_names
from weft.errors import BadInput, UnknownName
from weft.units import counted, format_bytes, format_count, format_seconds, format_si
from weft.views.blocks import Block, Column, Heading, Paragraph, Table, rows_grid

# Schemas -------------------------------------------------------------------------------------------------------

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS = {
    "arrangement": (
        "arrangement.bundle:ArrangementFile",
        "Hosts, times, routes and classes of the jobs of a site (weft arrange)",
    ),
    "bench": ("validation.measured:Described", "Collectives, products and memory of a machine, measured (weft bench)"),
    "bill-of-materials": ("fabric.cost:Bill", "Bill of materials of a network (weft fabric bill)"),
    "calibrate": ("validation.fit:Fitted", "Constants fitted to measured runs (weft validate --fit)"),
    "cluster": ("cluster.files:ClusterFile", "A cluster file (TOML)"),
    "comparison": ("search.comparison:Comparison", "Layouts, clusters or plans side by side (weft compare)"),
    "design": ("search.design:DesignStudy", "Networks for a model and a cluster (weft design)"),
    "dry-run": (
        "commands.train:DryRun",
        "Collectives of a training step, traced without hardware (weft train --dry-run)",
    ),
    "estimate": ("estimation.report:EstimateReport", "Time, memory and bounds of one layout (weft estimate)"),
    "fabric": ("fabric.files:FabricFile", "A fabric file (JSON or TOML)"),
    "fabric-check": ("fabric.wiring_check:WiringReport", "Cables as built against a design (weft fabric check)"),
    "failures": ("reliability.classes:FailureFile", "Failures and recovery (TOML)"),
    "goodput": ("search.goodput:GoodputReport", "How much time failures cost a run (weft.goodput)"),
    "plan": (
        "search.ranking:Plan search.network_plan:NetworkPlan",
        "Layouts of a model on a cluster, best first (weft plan)",
    ),
    "prices": ("fabric.cost:Prices", "Prices of network parts (TOML)"),
    "route": ("routing.report:RouteReport", "Routes of all flows of all jobs (weft route plan)"),
    "route-audit": (
        "routing.report:RouteAudit",
        "Installed routes, and what moving flows would gain (weft route audit)",
    ),
    "route-decision": ("views.route:DecisionLine", "A decision of the route controller, a line (weft route watch)"),
    "schedule": (
        "collectives.schedules.result:ScheduleResult",
        "A collective over the dimensions of a network (weft schedule)",
    ),
    "selftest": ("commands.bench:Selftest", "What the runtime does on a machine (weft bench selftest)"),
    "simulate": (
        "simulation.iteration.result:IterationReport simulation.flows.scenario:ScenarioReport",
        "Flows, or one iteration, on a fabric (weft simulate)",
    ),
    "site": ("arrangement.site:SiteFile", "A site and its jobs (TOML)"),
    "study": ("studies.study:StudyFile", "A study (TOML)"),
    "sweep": ("studies.result:Sweep", "The points of a study (weft sweep)"),
    "trace-kernels": (
        "interop.kernel_times:Traced",
        "Products and attention as a profiler's trace timed them (weft bench --trace)",
    ),
    "train": ("commands.train:Trained", "The steps of a training run (weft train)"),
    "tune": ("search.tune:Tuning", "What to change in a measured run (weft tune)"),
    "validate": ("validation.summary:Validation", "Predicted against measured times (weft validate)"),
    "workload": (
        "simulation.workload:WorkloadResult",
        "A workload over the dimensions of a network (weft schedule --workload)",
    ),
}
"""The record that a file is read into or a document written from, as ``module:class`` (two, where it has two forms),
and what it describes."""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a file that Weft reads or of a document that it writes.

    >>> import weft
    >>> weft.schema("plan")["properties"]["schema"]
    {'const': 'weft.plan/1', 'type': 'string'}

    Args:
        name: as ``weft info schemas`` lists them; also the whole ``schema`` of a document, as "weft.plan/1".

    Raises:
        UnknownName: there is no schema of this name.
    """
    short = re.sub(r"^weft\.([\w-]+)/\d+$", r"\1", name)
    if short not in SCHEMAS:
        raise UnknownName("schema", name, SCHEMAS, listed="weft info schemas")
    records, title = SCHEMAS[short]
    homes = (place.split(":") for place in records.split())
    kinds = [getattr(import_module(f"weft.{module}"), kind) for module, kind in homes]
    return {"$schema": DIALECT, "title": title} | codec.schema(*kinds)


# The command ---------------------------------------------------------------------------------------------------

TOPICS = ("models", "clusters", "frameworks", "formats", "codes", "schemas", "install")


@click.command("info")
@click.argument("topic", type=click.Choice(TOPICS))
@click.argument("name", required=False)
@click.option("--wide", is_flag=True, help="Show all columns, however wide.")
@click.pass_context
def info_command(ctx: click.Context, topic: str, name: str | None, wide: bool) -> None:
    """List what Weft knows, or check the installation.

    \b
    weft info models [WORD]       models whose name contains WORD
    weft info clusters [WORD]     accelerators, and names of clusters
    weft info frameworks [NAME]   training frameworks for --stack
    weft info formats [NOUN]      files of other tools that Weft reads and writes
    weft info codes [CODE]        why layouts are rejected, and what helps
    weft info schemas [NAME]      JSON Schemas of files and results, or one of them
    weft info install             installed packages and self-checks (exit code 1 if one fails)
    """
    from weft.views.terminal import print_blocks

    if topic == "schemas" and name is not None:
        import json

        click.echo(json.dumps(schema(name), indent=1))
        return
    if topic in _TABLES:
        print_blocks(_TABLES[topic](name), wide=wide)
        return
    if name is not None:
        raise BadInput(f"takes no name, {name[:40]!r} was given", where="weft info install", remedy="drop it")
    blocks, right = installation()
    print_blocks(blocks, wide=wide)
    ctx.exit(0 if right else 1)


def _models(word: str | None) -> Iterator[Block]:
    from weft.model import load, names

    chosen = [name for name in names() if word is None or word.lower() in name]
    if not chosen:
        raise UnknownName("model", str(word), names(), listed="weft info models")
    entries = [load(name) for name in chosen]
    recipes = [entry.recipe for entry in entries]
    batches = [f"{recipe.global_batch:,} x {recipe.sequence:,}" if recipe else "-" for recipe in recipes]
    yield Paragraph(f"{counted(len(chosen), 'model')}; any Hugging Face config.json works too", style="bold")
    yield Table(
        Column("model", chosen, left=True),
        Column("parameters", [format_count(entry.model.parameters) for entry in entries]),
        Column("batch x sequence", batches),
        Column("precision", [recipe.precision if recipe else "-" for recipe in recipes], left=True),
        Column("source", [entry.source for entry in entries], left=True, drop=1),
    )


def _clusters(word: str | None) -> Iterator[Block]:
    from weft.cluster import accelerator, names

    patterns, chosen = (
        [known for known in every if word is None or word.lower() in known.lower()]
        for every in (names(), accelerator_names())
    )
    if not patterns and not chosen:
        raise UnknownName("accelerator", str(word), accelerator_names(), listed="weft info clusters")
    yield Paragraph(
        f"{counted(len(chosen), 'accelerator')}; a cluster is ACCELERATOR-COUNT, as h100-1024, or a TOML file",
        style="bold",
    )
    chips = [accelerator(name) for name in chosen]
    if chips:
        flops = [max(chip.bf16_flops, chip.fp16_flops) for chip in chips]
        yield Table(
            Column("accelerator", chosen, left=True),
            Column("16-bit", [format_si(value, "FLOP/s") for value in flops]),
            Column("memory GiB", [f"{chip.memory_bytes / 2**30:.1f}" for chip in chips]),
            Column("memory", [format_si(chip.memory_Bps, "B/s") for chip in chips], drop=2),
            Column("domain", [f"{chip.scale_up_size:,}" for chip in chips]),
            Column("scale-up", [format_si(chip.scale_up_Bps, "B/s") for chip in chips]),
            Column("NIC", [format_si(chip.nic_Bps, "B/s") for chip in chips], drop=1),
        )
        yield Paragraph(
            "Domain: accelerators joined by scale-up links. Speeds: per accelerator and direction.", indent=2
        )
    special = [name for name in patterns if name.removesuffix("-<count>") not in accelerator_names()]
    if special:
        yield Paragraph(f"More clusters: {', '.join(special)}", indent=2, hang=2)


def _frameworks(name: str | None) -> Iterator[Block]:
    from weft.validation.runs import stacks

    tables, known = shipped_tables().tables, stacks()
    if name is not None and name not in stack_names():
        raise UnknownName("framework", name, stack_names(), listed="weft info frameworks")
    if name is not None:
        yield Paragraph(f"{name}: {tables[f'stack.{name}']['source']}", hang=2)
        return
    chosen = stack_names()
    titles = [known[framework].title if framework in known else "weft.runtime" for framework in chosen]
    sources = [str(tables[f"stack.{framework}"]["source"]) for framework in chosen]
    yield Paragraph(f"{counted(len(chosen), 'framework')} for --stack", style="bold")
    yield Table(
        Column("framework", chosen, left=True),
        Column("title", titles, left=True),
        Column("source of its constants", sources, left=True, drop=1),
    )


def _formats(noun: str | None) -> Iterator[Block]:
    from weft.interop.formats import FORMATS

    nouns = {form.noun: None for form in FORMATS}
    if noun is not None and noun not in nouns:
        raise UnknownName("noun", noun, nouns, listed="weft info formats")
    rows = []
    for form in FORMATS:
        if noun in (None, form.noun):
            uses = " and ".join(use for use, function in (("read", form.reader), ("write", form.writer)) if function)
            rows.append((form.noun, form.name, uses, form.title))
    yield Paragraph(f"{counted(len(rows), 'file format')}", style="bold")
    yield rows_grid(("holds", "format", "Weft can", "title"), rows, left=("holds", "format", "Weft can", "title"))


def _codes(code: str | None) -> Iterator[Block]:
    from weft.layout.check import REASONS, REMEDIES

    if code is not None and code not in REASONS:
        raise UnknownName("rejection code", code, REASONS, listed="weft info codes")
    if code is None:
        yield Paragraph(f"{len(REASONS)} reasons to reject a layout, and what helps", style="bold")
    for name, reason in REASONS.items():
        if code in (None, name):
            yield Paragraph(f"{name}: {reason}; {REMEDIES[name]}", hang=2)


def _schemas(name: str | None) -> Iterator[Block]:
    yield Paragraph(f"{counted(len(SCHEMAS), 'schema')}; one of them: weft info schemas NAME", style="bold")
    yield rows_grid(
        ("schema", "describes"), [(name, title) for name, (_, title) in SCHEMAS.items()], left=("schema", "describes")
    )


_TABLES = {
    "models": _models,
    "clusters": _clusters,
    "frameworks": _frameworks,
    "formats": _formats,
    "codes": _codes,
    "schemas": _schemas,
}


# The installation -------------------------------------------------------------------------------------

NEEDED = ("click", "highspy", "numba", "numpy", "pydantic", "pyyaml", "rich")
EXTRAS = {
    "plot": ("--chart", ("altair", "vl-convert-python")),
    "page": ("weft serve, weft report", ("altair", "jinja2", "starlette", "uvicorn", "vl-convert-python")),
    "mcp": ("weft mcp", ("mcp",)),
    "dataframe": ("to_dataframe() of results", ("pandas",)),
    "parquet": ("sweeps as .parquet", ("pyarrow",)),
    "chakra": ("Chakra traces", ("protobuf",)),
    "ray": ("sweeps on a cluster", ("ray",)),
    "runtime": ("weft train, weft bench", ("safetensors", "torch")),
    "tensorboard": ("weft train --tensorboard", ("tensorboard",)),
}
"""Each extra: what it serves, and its packages."""


def version(package: str) -> str | None:
    """The version of a package; None where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _answer(check: Callable[[], tuple[bool, str]]) -> tuple[bool, str]:
    """Whether a check holds, and its answer in words; any error means that it does not hold."""
    try:
        return check()
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def _plan() -> tuple[bool, str]:
    best = weft.plan("gpt2-124m", "a100-8", top=1).best
    holds = best.lower_bound_s <= best.iteration_s and best.memory_bytes <= best.capacity_bytes
    return holds, f"{format_seconds(best.iteration_s)}, at least {format_seconds(best.lower_bound_s)}"


def _rates() -> tuple[bool, str]:
    import numpy as np

    from weft.solvers.maxmin import check, solve

    dice, flows, hops, links = np.random.default_rng(0), 200, 4, 50
    paths = np.concatenate([dice.choice(links, hops, replace=False) for _ in range(flows)])
    capacity = dice.uniform(1e9, 1e10, links)
    ones = np.ones(flows)
    problem = (capacity, np.arange(0, flows * hops + 1, hops), paths, np.ones(flows * hops), ones, ones * np.inf)
    wrong = check(solve(*problem), *problem)
    return wrong is None, wrong or f"{counted(flows, 'flow')} over {links} links share them max-min fair"


def _schedule() -> tuple[bool, str]:
    result: Any = weft.schedule("all-reduce", "1GiB", dims="switch:16:150GiB/s:1us,switch:8:50GiB/s:2us")
    over = result.time_s / result.bound_s - 1
    return -1e-9 <= over < 0.05, f"{over:.2%} above the bound"


def _simulate() -> tuple[bool, str]:
    result: Any = weft.simulate("gpt2-124m", "a100-16", "dp=16", batch=64)
    bound_s = result.result.lower_bound_s
    return bound_s <= result.iteration_s, f"{format_seconds(result.iteration_s)}, at least {format_seconds(bound_s)}"


CHECKS = {"plan": _plan, "fair rates": _rates, "schedule": _schedule, "simulate": _simulate}


def installation() -> tuple[list[Block], bool]:
    """Look at packages and the kernels' folder, and run the checks; what is shown, and whether all is right."""
    names = {*NEEDED, *(name for _, packages in EXTRAS.values() for name in packages)}
    versions = {name: version(name) for name in names}
    checks = {name: _answer(run) for name, run in CHECKS.items()}
    missing = [name for name in NEEDED if not versions[name]]
    passed = sum(holds for holds, _ in checks.values())
    right = not missing and passed == len(checks)
    problem = f"missing: {', '.join(missing)}; " if missing else ""
    state = "is installed correctly" if right else "is NOT installed correctly"
    words = f"{state}: {problem}{passed} of {counted(len(checks), 'check')} passed"
    extras = [
        (extra, serves, "installed" if all(versions[name] for name in packages) else f"pip install 'weft[{extra}]'")
        for extra, (serves, packages) in EXTRAS.items()
    ]
    rows = [("passed" if holds else "FAILED", name, answer) for name, (holds, answer) in checks.items()]
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    shown = ", ".join(f"{name} {versions[name] or 'MISSING'}" for name in NEEDED)
    blocks: list[Block] = [
        Paragraph(f"Weft {weft.__version__} {words}", style="bold"),
        Heading("Extras"),
        rows_grid(("extra", "needed by", ""), extras, left=("extra", "needed by", "")),
        Heading("Checks"),
        rows_grid(("", "check", "answer"), rows, left=("", "check", "answer")),
        Paragraph(f"{machine}; {shown}", indent=2, hang=2),
        Paragraph(f"Compiled kernels: {_kernel_files()}", indent=2, hang=2),
    ]
    return blocks, right


def _kernel_files() -> str:
    """Number, size and folder of the compiled kernels."""
    from weft.solvers._jit import cache_folder

    try:
        folder = cache_folder()
    except ImportError:
        folder = None
    if folder is None:
        return "no folder is writable, so that every run compiles them again"
    sizes = [path.stat().st_size for path in folder.rglob("*.nbc")]
    return f"{counted(len(sizes), 'file')}, {format_bytes(sum(sizes))} in {folder}"
