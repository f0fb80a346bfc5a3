"""A whole training run: days, accelerator-hours, dollars and energy, with failures and checkpoints.

Failures are a Poisson process: one loses the work since the last checkpoint, and a restart may fail again.
The expected time is Daly's complete model (J. T. Daly, "A higher order estimate of the optimum checkpoint
interval for restart dumps", Future Generation Computer Systems 22, 2006), the interval his higher-order
optimum; J. W. Young's first-order one (Communications of the ACM 17(9), 1974) stands beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.model.job import Job
from weft.records import Reader
from weft.units import format_seconds, format_si

if TYPE_CHECKING:
    from weft.estimation.result import Estimate

CHECKPOINT_BYTES_PER_PARAMETER = 14.0
"""Weights in 16 bits, and Adam's state in fp32: master weights and two moments."""
CHECKPOINT_BPS = 1.2e8
"""Bytes/s that each accelerator writes: 2 TB/s sustained over 16,384 GPUs (Llama 3, arXiv 2407.21783,
section 3.3.1)."""
RESTART_S = 600.0
"""Detect a failure, replace the node, start the processes and load the checkpoint; an assumption that agrees
with the effective training time above 90 % of Llama 3 (arXiv 2407.21783, section 3.3.4)."""
PUE = 1.25
"""Power of the data centre over that of the accelerators at their board limit; hosts are not counted."""
MOST_EXPONENT = 50.0
"""Segments of more mean times between failures than this never end."""
LARGEST = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What failures and checkpoints cost.

    ``mtbf_s`` is one accelerator's mean time between failures, ``job_mtbf_s`` that of all of them together.
    A checkpoint of ``checkpoint_bytes`` stops training for ``checkpoint_s`` after every
    ``interval_iterations`` (``interval_s`` of training); ``daly_interval_s`` and ``young_interval_s`` are the
    optima before rounding to whole iterations.  The shares of the expected time add up to one.
    """

    mtbf_s: float
    job_mtbf_s: float
    checkpoint_bytes: float
    checkpoint_s: float
    restart_s: float
    young_interval_s: float
    daly_interval_s: float
    interval_iterations: int
    interval_s: float
    expected_failures: float
    goodput: float
    checkpoint_share: float
    rework_share: float
    restart_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One run over ``tokens``: ``training_s`` without failures, ``expected_s`` with them.

    Hours, dollars and energy cover ``expected_s``; ``usd`` is None without a price.  ``energy_mwh`` is
    that of the accelerators at their board limit, times ``pue``.  ``defaults`` lists what was assumed.
    """

    tokens: float
    iterations: int
    accelerators: int
    training_s: float
    expected_s: float
    accelerator_hours: float
    usd_per_accelerator_hour: float | None
    usd: float | None
    pue: float
    energy_mwh: float
    failures: Failures | None
    defaults: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Every field with JSON types."""
        plain: dict[str, Any] = _READER.plain(self)
        return plain

    @classmethod
    def from_dict(cls, mapping: object, *, where: str) -> TrainingRun:
        """The run that ``to_dict`` wrote.

        Raises:
            BadInput: a field is unknown, missing, of the wrong kind or out of range.
        """
        return _READER.read(cls, mapping, where)

    @property
    def days(self) -> float:
        """Days without failures."""
        return self.training_s / 86400.0

    @property
    def expected_days(self) -> float:
        """Days with failures."""
        return self.expected_s / 86400.0


_READER = Reader(least=0, limits=dict.fromkeys(("iterations", "interval_iterations"), (0, 10**18)))


def training_run(
    estimate: Estimate,
    job: Job,
    cluster: Cluster,
    *,
    tokens: float,
    mtbf_s: float | None = None,
    usd_per_accelerator_hour: float | None = None,
    checkpoint_bytes: float | None = None,
    checkpoint_Bps: float | None = None,
    restart_s: float | None = None,
    pue: float | None = None,
) -> TrainingRun:
    """The run over ``tokens`` at an estimate's iteration time.

    Args:
        estimate: of the job on the cluster.
        tokens: to train on; the last iteration is a whole one.
        mtbf_s: mean time between failures of one accelerator with its share of host and network; None: no
            failures and no checkpoints.
        usd_per_accelerator_hour: price; the accelerator's own where it has one.
        checkpoint_bytes: of one checkpoint; 14 bytes per parameter by default.
        checkpoint_Bps: bytes/s per accelerator; all write equal shares while training waits.
        restart_s: from a failure until training goes on.
        pue: power of the data centre over that of its accelerators.

    Raises:
        BadInput: a value is not positive and finite, or failures come too fast for the run to end.
    """
    defaults = _Defaults()
    count = estimate.layout.world
    iterations = math.ceil(_positive(tokens, "tokens") / job.recipe.tokens)
    training_s = iterations * _positive(estimate.iteration_s, "iteration time")
    overhead = defaults.take(pue, PUE, "pue", f"{PUE:g} (power of the data centre over its accelerators')")
    failures, expected_s = None, training_s
    if mtbf_s is not None:
        size = CHECKPOINT_BYTES_PER_PARAMETER * (job.model.parameters + job.model.prediction_parameters)
        size = defaults.take(
            checkpoint_bytes, size, "checkpoint size", f"{format_si(size, 'B')} (14 bytes per parameter)"
        )
        shown = f"{format_si(CHECKPOINT_BPS, 'B/s')} per accelerator"
        rate = defaults.take(checkpoint_Bps, CHECKPOINT_BPS, "checkpoint bandwidth", shown)
        restart = defaults.take(restart_s, RESTART_S, "restart time", format_seconds(RESTART_S), zero=True)
        job_mtbf = _positive(mtbf_s, "mtbf") / count
        pace = _Pace(job_mtbf, size / (rate * count), restart, iterations, estimate.iteration_s)
        failures, expected_s = pace.failures(mtbf_s, size)
    price = _price(usd_per_accelerator_hour, cluster, defaults)
    hours = count * expected_s / 3600.0
    return TrainingRun(
        tokens=float(tokens),
        iterations=iterations,
        accelerators=count,
        training_s=training_s,
        expected_s=expected_s,
        accelerator_hours=hours,
        usd_per_accelerator_hour=price,
        usd=None if price is None else hours * price,
        pue=overhead,
        energy_mwh=hours * cluster.accelerator.power_w * overhead / 1e6,
        failures=failures,
        defaults=tuple(defaults.taken),
    )


def young_interval(checkpoint_s: float, mtbf_s: float) -> float:
    """First-order optimum of the training time between checkpoints, sqrt(2 delta M)."""
    return math.sqrt(2.0 * checkpoint_s * mtbf_s)


def daly_interval(checkpoint_s: float, mtbf_s: float) -> float:
    """Higher-order optimum: sqrt(2 delta M) (1 + sqrt(r) / 3 + r / 9) - delta with r = delta / 2M, and M from
    delta >= 2M on."""
    ratio = checkpoint_s / (2.0 * mtbf_s)
    if ratio >= 1.0:
        return mtbf_s
    series = 1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0
    return young_interval(checkpoint_s, mtbf_s) * series - checkpoint_s


def expected_seconds(
    training_s: float, interval_s: float, *, checkpoint_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Expected time of a run that checkpoints after every ``interval_s`` of training, its end included.

    M exp(R / M) (exp((tau + delta) / M) - 1) per interval (Daly 2006, the complete model).
    """
    segment = math.expm1((interval_s + checkpoint_s) / mtbf_s)
    return mtbf_s * math.exp(restart_s / mtbf_s) * segment * training_s / interval_s


