"""Network: fabrics side by side, one with parts failed by a click, and routes before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from weft.cluster.catalogue import Scales
from weft.errors import BadInput, UnknownName
from weft.fabric.catalogue import check_kinds, kinds
from weft.layout.text import format_layout
from weft.units import counted, parse_whole
from weft.verbs.plan import PlanOptions
from weft.web.fabrics import Compared, Degraded, Failures, Routed, Scene, compared, degraded, document, routed
from weft.web.plans import Inquiry
from weft.web.showing import Shown, address, download, fetch, form_of, refuse, show
from weft.web.texts import Texts
from weft.web.views import network as view
from weft.web.views.parts import Message, Picture
from weft.web.work import Question

FIELDS = ("model", "cluster", "count", "batch", "layout", "fabric", "radix", "routing", "kinds", "failed")
"""Fields of the form, as the address has them."""
LOOKS = ("show", "router", "zoom")
SHOWS = ("networks", "failures", "routes")
ROUTINGS = ("ecmp", "spray", "random", "planned")
ROUTERS = ("auto", "greedy", "repair", "ecmp", "spray")
"""Those that keep flows whole, so that paths can be held beside each other."""
ZOOMS = ("1", "2", "4")
_KINDS = ("rail-only", "rail-optimized", "fat-tree")
_MOST_FAILED = 64
_LONGEST_S = 600.0


def scene_of(given: Mapping[str, str], texts: Texts) -> Scene:
    """What the fields of an address ask.

    Raises:
        BadInput: a field that cannot be used.
        UnknownName: there is no such kind of network.
    """
    network = texts.find("fabric", given["fabric"])
    if network.name and network.pasted is None:
        check_kinds([network.name])
    if given["routing"] and given["routing"] not in ROUTINGS:
        raise UnknownName("routing", given["routing"][:40], ROUTINGS)
    radix = parse_whole(given["radix"], "radix") if given["radix"] else 64
    if not 2 <= radix <= 4096:
        raise BadInput(f"{radix} is out of range", where="radix", remedy="give 2 to 4,096")
    options: dict[str, Any] = {"batch": given["batch"]} if given["batch"] else {}
    inquiry = Inquiry(
        model=texts.find("model", given["model"]),
        cluster=texts.find("cluster", given["cluster"]),
        count=parse_whole(given["count"], "accelerators") if given["count"] else None,
        options=PlanOptions(top=1, **options),
        scales=Scales(),
    )
    routing = given["routing"] or ROUTINGS[0]
    return Scene(inquiry=inquiry, layout=given["layout"], network=network, radix=radix, routing=routing)


def failures_of(given: Mapping[str, str]) -> Failures:
    """What is down, as the address has it.

    Raises:
        BadInput: too much.
    """
    names = tuple(dict.fromkeys(name for one in given["failed"].split(",") if (name := one.strip())))
    if len(names) > _MOST_FAILED:
        problem = f"{len(names)} parts"
        raise BadInput(problem, where="failed", remedy=f"give {_MOST_FAILED} at most")
    return Failures(names=names, address=_address({**given, "failed": ""}))


def _kinds_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """The networks that are held side by side.

    Raises:
        UnknownName: there is no such kind.
    """
    names = tuple(dict.fromkeys(one.strip() for one in given["kinds"].split(",") if one.strip())) or _KINDS
    check_kinds(names)
    return names


def _address(given: Mapping[str, str], path: str = "/network", **changed: str) -> str:
    return address(path, {**given, **changed})


async def network_page(request: Request) -> Response:
    """The form, and what the address asks for."""
    given = {name: request.query_params.get(name, "").strip() for name in (*FIELDS, *LOOKS)}
    look = given["show"] = given["show"] if given["show"] in SHOWS else SHOWS[0]
    given["zoom"] = given["zoom"] if given["zoom"] in ZOOMS[1:] else ""
    given["router"] = given["router"] if given["router"] in ROUTERS[1:] else ""
    shown = Shown(template="network.html", context=_context(given))
    if not (given["model"] and given["cluster"]):
        return await show(request, shown)
    try:
        scene, failures = scene_of(given, request.app.state.texts), failures_of(given)
        asked: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
            "networks": (compared, (scene, _kinds_of(given)), _networks),
            "failures": (degraded, (scene, failures), _failures),
            "routes": (routed, (scene, failures, given["router"] or ROUTERS[0]), _routes),
        }
    except BadInput as error:
        return refuse(shown, error)
    function, arguments, seen = asked[look]
    return await show(
        request,
        Shown(
            template="network.html",
            context=shown.context,
            question=Question(function, arguments, progress=True, long=True, time_s=_LONGEST_S),
            part=f"network_{look}.html",
            view=lambda found: seen(found, given) | _common(given, failures),
        ),
    )


def _context(given: Mapping[str, str]) -> dict[str, Any]:
    from weft.cluster.catalogue import names as clusters
    from weft.model.catalogue import names as models

    chosen = {one.strip() for one in given["kinds"].split(",") if one.strip()} or set(_KINDS)
    return {
        "here": "/network",
        "given": given,
        "models": models(),
        "clusters": clusters(),
        "kinds": kinds(),
        "chosen": chosen,
        "routings": ROUTINGS,
    }


def _common(given: Mapping[str, str], failures: Failures) -> dict[str, Any]:
    """Where the page leads, whatever it shows."""
    files = {"networks": "design", "failures": "simulate", "routes": "route"}
    return {
        "tabs": [(name, _address(given, show=name)) for name in SHOWS],
        "file": _address(given, f"/network/{files[given['show']]}.json"),
        "failed": [(name.replace(":", " to "), failures.toggled(name)) for name in failures.names],
        "whole": failures.address,
        "zoom": given["zoom"] or ZOOMS[0],
        "zooms": [(one, _address(given, zoom="" if one == ZOOMS[0] else one) + "#picture") for one in ZOOMS],
    }


def _networks(found: Compared, given: Mapping[str, str]) -> dict[str, Any]:
    """What the template of the networks shows."""
    study = found.study

    def place(kind: str, layout: str) -> str:
        return _address(given, show="failures", fabric=kind, layout=layout, failed="")

    layouts = {one.kind: format_layout(one.layout) for one in study.designs}
    pictures = [(Picture(svg=svg, caption=kind), place(kind, layouts[kind])) for kind, svg in found.pictures]
    caption = "Cost of the network against the time of an iteration"
    return {
        "table": view.networks(study, lambda one: place(one.kind, format_layout(one.layout))),
        "failures": view.failures(study),
        "chart": Picture(svg=found.chart, caption=caption) if found.chart else None,
        "pictures": pictures,
        "messages": [
            Message(text=f"Not compared: {one.kind}: {one.reason.partition(' -- ')[0]}", kind="warning")
            for one in study.rejected
        ],
    }


def _failures(found: Degraded, given: Mapping[str, str]) -> dict[str, Any]:
    """What the template of failures shows."""
    failures = failures_of(given)
    return {
        "site": view.site(found.site),
        "outcome": view.outcome(found),
        "messages": _cut_off(found.lost),
        "svg": found.svg,
        "tables": [view.links(found, failures.toggled), view.collectives(found), view.tiers(found)],
    }


def _cut_off(lost: int) -> list[Message]:
    if not lost:
        return []
    text = f"{counted(lost, 'accelerator')} of the job cut off: it cannot run on all of them."
    return [Message(text=text, remedy="Repair a part, or take a network with other ways.", kind="warning")]


def _routes(found: Routed, given: Mapping[str, str]) -> dict[str, Any]:
    """What the template of routes shows."""
    return {
        "site": view.site(found.site),
        "messages": _cut_off(found.lost),
        "table": view.routers(found),
        "sides": found.sides,
        "flows": view.flows(found) if found.flows else None,
        "routers": [(one, _address(given, router="" if one == ROUTERS[0] else one)) for one in ROUTERS],
        "router": given["router"] or ROUTERS[0],
    }


async def send(request: Request) -> Response:
    """The form; its address follows."""
    form = await form_of(request)
    given = {name: form.get(name, "").strip() for name in (*FIELDS, "show")}
    given["kinds"] = ",".join(kind for kind in kinds() if form.get(f"kind_{kind}"))
    given |= request.app.state.texts.keep_pasted(form, ("model", "cluster", "fabric"))
    if form.get("fabric_text", "").strip() and given["show"] not in SHOWS[1:]:
        given["show"] = SHOWS[1]  # the networks side by side are those of kinds
    return RedirectResponse(_address(given), 303)


async def file(request: Request) -> Response:
    """What a page shows, as a JSON document."""
    name = request.url.path.rpartition("/")[2].removesuffix(".json")
    given = {one: request.query_params.get(one, "").strip() for one in (*FIELDS, *LOOKS)}
    scene, failures = scene_of(given, request.app.state.texts), failures_of(given)
    router = given["router"] if given["router"] in ROUTERS else ROUTERS[0]
    more = _kinds_of(given) if name == "design" else (router,)
    question = Question(document, (scene, name, failures.names, more), long=True, time_s=_LONGEST_S)
    return download(await fetch(request, question), f"{name}.json", "application/json")


ROUTES = (
    Route("/network", network_page),
    Route("/network", send, methods=["POST"]),
    *(Route(f"/network/{name}.json", file) for name in ("design", "simulate", "route")),
)
