"""The arrange page: hosts and jobs, moves, slowdowns at once, the search beside, downloads, what is refused."""

import json
import re
from html import unescape
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from hypothesis import given, settings
from hypothesis import strategies as st
from weft.web.pages.arrange import fields_of, put_of
from weft.web.sites import MOST_HOSTS, Asked, Put, examples, moved, seen, site_of_text
from weft.web.templates import static
from weft.web.views import board

import weft
from weft.errors import BadInput
from weft.web import showing
from weft.web.texts import Text

OWN = {"origin": "http://testserver"}
SCATTERED = Asked(site=Text("scattered"))
THREE = Asked(site=Text("three-jobs"))


def shown(client, **asked):
    return client.get(f"/arrange?{urlencode(asked)}")


def state_of(text):
    """The hidden fields of the board."""
    form = text[text.index('action="/arrange/move"') :]
    form = form[: form.index("</form>")]
    return {name: unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)}


def _board(text):
    """The board and what is below it: a page that waited for its answer says so above."""
    return text[text.index('class="board"') :]


def pressed(client, text, **button):
    return client.post("/arrange/move", data=state_of(text) | button, headers=OWN)


def test_the_first_page_is_the_form_with_a_site_to_change(client):
    text = client.get("/arrange").text
    assert '<textarea id="site_text"' in text
    assert "weft.site/1" in text
    assert all(f"/arrange?site={name}" in text for name in examples())
    assert 'class="answer"' not in text


@pytest.mark.parametrize("name", list(examples()))
def test_every_host_and_job_of_an_example_is_on_the_board(client, name):
    site = site_of_text(Asked(site=Text(name)))
    text = shown(client, site=name).text
    assert len(re.findall(r'<button name="host"', text)) == len(site.host_names)
    assert len(re.findall(r'<button name="job"', text)) == len(site.jobs)
    assert text.count("seat down") == site.usable.count(False)


