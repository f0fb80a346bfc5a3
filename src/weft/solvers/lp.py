"""Linear and integer programs, solved by HiGHS without a word on standard output, which carries results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from weft.solvers._arrays import Floats, Ints


class Rows(NamedTuple):
    """Rows of a program: entry i says that row ``row[i]`` has ``value[i]`` times variable ``column[i]``; the sum of
    row r lies in ``low[r] .. high[r]``."""

    row: Ints
    column: Ints
    value: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, rows: Iterable[tuple[Sequence[int], Sequence[float], float, float]]) -> Rows:
        """From columns, values, low and high of each row."""
        columns, values, low, high = zip(*rows, strict=True)
        return cls(
            row=np.repeat(np.arange(len(columns)), [len(row) for row in columns]),
            column=np.concatenate(columns).astype(np.int64),
            value=np.concatenate(values).astype(np.float64),
            low=np.array(low, dtype=np.float64),
            high=np.array(high, dtype=np.float64),
        )


class Solution(NamedTuple):
    """The best values (none where the solver ended without any), whether they are proved optimal, a proved lower bound
    of an integer program, and the dual value of each row of a linear one."""

    values: Floats
    objective: float
    optimal: bool
    bound: float
    dual: Floats


def least(
    cost: Floats,
    bounds: tuple[Floats, Floats],
    rows: Rows,
    *,
    integer: Sequence[bool] | None = None,
    start: Floats | None = None,
    seconds: float | None = None,
    seed: int | None = None,
    gap: float | None = None,
    nodes: int | None = None,
) -> Solution:
    """The least ``cost @ x`` with ``bounds[0] <= x <= bounds[1]`` and the sums of rows in their bounds, on one thread.

    Args:
        integer: which variables are whole numbers.
        start: values from which an integer program begins.
        seconds: limit; the best values until then are returned.
        seed: of the solver's draws.
        gap: relative distance from the bound at which an integer program ends; 1e-4 by default.
        nodes: of the search tree, after which it ends.
    """
    highspy, model = import_module("highspy"), _silent()()
    limits = {"output_flag": False, "threads": 1, "time_limit": seconds, "random_seed": seed, "mip_rel_gap": gap}
    limits["mip_max_nodes"] = nodes
    for name, limit in limits.items():
        if limit is not None:
            model.setOptionValue(name, limit)
    # HiGHS takes the matrix by rows: entries sorted by row, and where each row begins.
    order = np.argsort(rows.row, kind="stable")
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(cost), len(rows.low)
    program.col_cost_, (program.col_lower_, program.col_upper_) = cost, bounds
    program.row_lower_, program.row_upper_ = rows.low, rows.high
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.searchsorted(rows.row[order], np.arange(len(rows.low) + 1)).astype(np.int32)
    program.a_matrix_.index_ = rows.column[order].astype(np.int32)
    program.a_matrix_.value_ = rows.value[order]
    if integer is not None:
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        program.integrality_ = [kinds[flag] for flag in integer]
    model.passModel(program)
    if start is not None:
        known = highspy.HighsSolution()
        known.col_value = start.tolist()
        model.setSolution(known)
    model.run()
    info, solution = model.getInfo(), model.getSolution()
    return Solution(
        values=np.array(solution.col_value if info.primal_solution_status == _FEASIBLE else []),
        objective=float(info.objective_function_value),
        optimal=model.getModelStatus() == highspy.HighsModelStatus.kOptimal,
        bound=float(info.mip_dual_bound),
        dual=np.array(solution.row_dual),
    )


_FEASIBLE = 2
"""HiGHS' status of values that keep all bounds."""


@cache
def _silent() -> Any:
    """HiGHS 1.16 prints its banner while it enables callbacks, that is, within its constructor."""
    highspy: Any = import_module("highspy")

    class Silent(highspy.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return Silent
