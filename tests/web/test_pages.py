"""All pages: forms, answers and files equal to those of the verbs, rows that lead on, what cannot be used."""

import csv
import json
import re
from functools import cache
from html import unescape
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
pytest.importorskip("altair")

import weft
from weft.arrangement.bundle import arrangement_of
from weft.cluster import load
from weft.views.html import PLACES
from weft.web import app
from weft.web.pages import _CLUSTER, PAGES, _examples

OWN = {"origin": "http://testserver"}
DIMS = "switch:4:100GB/s:1us,ring:4:25GB/s:2us"
ASKED = {
    "plan": {"model": "llama-3.1-8b", "cluster": "h100-64"},
    "tune": {"model": "llama-3.1-8b", "cluster": "h100-64", "layout": "tp=8,sp", "measured": "5.2 s"},
    "network": {"model": "llama-3.1-8b", "cluster": "h100-32", "layout": "tp=8,dp=4", "radix": "8"}
    | {"fabrics": "rail-only,fat-tree", "oversubscription": "none"},
    "schedule": {"collective": "all-reduce", "size": "16MiB", "chunks": "8", "dims": DIMS},
    "arrange": {"site": "scattered", "seconds": "1"},
    "accuracy": {"family": "korthikanti"},
}
"""What the tests of all pages ask of each."""
VIEWS = [(page.title.lower(), show) for page in PAGES.values() for show in page.shows]


def get(client, page, file="", **asked):
    """The answer of a page, or a file of it."""
    query = urlencode(ASKED[page] | asked)
    return client.get(f"/{page}/{file}?{query}" if file else f"/{page}?{query}")


def document(client, page, **asked):
    return json.loads(get(client, page, "json", **asked).text)


def links(text, word):
    return [unescape(one) for one in re.findall(r'href="([^"]*)"', text) if word in unescape(one)]


@cache
def own(page):
    """What the verb of a page answers."""
    if page == "plan":
        return weft.plan("llama-3.1-8b", "h100-64")
    if page == "tune":
        return weft.tune("llama-3.1-8b", "h100-64", "tp=8,sp", measured="5.2 s")
    if page == "network":
        how = {"layout": "tp=8,dp=4", "radix": 8, "oversubscription": "none", "fabrics": "rail-only,fat-tree"}
        return weft.design("llama-3.1-8b", "h100-32", **how)
    if page == "schedule":
        return weft.schedule("all-reduce", "16MiB", dims=DIMS, chunks=8, policy="weft", compare=True)
    return weft.validate(family=("korthikanti",))


def test_pages_are_those_of_the_navigation():
    assert [(path, page.title) for path, page in PAGES.items()] == list(PLACES)


@pytest.mark.slow_but(len(ASKED) - 1)
@pytest.mark.parametrize("page", list(ASKED))
def test_a_page_opens_on_a_form_and_an_answer(client, elements, page):
    text = client.get(f"/{page}").text
    found = elements(text)
    assert next(one for one in found.named("a") if "aria-current" in one)["href"] == f"/{page}"
    fields = [one for tag in ("input", "select", "textarea") for one in found.named(tag)]
    shown = {one["id"] for one in fields if one.get("type") != "hidden"}
    assert shown == {one["for"] for one in found.named("label")}
    assert shown == {f"field-{field.name}" for group in PAGES[f"/{page}"].groups for field in group.fields}
    described = {one["aria-describedby"] for one in fields if "aria-describedby" in one}
    assert described == {one["id"] for one in found.named("small")}
    assert not re.search(r"--\w", text[text.index("<form") : text.index("</form>")])
    assert 'class="answer"' in text
    assert 'role="alert"' not in text
    example = {one["name"]: one["value"] for one in found.named("input") if one.get("value")}
    assert example == {k: v for k, v in PAGES[f"/{page}"].example.items() if k in example}
    if page == "plan":
        assert client.get("/").text == client.get("/plan").text


