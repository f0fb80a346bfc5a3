"""The least congestion of unsplit flows by an integer program (HiGHS)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from weft.errors import Unsupported
from weft.fabric.spec import Ints
from weft.routing.bound import MOST_COLUMNS, Paths, linear, paths_of
from weft.routing.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solved:
    """Ways of every flow, and the bound that the solver proved (0 where it had not all paths)."""

    up: Ints
    down: Ints
    bound: float


def solve_ilp(
    asked: Problem, up: Ints, down: Ints, *, seconds: float = 60.0, seed: int = 0, most: int = MOST_COLUMNS
) -> Solved:
    """Choose paths with the least congestion, from a first choice on.

    Flows with the same ends and demand are one integer variable per path: how many of them take it.

    Args:
        up, down: the first choice.
        seconds: limit; the best choice until then is returned.

    Raises:
        Unsupported: more than ``most`` variables.
    """
    paths = paths_of(asked, most=most)
    if paths is None:
        raise Unsupported(
            f"more than {most:,} flows times paths", where="--router ilp", remedy="use repair, which has a bound too"
        )
    highspy: Any = import_module("highspy")
    _, highs = linear(asked, paths, integer=True)
    highs.setOptionValue("time_limit", float(seconds))
    highs.setOptionValue("random_seed", seed)
    highs.setOptionValue("mip_rel_gap", 0.0)
    start = highspy.HighsSolution()
    start.col_value = _taken(asked, paths, up, down)
    highs.setSolution(start)
    highs.run()
    info = highs.getInfo()
    found = np.array(highs.getSolution().col_value)
    if len(found) != len(paths.owner) + 1 or not np.isfinite(info.objective_function_value):
        return Solved(up=up, down=down, bound=0.0)
    chosen_up, chosen_down = _dealt(paths, np.round(found[:-1]).astype(np.int64))
    proved = 0.0 if asked.limited else float(info.mip_dual_bound)
    return Solved(up=chosen_up, down=chosen_down, bound=proved)


def _taken(asked: Problem, paths: Paths, up: Ints, down: Ints) -> list[float]:
    """How many flows of each commodity take each path in a choice, and its congestion."""
    column = {
        key: i for i, key in enumerate(zip(paths.owner.tolist(), paths.up.tolist(), paths.down.tolist(), strict=True))
    }
    values = np.zeros(len(paths.owner) + 1)
    for key in zip(paths.commodity.tolist(), up.tolist(), down.tolist(), strict=True):
        values[column[key]] += 1
    values[-1] = float(asked.loads(asked.routes(up, down)).max(initial=0.0))
    return [float(value) for value in values]


def _dealt(paths: Paths, many: Ints) -> tuple[Ints, Ints]:
    """Paths of the flows of each commodity, in order."""
    column = np.repeat(np.arange(len(many)), many)
    order = np.argsort(paths.commodity, kind="stable")
    up, down = np.zeros(len(order), dtype=np.int64), np.zeros(len(order), dtype=np.int64)
    up[order], down[order] = paths.up[column], paths.down[column]
    return up, down
