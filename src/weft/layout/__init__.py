"""How a job is cut: layouts, the mesh and an iteration's operations."""

from weft.layout.spec import AXES, FIELDS, Layout

__all__ = ["AXES", "FIELDS", "Layout"]