@pytest.mark.parametrize(("page", "show"), VIEWS)
def test_a_view_is_whole(client, elements, page, show):
    text = get(client, page, show=show).text
    found = elements(text)
    assert 'class="answer"' in text
    assert 'role="alert"' not in text
    names = [each["id"] for _, each in found.found if "id" in each]
    assert len(names) == len(set(names))
    assert not [each for _, each in found.found if "style" in each or any(name.startswith("on") for name in each)]
    current = [one["href"].partition("?")[0] for one in found.named("a") if "aria-current" in one]
    assert current == [f"/{page}"] * (1 + (len(PAGES[f"/{page}"].shows) > 1))
    assert len([one for one in found.named("a") if "download" in one]) == len(PAGES[f"/{page}"].file_paths)
    if show != "launch":
        figure = text.index("<figure")
        assert figure < text.index("<table")
        assert text.count("<p", text.index("</nav>", text.index('class="answer"')), figure) <= 1
        assert "Not drawn" not in text


@pytest.mark.slow_but(4)
@pytest.mark.parametrize("page", ["plan", "network", "schedule", "accuracy", "tune"])
def test_files_are_those_of_the_verb(client, page):
    assert document(client, page) == json.loads(own(page).to_json())
    rows = list(csv.reader(get(client, page, "csv").text.splitlines()))
    assert len(rows) == 1 + len(own(page).to_dicts())
    sent = get(client, page, "csv").headers["content-disposition"]
    assert re.fullmatch(r'attachment; filename="\w+\.csv"', sent)


BAD = [
    *(("plan", one) for one in ({"model": "<script>"}, {"model": "/etc/passwd"}, {"model": "pasted-" + "0" * 24})),
    *(("plan", one) for one in ({"cluster": "x.toml"}, {"fix": "tp"}, {"fix": "tp=x"}, {"max": "sp=1"})),
    *(("plan", one) for one in ({"nic": "nan"}, {"count": "0"}, {"count": "1.5"}, {"layout": "tp=3"})),
    *(("plan", one) for one in ({"domain": "7"}, {"oversubscription": "0.5"}, {"oversubscription": "x"})),
    *(("plan", one) for one in ({"oversubscription": "2", "count": "8"}, {"stack": "<script>"})),
    *(("plan", one) for one in ({"space": "<script>"}, {"order": "<script>"})),
    *(("plan", one) for one in ({"show": "launch", "tool": "../x"}, {"batch": "x"}, {"precision": "/etc/passwd"})),
    *(
        ("tune", one)
        for one in ({"measured": "31"}, {"measured": "<script>"}, {"layout": "tp=3"}, {"keep": "<script>"})
    ),
    *(("network", one) for one in ({"fabrics": "<script>"}, {"fabrics": "/etc/passwd"}, {"fabrics": "hosts.toml"})),
    *(("network", one) for one in ({"radix": "1"}, {"radix": "x"}, {"count": "x"}, {"routing": "guess"})),
    *(("network", one) for one in ({"layout": "tp=3"}, {"sizes": "x"}, {"batches": "-1"}, {"oversubscription": "x"})),
    *(("schedule", {"dims": one}) for one in ("", "<script>:2:1GB/s:1us", "ring:4:25GB/s:1us:reduce", "/etc/passwd")),
    *(("schedule", {"dims": one}) for one in ("ring:999999999:1GB/s:1us", ",".join(["ring:2:1GB/s:1us"] * 7))),
    *(("schedule", one) for one in ({"size": "-1"}, {"size": "1e40"}, {"collective": "gossip"}, {"chunks": "x"})),
    *(("schedule", one) for one in ({"chunks": "100000000"}, {"active": "never"}, {"policy": "<script>"})),
    ("schedule", {"dims": "", "cluster": "/etc/passwd"}),
    *(("arrange", one) for one in ({"site": "<script>"}, {"site": "/etc/passwd"}, {"site": "pasted-../../x"})),
    *(("arrange", one) for one in ({"objective": "<script>"}, {"oversubscription": "many"}, {"seconds": "100000"})),
    *(
        ("accuracy", one)
        for one in ({"family": "nobody"}, {"runs": "pasted-" + "0" * 24}, {"runs": "pasted-../../x"}, {"runs": "mine"})
    ),
]


@pytest.mark.parametrize(("page", "asked"), BAD)
def test_what_cannot_be_used_is_said_beside_the_form(client, page, asked, monkeypatch):
    monkeypatch.setattr(app, "AT_ONCE_S", 60.0)  # later than that, a page begins before its answer, as 200
    found = get(client, page, **asked)
    assert found.status_code == 400
    assert 'role="alert"' in found.text
    assert f'action="/{page}"' in found.text
    assert "<script>" not in found.text.replace('<script src="', "")
    assert "root:" not in found.text


