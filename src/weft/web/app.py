"""The application: the pages, the files they use, the progress of work, and errors as pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from weft.errors import WeftError
from weft.views.html import STATIC, render, static
from weft.web.guard import Guard, Refused
from weft.web.pages import PAGES, PLAN, file
from weft.web.questions import Page
from weft.web.showing import asked_of, fetch, form_of, question, show
from weft.web.texts import Texts
from weft.web.work import Pool, Ticket

Handler = Callable[[Request], Awaitable[Response]]

_PROGRESS_S = 0.2
_DAY = "max-age=86400"


def application(pool: Pool, state: Path, hosts: Iterable[str]) -> Starlette:
    """The application.

    Args:
        pool: where work is done; it ends with the application.
        state: folder of what is kept: pasted texts.
        hosts: names of this server, as 127.0.0.1:8787.
    """

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(pool.close)

    app = Starlette(
        routes=[*_ROUTES, *_page_routes()],
        middleware=[Middleware(Guard, hosts=hosts, page=_refusal)],
        exception_handlers={HTTPException: _http_error, WeftError: _weft_error, Exception: _bug},
        lifespan=life,
    )
    app.state.pool, app.state.texts, app.state.folder = pool, Texts(state / "texts"), state
    return app


def _page_routes() -> list[Route]:
    """The form, the answer and the files of every page; the first one stands at the root too."""
    return [
        Route("/", _shown(PLAN)),
        *(Route(page.path, _shown(page)) for page in PAGES.values()),
        *(Route(page.path, _sent(page), methods=["POST"]) for page in PAGES.values()),
        *(
            Route(f"{page.path}/{name.lower().replace(' ', '-')}", _file(page, name))
            for page in PAGES.values()
            for name in page.files
        ),
    ]


def _given(request: Request, page: Page) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in page.names}


def _shown(page: Page) -> Handler:
    async def shown(request: Request) -> Response:
        return await show(request, page, _given(request, page))

    return shown


def _sent(page: Page) -> Handler:
    async def sent(request: Request) -> Response:
        """The form: pasted texts are kept, and the address of the answer follows."""
        form = await form_of(request)
        given = {name: form.get(name, "").strip() for name in page.names}
        given |= request.app.state.texts.keep_pasted(form, page.sources.values())
        return RedirectResponse(page.address(given), 303)

    return sent


def _file(page: Page, name: str) -> Handler:
    async def sent(request: Request) -> Response:
        asked = asked_of(request, page, _given(request, page))
        named, kind, text = await fetch(request, question(file, asked, page, name))
        headers = {"Content-Disposition": f'attachment; filename="{named}"'}
        return Response(text, media_type=kind, headers=headers)

    return sent


def _error_page(title: str, text: str) -> str:
    return render("error.html", heading=title, text=text)


def _refusal(refused: Refused) -> tuple[int, bytes]:
    return refused.status, _error_page(refused.title, refused.text).encode()


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return HTMLResponse(_error_page("No such page", "There is nothing at this address."), 404)
    text = "The address does not take such a request." if status == 405 else "The request cannot be answered."
    return HTMLResponse(_error_page("Not answered", text), status)


async def _weft_error(request: Request, error: Exception) -> Response:
    return HTMLResponse(_error_page("That cannot be used", str(error)), 400)


async def _bug(request: Request, error: Exception) -> Response:
    """The page of a fault; its trace is on the terminal alone."""
    text = "The terminal of weft serve has its trace. Please report it."
    return HTMLResponse(_error_page("A fault in Weft", text), 500)


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
