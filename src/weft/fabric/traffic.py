"""What crosses a fabric: flows in phases that wait for each other, and the links that each flow takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.fabric.spec import Fabric, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """Steps of collectives and computations.

    Phase ``p`` begins ``delay_s[p]`` after all phases in ``waits[indptr[p]:indptr[p+1]]`` have ended, and not
    before ``start_s[p]``; it ends when its last flow has (at once, without flows: a computation is a phase
    with a delay). ``label`` is an index into ``labels``, ``job`` numbers the job.
    """

    delay_s: Floats
    start_s: Floats
    indptr: Ints
    waits: Ints
    label: Ints
    labels: tuple[str, ...]
    job: Ints

    def __len__(self) -> int:
        return len(self.delay_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Flows from accelerator ``source`` to ``target`` of ``bytes``, each part of a ``phase``.

    ``weight`` scales a flow's share of a link; ``cap_Bps`` bounds its rate (inf: unbounded).
    """

    source: Ints
    target: Ints
    bytes: Floats
    phase: Ints
    weight: Floats
    cap_Bps: Floats
    phases: Phases

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routes:
    """Links of each flow in CSR form: flow ``f`` takes ``links[indptr[f]:indptr[f+1]]``.

    ``usage`` is the share of the flow's rate that crosses the link: 1 on a single path, less where it is
    split over several.  ``latency_s`` is the path's latency (the mean over split paths).
    """

    indptr: Ints
    links: Ints
    usage: Floats
    latency_s: Floats

    def __len__(self) -> int:
        return len(self.latency_s)

    def of(self, flows: Ints) -> Routes:
        """The routes of some flows, in the order given; a flow may be named several times."""
        lengths = np.diff(self.indptr)[flows]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        entries = np.arange(indptr[-1]) + np.repeat(self.indptr[flows] - indptr[:-1], lengths)
        return Routes(
            indptr=indptr, links=self.links[entries], usage=self.usage[entries], latency_s=self.latency_s[flows]
        )

    def without_latency(self) -> Routes:
        """The same links, at once."""
        return replace(self, latency_s=np.zeros_like(self.latency_s))


def joined(parts: Sequence[Routes]) -> Routes:
    """The routes of the flows of all parts, one part behind the other."""
    lengths = [np.diff(part.indptr) for part in parts]
    none = np.zeros(0)
    return Routes(
        indptr=np.cumsum(np.concatenate([[0], *lengths])).astype(np.int64),
        links=np.concatenate([none, *(part.links for part in parts)]).astype(np.int64),
        usage=np.concatenate([none, *(part.usage for part in parts)]),
        latency_s=np.concatenate([none, *(part.latency_s for part in parts)]),
    )


def merged(routes: Routes, flow: Ints, bytes_: Floats, count: int) -> Routes:
    """One route a flow from those of its parts, by their shares of its bytes."""
    order = np.argsort(flow, kind="stable")
    share = bytes_ / np.bincount(flow, bytes_, count)[flow]
    parts = routes.of(order)
    if count == len(flow):
        return parts
    lengths = np.diff(parts.indptr)
    links = int(parts.links.max(initial=-1)) + 1
    entry = np.repeat(flow[order], lengths) * links + parts.links
    kept, at = np.unique(entry, return_inverse=True)
    return Routes(
        indptr=np.searchsorted(kept, np.arange(count + 1) * links).astype(np.int64),
        links=kept % links,
        usage=np.bincount(at, parts.usage * np.repeat(share[order], lengths)).astype(np.float64),
        latency_s=np.bincount(flow, share * routes.latency_s, count).astype(np.float64),
    )


def phases(
    delay_s: Floats, indptr: Ints, waits: Ints, *, start_s: Floats | None = None, job: Ints | None = None
) -> Phases:
    """Phases of one label, from the beginning and of one job by default."""
    count = len(delay_s)
    return Phases(
        delay_s=delay_s,
        start_s=np.zeros(count) if start_s is None else start_s,
        indptr=indptr.astype(np.int64),
        waits=waits.astype(np.int64),
        label=np.zeros(count, dtype=np.int64),
        labels=("flows",),
        job=np.zeros(count, dtype=np.int64) if job is None else job,
    )


def uncapped(
    of: Phases, phase: Ints, bytes_: Floats, *, weight: float = 1.0, ends: tuple[Ints, Ints] | None = None
) -> Traffic:
    """Flows of one weight without a cap; without ``ends`` nobody is told who talks to whom."""
    none = np.zeros(len(phase), dtype=np.int64)
    source, target = (none, none) if ends is None else ends
    return Traffic(
        source=source,
        target=target,
        bytes=bytes_,
        phase=phase,
        weight=np.full(len(phase), weight),
        cap_Bps=np.full(len(phase), np.inf),
        phases=of,
    )


def at_once(source: Ints, target: Ints, bytes_: Floats) -> Traffic:
    """Flows that all start at time 0, in one phase."""
    none = np.zeros(0, dtype=np.int64)
    once = phases(np.zeros(1), np.zeros(2, dtype=np.int64), none)
    return uncapped(once, np.zeros(len(source), dtype=np.int64), bytes_, ends=(source, target))


def single_paths(fabric: Fabric, links: Ints) -> Routes:
    """Routes of one path each: a row of links in order, -1 where there is none."""
    on_path = links >= 0
    return whole_paths(fabric, on_path.sum(axis=1), links[on_path])


def whole_paths(fabric: Fabric, lengths: Ints, links: Ints) -> Routes:
    """Routes of one path each, from how many links each has and the links of all, in order."""
    flow = np.repeat(np.arange(len(lengths)), lengths)
    latency = np.bincount(flow, fabric.latency_s[links], len(lengths)).astype(np.float64)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Routes(indptr=indptr, links=links, usage=np.ones(len(links)), latency_s=latency)


def spans(begin: Ints, count: Ints) -> Ints:
    """The numbers ``begin[i] .. begin[i] + count[i] - 1`` of every i, one span after the other."""
    ends: Ints = np.cumsum(count)
    offset: Ints = np.repeat(begin - (ends - count), count)
    return np.arange(len(offset), dtype=np.int64) + offset
