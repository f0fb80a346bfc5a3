"""Plan: choose a model and a cluster, look at layouts, compare two, take the launch file along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from weft.cluster.catalogue import Scales
from weft.errors import BadInput
from weft.layout.text import format_layout
from weft.search import SPACES
from weft.verbs.launch import TOOLS
from weft.verbs.plan import PlanOptions
from weft.web.plans import Found, Inquiry, document, explored, launch_file
from weft.web.showing import Shown, address, download, fetch, form_of, message, refuse, show
from weft.web.texts import Texts
from weft.web.views import ranking
from weft.web.views.parts import Message, Picture
from weft.web.work import Failure, Question

if TYPE_CHECKING:
    from weft.cluster import Cluster

DEGREES = ("tp", "pp", "cp", "dp", "ep", "etp")
FACTORS = {
    "nic": "NIC bandwidth",
    "scale_up": "Scale-up bandwidth",
    "hbm": "HBM bandwidth",
    "latency": "Network latency",
    "peak": "Matrix peak",
}
"""Fields of what the hardware is multiplied with, and what they are called."""
SHAPES = ("domain", "oversubscription")
"""Fields of how the accelerators are joined."""
_NUMBERS = ("count", "batch", "sequence", "top")
_TEXTS = ("space", "order", "precision", "stack", "fix")
FIELDS = ("model", "cluster", *_NUMBERS, *_TEXTS, *DEGREES, *FACTORS, *SHAPES)
"""Fields of the form, as the address has them."""
LOOKS = ("layout", "against", "show", "tool")
_SHOWS = ("layouts", "charts", "launch")
_MOST_LAYOUTS = 200


def inquiry_of(given: Mapping[str, str], texts: Texts) -> Inquiry:
    """What the fields of an address ask.

    Raises:
        BadInput: a field that cannot be used.
    """
    numbers = {name: _whole(given, name) for name in _NUMBERS}
    options: dict[str, Any] = {name: given[name] for name in _TEXTS[:-1] if given.get(name)}
    fix = [f"{name}={given[name]}" for name in DEGREES if given.get(name)]
    options |= {"fix": tuple(fix + ([given["fix"]] if given.get("fix") else []))}
    options |= {name: numbers[name] for name in ("batch", "sequence") if numbers[name] is not None}
    return Inquiry(
        model=texts.find("model", given["model"]),
        cluster=texts.find("cluster", given["cluster"]),
        count=numbers["count"],
        options=PlanOptions(top=min(numbers["top"] or 10, _MOST_LAYOUTS), **options),
        scales=Scales(**{name: _number(given, name) for name in FACTORS if given.get(name)}),
        domain=_whole(given, "domain"),
        oversubscription=_number(given, "oversubscription") if given.get("oversubscription") else None,
    )


def _whole(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name, "").replace(",", "").strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise BadInput(f"{text[:40]!r} is no whole number above 0", where=name)
    return int(text)


def _number(given: Mapping[str, str], name: str) -> float:
    try:
        return float(given[name])
    except ValueError:
        raise BadInput(f"{given[name][:40]!r} is no number", where=name, remedy="give one, as 2 or 0.5") from None


async def plan_page(request: Request) -> Response:
    """The form, and the plan that the address asks for."""
    given = {name: request.query_params.get(name, "").strip() for name in (*FIELDS, *LOOKS)}
    context = _context(given)
    if not (given["model"] and given["cluster"]):
        return await show(request, Shown(template="plan.html", context=context))
    try:
        inquiry = inquiry_of(given, request.app.state.texts)
    except BadInput as error:
        return refuse(Shown(template="plan.html", context=context), error)
    look = (given["layout"], given["against"], context["show"], context["tool"])
    return await show(
        request,
        Shown(
            template="plan.html",
            context=context,
            question=Question(explored, (inquiry, *look), progress=True),
            part="plan_answer.html",
            view=lambda found: _view(found, given),
        ),
    )


def _context(given: Mapping[str, str]) -> dict[str, Any]:
    from weft.cluster.catalogue import names as clusters
    from weft.model.catalogue import names as models

    known = _known(given["cluster"])
    return {
        "here": "/plan",
        "given": given,
        "known": known,
        "models": models(),
        "clusters": clusters(),
        "spaces": ("", *SPACES),
        "degrees": DEGREES,
        "factors": FACTORS,
        "supposed": any(given[name] for name in (*FACTORS, *SHAPES)),
        "show": given["show"] if given["show"] in _SHOWS else _SHOWS[0],
        "tools": TOOLS,
        "tool": given["tool"] if given["tool"] in TOOLS else TOOLS[0],
    }


def _known(name: str) -> Cluster | None:
    """The cluster of a name, whose figures the form shows where none are given."""
    from weft.cluster.catalogue import load

    try:
        return load(name)
    except BadInput:
        return None


def _address(given: Mapping[str, str], path: str = "/plan", **changed: str) -> str:
    return address(path, {**given, **changed})


def _view(found: Found, given: Mapping[str, str]) -> dict[str, Any]:
    """What the answer's template shows."""
    plan, chosen = found.plan, found.chosen
    layout = "" if chosen is None else format_layout(chosen.layout)

    def link(text: str) -> str:
        return _address(given, layout=text, against="", show="") + "#layout"

    table = ranking.ranking(
        plan, layout, link, lambda text: _address(given, layout=layout, against=text) + "#difference"
    )
    told = ranking.choice(plan)
    if found.as_it_is is not None:
        told = (ranking.effect(plan, found.as_it_is), *told)
    messages = [Message(text=text) for text in told]
    if not plan.layouts:
        messages.append(
            Message(text=plan.shortage, remedy="Use more accelerators or free a pinned degree.", kind="error")
        )
    asked = {name: given[name] for name in FIELDS}
    return {
        "facts": ranking.summary(plan),
        "messages": messages,
        "table": table if plan.layouts else None,
        "tabs": [(name, _address(given, show=name)) for name in _SHOWS],
        "files": [(kind, _address(asked, f"/plan/plan.{kind}")) for kind in ("json", "csv")],
        "layout": "" if chosen is None else format_layout(chosen.layout, whole=True),
        "flag": f"--layout {layout}" if layout else "",
        "bars": () if chosen is None else ranking.bars(chosen),
        "difference": None if found.compared is None else ranking.differences(found.compared),
        "frontier": ranking.frontier(plan, link),
        "charts": [Picture(svg=svg, caption=caption) for svg, caption in found.charts],
        "other": "" if found.compared is None else format_layout(found.compared.sides[1].estimate.layout, whole=True),
        "launch": found.launch,
        "launch_address": _address(given, "/plan/launch", layout=layout, show="", against=""),
        "problems": [message(Failure("infeasible", found.problem))] if found.problem else [],
        "rejected": ranking.rejections(plan) if plan.rejected else None,
        "tools": [(tool, _address(given, show="launch", tool=tool)) for tool in TOOLS],
    }


