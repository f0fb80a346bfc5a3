"""Studies: how far those are that run, charts and tables of those that ended, and a form to begin a small one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from weft.views.words import printable
from weft.web import studies
from weft.web.showing import STATUS, Shown, answered, ask, download, fetch, form_of, message, show
from weft.web.studies import Found
from weft.web.templates import render
from weft.web.views.parts import Cell, Column, Message, Table
from weft.web.views.study import NONE, Look, StudyView
from weft.web.work import Failure, Pool, Question, Ticket

_PLACES = ("x", "y", "colour", "facet")
FIELDS = ("where", *_PLACES)
"""Fields of a look, as the address has them."""
_LOOK_S = 0.5
"""How often it is looked how far a study is."""
_MEDIA = {"csv": "text/csv", "json": "application/json", "html": "text/html"}
EXAMPLE = """\
schema = "weft.study/1"
name = "slower NICs"
compute = "estimate"

[axes]
model = "llama-3.1-8b"
cluster = "h100"
layout = ["tp=2,sp", "tp=8,sp"]
count = [64, 256, 1024]
batch = 1024
nic_bandwidth = ["50 Gb/s", "100 Gb/s", "200 Gb/s", "400 Gb/s"]
"""


def look_of(given: Mapping[str, str]) -> Look:
    """What the fields of an address look at."""
    return Look(where=(given["where"],) if given["where"] else (), **{name: given[name] for name in _PLACES})


async def studies_page(request: Request) -> Response:
    """The studies of the server's folder, and the form."""
    return HTMLResponse(await _list(request, EXAMPLE, ()))


async def _list(request: Request, text: str, problems: tuple[Message, ...]) -> str:
    known = await asyncio.to_thread(studies.found_in, request.app.state.folder)
    running = [one.name for one in known if _running(request, one)]
    return render(
        "studies.html",
        here="/studies",
        table=_table(known, running) if known else None,
        text=text,
        problems=problems,
        most=studies.MOST_POINTS,
        minutes=studies.TIME_S / 60,
    )


def _table(known: list[Found], running: list[str]) -> Table:
    columns = (
        Column(heading="study", number=False),
        Column(heading="folder", number=False),
        Column(heading="computes", number=False),
        Column(heading="points"),
        Column(heading="results"),
        Column(heading="state", number=False),
    )
    rows = tuple(
        (
            Cell(text=printable(one.progress.study), link=f"/studies/{one.name}"),
            Cell(text=printable(one.inside)),
            Cell(text=printable(one.progress.compute)),
            Cell(text=f"{one.progress.points:,}", key=one.progress.points),
            Cell(text=f"{one.progress.known:,}", key=one.progress.known),
            Cell(text="running" if one.name in running else one.state),
        )
        for one in known
    )
    return Table(name="studies", caption="Studies in the server's folder", columns=columns, rows=rows)


def _progress(one: Found) -> dict[str, Any]:
    """What the page shows of a study under way."""
    known = one.progress.known
    return {"own": one.text is not None, "known": known, "whole": max(known + one.progress.left, 1)}


async def begin(request: Request) -> Response:
    """The form: a study of the pasted text begins, and its page follows."""
    text = (await form_of(request)).get("study", "").replace("\r\n", "\n").strip() + "\n"
    try:
        progress = await answered(request, Question(studies.checked, (text,)))
    except Failure as failure:
        return HTMLResponse(await _list(request, text, (message(failure),)), STATUS[failure.code])
    folder: Path = request.app.state.folder
    place = await asyncio.to_thread(studies.begun, folder, text, progress)
    ask(request, _question(place, text)).close()
    return _to(studies.name_of(folder, place))


async def again(request: Request) -> Response:
    """Let a study that ended early go on."""
    found = await _found(request)
    if found.text is None:
        raise HTTPException(404)
    ask(request, _question(found.folder, found.text)).close()
    return _to(found.name)


async def cancel(request: Request) -> Response:
    """End a study that this server computes; what was computed is kept."""
    found = await _found(request)
    ticket = _ticket(request, found)
    if ticket is not None:
        ticket.cancel()
        await ticket.wait(2.0)
    return _to(found.name)


def _to(name: str) -> Response:
    return RedirectResponse(f"/studies/{name}", 303)


