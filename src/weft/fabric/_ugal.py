"""The compiled loop of UGAL; imported when needed."""

from __future__ import annotations

from typing import Any

from weft.solvers._jit import jit


@jit
def worst(first: int, last: int, links: Any, capacity: Any, load: Any) -> Any:
    """Flows on the busiest link of a path for its capacity, one more counted, times the links of the path."""
    most = 0.0
    for at in range(first, last):
        most = max(most, (load[links[at]] + 1.0) / capacity[links[at]])
    return most * (last - first)


@jit
def choose(short_ptr: Any, short: Any, long_ptr: Any, long: Any, capacity: Any, load: Any, taken: Any) -> None:
    """Write 1 for each flow that takes its long path, in order, each seeing those before it."""
    for flow in range(len(taken)):
        near = worst(short_ptr[flow], short_ptr[flow + 1], short, capacity, load)
        far = worst(long_ptr[flow], long_ptr[flow + 1], long, capacity, load)
        taken[flow] = 1 if far < near else 0
        ptr, links = (long_ptr, long) if taken[flow] else (short_ptr, short)
        for at in range(ptr[flow], ptr[flow + 1]):
            load[links[at]] += 1.0
