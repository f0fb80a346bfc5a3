"""The Network and Schedule pages in Chromium: parts broken by a click, pictures zoomed, dimensions edited."""

from __future__ import annotations

import re

import pytest

NETWORK = "/network?model=llama-3.1-8b&cluster=h100-32&layout=tp%3D4,dp%3D8&radix=8&fabric=fat-tree&routing=ecmp"
FAILURES = f"{NETWORK}&show=failures"
DIMS = "switch:4:100GB/s:1us,ring:4:25GB/s:2us"
SCHEDULE = f"/schedule?collective=all-reduce&size=16MiB&dims={DIMS}"


def box(page):
    """What is seen of the picture: x, y, width and height."""
    return [float(one) for one in page.locator("figure svg").get_attribute("viewBox").split()]


@pytest.mark.parametrize("script", [True, False])
def test_a_click_breaks_and_repairs(tabs, script):
    page = tabs.open(FAILURES, java_script_enabled=script)
    page.locator('svg a[aria-label="spine-0"]').click()
    page.get_by_text("times as long").wait_for()
    wire = page.locator('svg a[aria-label="leaf-1 to spine-1"]')
    wire.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("failed=spine-0%2Cleaf-1%3Aspine-1"))
    page.locator(".down", has_text="leaf-1 to spine-1").click()
    page.wait_for_url(re.compile("failed=spine-0#"))
    page.get_by_role("link", name="repair all").click()
    page.get_by_text("Iteration as built").wait_for()
    page.get_by_text("times as long").wait_for(state="detached")


def test_a_picture_is_zoomed_moved_and_still_clicked(tabs):
    page = tabs.open(FAILURES)
    whole = box(page)
    for _ in range(2):
        page.get_by_role("button", name="Nearer").click()
    near = box(page)
    assert near[2] == pytest.approx(whole[2] / 1.5**2)
    page.locator("figure svg").scroll_into_view_if_needed()
    place = page.locator("figure svg").bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 80, y - 20, steps=4)
    page.mouse.up()
    assert box(page)[0] > near[0]
    assert "failed=" not in page.url
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function("width => document.querySelector('figure svg').viewBox.baseVal.width < width", arg=near[2])
    kept = box(page)
    page.locator('svg a[aria-label="spine-0"]').dispatch_event("click")
    page.get_by_text("times as long").wait_for()
    assert box(page) == pytest.approx(kept)
    page.get_by_role("button", name="The whole picture").click()
    assert box(page) == whole


def test_a_picture_grows_without_script(tabs):
    page = tabs.open(FAILURES, java_script_enabled=False)
    width = page.locator("figure svg").bounding_box()["width"]
    page.get_by_role("link", name="2x").click()
    page.wait_for_url("**zoom=2**")
    assert page.locator("figure svg").bounding_box()["width"] == pytest.approx(2 * width, rel=0.05)


@pytest.mark.parametrize("script", [True, False])
def test_dimensions_are_a_list_to_edit(tabs, script):
    page = tabs.open("/schedule", java_script_enabled=script)
    page.get_by_role("button", name="Add a dimension").click()
    page.get_by_label("Size of dimension 3").fill("4")
    page.get_by_label("Kind of dimension 3").select_option("ring")
    page.get_by_label("Size of dimension 3").press("Enter")
    page.wait_for_url(re.compile(r"ring%3A4%3A50GB%2Fs%3A2us$"))
    page.locator("#policies th", has_text="idle 3").wait_for()
    page.get_by_role("button", name="Remove dimension 1").click()
    page.locator("#policies th", has_text="idle 3").wait_for(state="detached")
    assert page.get_by_label("Size of dimension 2").input_value() == "4"
    page.get_by_role("button", name="Move dimension 2 inward").click()
    page.wait_for_url(re.compile("dims=ring"))
    page.locator("#policies").get_by_role("link", name="baseline").click()
    page.get_by_role("heading", name="The schedule of baseline").wait_for()
