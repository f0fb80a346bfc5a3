"""The words for people: names of the parts, of a layout's degrees and options, and sentences on a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.estimation.trust import best_published
from weft.layout.check import REASONS, REMEDIES
from weft.layout.mesh import straddling as straddling_axes
from weft.layout.spec import Layout
from weft.layout.text import DEGREES, format_degrees, format_layout
from weft.units import counted, format_bytes, format_count, format_seconds, format_si, listed
from weft.views.blocks import Column, Table

if TYPE_CHECKING:
    from weft.cluster.spec import Cluster
    from weft.estimation.result import Estimate
    from weft.estimation.trust import ErrorBar
    from weft.model.job import Job, Recipe
    from weft.search.ranking import Advice, Plan


class PartWords(NamedTuple):
    """What a part of time or memory is called, its colour in charts, and its name where room is scarce."""

    label: str
    colour: str = ""
    short: str = ""


PARTS = {
    "forward_s": PartWords("forward compute", "#0072b2", "forward"),
    "backward_s": PartWords("backward compute", "#56b4e9", "backward"),
    "recompute_s": PartWords("recomputed forward", "#6450a8", "recompute"),
    "tensor_s": PartWords("tensor-parallel communication", "#e69f00", "tp"),
    "context_s": PartWords("context-parallel communication", "#d55e00", "cp"),
    "expert_s": PartWords("expert all-to-all", "#882255", "ep"),
    "weights_s": PartWords("FSDP gather and scatter", "#f0e442", "fsdp"),
    "stage_send_s": PartWords("pipeline sends", "#cc79a7", "sends"),
    "bubble_s": PartWords("pipeline bubble (idle)", "#b0b7bf", "bubble"),
    "data_s": PartWords("data-parallel synchronisation", "#009e73", "dp"),
    "optimizer_s": PartWords("optimizer step", "#44aa99", "optimizer"),
    "offload_s": PartWords("offload to host memory", "#999933", "offload"),
    "host_s": PartWords("host work per iteration", "#6e7781", "host"),
    "network_s": PartWords("contention on the network"),
    "weights_bytes": PartWords("weights", "#0072b2"),
    "gradients_bytes": PartWords("gradients", "#56b4e9"),
    "optimizer_bytes": PartWords("optimizer state", "#44aa99"),
    "activations_bytes": PartWords("activations", "#e69f00"),
    "buffers_bytes": PartWords("communication and loss buffers", "#cc79a7"),
    "communicators_bytes": PartWords("NCCL communicators", "#999933"),
    "reserve_bytes": PartWords("reserve and fragmentation", "#b0b7bf"),
}
"""By the names of the parts in ``Estimate`` and ``Comparison``."""

COMMUNICATION = ("tensor_s", "context_s", "expert_s", "weights_s", "stage_send_s", "data_s", "offload_s")
"""Parts that count exposed communication only."""

WORTH = 0.005
"""Share of a time below which a difference of parts is not explained."""

EXPOSED = 'Communication counts only where it is "exposed": not hidden behind computation.'
MEANINGS = {
    "tp": "tensor parallel",
    "y": "second tensor axis",
    "cp": "context parallel",
    "pp": "pipeline stages",
    "dp": "ranks with different sequences",
    "fsdp": "of these, ranks that share weights",
    "ep": "expert parallel",
    "etp": "tensor parallel in experts",
}
OPTIONS = (
    ("sequence_parallel", "sp"),
    ("offload_optimizer", "offload optimizer"),
    ("offload_activations", "offload activations"),
)


def printable(text: str) -> str:
    """Text without control characters, so that no name can steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def legend(used: Collection[str]) -> str:
    """What the short words of the degrees in ``used`` and of the table's other columns mean."""
    degrees = ", ".join(f"{short} {MEANINGS[short]}" for short, _ in DEGREES if short in used)
    rest = (
        "mbs micro-batch (sequences), MFU model FLOP/s of peak, TF/s model TFLOP/s per accelerator;"
        " losses in % of the iteration: idle time (bubble) and exposed communication by axis (tp, dp, ...)"
    )
    return f"{degrees}; {rest}" if degrees else rest


