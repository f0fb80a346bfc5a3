"""The network page: networks side by side, parts that fail, routes before and after."""

import json
import re
from html import unescape
from urllib.parse import unquote, urlencode

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import weft
from weft.cluster import load
from weft.fabric.catalogue import for_cluster
from weft.interop.fabrics.formats import write_fabric
from weft.layout import Layout
from weft.layout.text import format_layout
from weft.verbs.traffic import failed
from weft.web import showing
from weft.web.fabrics import Failures

LAYOUT = "tp=8,dp=4"
ASKED = {"model": "llama-3.1-8b", "cluster": "h100-32", "layout": LAYOUT, "radix": "8", "fabric": "fat-tree"}
OWN = {"origin": "http://testserver"}


@pytest.fixture(scope="module")
def fabric():
    return for_cluster("fat-tree", load("h100-32"), radix=8)


def shown(client, **asked):
    return client.get(f"/network?{urlencode(ASKED | asked)}")


def links(text, word):
    return [unescape(one) for one in re.findall(r'href="([^"]*)"', text) if word in one]


def document(client, name, **asked):
    return json.loads(client.get(f"/network/{name}.json?{urlencode(ASKED | asked)}").text)


def test_the_first_page_is_the_form(client):
    text = client.get("/network").text
    assert '<input id="model"' in text
    assert 'class="answer"' not in text
    assert '<a href="/network" aria-current="page">' in text


def test_networks_stand_side_by_side(client):
    asked = {"kinds": "rail-only,fat-tree"}
    how = {"layout": LAYOUT, "radix": 8, "oversubscription": "none"}
    own = weft.design("llama-3.1-8b", "h100-32", fabrics="rail-only,fat-tree", **how)
    text = shown(client, **asked).text
    for one in own.designs:
        assert f'data-key="{one.simulated_s}"' in text
        assert f'data-key="{one.bill.usd}"' in text
        for failure in one.failures:
            assert failure.slowdown is None or f"x{failure.slowdown:.3f}</td>" in text
    assert text.count("<figure") == 1 + len(own.designs)
    assert document(client, "design", **asked) == json.loads(own.to_json())


@pytest.mark.parametrize("kind", ["rail-only", "fat-tree"])
def test_all_views_of_a_job_on_a_network_have_one_layout(client, kind):
    asked = {"layout": "", "cluster": "h100-64", "fabric": kind, "kinds": "rail-only,fat-tree"}
    designs = {one["kind"]: one for one in document(client, "design", **asked)["designs"]}
    simulated, routed = (document(client, name, **asked) for name in ("simulate", "route"))
    assert simulated["layout"] == designs[kind]["layout"]
    assert simulated["iteration_s"] == designs[kind]["simulated_s"]
    layout = Layout(**designs[kind]["layout"] | {"order": tuple(designs[kind]["layout"]["order"])})
    assert f"layout={format_layout(layout)}&" in unescape(unquote(shown(client, show="networks", **asked).text))
    for show in ("failures", "routes"):
        assert format_layout(layout, whole=True) in shown(client, show=show, **asked).text
    assert routed["flows"]


def test_a_click_breaks_a_switch_and_another_repairs_it(client, fabric):
    whole = shown(client, show="failures").text
    leaf = fabric.names[fabric.nodes_of("leaf")[0]]
    spine = fabric.names[fabric.nodes_of("spine")[0]]
    switches = [one for one in links(whole, "failed=") if one.endswith(f"failed={spine}#picture")]
    assert switches
    broken = client.get(switches[0]).text
    assert "times as long" in broken
    assert "failed</text>" in broken
    repairs = [one for one in links(broken, "show=failures") if "failed=" not in one]
    assert "times as long" not in client.get(repairs[0]).text
    wire = next(one for one in links(whole, "failed=") if f"{leaf}%3A{spine}" in one)
    assert f"{leaf} to {spine}</a>" in client.get(wire).text


def test_iterations_are_those_of_the_verb(client, fabric):
    spine = fabric.names[fabric.nodes_of("spine")[0]]
    asked = {"show": "failures", "failed": spine}
    left = failed(fabric, 0, [spine])
    own = weft.simulate("llama-3.1-8b", "h100-32", LAYOUT, fabric=left)
    found = document(client, "simulate", **asked)
    assert found["failed"] == [spine]
    assert found["iteration_s"] == own.iteration_s
    before = document(client, "simulate", show="failures")["iteration_s"]
    assert f"{own.iteration_s / before:.3f} times as long" in shown(client, **asked).text


