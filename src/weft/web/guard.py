"""What stands between the browser and the pages: which requests are answered, and what a browser may do with answers.

The server listens on this machine alone.  A page of another site can still send requests to it, or point a name of
its own at 127.0.0.1 (DNS rebinding), so each request must name this server as its host, what changes something must
come from a page of this server, and a body has a limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

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
_METHODS = ("GET", "HEAD", "POST")


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


Page = Callable[[Refused], tuple[int, bytes]]
"""Makes the page of a refusal: status and HTML."""


class Guard:
    """The middleware around all pages.

    Args:
        inner: what answers requests that pass.
        hosts: values of the Host header that name this server.
        page: makes the page of a refusal.
    """

    def __init__(self, inner: Application, *, hosts: Iterable[str], page: Page) -> None:
        self.inner, self.hosts, self.page = inner, frozenset(hosts), page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self._check(scope)
            await self.inner(scope, _capped(receive), guarded)
        except ClientDisconnect:
            return  # an upload was broken off: nobody waits for an answer
        except Refused as refused:
            if begun:
                raise
            status, body = self.page(refused)
            headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
            await guarded({"type": "http.response.start", "status": status, "headers": headers})
            await guarded({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _check(self, scope: Scope) -> None:
        """Refuse what another site, or a mistake, sends."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            remedy = f"Open {min(self.hosts)} instead."
            raise Refused(421, "Another host", f"This server does not answer to that name. {remedy}")
        if scope["method"] not in _METHODS:
            raise Refused(405, "No such method", "Pages are read with GET and forms sent with POST.")
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
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > BODY_BYTES:
            raise too_large()


def too_large() -> Refused:
    """The refusal of a body over the limit."""
    return Refused(413, "Too much text", f"A form may hold {BODY_BYTES / 1e6:g} MB at most.")


def _capped(receive: Receive) -> Receive:
    """Receive a body that may not say how long it is, up to the limit."""
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > BODY_BYTES:
            raise too_large()
        return message

    return counted
