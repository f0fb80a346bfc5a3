"""The application: the pages, the files they use, the progress of work, and errors as pages.

An answer that is ready within ``AT_ONCE_S`` is sent as one page.  Otherwise the browser gets the form and the progress
first, and the rest of the same response when the answer is ready; the question is cancelled when the browser leaves.
Without script everything but the progress works.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.errors import BadInput, WeftError
from weft.views.html import STATIC, Markup, render, static
from weft.web.pages import PAGES, PLAN, Page, PageRequest, Texts, answer, file
from weft.web.work import Failure, Pool, Question, Ticket

_PROGRESS_S = 0.2
_DAY = "max-age=86400"
AT_ONCE_S = 0.1
"""A page whose answer is there by then is sent whole."""
MOST_FIELDS = 600
_LOOK_S = 0.5
"""How often it is looked whether the browser is still there."""
_FAILURES = {
    "bad-input": (400, "That cannot be used"),
    "infeasible": (422, "Nothing fits"),
    "cancelled": (503, "Cancelled"),
    "time": (503, "It takes too long"),
    "memory": (503, "It needs too much memory"),
    "busy": (503, "Too much to do"),
    "bug": (500, "A fault in Weft"),
}
"""Status of HTTP and title for each ``Failure.code``."""


class Refused(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP.
        title: what it is called.
        text: why, and what to do.
    """

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text


def application(pool: Pool, state: Path, hosts: Iterable[str]) -> Starlette:
    """The application.

    Args:
        pool: where work is done; it ends with the application.
        state: folder of what is kept: pasted texts.
        hosts: names of this server, as 127.0.0.1:8787.
    """

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        starting = asyncio.create_task(pool.start())
        yield
        starting.cancel()
        pool.close()

    app = Starlette(
        routes=[*_ROUTES, *_page_routes()],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={HTTPException: _refuse, WeftError: _refuse, Exception: _refuse},
        lifespan=life,
    )
    app.state.pool, app.state.texts, app.state.folder = pool, Texts(state / "texts"), state
    return app


def _page_routes() -> list[Route]:
    """The form, the answer and the files of every page; the plan is at the root too."""
    return [
        Route("/", partial(_show, PLAN)),
        *(Route(page.path, partial(_show, page)) for page in PAGES.values()),
        *(Route(page.path, partial(_send, page), methods=["POST"]) for page in PAGES.values()),
        *(
            Route(path, partial(_file, page, name))
            for page in PAGES.values()
            for name, path in page.file_paths.items()
        ),
    ]


def _fields(request: Request, page: Page) -> dict[str, str]:
    """The fields of an address; those of the page's example where the address has none."""
    fields = page.example if not request.query_params else request.query_params
    return {name: fields.get(name, "").strip() for name in page.names}


async def _send(page: Page, request: Request) -> Response:
    """The form that was sent: pasted texts are kept, and the address of the answer follows."""
    form = await _form(request)
    given = {name: form.get(name, "").strip() for name in page.names}
    given |= request.app.state.texts.keep_pasted(form, page.sources.values())
    return RedirectResponse(page.address(given), 303)


async def _file(page: Page, name: str, request: Request) -> Response:
    """A file of a page."""
    asked = _asked(request, page, _fields(request, page))
    file_name, kind, text = await _fetch(request, _question(file, asked, page, name))
    headers = {"Content-Disposition": f'attachment; filename="{file_name}"'}
    return Response(text, media_type=kind, headers=headers)


async def _show(page: Page, request: Request) -> Response:
    """A page: its form, and the answer where enough is asked."""
    given, asked = _fields(request, page), None
    try:
        if all(given[name] for name in page.needed):
            asked = _asked(request, page, given)
    except BadInput as error:
        return _whole(page, given, _failed(Failure("bad-input", str(error))))
    if asked is None:
        return _whole(page, given, (200, ""))
    ticket = _ask(request, _question(answer, asked, page))
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


def _asked(request: Request, page: Page, given: Mapping[str, str]) -> PageRequest:
    """What an address asks, with the texts that it names."""
    texts: Texts = request.app.state.texts
    fields = tuple((name, given[name]) for name in page.names if given.get(name))
    named = tuple((name, texts.find(kind, given[name])) for name, kind in page.sources.items() if given.get(name))
    return PageRequest(page.path, fields, named)


def _question(function: Callable[..., Any], asked: PageRequest, page: Page, *more: str) -> Question:
    """The work behind a page or a file: ``function`` takes the fields of the page, and ``more``."""
    return Question(function, (asked, *more), progress=True, time_s=page.time_s)


def _page(page: Page, given: Mapping[str, str], text: str) -> str:
    filled = {name: value for name, value in given.items() if value}
    context = {
        "given": given,
        "filled": filled,
        "example": bool(filled) and filled == page.example,
        "answer": Markup(text),
    }
    return render("question.html", here=page.path, page=page, **context)


def _whole(page: Page, given: Mapping[str, str], told: tuple[int, str]) -> Response:
    return HTMLResponse(_page(page, given, told[1]), told[0])


async def _streamed(
    request: Request, ticket: Ticket, page: Page, given: dict[str, str], frame: tuple[str, str]
) -> AsyncIterator[str]:
    """The page up to its answer, then the rest when the answer is ready."""
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
        shown = page.shown(given["show"])
        tabs = [(name, page.address(given, show=name)) for name in page.shows]
        files = [(name, page.address(given, path)) for name, path in page.file_paths.items()]
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
    return _FAILURES[failure.code][0], render("message.html", text=text, remedy=remedy)


