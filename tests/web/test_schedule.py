"""The schedule page: the list of dimensions, the policies, one schedule, downloads."""

import json
import re
from html import unescape
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import weft
from weft.collectives.dimensions import dimensions_of, parse_dimensions
from weft.web import showing
from weft.web.pages.schedule import PARTS, dims_of, rows_of

DIMS = "switch:4:100GB/s:1us,ring:4:25GB/s:2us"
ASKED = {"collective": "all-reduce", "size": "16MiB", "chunks": "8", "dims": DIMS}
OWN = {"origin": "http://testserver"}


def shown(client, **asked):
    return client.get(f"/schedule?{urlencode(ASKED | asked)}")


def form_of(dims=DIMS, **more):
    """The fields that a browser sends."""
    form = {name: value for name, value in ASKED.items() if name != "dims"}
    for number, row in enumerate(rows_of(dims), 1):
        form |= {f"{name}_{number}": word for name, word in zip(PARTS, row, strict=True)}
    return form | more


def dims_after(client, do, **more):
    """The dimensions of the address to which a button of the form leads."""
    found = client.post("/schedule", data=form_of(do=do, **more), headers=OWN, follow_redirects=False)
    assert found.status_code == 303
    return parse_qs(urlsplit(found.headers["location"]).query)["dims"][0]


def test_the_first_page_is_a_form_with_dimensions(client):
    text = client.get("/schedule").text
    assert text.count('aria-label="Remove dimension') == 2
    assert 'class="answer"' not in text
    assert '<a href="/schedule" aria-current="page">' in text


def test_policies_are_those_of_the_verb(client):
    found = weft.schedule("all-reduce", "16MiB", dims=DIMS, chunks=8, compare=True)
    text = shown(client).text
    for name, timed in found.others.items():
        assert f">{name}" in text
        assert f'data-key="{timed.time_s}"' in text
    assert f'data-key="{found.bound_s}"' in text
    assert text.count('class="weft-chart"') == 1
    idle = 1 - found.others["baseline"].dimension_utilization[0]
    assert f">{idle:.1%}</td>" in text


def test_one_policy_is_looked_at_and_saved(client):
    text = shown(client, policy="themis scf").text
    assert "The schedule of themis scf" in text
    query = urlencode(ASKED | {"policy": "themis scf"})
    assert f"/schedule/schedule.json?{query.replace('&', '&amp;')}" in text
    found = json.loads(client.get(f"/schedule/schedule.json?{query}").text)
    own = weft.schedule("all-reduce", "16MiB", dims=DIMS, chunks=8, policy="themis", order="scf", compare=True)
    assert found == json.loads(own.to_json())
    assert len(client.get(f"/schedule/schedule.csv?{query}").text.splitlines()) == 3


def test_policies_are_drawn_over_the_number_of_chunks(client):
    text = shown(client, show="chunks").text
    (picture,) = re.findall(r'<svg[^>]*class="weft-chart".*?</svg>', text, re.DOTALL)
    assert "by chunks" in picture
    assert "themis scf" in picture
    assert 'class="weft-chart"' in shown(client, show="chunks", size="3", chunks="").text


def test_the_command_is_the_same(client):
    (command,) = re.findall(r"<code>(weft schedule [^<]*)</code>", shown(client).text)
    assert unescape(command) == f"weft schedule all-reduce 16MiB --dims {DIMS} --chunks 8 --compare"


def test_dimensions_are_added_moved_and_removed(client):
    first, second = DIMS.split(",")
    assert dims_after(client, "") == DIMS
    assert dims_after(client, "add").startswith(f"{DIMS},")
    assert dims_after(client, "remove-1") == second
    assert dims_after(client, "up-2") == f"{second},{first}"
    assert dims_after(client, "remove-9") == DIMS
    assert dims_after(client, "", reduce_1="reduce") == f"{first}:reduce,{second}"
    assert dims_after(client, "", size_1="1,024") == f"switch:1024:100GB/s:1us,{second}"


def test_dimensions_are_those_of_a_cluster(client):
    from weft.cluster import load

    dims = dims_after(client, "cluster", cluster="h100-64")
    assert parse_dimensions(dims) == dimensions_of(load("h100-64"))[0]
    refused = client.post("/schedule", data=form_of(do="cluster", cluster="/etc/passwd"), headers=OWN)
    assert refused.status_code == 400
    assert "root:" not in refused.text


def test_a_list_that_is_full_takes_no_more(client):
    full = ",".join([DIMS] * 6)
    assert dims_of(form_of(full)) == full
    found = client.post("/schedule", data=form_of(full, do="add"), headers=OWN, follow_redirects=False)
    assert parse_qs(urlsplit(found.headers["location"]).query)["dims"] == [full]


@pytest.mark.parametrize(
    "asked",
    [
        {"dims": ""},
        {"dims": "<script>:2:1GB/s:1us"},
        {"dims": "ring:4:25GB/s:1us:reduce"},
        {"dims": ",".join(["ring:2:1GB/s:1us"] * 7)},
        {"dims": "ring:999999999:1GB/s:1us"},
        {"size": "-1"},
        {"size": "1e40"},
        {"collective": "gossip"},
        {"chunks": "x"},
        {"chunks": "100000000"},
        {"active": "never"},
        {"policy": "<script>"},
    ],
)
def test_what_cannot_be_used_is_said_beside_the_form(client, asked, monkeypatch):
    monkeypatch.setattr(showing, "AT_ONCE_S", 60.0)
    found = shown(client, **asked)
    assert found.status_code == 400
    assert 'role="alert"' in found.text
    assert '<input id="size"' in found.text
    assert "<script>" not in found.text.replace('<script src="', "")


def test_other_collectives_have_other_policies(client):
    text = shown(client, collective="all-to-all").text
    assert ">baseline" in text
    assert "themis" not in text
