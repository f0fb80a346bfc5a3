"""The closed form of "rail-only networks", version 1 (arXiv 2307.12169v1): data and model parallelism.

N accelerators in scale-up domains of K; model-parallel groups of NM inside a domain, NDs = K / NM replicas in
the domain and NDf = N / K domains.  No pipeline, no overlap, bandwidth terms only.

Reconstructed, since the paper does not print them: the peak of 989e12 FLOP/s, 4 bytes per value for weights
and activations, 6 FLOPs per parameter and token, the parameter counts, and NM rounded to a power of two.
They were found by fitting the paper's figures.  Every field may be an array, broadcast as NumPy does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.errors import BadInput

Value = float | NDArray[np.float64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseJob:
    """A dense model and its batch.

    ``collectives_per_block`` is Mcc: model-parallel all-reduces of a block, counted as reduce-scatters and
    all-gathers (8 for GPT-3 and OPT, 12 for PaLM).  ``bytes_per_value`` is reconstructed.
    """

    parameters: Value
    layers: Value
    hidden: Value
    tokens: Value
    collectives_per_block: Value
    bytes_per_value: Value = 4.0

    @property
    def block_bytes(self) -> Value:
        """ST: bytes of one block's weights, the parameters spread evenly over the blocks."""
        return self.parameters / self.layers * self.bytes_per_value

    @property
    def activation_bytes(self) -> Value:
        """b d: bytes of one block's activations for the whole batch."""
        return self.tokens * self.hidden * self.bytes_per_value


@dataclass(frozen=True, slots=True, kw_only=True)
class RailNetwork:
    """N accelerators in domains of K; bandwidths in bytes/s per accelerator, the paper's GH200 by default.

    ``flops`` (C) is reconstructed: the dense 16-bit peak of an H100.
    """

    accelerators: Value
    domain: Value
    domain_Bps: Value = 960e9
    nic_Bps: Value = 50e9
    flops: Value = 989e12


GPT3 = DenseJob(parameters=174.6e9, layers=96, hidden=12288, tokens=32e6, collectives_per_block=8)
"""GPT-3 with the paper's batch of 32M tokens (GPT-3 itself used 3.2M); the parameters are reconstructed."""

OPT_175B = DenseJob(parameters=174.6e9, layers=96, hidden=12288, tokens=2e6, collectives_per_block=8)
"""OPT-175B with 2M tokens; the parameters are reconstructed."""


def palm_540b(sequences: Value) -> DenseJob:
    """PaLM-540B with a batch of ``sequences`` of 2048 tokens (512, 1024 and 2048 in the paper)."""
    tokens = np.asarray(sequences, np.float64) * 2048
    return DenseJob(parameters=540e9, layers=118, hidden=18432, tokens=tokens, collectives_per_block=12)


def iteration_time(work: DenseJob, network: RailNetwork, group: Value) -> Seconds:
    """Seconds of one iteration with model-parallel groups of ``group`` accelerators: equation (1).

    Raises:
        BadInput: a group is larger than its domain, or a domain larger than the cluster.
    """
    count, domain, group = (_positive(v) for v in (network.accelerators, network.domain, group))
    if np.any(group > domain) or np.any(domain > count):
        raise BadInput(
            "the model-parallel group, the domain and the cluster do not nest",
            where="rail-only model",
            remedy="use group <= domain <= accelerators",
        )
    across = 2 * work.block_bytes * (count / domain - 1) / (count * network.nic_Bps)
    inside = 2 * work.block_bytes * (domain / group - 1) / domain
    model = work.collectives_per_block * work.activation_bytes * (group - 1) / count
    return _compute_time(work, network) + work.layers * (across + (inside + model) / network.domain_Bps)


def ideal_time(work: DenseJob, network: RailNetwork, group: Value) -> Seconds:
    """Seconds of one iteration with every accelerator in one domain: equation (3)."""
    count, group = _positive(network.accelerators), _positive(group)
    data = 2 * work.block_bytes * (count / group - 1)
    model = work.collectives_per_block * work.activation_bytes * (group - 1)
    return _compute_time(work, network) + work.layers * (data + model) / (network.domain_Bps * count)


def optimal_group(work: DenseJob, network: RailNetwork) -> NDArray[np.float64]:
    """The group at the minimum of equation (1), as a real number: sqrt(2 N ST / (Mcc b d)).

    This corrects the printed equation (2): the paper's own figures have groups of 8 and 32, as here.
    """
    optimum: NDArray[np.float64] = np.sqrt(2 * _positive(network.accelerators) * work.block_bytes / _model_bytes(work))
    return optimum


def printed_optimal_group(work: DenseJob, network: RailNetwork) -> NDArray[np.float64]:
    """Equation (2) as printed, sqrt(N ST) / (2 sqrt(b Mcc d)): too small by 2 sqrt(2)."""
    weights = _positive(network.accelerators) * work.block_bytes
    printed: NDArray[np.float64] = np.sqrt(weights) / (2 * np.sqrt(_model_bytes(work)))
    return printed


def rounded_group(work: DenseJob, network: RailNetwork) -> NDArray[np.float64]:
    """``optimal_group`` rounded to the nearest power of two (in the logarithm), at most the domain."""
    nearest: NDArray[np.float64] = np.exp2(np.round(np.log2(optimal_group(work, network))))
    return np.clip(nearest, 1.0, _positive(network.domain))


def best_group(work: DenseJob, network: RailNetwork) -> int:
    """The divisor of the domain with the least iteration time, by exhaustive search; scalar inputs."""
    domain = int(np.asarray(network.domain).item())
    divisors = np.array([size for size in range(1, domain + 1) if domain % size == 0], np.float64)
    return int(divisors[np.argmin(iteration_time(work, network, divisors))])


def forwarding_overhead(nic_Bps: Value, domain_Bps: Value, domain: Value | None = None) -> NDArray[np.float64]:
    """Share that an all-to-all loses when cross-rail traffic is forwarded inside the domain first.

    The extra hop carries the same bytes once more over the domain's links: NIC over domain bandwidth, both
    per direction.  With ``domain``, only the (K - 1) / K of the traffic that changes rail is counted.
    """
    ratio = _positive(nic_Bps) / _positive(domain_Bps)
    return ratio if domain is None else ratio * (_positive(domain) - 1) / _positive(domain)


def _compute_time(work: DenseJob, network: RailNetwork) -> Seconds:
    return _positive(6 * work.parameters * work.tokens / (network.accelerators * network.flops))


def _model_bytes(work: DenseJob) -> NDArray[np.float64]:
    return _positive(work.collectives_per_block * work.activation_bytes)


def _positive(value: Value) -> NDArray[np.float64]:
    array = np.asarray(value, np.float64)
    if not np.all(np.isfinite(array) & (array > 0)):
        raise BadInput(f"{value!r} is not positive and finite", where="rail-only model")
    return array
