"""On what: accelerators, tiers and clusters."""

from weft.cluster.calibration import Calibration, calibration, read_calibration
from weft.cluster.catalogue import accelerator, accelerator_names, load, names
from weft.cluster.lookup import resolve
from weft.cluster.spec import Accelerator, Cluster, Tier, TierKind

__all__ = [
    "Accelerator",
    "Calibration",
    "Cluster",
    "Tier",
    "TierKind",
    "accelerator",
    "accelerator_names",
    "calibration",
    "load",
    "names",
    "read_calibration",
    "resolve",
]