async def _fetch(request: Request, question: Question) -> Any:
    """The answer of a question, for a file."""
    ticket = _ask(request, question)
    try:
        while not await ticket.wait(_LOOK_S):
            if await request.is_disconnected():
                raise Refused(499, "Gone", "The browser left.")
        return ticket.result()
    except Failure as failure:
        raise Refused(*_FAILURES[failure.code], failure.text) from None
    finally:
        ticket.close()


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form that was sent; of one that was sent twice, the last."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    try:
        if kind != "application/x-www-form-urlencoded":
            raise ValueError
        text = (await request.body()).decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Refused(400, "That cannot be used", "The request is not a form of this server.") from None


def _ask(request: Request, question: Question) -> Ticket:
    """Begin a question."""
    pool: Pool = request.app.state.pool
    try:
        return pool.ask(question)
    except Failure as failure:
        raise Refused(*_FAILURES[failure.code], failure.text) from None


def _error_page(title: str, text: str) -> str:
    return render("error.html", heading=title, text=text)


async def _refuse(request: Request, error: Exception) -> Response:
    """The page of an error; the trace of a fault is on the terminal alone."""
    status, title, text = 500, "A fault in Weft", "The terminal of weft serve has its trace. Please report it."
    if isinstance(error, WeftError):
        status, title, text = 400, "That cannot be used", str(error)
    elif isinstance(error, HTTPException):
        status, title, text = error.status_code, "Not answered", "The request cannot be answered."
        if status == 404:
            title, text = "No such page", "There is nothing at this address."
    return HTMLResponse(_error_page(title, text), status)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    return Response(static(name), headers={"Content-Type": STATIC[name], "Cache-Control": _DAY})


async def _events(request: Request) -> Response:
    """The progress of a ticket, as server-sent events; the last one is named ``end``.

    A ticket may be gone before the browser asks for its progress: then there is nothing but the end.
    """
    return StreamingResponse(_told(request, _ticket(request)), media_type="text/event-stream")


async def _told(request: Request, ticket: Ticket | None) -> AsyncIterator[str]:
    told = None
    while ticket is not None and not ticket.done and not await request.is_disconnected():
        if ticket.progress != told:
            told = ticket.progress
            yield f"data: {json.dumps({'done': told[0], 'total': told[1]} if told else {})}\n\n"
        await asyncio.sleep(_PROGRESS_S)
    yield "event: end\ndata: {}\n\n"


async def _cancel(request: Request) -> Response:
    """End the work of a ticket; the page that waits says so."""
    ticket = _ticket(request)
    if ticket is not None:
        ticket.cancel()
    return Response(status_code=204)


def _ticket(request: Request) -> Ticket | None:
    pool: Pool = request.app.state.pool
    return pool.ticket(request.path_params["number"])


_ROUTES = (
    Route("/static/{name}", _static),
    Route("/progress/{number}/events", _events),
    Route("/progress/{number}/cancel", _cancel, methods=["POST"]),
)

# What stands between the browser and the pages ------------------------------------------------------------
#
# The server listens on this machine alone.  A page of another site can still send requests to it, or point a name of
# its own at 127.0.0.1 (DNS rebinding), so each request must name this server as its host, what changes something must
# come from a page of this server, and a body has a limit.


BODY_BYTES = 4_500_000
"""The largest body: a pasted configuration of 4 MB and what a form adds to it."""
QUERY_BYTES = 16_000
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Nothing but files of this server; no script and no style within a page."""
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """The middleware around all pages.

    Args:
        inner: what answers requests that pass.
        hosts: values of the Host header that name this server.
    """

    def __init__(self, inner: ASGIApp, *, hosts: Iterable[str]) -> None:
        self.inner, self.hosts = inner, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self._check(scope)
            await self.inner(scope, receive, guarded)
        except ClientDisconnect:
            return  # an upload was broken off: nobody waits for an answer
        except Refused as refused:
            if begun:
                raise
            page = HTMLResponse(_error_page(refused.title, refused.text), refused.status)
            await page(scope, receive, guarded)

    def _check(self, scope: Scope) -> None:
        """Refuse what another site, or a mistake, sends."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            remedy = f"Open {min(self.hosts)} instead."
            raise Refused(421, "Another host", f"This server does not answer to that name. {remedy}")
        if len(scope["query_string"]) > QUERY_BYTES:
            raise Refused(414, "The address is too long", f"Its query is longer than {QUERY_BYTES:,} characters.")
        site = headers.get("sec-fetch-site", "none")
        if site not in ("same-origin", "none") and (
            scope["method"] == "POST" or headers.get("sec-fetch-mode") != "navigate"
        ):
            raise Refused(403, "From another site", "Another site's page sent this request.")
        if scope["method"] == "POST":
            self._check_post(headers, hosts[0])

    def _check_post(self, headers: Headers, host: str) -> None:
        if headers.getlist("origin") != [f"http://{host}"]:
            raise Refused(403, "From another site", "Forms are taken from pages of this server alone.")
        length = headers.get("content-length", "")  # a browser says it, and the server holds it to that
        if not length.isdecimal() or int(length[:12]) > BODY_BYTES:
            raise Refused(413, "Too much text", f"A form may hold {BODY_BYTES / 1e6:g} MB at most.")
