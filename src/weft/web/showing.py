"""How a page with an answer is sent: whole where the answer is there at once, else its head, and the rest when it is.

A page that waits is one response.  The browser paints its form and the progress while the answer is worked out; the
question is cancelled when the browser leaves.  Without script all of it works but the progress.
A request that has no answer raises Refused.
"""

from __future__ import annotations

import secrets
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from weft.errors import BadInput
from weft.views.html import Markup, render
from weft.web.guard import Refused
from weft.web.pages import answer
from weft.web.questions import Asked, Page
from weft.web.texts import Texts
from weft.web.work import Failure, Pool, Question, Ticket

AT_ONCE_S = 0.1
"""A page whose answer is there by then is sent whole."""
MOST_FIELDS = 600
_LOOK_S = 0.5
"""How often it is looked whether the browser is still there."""
STATUS = {"bad-input": 400, "infeasible": 422, "cancelled": 503, "time": 503, "memory": 503, "busy": 503, "bug": 500}
"""Of HTTP, for each ``Failure.code``."""


async def show(request: Request, page: Page, given: dict[str, str]) -> Response:
    """The response of a page: its form, and the answer where enough is asked."""
    asked = None
    try:
        if all(given[name] for name in page.needed):
            asked = asked_of(request, page, given)
    except BadInput as error:
        return _whole(page, given, _failed(Failure("bad-input", str(error))))
    if asked is None:
        return _whole(page, given, (200, ""))
    ticket = ask(request, question(answer, asked, page))
    try:
        if await ticket.wait(AT_ONCE_S):
            told = _answer(ticket, page, given)
            ticket.close()
            return _whole(page, given, told)
        mark = secrets.token_hex(16)  # new for each answer: no field of the request can hold it
        head, _, tail = _page(page, given, mark).partition(mark)
    except BaseException:
        ticket.close()
        raise
    return StreamingResponse(_streamed(request, ticket, page, given, (head, tail)), media_type="text/html")


def asked_of(request: Request, page: Page, given: Mapping[str, str]) -> Asked:
    """What an address asks, with the texts that it names."""
    texts: Texts = request.app.state.texts
    fields = tuple((name, given[name]) for name in page.names if given.get(name))
    named = tuple((name, texts.find(kind, given[name])) for name, kind in page.sources.items() if given.get(name))
    return Asked(page.path, fields, named)


def question(function: Callable[..., Any], asked: Asked, page: Page, *more: str) -> Question:
    """The work of what is made of an answer: ``function`` takes what is asked, and more."""
    return Question(function, (asked, *more), progress=True, long=page.time_s is not None, time_s=page.time_s)


def _page(page: Page, given: Mapping[str, str], text: str) -> str:
    filled = [name for name, value in given.items() if value]
    return render("question.html", here=page.path, page=page, given=given, filled=filled, answer=Markup(text))


def _whole(page: Page, given: Mapping[str, str], told: tuple[int, str]) -> Response:
    return HTMLResponse(_page(page, given, told[1]), told[0])


async def _streamed(
    request: Request, ticket: Ticket, page: Page, given: dict[str, str], frame: tuple[str, str]
) -> AsyncIterator[str]:
    """The page up to its answer, and the rest when that is there."""
    try:
        yield frame[0]
        yield render("waiting.html", number=ticket.number)
        while not await ticket.wait(_LOOK_S):
            if await request.is_disconnected():
                return
        yield _answer(ticket, page, given)[1]
        yield frame[1]
    finally:
        ticket.close()


def _answer(ticket: Ticket, page: Page, given: dict[str, str]) -> tuple[int, str]:
    """Status and text of what a question came to."""
    try:
        blocks = Markup(ticket.result())
        shown = given["show"] if given["show"] in page.shows else page.shows[0]
        tabs = [(name, page.address(given, show=name)) for name in page.shows]
        files = [(name, page.address(given, f"{page.path}/{name.lower().replace(' ', '-')}")) for name in page.files]
        return 200, render("answer.html", blocks=blocks, show=shown, tabs=tabs, files=files)
    except Failure as failure:
        return _failed(failure)
    except Exception as error:
        text = "A fault in Weft: the terminal of weft serve has its trace -- Please report it."
        return _failed(Failure("bug", text, "".join(traceback.format_exception(error))))


def _failed(failure: Failure) -> tuple[int, str]:
    """Status and text of a failure; the trace of a fault goes to the terminal, and the page comes to its end."""
    if failure.detail:
        print(failure.detail, file=sys.stderr, flush=True)
    text, _, remedy = failure.text.partition(" -- ")
    return STATUS[failure.code], render("message.html", text=text, remedy=remedy)


async def fetch(request: Request, question: Question) -> Any:
    """The answer of a question, for a file."""
    ticket = ask(request, question)
    try:
        while not await ticket.wait(_LOOK_S):
            if await request.is_disconnected():
                raise Refused(499, "Gone", "The browser left.")
        return ticket.result()
    except Failure as failure:
        raise Refused(STATUS[failure.code], _TITLES[failure.code], failure.text) from None
    finally:
        ticket.close()


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that was sent; of one that was sent twice, the last."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    try:
        if kind != "application/x-www-form-urlencoded":
            raise ValueError
        text = (await request.body()).decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Refused(400, "That cannot be used", "The request is no form of this server.") from None


def ask(request: Request, question: Question) -> Ticket:
    """Begin a question."""
    pool: Pool = request.app.state.pool
    try:
        return pool.ask(question)
    except Failure as failure:
        raise Refused(STATUS[failure.code], _TITLES[failure.code], failure.text) from None


_TITLES = {
    "bad-input": "That cannot be used",
    "infeasible": "Nothing fits",
    "cancelled": "Cancelled",
    "time": "It takes too long",
    "memory": "It needs too much memory",
    "busy": "Too much to do",
    "bug": "A fault in Weft",
}
