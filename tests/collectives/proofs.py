"""Messages executed symbolically: what a rank holds of a block is a set of contributions, as bits.

Adding sets that meet would count a contribution twice, so every end state proves "exactly once".
"""

import numpy as np


def execute(messages, state):
    """Play the messages; all of a step see what was held when it began."""
    columns = [messages.step, messages.source, messages.target, messages.first, messages.blocks, messages.adds]
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True), key=lambda row: row[0])
    at = 0
    while at < len(rows):
        step, landed = rows[at][0], []
        while at < len(rows) and rows[at][0] == step:
            _, source, target, first, blocks, adds = rows[at]
            assert source != target
            for block in range(first, first + blocks):
                assert state[source][block], "a rank sends what it does not hold"
                landed.append((target, block, state[source][block], adds))
            at += 1
        for target, block, bits, adds in landed:
            if adds:
                assert not state[target][block] & bits, "a contribution counts twice"
                state[target][block] |= bits
            else:
                assert not state[target][block] & ~bits, "a rank loses what it held"
                state[target][block] = bits
    return state


def start_of(kind, messages, ranks):
    """Everybody holds its own contribution to each block, or each block is with its owner."""
    owner = messages.owner.tolist()
    if kind == "all-gather":
        return [[1 << rank if owner[block] == rank else 0 for block in range(len(owner))] for rank in range(ranks)]
    return [[1 << rank] * len(owner) for rank in range(ranks)]


def prove(kind, messages, ranks):
    owner = messages.owner.tolist()
    assert (np.bincount(messages.owner, minlength=ranks) == len(owner) // ranks).all()
    end = execute(messages, start_of(kind, messages, ranks))
    everybody = (1 << ranks) - 1
    for rank in range(ranks):
        for block, bits in enumerate(end[rank]):
            if kind == "all-reduce" or (kind == "reduce-scatter" and owner[block] == rank):
                assert bits == everybody
            elif kind == "all-gather":
                assert bits == 1 << owner[block]
