"""How a page with an answer is sent: whole where the answer is there at once, else its head, and the rest when it is.

A page that waits is one response.  The browser paints its form and the progress while the answer is worked out; the
question is cancelled when the browser leaves.  Without script all of it works but the progress.
"""

from __future__ import annotations

import secrets
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from weft.errors import BadInput, WeftError
from weft.web.guard import Refused
from weft.web.templates import render
from weft.web.views.parts import Message
from weft.web.work import Failure, Pool, Question, Ticket

AT_ONCE_S = 0.1
"""A page whose answer is there by then is sent whole."""
MOST_FIELDS = 600
_LOOK_S = 0.5
"""How often it is looked whether the browser is still there."""
STATUS = {"bad-input": 400, "infeasible": 422, "cancelled": 503, "time": 503, "memory": 503, "busy": 503, "bug": 500}
"""Of HTTP, for each ``Failure.code``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page and the question that it shows.

    Attributes:
        template: of the page; it puts ``answer`` where the answer goes.
        context: of the template.
        question: None where nothing is asked yet.
        part: template of the answer; it gets the context and ``found``.
        view: makes ``found`` of the answer.
        then: a further question, whose answer follows this one's; its template and context are not used.
    """

    template: str
    context: dict[str, Any] = field(default_factory=dict)
    question: Question | None = None
    part: str = ""
    view: Callable[[Any], Any] = lambda found: found
    then: Shown | None = None


async def show(request: Request, shown: Shown) -> Response:
    """The response of a page."""
    asked: list[tuple[Shown, Ticket]] = []
    try:
        part: Shown | None = shown
        while part is not None and part.question is not None:
            asked.append((part, ask(request, part.question)))
            part = part.then
        texts = []
        for one, ticket in asked:
            if not await ticket.wait(AT_ONCE_S):
                break
            texts.append(_answer(ticket, one, shown.context))
        status, text = texts[0][0] if texts else 200, Markup("".join(one for _, one in texts))
        if len(texts) == len(asked):
            page = render(shown.template, **shown.context, answer=text)
            _close(asked)
            return HTMLResponse(page, status)
        mark = secrets.token_hex(16)  # new for each answer: no field of the request can hold it
        head, _, tail = render(shown.template, **shown.context, answer=text + mark).partition(mark)
    except BaseException:
        _close(asked)
        raise
    stream = _streamed(request, asked, len(texts), (head, tail), shown.context)
    return StreamingResponse(stream, status, media_type="text/html")


def _close(asked: list[tuple[Shown, Ticket]]) -> None:
    for _, ticket in asked:
        ticket.close()


async def _streamed(
    request: Request, asked: list[tuple[Shown, Ticket]], first: int, page: tuple[str, str], context: dict[str, Any]
) -> AsyncIterator[str]:
    """The page up to its first answer that is not there, and the rest when that is."""
    try:
        yield page[0]
        for one, ticket in asked[first:]:
            if not ticket.done:
                yield render("waiting.html", number=ticket.number)
            while not await ticket.wait(_LOOK_S):
                if await request.is_disconnected():
                    return
            yield _answer(ticket, one, context)[1]
        yield page[1]
    finally:
        _close(asked)


def _answer(ticket: Ticket, shown: Shown, context: dict[str, Any]) -> tuple[int, str]:
    """Status and text of what a question came to."""
    try:
        return 200, render(shown.part, **context, found=shown.view(ticket.result()))
    except Failure as failure:
        return _failed(failure)
    except WeftError as error:
        return _failed(Failure("bad-input", str(error)))
    except Exception as error:
        text = "A fault in Weft: the terminal of weft serve has its trace -- Please report it."
        return _failed(Failure("bug", text, "".join(traceback.format_exception(error))))


def _failed(failure: Failure) -> tuple[int, str]:
    """Status and text of a failure; the trace of a fault goes to the terminal, and the page comes to its end."""
    if failure.detail:
        print(failure.detail, file=sys.stderr, flush=True)
    return STATUS[failure.code], render("failure.html", message=message(failure))


async def fetch(request: Request, question: Question) -> Any:
    """The answer of a question, for a file.

    Raises:
        Refused: there is none, or the browser left.
    """
    try:
        return await answered(request, question)
    except Failure as failure:
        raise refused(failure) from None


async def answered(request: Request, question: Question) -> Any:
    """The answer of a question that is short.

    Raises:
        Failure: there is none.
        Refused: the browser left.
    """
    ticket = ask(request, question)
    try:
        while not await ticket.wait(_LOOK_S):
            if await request.is_disconnected():
                raise Refused(499, "Gone", "The browser left.")
        return ticket.result()
    finally:
        ticket.close()


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that was sent; of one that was sent twice, the last.

    Raises:
        Refused: it is no form, or has too many fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    try:
        if kind != "application/x-www-form-urlencoded":
            raise ValueError
        text = (await request.body()).decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Refused(400, "That cannot be used", "The request is no form of this server.") from None


def ask(request: Request, question: Question) -> Ticket:
    """Begin a question.

    Raises:
        Refused: too many wait.
    """
    pool: Pool = request.app.state.pool
    try:
        return pool.ask(question)
    except Failure as failure:
        raise refused(failure) from None


def refused(failure: Failure) -> Refused:
    """A failure as a page of its own."""
    return Refused(STATUS[failure.code], _TITLES[failure.code], failure.text)


def message(failure: Failure) -> Message:
    """A failure as a part of a page: what is wrong, and what to change."""
    text, _, remedy = failure.text.partition(" -- ")
    return Message(text=text, remedy=remedy, kind="error")


def refuse(shown: Shown, error: BadInput | Refused) -> Response:
    """A page whose fields cannot be used."""
    part = Markup(render("failure.html", message=message(Failure("bad-input", str(error)))))
    return HTMLResponse(render(shown.template, **shown.context, answer=part), STATUS["bad-input"])


def address(path: str, given: Mapping[str, str]) -> str:
    """The address of a page with what is given; what is empty is left out."""
    return f"{path}?{urlencode({name: value for name, value in given.items() if value})}"


_TITLES = {
    "bad-input": "That cannot be used",
    "infeasible": "Nothing fits",
    "cancelled": "Cancelled",
    "time": "It takes too long",
    "memory": "It needs too much memory",
    "busy": "Too much to do",
    "bug": "A fault in Weft",
}


def download(content: str | bytes, name: str, media_type: str) -> Response:
    """A file to save; ``name`` is made of letters, digits, dots and dashes."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)