def option_words(layout: Layout) -> str:
    """Options that are not at rest: "sp, cp ulysses"; "-" without any."""
    result = [word for name, word in OPTIONS if getattr(layout, name)]
    if layout.context > 1:
        result.append(f"cp {layout.context_method}")
    if layout.overlap_tensor != "backward" and layout.x * layout.y > 1:
        result.append(f"tp overlap {layout.overlap_tensor}")
    result += [] if layout.overlap_reduce else ["no reduce overlap"]
    result += [] if layout.overlap_gather else ["no gather overlap"]
    return ", ".join(result) or "-"


def schedule_words(layout: Layout) -> str:
    """Pipeline schedule with its virtual stages: "1f1b", "int x4" (interleaved), "-" without a pipeline."""
    if layout.pipeline == 1:
        return "-"
    if layout.schedule.rounds:
        return f"int x{layout.virtual_stages}"
    return layout.schedule


def zero_words(layout: Layout) -> str:
    """The stage of ZeRO: FSDP is 3."""
    return "3" if layout.fsdp > 1 and not layout.zero else str(layout.zero)


def recompute_words(layout: Layout) -> str:
    """Recomputation, with the layers of a stage where it is limited: "full 3"."""
    return f"{layout.recompute} {layout.recompute_layers}" if layout.recompute_layers else layout.recompute


def largest_losses(estimate: Estimate, most: int = 3) -> list[tuple[str, float]]:
    """The parts that are neither forward nor backward, as (name, share of the iteration), largest first.

    Shares below one percent are left out.
    """
    rest = [part for part in estimate.time if part.name not in ("forward_s", "backward_s")]
    shares = [(part.name, part.value / estimate.iteration_s) for part in rest]
    return sorted((s for s in shares if s[1] >= 0.01), key=lambda share: -share[1])[:most]


def job_sentence(job: Job) -> str:
    """Model, parameters and recipe in one line."""
    model, recipe = job.model, job.recipe
    active = model.active_parameters
    used = f", {format_count(active)} active" if active != model.parameters else ""
    return (
        f"{printable(model.name)} ({format_count(model.parameters)} parameters{used}), batch of"
        f" {recipe.global_batch:,} x {recipe.sequence:,} tokens = {format_count(recipe.tokens)},"
        f" {recipe.precision}, {recipe.attention} attention"
    )


def cluster_sentence(cluster: Cluster) -> str:
    """Accelerators and tiers in one line."""
    chip = cluster.accelerator
    bought = f" of {cluster.tiers[0].size + cluster.spares_per_domain}" if cluster.spares else ""
    tiers = ", ".join(
        f"{printable(tier.name)} {tier.size}{'' if place else bought} x {tier.effective_Bps / 1e9:g} GB/s"
        for place, tier in enumerate(cluster.tiers)
    )
    return f"{cluster.count:,} {printable(chip.name)} of {format_bytes(chip.memory_bytes)}; {tiers}"


def straddling(layouts: Sequence[Layout], cluster: Cluster) -> str:
    """A warning where groups straddle scale-up domains, but not the largest power of two of each; else empty."""
    used = cluster.tiers[0].size
    part = 1 << (used.bit_length() - 1)
    axes = [result for layout in layouts if (result := straddling_axes(layout, used, part))]
    if not axes or len(cluster.tiers) == 1:
        return ""
    names = " and ".join(short for short, name in DEGREES if any(name in result for result in axes))
    where = f" in {len(axes)} of these {len(layouts)} layouts" if len(layouts) > 1 else ""
    return (
        f"Warning: {names} groups straddle scale-up domains of {used}{where}; with {part} of"
        f" {used + cluster.spares_per_domain} used ({cluster.count // used * part:,} accelerators) they would not"
    )


