"""The pages: plan, tune, network, schedule, arrange and accuracy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args
from urllib.parse import urlencode

from weft.arrangement.site import Goal, site_of
from weft.cluster import Cluster
from weft.cluster import catalogue as clusters
from weft.cluster.catalogue import Scales, oversubscribed, resized, rewired, scaled, with_domain
from weft.collectives.stages import STAGE_KINDS
from weft.commands.arrange import arrange
from weft.commands.design import DesignOptions, design
from weft.commands.estimate import estimate
from weft.commands.options import Option, Options, options_of
from weft.commands.plan import PlanOptions, plan
from weft.commands.report import arrangement_page
from weft.commands.schedule import ScheduleOptions, schedule
from weft.commands.shared import layout_of
from weft.commands.tune import TuneOptions, tune
from weft.commands.validate import validate
from weft.documents import parse_toml
from weft.errors import BadInput, NothingFeasible, UnknownName
from weft.fabric.catalogue import for_cluster
from weft.files import CONTROLS, read_text, write_text
from weft.interop.launch import TOOLS, LaunchArguments, launch_arguments
from weft.layout.text import format_layout
from weft.model import catalogue as models
from weft.search import Plan
from weft.search.comparison import Side, compare
from weft.search.design import DesignStudy
from weft.search.tune import Tuning
from weft.units import format_seconds
from weft.validation.runs import runs_of_text, shipped_runs
from weft.validation.summary import Validation
from weft.views.blocks import Block, Figure, Heading, Paragraph, rows_grid
from weft.views.breakdown import breakdown_chart, estimate_view
from weft.views.collective import policies_chart, schedule_view
from weft.views.comparison import comparison_view
from weft.views.design import design_chart, design_view
from weft.views.fabric import fabric_svg
from weft.views.files import rows_to_csv
from weft.views.html import to_html
from weft.views.ranking import launch_view
from weft.views.reports import arrangement_with_charts, behind_verdict, plan_with_charts
from weft.views.tune import tune_view
from weft.views.validation import validation_chart, validation_view

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.model import Job, RecipeChanges
    from weft.views.blocks import Block


# Questions -----------------------------------------------------------------------------------------------------
# What a page asks: its form from the options record of a verb, its answer from the views of the result.
#
# Models, clusters, sites and runs are a known name, or the name of a text that was pasted; no name of a file is
# taken. A pasted text is kept under a name made of its content, so that an address that holds the name shows the
# same page later. What cannot be used raises BadInput.

PASTED = "pasted-"
TEXT_BYTES = 4_000_000
Kind = Literal["model", "cluster", "site", "runs"]
_NAME = re.compile(r"pasted-[0-9a-f]{24}")
_ENDINGS: dict[Kind, str] = {"model": ".json", "cluster": ".toml", "site": ".toml", "runs": ".csv"}


@dataclass(frozen=True, slots=True)
class Text:
    """What names a model, a cluster or a network.

    Attributes:
        name: as the address has it.
        pasted: the pasted text of that name; None for one that is known.
    """

    name: str
    pasted: str | None = None


class Texts:
    """The pasted texts of a server, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, kind: Kind, text: str) -> str:
        """Keep a text; the name that it has from now on."""
        text = checked_text(text, f"the pasted {kind}")
        name = PASTED + hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()[:24]
        place = self.folder / f"{name}{_ENDINGS[kind]}"
        if not place.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(place, text + "\n")
        return name

    def keep_pasted(self, form: Mapping[str, str], kinds: Iterable[Kind]) -> dict[str, str]:
        """The names of the texts that a form holds, kept; the field of a kind is its name and "_text"."""
        pasted = {kind: form.get(f"{kind}_text", "") for kind in kinds}
        return {kind: self.keep(kind, text) for kind, text in pasted.items() if text.strip()}

    def find(self, kind: Kind, name: str) -> Text:
        """The text of a name, or the name itself where it is none of a pasted text."""
        name = name.strip()
        if not name.startswith(PASTED):
            return Text(name)
        place = self.folder / f"{name}{_ENDINGS[kind]}"
        if not _NAME.fullmatch(name) or not place.is_file():
            raise BadInput(f"nothing is kept under {name[:40]!r}", where=kind, remedy=f"paste the {kind} again")
        return Text(name, read_text(place, where=kind, largest=TEXT_BYTES + 1))


