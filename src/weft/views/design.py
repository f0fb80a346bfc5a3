"""A design study for people, for scripts, and as a picture of cost against speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput
from weft.fabric.cost import BOARD, PARTS
from weft.fabric.transport import crossing
from weft.layout.text import format_layout
from weft.search.design import AS_FAST, DRAWS, LEAST, MOST, MOST_USD_PER_KWH
from weft.units import counted, format_bytes, format_count, format_seconds, format_si, listed
from weft.views import words
from weft.views.blocks import Blank, Block, Column, Heading, Paragraph, Table, cell, notes
from weft.views.breakdown import defaults, subject
from weft.views.charts import (
    COLOURS,
    LINE,
    Chart,
    alt,
    bounds,
    colours,
    data,
    finished,
    linear,
    margin_labels,
    titled,
    tooltip,
)

if TYPE_CHECKING:
    from weft.layout import Layout
    from weft.search.design import (
        Candidate,
        ComponentFailure,
        Design,
        DesignStudy,
        PartsFailed,
        PriceTurns,
        TurningPoint,
    )


def design_view(study: DesignStudy, *, verbose: bool = False) -> Iterator[Block]:
    """Which network to buy, the candidates, and what was asked beside: savings, a whole run.

    Args:
        verbose: add what each column counts, the failure of one component, the job and the cluster.
    """
    if study.designs:
        yield Paragraph(purchase(study), style="bold")
        yield from notes(_shortages(study))
        yield Blank()
        yield Table(*_columns(study))
        yield Paragraph(_legend(study, verbose=verbose), indent=2)
        if any(each.one_domain_s for each in study.designs):
            yield Paragraph("1 domain: how much longer than with all accelerators in one domain.", indent=2)
        if study.recommended.failures:
            yield from notes([f"If one component of it fails: {failure_words(study.recommended.failures)}"])
        yield from notes(turning_words(study))
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
    if study.parts_failed:
        yield Heading(f"Speed that {_name(study.recommended, study.designs)} keeps as parts fail")
        yield Table(*_parts_columns(study.parts_failed))
        yield Paragraph(
            f"mean, worst: of {DRAWS} random sets of failed parts; stop: sets that cut accelerators off, in neither.",
            indent=2,
        )
    if verbose and study.turning_points is not None and not prices_only(study):
        yield Heading("Prices that turn the advice")
        yield Table(*_price_columns(study, study.turning_points.prices))
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


def _legend(study: DesignStudy, *, verbose: bool) -> str:
    """What the columns are, in short or in full."""
    simulated = "hashed, sprayed" if _sprayed(study) else "simulated"
    star = "." if prices_only(study) else _STAR
    if not verbose:
        times = f"closed form, {simulated}" if _simulated(study) else "closed form"
        return f"k$ out: {study.prices.contents}; {times}: time of an iteration;{_RATE}{star}"
    up = _UP if any(each.scale_up_usd for each in study.designs) else ""
    bill = _BILL.format(contents=study.prices.contents, up=up, board=BOARD)
    return bill + (LEGEND if _simulated(study) else CLOSED).format(simulated=simulated) + star


def purchase(study: DesignStudy) -> str:
    """Which network to buy, and why; without simulation which kind costs least."""
    if prices_only(study):
        least = min(study.designs, key=lambda design: design.total_usd)
        return (
            f"Prices only: {_name(least, study.designs)} costs least, ${format_count(least.total_usd)}."
            " The closed form cannot tell these networks apart; leave out --no-simulate to compare their speed."
            f" Priced: {study.prices.contents}."
        )
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
    routes = f" (routes: {'; '.join(map(crossing, study.routings))})" if _simulated(study) else ""
    return f"{advice} {_name(choice, study.designs)} {price}{routes}: {why}{hashed}. Priced: {study.prices.contents}."


def turning_words(study: DesignStudy) -> list[str]:
    """What the advice depends on, in up to three lines."""
    points = study.turning_points
    if points is None or prices_only(study):
        return []
    by_name = {price.price: price for price in points.prices}
    hour, power = by_name.get("accelerator_hour"), by_name["energy"].higher
    holds = [
        f"at any {'other ' if _turns(study) else ''}part price from {LEAST:g}x to {MOST:g}x of {study.prices.name}"
    ]
    holds += [] if power else [f"with power up to ${MOST_USD_PER_KWH:g} a kWh"]
    holds += [f"with GPU-hours from {LEAST:g}x to {MOST:g}x of ${hour.usd:.2f}"] if hour and not hour.lower else []
    holds += ["with packet spraying"] if points.routing and not points.routing.turns else []
    turns = "; ".join(f"to {name} where {' or '.join(where)}" for name, where in _turns(study).items())
    least_usd = min(design.total_usd for design in study.designs)
    rule = "" if study.recommended.total_usd <= least_usd else f" (the cheapest within {AS_FAST:.0%} of the fastest)"
    lines = [f"The advice{rule} {f'turns {turns}; it ' if turns else ''}holds {listed(holds)}"]
    if hour and hour.lower:
        name = _name(hour.lower.to, study.designs)
        cost = f"${hour.lower.usd:.2f} (now ${hour.usd:.2f})"
        lines.append(f"Where a GPU-hour costs less than {cost}, {name} trains more tokens per dollar")
    others = []
    if points.routing and points.routing.turns:
        name, usd = _name(points.routing.to, study.designs), format_count(points.routing.total_usd)
        others.append(f"With packet spraying the advice is {name}, for ${usd}")
    if ratio := points.oversubscription:
        name, saved = _name(ratio.to, study.designs), format_count(ratio.usd_saved)
        others.append(f"{name} makes steps {ratio.longer:.1%} longer, for ${saved} less")
    return [*lines, "; ".join(others)] if others else lines


PRICE_WORDS = PARTS | {"scale_up": "scale-up domains", "energy": "a kWh of power", "accelerator_hour": "a GPU-hour"}


def _turns(study: DesignStudy) -> dict[str, list[str]]:
    """The prices of parts that turn the advice, by the network that it turns to."""
    result: dict[str, list[str]] = {}
    for price in study.turning_points.prices if study.turning_points else ():
        for word, turn in (("under", price.lower), ("over", price.higher)):
            if turn is not None and price.price != "accelerator_hour":
                limit = f"${turn.usd:.2g}" if turn.factor is None else f"{turn.factor:.3g}x"
                verb = "costs" if price.price == "energy" else "cost"
                where = f"{PRICE_WORDS[price.price]} {verb} {word} {limit}"
                result.setdefault(_name(turn.to, study.designs), []).append(where)
    return result


def _name(design: Design | Candidate, designs: Sequence[Design]) -> str:
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


_PARTS = {"spine": "spines", "leaf": "leaves", "fabric-link": "uplinks", "access-link": "NICs"}
EQUAL = 1e-6
"""Changes below this are none."""
_BILL = (
    "domain: accelerators of a scale-up network; optics: transceivers, two per cable; k$ out: {contents} of the"
    " scale-out network; kW: its switches and transceivers;{up} domains of up to {board} are boards in the"
    " accelerators' price, in no sum here;"
)
_UP = " k$ up: switches, cables and optics of domains bought as networks;"
_RATE = " tok/s/$: tokens per second for each dollar of these sums"
_STAR = "; * no other is both cheaper and faster (in tokens per second)."
LEGEND = (
    f" closed form, {{simulated}}: iteration time;{_RATE}; beyond leaf: bytes of an iteration that"
    f" cross switch-to-switch links"
)
CLOSED = f" closed form: iteration time if flows do not meet; nothing was simulated (--no-simulate);{_RATE}"


def prices_only(study: DesignStudy) -> bool:
    """Whether only prices tell the networks apart: the closed form sees sizes of domains, but no kind or ratio."""
    return not _simulated(study) and len({design.kind for design in study.designs}) > 1


def _shortages(study: DesignStudy) -> Iterator[str]:
    """The layouts that do not fit in memory."""
    short = {design.layout: format_bytes(design.memory_bytes) for design in study.designs if not design.fits}
    most = format_bytes(study.cluster.accelerator.memory_bytes)
    for layout, needed in short.items():
        what = f"{format_layout(layout)} does NOT fit: {needed} of {most} an accelerator"
        yield f"Warning: {what}; weft estimate says what would let it"


def _simulated(study: DesignStudy) -> bool:
    return any(design.simulated_s is not None for design in study.designs)


def _sprayed(study: DesignStudy) -> bool:
    return any(design.sprayed_s is not None for design in study.designs)


def _columns(study: DesignStudy) -> list[Column]:
    rows = study.designs
    batches, domains = ({getattr(row, name) for row in rows} for name in ("global_batch", "domain"))
    columns = [
        Column(
            "network",
            [
                f"{'*' if i in study.pareto and not prices_only(study) else ' '} {one.kind}"
                for i, one in enumerate(rows)
            ],
            left=True,
        ),
        Column("domain", [str(row.domain) for row in rows], drop=5 if len(domains) == 1 else 0),
        Column("switches", [f"{row.bill.switches:,}" for row in rows]),
        Column("optics", [f"{row.bill.transceivers:,}" for row in rows], drop=3),
        Column("k$ out", [f"{row.bill.usd / 1e3:,.0f}" for row in rows], front=True),
        Column("kW", [f"{row.bill.watts / 1e3:,.0f}" for row in rows], drop=2),
        Column("closed form", [format_seconds(row.closed_form_s) for row in rows], drop=1),
        Column("tok/s/$", [cell(row.tokens_per_s_usd, ".3g") for row in rows]),
    ]
    if any(row.scale_up_usd for row in rows):
        cells = [f"{row.scale_up_usd / 1e3:,.0f}" if row.scale_up_usd else "-" for row in rows]
        columns.insert(5, Column("k$ up", cells))
    if _simulated(study):
        name = "hashed" if _sprayed(study) else "simulated"
        columns.insert(-1, Column(name, [cell(row.simulated_s, format_seconds) for row in rows], front=True))
    if _sprayed(study):
        columns.insert(-1, Column("sprayed", [cell(row.sprayed_s, format_seconds) for row in rows], front=True))
    if any(row.one_domain_s for row in rows):
        columns.append(Column("1 domain", [cell(row.over_one_domain, _change) for row in rows]))
    if _simulated(study):
        columns.append(
            Column("beyond leaf", [cell(row.spine_bytes, lambda value: format_si(value, "B")) for row in rows], drop=4)
        )
    if len(batches) > 1:
        columns.insert(2, Column("batch", [f"{row.global_batch:,}" for row in rows]))
    return columns


def _instead(study: DesignStudy) -> Iterator[Block]:
    rows = study.instead
    yield Heading(f"In place of {study.against}; $: {study.prices.contents}")
    columns = [
        Column("network", [row.kind for row in rows], left=True),
        Column("domain", [str(row.domain) for row in rows]),
        Column("switches", [cell(row.switches_saved, lambda saved: _change(-saved)) for row in rows]),
        Column("optics", [cell(row.transceivers_saved, lambda saved: _change(-saved)) for row in rows]),
        Column("$ out", [cell(row.usd_saved_share, lambda saved: _change(-saved)) for row in rows]),
        Column("k$ saved", [f"{row.usd_saved / 1e3:,.0f}" for row in rows]),
    ]
    if not prices_only(study):
        columns.append(Column("iteration", [cell(row.longer, _change) for row in rows]))
    if len({row.global_batch for row in rows}) > 1:
        columns.insert(2, Column("batch", [f"{row.global_batch:,}" for row in rows]))
    yield Table(*columns)


def _change(share: float) -> str:
    """A change; figures within a millionth are equal."""
    return "equal" if abs(share) < EQUAL else f"{share:+.1%}"


def _money(usd: float) -> str:
    return f"${format_count(usd)}"


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
        Column("iteration", [cell(failure.iteration_s, format_seconds) for _, failure in rows]),
        Column("slowdown", [cell(failure.slowdown, lambda value: f"x{value:.3f}") for _, failure in rows]),
    ]


def _parts_columns(rows: Sequence[PartsFailed]) -> list[Column]:
    return [
        Column("failed", [_PARTS[row.component] for row in rows], left=True),
        Column("parts", [f"{row.failed} of {row.total:,}" for row in rows]),
        Column("mean", [cell(row.mean) for row in rows]),
        Column("worst", [cell(row.worst) for row in rows]),
        Column("stop", [f"{row.stopped} of {row.draws}" for row in rows]),
    ]


def _price_columns(study: DesignStudy, prices: Sequence[PriceTurns]) -> list[Column]:
    def cells(points: Iterable[TurningPoint | None]) -> list[str]:
        return [
            "-"
            if each is None
            else f"{'' if each.factor is None else f'{each.factor:.3g}x, '}${each.usd:,.4g}: "
            f"{_name(each.to, study.designs)}"
            for each in points
        ]

    return [
        Column("price", [PRICE_WORDS[price.price] for price in prices], left=True),
        Column("now", [f"${price.usd:,.4g}" for price in prices]),
        Column("below", cells(price.lower for price in prices), left=True),
        Column("above", cells(price.higher for price in prices), left=True),
    ]


def _after_columns(designs: Sequence[Design]) -> list[Column]:
    rows = [(design, design.after) for design in designs if design.after]
    paid = [None if after.run_usd is None else after.run_usd - after.network_usd for _, after in rows]
    return [
        Column("network", [one.kind for one, _ in rows], left=True),
        Column("domain", [str(one.domain) for one, _ in rows]),
        Column("goodput", [f"{after.goodput:.2%}" for _, after in rows]),
        Column("spares", [f"{after.spares:,}" for _, after in rows], drop=1),
        Column("time", [format_seconds(after.expected_s) for _, after in rows]),
        Column("accelerators", [cell(usd, _money) for usd in paid]),
        Column("network", [_money(after.network_usd) for _, after in rows]),
        Column("tokens/$", [cell(after.tokens_per_usd, format_count) for _, after in rows]),
    ]


# Chart ---------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT = 640, 420
_FRONTIER, _OTHERS = "no other is both cheaper and faster", "another is cheaper or faster, and in neither worse"


def design_chart(study: DesignStudy) -> Chart:
    """Cost of the network against the time of an iteration (of a million tokens where batches differ), a point a
    design, and the line of those that no other beats in both."""
    designs = study.designs
    if not designs:
        raise BadInput("there is no design to draw", where="chart")
    domains, batches = ({getattr(design, name) for design in designs} for name in ("domain", "global_batch"))
    # Without the domains where all have the same, so that points stand apart.
    costs = [each.bill.usd if len(domains) == 1 else each.total_usd for each in designs]
    unit, words = (1e6, "million $") if max(costs) >= 1e6 else (1e3, "thousand $")
    title = f"cost of the scale-out network: {study.prices.contents}"
    title += "" if len(domains) == 1 else "; and of scale-up domains bought as networks"
    seconds = [1e6 / design.tokens_per_s if len(batches) > 1 else design.iteration_s for design in designs]
    rows: dict[tuple[float, float], dict[str, Any]] = {}
    for i, (design, time_s, usd) in enumerate(zip(designs, seconds, costs, strict=True)):
        row = rows.setdefault(
            (usd, time_s),
            {
                "cost": usd / unit,
                "seconds": time_s,
                "names": [],
                "money": f"${usd:,.0f}",
                "power": f"{design.bill.watts / 1e3:,.1f} kW",
                "time": format_seconds(time_s),
                "told": f"${format_count(usd)}, {design.bill.watts / 1e3:,.0f} kW, {format_seconds(time_s)}",
                "group": _FRONTIER if i in study.pareto else _OTHERS,
            },
        )
        name = design.kind if len(domains) == 1 else f"{design.kind}, {design.domain}"
        row["names"].append(name if len(batches) == 1 else f"{name}, batch {design.global_batch:,}")
    points = [row | {"names": ", ".join(row["names"])} for row in rows.values()]
    points.sort(key=lambda row: row["group"] != _FRONTIER)
    least, most = bounds([row["cost"] for row in points])
    what = "a million tokens" if len(batches) > 1 else "an iteration"
    room = 0.12 * (max(seconds) - min(seconds)) or 0.1 * max(seconds)
    low, high = min(seconds) - room, max(seconds) + room
    x = alt.X(
        "cost:Q", title=titled(f"{title} ({words})", least), scale=linear(least, most), axis=alt.Axis(tickCount=8)
    )
    y = alt.Y(
        "seconds:Q", title=titled(f"time of {what} (s)", low), scale=linear(low, high), axis=alt.Axis(tickCount=8)
    )
    groups = list(dict.fromkeys(row["group"] for row in points))
    colour = colours("group", groups, [COLOURS[0], COLOURS[-1]], orient="top", symbolType="circle")
    told_of = tooltip(names="network", money="cost", power="power", time="time")
    frontier = sorted((row for row in points if row["group"] == _FRONTIER), key=lambda row: row["cost"])
    line = alt.Chart(data(frontier)).mark_line(interpolate="step-after", color="#56b4e9", strokeWidth=1.5)
    marks = alt.Chart(data(points[::-1])).mark_circle(size=80, opacity=1)
    height = max(_HEIGHT, LINE * len(points))
    labels = [f"{row['names']}: {row['told']}" for row in points]
    layers = margin_labels(points, labels, "cost", "seconds", (low, high, height), _WIDTH)
    drawn = [*layers, line.encode(x=x, y=y), marks.encode(x=x, y=y, color=colour, tooltip=told_of)]
    heading = f"{study.job.model.name} on {study.cluster.count:,} {study.cluster.accelerator.name}"
    simulated = all(design.simulated_s is not None for design in designs)
    source = "simulated times" if simulated else "times of the closed form where none was simulated"
    each = f"scale-up domains of {min(domains)}" if len(domains) == 1 else "network and size of its scale-up domain"
    chart = alt.layer(*drawn).properties(width=_WIDTH, height=height)
    return finished(chart, f"{heading}: cost of the network against time", f"{each}; {source}")