def test_accelerators_that_are_cut_off_are_said(client, fabric):
    leaf = fabric.names[fabric.nodes_of("leaf")[0]]
    link = next(
        f"{fabric.names[a]}:{fabric.names[b]}"
        for a, b, tier in zip(fabric.source, fabric.target, fabric.tier, strict=True)
        if tier and a == 0
    )
    for names in (link, leaf, ",".join(fabric.names[one] for one in fabric.nodes_of("leaf"))):
        text = shown(client, show="failures", failed=names).text
        assert ("cut off" in text) == ("times as long" not in text)
    assert "cut off" in text
    found = client.get(f"/network/simulate.json?{urlencode(ASKED | {'failed': names})}")
    assert found.status_code == 422


def test_routes_are_hashed_or_planned(client):
    text = shown(client, show="routes").text
    assert "ecmp, as built" in text
    assert "auto, as built" in text
    assert text.count("data-zoom") == 2
    figures = document(client, "route", show="routes")
    assert f'data-key="{figures["alpha"]}"' in text


def test_routes_change_with_a_failure(client, fabric):
    spine = fabric.names[fabric.nodes_of("spine")[0]]
    asked = {"show": "routes", "failed": spine}
    text = shown(client, **asked).text
    assert "auto, with failures" in text
    assert "flows take another path" in text
    paths = [one["path"] for one in document(client, "route", **asked)["flows"]]
    assert not any(spine in path for path in paths)
    assert any(spine in one["path"] for one in document(client, "route", show="routes")["flows"])


def test_pictures_grow_without_script(client):
    assert "zoom-1" in shown(client, show="failures").text
    larger = links(shown(client, show="failures").text, "zoom=4")
    assert 'class="chart fabric zoom-4"' in client.get(larger[0]).text


def test_parts_toggle_whatever_end_they_are_named_from():
    failures = Failures(names=("leaf-0", "b:a"), address="/network?x=y")
    assert failures.toggled("a:b") == "/network?x=y&failed=leaf-0#picture"
    assert failures.toggled("a:c") == "/network?x=y&failed=leaf-0%2Cb%3Aa%2Ca%3Ac#picture"
    assert Failures(names=("a",), address="/network?x=y").toggled("a") == "/network?x=y#picture"


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "<script>"},
        {"fabric": "<script>"},
        {"fabric": "/etc/passwd"},
        {"fabric": "pasted-000000000000000000000000"},
        {"kinds": "hosts.toml"},
        {"failed": "<script>", "show": "failures"},
        {"failed": ",".join(f"leaf-{i}" for i in range(100))},
        {"radix": "1"},
        {"radix": "x"},
        {"count": "x"},
        {"routing": "guess"},
        {"layout": "tp=3", "show": "failures"},
        {"cluster": "h100-131072", "layout": "", "show": "failures"},
        {"cluster": "h100-131072", "layout": ""},
    ],
)
def test_what_cannot_be_used_is_said_beside_the_form(client, asked, monkeypatch):
    monkeypatch.setattr(showing, "AT_ONCE_S", 60.0)
    found = shown(client, **asked)
    assert found.status_code == 400
    assert 'role="alert"' in found.text
    assert '<input id="model"' in found.text
    assert "<script>" not in found.text.replace('<script src="', "")
    assert "root:" not in found.text


def test_the_form_leads_to_an_address(client):
    form = {"model": "llama-3.1-8b", "cluster": "h100-32", "kind_rail-only": "yes", "calibration": "/etc/passwd"}
    found = client.post("/network", data=form, headers=OWN, follow_redirects=False)
    assert found.headers["location"] == "/network?model=llama-3.1-8b&cluster=h100-32&kinds=rail-only"


def test_pasted_wiring_is_the_network(client, fabric):
    sent = ASKED | {"fabric_text": write_fabric(fabric), "routing": "ecmp"}
    found = client.post("/network", data=sent, headers=OWN)
    assert found.status_code == 200
    assert found.url.params["show"] == "failures"
    assert found.url.params["fabric"].startswith("pasted-")
    own = document(client, "simulate", routing="ecmp")
    pasted = document(client, "simulate", routing="ecmp", fabric=found.url.params["fabric"])
    assert pasted["iteration_s"] == own["iteration_s"]


@pytest.mark.parametrize(
    "text",
    [
        "nothing of the kind",
        'schema = "weft.fabric/1"\nname = "x"\ngenerator = { kind = "fat-tree", cluster = "/etc/passwd" }',
    ],
)
def test_wiring_that_cannot_be_used_is_said(client, text):
    found = client.post("/network", data=ASKED | {"fabric_text": text}, headers=OWN)
    assert found.status_code == 400
    assert 'role="alert"' in found.text
    assert "the pasted network" in found.text
    assert "root:" not in found.text