@pytest.mark.parametrize("page", list(ASKED))
def test_a_form_leads_to_an_address_that_names_no_file(client, page):
    sent = ASKED[page] | {
        "calibration": "/etc/passwd",
        "plan": "/etc/passwd",
        "run": "/etc/passwd",
        "fabric": "/etc/passwd",
    }
    found = client.post(f"/{page}", data=sent, headers=OWN, follow_redirects=False)
    assert found.status_code == 303
    assert "passwd" not in found.headers["location"]
    assert all(urlencode({name: value}) in found.headers["location"] for name, value in ASKED[page].items())


@pytest.mark.parametrize(("page", "row"), [("plan", "layout"), ("schedule", "policy"), ("accuracy", "family")])
def test_a_row_leads_to_its_own_section(client, page, row):
    rows = [one for one in links(get(client, page).text, f"{row}=") if "#" in one]
    assert len(rows) >= 1
    text = client.get(rows[-1]).text
    assert f'id="{rows[-1].partition("#")[2]}"' in text


def test_suggested_clusters_can_be_loaded():
    assert all(load(name).count for name in _CLUSTER.choices)


# Network ------------------------------------------------------------------------------------------------------------


# Schedule -----------------------------------------------------------------------------------------------------------


def test_few_bytes_are_drawn_too(client):
    assert get(client, "schedule", size="3", chunks="").text.count('class="weft-chart"') == 1


# Accuracy -----------------------------------------------------------------------------------------------------------


def test_pasted_runs_are_predicted_and_inert(client):
    example = PAGES["/accuracy"].groups[1].fields[0].placeholder
    hostile = example.replace("mine", "<script>alert(1)</script>")
    found = client.post("/accuracy", data={"runs_text": hostile}, headers=OWN)
    assert found.status_code == 200
    assert "runs=pasted-" in str(found.url)
    assert "<script>alert" not in found.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in found.text
    refused = client.post("/accuracy", data={"runs_text": "a,b\n1,2\n"}, headers=OWN)
    assert refused.status_code == 400


# Arrange ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("name", list(_examples()))
def test_an_arrangement_is_that_of_its_files(client, name):
    found = document(client, "arrange", site=name)
    assert found["schema"] == "weft.arrangement/1"
    text = get(client, "arrange", site=name).text
    assert all(f"{row['slowdown']:.4f}</td>" in text for row in found["jobs"])
    report = get(client, "arrange", "report", site=name)
    assert report.text == weft.make_report(arrangement_of(found, "given"))
    assert "attachment" in report.headers["content-disposition"]


def test_a_goal_and_an_oversubscription_replace_those_of_the_site(client):
    found, given = document(client, "arrange", objective="worst", oversubscription="2"), document(client, "arrange")
    assert (found["objective"]["kind"], given["objective"]["kind"]) == ("worst", "slowdown")
    assert (found["site"], found["fabric"] == given["fabric"]) == (given["site"], False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('cluster = "h100-64"', 'cluster = "cluster.toml"'),
        ('fabric = "fat-tree"', 'fabric = "fabric.json"'),
        ('model = "llama-3.1-8b"', 'model = "config.json"'),
        ('model = "llama-3.1-8b"\nlayout = "tp=8,dp=4,sp"\nbatch = 16', 'plan = "plan.json"'),
        ('cluster = "h100-64"', 'cluster = "h100-8256"'),
    ],
)
def test_a_pasted_site_names_no_file_and_is_not_too_large(client, tmp_path, monkeypatch, old, new):
    for name in ("cluster.toml", "fabric.json", "config.json", "plan.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "AT_ONCE_S", 60.0)
    text = _examples()["scattered"].replace(old, new)
    assert new in text
    found = client.post("/arrange", data={"site_text": text}, headers=OWN)
    assert found.status_code == 400
    assert re.search(r"unknown|names a file|the page takes 1,024", found.text)


def test_a_pasted_site_is_kept_and_hostile_names_are_inert(client):
    text = _examples()["scattered"].replace('"dense"', '"<img src=x onerror=alert(1)>"')
    found = client.post("/arrange", data={"site_text": text, "seconds": "1"}, headers=OWN)
    assert found.url.params["site"].startswith("pasted-")
    assert "&lt;img src=x" in found.text
    assert "<img" not in found.text
