"""Jobs, their periods and collectives, recognised in measured flows.

Training repeats: a pair of accelerators sends the same bytes in every iteration.  Records of flows, as switches, NICs
or logs count them, tell which accelerators form a job, its period, and what it sends in one.  Every source may have
its own clock (offsets up to ``IN_PHASE`` of a period), records may be lost, and background may be mixed in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.codec import Document
from weft.fabric.checks import components
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.traffic import spans
from weft.routing.problem import sharing_ports
from weft.routing.traffic import JobTraffic, job_traffic, merged

STRONG, FAINT = 0.1, 1e-4
"""Pairs with these shares of the bytes of the busiest pair at their ends: surely of a job, or surely background."""
SURE = 0.9
"""Share of the bytes of a pair that flows of equal size must have, if it is not to count as one flow."""
ALONE = 0.01
"""Flows without a period are a job from this share of the bytes of the busiest pair on."""
REPEATS, LIKE = 0.5, 0.35
"""Least share of records that come again a period later, and least correlation of a job with itself then."""
ALIKE = 0.75
"""Of two lags, the shorter is the period from this share of the correlation of the longer on."""
IN_PHASE = 0.025
JITTER = 0.1
"""Shares of a period within which two times are the same: of groups on average, and of two records."""
SAME_SIZE, SAME_RECORD = 1.02, 1.05
"""Ratios between sizes that count as equal: of flows, and of the records of a pair."""
LEVELS = (128, 512, 4096)
"""Bins of time in which a period is searched, coarse to fine."""
TURN = 60
"""Parts of a period by which phases are compared."""
FITS = 16
"""Bins that fit in a period, where there are such fine ones."""
PAIRS, RECORDS, PERIODS = 4, (512, 8192), 64
"""Pairs of a group and records of a pair that the search looks at, and periods that phases and counts look at."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowRecords:
    """Measured flows: bytes from one accelerator to another, begin and end by the clock of the source."""

    source: Ints
    target: Ints
    bytes: Floats
    start_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognisedJob:
    """A job in measured flows.

    Attributes:
        accelerators: all that send or receive, in order.
        period_s: of an iteration; None where nothing repeats or no times are known.
        spread: typical deviation of an iteration from the period, as a share of it.
        bytes: sent by all in a period; without one, altogether.
        collectives: patterns and their number, as ``{"ring of 4": 48}``.
        confidence: the share of the job's bytes that these explain, times how alike one period is to the next.
    """

    job: str
    accelerators: tuple[int, ...]
    period_s: float | None
    spread: float | None
    bytes: float
    collectives: dict[str, int]
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredDemand(Document):
    """Traffic from measurements: its jobs, the share of bytes that is of none, and what was assumed.

    ``records`` are counted in ``unit``; ``sure`` says what the confidence of jobs is.
    """

    DOCUMENT = "records jobs background assumptions"

    traffic: JobTraffic
    jobs: tuple[RecognisedJob, ...]
    records: int
    background: float = 0.0
    assumptions: tuple[str, ...] = ()
    unit: str = "record"
    sure: str = "share of bytes that repeat, times likeness of periods"


class _Seen(NamedTuple):
    """Records in the order of their pairs and times, and the pairs."""

    pair: Ints
    bytes: Floats
    start: Floats
    end: Floats
    source: Ints
    target: Ints
    total: Floats

    def of(self, pairs: Ints) -> Ints:
        """The records of some pairs."""
        first = np.searchsorted(self.pair, pairs)
        return spans(first, np.searchsorted(self.pair, pairs, side="right") - first)


class _Rhythm(NamedTuple):
    """Period and its spread in seconds (nan: none), and how alike periods are."""

    period: float
    spread: float
    score: float


_NONE = _Rhythm(np.nan, np.nan, 0.0)


