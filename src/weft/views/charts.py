"""What all charts share: theme, colours, labels that stay apart, and the files they are saved as.

A chart is one Altair specification; SVG, PNG and PDF are made from it, with the same bytes each time, except in PDF,
where vl-convert changes the order of fonts from run to run.  In SVG the colours of text, lines and background follow
the light or dark scheme of the viewer.  A chart of nothing raises BadInput.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.errors import BadInput, MissingExtra
from weft.views.words import printable

if TYPE_CHECKING:
    import altair

    alt = altair
    Chart: TypeAlias = alt.LayerChart | alt.FacetChart | alt.ConcatChart | alt.HConcatChart | alt.VConcatChart
else:

    class _Altair:
        """Altair, which is imported where a chart is drawn: most views are read as text alone."""

        def __getattr__(self, name: str) -> Any:
            return getattr(_extra("altair"), name)

    alt, Chart = _Altair(), Any

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"
BOX, ACCELERATOR_BOX, FAILED = "#f4f6f8", "#d7e8f4", "#d50000"
DARK = {
    INK: "#e6edf3",
    MUTED: "#9198a1",
    GRID: "#373e47",
    PAPER: "#0d1117",
    BOX: "#1c2128",
    ACCELERATOR_BOX: "#163a52",
    FAILED: "#ff7b72",
}
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"),
    *("#999933", "#882255", "#44aa99", "#6450a8", "#b8a000", "#888888"),
)
"""Okabe and Ito's colours, then P. Tol's: colour-blind readers tell neighbours apart, on light and dark."""
_FONT = "Arial, Liberation Sans, Helvetica, sans-serif"
_HINT = re.compile(r'<path([^>]*) aria-label="([^"]*)"([^>]*?)/>')
_NAME = re.compile(r'( id="|url\(#)([\w-]+)')
_ACCESS = re.compile(r' (?:role|aria-[a-z]+)="[^"]*"')
_NEEDED_GB = 80
"""Address space in which vl-convert 1.9 starts, with a margin: it ends by SIGTRAP at 64 GB."""
LINE = 14
"""Pixels from label to label in a column."""


def _extra(name: str) -> Any:
    """A package that charts need."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra("a chart", "plot") from None


def scheme_css() -> str:
    """Rules of a style sheet that exchange a picture's light colours where the viewer prefers a dark scheme."""
    rules = "".join(
        f'svg [{part}="{light}"]{{{part}:{dark}}}' for light, dark in DARK.items() for part in ("fill", "stroke")
    )
    return f"@media screen and (prefers-color-scheme:dark){{{rules}}}"


def scheme() -> str:
    """Style of a picture alone, with its background."""
    paper = f"@media screen and (prefers-color-scheme:dark){{svg{{background:{DARK[PAPER]}!important}}}}"
    return f"<style>{scheme_css()}{paper}</style>"


def alone(picture: str) -> str:
    """The SVG file of a picture, which follows the viewer's scheme."""
    return picture.replace(">", f">{scheme()}", 1)


def rendered(chart: Chart, suffix: str) -> bytes:
    """The file of a chart.

    Args:
        suffix: .svg, .png or .pdf, in either case.
    """
    spec = chart.to_dict()
    if suffix.lower() == ".svg":
        return alone(_named(_converted("vegalite_to_svg", spec).decode(), "part-")).encode()
    if suffix.lower() == ".png":
        return _converted("vegalite_to_png", spec, scale=2)
    return _converted("vegalite_to_pdf", spec)