def test_what_is_seen_is_what_the_search_compares_with(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(examples()["scattered"])
    found = weft.arrange(path, budget="2s")
    given = seen(SCATTERED, Put())
    assert [one.slowdown for one in given.jobs] == found.policies["hashed"].slowdown.tolist()
    assert given.bound == found.clock.objective.text(found.certificate.objective)
    best = found.best.choice
    put = Put(
        hosts=best.hosts,
        router=best.router,
        offset_s=best.offset_s,
        classes=found.classes(),
        layouts=given.put.layouts,
    )
    assert [one.slowdown for one in seen(SCATTERED, put).jobs] == found.best.slowdown.tolist()
    assert seen(SCATTERED, put_of(fields_of(put))).put == put


@given(st.lists(st.tuples(st.sampled_from(["host", "job"]), st.integers(0, 7), st.integers(0, 7)), max_size=8))
@settings(max_examples=40, deadline=None)
def test_moves_keep_every_job_whole(moves):
    put = Put()
    for kind, number, onto in moves:
        put = moved(SCATTERED, put, kind, number % (8 if kind == "host" else 2), onto)
        held = [host for one in put.hosts for host in one]
        assert sorted(held) == list(range(8))
        assert [len(one) for one in put.hosts] == [4, 4]
        if kind == "host":
            assert (
                moved(SCATTERED, put, "host", onto, number).hosts == moved(SCATTERED, put, "host", number, onto).hosts
            )
        else:
            assert onto in put.hosts[number % 2]


def test_a_job_that_stays_is_neither_moved_nor_displaced():
    begun = seen(THREE, Put())
    stays = [number for number, job in enumerate(begun.jobs) if job.may == "stay"]
    host = begun.put.hosts[stays[0]][0]
    for kind, number, onto in (("host", host, 15), ("host", 15, host), ("job", stays[0], 1)):
        with pytest.raises(BadInput, match="running keeps its hosts"):
            moved(THREE, Put(), kind, number, onto)
    with pytest.raises(BadInput, match="none of those that are up"):
        moved(THREE, Put(), "host", begun.put.hosts[1][0], 5)
    packed = moved(THREE, Put(), "job", 1, 10)
    assert packed.hosts[stays[0]] == begun.put.hosts[stays[0]]
    assert 5 not in packed.hosts[1]


def test_presses_move_a_host_and_a_job_and_the_address_says_where(client):
    text = shown(client, site="scattered").text
    picked = pressed(client, text, host="1")
    assert picked.url.params["picked"] == "host:1"
    assert 'aria-pressed="true"' in picked.text
    after = pressed(client, picked.text, host="2")
    assert after.url.params["hosts"] == "0,1,4,6;2,3,5,7"
    assert "picked" not in after.url.params
    assert re.search(r'id="host-2"[^>]*autofocus', after.text)
    assert _board(client.get(str(after.url)).text) == _board(after.text)
    left = pressed(client, picked.text, host="1")
    assert "picked" not in left.url.params
    whole = pressed(client, pressed(client, text, job="0").text, host="0")
    assert whole.url.params["hosts"].startswith("0,1,2,3;")
    assert "1.0" in whole.text


def test_moving_jobs_apart_makes_them_faster(client):
    def slowest(put):
        return max(one.slowdown for one in seen(SCATTERED, put).jobs)

    assert slowest(moved(SCATTERED, Put(), "job", 0, 0)) < slowest(Put())


def test_times_classes_and_routes_are_in_the_address(client):
    text = shown(client, site="scattered").text
    form = state_of(text) | {"router": "spray", "offset_0": "0.25", "offset_1": "0", "class_0": "0", "class_1": "1"}
    form.pop("picked")
    found = client.post("/arrange", data=form, headers=OWN)
    assert found.status_code == 200
    params = found.url.params
    assert (params["router"], params["offset"], params["class"]) == ("spray", "0.25;0", "0;1")
    assert 'value="0.25"' in found.text


def test_the_search_is_beside_and_can_be_taken_over_and_saved(client):
    pytest.importorskip("altair")
    asked = {"site": "scattered", "find": "2"}
    text = shown(client, **asked).text
    assert text.count('class="answer"') == 2
    (take,) = [unescape(one) for one in re.findall(r'href="([^"]*)">Show it on the board', text)]
    document = json.loads(client.get(f"/arrange/arranged.json?{urlencode(asked)}").text)
    assert document["schema"] == "weft.arrangement/1"
    board_of = client.get(take).text
    for row in document["jobs"]:
        assert f"{row['slowdown']:.4f}</td>" in board_of
    page = client.get(f"/arrange/report.html?{urlencode(asked)}")
    assert page.text == weft.make_report(_saved(document))
    assert "attachment" in page.headers["content-disposition"]


def _saved(document):
    from weft.arrangement.bundle import arrangement_of

    return arrangement_of(document, "given")


@pytest.mark.parametrize(
    "asked",
    [
        {"site": "<script>"},
        {"site": "pasted-000000000000000000000000"},
        {"objective": "<script>"},
        {"oversubscription": "many"},
        {"hosts": "0,1;2"},
        {"hosts": "0,1,2,3;3,4,5,6"},
        {"hosts": "0,1,2,99;4,5,6,7"},
        {"hosts": "<script>"},
        {"router": "<script>"},
        {"offset": "1"},
        {"class": "9;9"},
        {"layouts": "tp=3;tp=3"},
        {"find": "100000"},
    ],
)
def test_what_cannot_be_used_is_said_beside_the_form(client, asked, monkeypatch):
    monkeypatch.setattr(showing, "AT_ONCE_S", 60.0)
    found = shown(client, **{"site": "scattered"} | asked)
    assert found.status_code == 400
    assert 'role="alert"' in found.text
    assert '<textarea id="site_text"' in found.text
    assert "<script>&" not in found.text
    assert 'value="<script>"' not in found.text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('cluster = "h100-64"', 'cluster = "two-jobs-cluster.toml"'),
        ('fabric = "fat-tree"', 'fabric = "fabric.json"'),
        ('model = "llama-3.1-8b"', 'model = "config.json"'),
        ('model = "llama-3.1-8b"\nlayout = "tp=8,dp=4,sp"\nbatch = 16', 'plan = "plan.json"'),
    ],
)
def test_a_pasted_site_names_no_file(tmp_path, monkeypatch, old, new):
    for name in ("two-jobs-cluster.toml", "fabric.json", "config.json", "plan.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    text = examples()["scattered"].replace(old, new)
    assert new in text
    with pytest.raises(BadInput, match=r"unknown|names a file"):
        site_of_text(Asked(site=Text("pasted-0", text)))


def test_a_pasted_site_is_kept_and_hostile_names_are_inert(client):
    text = examples()["scattered"].replace('"dense"', '"<img src=x onerror=alert(1)>"')
    found = client.post("/arrange", data={"site_text": text}, headers=OWN)
    assert found.url.params["site"].startswith("pasted-")
    assert 'class="seat moves' in found.text
    assert "<img" not in found.text
    same = client.post("/arrange", data={"site": "scattered", "site_text": examples()["scattered"]}, headers=OWN)
    assert same.url.params["site"] == "scattered"


def test_large_sites_are_for_the_command_line():
    text = examples()["scattered"].replace("h100-64", f"h100-{8 * (MOST_HOSTS + 8)}")
    with pytest.raises(BadInput, match="the page shows 1,024"):
        site_of_text(Asked(site=Text("pasted-0", text)))


def test_jobs_have_the_colours_of_the_charts():
    pytest.importorskip("altair")
    from weft.views.charts import charts

    assert len(charts.COLOURS) == board.COLOURS
    style = static("weft.css").decode()
    for number, colour in enumerate(charts.COLOURS):
        rule = re.search(rf"\.job-{number} {{\s*background: {colour};\s*color: (\w+);", style)
        assert rule
        assert rule[1] == charts.ink_on(colour)
