"""Which accelerator of the catalogue a GPU is, by the whole name that PyTorch gives it.

Boards of one chip differ in clocks and units ("H100 PCIe" has two thirds of the SXM board's peak), so that no
part of a name is enough; GPUs that are not listed are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.cluster.catalogue import accelerator
from weft.cluster.spec import Accelerator
from weft.errors import Unsupported
from weft.model.job import Precision

DEVICES: Mapping[str, str] = {
    "AMD Instinct MI210": "mi210",
    "AMD Instinct MI250X": "mi250x",
    "AMD Instinct MI300A": "mi300a",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI355X": "mi355x",
    "NVIDIA A10": "a10",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100-SXM-80GB": "a100-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A40": "a40",
    "NVIDIA A800-SXM4-80GB": "a800",
    "NVIDIA B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA GH200 144G HBM3e": "gh200-144gb",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H20": "h20",
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200-nvl",
    "NVIDIA H800": "h800",
    "NVIDIA L40S": "l40s",
    "NVIDIA RTX A6000": "a6000",
    "Tesla P100-SXM2-16GB": "p100",
    "Tesla V100-SXM2-16GB": "v100-16gb",
    "Tesla V100-SXM2-32GB": "v100-32gb",
}
"""Names of ``torch.cuda.get_device_name`` and of the catalogue: boards whose figures the catalogue has."""


def accelerator_of(device: str) -> Accelerator | None:
    """The catalogue's entry of a GPU; None where it has none."""
    return accelerator(DEVICES[device]) if device in DEVICES else None


def peak_flops(chip: Accelerator | None, precision: Precision) -> float | None:
    """Dense peak in FLOP/s; None for an unknown accelerator, or one without units for the precision."""
    try:
        return None if chip is None else chip.peak_flops(precision)
    except Unsupported:
        return None
