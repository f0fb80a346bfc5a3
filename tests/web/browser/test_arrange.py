"""The arrange page in Chromium: a job and a host are dragged, by keys too, also while the search runs."""

from __future__ import annotations

from typing import Any

SITE = "/arrange?site=scattered"


def drag(page: Any, one: str, onto: str) -> None:
    """Drag the middle of an element onto that of another."""
    places = [page.locator(name).bounding_box() for name in (one, onto)]
    (x, y), (to_x, to_y) = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in places]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move((x + to_x) / 2, (y + to_y) / 2, steps=3)
    page.mouse.move(to_x, to_y)
    assert page.locator(f"{onto}.over").count() == 1
    page.mouse.up()


def test_a_host_and_a_job_are_dragged(tabs):
    page = tabs.open(SITE)
    before = page.locator("#slowdowns").text_content()
    drag(page, "#host-1", "#host-2")
    page.wait_for_url("**hosts=0%2C1%2C4%2C6%3B2%2C3%2C5%2C7**")
    page.locator("#host-1.job-0").wait_for()
    drag(page, "#job-0", "#host-0")
    page.wait_for_url("**hosts=0%2C1%2C2%2C3%3B**")
    page.locator("#slowdowns").wait_for()
    assert page.locator("#slowdowns").text_content() != before
    page.get_by_role("link", name="Put all jobs back").click()
    page.locator("#slowdowns").wait_for()
    assert page.locator("#slowdowns").text_content() == before


def test_a_drag_that_ends_nowhere_moves_nothing(tabs):
    page = tabs.open(SITE)
    box = page.locator("#host-1").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(5, 5, steps=4)
    page.mouse.up()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.keyboard.press("Escape")
    page.mouse.move(box["x"] + 45, box["y"] + 5, steps=4)
    page.mouse.up()
    assert page.url.endswith(SITE)
    page.locator("#host-1").click()
    page.wait_for_url("**picked=host%3A1")


def test_keys_move_a_host_and_the_focus_stays_with_it(tabs):
    page = tabs.open(SITE)
    page.locator("#host-3").focus()
    page.keyboard.press("Enter")
    page.locator("#host-3[aria-pressed=true]").wait_for()
    page.wait_for_function("document.activeElement.id === 'host-3'")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**hosts=0%2C2%2C4%2C6%3B1%2C5%2C3%2C7**")
    page.wait_for_function("document.activeElement.id === 'host-5'")


def test_presses_move_a_host_without_script(tabs):
    page = tabs.open(SITE, java_script_enabled=False)
    page.locator("#host-1").click()
    page.locator("#host-1[aria-pressed=true]").wait_for()
    page.locator("#host-2").click()
    page.wait_for_url("**hosts=0%2C1%2C4%2C6%3B2%2C3%2C5%2C7**")


def test_jobs_are_moved_while_the_search_runs_and_it_is_ended(tabs):
    page = tabs.open()
    page.goto("/arrange?site=three-jobs&find=61", wait_until="commit")
    page.locator(".waiting output", has_text="of 61").wait_for()
    drag(page, "#host-1", "#host-15")
    page.wait_for_url("**at=host%3A15", wait_until="commit")
    page.locator("#host-15.job-1").wait_for()
    page.goto("/arrange?site=three-jobs&objective=worst&find=62", wait_until="commit")
    page.locator(".answer ~ .waiting button").click()
    page.locator(".message.error", has_text="cancelled").wait_for()
    assert page.locator("#host-15").is_visible()
