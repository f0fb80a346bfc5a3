"""A measured run for people: what it should reach, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weft.layout.spec import ALIASES
from weft.layout.text import format_layout
from weft.units import format_seconds
from weft.views import words
from weft.views.blocks import Blank, Block, Column, Copied, Paragraph, Table
from weft.views.breakdown import time

if TYPE_CHECKING:
    from weft.search.tune import Change, SettingChange, Tuning

_SHORT = {name: short for short, name in ALIASES.items()}


def tune_view(result: Tuning, *, verbose: bool = False) -> Iterator[Block]:
    """A tuned run: how far it is from what it should reach, and the changes, simplest first.

    Args:
        verbose: add where the time of the run's own layout should go.
    """
    yield Paragraph(words_of(result), style="bold")
    yield Blank()
    if result.changes:
        yield _table(sorted(result.changes, key=lambda change: (len(change.settings), -change.speedup)))
        best = result.changes[0]
        if best.flags:
            yield Copied(" ".join(best.flags), "Fastest, in your file")
        yield Copied(f"--layout {format_layout(best.estimate.layout)}", "Its layout")
    for line in _notes(result):
        yield Paragraph(line, indent=2, hang=2)
    for line in words.setting(result.job, result.cluster, result.stack):
        yield Paragraph(line, indent=2, hang=2, style="dim")
    if verbose:
        yield from time(result.expected, title="Expected time of the run's own layout")


def words_of(result: Tuning) -> str:
    """The verdict: where the run is, where it should be, and the best change."""
    expected, error = result.expected, result.expected.error
    bar = "" if error is None or error.error is None else f" ±{expected.mfu * error.error:.0%}"
    usual = error is not None and error.error is not None and abs(result.slower) <= error.error
    reached = f"{expected.mfu:.0%}{bar}"
    now = f"You run at {result.measured_mfu:.0%} MFU, " + (
        f"as this layout should ({reached})" if usual else f"where this layout should reach {reached}"
    )
    if not result.changes:
        return f"{now}. No change of the layout is expected to be faster."
    return f"{now}. Change {_settings(result.changes[0])}: {_gain(result.changes[0])}."


def _gain(change: Change) -> str:
    low, high = change.interval
    memory, capacity = change.estimate.memory_bytes / 2**30, change.estimate.capacity_bytes / 2**30
    return f"{change.speedup:.2f}x faster ({low:.2f} to {high:.2f}), {memory:.0f} of {capacity:.0f} GiB"


def _notes(result: Tuning) -> Iterator[str]:
    """What changes of the recipe gain, and what the layout does not explain."""
    if result.recipe:
        gains = [f"{each.name} {each.before} -> {each.after} {each.speedup:.2f}x" for each in result.recipe]
        yield f"With a recipe to tune again: {', '.join(gains)}"
    error = result.expected.error
    if error is None or error.error is None or result.slower <= error.error:
        return
    yield (
        f"The step takes {1 + result.slower:.2f} times what its layout explains. Look outside of it first:"
        " network (weft bench), clocks, data loading, kernels"
    )


def _table(changes: list[Change]) -> Table:
    return Table(
        [
            Column(heading="change", cells=[_settings(change) for change in changes], left=True),
            Column(heading="step", cells=[format_seconds(change.iteration_s) for change in changes]),
            Column(heading="faster", cells=[f"{change.speedup:.2f}x" for change in changes]),
            Column(
                heading="interval", cells=["{:.2f} to {:.2f}".format(*change.interval) for change in changes], drop=2
            ),
            Column(heading="GiB", cells=[f"{change.estimate.memory_bytes / 2**30:.1f}" for change in changes], drop=1),
            Column(heading="flags", cells=[" ".join(change.flags) for change in changes], drop=3, left=True),
        ]
    )


def _settings(change: Change) -> str:
    return ", ".join(map(_setting, change.settings))


def _setting(setting: SettingChange) -> str:
    name = _SHORT.get(setting.name, setting.name)
    return f"{name} {_value(setting.before)} -> {_value(setting.after)}"


def _value(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