def checked_text(text: str, where: str) -> str:
    """A pasted text with plain line ends."""
    text = text.replace("\r\n", "\n").strip()
    if not text:
        raise BadInput("is empty", where=where, remedy="paste its text")
    try:
        large = len(text.encode()) > TEXT_BYTES
    except UnicodeEncodeError:
        raise BadInput("has an invalid character", where=where, remedy="paste plain text") from None
    if large:
        raise BadInput(f"is larger than {TEXT_BYTES / 1e6:g} MB", where=where)
    if odd := CONTROLS.search(text):
        problem = f"holds the control character {ord(odd[0]):#04x}"
        raise BadInput(problem, where=where, remedy="paste plain text")
    return text


def job_of_text(source: Text, changes: RecipeChanges, accelerators: int) -> Job:
    """The job of a known name or of a pasted config.json; a batch that nobody gave divides among the accelerators."""
    from weft.model.resolve import config_job, named_job

    if source.pasted is None:
        return named_job(source.name, changes)
    return config_job(source.pasted, changes, where="the pasted model", accelerators=accelerators)


def cluster_of_text(source: Text) -> Cluster:
    """The cluster of a known name or of a pasted TOML text."""
    from weft.cluster import load

    if source.pasted is None:
        return load(source.name)
    from weft.cluster.files import cluster_from_dict  # pydantic loads only for texts
    from weft.documents import parse_toml

    where = "the pasted cluster"
    return cluster_from_dict(parse_toml(source.pasted, where), where=where)