def _question(place: Path, text: str) -> Question:
    arguments = (str(place), text)
    return Question(
        studies.computed, arguments, progress=True, time_s=studies.TIME_S, long=True, kept=True, cached=False
    )


def _ticket(request: Request, found: Found) -> Ticket | None:
    """A ticket for a study that this server computes, or has computed just now."""
    pool: Pool = request.app.state.pool
    return None if found.text is None else pool.find(_question(found.folder, found.text))


def _running(request: Request, found: Found) -> bool:
    ticket = _ticket(request, found)
    if ticket is None:
        return found.state == "running"
    ticket.close()
    return not ticket.done or found.state == "running"


async def _found(request: Request) -> Found:
    """The study that an address names."""
    folder: Path = request.app.state.folder
    found = await asyncio.to_thread(studies.find, folder, request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return found


async def study_page(request: Request) -> Response:
    """A study: how far it is, or what came out."""
    found = await _found(request)
    given = _given(request)
    context: dict[str, Any] = {
        "here": "/studies",
        "title": printable(found.progress.study),
        "place": f"/studies/{found.name}",
        "given": given,
        "running": None,
        "problems": (),
        "again": False,
    }
    if _running(request, found):
        return await show(request, Shown(template="study.html", context=context | {"running": _progress(found)}))
    if found.progress.left:
        context |= {"problems": (_ended(request, found),), "again": found.text is not None}
    return await show(
        request,
        Shown(
            template="study.html",
            context=context,
            question=Question(studies.looked_at, (str(found.folder), found.stamp, look_of(given))),
            part="study_answer.html",
            view=lambda view: _view(view, found, given),
        ),
    )


def _given(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in FIELDS}


def _ended(request: Request, found: Found) -> Message:
    """Why a study is not whole."""
    counts = f"{found.progress.known:,} of {found.progress.known + found.progress.left:,} results are there"
    ticket, why = _ticket(request, found), ""
    if ticket is not None:
        try:
            if ticket.done:
                ticket.result()
        except Failure as failure:
            why = failure.text
        ticket.close()
    goes_on = "Let it go on." if found.text is not None else "The same weft sweep command goes on."
    return Message(text=f"It ended early: {counts}. {why}".strip(), remedy=goes_on, kind="warning")


def _view(view: StudyView, found: Found, given: Mapping[str, str]) -> dict[str, Any]:
    """What the answer's template shows."""
    query = urlencode({name: value for name, value in given.items() if value})
    return {
        "view": view,
        "columns": ("", *view.names),
        "numbers": ("", *view.numbers),
        "some": ("", NONE, *view.names),
        "files": [(form, f"/studies/{found.name}/{file}?{query}") for form, file in _FILES.items()],
    }


_FILES = {"csv": "rows.csv", "json": "rows.json", "report": "report.html"}


async def events(request: Request) -> Response:
    """How far a study is, as server-sent events; the last one is named ``end``."""
    return StreamingResponse(_told(request, await _found(request)), media_type="text/event-stream")


async def _told(request: Request, found: Found) -> AsyncIterator[str]:
    told = None
    now: Found | None = found
    while now is not None and _running(request, now) and not await request.is_disconnected():
        known, left = now.progress.known, now.progress.left
        if (known, left) != told:
            told = known, left
            yield f"data: {json.dumps({'done': known, 'total': known + left})}\n\n"
        await asyncio.sleep(_LOOK_S)
        now = await asyncio.to_thread(studies.at, request.app.state.folder, found.folder)
    yield "event: end\ndata: {}\n\n"


async def file(request: Request) -> Response:
    """The rows of a look, or its report."""
    found = await _found(request)
    name = request.url.path.rpartition("/")[2]
    form = name.rpartition(".")[2]
    text = await fetch(
        request, Question(studies.written, (str(found.folder), found.stamp, look_of(_given(request)), form))
    )
    return download(text, name, _MEDIA[form])


ROUTES = (
    Route("/studies", studies_page),
    Route("/studies", begin, methods=["POST"]),
    Route("/studies/{name}", study_page),
    Route("/studies/{name}/events", events),
    Route("/studies/{name}/run", again, methods=["POST"]),
    Route("/studies/{name}/cancel", cancel, methods=["POST"]),
    *(Route(f"/studies/{{name}}/{one}", file, name=one) for one in _FILES.values()),
)
