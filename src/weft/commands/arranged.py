"""A job of an arrangement as verbs take it: where it runs and when it begins, and the files that start it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.arrangement.bundle import Bundle
    from weft.runtime.run.arranged import JobStart

TUNER = "nccl_tuner.csv"
TUNER_KEY = "NCCL_TUNER_CONFIG_FILE"


def start_of(bundle: Bundle, number: int, start_at: str | float | None) -> JobStart:
    """What the ranks of a job need to know of the arrangement.

    Raises:
        BadInput: ``start_at`` is no time.
        MissingExtra: PyTorch is not there.
    """
    from weft.runtime.run.arranged import JobStart
    from weft.units import parse_moment

    return JobStart(
        arrangement=bundle.where,
        job=bundle.site.jobs[number].name,
        hosts=bundle.host_names(number),
        site_hosts=frozenset(bundle.site.host_names),
        traffic_class=bundle.classes()[number],
        offset_s=bundle.choice.offset_s[number],
        period_s=bundle.promised_s[number],
        start_at_s=None if start_at is None else parse_moment(start_at, "--start-at"),
        settings=bundle.settings(number),
        routes=bundle.paths(number),
    )


def write_files(bundle: Bundle, number: int, folder: str) -> tuple[str, ...]:
    """Host lists, settings, tuner file and schedules of a job as a folder of these alone; returns the paths.

    ``nccl.env`` names the tuner file where there is one, so NCCL finds it.  ``msccl.env`` is for MSCCL's own NCCL, and
    there where a schedule is better than all of NCCL's algorithms.

    Raises:
        BadInput: the folder cannot be written, or holds other files.
    """
    from weft.arrangement.bundle import host_lists
    from weft.arrangement.collectives import SPAN, msccl_text
    from weft.files import write_folder

    place = Path(folder).absolute()
    lists, settings = host_lists(bundle.host_names(number)), bundle.environments[number]
    texts = {"hostfile": lists["hostfile"], "slurm_hostfile": lists["SLURM_HOSTFILE"]}
    if bundle.tuners[number]:
        texts[TUNER] = bundle.tuners[number]
        settings += (
            f"# For NCCL's example tuner plugin (NCCL_TUNER_PLUGIN names its library).\n{TUNER_KEY}={place / TUNER}\n"
        )
    texts["nccl.env"] = settings
    schedules: dict[str, str] = {}
    taken: list[tuple[str, int, float]] = []
    for one in bundle.schedules(number).collectives:
        near = [size for kind, ranks, size in taken if (kind, ranks) == (one.kind, one.ranks)]
        if any(size / SPAN <= one.bytes <= size * SPAN for size in near):
            continue  # the executor takes the first that fits
        text = msccl_text(one)
        if text is not None:
            schedules[f"msccl-{one.kind}-{'-'.join(one.axes)}-{round(one.bytes)}.xml"] = text
            taken.append((one.kind, one.ranks, one.bytes))
    if schedules:
        paths = ":".join(str(place / name) for name in schedules)
        texts["msccl.env"] = f"{bundle.environments[number]}NCCL_ALGO=MSCCL,RING,TREE\nMSCCL_XML_FILES={paths}\n"
    write_folder(folder, {name: text.encode() for name, text in (texts | schedules).items()})
    return tuple(str(place / name) for name in (*texts, *schedules))
