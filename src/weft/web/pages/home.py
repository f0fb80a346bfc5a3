"""The first page leads to plans."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route


async def home(request: Request) -> Response:
    """Where to begin."""
    return RedirectResponse("/plan", 302)


ROUTES = (Route("/", home),)
