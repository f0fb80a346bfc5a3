"""The pages of ``weft serve``: first paint, a plan of Llama 3.1 405B, what is transferred, and fifty users at once.

Run: ``python benchmarks/page.py``.

A server process of its own answers Debian's Chromium, driven by Playwright; without these two, the users alone are
measured.  Times are Chromium's performance entries from the beginning of the navigation, the median of the repeats,
each with an empty cache.  A plan is asked for that the server has not made before.  A user sends the form and looks
at the plan, a layout, a launch file and the JSON document; every answer is checked.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import bench

WEFT = str(Path(sys.executable).parent / "weft")
CHROMIUM = shutil.which("chromium")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
USERS, REPEATS = 50, 7
LARGE = {"model": "llama-3.1-405b", "cluster": "h100-16384"}
SMALL = {"model": "gpt2-124m", "cluster": "a100-8"}
ASKED = (
    {"model": "llama-3.1-8b", "cluster": "h100-64"},
    {"model": "llama-3.1-70b", "cluster": "h100-512"},
    {"model": "llama-3.1-8b", "cluster": "a100-128", "fix": "tp=2"},
    {"model": "mixtral-8x7b", "cluster": "h100-64"},
    {"model": "gpt2-124m", "cluster": "a100-8", "nic": "2"},
)
_LAYOUT = re.compile(r"--layout ([^<\s]+)</code>")
_ENTRIES = """async () => {
  const found = {blocked_ms: 0, shift: 0};
  const watch = (type, each) =>
    new PerformanceObserver((list) => list.getEntries().forEach(each)).observe({type, buffered: true});
  watch("largest-contentful-paint", (one) => (found.largest_contentful_paint_ms = one.startTime));
  watch("longtask", (one) => (found.blocked_ms += Math.max(0, one.duration - 50)));
  watch("layout-shift", (one) => (found.shift += one.hadRecentInput ? 0 : one.value));
  await new Promise((done) => setTimeout(done, 300));
  const [page] = performance.getEntriesByType("navigation");
  for (const {name, startTime} of performance.getEntriesByType("paint"))
    found[`${name.replaceAll("-", "_")}_ms`] = startTime;
  const files = [page, ...performance.getEntriesByType("resource")];
  found.first_byte_ms = page.responseStart;
  found.ready_ms = page.domContentLoadedEventEnd;
  found.files = files.length;
  found.transferred_bytes = files.reduce((sum, one) => sum + one.transferSize, 0);
  found.elements = document.getElementsByTagName("*").length;
  return found;
}"""


@contextmanager
def serving() -> Iterator[str]:
    """A server process with an empty folder of its own; its address.

    Raises:
        RuntimeError: it did not start, or wrote of a fault.
    """
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "errors").open("w+") as errors:
        command = [WEFT, "serve", "--port", "0", "--state", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            told = re.search(r"http://\S+?(?=/ )", process.stdout.readline())
            try:
                if told is not None:
                    yield told[0]
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
        errors.seek(0)
        text = errors.read()
        if told is None or "Traceback" in text:
            raise RuntimeError(f"weft serve:\n{text}")


async def visit(client: Any, asked: Mapping[str, str]) -> list[float]:
    """What one user does; seconds until each answer was there whole.

    Raises:
        RuntimeError: an answer is not what was asked for.
    """
    taken = []

    async def fetched(address: str, holds: str, **sent: Any) -> str:
        begin = time.perf_counter()
        found = await client.request("POST" if sent else "GET", address, follow_redirects=True, **sent)
        taken.append(time.perf_counter() - begin)
        if found.status_code != 200 or holds not in found.text or 'role="alert"' in found.text:
            why = re.findall(r'role="alert">(.{,300})', found.text) or [f"no {holds}"]
            raise RuntimeError(f"{address}: {found.status_code}, {why[0]}")
        return str(found.text)

    query = urlencode(asked)
    await fetched("/", '<input id="field-model"')
    origin = {"Origin": str(client.base_url).rstrip("/")}
    page = await fetched("/plan", 'class="weft-chart"', data=dict(asked), headers=origin)
    layout = _LAYOUT.findall(page)[0]
    await fetched(f"/plan?{query}&{urlencode({'layout': layout})}", layout)
    await fetched(f"/plan?{query}&show=launch&tool=megatron", "Launch with Megatron-LM: save this as")
    await fetched(f"/plan/launch-file?{query}&tool=megatron", "--tensor-model-parallel-size")
    document = json.loads(await fetched(f"/plan/json?{query}", '"layouts"'))
    name = document["job"]["model"]["name"]
    if name != asked["model"]:
        raise RuntimeError(f"asked for {asked['model']}, got {name}")
    return taken


async def visits(address: str, users: int) -> list[float]:
    """What so many users do at once; seconds of all answers."""
    import httpx

    limits = httpx.Limits(max_connections=users)
    async with httpx.AsyncClient(base_url=address, timeout=300, limits=limits) as client:
        found = await asyncio.gather(*(visit(client, ASKED[user % len(ASKED)]) for user in range(users)))
    return [one for each in found for one in each]


def entries(browser: Any, address: str) -> dict[str, float]:
    """Chromium's performance entries of a page, with an empty cache."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        page.goto(address)
        return dict(page.evaluate(_ENTRIES))
    finally:
        context.close()


def pages(address: str, tiny: bool) -> dict[str, float]:
    """Figures of the form and of a plan in Chromium."""
    from playwright.sync_api import sync_playwright

    asked, repeats = (SMALL, 1) if tiny else (LARGE, REPEATS)
    figures: dict[str, float] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        entries(browser, f"{address}/plan?{urlencode(SMALL)}")
        forms = [entries(browser, f"{address}/") for _ in range(repeats)]
        plans = [entries(browser, f"{address}/plan?{urlencode(asked | {'top': str(10 + i)})}") for i in range(repeats)]
        browser.close()
    for name, found in (("form", forms), ("plan", plans)):
        for key in found[0]:
            figures[f"{name}_{key}"] = statistics.median(one[key] for one in found)
    return figures


def main() -> None:
    """Print the figures of the pages and of the users."""
    options, figures = bench.parser(__doc__).parse_args(), {}
    users = 3 if options.tiny else USERS
    with serving() as address:
        if CHROMIUM and find_spec("playwright"):
            figures = pages(address, options.tiny)
        else:
            print("no Chromium or no Playwright here: the users alone are measured")
        begin = time.perf_counter()
        answers = sorted(asyncio.run(visits(address, users)))
        wall = time.perf_counter() - begin
    figures |= {
        "users": users,
        "answers": len(answers),
        "answers_per_s": len(answers) / wall,
        "answer_median_s": statistics.median(answers),
        "answer_95th_s": answers[int(0.95 * len(answers))],
        "answer_longest_s": answers[-1],
    }
    for name, value in figures.items():
        print(f"{name:28s} {value:10.4g}")
    bench.record(options, figures)


if __name__ == "__main__":
    main()