async def send(request: Request) -> Response:
    """The form: pasted texts are kept, and the address of the plan follows."""
    form = await form_of(request)
    given = {name: form.get(name, "").strip() for name in (*FIELDS, "show", "tool")}
    given |= request.app.state.texts.keep_pasted(form, ("model", "cluster"))
    return RedirectResponse(_address(given), 303)


async def file(request: Request) -> Response:
    """The plan as a file."""
    form = request.url.path.rpartition(".")[2]
    given = {name: request.query_params.get(name, "").strip() for name in FIELDS}
    inquiry = inquiry_of(given, request.app.state.texts)
    text = await fetch(request, Question(document, (inquiry, form)))
    return download(text, f"plan.{form}", "text/csv" if form == "csv" else "application/json")


async def launch(request: Request) -> Response:
    """The launch file of a layout."""
    given = {name: request.query_params.get(name, "").strip() for name in (*FIELDS, "layout", "tool")}
    asked = (inquiry_of(given, request.app.state.texts), given["layout"], given["tool"] or TOOLS[0])
    name, text = await fetch(request, Question(launch_file, asked))
    return download(text, name, "text/plain")


ROUTES = (
    Route("/plan", plan_page),
    Route("/plan", send, methods=["POST"]),
    Route("/plan/plan.json", file, name="json"),
    Route("/plan/plan.csv", file, name="csv"),
    Route("/plan/launch", launch),
)