def recipe_words(recipe: Recipe) -> str:
    """Batch, sequence and precision."""
    return f"batch {recipe.global_batch:,} x {recipe.sequence:,} tokens, {recipe.precision}"


def setting(job: Job, cluster: Cluster, stack: str = "") -> tuple[str, ...]:
    """What an answer is for, with its framework where it says one, and what was assumed for it, a line each."""
    where = f"{cluster.count:,} {printable(cluster.accelerator.name)}"
    lines = [
        f"For {printable(job.model.name)}, {recipe_words(job.recipe)}, on {where}{f', with {stack}' if stack else ''}"
    ]
    if assumed := [printable(text).split(" (")[0] for text in (*job.defaults, *cluster.defaults)]:
        lines.append(f"Assumed: {'; '.join(assumed)}")
    return tuple(lines)


def use(layout: Layout, totals: str) -> str:
    """The recommendation of a layout."""
    return f"Use {_spaced(layout)}: {totals}"


def _spaced(layout: Layout) -> str:
    """Degrees of a layout, and ZeRO-2, which tells apart layouts of the same degrees."""
    return format_degrees(layout).replace(",", " ") + (" zero=2" if layout.zero == 2 else "")


def totals(estimate: Estimate, seconds: float | None = None) -> str:
    """Time (``seconds`` where they were simulated), MFU, their typical error, and memory of a layout."""
    seconds = estimate.iteration_s if seconds is None else seconds
    memory, capacity = estimate.memory_bytes / 2**30, estimate.capacity_bytes / 2**30
    return (
        f"{format_seconds(seconds)} per step, MFU {estimate.mfu * estimate.iteration_s / seconds:.0%}"
        f"{estimate_error(estimate)}, {memory:.1f} of {capacity:.1f} GiB"
    )


def estimate_error(estimate: Estimate) -> str:
    """The error of a single estimate, for the text behind a time or an MFU; empty where it is unknown."""
    error = None if estimate.error is None else estimate.error.error
    return "" if error is None else f" (estimate ±{error:.0%})"


def estimate_verdict(estimate: Estimate, fitting: Estimate | None = None) -> str:
    """Time, MFU and memory of a layout; what it lacks to fit, and the changes with which it fits, as ``fitting``."""
    text = f"{_spaced(estimate.layout)}: {totals(estimate)}"
    if estimate.fits:
        return text
    missing = estimate.memory_bytes - estimate.capacity_bytes
    text += f": does NOT fit, {format_bytes(missing)} missing" if missing > 0 else ": does NOT fit in host memory"
    if fitting is None:
        return f"{text}; weft plan finds layouts that fit, if there are any"
    changes = added_keys(estimate.layout, fitting.layout)
    return f"{text}; with {changes} it fits and takes {format_seconds(fitting.iteration_s)}"


def added_keys(before: Layout, after: Layout) -> str:
    """The keys that turn one layout into another, as ``--layout`` takes them."""
    shown = format_layout(before, whole=True).split(",")
    return ",".join(key for key in format_layout(after, whole=True).split(",") if key not in shown)


def plan_verdict(plan: Plan) -> str:
    """What to use, or that nothing fits, and what would let something fit."""
    if plan.layouts:
        return use(plan.layouts[0].layout, totals(plan.layouts[0], plan.ranked[0].iteration_s))
    if plan.batch_that_runs:
        return f"No layout can run this batch; --batch {plan.batch_that_runs} would work"
    if plan.advice is not None:
        return f"No layout fits. {advice_sentence(plan, plan.advice)}"
    return f"No layout can run: {REASONS[plan.obstacle]}; {REMEDIES[plan.obstacle]}"


