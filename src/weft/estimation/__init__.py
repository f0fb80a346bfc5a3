"""The closed-form clock: iteration time, MFU and memory of layouts."""

from weft.estimation.iteration import Estimator, estimate, of_runtime
from weft.estimation.result import MEMORY_PARTS, TIME_PARTS, Estimate, EstimateTable, Part

__all__ = ["MEMORY_PARTS", "TIME_PARTS", "Estimate", "EstimateTable", "Estimator", "Part", "estimate", "of_runtime"]
