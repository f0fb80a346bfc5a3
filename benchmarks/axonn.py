"""AxoNN's claims on the shipped Perlmutter: the 80B model against Megatron-LM, weak scaling, ranks of its model.

Run: ``python benchmarks/axonn.py``; records what ``python reproductions/axonn.py`` prints.
"""

from __future__ import annotations

import sys
from pathlib import Path

import bench

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reproductions"))

import axonn

FORMS = ("", "f1b1", "sequence", "interleaved", "sharded")


def measured(batches: tuple[int, ...]) -> dict[str, float]:
    """The figures of the three studies."""
    figures: dict[str, float] = {}
    for number, (batch, _, estimate, ratio) in enumerate(axonn.claims(batches)):
        form = FORMS[number % len(FORMS)]
        if form:
            figures[f"{batch}_{form}"] = ratio
        else:
            figures |= {f"{batch}_peak": estimate.hfu, f"{batch}_s": estimate.iteration_s}
    for form in FORMS[1:]:
        values = [figures[f"{batch}_{form}"] for batch in batches]
        figures |= {f"least_{form}": min(values), f"most_{form}": max(values)}
    weak = axonn.weak_scaling(batches[0])
    figures["weak_last_of_first"] = weak[-1][2].hfu / weak[0][2].hfu
    corrected = [(correlation, first) for *_, script, correlation, first in axonn.rankings() if not script]
    orders = [correlation for correlation, _ in corrected]
    figures |= {"least_spearman": min(orders), "most_spearman": max(orders)}
    figures["worst_first_choice"] = max(first for _, first in corrected)
    return figures


if __name__ == "__main__":
    options = bench.parser(__doc__).parse_args()
    bench.record(options, measured((2048,) if options.tiny else axonn.BATCHES))
