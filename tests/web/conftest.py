"""A client of the page, without a browser, and the elements of what it gets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of a name."""
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="session")
def elements() -> type[Elements]:
    return Elements


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("starlette")
    pytest.importorskip("httpx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from starlette.testclient import TestClient
    from weft.web.app import application
    from weft.web.work import Pool

    with TestClient(application(Pool(time_s=120), tmp_path_factory.mktemp("state"), ["testserver"])) as made:
        yield made