def recognised(records: FlowRecords, fabric: Fabric) -> MeasuredDemand:
    """The jobs in measured flows, and their traffic; none where nothing but background was sent."""
    none = np.zeros(0, dtype=np.int64)
    empty = job_traffic(none, none, np.zeros(0), jobs=())
    nothing = MeasuredDemand(traffic=empty, jobs=(), records=len(records), background=1.0)
    seen = _seen(records, fabric.accelerators)
    if not len(seen.bytes):
        return nothing
    # Step 1: busy pairs join accelerators to groups, and each group has a rhythm.
    # Step 2: other pairs join groups too, where they repeat with the period of both ends.
    group, rhythms = _groups(seen, fabric.accelerators)
    # Step 3: groups that always send at the same time are one job.
    job_of_group = _in_step(seen, fabric, group, rhythms)
    inner = (group[seen.source] >= 0) & (group[seen.source] == group[seen.target])
    job_of_pair = np.where(inner, job_of_group[group[seen.source]], -1)
    # Step 4: in each job, what a pair sends in most periods is a flow; flows of equal size form collectives.
    flows, jobs = [], []
    for number in range(int(job_of_group.max(initial=-1)) + 1):
        pairs = np.flatnonzero(job_of_pair == number)
        of_job = [rhythms[k] for k in np.flatnonzero(job_of_group == number)]
        rhythm = _Rhythm(*(float(np.median(column)) for column in zip(*of_job, strict=True)))
        part, job = _job(seen, fabric, pairs, rhythm, f"measured {number}")
        flows.append(part)
        jobs.append(job)
    if not jobs:
        return nothing
    inside = float(seen.total[job_of_pair >= 0].sum() / seen.total.sum())
    return MeasuredDemand(
        traffic=sharing_ports(fabric, merged(flows)), jobs=tuple(jobs), records=len(records), background=1.0 - inside
    )


def _seen(records: FlowRecords, accelerators: int) -> _Seen:
    use = np.flatnonzero((records.bytes > 0) & (records.source != records.target))
    key, pair = np.unique(records.source[use] * accelerators + records.target[use], return_inverse=True)
    order = np.lexsort((records.start_s[use], pair))
    pair, use = pair[order], use[order]
    start, size = records.start_s[use] - records.start_s[use].min(initial=np.inf), records.bytes[use]
    end = np.maximum(start, start + records.end_s[use] - records.start_s[use])
    source, target = key // accelerators, key % accelerators
    return _Seen(pair, size, start, end, source, target, np.bincount(pair, size).astype(np.float64))


def _groups(seen: _Seen, accelerators: int) -> tuple[Ints, list[_Rhythm]]:
    """Of every accelerator its group (-1: none), and the rhythm of each group."""
    busiest = np.zeros(accelerators)
    for ends in (seen.source, seen.target):
        np.maximum.at(busiest, ends, seen.total)
    share = seen.total / np.maximum(busiest[seen.source], busiest[seen.target])
    strong = share >= STRONG
    label = components(accelerators, seen.source[strong], seen.target[strong])
    at = np.where(strong, label[seen.source], -1)
    members = [np.flatnonzero(at == first) for first in np.unique(at[strong]).tolist()]
    rhythms = _shortest(seen, members, [_rhythm(seen, pairs) for pairs in members])
    group = np.full(accelerators, -1)
    for number, (pairs, rhythm) in enumerate(zip(members, rhythms, strict=True)):
        if rhythm.score > 0 or seen.total[pairs].max() >= ALONE * busiest.max():
            group[label == label[seen.source[pairs[0]]]] = number
    # A weak pair that repeats joins the groups of its ends, whose periods must be equal; a free end joins too.
    period = np.array([*(rhythm.period for rhythm in rhythms), np.nan])
    weak = np.flatnonzero(~strong & (share >= FAINT))
    ends = np.stack([period[group[seen.source[weak]]], period[group[seen.target[weak]]]])
    known = np.fmax(*ends)
    weak, known = (column[np.nan_to_num(np.ptp(ends, axis=0) / known) <= IN_PHASE] for column in (weak, known))
    of = np.full(len(seen.source), np.nan)
    of[weak] = known
    rows = seen.of(weak)
    again = ~np.isnan(_next(seen, rows, of[seen.pair[rows]])) | ~np.isnan(_next(seen, rows, -of[seen.pair[rows]]))
    counts = np.bincount(seen.pair[rows], minlength=len(of))
    joins = np.flatnonzero((np.bincount(seen.pair[rows], again, len(of)) >= REPEATS * counts) & (counts >= 3))
    linked = np.concatenate([np.flatnonzero(strong), joins])
    label = components(accelerators, seen.source[linked], seen.target[linked])
    # Groups get new numbers: each has the rhythm of its first part.
    found: dict[int, int] = {}
    result, kept = np.full(accelerators, -1), list[_Rhythm]()
    for accelerator in np.flatnonzero(group >= 0).tolist():
        if label[accelerator] not in found:
            found[int(label[accelerator])] = len(kept)
            kept.append(rhythms[group[accelerator]])
    for first, number in found.items():
        result[label == first] = number
    return result, kept


