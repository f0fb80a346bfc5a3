"""The words for people: names of the parts, of a layout's degrees and switches, and sentences on a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from weft.estimation.trust import Traits, best_published
from weft.layout.mesh import straddling as straddling_axes
from weft.layout.spec import Layout
from weft.layout.text import DEGREES, format_layout
from weft.units import counted, format_bytes, format_count, format_seconds, format_si

if TYPE_CHECKING:
    from weft.cluster.spec import Cluster
    from weft.estimation.result import Estimate
    from weft.estimation.trust import ErrorBar
    from weft.model.job import Job
    from weft.search.ranking import Advice
    from weft.search.ties import Choice

TIME_LABELS = {
    "forward_s": "forward compute",
    "backward_s": "backward compute",
    "recompute_s": "recomputed forward",
    "tensor_s": "tensor-parallel communication",
    "context_s": "context-parallel communication",
    "expert_s": "expert all-to-all",
    "weights_s": "FSDP gather and scatter",
    "stage_send_s": "pipeline sends",
    "bubble_s": "pipeline bubble (idle)",
    "data_s": "data-parallel synchronisation",
    "optimizer_s": "optimizer step",
    "offload_s": "offload to host memory",
    "host_s": "host work per iteration",
}
"""What each part of the iteration time is called."""

SHORT_TIME_LABELS = {
    "forward_s": "forward",
    "backward_s": "backward",
    "recompute_s": "recompute",
    "tensor_s": "tp",
    "context_s": "cp",
    "expert_s": "ep",
    "weights_s": "fsdp",
    "stage_send_s": "sends",
    "bubble_s": "bubble",
    "data_s": "dp",
    "optimizer_s": "optimizer",
    "offload_s": "offload",
    "host_s": "host",
}
"""The same where room is scarce."""

COMMUNICATION = ("tensor_s", "context_s", "expert_s", "weights_s", "stage_send_s", "data_s", "offload_s")
"""Parts that count exposed communication only."""

MEMORY_LABELS = {
    "weights_bytes": "weights",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "activations_bytes": "activations",
    "buffers_bytes": "communication and loss buffers",
    "communicators_bytes": "NCCL communicators",
    "reserve_bytes": "reserve and fragmentation",
}
"""What each part of the memory is called."""

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
SWITCHES = (
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


def switch_words(layout: Layout) -> str:
    """Switches that are not at rest: "sp, ulysses"; "-" without any."""
    result = [word for name, word in SWITCHES if getattr(layout, name)]
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


def advice_sentence(advice: Advice, best: Estimate | None = None) -> str:
    """What keeps a faster layout out, and the cheapest single change that lets it in."""
    out = advice.rejected
    start = "Nearest to fitting"
    if best is not None:
        start = f"{1 - out.iteration_s / best.iteration_s:.0%} faster, but does not fit"
    need = (
        f"{start}: {format_layout(out.layout)}, {format_seconds(out.iteration_s)},"
        f" needs {format_bytes(out.memory_bytes)} of {format_bytes(out.capacity_bytes)}"
        f" ({largest_memory(out)})"
    )
    if advice.accepted is None:
        return f"{need}; it would fit, within any margin, with {advice.change}."
    fitted = advice.accepted
    return (
        f"{need}; with {advice.change} it fits ({format_bytes(fitted.memory_bytes)}) and takes"
        f" {format_seconds(fitted.iteration_s)}."
    )


def largest_memory(estimate: Estimate, most: int = 2) -> str:
    """The largest parts of the memory: "activations 41.1 GiB, gradients 25.5 GiB"."""
    parts = sorted(estimate.memory, key=lambda part: -part.value)[:most]
    return ", ".join(f"{MEMORY_LABELS[part.name]} {format_bytes(part.value)}" for part in parts)


def choice(result: Choice, first: Estimate, groups: Sequence[int]) -> tuple[str, ...]:
    """What the order of layouts is worth: the first's chance, which others cannot be told apart from the fastest,
    and why the first is first."""
    near = sum(group == 1 for group in groups)
    told = "the first is apart from the others listed"
    if near > 1:
        told = f"{'all' if near == len(groups) else near} of {len(groups)} listed cannot be told apart"
    proof = f"{counted(result.pairs, 'pair')} of {counted(result.jobs, 'job')} of {counted(result.sources, 'source')}"
    lines = [
        f"Choice: with a probability of {result.chance:.0%} the first takes at most {result.within:.0%} longer than"
        f" the best of {result.candidates}; {told}, by the error between layouts that differ so much ({proof})"
    ]
    fastest = result.fastest.layout
    if fastest != first.layout:
        slower = first.iteration_s / result.fastest.iteration_s - 1
        does = f" and does not need {_listed(result.reasons[:3])}" if result.reasons else " and leaves more memory"
        apart = f"{slower:.1%} slower than" if slower >= 0.0005 else "as fast as"
        lines.append(
            f"First: predicted {apart} the fastest{does}. The fastest, with a probability of"
            f" {result.fastest_chance:.0%}: {format_layout(fastest)} (--order time)"
        )
    if result.unusual:
        lines.append(f"Unusual in the first: {_listed(result.unusual)}; it gains more than that counts")
    return tuple(lines)


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]


def published(job: Job, cluster: Cluster, mfu: float) -> str:
    """The best measured MFU of such jobs, beside that of an estimate; empty where none is known."""
    traits, best = Traits.of(job, cluster), best_published(job, cluster)
    if best is None:
        return ""
    what = f"{traits.kind} models in {job.recipe.precision} on {traits.accelerator}"
    shown = f"{best.mfu:.1%} ({best.run}, {counted(best.world, 'accelerator')})"
    known = f"the best published of {what} of about this size: {shown}"
    if mfu > best.mfu:
        return f"Warning: MFU {mfu:.1%} is above {known}; expect less"
    return f"MFU {mfu:.1%} is at most {known}"


def software(stack: str, space: str, job: Job) -> str:
    """The software that is planned for, and that of the recipe's authors."""
    flags = f"--stack {job.stack}" + (f" --space {job.space}" if job.space else "")
    if not job.stack:
        return f"{stack} (weft info frameworks has others)"
    if (stack, space) == (job.stack, job.space or space):
        return f"{stack}, that of the recipe's authors; plans for others with --stack, as --stack megatron-core"
    return f"{stack}; the recipe's authors used {job.stack} ({flags})"


def trust(error: ErrorBar | None) -> tuple[str, ...]:
    """How far such estimates were from measured runs; nothing where constants are not Weft's own."""
    if error is None:
        return ()
    if error.error is None:
        return ("Error: unknown; nothing similar was ever measured",)
    runs, sources = counted(error.runs, "run"), counted(error.sources, "source")
    said = f"Error: +-{error.error:.0%} (covers 4 of 5 such sources, by {runs} of {sources}: {error.alike})"
    beyond = f"Outside what was measured, so that the error is wider: {'; '.join(error.outside)}"
    return (said, beyond) if error.outside else (said,)


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


_SUFFIXES: dict[str, Callable[[Any], str]] = {
    "per_s": format_count,
    "s": format_seconds,
    "bytes": format_bytes,
    "Bps": lambda value: format_si(value, "B/s"),
    "flops": lambda value: format_si(value, "FLOP/s"),
    "per_usd": format_count,
    "usd": lambda value: f"${format_count(value)}",
    "watts": lambda value: format_si(value, "W"),
    "mfu": lambda value: f"{value:.1%}",
}
"""How a value is shown, by the end of its column's name."""
