"""Colours of pictures, and what they turn into on a dark screen."""

from __future__ import annotations

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