def advice_sentence(plan: Plan, advice: Advice) -> str:
    """What keeps a faster layout out, and the cheapest single change that lets it in."""
    out, best = advice.rejected, plan.layouts[0] if plan.layouts else None
    start = "Nearest to fitting" if best is None else "Faster, but does not fit"
    gain = "" if best is None else f" ({1 - out.iteration_s / best.iteration_s:.0%} less)"
    alike = best is not None and _spaced(out.layout) == _spaced(best.layout)
    takes = (
        f"{format_layout(out.layout) if alike else _spaced(out.layout)} takes {format_seconds(out.iteration_s)}{gain}"
    )
    room = f"{plan.capacity_bytes / 2**30:.1f} GiB"
    free = f" ({plan.search.memory_margin:.0%} stay free)" if plan.search.memory_margin else ""
    need = f"{start}: {takes} and needs {out.memory_bytes / 2**30:.1f} of {room}{free};"
    if advice.accepted is None:
        return f"{need} no single option makes it fit, only {advice.change}"
    change = f"--fix {added_keys(out.layout, advice.accepted.layout)}"
    return f"{need} with {change} it fits and takes {format_seconds(advice.accepted.iteration_s)}"


def tie_sentences(plan: Plan) -> Iterator[str]:
    """Which layouts tie with the fastest, and why the first is first."""
    if plan.choice is None:
        return
    first, fastest, count = plan.layouts[0], plan.choice.fastest, len(plan.layouts)
    tied, slower = sum(bool(row.tied) for row in plan.ranked), plan.ranked[0].slower or 0.0
    sentences = []
    if count > 1 and (tied > 1 or fastest.layout == first.layout):
        many = "All" if tied == count else f"{tied} of" if tied > 1 else "None of"
        second = plan.layouts[1]
        error = plan.ranked[int(second.layout != fastest.layout)].layout_error or 0.0
        pair = "first two" if fastest.layout in (first.layout, second.layout) else "second and the fastest"
        differ = f"{'less' if tied > 1 else 'more'} than the error (±{error:.0%} between the {pair})"
        sentences.append(f"{many} {count} tie: they differ by {differ}")
    if fastest.layout != first.layout:
        does = f"needs {listed(plan.choice.reasons[:3])}" if plan.choice.reasons else "leaves less memory"
        name = format_layout(fastest.layout)
        gain = f"{slower:.1%}" if slower >= 5e-4 else "less than 0.1%"
        sentences.append(f"The first is simpler than the fastest, {name}, which gains {gain} and {does}")
    if count > 1 and plan.layouts[1].iteration_s > first.iteration_s:
        sentences.append(_lead(first, plan.layouts[1]))
    if sentences:
        yield ". ".join(sentences)
    if plan.choice.unusual:
        yield f"Unusual in the first: {listed(plan.choice.unusual)}"


def signed(value: float, form: Callable[[float], str] = format_seconds) -> str:
    """A difference with its sign."""
    return f"{'-' if value < 0 else '+'}{form(abs(value))}"


def _lead(first: Estimate, second: Estimate) -> str:
    """By how much the first layout is faster than the second, and the parts of the time that differ most."""
    gain_s = second.iteration_s - first.iteration_s
    parts = [(a.name, a.value - b.value) for a, b in zip(first.time, second.time, strict=True)]
    largest = sorted(parts, key=lambda part: -abs(part[1]))[:3]
    shown = [
        f"{PARTS[name].label} {signed(value)}" for name, value in largest if abs(value) > WORTH * second.iteration_s
    ]
    text = f"The first is {format_seconds(gain_s)} faster than the second"
    return f"{text}: {', '.join(shown)}" if shown else text


