"""The first page: what there is to ask."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from weft.web.showing import Shown, show


async def home(request: Request) -> Response:
    """Where to begin."""
    return await show(request, Shown(template="home.html"))


ROUTES = (Route("/", home),)
