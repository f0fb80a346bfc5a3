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

TIME_COLOURS = {
    "forward_s": "#0072b2",
    "backward_s": "#56b4e9",
    "recompute_s": "#6450a8",
    "tensor_s": "#e69f00",
    "context_s": "#d55e00",
    "expert_s": "#882255",
    "weights_s": "#f0e442",
    "stage_send_s": "#cc79a7",
    "bubble_s": "#b0b7bf",
    "data_s": "#009e73",
    "optimizer_s": "#44aa99",
    "offload_s": "#999933",
    "host_s": "#6e7781",
}
MEMORY_COLOURS = {
    "weights_bytes": "#0072b2",
    "gradients_bytes": "#56b4e9",
    "optimizer_bytes": "#44aa99",
    "activations_bytes": "#e69f00",
    "buffers_bytes": "#cc79a7",
    "communicators_bytes": "#999933",
    "reserve_bytes": "#b0b7bf",
}
"""Colours of the parts of a layout's time and memory, by their names in ``Estimate``."""


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