def published(job: Job, cluster: Cluster, mfu: float) -> str:
    """Whether an MFU is plausible beside published runs; empty where none can tell."""
    best = best_published(job, cluster)
    if best.highest is not None and mfu > best.highest.mfu:
        return f"Warning: MFU {mfu:.0%} is above anything published: {best.highest.mfu:.0%}; expect less"
    if best.alike is None:
        return ""
    shown = f"{best.alike.mfu:.0%} ({best.alike.run}, {counted(best.alike.world, 'accelerator')})"
    if mfu > best.alike.mfu:
        return f"Warning: MFU {mfu:.0%} is above the best published run of this kind: {shown}; expect less"
    return f"MFU {mfu:.0%} is plausible: the best published run of this kind has {shown}"


def axis_words(axes: Sequence[str]) -> str:
    """Axes of a mesh by the field's short words."""
    return ", ".join(_AXES.get(axis, axis) for axis in axes)


_AXES = {name: short for short, name in DEGREES} | {"data": "dp"}


def software(stack: str, space: str, job: Job) -> str:
    """The framework of a plan beside the recipe's own."""
    flags = f"--stack {job.stack}" + (f" --space {job.space}" if job.space else "")
    if not job.stack:
        return f"{stack} (change with --stack)"
    if (stack, space) == (job.stack, job.space or space):
        return f"{stack} (the recipe's own; change with --stack)"
    return f"{stack} (the recipe's own: {flags})"


def trust(error: ErrorBar | None) -> tuple[str, ...]:
    """How far such estimates were from measured runs; nothing where constants are not Weft's own."""
    if error is None:
        return ()
    if error.error is None:
        return ("Error of an estimate: unknown, because nothing similar was ever measured",)
    runs, sources = counted(error.runs, "run"), counted(error.sources, "source")
    return (f"Error of an estimate: ±{error.error:.0%} ({error.alike}: {runs} from {sources})", *outside(error))


def outside(error: ErrorBar | None) -> tuple[str, ...]:
    """What of a job lies outside what was measured."""
    if error is None or not error.outside:
        return ()
    return (f"Outside what was measured, which widens the error: {'; '.join(error.outside)}",)


def told(name: str, value: Any) -> str:
    """A value with its unit, which the name of its column tells."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    for suffix, shown in _SUFFIXES.items():
        if name == suffix or name.endswith(f"_{suffix}"):
            return shown(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def records_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Table:
    """Records as a table, all columns of the first one by default, with the words and units of their names."""
    columns = []
    for place, name in enumerate(names or tuple(rows[0])):
        values = [row.get(name) for row in rows]
        text = all(isinstance(value, str | bool | None) for value in values)
        cells = [printable(told(name, value)) for value in values]
        drop = _FIRST_DROPPED if name == "layout_text" else place
        columns.append(Column(printable(column_words(name)), cells, drop=drop, left=text))
    return Table(*columns)


_FIRST_DROPPED = 100


def column_words(name: str) -> str:
    """What people call a column of a file: without the unit, which values have."""
    if name in _COLUMN_WORDS:
        return _COLUMN_WORDS[name]
    unit = max((suffix for suffix in _SUFFIXES if name.endswith(f"_{suffix}")), key=len, default="")
    return name.removesuffix(f"_{unit}").replace("_", " ")


_COLUMN_WORDS = {
    "layout_text": "whole layout",
    "iteration_s": "per step",
    "tokens_per_s": "tokens/s",
    "nic_Bps": "NIC bandwidth",
    "Bps": "bandwidth",
    "mfu": "MFU",
    "usd": "cost",
    "watts": "power",
}


_SUFFIXES: dict[str, Callable[[Any], str]] = {
    "per_s": format_count,
    "s": format_seconds,
    "seconds": format_seconds,
    "bytes": format_bytes,
    "Bps": lambda value: format_si(value, "B/s"),
    "flops": lambda value: format_si(value, "FLOP/s"),
    "per_usd": format_count,
    "usd": lambda value: f"${format_count(value)}",
    "watts": lambda value: format_si(value, "W"),
    "mfu": lambda value: f"{value:.1%}",
}
"""How a value is shown, by the end of its column's name."""
