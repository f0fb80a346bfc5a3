"""AxoNN's claims on the shipped Perlmutter: the 80B model against Megatron-LM, weak scaling, ranks of its model.

Run: ``python benchmarks/axonn.py``; the same as ``weft reproduce axonn``, ``axonn-weak-scaling``, ``axonn-ranking``.
"""

from __future__ import annotations

import bench

import weft
from weft.report.tables.grid import terminal
from weft.report.tables.reproduction import reproduction_table

FORMS = ("", "f1b1", "sequence", "interleaved", "sharded")


def measured(batches: tuple[int, ...]) -> dict[str, float]:
    """The figures of the three studies."""
    claims = weft.reproduce("axonn", batches=batches)
    weak = weft.reproduce("axonn-weak-scaling", batches=batches[:1])
    ranks = weft.reproduce("axonn-ranking")
    for one in (claims, weak, ranks):
        reproduction_table(one, terminal())
    figures: dict[str, float] = {}
    for number, row in enumerate(claims.rows):
        form = FORMS[number % len(FORMS)]
        if not form:
            figures[f"{row['batch']}_peak"] = float(row["peak_share"] or 0)
            figures[f"{row['batch']}_s"] = float(row["iteration_s"] or 0)
        else:
            figures[f"{row['batch']}_{form}"] = float(row["over_axonn_times"] or 0)
    for form in FORMS[1:]:
        values = [figures[f"{batch}_{form}"] for batch in batches]
        figures |= {f"least_{form}": min(values), f"most_{form}": max(values)}
    figures["weak_last_of_first"] = float(weak.rows[-1]["of_first_share"] or 0)
    corrected = [row for row in ranks.rows if row["form"] == "corrected"]
    orders = [float(row["rank_correlation"] or 0) for row in corrected]
    figures |= {"least_spearman": min(orders), "most_spearman": max(orders)}
    figures["worst_first_choice"] = max(float(row["first_choice_share"] or 0) for row in corrected)
    return figures


if __name__ == "__main__":
    options = bench.parser(__doc__).parse_args()
    bench.record(options, measured((2048,) if options.tiny else (2048, 1024, 8192)))
