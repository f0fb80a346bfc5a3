"""The pages in Chromium: every width, keyboard, dark and light, accessibility, hostile texts, long work, tabs."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from weft.views.html import PLACES

WIDTHS = (360, 768, 1440, 3840)
PLAN = "/plan?model=llama-3.1-8b&cluster=h100-64"
NETWORK = "/network?model=llama-3.1-8b&cluster=h100-32&layout=tp%3D4,dp%3D8&radix=8&fabrics=rail-only,torus"
SCHEDULE = "/schedule?collective=all-reduce&size=16MiB&dims=switch:4:100GB/s:1us,ring:4:25GB/s:2us"
ARRANGE = "/arrange?site=three-jobs&seconds=1"
VIEWS = [
    (f"{PLAN}&nic=2&domain=16&oversubscription=2", "#first-table"),
    (f"{PLAN}&model=nothing", "[role=alert]"),
    (f"{PLAN}&show=launch&tool=megatron", "pre"),
    (f"{PLAN}&layout=tp=4,dp=16", "#the-layout"),
    ("/plan?model=llama-3.1-405b&cluster=h100-8", "#rejected-layouts"),
    (NETWORK, "#one-component-fails"),
    (f"{SCHEDULE}&policy=baseline", "#dimensions"),
    (ARRANGE, "#busiest-links"),
    ("/arrange?site=nothing", "[role=alert]"),
    ("/accuracy", "figure svg"),
    ("/accuracy?family=korthikanti", "#runs"),
    ("/nothing", "h1"),
    *((path, "svg.weft-chart") for path, _ in PLACES if path != "/accuracy"),
]
"""Addresses that every check of looks visits, and what stands there: a page has a row for each of its views."""
HOSTILE = "<script>window.hit=1</script>\"'><img src=x onerror=window.hit=1>"
LONG = "/network?model=deepseek-v3&cluster=h100-16384"
"""Designs of a minute or more, whose end nobody waits for."""

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", {get: () => hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def findings(page: Any) -> list[str]:
    """What axe-core finds that is serious or critical."""
    base = pytest.importorskip("axe_playwright_python.base", reason="no axe-core (pip install 'weft[dev]')")
    page.evaluate(base.AXE_SCRIPT)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert len(found["passes"]) > 10
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("path", "holds"), VIEWS)
def test_a_page_fits_every_width_and_everybody(tabs, path, holds):
    page = tabs.open(path)
    tabs.excuse("status of 400", "status of 404")
    assert page.locator(holds).count() > 0
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    for scheme, width in (("light", 1440), ("dark", 360)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert findings(page) == []


def test_every_page_opens_and_names_itself(tabs):
    page = tabs.open(viewport={"width": WIDTHS[0], "height": 800})
    for path, title in PLACES:
        # Without a family the page of the accuracy takes long; it is among the slow addresses above.
        page.goto(f"{path}?family=korthikanti" if path == "/accuracy" else path)
        assert title in page.title()
        assert page.locator("nav [aria-current]").first.text_content() == title
        assert page.evaluate("document.scrollingElement.scrollWidth") <= WIDTHS[0]


def test_a_plan_is_made_looked_at_and_taken_along(tabs):
    page = tabs.open("/")
    page.get_by_label("Model", exact=True).fill("llama-3.1-8b")
    page.get_by_label("Cluster", exact=True).fill("h100-64")
    page.get_by_role("button", name="Plan").click()
    page.locator("#first-table").get_by_role("link", name="2", exact=True).click()
    page.locator("#the-layout").wait_for()
    second = page.locator("#the-layout").text_content()
    assert page.url.endswith("#the-layout")
    page.go_back()
    page.locator("#the-layout").wait_for(state="detached")
    page.locator("#first-table").get_by_role("link", name="3", exact=True).click()
    page.locator("#the-layout").wait_for()
    assert page.locator("#the-layout").text_content() != second
    page.go_back()
    page.go_back()
    page.go_forward()
    page.locator("#first-table").wait_for()
    page.locator("svg.weft-chart").nth(1).wait_for()
    page.get_by_role("link", name="Launch", exact=True).click()
    with page.expect_download() as begun:
        page.get_by_role("link", name="Launch file").click()
    assert begun.value.suggested_filename == "megatron.sh"
    assert begun.value.path().read_text().strip() == page.locator("pre code").first.text_content().strip()
    with page.expect_download() as begun:
        page.get_by_role("link", name="JSON").click()
    assert json.loads(begun.value.path().read_text())["job"]["model"]["name"] == "llama-3.1-8b"


@pytest.mark.slow
def test_sliders_ask_what_if(tabs):
    page = tabs.open(PLAN)
    page.get_by_text("What if the hardware were different").click()
    slider = page.get_by_label("NIC bandwidth x, slider")
    slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert page.locator("[name=nic]").input_value() == "2"
    page.keyboard.press("Enter")
    page.wait_for_url("**nic=2**")
    page.get_by_text(re.compile(r"^What if: .* per iteration instead of ")).wait_for()
    assert page.locator("[name=nic]").input_value() == "2"
    box = page.get_by_label("Scale-up domain (accelerators), slider").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2)
    page.wait_for_url("**domain=**")
    page.get_by_text(f"domains of {page.locator('[name=domain]').input_value()}").first.wait_for()


def test_keys_suffice(tabs):
    page = tabs.open(PLAN)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen = []
    while len(seen) < 150:
        page.keyboard.press("Tab")
        where = page.evaluate(
            """() => {
              const one = document.activeElement, box = one.getBoundingClientRect(), look = getComputedStyle(one);
              return [one.tagName, one.id || one.textContent.trim(), look.outlineStyle !== "none" &&
                box.width > 0 && box.bottom > 0 && box.top < innerHeight];
            }"""
        )
        if where[0] == "BODY":
            break
        seen.append(where)
    assert [one for one in seen if not one[2]] == []
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    names = [one[1] for one in seen]
    assert names.index("field-model") < names.index("Plan") < names.index("JSON")
    page.locator("#first-table thead button", has_text="mem GiB").focus()
    page.keyboard.press("Enter")
    assert page.locator("#first-table thead [aria-sort=ascending]").count() == 1
    page.keyboard.press("Tab")
    page.locator("[name=model]").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("gpt2-124m")
    page.keyboard.press("Enter")
    page.wait_for_url("**gpt2-124m**")
    page.locator("#first-table").wait_for()


def test_hostile_texts_are_inert(tabs):
    page = tabs.open(f"/plan?{urlencode({'model': HOSTILE, 'cluster': HOSTILE, 'top': HOSTILE, 'show': HOSTILE})}")
    assert page.locator("[name=model]").input_value() == HOSTILE
    assert page.locator("[role=alert]").count() == 1
    tabs.excuse("status of 400", "cannot be parsed, or is out of range")
    page.goto("/plan?model=gpt2-124m")
    page.get_by_text("Paste a model or a cluster").click()
    page.get_by_label("Cluster: TOML").fill(f"name = '''{HOSTILE}'''\naccelerator = \"a100\"\ncount = 8\n")
    page.get_by_role("button", name="Plan").click()
    page.locator("#first-table").wait_for()
    page.goto("/accuracy?family=korthikanti")  # all families together take long
    page.get_by_label("Family", exact=True).fill("")
    page.get_by_text("Compare your own runs").click()
    area = page.get_by_label("Runs: CSV")
    quoted = HOSTILE.replace('"', '""')
    area.fill(area.input_value().replace("mine", f'"{quoted}"').replace("one,", f'"{quoted}",'))
    page.get_by_role("button", name="Accuracy").click()
    page.locator("#largest-errors").wait_for()
    page.locator("table a").first.click()
    page.locator("#runs").wait_for()
    page.goto("/arrange")
    page.get_by_text("Paste a site").click()
    page.get_by_label("Site: TOML").fill(f"name = '''{HOSTILE}'''\n")
    page.get_by_role("button", name="Arrange").click()
    page.get_by_role("alert").wait_for()
    tabs.excuse("status of 400")
    assert page.evaluate("window.hit") is None
    assert page.locator("main img").count() == 0


def test_the_policy_holds(tabs):
    page = tabs.open("/plan")
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.hit = 1";
          document.body.append(script);
          const text = "<p id=painted style='color: red' onclick='window.hit = 1'>x</p>";
          document.body.insertAdjacentHTML("beforeend", text);
          document.getElementById("painted").click();
        }"""
    )
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.getElementById('painted').style.color") == ""
    assert page.evaluate("fetch('http://127.0.0.2:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert len(tabs.found) >= 4
    tabs.excuse("Content Security Policy", "violates the following", "Refused to")


@pytest.mark.slow
def test_pages_work_without_script(tabs):
    page = tabs.open("/", java_script_enabled=False)
    page.get_by_label("Model", exact=True).fill("gpt2-124m")
    page.get_by_label("Cluster", exact=True).fill("a100-8")
    page.get_by_role("button", name="Plan").click()
    page.locator("#first-table").get_by_role("link", name="2", exact=True).click()
    page.locator("#the-layout").wait_for()


@pytest.mark.slow
def test_long_work_tells_progress_where_it_is_seen_is_cancelled_and_leaves_other_tabs_alone(tabs):
    page = tabs.open()
    page.goto(LONG, wait_until="commit")
    cancel = page.get_by_role("button", name="Cancel")
    cancel.wait_for()
    page.locator(".waiting output", has_text="of").wait_for()
    other = tabs.beside(page.context, "/plan?model=gpt2-124m&cluster=a100-8")
    assert other.locator("#first-table").is_visible()
    assert cancel.is_visible()
    with page.expect_event("requestfailed", lambda one: one.url.endswith("/events")):
        page.evaluate(HIDE, True)
    with page.expect_request("**/events"):
        page.evaluate(HIDE, False)
    cancel.click()
    page.locator(".message.error", has_text="cancelled").wait_for()
    page.goto("/plan?model=gpt2-124m&cluster=a100-8&top=3")
    assert page.locator("#first-table tbody tr").count() == 3
