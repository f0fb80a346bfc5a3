"""4D-parallel training in PyTorch: AxoNN's algorithm (arXiv 2305.13525) as small objects without globals.

``prepare`` is the door: from a model to its training step on a grid of ranks.  Inside, every object receives its
``Grid``, and what is communicated is what ``weft.layout.step`` predicts.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.errors import MissingExtra

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtra("weft.runtime", "runtime") from None

if TYPE_CHECKING:
    from weft.runtime.convert.prepare import prepare as prepare
    from weft.runtime.convert.roles import Head as Head
    from weft.runtime.convert.roles import Heads as Heads
    from weft.runtime.convert.roles import Norm as Norm
    from weft.runtime.convert.roles import Normal as Normal
    from weft.runtime.convert.roles import Positions as Positions
    from weft.runtime.convert.roles import Transposed as Transposed
    from weft.runtime.convert.roles import Vocabulary as Vocabulary
    from weft.runtime.convert.roles import Whole as Whole
    from weft.runtime.run.optimizer import AdamSettings as AdamSettings
    from weft.runtime.run.ranks import run_ranks as run_ranks

_ROLES = ("Head", "Heads", "Norm", "Normal", "Positions", "Transposed", "Vocabulary", "Whole")
_MODULES = {
    "AdamSettings": "run.optimizer",
    "prepare": "convert.prepare",
    "run_ranks": "run.ranks",
    **dict.fromkeys(_ROLES, "convert.roles"),
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
