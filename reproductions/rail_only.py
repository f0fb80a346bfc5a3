"""Rail-only networks (arXiv 2307.12169): version 1's closed form, forwarding, and utilization, beside the paper.

    python reproductions/rail_only.py

The closed form is that of version 1 (data and model parallelism; the pipeline of later versions is not public here).
N accelerators in scale-up domains of K; model-parallel groups of NM inside a domain, NDs = K / NM replicas in
the domain and NDf = N / K domains.  No overlap, bandwidth terms only.

Reconstructed, since the paper does not print them: the peak of 989e12 FLOP/s, 4 bytes per value for weights
and activations, 6 FLOPs per parameter and token, the parameter counts, and NM rounded to a power of two.
They were found by fitting the paper's figures.  Every field may be an array, broadcast as NumPy does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from paper import show

import weft
from weft import BadInput

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


FIGURES = (
    ("GPT-3, 32,768 accelerators, domains of 256", GPT3, 32768, 256, "1.58 s (figure 5)"),
    ("OPT-175B, 32,768 accelerators, domains of 256", OPT_175B, 32768, 256, "0.27 to 0.28 s (figure 5)"),
    ("PaLM-540B, 512 sequences", palm_540b(512), 32768, 256, "0.66 s (figure 8)"),
    ("PaLM-540B, 1,024 sequences", palm_540b(1024), 32768, 256, "0.88 s (figure 8)"),
    ("PaLM-540B, 2,048 sequences", palm_540b(2048), 32768, 256, "1.23 s (figure 8)"),
)
SAVINGS = (
    ("GPT-3, 16,384 accelerators, domains of 64, not 32", GPT3, 32, "12 %"),
    ("OPT-175B, the same", OPT_175B, 32, "37 %"),
    ("GPT-3, domains of 1,024, not 512", GPT3, 512, "0.95 %"),
    ("OPT-175B, the same", OPT_175B, 512, "7.5 %"),
)
KORTHIKANTI = (
    ("22b", 8, "pp=1,mbs=4", 4, 43.7),
    ("175b", 64, "pp=8,vpp=3,mbs=1", 64, 52.8),
    ("530b", 280, "pp=35,vpp=3,mbs=1", 280, 57.0),
    ("1t", 512, "pp=64,mbs=1", 512, 57.0),
)
"""Size, A100s, layout beside tensor parallelism of 8, batch, published HFU in percent (arXiv 2205.05198, table 5)."""


def rounded_time(work: DenseJob, accelerators: int, domain: int) -> tuple[float, float]:
    """Seconds of an iteration in domains of a size, and in one domain, with groups rounded to a power of two."""
    network = RailNetwork(accelerators=accelerators, domain=domain)
    group = rounded_group(work, network)
    return float(iteration_time(work, network, group)), float(ideal_time(work, network, group))


def closed_form() -> list[dict[str, str]]:
    """Figures of sections 5.1 and 5.2 beside equation (1)."""
    rows = []
    for name, work, count, domain, printed in FIGURES:
        time_s, ideal_s = rounded_time(work, count, domain)
        rows.append({"iteration": name, "paper": printed, "Weft": f"{time_s:.3f} s, one domain {ideal_s:.3f} s"})
    for name, work, domain, printed in SAVINGS:
        (before_s, _), (after_s, _) = (rounded_time(work, 16384, size) for size in (domain, 2 * domain))
        rows.append({"iteration": f"time saved: {name}", "paper": printed, "Weft": f"{1 - after_s / before_s:.2%}"})
    return rows


def forwarding() -> list[dict[str, str]]:
    """What an all-to-all loses where traffic between rails is forwarded inside the domains first."""
    rows = []
    for name, printed in (("a100-64", "8.2 %"), ("h100-64", "11.2 %")):
        inner, outer = weft.resolve_cluster(name).tiers[:2]
        ratio = float(forwarding_overhead(outer.bandwidth_Bps, inner.bandwidth_Bps))
        changing = float(forwarding_overhead(outer.bandwidth_Bps, inner.bandwidth_Bps, inner.size))
        rows.append(
            {"cluster": name, "paper": printed, "ratio of bandwidths": f"{ratio:.1%}", "off rail": f"{changing:.1%}"}
        )
    return rows


def utilization() -> list[tuple[str, float, float, float]]:
    """Model, and hardware FLOP/s utilization of Korthikanti et al.'s runs: published, Weft's and equation (1)'s."""
    rows = []
    for size, count, layout, batch, published in KORTHIKANTI:
        name, cluster = f"gpt-{size}-korthikanti", weft.resolve_cluster(f"a100-{count}")
        whole = f"tp=8,{layout},zero=0,recompute=selective,sp"
        result = weft.estimate(name, cluster, whole, batch=batch, stack="megatron-lm-2022")
        estimate, job = result.estimate, result.job
        work = DenseJob(
            parameters=job.model.parameters,
            layers=job.model.layers,
            hidden=job.model.hidden,
            tokens=job.recipe.tokens,
            collectives_per_block=8,
            bytes_per_value=2.0,
        )
        network = RailNetwork(
            accelerators=count,
            domain=cluster.tiers[0].size,
            domain_Bps=cluster.tiers[0].bandwidth_Bps,
            nic_Bps=cluster.tiers[-1].bandwidth_Bps,
            flops=cluster.accelerator.fp16_flops,
        )
        equation = estimate.hfu * estimate.iteration_s / float(iteration_time(work, network, 8))
        rows.append((f"gpt-{size}", published / 100, estimate.hfu, equation))
    return rows


def main() -> None:
    show(
        "Iteration time over the size of scale-up domains",
        "arXiv 2307.12169v1, equations (1) and (3), sections 5.1 and 5.2",
        (
            "960 GB/s in the domain, 50 GB/s beyond; data and model parallelism, no pipeline, no overlap, no latency",
            "reconstructed: 989 TFLOP/s, 4 bytes a value, groups rounded to powers of two",
        ),
        closed_form(),
        (
            "Equation (2), the best group, is printed too small by 2 sqrt(2): only the minimum of (1) gives the groups"
            f" of the paper's figure 4, 8 for GPT-3 and 32 for OPT-175B ({best_group(GPT3, FIGURE_4)} and"
            f" {best_group(OPT_175B, FIGURE_4)} here).",
        ),
    )
    show(
        "Overhead of an all-to-all whose traffic between rails is forwarded inside the domains",
        "arXiv 2307.12169, abstracts of versions 4 and 5",
        ("off rail: only the (K-1)/K of the traffic that changes rail is forwarded",),
        forwarding(),
    )
    show(
        "Hardware FLOP/s utilization",
        "arXiv 2307.12169v5 says within 0.15 %; published: arXiv 2205.05198, table 5",
        (
            "A100s, tensor parallelism 8, selective recomputation, sequence parallelism, the published pipelines",
            "Weft: constants of megatron-lm-2022, one set for all; equation: (1) of version 1 with groups of 8",
        ),
        [
            {"model": name, "published": f"{published:.1%}", "Weft": f"{ours:.1%}", "equation": f"{equation:.1%}"}
            for name, published, ours, equation in utilization()
        ],
        (
            "The 0.15 % cannot be checked: version 5's equations are not public here, and version 1's have neither a"
            " pipeline nor the efficiency of kernels.",
        ),
    )


FIGURE_4 = RailNetwork(accelerators=32768, domain=256)

if __name__ == "__main__":
    main()
