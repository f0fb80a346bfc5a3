"""The closed-form clock: iteration time, MFU and memory of layouts."""

from weft.estimation.iteration import Estimator
from weft.estimation.result import MEMORY_PARTS, TIME_PARTS, Estimate, EstimateTable, Part
from weft.estimation.single import Sensitivity, estimate, of_runtime, sensitivities

__all__ = [
    "MEMORY_PARTS",
    "TIME_PARTS",
    "Estimate",
    "EstimateTable",
    "Estimator",
    "Part",
    "Sensitivity",
    "estimate",
    "of_runtime",
    "sensitivities",
]
