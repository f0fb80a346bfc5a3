"""The studies by name, each with what it shows and where it is computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A study: what it shows, the function that computes it, and the options that it takes."""

    shows: str
    module: str
    function: str
    options: tuple[str, ...] = ()


_RAIL, _AXONN = "weft.reproductions.rail_only_studies", "weft.reproductions.axonn_studies"
STUDIES = {
    "axonn": Entry(
        shows="80B parameters on 1,024 A100 against Megatron-LM",
        module=_AXONN,
        function="claims",
        options=("batches",),
    ),
    "axonn-ranking": Entry(
        shows="AxoNN's communication model beside iteration times", module=_AXONN, function="ranking"
    ),
    "axonn-weak-scaling": Entry(
        shows="5B to 80B parameters on 64 to 1,024 A100", module=_AXONN, function="weak_scaling", options=("batches",)
    ),
    "rail-only-forwarding": Entry(
        shows="what an all-to-all loses without a spine", module=_RAIL, function="forwarding", options=("clusters",)
    ),
    "rail-only-hfu": Entry(shows="utilization, predicted and published", module=_RAIL, function="utilization"),
    "rail-only-v1": Entry(
        shows="iteration time over domain sizes by version 1's equations",
        module=_RAIL,
        function="closed_form",
        options=("accelerators", "sizes", "nic_Bps", "scale_up_Bps"),
    ),
}
