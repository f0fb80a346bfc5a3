"""A plan for one network: layouts by their simulated seconds, with the proof that none is faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from weft.estimation.iteration import Estimator
from weft.estimation.single import estimate_of
from weft.fabric.placement import Placement
from weft.fabric.spec import Fabric
from weft.fabric.transport import carrier
from weft.layout.table import LayoutTable
from weft.layout.text import format_layout
from weft.records import number, table_of
from weft.search.on_fabric import Progress, Proof, search_on_fabric
from weft.search.ranking import Plan
from weft.simulation.routes.evaluator import Evaluator

BEGUN = 8
"""Layouts of the closed form's ranking that are evaluated first."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NetworkPlan(Plan):
    """Layouts of a job on one network, fastest at flow level first.

    ``layouts`` are the evaluated ones, of which the first is proved; ``simulated_s`` are their seconds.
    ``first_choice_s`` are those of the layout that the closed form ranks first.  The other fields, such as counts
    and ``pareto``, are those of the plan without a network.
    """

    COLUMNS = ("rank", "simulated_s", *Plan.COLUMNS[1:])

    fabric: str
    routing: str
    simulated_s: tuple[float, ...]
    first_choice_s: float
    proof: Proof

    def to_dicts(self) -> list[dict[str, Any]]:
        """The ranked layouts, a row each, under ``COLUMNS``."""
        # super() without arguments does not work in classes that slots=True makes anew.
        rows = Plan.to_dicts(self)
        return [row | {"simulated_s": seconds} for row, seconds in zip(rows, self.simulated_s, strict=True)]

    def _document(self) -> dict[str, Any]:
        document = Plan._document(self)
        for one, estimate, seconds in zip(document["layouts"], self.layouts, self.simulated_s, strict=True):
            one |= {"layout_text": format_layout(estimate.layout), "simulated_s": seconds}
        network = {
            "fabric": self.fabric,
            "routing": self.routing,
            "transport": carrier(self.routing),
            "first_choice_s": self.first_choice_s,
        }
        return document | network | {"proof": asdict(self.proof)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, where: str = "plan") -> NetworkPlan:
        """The plan that ``to_dict`` wrote.

        Raises:
            BadInput: a field is missing, of the wrong kind, or no layout of the plan's job and cluster.
        """
        found = Plan.from_dict(document, where=where)
        proof = table_of(document.get("proof"), f"{where}: proof")
        known = {
            one.name: number(proof.get(one.name), f"{where}: proof.{one.name}")
            for one in fields(Proof)
            if one.name != "stopped_by"
        }
        return cls(
            **{one.name: getattr(found, one.name) for one in fields(found)},
            fabric=str(document.get("fabric")),
            routing=str(document.get("routing")),
            simulated_s=tuple(
                number(one.get("simulated_s"), f"{where}: layouts[{i}].simulated_s")
                for i, one in enumerate(document["layouts"])
            ),
            first_choice_s=number(document.get("first_choice_s"), f"{where}: first_choice_s"),
            proof=Proof(
                evaluated=int(known["evaluated"]),
                considered=int(known["considered"]),
                bound_s=known["bound_s"],
                gap=known["gap"],
                stopped_by="budget" if proof.get("stopped_by") == "budget" else None,
            ),
        )


def plan_on_fabric(
    found: Plan,
    fabric: Fabric,
    *,
    routing: str = "ecmp",
    seed: int = 0,
    placement: Placement | None = None,
    orders: bool = True,
    top: int = 10,
    per_mesh: bool = True,
    budget_s: float | None = None,
    progress: Progress | None = None,
) -> NetworkPlan:
    """The fastest layout of a plan's space on a fabric.

    Args:
        found: the plan of the closed form, with its best layouts; some must be feasible.
        routing: as ``weft.simulation.routes.evaluator.Evaluator`` takes it, with ``seed``.
        placement: of every rank; rank r on accelerator r by default.
        orders, top, per_mesh, budget_s, progress: see ``search_on_fabric``.

    Raises:
        BadInput: the ranks do not fit on the fabric, or a flow has no path.
        UnknownName: there is no such routing.
    """
    evaluator = Evaluator(
        found.job, found.cluster, fabric, routing=routing, seed=seed, constants=found.constants, placement=placement
    )
    made = search_on_fabric(
        evaluator,
        found.space,
        capacity_bytes=(1 - found.memory_margin) * found.cluster.accelerator.memory_bytes,
        first=[one.layout for one in found.layouts[:BEGUN]],
        orders=orders,
        top=top,
        per_mesh=per_mesh,
        budget_s=budget_s,
        progress=progress,
    )
    estimator = Estimator(found.job, found.cluster, found.constants)
    layouts = [layout for layout, _ in made.layouts]
    kept = {one.name: getattr(found, one.name) for one in fields(found)}
    ranked = tuple(estimate_of(estimator, one, estimator.evaluate(LayoutTable.of([one])), 0) for one in layouts)
    return NetworkPlan(
        **kept | {"layouts": ranked, "runs": (), "ties": (), "choice": None, "order": "time"},
        fabric=fabric.name,
        routing=routing,
        simulated_s=tuple(seconds for _, seconds in made.layouts),
        first_choice_s=made.first_s,
        proof=made.proof,
    )
