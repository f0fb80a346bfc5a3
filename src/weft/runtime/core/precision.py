"""Which number format each step works in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import UnknownName, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Formats of parameters at rest, of gathered weights, of products and activations, of reduced gradients.

    Statistics (norms, cross-entropy) are in ``wide``.
    """

    master: torch.dtype = torch.float32
    gather: torch.dtype = torch.float32
    compute: torch.dtype = torch.float32
    reduce: torch.dtype = torch.float32

    @property
    def wide(self) -> torch.dtype:
        return torch.float64 if self.compute == torch.float64 else torch.float32

    @classmethod
    def of(cls, name: str) -> Precision:
        """The usual formats under a name: fp64, fp32, tf32 (fp32, multiplied on tensor cores inside ``numerics``),
        bf16 (with fp32 masters and reduction).

        Raises:
            UnknownName: no such name.
        """
        if name == "fp64":
            wide = torch.float64
            return cls(master=wide, gather=wide, compute=wide, reduce=wide)
        if name not in _FORMATS:
            raise UnknownName("precision", name, ("fp64", *_FORMATS))
        return cls(gather=_FORMATS[name], compute=_FORMATS[name])


@contextmanager
def numerics(*, tf32: bool = False, deterministic: bool = False) -> Iterator[None]:
    """Inside, products of fp32 on tensor cores (10 bits of mantissa), and kernels whose sums have one order.

    cuBLAS is deterministic where ``CUBLAS_WORKSPACE_CONFIG`` (see ``DETERMINISTIC``) was set before its first product.
    """
    before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    torch.set_float32_matmul_precision("high" if tf32 else before[0])
    torch.use_deterministic_algorithms(deterministic or before[1])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.use_deterministic_algorithms(before[1])


DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Environment of ranks whose products must be the same bits again (PyTorch's notes on reproducibility)."""
_FORMATS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


def refuse_autocast(values: Tensor, where: str) -> None:
    """Refuse products inside ``torch.autocast``, which would change the formats that ranks exchange.

    Raises:
        Unsupported: it is on.
    """
    if not values.is_meta and torch.is_autocast_enabled(values.device.type):
        raise Unsupported(
            "torch.autocast is on, which would change the formats that ranks exchange",
            where=where,
            remedy='leave it out, and give prepare(..., precision="bf16")',
        )
