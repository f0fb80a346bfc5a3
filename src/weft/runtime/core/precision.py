"""Which number format each step works in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.errors import UnknownName


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
        """The usual formats under a name: fp64, fp32, bf16, fp16 (fp32 masters and reduction for 16 bits).

        Raises:
            UnknownName: no such name.
        """
        if name == "fp64":
            wide = torch.float64
            return cls(master=wide, gather=wide, compute=wide, reduce=wide)
        if name not in _FORMATS:
            raise UnknownName("precision", name, ("fp64", *_FORMATS))
        return cls(gather=_FORMATS[name], compute=_FORMATS[name])


_FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
