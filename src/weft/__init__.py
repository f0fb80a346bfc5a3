"""Weft plans, designs, schedules, routes and runs the training of large models on GPU networks.

>>> import weft
>>> found = weft.plan("llama-3.1-8b", "h100-64", top=1)
>>> found.best.fits
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.cluster import resolve as resolve_cluster
    from weft.cluster.files import read_cluster
    from weft.commands.arrange import arrange
    from weft.commands.compare import compare
    from weft.commands.design import design
    from weft.commands.estimate import estimate, goodput
    from weft.commands.fabric import bill_of_materials, check_fabric
    from weft.commands.info import schema
    from weft.commands.plan import plan
    from weft.commands.read import read, read_plan
    from weft.commands.report import make_report
    from weft.commands.route import audit_routes, route
    from weft.commands.schedule import schedule
    from weft.commands.simulate import simulate
    from weft.commands.sweep import sweep
    from weft.commands.train import train
    from weft.commands.tune import tune
    from weft.commands.validate import calibrate, validate
    from weft.errors import BadInput, NothingFeasible, Unsupported, WeftError
    from weft.estimation import Estimate
    from weft.layout import Layout
    from weft.model import Job, Model, Recipe, read_config, resolve_job
    from weft.search import Plan

    __version__: str

_HOME = {
    **dict.fromkeys(("BadInput", "NothingFeasible", "Unsupported", "WeftError"), "weft.errors"),
    **dict.fromkeys(("Job", "Model", "Recipe", "read_config", "resolve_job"), "weft.model"),
    **dict.fromkeys(("Cluster", "resolve_cluster"), "weft.cluster"),
    "Estimate": "weft.estimation",
    "Layout": "weft.layout",
    "Plan": "weft.search",
    "audit_routes": "weft.commands.route",
    "bill_of_materials": "weft.commands.fabric",
    "calibrate": "weft.commands.validate",
    "check_fabric": "weft.commands.fabric",
    "goodput": "weft.commands.estimate",
    "make_report": "weft.commands.report",
    "read_cluster": "weft.cluster.files",
    "read_plan": "weft.commands.read",
    "schema": "weft.commands.info",
}
"""Where public names live that are not those of a command's module."""
_RENAMED = {"resolve_cluster": "resolve"}

__all__ = [
    "BadInput",
    "Cluster",
    "Estimate",
    "Job",
    "Layout",
    "Model",
    "NothingFeasible",
    "Plan",
    "Recipe",
    "Unsupported",
    "WeftError",
    "__version__",
    "arrange",
    "audit_routes",
    "bill_of_materials",
    "calibrate",
    "check_fabric",
    "compare",
    "design",
    "estimate",
    "goodput",
    "make_report",
    "plan",
    "read",
    "read_cluster",
    "read_config",
    "read_plan",
    "resolve_cluster",
    "resolve_job",
    "route",
    "schedule",
    "schema",
    "simulate",
    "sweep",
    "train",
    "tune",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Load a public name where it lives, on first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("weft")
    if name not in __all__:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, f"weft.commands.{name}")), _RENAMED.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