def _shortest(seen: _Seen, members: list[Ints], rhythms: list[_Rhythm]) -> list[_Rhythm]:
    """The same rhythms, where a group whose records repeat with the period of another group takes that, if its own is
    a multiple or unknown: lost records can hide a period, not make one."""
    known: list[_Rhythm] = []
    for rhythm in sorted(rhythm for rhythm in rhythms if rhythm.score > 0):
        if not known or rhythm.period > known[-1].period * (1 + IN_PHASE):
            known.append(rhythm)
    result = []
    for pairs, own in zip(members, rhythms, strict=True):
        for other in known:
            times = own.period / other.period
            if own.score and (times < 1.5 or abs(times / round(times) - 1) > IN_PHASE):
                continue
            taken = _exact(seen, seen.of(pairs), other.period, other.score, least=ALIKE)
            if taken.score > 0:
                own = taken
                break
        result.append(own)
    return result


def _next(seen: _Seen, rows: Ints, lag: Floats | float, times: int = 1) -> Floats:
    """How long after each of all records of some pairs (before it: negative) the pair sends again, if that is nearly
    ``lag``, which is ``times`` periods; else nan."""
    # Times of all pairs stand on one line, too far apart to be mistaken for each other.
    line = seen.pair[rows] * (4 * float(seen.end.max()) + 1.0) + seen.start[rows]
    aim = line + np.nan_to_num(lag)
    after = np.minimum(np.searchsorted(line, aim), len(line) - 1)
    before = np.maximum(after - 1, 0)
    near = line[np.where(np.abs(line[after] - aim) < np.abs(line[before] - aim), after, before)]
    return np.where(np.abs(near - aim) <= JITTER / times * np.abs(lag), near - line, np.nan)


def _rhythm(seen: _Seen, pairs: Ints) -> _Rhythm:
    """The period of some pairs, from how alike their traffic is to itself some time later.

    Each pair is compared with itself only, so that clocks of sources need not agree.
    """
    busy = pairs[np.argsort(-seen.total[pairs], kind="stable")]
    sample = np.sort(busy[np.unique(np.linspace(0, len(busy) - 1, PAIRS).astype(np.int64))])
    rows = seen.of(sample)
    counts = np.bincount(np.searchsorted(sample, seen.pair[rows]))
    first = seen.start[rows].min()
    length = seen.end[rows].max() - first
    if counts.max() < 3 or length <= 0:
        return _NONE
    # Few records first: their bins are fine for any period.  More where one iteration has hundreds.
    for most in RECORDS:
        share = min(1.0, most / float(np.median(counts)))
        if (lag_s := _lag(seen, sample, first, length * share)) is not None:
            rhythm = _exact(seen, rows, *lag_s)
            if rhythm.score > 0:
                return rhythm
        if share == 1.0:
            break
    return _NONE


