"""Modules and data that a worker loads before the first question, so that its answer is quick.

The server from which workers are forked imports this module, and they share its memory.
"""

from __future__ import annotations

import weft.commands.plan
from weft.cluster.catalogue import entries
from weft.cluster.catalogue import load as cluster_named
from weft.model.catalogue import load as model_named

entries()


def warm() -> None:
    """Load what the first plan needs."""
    entry = model_named("gpt2")
    weft.commands.plan.plan(entry.model, cluster_named("a100-8"), top=1)
