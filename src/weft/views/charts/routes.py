"""How busy routes leave the links of a fabric: a picture for every router, one under the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from weft.views.charts.fabric import ROUNDING, Load, fabric_svg
from weft.views.charts.palette import INK, PAPER
from weft.views.words import printable

if TYPE_CHECKING:
    from weft.routing.plan import RoutePlan

_SIZE = re.compile(r'width="(\d+)" height="(\d+)"')
STEPS = (0.0, 0.5, 1.0, 2.0)
"""Loads at which colours change: of 1 a link is asked for what it has."""
_HEAD = 34
"""Pixels above each picture, for its words."""


def routes_svg(plans: Sequence[RoutePlan]) -> str:
    """Fabrics as SVG, their links coloured by demand over capacity on one scale.

    Args:
        plans: routes of the same flows, in the order in which they are drawn.
    """
    most = max(one.alpha for one in plans)
    items, width, top = [], 0, 0
    for one in plans:
        drawn = fabric_svg(one.fabric, load=Load(values=one.load, most=most, form=".3g", steps=STEPS))
        size = _SIZE.search(drawn)
        assert size is not None
        words = escape(printable(f"{one.router}: {_words(one)}"))
        items.append(f'<text x="40" y="{top + 24}" font-size="15" font-weight="600" fill="{INK}">{words}</text>')
        items.append(drawn.replace("<svg ", f'<svg y="{top + _HEAD}" ', 1))
        width, top = max(width, int(size[1])), top + _HEAD + int(size[2])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}"'
        ' role="img" font-family="DejaVu Sans, Verdana, Arial, sans-serif">\n'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n{"".join(items)}\n</svg>\n'
    )


def _words(plan: RoutePlan) -> str:
    over = int((plan.load > 1 + ROUNDING).sum())
    more = f"{over:,} {'links are' if over > 1 else 'link is'}" if over else "no link is"
    return f"up to {plan.alpha:.3g} x a link's capacity is asked of it; {more} asked for more than 1 x"
