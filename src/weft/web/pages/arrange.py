"""Arrange: hosts as boxes, jobs as colours; move a job and see what it costs, beside what the search finds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from weft.arrangement.site import Goal
from weft.errors import BadInput
from weft.web.guard import Refused
from weft.web.showing import Shown, address, download, fetch, form_of, refuse, show
from weft.web.sites import Answer, Asked, Put, Seen, answered, document, examples, moved, reported, seen
from weft.web.texts import Texts
from weft.web.views import board
from weft.web.work import Question

SITE = ("site", "objective", "oversubscription")
"""Fields of an address that say what is arranged."""
PLACE = ("hosts", "router", "offset", "class", "layouts")
"""Fields that say where jobs were put; values of jobs are parted by semicolons, those of a job's hosts by commas."""
FIELDS = (*SITE, *PLACE, "find")
OBJECTIVES: tuple[str, ...] = get_args(Goal)
_FILES = {"JSON": "arranged.json", "Report": "report.html"}
_PATH = "/arrange"
_MOST_FIND_S = 300
_NUMBERS = 1024


def asked_of(given: Mapping[str, str], texts: Texts) -> Asked:
    """The site that the fields of an address ask for.

    Raises:
        BadInput: a field that cannot be used.
    """
    if given["objective"] and given["objective"] not in OBJECTIVES:
        problem = f"{given['objective'][:40]!r} is no objective"
        raise BadInput(problem, where="objective", remedy=f"choose one of {', '.join(OBJECTIVES)}")
    ratio = _number(given["oversubscription"], "oversubscription") if given["oversubscription"] else None
    return Asked(site=texts.find("site", given["site"]), objective=given["objective"], oversubscription=ratio)


def put_of(given: Mapping[str, str]) -> Put:
    """Where the fields of an address put the jobs.

    Raises:
        BadInput: a field that cannot be used.
    """
    return Put(
        hosts=tuple(_wholes(one, ",", "hosts") for one in given["hosts"].split(";")) if given["hosts"] else (),
        router=given["router"],
        offset_s=tuple(_number(one, "offset") for one in given["offset"].split(";")) if given["offset"] else (),
        classes=_wholes(given["class"], ";", "class") if given["class"] else (),
        layouts=tuple(given["layouts"].split(";")) if given["layouts"] else (),
    )


def fields_of(put: Put) -> dict[str, str]:
    """What was put, as fields of an address."""
    return {
        "hosts": ";".join(",".join(map(str, one)) for one in put.hosts),
        "router": put.router,
        "offset": ";".join(str(one) for one in put.offset_s) if any(put.offset_s) else "",
        "class": ";".join(map(str, put.classes)) if any(put.classes) else "",
        "layouts": ";".join(put.layouts),
    }