@dataclass(frozen=True, slots=True)
class _Pace:
    """Failures of a job, its checkpoints, and the iterations between them."""

    mtbf_s: float
    checkpoint_s: float
    restart_s: float
    iterations: int
    iteration_s: float

    def failures(self, accelerator_mtbf_s: float, checkpoint_bytes: float) -> tuple[Failures, float]:
        """Costs at the best whole number of iterations between checkpoints, and the expected time."""
        daly = daly_interval(self.checkpoint_s, self.mtbf_s)
        below = min(max(1, math.floor(daly / self.iteration_s)), self.iterations)
        steps = min((below, min(below + 1, self.iterations)), key=self._expected)
        expected, training = self._expected(steps), self.iterations * self.iteration_s
        interval = steps * self.iteration_s
        goodput = training / expected
        checkpoints = goodput * self.checkpoint_s / interval
        restarts = -math.expm1(-self.restart_s / self.mtbf_s)
        found = Failures(
            mtbf_s=accelerator_mtbf_s,
            job_mtbf_s=self.mtbf_s,
            checkpoint_bytes=checkpoint_bytes,
            checkpoint_s=self.checkpoint_s,
            restart_s=self.restart_s,
            young_interval_s=young_interval(self.checkpoint_s, self.mtbf_s),
            daly_interval_s=daly,
            interval_iterations=steps,
            interval_s=interval,
            expected_failures=expected / self.mtbf_s,
            goodput=goodput,
            checkpoint_share=checkpoints,
            rework_share=max(0.0, 1.0 - goodput - checkpoints - restarts),
            restart_share=restarts,
        )
        return found, expected

    def _expected(self, steps: int) -> float:
        interval = steps * self.iteration_s
        self._check(interval)
        return expected_seconds(
            self.iterations * self.iteration_s,
            interval,
            checkpoint_s=self.checkpoint_s,
            restart_s=self.restart_s,
            mtbf_s=self.mtbf_s,
        )

    def _check(self, interval_s: float) -> None:
        if (interval_s + self.checkpoint_s + self.restart_s) / self.mtbf_s > MOST_EXPONENT:
            raise BadInput(
                f"a failure every {format_seconds(self.mtbf_s)} leaves no time for an iteration"
                f" ({format_seconds(self.iteration_s)}), a checkpoint ({format_seconds(self.checkpoint_s)})"
                f" and a restart ({format_seconds(self.restart_s)})",
                where="mtbf",
                remedy="give the mean time between failures of one accelerator, in hours (like 50000 h)",
            )


class _Defaults:
    """Takes a value or its default, and keeps the list of defaults taken."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def take(self, given: float | None, default: float, name: str, shown: str, *, zero: bool = False) -> float:
        if given is not None:
            return _positive(given, name, zero=zero)
        self.taken.append(f"{name}: {shown}")
        return default


def _price(given: float | None, cluster: Cluster, defaults: _Defaults) -> float | None:
    if given is not None:
        return _positive(given, "price per accelerator-hour", zero=True)
    price = cluster.accelerator.usd_per_hour
    if price <= 0:
        return None
    defaults.taken.append(f"price: ${price:g} per accelerator-hour ({cluster.accelerator.name})")
    return price


def _positive(value: float, name: str, *, zero: bool = False) -> float:
    """The value, where it is finite and above (with ``zero``: not below) zero."""
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        least = "zero or more" if zero else "more than zero"
        raise BadInput(f"{value:g} is not {least} and finite", where=name)
    if value > LARGEST:
        raise BadInput(f"{value:g} is more than {LARGEST:g}", where=name, remedy="check its unit")
    return float(value)
