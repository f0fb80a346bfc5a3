"""Templates and the files beside them: the frame of every page."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from weft.errors import MissingExtra

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
except ImportError:
    raise MissingExtra("a page", "page") from None

__all__ = ["Markup", "render", "static"]
_HERE = Path(__file__).parent
STATIC = {
    "weft.css": "text/css; charset=utf-8",
    "table.js": "text/javascript; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "slide.js": "text/javascript; charset=utf-8",
    "work.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files that pages use, and what they are."""
PLACES = tuple((f"/{name}", name.capitalize()) for name in ("plan", "network", "schedule", "arrange", "accuracy"))
"""The pages of ``weft serve``, as its navigation lists them."""
_SCRIPTS = ("table.js", "page.js")


def render(name: str, **context: Any) -> str:
    """The text of a page.  All that comes from ``context`` is escaped.

    Args:
        name: a file of ``templates``.
        context: ``frozen`` (style and script stand in the page, which leads nowhere), ``here`` (the path of the
            page in ``PLACES``), ``sections`` (of a frozen page, which its navigation names), and what the
            template itself takes.
    """
    return _environment().get_template(name).render({"frozen": False, "here": "", "sections": ()} | context)


@cache
def static(name: str) -> bytes:
    """A file of ``static``.

    Raises:
        KeyError: there is none of that name in ``STATIC``.
    """
    if name not in STATIC:
        raise KeyError(name)
    return (_HERE / "static" / name).read_bytes()


def _inlined(name: str) -> Markup:
    """A style or script as it stands in a frozen page."""
    return Markup(static(name).decode())


def _policy() -> str:
    """What a frozen page may do: use its own style and scripts, and load nothing."""
    scripts = " ".join(_digest(name) for name in _SCRIPTS)
    return (
        f"default-src 'none'; style-src {_digest('weft.css')}; script-src {scripts}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _digest(name: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(static(name)).digest()).decode()}'"


@cache
def _environment() -> Environment:
    from weft import __version__

    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals.update(inlined=_inlined, policy=_policy, places=PLACES, scripts=_SCRIPTS, version=__version__)
    return made
