"""Settings of training software that change its speed and not the layout: what a run's file says, what they do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from weft.cluster.spec import Cluster
from weft.layout.spec import Layout
from weft.model.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A setting that is off or on.

    Attributes:
        name, off, on: as a person calls it and its values.
        constant, value: what it sets in ``weft.cluster.calibration.Calibration`` when it is on; 0 or the software's
            own value when it is off.
        tools: by format of launch files, a pattern that finds it on, and the settings that switch it on.
    """

    name: str
    off: str
    on: str
    constant: str
    value: float
    tools: Mapping[str, tuple[str, tuple[str, ...]]]


SWITCHES = (
    Switch(
        name="dispatcher",
        off="all-to-all",
        on="deepep",
        constant="dispatch_once",
        value=1.0,
        tools={
            "megatron": (
                r"--moe-token-dispatcher-type[ =]+flex|--moe-enable-deepep",
                ("--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend deepep"),
            ),
            "torchtitan-toml": (
                r'expert_parallel_comm_backend\s*=\s*"(deep|hybrid)ep"',
                ('parallelism.expert_parallel_comm_backend = "deepep"',),
            ),
        },
    ),
    Switch(
        name="dispatch overlap",
        off="off",
        on="on",
        constant="expert_overlap",
        value=0.36,
        tools={
            "megatron": (
                r"--overlap-moe-expert-parallel-comm",
                ("--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute"),
            )
        },
    ),
    Switch(
        name="CUDA graphs",
        off="off",
        on="attention",
        constant="launches_per_step",
        value=1.5,
        tools={
            "megatron": (
                r"--cuda-graph-impl[ =]+(?!none)|--enable-cuda-graph|--external-cuda-graph",
                ("--cuda-graph-impl transformer_engine", "--cuda-graph-scope attn", "--te-rng-tracker"),
            )
        },
    ),
)
"""Switches whose gain is in the estimate.  Values: those of ``weft/cluster/data/calibration.toml`` for software that
has them on (Megatron Bridge 0.4 hides 0.36 of dispatch and combine)."""


def works(switch: Switch, job: Job, cluster: Cluster, layout: Layout) -> bool:
    """Whether a switch does anything for a layout, and its software accepts it there."""
    experts = layout.expert > 1 and any(kind.moe for kind in job.model.kinds)
    if switch.constant == "dispatch_once":
        return experts and layout.expert * layout.expert_tensor > cluster.tiers[0].size
    if switch.constant == "expert_overlap":
        return experts and layout.recompute != "full" and (layout.pipeline == 1 or layout.virtual_stages > 1)
    return True


def is_on(switch: Switch, form: str, text: str) -> bool:
    """Whether a run's file switches it on."""
    plain = "\n".join(_uncommented(text.splitlines()))
    return form in switch.tools and re.search(switch.tools[form][0], plain) is not None


def _uncommented(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in lines if not line.lstrip().startswith("#"))


def unknown(form: str, text: str, job: Job, layout: Layout) -> Iterator[str]:
    """What a file leaves unset that often helps, and the estimate does not have."""
    plain = "\n".join(_uncommented(text.splitlines()))
    if form == "megatron" and layout.x * layout.context > 1 and "CUDA_DEVICE_MAX_CONNECTIONS" not in plain:
        yield (
            "export CUDA_DEVICE_MAX_CONNECTIONS=1 (before Blackwell: lets tensor and context parallelism start their"
            " collectives before the products that hide them)"
        )
    if form == "torchtitan-toml" and not re.search(r"^\s*(enable|compile)\s*=\s*true", plain, re.MULTILINE):
        yield "[compile] enable = true (16 % on Llama 3.1 8B on 8 H100: arXiv 2410.06511, table 1)"
    routed = any(kind.moe for kind in job.model.kinds)
    if form == "megatron" and routed and "--moe-permute-fusion" not in plain:
        yield "--moe-permute-fusion, --moe-router-fusion (fewer kernels around the experts)"
    if form in ("megatron", "torchtitan-toml") and "expandable_segments" not in plain:
        yield "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (less memory lost to fragmentation)"
