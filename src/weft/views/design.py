"""A design study for people, for scripts, and as a picture of cost against speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.fabric.cost import BOARD
from weft.fabric.transport import crossing
from weft.layout.text import format_layout
from weft.search.design import AS_FAST
from weft.units import counted, format_count, format_seconds, format_si
from weft.views import words
from weft.views.blocks import Block, Column, Heading, Paragraph, Table, headline, notes
from weft.views.breakdown import defaults, subject

if TYPE_CHECKING:
    from weft.layout import Layout
    from weft.search.design import ComponentFailure, Design, DesignStudy


def design_view(study: DesignStudy, *, verbose: bool = False) -> Iterator[Block]:
    """Which network to buy, the candidates, and what was asked beside: savings, a whole run.

    Args:
        verbose: add what each column counts, the failure of one component, the job and the cluster.
    """
    if study.designs:
        yield from headline(purchase(study))
        yield Table(*_columns(study))
        yield Paragraph(_legend(study, verbose=verbose), indent=2)
        if any(each.one_domain_s for each in study.designs):
            yield Paragraph("1 domain: how much longer than with all accelerators in one domain.", indent=2)
        if study.recommended.failures:
            yield from notes([f"If one component of it fails: {failure_words(study.recommended.failures)}"])
        yield from _layouts(study)
        sprayed = "; sprayed: by packet spraying" if _sprayed(study) else ""
        yield from notes([f"With {study.radix}-port switches, {study.prices.name} prices{sprayed}"])
    if not verbose:
        yield from notes(words.setting(study.job, study.cluster), style="dim")
    if study.against is not None:
        yield from _instead(study)
    if verbose and any(design.failures for design in study.designs):
        yield Heading("One component fails")
        yield Table(*_failure_columns(study.designs))
        yield Paragraph(
            "affected: accelerators or links at the component; stranded: accelerators without any way left to"
            " the others, so that the job cannot run on all; else the iteration with traffic going around.",
            indent=2,
        )
    if any(design.after for design in study.designs):
        yield Heading("A whole run, failures counted")
        yield Table(*_after_columns(study.designs))
        yield Paragraph(
            "spares: hosts, as many as cost least; accelerators: their hours at their price, which may have a network"
            f" in it; network: the share that the run uses up of the price of its {study.prices.contents}.",
            indent=2,
        )
    for one in study.rejected:
        yield Paragraph(f"Not compared: {one.kind}, domain {one.domain}: {one.reason}", hang=2)
    if verbose:
        yield from subject(study.job, study.cluster)
        yield from defaults(study.assumptions)


def _routes(study: DesignStudy) -> str:
    return "; ".join(crossing(each) for each in study.routings)


def _legend(study: DesignStudy, *, verbose: bool) -> str:
    """What the columns are, in short or in full."""
    simulated = "hashed, sprayed" if _sprayed(study) else "simulated"
    if not verbose:
        times = f"closed form, {simulated}" if _simulated(study) else "closed form"
        return f"k$ out: {study.prices.contents}; {times}: time of an iteration;{_RATE}{_STAR}"
    up = _UP if any(each.scale_up_usd for each in study.designs) else ""
    bill = _BILL.format(contents=study.prices.contents, up=up, board=BOARD)
    return bill + (LEGEND if _simulated(study) else CLOSED).format(simulated=simulated)


def purchase(study: DesignStudy) -> str:
    """Which network to buy, and why."""
    fastest, choice = study.fastest, study.recommended
    cheaper = [design for design in study.designs if design.total_usd < choice.total_usd]
    if choice is not fastest and fastest.total_usd > choice.total_usd:
        saved = format_count(fastest.total_usd - choice.total_usd)
        why = f"as fast as {_name(fastest, study.designs)} within {AS_FAST:.0%}, for ${saved} less"
    elif cheaper:
        next_best = max(cheaper, key=lambda design: design.tokens_per_s)
        gain = choice.tokens_per_s / next_best.tokens_per_s - 1
        more = format_count(choice.total_usd - next_best.total_usd)
        why = f"{gain:.0%} faster than {_name(next_best, study.designs)}, for ${more} more"
    else:
        why = "the fastest and the cheapest" if len(study.designs) > 1 else "the only one compared"
    hashed = ""
    if choice.sprayed_s is not None and choice.iteration_s > (1 + AS_FAST) * choice.sprayed_s:
        hashed = f"; packet spraying would make its steps {1 - choice.sprayed_s / choice.iteration_s:.0%} shorter"
    advice = "The fastest is" if choice is fastest and cheaper else "Buy"
    price = f"for ${format_count(choice.total_usd)}"
    routes = f" (routes: {_routes(study)})" if _simulated(study) else ""
    return f"{advice} {_name(choice, study.designs)} {price}{routes}: {why}{hashed}. Priced: {study.prices.contents}."


def _name(design: Design, designs: Sequence[Design]) -> str:
    """A network, with its domain and batch where these differ."""
    domain = f" with domains of {design.domain}" if len({design.domain for design in designs}) > 1 else ""
    batch = f" at batch {design.global_batch:,}" if len({design.global_batch for design in designs}) > 1 else ""
    return f"{design.kind}{domain}{batch}"


def failure_words(failures: Sequence[ComponentFailure]) -> str:
    """What the worst failure of one component does to the job, and the worst that it survives."""
    words = []
    stopped = max(failures, key=lambda failure: failure.stranded)
    if stopped.stranded:
        words.append(f"a {stopped.component} stops the job ({counted(stopped.stranded, 'accelerator')} cut off)")
    survived = [failure for failure in failures if failure.slowdown is not None]
    if survived:
        slowest = max(survived, key=lambda failure: failure.slowdown or 0.0)
        words.append(f"a {slowest.component} makes steps {(slowest.slowdown or 1.0) - 1:.1%} longer")
    return ", ".join(words)


EQUAL = 1e-6
"""Changes of time below this are none."""
_BILL = (
    "domain: accelerators of a scale-up network; optics: transceivers, two per cable; k$ out: {contents} of the"
    " scale-out network; kW: its switches and transceivers;{up} domains of up to {board} are boards in the"
    " accelerators' price, in no sum here;"
)
_UP = " k$ up: switches, cables and optics of domains bought as networks;"
_RATE = " tok/s/$: tokens per second for each dollar of these sums;"
_STAR = " * no other is both cheaper and faster (in tokens per second)."
LEGEND = (
    f" closed form, {{simulated}}: iteration time;{_RATE} beyond leaf: bytes of an iteration that"
    f" cross switch-to-switch links;{_STAR}"
)
CLOSED = f" closed form: iteration time if flows do not meet; nothing was simulated (--no-simulate);{_RATE}{_STAR}"


def _simulated(study: DesignStudy) -> bool:
    return any(design.simulated_s is not None for design in study.designs)


def _sprayed(study: DesignStudy) -> bool:
    return any(design.sprayed_s is not None for design in study.designs)


def _columns(study: DesignStudy) -> list[Column]:
    rows = study.designs
    batches, domains = ({getattr(row, name) for row in rows} for name in ("global_batch", "domain"))
    columns = [
        Column(
            "network", [f"{'*' if i in study.pareto else ' '} {one.kind}" for i, one in enumerate(rows)], left=True
        ),
        Column("domain", [str(row.domain) for row in rows], drop=5 if len(domains) == 1 else 0),
        Column("switches", [f"{row.bill.switches:,}" for row in rows]),
        Column("optics", [f"{row.bill.transceivers:,}" for row in rows], drop=3),
        Column("k$ out", [f"{row.bill.usd / 1e3:,.0f}" for row in rows], front=True),
        Column("kW", [f"{row.bill.watts / 1e3:,.0f}" for row in rows], drop=2),
        Column("closed form", [format_seconds(row.closed_form_s) for row in rows], drop=1),
        Column("tok/s/$", [rate_words(row.tokens_per_s_usd) for row in rows]),
    ]
    if any(row.scale_up_usd for row in rows):
        cells = [f"{row.scale_up_usd / 1e3:,.0f}" if row.scale_up_usd else "-" for row in rows]
        columns.insert(5, Column("k$ up", cells))
    if _simulated(study):
        name = "hashed" if _sprayed(study) else "simulated"
        columns.insert(-1, Column(name, [_seconds(row.simulated_s) for row in rows], front=True))
    if _sprayed(study):
        columns.insert(-1, Column("sprayed", [_seconds(row.sprayed_s) for row in rows], front=True))
    if any(row.one_domain_s for row in rows):
        columns.append(Column("1 domain", [_longer(row.over_one_domain) for row in rows]))
    if _simulated(study):
        columns.append(Column("beyond leaf", [_bytes(row.spine_bytes) for row in rows], drop=4))
    if len(batches) > 1:
        columns.insert(2, Column("batch", [f"{row.global_batch:,}" for row in rows]))
    return columns


def _instead(study: DesignStudy) -> Iterator[Block]:
    rows = study.instead
    yield Heading(f"In place of {study.against}; $: {study.prices.contents}")
    columns = [
        Column("network", [row.kind for row in rows], left=True),
        Column("domain", [str(row.domain) for row in rows]),
        Column("switches", [_less(row.switches_saved) for row in rows]),
        Column("optics", [_less(row.transceivers_saved) for row in rows]),
        Column("$ out", [_less(row.usd_saved_share) for row in rows]),
        Column("k$ saved", [f"{row.usd_saved / 1e3:,.0f}" for row in rows]),
        Column("iteration", [_longer(row.longer) for row in rows]),
    ]
    if len({row.global_batch for row in rows}) > 1:
        columns.insert(2, Column("batch", [f"{row.global_batch:,}" for row in rows]))
    yield Table(*columns)


def _less(saved: float | None) -> str:
    return "-" if saved is None else f"{-saved:+.1%}" if saved else "equal"


def _longer(share: float | None) -> str:
    """A change of time; figures within a millionth are equal."""
    return "-" if share is None else "equal" if abs(share) < EQUAL else f"{share:+.1%}"


def _layouts(study: DesignStudy) -> Iterator[Block]:
    networks: dict[Layout, list[str]] = {}
    for design in study.designs:
        networks.setdefault(design.layout, []).append(_name(design, study.designs))
    if len(networks) == 1:
        yield Paragraph(f"Layout of all: {format_layout(study.designs[0].layout)}", indent=2, hang=2)
        return
    chosen = " (each network runs the one that is fastest on it as it is routed)" if _simulated(study) else ""
    yield Heading(f"Layouts{chosen}")
    for layout, names in networks.items():
        yield Paragraph(f"{format_layout(layout)}: {', '.join(names)}", indent=2, hang=2)


def _failure_columns(designs: Sequence[Design]) -> list[Column]:
    rows = [(one, failure) for one in designs for failure in one.failures]
    return [
        Column("network", [one.kind for one, _ in rows], left=True),
        Column("domain", [str(one.domain) for one, _ in rows]),
        Column("failed", [failure.component for _, failure in rows], left=True),
        Column("affected", [str(failure.affected) for _, failure in rows], drop=1),
        Column("stranded", [str(failure.stranded) for _, failure in rows]),
        Column("iteration", [_seconds(failure.iteration_s) for _, failure in rows]),
        Column("slowdown", [_slowdown(failure) for _, failure in rows]),
    ]


def _after_columns(designs: Sequence[Design]) -> list[Column]:
    rows = [(design, design.after) for design in designs if design.after]
    return [
        Column("network", [one.kind for one, _ in rows], left=True),
        Column("domain", [str(one.domain) for one, _ in rows]),
        Column("goodput", [f"{after.goodput:.2%}" for _, after in rows]),
        Column("spares", [f"{after.spares:,}" for _, after in rows], drop=1),
        Column("time", [format_seconds(after.expected_s) for _, after in rows]),
        Column("accelerators", [_money(after.run_usd, after.network_usd) for _, after in rows]),
        Column("network", [f"${format_count(after.network_usd)}" for _, after in rows]),
        Column(
            "tokens/$", ["-" if one.tokens_per_usd is None else format_count(one.tokens_per_usd) for _, one in rows]
        ),
    ]


def _money(usd: float | None, network_usd: float) -> str:
    return "-" if usd is None else f"${format_count(usd - network_usd)}"


def rate_words(value: float | None) -> str:
    """Tokens per second and dollar; "-" where there are none."""
    return "-" if value is None else f"{value:.3g}"


def _slowdown(failure: ComponentFailure) -> str:
    return "-" if failure.slowdown is None else f"x{failure.slowdown:.3f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def _bytes(value: float | None) -> str:
    return "-" if value is None else format_si(value, "B")