def _converted(function: str, source: object, **options: object) -> bytes:
    """What a function of ``vl_convert`` makes."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        limited = limit != resource.RLIM_INFINITY and limit < _NEEDED_GB * 1e9
    except ImportError:  # a system without such limits
        limited = False
    if limited:
        raise BadInput(
            f"charts cannot be drawn within {limit:,} bytes of address space",
            where="ulimit -v",
            remedy=f"the chart engine (V8) reserves up to {_NEEDED_GB} GB: ulimit -v unlimited, or {_NEEDED_GB}000000",
        )
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    made = getattr(_extra("vl_convert"), function)(source, vl_version=version, **options)
    return made.encode() if isinstance(made, str) else bytes(made)


def embedded(chart: Chart) -> tuple[str, str, str]:
    """A chart as an SVG element for a page, and the chart's title and subtitle, which the page shows.

    The element has no style, no script, no background, and texts at the marks on hovering.  The page's style sheet
    holds ``scheme_css``.  Identifiers follow from what is drawn, so that several charts share a page; the title is
    the label for screen readers.
    """
    spec = chart.to_dict() | {"background": None, "padding": 4}
    title = spec.pop("title")
    _tell(spec)
    drawn = _converted("vegalite_to_svg", spec).decode()
    drawn = _named(_ACCESS.sub("", _HINT.sub(_title, drawn)), "")
    drawn = _named(drawn, f"chart-{sha256(drawn.encode()).hexdigest()[:10]}-")
    words = escape(". ".join(filter(None, (title["text"], title["subtitle"]))))
    drawn = drawn.replace('class="marks"', f'class="weft-chart" role="img" aria-label="{words}"', 1)
    return drawn, title["text"], title["subtitle"]


def _named(drawn: str, prefix: str) -> str:
    """A drawing with identifiers that count from 0: vl-convert counts on from drawing to drawing."""
    numbers: dict[str, int] = {}
    return _NAME.sub(lambda one: f"{one[1]}{prefix}{numbers.setdefault(one[2], len(numbers))}", drawn)


def _tell(spec: Any) -> None:
    """Have the marks of a specification carry their tooltips as descriptions, and the others none."""
    if isinstance(spec, list):
        for one in spec:
            _tell(one)
    elif isinstance(spec, dict):
        if "mark" in spec:
            shown = spec.get("encoding", {}).get("tooltip", ())
            shown = [shown] if isinstance(shown, dict) else shown
            parts = [f"{json.dumps(one.get('title', one['field']) + ': ')}+datum[{one['field']!r}]" for one in shown]
            told = {"expr": '+"\\n"+'.join(parts)} if parts else " "
            spec.setdefault("encoding", {})["description"] = {"value": told}
        for key in ("layer", "hconcat", "vconcat", "concat", "spec"):
            _tell(spec.get(key))


def _title(mark: re.Match[str]) -> str:
    """A mark with its description as a title, which browsers show on hovering."""
    head, words, tail = mark.groups()
    return f"<path{head}{tail}><title>{words}</title></path>" if words.strip() else f"<path{head}{tail}/>"


def finished(chart: Chart, title: str, subtitle: str) -> Chart:
    """A chart with its title and the theme."""
    heading = alt.Title(printable(title), subtitle=printable(subtitle))
    text = {"labelColor": INK, "titleColor": INK, "labelFontSize": 11, "titleFontSize": 12}
    themed: Chart = (
        chart.properties(title=heading, background=PAPER, padding={"left": 16, "top": 16, "right": 24, "bottom": 16})
        .configure(font=_FONT)
        .configure_view(stroke=None)
        .configure_title(
            anchor="start", frame="bounds", fontSize=17, color=INK, subtitleColor=MUTED, subtitleFontSize=12, offset=16
        )
        .configure_axis(**text, titleFontWeight="normal", gridColor=GRID, domainColor=MUTED, tickColor=MUTED)
        .configure_legend(**text, title=None, symbolType="square", symbolStrokeWidth=0, labelLimit=0, symbolLimit=0)
        .configure_text(color=INK, fontSize=11)
    )
    return themed


def data(rows: Iterable[dict[str, Any]]) -> alt.InlineData:
    """Rows of a chart; texts without control characters."""
    plain = [{key: printable(one) if isinstance(one, str) else one for key, one in row.items()} for row in rows]
    return alt.InlineData(values=plain)


def linear(low: float, high: float) -> alt.Scale:
    """A scale with exactly these ends."""
    return alt.Scale(domain=[low, high], nice=False, zero=False)


def titled(title: str, low: float, form: str = ".3g") -> str:
    """The title of an axis, which says where the axis does not begin at 0."""
    return f"{title}; the axis begins at {low:{form}}" if low > 0 else title


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis for values, which begins at 0 unless they lie close to each other far above it."""
    low, high = min(values), max(values)
    begin = 0.0 if 0 <= low < 0.5 * high or low == high else low - 0.08 * (high - low)
    return begin, high + 0.06 * ((high - begin) or 1.0)


def colours(field: str, names: Sequence[str], shades: Sequence[str] = COLOURS, **legend: Any) -> alt.Color:
    """A colour for each name, in their order; no legend without arguments of one."""
    scale = alt.Scale(domain=list(names), range=[shades[i % len(shades)] for i in range(len(names))])
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(**legend) if legend else None)


def tooltip(**titles: str) -> list[alt.Tooltip]:
    """What is told of a mark on hovering: fields and their titles."""
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in titles.items()]


def ink_on(colour: str) -> str:
    """Black or white, whichever is read better on a colour (relative luminance of WCAG 2.2)."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.22 else "black"


def margin_labels(
    rows: Sequence[dict[str, Any]],
    labels: Sequence[str],
    x: str,
    y: str,
    scale_y: tuple[float, float, float],
    width: float,
) -> list[alt.Chart]:
    """A label for every point, in a column right of the plot from top to bottom, each with a line to its point.

    Args:
        rows: the points; ``x`` and ``y`` name their fields.
        scale_y: lowest and highest value of the axis, and its pixels.
        width: pixels of the plot.
    """
    low, high, height = scale_y
    pixel = (high - low) / height
    order = sorted(range(len(rows)), key=lambda i: (-rows[i][y], -rows[i][x]))
    downs = spread([(high - rows[i][y]) / pixel for i in order], height)
    placed = [
        rows[i] | {"label": labels[i], "label_at": high - down * pixel} for i, down in zip(order, downs, strict=True)
    ]
    base = alt.Chart(data(placed))
    edge = alt.value(width + 10)
    lines = base.mark_rule(color=GRID, strokeWidth=1).encode(x=f"{x}:Q", y=f"{y}:Q", x2=edge, y2="label_at:Q")
    text = base.mark_text(align="left", dx=4).encode(x=edge, y="label_at:Q", text="label:N")
    return [lines, text]


def spread(downs: Sequence[float], height: float) -> list[float]:
    """Ascending places in pixels, moved to be ``LINE`` apart and above ``height``."""
    lowest = 0.0
    result = []
    for i, down in enumerate(downs):
        room = height - LINE * (len(downs) - 1 - i)
        lowest = max(min(down, room), lowest)
        result.append(lowest)
        lowest += LINE
    return result
