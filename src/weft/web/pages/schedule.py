"""Schedule: dimensions as a list to edit, and every policy of a collective one under the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from weft.errors import BadInput
from weft.verbs.schedule import ScheduleOptions
from weft.web.schedules import CHUNK_COUNTS, SHOWS, Found, Inquiry, document, explored
from weft.web.showing import Shown, address, download, fetch, form_of, refuse, show
from weft.web.texts import cluster_of_text
from weft.web.views import schedule as view
from weft.web.views.parts import Picture
from weft.web.work import Question

FIELDS = ("collective", "size", "chunks", "active", "dims")
"""Fields of the page, as the address has them."""
PARTS = ("kind", "size", "bandwidth", "latency", "reduce")
"""Of a dimension, in the order of the address; in the form each has the dimension's number behind, as size_2."""
_START = {"collective": "all-reduce", "size": "1GiB", "dims": "switch:16:150GiB/s:700ns,switch:64:100GiB/s:1700ns"}
_NEW = ("switch", "2", "50GB/s", "2us", "")
_MOST_ROWS = 12
_CAPTIONS = {
    "policies": "The chunks of each policy on the dimensions, on one axis of time; pale: a dimension is idle",
    "chunks": "The share of the bandwidth that each policy uses, over the number of chunks",
}
_ACTIVE = ("", "1", "2", "4", "overlap")


def rows_of(dims: str) -> list[tuple[str, ...]]:
    """The parts of each dimension of an address, for the form; what is not there is empty."""
    parts = [one.split(":") for one in dims.split(",")][:_MOST_ROWS] if dims else []
    return [tuple((*(word.strip() for word in one), *[""] * len(PARTS))[: len(PARTS)]) for one in parts]


def dims_of(form: Mapping[str, str]) -> str:
    """The dimensions of a form as the address has them; a row that is empty is left out."""
    rows = []
    for number in range(1, _MOST_ROWS + 1):
        words = [form.get(f"{part}_{number}", "").replace(",", "").strip() for part in PARTS]
        if any(words[1:4]):
            rows.append(words)
    return _joined(rows)


def _joined(rows: list[list[str]]) -> str:
    return ",".join(":".join(words).removesuffix(":") for words in rows)


def inquiry_of(given: Mapping[str, str]) -> Inquiry:
    """What the fields of an address ask.

    Raises:
        BadInput: a field that cannot be used.
    """
    options: dict[str, Any] = {name: given[name] for name in ("chunks", "active") if given[name]}
    return Inquiry(
        collective=given["collective"], size=given["size"], options=ScheduleOptions(dims=given["dims"], **options)
    )


async def schedule_page(request: Request) -> Response:
    """The form, and the schedules that the address asks for."""
    given = {name: request.query_params.get(name, "").strip() for name in FIELDS}
    policy = request.query_params.get("policy", "").strip() or "weft"
    look = request.query_params.get("show", "").strip()
    look = look if look in SHOWS else SHOWS[0]
    asked = any(given.values())
    context = _context(given if asked else {**given, **_START})
    shown = Shown(template="schedule.html", context=context)
    if not asked:
        return await show(request, shown)
    try:
        inquiry = inquiry_of(given)
    except BadInput as error:
        return refuse(shown, error)
    shown = Shown(
        template="schedule.html",
        context=context,
        question=Question(explored, (inquiry, policy, look)),
        part="schedule_answer.html",
        view=lambda found: _view(found, given, look),
    )
    return await show(request, shown)


def _context(given: Mapping[str, str]) -> dict[str, Any]:
    from weft.cluster.catalogue import names as clusters
    from weft.collectives.stages import STAGE_KINDS
    from weft.fabric.dimension import KINDS

    rows = rows_of(given["dims"])
    return {
        "here": "/schedule",
        "given": given,
        "rows": [dict(zip(PARTS, row, strict=True)) for row in rows],
        "more": len(rows) < _MOST_ROWS,
        "kinds": KINDS,
        "collectives": STAGE_KINDS,
        "actives": _ACTIVE,
        "clusters": clusters(),
    }


def _view(found: Found, given: Mapping[str, str], look: str) -> dict[str, Any]:
    """What the answer's template shows."""
    chosen = {**given, "policy": found.policy}

    def place(name: str) -> str:
        return address("/schedule", {**given, "policy": name, "show": look}) + "#policy"

    options = "".join(f" --{name} {given[name]}" for name in ("chunks", "active") if given[name])
    counts = f" --chunk-counts {','.join(map(str, CHUNK_COUNTS))}"
    return {
        "policy": found.policy,
        "facts": view.facts(found.result),
        "policies": view.policies(found.result, found.policy, place),
        "chart": Picture(svg=found.chart, caption=_CAPTIONS[look]),
        "look": look,
        "tabs": [(name, address("/schedule", {**chosen, "show": name})) for name in SHOWS],
        "dimensions": view.dimensions(found.result),
        "orders": view.orders(found.result),
        "bandwidths": view.bandwidths(found.result),
        "files": [(form, address(f"/schedule/schedule.{form}", chosen)) for form in ("json", "csv")],
        "command": f"weft schedule {given['collective']} {given['size'].replace(' ', '')}"
        f" --dims {given['dims'].replace(' ', '')}" + (counts if look == "chunks" else f"{options} --compare"),
    }


async def send(request: Request) -> Response:
    """The form: a dimension is added or taken away, those of a cluster are taken, and the address follows."""
    form = await form_of(request)
    given = {name: form.get(name, "").strip() for name in FIELDS[:-1]}
    dims, (word, _, number) = dims_of(form), form.get("do", "").partition("-")
    if word == "cluster":
        from weft.collectives.dimensions import dimensions_of, format_dimensions

        cluster = cluster_of_text(request.app.state.texts.find("cluster", form.get("cluster", "")))
        dims = format_dimensions(dimensions_of(cluster)[0])
    rows = [list(row) for row in rows_of(dims)]
    if word == "add" and len(rows) < _MOST_ROWS:
        rows.append(list(_NEW))
    elif word in ("remove", "up") and number.isdecimal() and 0 <= (place := int(number[:4]) - 1) < len(rows):
        row = rows.pop(place)
        if word == "up":
            rows.insert(max(place - 1, 0), row)
    return RedirectResponse(address("/schedule", {**given, "dims": _joined(rows)}), 303)


async def file(request: Request) -> Response:
    """The shown schedule as a file."""
    form = request.url.path.rpartition(".")[2]
    given = {name: request.query_params.get(name, "").strip() for name in FIELDS}
    policy = request.query_params.get("policy", "").strip() or "weft"
    text = await fetch(request, Question(document, (inquiry_of(given), policy, form)))
    return download(text, f"schedule.{form}", "text/csv" if form == "csv" else "application/json")


ROUTES = (
    Route("/schedule", schedule_page),
    Route("/schedule", send, methods=["POST"]),
    Route("/schedule/schedule.json", file),
    Route("/schedule/schedule.csv", file),
)