def _lag(seen: _Seen, sample: Ints, first: float, length: float) -> tuple[float, float] | None:
    """About the period of pairs in some time, and how alike they are to themselves that much later."""
    fine = _rates(seen, sample, first, length / LEVELS[-1])
    curves = [_likeness(fine.reshape(len(sample), bins, -1).sum(axis=2)) for bins in LEVELS]
    # The coarsest bins that show the period: rounds within an iteration are too short for them.
    peaks = [_first_peak(curve) for curve in curves]
    heights = [height for _, height in peaks]
    best = max(heights)
    if best < LIKE:
        return None
    fitting = [k for k, (at, height) in enumerate(peaks) if at >= FITS and height >= ALIKE * best]
    level = fitting[0] if fitting else heights.index(best)
    zoom = LEVELS[-1] // LEVELS[level]
    low = max(peaks[level][0] * zoom - zoom, 1)
    lag = float(low + np.argmax(curves[-1][low : low + 2 * zoom + 1]))
    # A period shorter than these bins shows at a multiple of it; unlike a part of a burst, half of it is less alike.
    for parts in range(8, 1, -1):
        height = _height(curves, lag / parts)
        if lag / parts >= 2 and height >= max(ALIKE * _height(curves, lag), _height(curves, lag / parts / 2)):
            lag /= parts
            break
    return lag * length / LEVELS[-1], min(best, 1.0)


def _exact(seen: _Seen, rows: Ints, lag_s: float, score: float, *, least: float = REPEATS) -> _Rhythm:
    """The period near a lag, from what follows each record that much later; none where too little does."""
    later = _next(seen, rows, lag_s)
    alike = ~np.isnan(later) | ~np.isnan(_next(seen, rows, -lag_s))
    if np.isnan(later).all() or alike.mean() < least:
        return _NONE
    period = float(np.nanmedian(later))
    # Several periods later the same error counts less: of other rounds that were taken for the same, and of jitter.
    length = float(np.ptp(seen.start[rows]))
    for times in (2, 4, 8, 16, 32):
        far = _next(seen, rows, times * period, times)
        if times * period > 0.7 * length or np.isnan(far).all():
            break
        period = float(np.nanmedian(far)) / times
    return _Rhythm(period, 1.4826 * float(np.nanmedian(np.abs(later - period))), score)


def _rates(seen: _Seen, pairs: Ints, first: float, bin_s: float) -> Floats:
    """Bytes of each pair in each of the finest bins from ``first`` on; a record's bytes flow evenly."""
    rows, bins = seen.of(pairs), LEVELS[-1]
    row = np.searchsorted(pairs, seen.pair[rows])
    begin = (seen.start[rows] - first) / bin_s
    end = np.maximum((seen.end[rows] - first) / bin_s, begin + 1.0)
    rate = seen.bytes[rows] / (end - begin)

    def ramps(at: Floats) -> Floats:
        """The sum of lines that rise by ``rate`` from ``at`` on, at all edges of bins."""
        edge = row * (bins + 2) + np.clip(np.ceil(at), 0, bins + 1).astype(np.int64)
        steps = [np.bincount(edge, weight, len(pairs) * (bins + 2)) for weight in (rate, rate * at)]
        slope, shift = (step.reshape(len(pairs), -1).cumsum(axis=1)[:, :-1] for step in steps)
        return np.asarray(slope * np.arange(bins + 1) - shift)

    sent: Floats = np.diff(ramps(begin) - ramps(end), axis=1)
    return sent


