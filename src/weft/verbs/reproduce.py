"""``weft.reproduce``: a published claim beside Weft's figures."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput, UnknownName
from weft.verbs.options import Options, given_options, option, verb
from weft.verbs.shared import bandwidth_of, numbers_of

if TYPE_CHECKING:
    from weft.reproductions.study import Reproduction


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(Options):
    """What a study varies; each takes some of these."""

    accelerators: int | None = option(None, "Accelerators (rail-only-v1).", metavar="N", least=1)
    sizes: str | tuple[int, ...] = option("", "Sizes of scale-up domains (rail-only-v1).", metavar="K,...")
    batches: str | tuple[int, ...] = option("", "Global batches (axonn, axonn-weak-scaling).", metavar="N,...")
    clusters: str | tuple[str, ...] = option("", "Clusters by name (rail-only-forwarding).", metavar="NAME,...")
    nic_bandwidth: str | float | None = option(None, "Of a NIC (rail-only-v1).", metavar="SPEED")
    scale_up_bandwidth: str | float | None = option(
        None, "Of an accelerator into its domain (rail-only-v1).", metavar="SPEED"
    )


@verb(ReproduceOptions)
def reproduce(study: str, options: ReproduceOptions | None = None, **given: Any) -> Reproduction:
    """A paper's claim, computed under printed conditions, beside what was published.

    >>> import weft
    >>> found = weft.reproduce("rail-only-v1", accelerators=16384, sizes="32,64")
    >>> [f"{row['iteration_s']:.2f}" for row in found.rows][:2]
    ['3.49', '3.08']

    Args:
        study: as ``weft reproduce`` lists them.
        options: the options as a record instead of keywords.

    Raises:
        UnknownName: there is no such study.
        BadInput: an option that the study does not take, or that cannot be used.
    """
    from weft.reproductions.catalogue import STUDIES

    asked = given_options(ReproduceOptions, options, given)
    if study not in STUDIES:
        raise UnknownName("study", study, tuple(STUDIES), listed="weft reproduce")
    entry = STUDIES[study]
    names = asked.clusters.split(",") if isinstance(asked.clusters, str) else asked.clusters
    speeds = {"nic_Bps": asked.nic_bandwidth, "scale_up_Bps": asked.scale_up_bandwidth}
    flags = {"nic_Bps": "--nic-bandwidth", "scale_up_Bps": "--scale-up-bandwidth"}
    values: dict[str, Any] = {
        "accelerators": asked.accelerators,
        "sizes": numbers_of(asked.sizes, "--sizes"),
        "batches": numbers_of(asked.batches, "--batches"),
        "clusters": tuple(name.strip() for name in names if name.strip()),
    } | {name: bandwidth_of(speed, flags[name]) for name, speed in speeds.items()}
    kept = {name: value for name, value in values.items() if value not in (None, ())}
    for name in kept.keys() - set(entry.options):
        takes = ", ".join(flags.get(one, f"--{one}") for one in entry.options) or "no options"
        raise BadInput(f"{study} does not take it", where=flags.get(name, f"--{name}"), remedy=f"it takes {takes}")
    found: Reproduction = getattr(import_module(entry.module), entry.function)(**kept)
    return found