def _number(text: str, where: str) -> float:
    """A number from 0 to a million."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1e6:
        raise BadInput(f"{text[:40]!r} is no number from 0 to 1,000,000", where=where, remedy="give one, as 2 or 0.5")
    return found


def _wholes(text: str, by: str, where: str) -> tuple[int, ...]:
    parts = [one.strip() for one in text.split(by)]
    if not all(one.isdecimal() and len(one) < 9 for one in parts) or len(parts) > _NUMBERS:
        raise BadInput(f"{text[:40]!r} are no whole numbers", where=where, remedy="move the jobs anew")
    return tuple(int(one) for one in parts)


def _find_s(given: Mapping[str, str]) -> float:
    """Processor seconds for the search; 0 where it is not asked for.

    Raises:
        BadInput: they are too many, or no number.
    """
    found = _number(given["find"], "seconds") if given["find"] else 0.0
    if found > _MOST_FIND_S:
        problem = f"{found:g} s are more than {_MOST_FIND_S}"
        raise BadInput(problem, where="seconds", remedy="use weft arrange for longer searches")
    return found


def _search(asked: Asked, seconds: float) -> Question:
    """The search; it goes on while jobs are moved beside it."""
    return Question(answered, (asked, seconds), progress=True, time_s=2 * seconds + 120, long=True, kept=True)


async def arrange_page(request: Request) -> Response:
    """The form, the hosts with their jobs, and beside them what the search found."""
    given = {name: request.query_params.get(name, "").strip() for name in (*FIELDS, "picked", "at")}
    texts: Texts = request.app.state.texts
    try:
        context = _context(given, texts)
        if not given["site"]:
            return await show(request, Shown(template="arrange.html", context=context))
        asked, put, seconds = asked_of(given, texts), put_of(given), _find_s(given)
    except BadInput as error:
        return refuse(Shown(template="arrange.html", context=_context(given | {"site": ""}, texts)), error)
    found = Shown(
        template="arrange.html",
        question=_search(asked, seconds),
        part="arrange_found.html",
        view=lambda answer: _found(answer, given),
    )
    here = Shown(
        template="arrange.html",
        context=context,
        question=Question(seen, (asked, put)),
        part="arrange_board.html",
        view=lambda one: _board(one, given),
        then=found if seconds else None,
    )
    return await show(request, here)


def _text(given: Mapping[str, str], texts: Texts) -> str:
    """The text of the site; empty without one, or where there is none of its name."""
    if not given["site"]:
        return ""
    source = texts.find("site", given["site"])
    return source.pasted or examples().get(source.name, "")


def _context(given: Mapping[str, str], texts: Texts) -> dict[str, Any]:
    return {
        "here": _PATH,
        "given": given,
        "examples": [(name, address(_PATH, {"site": name})) for name in examples()],
        "objectives": ("", *OBJECTIVES),
        "text": _text(given, texts) or next(iter(examples().values())),
        "kept": [(name, given[name]) for name in ("site", *PLACE) if given[name]],
        "back": "",
    }


def _board(one: Seen, given: Mapping[str, str]) -> dict[str, Any]:
    """What the template of the hosts shows."""
    picked = given["picked"]
    put = fields_of(one.put)
    state = {name: given[name] for name in (*SITE, "find")} | put
    return {
        "all": board.board(one, picked),
        "crews": board.crews(one, picked),
        "result": board.result(one),
        "jobs": board.jobs(one),
        "links": board.links(one),
        "state": [(name, value) for name, value in state.items() if value],
        "picked": picked,
        "focus": picked or given["at"],
        "given_up": address(_PATH, state),
        "as_given": address(_PATH, {name: given[name] for name in (*SITE, "find")})
        if any(map(given.get, PLACE))
        else "",
        "routers": one.routers,
        "router": one.put.router,
        "classes": [str(level) for level in range(one.classes)],
        "times": [
            (number, job.name, f"{one.put.offset_s[number]:.6g}", str(one.put.classes[number]))
            for number, job in enumerate(one.jobs)
        ],
    }


def _found(answer: Answer, given: Mapping[str, str]) -> dict[str, Any]:
    """What the template of the search shows."""
    site = {name: given[name] for name in (*SITE, "find")}
    return {
        "answer": answer,
        "all": board.board(answer.seen, ""),
        "take": address(_PATH, site | fields_of(answer.seen.put)),
        "files": [(kind, address(f"{_PATH}/{name}", site)) for kind, name in _FILES.items()],
    }


async def send(request: Request) -> Response:
    """The form: a pasted text is kept, and the address of the page follows."""
    form = await form_of(request)
    given = {name: form.get(name, "").strip() for name in FIELDS}
    texts: Texts = request.app.state.texts
    text = form.get("site_text", "").replace("\r\n", "\n").strip()
    if text and text != _text(given, texts).strip():
        given = {name: given[name] for name in (*SITE, "find")} | {"site": texts.keep("site", text)}
    for name in ("offset", "class"):
        values = [form[f"{name}_{at}"].strip() or "0" for at in range(_NUMBERS) if f"{name}_{at}" in form]
        if values:
            given[name] = ";".join(values) if set(values) != {"0"} else ""
    return RedirectResponse(address(_PATH, given), 303)


async def move(request: Request) -> Response:
    """A press on the board: it picks up a job or a host, or puts down what is picked."""
    form = await form_of(request)
    given = {name: form.get(name, "").strip() for name in FIELDS}
    picked = form.get("picked", "").strip()
    pressed = next((f"{name}:{form[name]}" for name in ("host", "job") if form.get(name)), "")
    kind, _, number = picked.partition(":")
    if not picked or picked == pressed or pressed.startswith("job:"):
        now = "" if picked == pressed else pressed
        return RedirectResponse(address(_PATH, given | {"picked": now, "at": "" if now else pressed}), 303)
    try:
        asked, put = asked_of(given, request.app.state.texts), put_of(given)
        (at,), (onto,) = _wholes(number, ",", "move"), _wholes(form.get("host", ""), ",", "move")
        after = await fetch(request, Question(moved, (asked, put, kind, at, onto)))
    except (BadInput, Refused) as error:
        context = _context(given, request.app.state.texts) | {"back": address(_PATH, given)}
        return refuse(Shown(template="arrange.html", context=context), error)
    return RedirectResponse(address(_PATH, given | fields_of(after) | {"at": f"host:{onto}"}), 303)


async def file(request: Request) -> Response:
    """What the search found, as a file."""
    given = {name: request.query_params.get(name, "").strip() for name in FIELDS}
    asked, seconds = asked_of(given, request.app.state.texts), _find_s(given)
    answer: Answer = await fetch(request, _search(asked, seconds))
    name = request.url.path.rpartition("/")[2]
    if name == _FILES["JSON"]:
        return download(document(answer.packed), name, "application/json")
    return download(await fetch(request, Question(reported, (answer.packed,))), name, "text/html")


ROUTES = (
    Route("/arrange", arrange_page),
    Route("/arrange", send, methods=["POST"]),
    Route("/arrange/move", move, methods=["POST"]),
    Route("/arrange/arranged.json", file, name="arranged"),
    Route("/arrange/report.html", file, name="arranged report"),
)
