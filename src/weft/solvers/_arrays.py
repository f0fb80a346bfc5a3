"""Array types of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int32]
Records = Any
"""A structured array; compiled code reads the fields of its elements as attributes, which no type says."""

PAIR = np.dtype([("key", np.float64), ("number", np.int64)], align=True)
"""Element of a heap."""

wide = cast(Callable[[Any], int], np.int64)
"""To 64 bits: for other widths, and for constants, the compiler would compile a function once more."""
ZERO = wide(0)
