"""Predicted over measured iteration time as a picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from weft.validation.summary import Validation

SUFFIXES = (".svg", ".png")
BAND = 0.10


def check_plot(path: str | None) -> None:
    """Refuse a picture that cannot be drawn before anything runs.

    Raises:
        BadInput: neither SVG nor PNG by its name.
        MissingExtra: matplotlib is not installed.
    """
    if path is None:
        return
    if Path(path).suffix.lower() not in SUFFIXES:
        raise BadInput(f"{path!r} is neither SVG nor PNG", where="--plot", remedy="name it like runs.svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("--plot", "plot") from None


def validation_plot(found: Validation, suffix: str) -> bytes:
    """The picture as SVG or PNG: both axes logarithmic, a colour a family, the diagonal and +-10 %."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "weft", "svg.fonttype": "none"}):
        figure = _drawn(found)
        data = io.BytesIO()
        form = suffix.removeprefix(".").lower()
        figure.savefig(data, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    return data.getvalue()


def _drawn(found: Validation) -> Figure:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 6.0), layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["tab20"].colors  # type: ignore[attr-defined]
    for i, family in enumerate(found.families):
        rows = [one for one in found.outcomes if one.prepared.run.family == family.family]
        if rows:
            axes.scatter(
                [one.prepared.measured_s for one in rows],
                [one.predicted_s for one in rows],
                s=12,
                color=colours[i % len(colours)],
                label=f"{family.family} ({family.predicted}, {family.mape:.0%})",
            )
    ends = _ends(found)
    axes.plot(ends, ends, color="black", linewidth=0.8)
    low, high = ([share * end for end in ends] for share in (1 - BAND, 1 + BAND))
    axes.fill_between(ends, low, high, color="black", alpha=0.08, label=f"+-{BAND:.0%}")
    axes.set(xscale="log", yscale="log", xlabel="measured s", ylabel="predicted s")
    axes.legend(fontsize="small", title="family (runs, mean error)")
    return figure


def _ends(found: Validation) -> tuple[float, float]:
    """Ends of the diagonal; one second where nothing was predicted."""
    values = [value for one in found.outcomes for value in (one.prepared.measured_s, one.predicted_s)] or [1.0]
    return 0.8 * min(values), 1.25 * max(values)
