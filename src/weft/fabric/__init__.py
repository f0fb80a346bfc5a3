"""Wired how: the explicit graph of a network, and the traffic that crosses it.

Functions raise ``BadInput`` for input that cannot be used.
"""

from weft.fabric.spec import Fabric
from weft.fabric.traffic import Phases, Routes, Traffic

__all__ = ["Fabric", "Phases", "Routes", "Traffic"]