def _likeness(rates: Floats) -> Floats:
    """Mean correlation of rows with themselves, by how many bins later; at least two and a half periods fit."""
    bins = rates.shape[1]
    # Three bins wide, so that little is lost between bins; roots, so that one record more or less weighs less than
    # whether anything was sent.
    wide = np.pad(rates, ((0, 0), (1, 1)))
    centred = np.sqrt(np.maximum(wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:], 0.0))
    centred -= centred.mean(axis=1, keepdims=True)
    energy = np.maximum((centred**2).sum(axis=1, keepdims=True), 1e-300)
    spectrum = (np.abs(np.fft.rfft(centred, 2 * bins)) ** 2 / energy).mean(axis=0)
    lags = np.arange(2 * bins // 5)
    return np.asarray(np.fft.irfft(spectrum)[: len(lags)] * bins / (bins - lags))


def _first_peak(curve: Floats) -> tuple[int, float]:
    """The first lag, after the likeness has fallen once, at which it is nearly as high as it gets, and its height."""
    fallen = int(np.argmax(curve < 0.1)) or len(curve)
    rest = curve[fallen:]
    if not len(rest):
        return 0, 0.0
    high = np.append(rest >= ALIKE * rest.max(), False)
    begin = int(np.argmax(high))
    end = begin + int(np.argmin(high[begin:]))
    return fallen + begin + int(np.argmax(rest[begin:end])), float(rest.max())


def _height(curves: list[Floats], lag: float) -> float:
    """The likeness at a lag in finest bins, in the coarsest bins of which enough fit in it."""
    for bins, curve in zip(LEVELS, curves, strict=True):
        at = round(lag * bins / LEVELS[-1])
        if at >= FITS or bins == LEVELS[-1]:
            return float(curve[max(at - 1, 1) : at + 2].max(initial=0.0))
    raise AssertionError


def _in_step(seen: _Seen, fabric: Fabric, group: Ints, rhythms: list[_Rhythm]) -> Ints:
    """The job of every group: groups of one period and phase, or of one period and host, belong together."""
    period = np.array([rhythm.period for rhythm in rhythms])
    of = np.where(group[seen.source] == group[seen.target], group[seen.source], -1)[seen.pair]
    job = np.full(len(rhythms), -1)
    first, last = np.full(len(rhythms), np.inf), np.zeros(len(rhythms))
    np.minimum.at(first, of[of >= 0], seen.start[of >= 0])
    np.maximum.at(last, of[of >= 0], seen.start[of >= 0])
    weight = np.bincount(of[of >= 0], seen.bytes[of >= 0], len(rhythms))
    for leader in np.argsort(-weight, kind="stable").tolist():
        if job[leader] >= 0:
            continue
        job[leader] = job.max() + 1
        near = np.abs(period / period[leader] - 1)
        others = (job < 0) & (near <= IN_PHASE)
        if not others.any():
            continue
        # When in the leader's period each group begins to send: behind the longest part in which it is quiet.
        begin = seen.start[of == leader].min()
        rows = np.flatnonzero((of >= 0) & (seen.start >= begin) & (seen.start < begin + PERIODS * period[leader]))
        turn = (seen.start[rows] - begin) / period[leader]
        bins = of[rows] * TURN + (turn * TURN).astype(np.int64) % TURN
        sent = np.bincount(bins, seen.bytes[rows], len(rhythms) * TURN).astype(np.float64).reshape(-1, TURN)
        onset = np.array([_onset(row) for row in sent])
        apart = np.abs(onset - onset[leader])
        seen_s = np.minimum(last - first, PERIODS * period[leader])
        together = np.minimum(apart, TURN - apart) <= 1
        together &= near * seen_s / period[leader] <= 2 * IN_PHASE
        members = np.flatnonzero(group >= 0)
        hosts = np.unique(fabric.domain[group == leader])
        beside = np.isin(np.arange(len(rhythms)), group[members[np.isin(fabric.domain[members], hosts)]])
        job[others & (together | (beside & (near <= 0.1 * IN_PHASE)))] = job[leader]
    # Jobs are numbered by their first accelerators.
    first = np.unique(job[group[group >= 0]], return_index=True)[1]
    number: Ints = np.argsort(np.argsort(first))[job]
    return number


def _onset(sent: Floats) -> int:
    """The part of a turn behind the longest run of quiet parts, all round."""
    loud = np.flatnonzero(sent > 0.05 * sent.max(initial=0.0))
    if not len(loud):
        return 0
    gaps = np.diff(loud, append=loud[0] + len(sent))
    return int(loud[(int(np.argmax(gaps)) + 1) % len(loud)])


class _Flows(NamedTuple):
    """What pairs send in every period: ``rounds`` times ``size`` bytes."""

    source: Ints
    target: Ints
    size: Floats
    rounds: Ints


def _job(seen: _Seen, fabric: Fabric, pairs: Ints, rhythm: _Rhythm, name: str) -> tuple[JobTraffic, RecognisedJob]:
    rows = seen.of(pairs)
    total = float(seen.bytes[rows].sum())
    begin, explained, pause = float(seen.start[rows].min()), 0.0, 0.0
    flows = _Flows(seen.source[pairs], seen.target[pairs], seen.total[pairs], np.ones(len(pairs), dtype=np.int64))
    if rhythm.score > 0:
        rows = rows[seen.start[rows] < begin + PERIODS * rhythm.period]
        repeating, explained, busy = _repeating(seen, rows, rhythm.period)
        if len(repeating.size):
            flows, pause = repeating, max(rhythm.period - busy, 0.0)
    names, group, size, rounds, ends = _collectives(flows, fabric)
    traffic = job_traffic(
        *ends,
        size,
        collective=group,
        rounds=rounds,
        names=names,
        jobs=(name,),
        start_s=np.array([begin]),
        pause_s=np.array([pause]),
    )
    members = np.unique(np.concatenate([seen.source[pairs], seen.target[pairs]]))
    repeats = rhythm.score > 0
    return traffic, RecognisedJob(
        job=name,
        accelerators=tuple(members.tolist()),
        period_s=rhythm.period if repeats else None,
        spread=rhythm.spread / rhythm.period if repeats else None,
        bytes=float((flows.size * flows.rounds).sum()) if repeats else total,
        collectives=dict(Counter(name.partition(" #")[0] for name in names)),
        confidence=explained * rhythm.score,
    )


def _repeating(seen: _Seen, rows: Ints, period: float) -> tuple[_Flows, float, float]:
    """Flows that occur in most periods, the share of bytes that they explain, and how long a pair sends at most."""
    # Step 1: the records of a pair with nearly the same size are of one kind.
    rows = rows[np.lexsort((seen.bytes[rows], seen.pair[rows]))]
    pair, size = seen.pair[rows], seen.bytes[rows]
    starts = np.concatenate([[True], (pair[1:] != pair[:-1]) | (size[1:] > SAME_RECORD * size[:-1])])
    kind, first = np.cumsum(starts) - 1, np.flatnonzero(starts)
    count = np.bincount(kind)
    # Step 2: in which period each record is; periods of a kind are cut opposite to where most of it is sent.
    turns = seen.start[rows] / period
    angle = [np.bincount(kind, part(2 * np.pi * turns)) for part in (np.sin, np.cos)]
    number = np.floor(turns - (np.arctan2(*angle) / (2 * np.pi))[kind] + 0.5).astype(np.int64)
    number -= number.min()
    periods = int(number.max()) + 1
    # Step 3: kinds that occur in most periods, how often; the first and last may be cut off.
    own = slice(1, -1) if periods > 8 else slice(None)
    alike = size[first + count - 1] <= SAME_RECORD**2 * size[first]
    often = np.flatnonzero(alike & (count >= REPEATS * max(periods - 2, 1)))
    at = np.full(len(count), -1)
    at[often] = np.arange(len(often))
    listed = at[kind] >= 0
    table = np.bincount(at[kind[listed]] * periods + number[listed], minlength=len(often) * periods)
    counts = np.sort(table.reshape(-1, periods)[:, own], axis=1)
    # Lost records only take away: seven of ten periods have at most this many.
    rounds, usual = counts[:, 7 * counts.shape[1] // 10], counts[:, counts.shape[1] // 2]
    often, rounds = often[usual >= 1], rounds[usual >= 1]
    flows = [pair[first[often]], size[first[often] + count[often] // 2], rounds]
    # Step 4: a pair whose sizes change all the time, as counters see it, is one flow with its mean bytes.
    carried = np.bincount(pair, np.where(np.isin(kind, often), size, 0.0))
    sent = np.bincount(pair, size)
    vague = np.flatnonzero((carried < SURE * sent) & (np.bincount(pair) >= REPEATS * periods))
    sure = ~np.isin(flows[0], vague)
    ends = np.concatenate([flows[0][sure], vague])
    carried[vague] = sent[vague]
    lasts = np.bincount(kind, np.maximum(seen.end[rows] - seen.start[rows], 0.0)) / count
    busy = np.bincount(pair[first[often]], lasts[often] * rounds) if len(often) else np.zeros(1)
    result = _Flows(
        seen.source[ends],
        seen.target[ends],
        np.concatenate([flows[1][sure], sent[vague] / periods]),
        np.concatenate([flows[2][sure], np.ones(len(vague), dtype=np.int64)]),
    )
    return result, float(carried.sum() / sent.sum()), float(busy.max(initial=0.0))


def _collectives(flows: _Flows, fabric: Fabric) -> tuple[list[str], Ints, Floats, Ints, tuple[Ints, Ints]]:
    """Names of collectives; of every flow its collective and bytes; rounds of collectives; ends of flows."""
    order = np.argsort(flows.size, kind="stable")
    flows = _Flows(flows.source[order], flows.target[order], flows.size[order], flows.rounds[order])
    similar = np.cumsum(np.concatenate([[False], flows.size[1:] > SAME_SIZE * flows.size[:-1]]))
    typical = [np.median(part) for part in np.split(flows.size, np.flatnonzero(np.diff(similar)) + 1)]
    parts: dict[bytes, tuple[str, Ints, Floats, int]] = {}
    left = np.arange(len(order))
    # First between accelerators; what has no pattern there may have one between hosts, whose inner links are not seen.
    for node, what in ((np.arange(fabric.accelerators), ""), (fabric.domain, " hosts")):
        ends = [similar[left] * len(node) + node[end[left]] for end in (flows.source, flows.target)]
        nodes, place = np.unique(np.concatenate(ends), return_inverse=True)
        label = components(len(nodes), *np.split(place, 2))[place[: len(left)]]
        rest = []
        for first in np.unique(label).tolist():
            mine = left[label == first]
            pattern = _pattern(node[flows.source[mine]], node[flows.target[mine]])
            if not what and pattern.startswith(("mixed", "one-way of 2")):
                rest.append(mine)
                continue
            # Flows of a pattern are equal, to those of like patterns too, so that noise of counters does not make
            # routes harder to find; those of several sizes between the same ends are one collective.
            size, rounds = flows.size[mine], flows.rounds[mine]
            if not pattern.startswith("mixed"):
                size = np.full(len(mine), typical[similar[mine[0]]])
                rounds = np.full(len(mine), np.median(rounds))
            times = max(int(np.median(rounds)), 1)
            pair, place, at = np.unique(
                flows.source[mine] * fabric.accelerators + flows.target[mine], return_index=True, return_inverse=True
            )
            mine, sent, key = mine[place], np.bincount(at, size * rounds) / times, pair.tobytes()
            if key in parts:
                _, mine, before, least = parts[key]
                times, sent = min(times, least), (before * least + sent * times) / min(times, least)
            parts[key] = (pattern + what, mine, sent, times)
        left = np.concatenate(rest) if rest else left[:0]
        if not len(left):
            break
    chosen = np.concatenate([mine for _, mine, _, _ in parts.values()])
    # Names tell collectives apart, also those between the same ends.
    seen, names = Counter[str](), list[str]()
    for name, _, _, _ in parts.values():
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return (
        names,
        np.repeat(np.arange(len(parts)), [len(mine) for _, mine, _, _ in parts.values()]),
        np.concatenate([sent for _, _, sent, _ in parts.values()]),
        np.array([times for _, _, _, times in parts.values()], dtype=np.int64),
        (flows.source[chosen], flows.target[chosen]),
    )


def _pattern(source: Ints, target: Ints) -> str:
    """The pattern of connected flows between nodes."""
    apart = source != target
    nodes, ends = np.unique(np.stack([source[apart], target[apart]]), return_inverse=True)
    count = len(nodes)
    pairs = np.unique(ends.reshape(2, -1), axis=1)
    edges = np.unique(np.sort(pairs, axis=0), axis=1)
    degree = np.bincount(edges.ravel(), minlength=count)
    sends, receives = (np.bincount(end, minlength=count) for end in pairs)
    if count > 2 and pairs.shape[1] == count * (count - 1):
        kind = "all-to-all"
    elif np.array_equal(sends, receives) and (count == 2 or (edges.shape[1] == count and degree.max() == 2)):
        kind = "ring"
    elif edges.shape[1] == count - 1:
        kind = "one-way" if count == 2 else "pipeline" if degree.max() <= 2 else "tree"
    else:
        kind = "mixed"
    return f"{kind} of {count}"
