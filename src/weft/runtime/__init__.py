"""4D-parallel training in PyTorch: AxoNN's algorithm (arXiv 2305.13525) as small objects without globals.

Every object receives its ``Grid``.  What is communicated is what ``weft.layout.step`` predicts.
"""

from weft.errors import MissingExtra

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtra("weft.runtime", "runtime") from None
