"""GPUs by their whole names."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from weft.cluster import accelerator  # noqa: E402
from weft.runtime.measure.timing import DEVICES, accelerator_of, peak_flops  # noqa: E402


def test_every_name_is_in_the_catalogue():
    for device, name in DEVICES.items():
        assert accelerator_of(device) == accelerator(name)


@pytest.mark.parametrize(
    "device",
    [
        *("Tesla V100-PCIE-16GB", "NVIDIA H800 PCIe", "NVIDIA A800 80GB PCIe", "NVIDIA H20-3e", "NVIDIA L40"),
        *("NVIDIA A10G", "NVIDIA GeForce RTX 3090 Ti", "AMD Instinct MI308X", "AMD Radeon Graphics", ""),
    ],
)
def test_other_boards_of_a_chip_are_unknown(device):
    assert accelerator_of(device) is None
    assert peak_flops(accelerator_of(device), "bf16") is None


def test_peaks():
    assert peak_flops(accelerator_of("NVIDIA H100 80GB HBM3"), "bf16") == pytest.approx(989.4e12)
    assert peak_flops(accelerator_of("NVIDIA H100 PCIe"), "bf16") == pytest.approx(756e12)
    assert peak_flops(accelerator_of("Tesla V100-SXM2-32GB"), "bf16") is None
