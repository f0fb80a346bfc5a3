"""A server and a Chromium for a file of tests; both start when its first test wants them.

The tests need Playwright (extra ``dev``) and Debian's ``chromium``, and are skipped where one is missing.
Playwright's loop runs in the thread that began it until it ends, so a browser lives no longer than its file: the
tests of other files have loops of their own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


class Tabs:
    """Opens tabs, and keeps what they must not do: load from elsewhere, tell of an error, fail."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser, self.address = browser, address
        self.found: list[str] = []
        self.contexts: list[Any] = []

    def open(self, path: str = "", **options: Any) -> Any:
        """A tab of its own, at a path of the server; ``options`` are those of Playwright's context."""
        context = self.browser.new_context(base_url=self.address, reduced_motion="reduce", **options)
        context.set_default_timeout(120_000)
        self.contexts.append(context)
        return self.beside(context, path)

    def beside(self, context: Any, path: str = "") -> Any:
        """A tab beside others."""
        page = context.new_page()
        page.on("console", lambda one: self.found.append(f"{one.type}: {one.text}") if one.type != "log" else None)
        page.on("pageerror", lambda one: self.found.append(f"error: {one}"))
        page.on("dialog", lambda one: self.found.append(f"dialog: {one.message}"))
        page.on("request", lambda one: self._own(one.url))
        if path:
            page.goto(path)
        return page

    def _own(self, url: str) -> None:
        if not url.startswith((f"{self.address}/", "data:", "blob:")):
            self.found.append(f"external: {url}")

    def excuse(self, *words: str) -> None:
        """Take back what holds one of the words: a test means it."""
        self.found = [one for one in self.found if not any(word in one for word in words)]


@pytest.fixture(scope="module")
def page_benchmark() -> ModuleType:
    """``benchmarks/page.py``, which starts servers too."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = spec_from_file_location("page_benchmark", BENCHMARKS / "page.py")
        assert spec is not None
        assert spec.loader is not None
        made = module_from_spec(spec)
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return made


@pytest.fixture(scope="module")
def address(page_benchmark: ModuleType) -> Iterator[str]:
    """Where a server of these tests answers; it must not write of a fault."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    with page_benchmark.serving() as found:
        yield found


@pytest.fixture(scope="module")
def chromium(page_benchmark: ModuleType) -> Iterator[Any]:
    """Debian's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright (pip install 'weft[dev]')")
    if shutil.which("chromium") is None:
        pytest.skip("no Chromium (apt install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=page_benchmark.CHROMIUM, args=page_benchmark.ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def tabs(chromium: Any, address: str) -> Iterator[Tabs]:
    """Tabs that did nothing wrong at the end of the test."""
    made = Tabs(chromium, address)
    yield made
    for context in made.contexts:
        context.close()
    assert made.found == []