Progress = Callable[[int, int], None] | None
_Record = TypeVar("_Record", bound=Options)
_YES = "yes"
_FLAGS = re.compile(r" \([^()]*(?:--|repeats)[^()]*\)")
"""What the help of an option says of the command line alone."""
_LABELS = {
    "fix": "Fixed degrees and switches",
    "max": "Largest degrees",
    "space": "Layouts to try",
    "order": "Rank by",
    "stack": "Training software",
    "top": "Layouts shown",
    "batch": "Batch (sequences)",
    "sequence": "Sequence (tokens)",
    "fabrics": "Kinds of network",
    "sizes": "Scale-up domain sizes",
    "batches": "Batches to compare",
    "radix": "Ports of a switch",
    "dims": "Dimensions",
    "active": "Chunks at a time",
    "measured": "Measured step or speed",
    "keep": "Setting to leave as it is",
}
"""Labels of options whose names say too little beside a field."""
_PLAIN = ("batch", "sequence", "radix")
"""Options whose labels say what their help would repeat."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form.

    Attributes:
        kind: "text", "number", "choice" or "area".
        choices: all values of a choice, values that a text suggests.
        placeholder: the value that counts where none is given.
        slide: least, most and steps per doubling of a slider.
    """

    name: str
    label: str
    kind: str = "text"
    help: str = ""
    choices: tuple[str, ...] = ()
    placeholder: str = ""
    slide: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Fields that stand together; those with a title are folded."""

    fields: tuple[Field, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What an address asks of a page.

    Attributes:
        path: of the page.
        given: name and text of each field; what is empty is left out.
        texts: the fields that name a model, a cluster, a site or runs, with the texts that were pasted.
    """

    path: str
    given: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, Text], ...]

    def get(self, name: str, default: str = "") -> str:
        """The text of a field."""
        return dict(self.given).get(name, default)

    def text(self, name: str) -> Text:
        """What a field names."""
        return dict(self.texts).get(name, Text(""))

    def number(self, name: str, low: float, high: float) -> float | None:
        """The number of a field, None where it is empty."""
        text = self.get(name).replace(",", "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise BadInput(f"{text[:40]!r} is not a number from {low:g} to {high:,g}", where=name)
        return value

    def whole(self, name: str, low: int = 1, high: int = 10**9) -> int | None:
        """The whole number of a field, None where it is empty."""
        value = self.number(name, low, high)
        if value is not None and value != int(value):
            raise BadInput(f"{value:g} is not a whole number", where=name)
        return None if value is None else int(value)

    def options(self, record: type[_Record], names: Iterable[str], **more: Any) -> _Record:
        """The options record of the fields among ``names``."""
        values: dict[str, Any] = {}
        for option in options_of(record):
            text = self.get(option.name)
            if option.name not in names or not text:
                continue
            if option.kind == "flag":
                values[option.name] = text == _YES
            elif option.kind == "number":
                values[option.name] = self.number(option.name, -1e18, 1e18)
            else:
                values[option.name] = (text,) if option.kind in ("texts", "integers") else text
        return record(**values | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: its form, its computation and its views.

    Attributes:
        needed: fields without which nothing is asked.
        sources: the fields that name a text which may be pasted.
        looks: fields that change the view of a result; they start no computation.
        shows: views of a result, the first by default.
        example: fields that fill the form where the address has none.
        row: the field that a row of a table leads to.
        section: the name of the section about such a row.
        compute: the result; called in a worker.
        view: the blocks of a view of a result.
        saved: the part of a result that its JSON and CSV files have.
        files: more of them by name, each with a function that gives its name, type and content.
        time_s: limit of the work, where it may take long.
    """

    title: str
    groups: tuple[Group, ...]
    needed: tuple[str, ...]
    sources: Mapping[str, Kind] = field(default_factory=dict)
    looks: tuple[str, ...] = ()
    shows: tuple[str, ...] = ("answer",)
    example: Mapping[str, str] = field(default_factory=dict)
    row: str = ""
    section: str = ""
    compute: Callable[[PageRequest, Progress], Any]
    view: Callable[[Any, PageRequest, str], Iterable[Block]]
    saved: Callable[[Any, PageRequest], Any] = lambda result, asked: result
    files: Mapping[str, Callable[[Any, PageRequest], tuple[str, str, str]]] = field(default_factory=dict)
    time_s: float | None = None

    @property
    def path(self) -> str:
        """Where it is."""
        return f"/{self.title.lower()}"

    @property
    def names(self) -> tuple[str, ...]:
        """All fields of its address."""
        fields = [each.name for group in self.groups for each in group.fields if each.kind != "area"]
        return tuple(dict.fromkeys((*fields, *self.looks, "show")))

    @property
    def file_paths(self) -> dict[str, str]:
        """Where each of its files is, by name."""
        return {name: f"{self.path}/{name.lower().replace(' ', '-')}" for name in ("JSON", "CSV", *self.files)}

    def shown(self, show: str) -> str:
        """The view of a name, the first where there is none of that name."""
        return show if show in self.shows else self.shows[0]

    def address(self, given: Mapping[str, str], path: str = "", **changed: str) -> str:
        """The address of what is given; what is empty is left out."""
        fields = {name: value for name, value in {**given, **changed}.items() if value}
        return f"{path or self.path}?{urlencode(fields)}"


def fields_of(record: type[Options], *names: str) -> tuple[Field, ...]:
    """The fields of options."""
    options = {option.name: option for option in options_of(record)}
    return tuple(_field(options[name]) for name in names)


def _field(option: Option) -> Field:
    kind = "text"
    choices: tuple[str, ...] = ()
    if option.choices or option.kind == "flag":
        kind, choices = "choice", ("", *(option.choices or (_YES,)))
    elif option.kind in ("integer", "number"):
        kind = "number"
    shown = "" if option.default in (None, False, ()) else str(option.default)
    label = _LABELS.get(option.name) or option.name.capitalize()
    text = "" if option.name in _PLAIN else _FLAGS.sub("", option.help)
    return Field(option.name, label, kind, text, choices, shown)


# Pages ---------------------------------------------------------------------------------------------------------

FACTORS = {
    "nic": "NIC bandwidth",
    "scale_up": "Scale-up bandwidth",
    "hbm": "HBM bandwidth",
    "latency": "Network latency",
    "peak": "Matrix peak",
}
"""Fields of what the hardware is multiplied with, and what they are called."""
_LONG_S = 600.0
_MOST_SEARCH_S = 300
_MOST_LAYOUTS, _MOST_HOSTS = 200, 1024
_COUNT = re.compile(r"-\d+$")

_MODEL = Field("model", "Model", choices=tuple(models.names()), placeholder="llama-3.1-8b")
_CLUSTERS = tuple(name.replace("<count>", "64") for name in clusters.names())
_CLUSTER = Field("cluster", "Cluster", choices=_CLUSTERS, placeholder="h100-64")
_ACCELERATORS = Field("count", "Accelerators", "number", help="Instead of the cluster's", slide=(8, 131072, 1))
_PASTED = Group(
    (Field("model_text", "Model: a Hugging Face config.json", "area"), Field("cluster_text", "Cluster: TOML", "area")),
    "Paste a model or a cluster",
)

# Plan ---------------------------------------------------------------------------------------------------------------

_RECIPE = ("batch", "sequence")
_SEARCH = ("fix", "max", "space", "order", "precision", "stack", "top")


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan, and the same on the hardware as it is where the plan is of other hardware."""

    plan: Plan
    as_it_is: Plan | None


def _cluster_of(form: PageRequest) -> Cluster:
    source, count = form.text("cluster"), form.whole("count")
    if count is not None and source.pasted is None:
        source = replace(source, name=f"{_COUNT.sub('', source.name)}-{count}")
    cluster = cluster_of_text(source)
    return resized(cluster, count) if count is not None and cluster.count != count else cluster


def _supposed(form: PageRequest, cluster: Cluster) -> Cluster:
    """The cluster as the what-if fields make it; the same one where all are empty."""
    given = {name: form.number(name, 0.01, 100) for name in FACTORS}
    scales = Scales(**{name: value for name, value in given.items() if value is not None})
    domain, ratio = form.whole("domain"), form.number("oversubscription", 1, 1000)
    words = [scales.words] if scales.words else []
    words += [] if domain is None else [f"domains of {domain}"]
    words += [] if ratio is None else [f"oversubscription {ratio:g}"]
    if not words:
        return cluster
    notes = [f"what if: {', '.join(words)}"]
    if domain is not None:
        other = with_domain(cluster, domain, where="domain")
        notes, cluster = [*notes, rewired(cluster, other)], other
    if ratio is not None:
        cluster = oversubscribed(cluster, ratio)
    cluster = scaled(cluster, scales)
    return replace(cluster, defaults=(*cluster.defaults, "; ".join(filter(None, notes))))


def _plan(form: PageRequest, progress: Progress) -> _Planned:
    cluster = _cluster_of(form)
    top = min(form.whole("top") or 10, _MOST_LAYOUTS)
    options = form.options(PlanOptions, (*_RECIPE, *_SEARCH[:-1]), top=top)
    job = job_of_text(form.text("model"), options.changes(), cluster.count)
    search = options.changed(batch=None, sequence=None, precision=None)  # the job has them
    other = _supposed(form, cluster)
    computed = plan(job, other, search, progress=progress)
    return _Planned(computed, plan(job, cluster, search, progress=progress) if other is not cluster else None)


def _plan_view(computed: _Planned, form: PageRequest, show: str) -> Iterator[Block]:
    ranked = computed.plan
    if computed.as_it_is is not None:
        yield Paragraph(_effect(ranked, computed.as_it_is), style="bold")
    if ranked.layouts and show == "launch":
        try:
            yield from launch_view(_launch(ranked, form))
        except NothingFeasible as error:
            yield Paragraph(str(error), style="bold")
        return
    yield from plan_with_charts(ranked)
    if not form.get("layout"):
        return
    chosen = estimate(ranked.job, ranked.cluster, _chosen(ranked, form), stack=ranked.stack)
    yield Heading(f"The layout: {format_layout(chosen.layout)}")
    yield from estimate_view(chosen, verbose=True)
    if ranked.layouts and chosen.layout != ranked.best.layout:
        pairs = (("best", ranked.best), ("chosen", chosen.estimate))
        sides = [Side.of_plan(ranked, label, one) for label, one in pairs]
        yield Heading("Side by side")
        yield from comparison_view(compare(sides, 1e12), verbose=True)


def _chosen(ranked: Plan, form: PageRequest) -> Any:
    text = form.get("layout")
    return layout_of(text, ranked.job, ranked.cluster) if text else ranked.best.layout


def _effect(ranked: Plan, as_it_is: Plan) -> str:
    """What other hardware changes, in a sentence."""
    if not ranked.layouts or not as_it_is.layouts:
        return f"What if: on the hardware as it is, {'layouts fit' if as_it_is.layouts else 'nothing fits'}"
    best, before = ranked.layouts[0], as_it_is.layouts[0]
    same = "the same layout" if best.layout == before.layout else "another layout"
    change = round(best.iteration_s / before.iteration_s - 1, 3) + 0.0
    return (
        f"What if: {format_seconds(best.iteration_s)} per iteration instead of {format_seconds(before.iteration_s)}"
        f" ({change:+.1%}); on the hardware as it is, {same} is first"
    )


def _launch(ranked: Plan, form: PageRequest) -> LaunchArguments:
    tool = form.get("tool", TOOLS[0])
    if tool not in TOOLS:
        raise UnknownName("tool", tool[:40], TOOLS)
    return launch_arguments(tool, ranked.job, ranked.cluster, _chosen(ranked, form))


def _launch_file(computed: _Planned, form: PageRequest) -> tuple[str, str, str]:
    if not computed.plan.layouts:
        raise NothingFeasible(computed.plan.shortage)
    written = _launch(computed.plan, form)
    return written.file, "text/plain", written.text


_FACTOR_FIELDS = tuple(
    Field(name, f"{label} x", "number", placeholder="1", slide=(0.125, 8, 4)) for name, label in FACTORS.items()
)
PLAN = Page(
    title="Plan",
    groups=(
        Group((_MODEL, _CLUSTER, _ACCELERATORS, *fields_of(PlanOptions, *_RECIPE))),
        Group(fields_of(PlanOptions, *_SEARCH), "Limit the layouts"),
        Group(
            (
                *_FACTOR_FIELDS,
                Field("domain", "Scale-up domain (accelerators)", "number", "", (), "8", (1, 4096, 1)),
                Field(
                    "oversubscription", "Oversubscription", "number", "Of the outermost network", (), "1", (1, 16, 2)
                ),
            ),
            "What if the hardware were different",
        ),
        Group(
            (
                Field("layout", "Layout", help="As tp=8,pp=4; the best by default"),
                Field("tool", "Tool", "choice", choices=TOOLS),
            ),
            "Look at a layout, write its launch file",
        ),
        _PASTED,
    ),
    needed=("model", "cluster"),
    sources={"model": "model", "cluster": "cluster"},
    looks=("layout", "tool"),
    shows=("layouts", "launch"),
    example={"model": "llama-3.1-8b", "cluster": "h100-64"},
    row="layout",
    section="the-layout",
    compute=_plan,
    view=_plan_view,
    saved=lambda computed, form: computed.plan,
    files={"Launch file": _launch_file},
)

# Tune ---------------------------------------------------------------------------------------------------------------

_TUNE = ("layout", "measured", "keep")


def _tune(form: PageRequest, progress: Progress) -> Tuning:
    cluster = _cluster_of(form)
    job = job_of_text(form.text("model"), form.options(TuneOptions, _RECIPE).changes(), cluster.count)
    return tune(job, cluster, options=form.options(TuneOptions, (*_TUNE, "stack")))


def _tune_view(result: Tuning, form: PageRequest, show: str) -> Iterator[Block]:
    estimates = [result.expected, *(change.estimate for change in result.changes)]
    title = f"{result.job.model.name} on {result.cluster.name}, expected (1 is your layout)"
    chart = Figure(partial(breakdown_chart, estimates, top=4, title=title), "Your layout and the best changes")
    yield from behind_verdict(tune_view(result, verbose=True), chart)


TUNE = Page(
    title="Tune",
    groups=(
        Group(
            (
                _MODEL,
                _CLUSTER,
                _ACCELERATORS,
                Field("layout", "Layout of the run", help="As tp=8,pp=16,sp"),
                *fields_of(TuneOptions, "measured"),
            )
        ),
        Group(fields_of(TuneOptions, *_RECIPE, "stack", "keep"), "The job, and what must stay"),
        _PASTED,
    ),
    needed=("model", "cluster", "layout", "measured"),
    sources={"model": "model", "cluster": "cluster"},
    example={"model": "llama-3.1-8b", "cluster": "h100-64", "layout": "tp=8", "measured": "31%"},
    compute=_tune,
    view=_tune_view,
)

# Network ------------------------------------------------------------------------------------------------------------

_DESIGN = ("layout", "radix", "fabrics", "oversubscription", "sizes", "batches", "routing", "batch")


def _design(form: PageRequest, progress: Progress) -> DesignStudy:
    cluster = _cluster_of(form)
    options = form.options(DesignOptions, _DESIGN)
    job = job_of_text(form.text("model"), options.changes(), cluster.count)
    return design(job, cluster, options, progress=progress)


def _design_view(study: DesignStudy, form: PageRequest, show: str) -> Iterator[Block]:
    chart = Figure(partial(design_chart, study), "Cost of the network against the time of an iteration")
    yield from behind_verdict(design_view(study, verbose=True), chart)
    yield Heading("Pictures")
    radix = form.whole("radix") or 64
    for kind in dict.fromkeys(each.kind.partition(" ")[0] for each in study.designs):  # without the oversubscription
        yield Figure(fabric_svg(for_cluster(kind, study.cluster, radix=radix)), kind)


_design_fields = fields_of(DesignOptions, *_DESIGN)
NETWORK = Page(
    title="Network",
    groups=(
        Group((_MODEL, _CLUSTER, _ACCELERATORS, *_design_fields[:2])),
        Group(_design_fields[2:], "Which networks"),
        _PASTED,
    ),
    needed=("model", "cluster"),
    sources={"model": "model", "cluster": "cluster"},
    example={"model": "llama-3.1-8b", "cluster": "h100-64", "layout": "tp=8,dp=8", "radix": "16"},
    compute=_design,
    view=_design_view,
    time_s=_LONG_S,
)

# Schedule -----------------------------------------------------------------------------------------------------------

_SCHEDULE = ("dims", "chunks", "active", "algorithms")
_DRAWN = ("baseline", "themis scf", "weft")
"""Policies that are drawn beside the one that is looked at."""


def _schedule(form: PageRequest, progress: Progress) -> Any:
    more: dict[str, Any] = {"policy": "baseline", "compare": True}
    if form.get("cluster") and not form.get("dims"):
        more["cluster"] = cluster_of_text(form.text("cluster"))
    return schedule(form.get("collective"), form.get("size"), form.options(ScheduleOptions, _SCHEDULE, **more))


def _looked_at(computed: Any, form: PageRequest) -> Any:
    policy = form.get("policy", "weft")
    if policy not in computed.others:
        raise UnknownName("policy", policy[:40], tuple(computed.others))
    return replace(computed, timed=computed.others[policy])


def _schedule_view(computed: Any, form: PageRequest, show: str) -> Iterator[Block]:
    shown = _looked_at(computed, form)
    policy = form.get("policy", "weft")
    drawn = {name: timed for name, timed in computed.others.items() if name in (*_DRAWN, policy)}
    chart = Figure(partial(policies_chart, drawn, computed.bound_s), "Chunks of the policies over time")
    yield from behind_verdict(schedule_view(shown, verbose=True), chart)


SCHEDULE = Page(
    title="Schedule",
    groups=(
        Group(
            (
                Field("collective", "Collective", "choice", choices=tuple(STAGE_KINDS)),
                Field("size", "Size of the full buffer", placeholder="1GiB"),
                replace(
                    *fields_of(ScheduleOptions, "dims"),
                    help="Inner to outer: ring, line, fully-connected or switch, its size, bandwidth and latency",
                ),
                replace(_CLUSTER, help="Dimensions of a cluster instead"),
            )
        ),
        Group(fields_of(ScheduleOptions, *_SCHEDULE[1:]), "Chunks and algorithms"),
    ),
    needed=("collective", "size"),
    sources={"cluster": "cluster"},
    looks=("policy",),
    example={"collective": "all-reduce", "size": "64MiB", "dims": "switch:8:450GB/s:1us,switch:8:50GB/s:5us"},
    row="policy",
    section="dimensions",
    compute=_schedule,
    view=_schedule_view,
    saved=_looked_at,
)

# Arrange ------------------------------------------------------------------------------------------------------------


@cache
def _examples() -> dict[str, str]:
    """Sites to begin with, as TOML by name."""
    folder = Path(__file__).parent / "examples"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.toml"))}


def _arrange(form: PageRequest, progress: Progress) -> Any:
    source, where = form.text("site"), "the site"
    text = _examples().get(source.name) if source.pasted is None else source.pasted
    if text is None:
        raise UnknownName("site", source.name[:40], tuple(_examples()), where="site")
    table = parse_toml(text, where)
    if goal := form.get("objective"):
        stated = table.get("objective")
        table["objective"] = (stated if isinstance(stated, dict) else {}) | {"kind": goal}
    if (ratio := form.number("oversubscription", 1, 1000)) is not None:
        table["oversubscription"] = [ratio]
    seconds = form.number("seconds", 0.1, _MOST_SEARCH_S) or 10.0
    site = site_of(table, where, None)
    if len(site.host_names) > _MOST_HOSTS:
        problem = f"has {len(site.host_names):,} hosts; the page takes {_MOST_HOSTS:,}"
        raise BadInput(problem, where=where, remedy="use weft arrange SITE.toml")

    def spent(used_s: float, most_s: float) -> None:
        if progress is not None:
            progress(min(round(used_s), round(most_s)), round(most_s))

    return arrange(site, budget=seconds, spent=spent)


ARRANGE = Page(
    title="Arrange",
    groups=(
        Group(
            (
                Field("site", "Site", choices=tuple(_examples()), placeholder="scattered"),
                Field("objective", "Objective", "choice", choices=("", *get_args(Goal))),
                Field("oversubscription", "Oversubscription", "number", help="Instead of the site's"),
                Field("seconds", "Seconds to search", "number", f"Of a processor; {_MOST_SEARCH_S} at most", (), "10"),
            )
        ),
        Group((Field("site_text", "Site: TOML, as weft arrange reads it", "area"),), "Paste a site"),
    ),
    needed=("site",),
    sources={"site": "site"},
    example={"site": "scattered", "seconds": "1"},
    compute=_arrange,
    view=lambda result, form, show: arrangement_with_charts(result),
    files={
        "Report": lambda result, form: (
            *("report.html", "text/html"),
            arrangement_page(result, result.to_dict(), "arranged.json"),
        )
    },
    time_s=2 * _MOST_SEARCH_S + 120,
)

# Accuracy -----------------------------------------------------------------------------------------------------------


def _validate(form: PageRequest, progress: Progress) -> Validation:
    source = form.text("runs")
    if source.name and source.pasted is None:
        raise BadInput(f"there are no runs {source.name[:40]!r}", where="runs", remedy="leave it empty, or paste runs")
    rows = shipped_runs() if source.pasted is None else runs_of_text(source.pasted, "the pasted runs")
    return validate(rows, family=(form.get("family"),) if form.get("family") else ())


def _accuracy_view(computed: Validation, form: PageRequest, show: str) -> Iterator[Block]:
    chart = Figure(partial(validation_chart, computed), "Predicted over measured time of an iteration")
    shipped = form.text("runs").pasted is None
    yield from behind_verdict(validation_view(computed, shipped=shipped), chart)
    if form.get("family"):
        yield Heading("Runs")
        rows = [
            (
                outcome.prepared.run.name,
                format_seconds(outcome.prepared.measured_s),
                format_seconds(outcome.predicted_s),
                f"{outcome.error:+.1%}",
            )
            for outcome in computed.outcomes
        ]
        yield rows_grid(("run", "measured", "predicted", "error"), rows, left=("run",))


_EXAMPLE_RUNS = """\
id,family,model,seq,gpu,gpus,tp,dp,micro_batch,global_batch,precision,iter_s
one,mine,llama-2-7b,4096,a100-80gb,8,8,1,1,16,bf16,2.9
two,mine,llama-2-7b,4096,a100-80gb,8,4,2,1,16,bf16,2.7
"""
ACCURACY = Page(
    title="Accuracy",
    groups=(
        Group(
            (
                Field("family", "Family", help="Only runs of this family"),
                Field("runs", "Runs", help="Published ones that Weft has, or those that you paste"),
            )
        ),
        Group((Field("runs_text", "Runs: CSV", "area", placeholder=_EXAMPLE_RUNS),), "Compare your own runs"),
    ),
    needed=(),
    sources={"runs": "runs"},
    row="family",
    section="runs",
    compute=_validate,
    view=_accuracy_view,
    time_s=_LONG_S,
)

PAGES = {page.path: page for page in (PLAN, TUNE, NETWORK, SCHEDULE, ARRANGE, ACCURACY)}
"""The pages by their paths."""

# Answers ---------------------------------------------------------------------------------------------------------

_KEPT_RESULTS = 16
_kept: dict[PageRequest, Any] = {}


def _result(page: Page, form: PageRequest, progress: Progress) -> Any:
    """The result of a question, whichever view is looked at."""
    core = tuple(pair for pair in form.given if pair[0] not in (*page.looks, "show"))
    question = PageRequest(form.path, core, form.texts)
    if question not in _kept:
        result = page.compute(question, progress)
        while len(_kept) >= _KEPT_RESULTS:
            del _kept[next(iter(_kept))]
        _kept[question] = result
    return _kept[question]


def answer(form: PageRequest, *, progress: Progress = None) -> str:
    """The HTML of what a page shows."""
    page = PAGES[form.path]
    result = _result(page, form, progress)
    given = dict(form.given)

    def link(value: str) -> str:
        return f"{page.address(given, **{page.row: value})}#{page.section}"

    blocks = page.view(result, form, page.shown(given.get("show", "")))
    return to_html(blocks, link if page.row else None)


def file(form: PageRequest, name: str, *, progress: Progress = None) -> tuple[str, str, str]:
    """Name, type and content of a file of a page."""
    page = PAGES[form.path]
    computed = _result(page, form, progress)
    if name in page.files:
        return page.files[name](computed, form)
    result, stem = page.saved(computed, form), page.title.lower()
    if name == "JSON":
        return f"{stem}.json", "application/json", result.to_json()
    rows = result.to_dicts()
    return f"{stem}.csv", "text/csv", rows_to_csv(rows, result.COLUMNS or tuple(rows[0]))
