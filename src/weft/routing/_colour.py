"""Compiled edge colouring of a bipartite multigraph with a fixed number of colours (Koenig's alternating
paths).

``out[u, c]`` and ``into[v, c]`` hold the edge of colour ``c`` at a left and a right vertex, FREE, or CLOSED
where the vertex may not use the colour.
"""

from __future__ import annotations

from typing import Any

from weft.solvers._jit import jit

FREE, CLOSED = -1, -2


@jit
def put(graph: Any, edge: int, colour: int) -> None:
    """Give an edge a colour."""
    graph.out[graph.left[edge], colour] = edge
    graph.into[graph.right[edge], colour] = edge
    graph.colour[edge] = colour


@jit
def open_path(graph: Any, edge: int, a: int, b: int) -> bool:
    """Whether the path that leaves the right end of ``edge`` by colours a, b, a, ... meets no closed
    place.
    """
    right, at = True, graph.right[edge]
    # The path alternates sides and meets no edge twice: no more steps than vertices.
    for _ in range(2 * len(graph.left) + 2):
        following = graph.into[at, a] if right else graph.out[at, b]
        if following < 0:
            return bool(following == FREE)
        at = graph.left[following] if right else graph.right[following]
        right = not right
    return False


@jit
def flip(graph: Any, edge: int, a: int, b: int) -> int:
    """Give ``edge`` colour ``a``, which is free at its left end, and swap a and b along the path from its
    right end, where b is free; how many other edges changed."""
    changed, right = 0, graph.right[edge]
    # Step by step along the path: an edge takes the colour that the one before it had, and displaces the next.
    displaced = graph.into[right, a]
    put(graph, edge, a)
    # Every edge but `displaced` has one colour, and no vertex has two edges of one.
    while displaced >= 0:
        left = graph.left[displaced]
        if graph.out[left, a] == displaced:
            graph.out[left, a] = FREE
        following = graph.out[left, b]
        put(graph, displaced, b)
        changed += 1
        if following < 0:
            break
        right = graph.right[following]
        if graph.into[right, b] == following:
            graph.into[right, b] = FREE
        displaced = graph.into[right, a]
        put(graph, following, a)
        changed += 1
    return changed


@jit
def insert(graph: Any, edge: int, first: int) -> int:
    """Colour one edge; how many others changed for it, or -1 where it found no colour.

    Colours below ``first`` are tried last.
    """
    left, right, colours = graph.left[edge], graph.right[edge], graph.out.shape[1]
    # The cheap case: a colour that both ends have free.
    for turn in range(colours):
        colour = (first + turn) % colours
        if graph.out[left, colour] == FREE and graph.into[right, colour] == FREE:
            put(graph, edge, colour)
            return 0
    # Koenig: colour a is free at the left end, b at the right one.  The path of colours a and b from the right
    # end cannot reach the left one, so that swapping the two along it leaves a free at both ends.
    for a in range(colours):
        if graph.out[left, a] != FREE or graph.into[right, a] == CLOSED:
            continue
        for b in range(colours):
            if graph.into[right, b] == FREE and open_path(graph, edge, a, b):
                return flip(graph, edge, a, b)
    return -1


@jit
def insert_all(graph: Any, edges: Any) -> int:
    """Colour edges in order; how many already coloured ones changed."""
    changed = 0
    for at in range(len(edges)):
        changed += max(insert(graph, edges[at], 0), 0)
    return changed
