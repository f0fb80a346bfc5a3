"""The plan page: form, layouts, detail, comparison, charts, launch file, downloads."""

import json
import re
from html import unescape
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import weft
from weft.cluster import load
from weft.cluster.catalogue import Scales, oversubscribed, resized, scaled, with_domain
from weft.errors import BadInput
from weft.layout.text import format_layout
from weft.units import format_seconds
from weft.verbs.launch import launch_arguments
from weft.web import showing
from weft.web.views import ranking

ASKED = {"model": "llama-3.1-8b", "cluster": "h100-64"}
OWN = {"origin": "http://testserver"}


def shown(client, **asked):
    return client.get(f"/plan?{urlencode(ASKED | asked)}")


def links(text, word):
    return [unescape(one) for one in re.findall(r'href="([^"]*)"', text) if word in one]


def test_the_first_page_is_the_form(client):
    text = client.get("/").text
    assert '<input id="model"' in text
    assert '<option value="llama-3.1-8b">' in text
    assert 'class="answer"' not in text


def test_layouts_are_those_of_the_verb(client):
    plan = weft.plan("llama-3.1-8b", "h100-64", top=5, fix="tp=2")
    text = shown(client, top="5", tp="2").text
    assert text.count("with ") >= len(plan.layouts)
    found = client.get(f"/plan/plan.json?{urlencode(ASKED | {'top': '5', 'tp': '2'})}")
    assert json.loads(found.text) == json.loads(plan.to_json())
    rows = client.get(f"/plan/plan.csv?{urlencode(ASKED | {'top': '5', 'tp': '2'})}").text.splitlines()
    assert len(rows) == 1 + len(plan.layouts)


def test_a_layout_is_shown_and_compared(client):
    text = shown(client).text
    second = links(text, "#layout")[1]
    best = weft.plan(*ASKED.values()).best
    assert f"<code>--layout {format_layout(best.layout)}</code>" in text
    assert "layout=" in second
    assert "per iteration" in client.get(second).text
    other = client.get(links(text, "#difference")[0]).text
    assert "times as long" in other
    assert 'id="differences"' in other


def test_charts_and_launch_files(client):
    charts = shown(client, show="charts").text
    assert charts.count('class="weft-chart"') == 2
    assert len(links(charts, "#layout")) == len(weft.plan(*ASKED.values()).pareto)
    assert "<style" not in charts
    assert "torchrun" in shown(client, show="launch", tool="megatron").text
    refused = shown(client, show="launch", tool="megatron", layout="y=2,dp=32")
    assert refused.status_code == 200
    assert "cannot run this layout" in refused.text
    assert links(refused.text, "tool=torchtitan")


def test_what_was_rejected_and_what_does_not_fit_is_said(client):
    plan = weft.plan("llama-3.1-8b", "h100-64")
    text = shown(client).text
    assert all(f"{one.layouts:,}</td>" in text for one in plan.rejected)
    nothing = client.get(f"/plan?{urlencode({'model': 'llama-3.1-405b', 'cluster': 'h100-8'})}")
    assert nothing.status_code == 200
    assert 'role="alert"' in nothing.text
    assert 'id="rejected"' in nothing.text


def test_faster_networks_are_not_slower(client):
    def best_s(**asked):
        document = json.loads(client.get(f"/plan/plan.json?{urlencode(ASKED | asked)}").text)
        return min(one["iteration_s"] for one in document["layouts"])

    assert best_s(nic="0.25") > best_s() > best_s(peak="2")


def test_what_other_networks_change_is_said(client):
    as_it_is = weft.plan(*ASKED.values()).layouts[0].iteration_s
    cluster = oversubscribed(with_domain(load("h100-64"), 4), 4)
    slower = weft.plan(ASKED["model"], cluster).layouts[0].iteration_s
    assert slower > as_it_is
    text = unescape(shown(client, domain="4", oversubscription="4").text)
    told = (
        f"{format_seconds(slower)} per iteration in place of {format_seconds(as_it_is)} ({slower / as_it_is - 1:+.1%})"
    )
    assert told in text
    assert "what if: domains of 4, oversubscription 4" in text
    assert "What if: " not in shown(client).text


def test_a_launch_file_is_saved(client):
    plan = weft.plan(*ASKED.values())
    found = client.get(f"/plan/launch?{urlencode(ASKED | {'tool': 'torchtitan-toml'})}")
    written = launch_arguments("torchtitan-toml", plan.job, plan.cluster, plan.best.layout)
    assert found.text == written.text
    assert found.headers["content-disposition"] == f'attachment; filename="{written.file}"'
    refused = {"tool": "megatron", "layout": "y=2,dp=32"}
    assert client.get(f"/plan/launch?{urlencode(ASKED | refused)}").status_code == 422
    assert client.get(f"/plan/launch?{urlencode(ASKED | {'tool': '../x'})}").status_code == 400


def test_layouts_that_cannot_be_told_apart_are_marked(client):
    plan = weft.plan(*ASKED.values())
    near = sum(one.group == 1 for one in plan.ties)
    assert near > 1
    assert len(re.findall(r'<tr class="tied( shown)?">', shown(client).text)) == near


def test_a_pasted_cluster_has_another_count(client):
    form = {"model": "gpt2", "cluster_text": 'accelerator = "a100"\ncount = 16\nname = "own"', "count": "32"}
    text = client.post("/plan", data=form, headers=OWN).text
    assert "32" in re.search(r"<dt>Cluster</dt><dd>([^<]*)", text)[1]
    with pytest.raises(BadInput, match="units of 8"):
        resized(load("h100-64"), 12)


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "<script>"},
        {"tp": "x"},
        {"nic": "nan"},
        {"count": "0"},
        {"layout": "tp=3"},
        {"fix": "tp"},
        {"domain": "7"},
        {"oversubscription": "0.5"},
        {"oversubscription": "x"},
        {"oversubscription": "2", "count": "8"},
    ],
)
def test_what_cannot_be_used_is_said_beside_the_form(client, asked, monkeypatch):
    monkeypatch.setattr(showing, "AT_ONCE_S", 60.0)  # later than that, a page begins before its answer, as 200
    found = shown(client, **asked)
    assert found.status_code == 400
    assert 'role="alert"' in found.text
    assert '<input id="model"' in found.text
    assert '<script>"' not in found.text
    assert 'value="<script>"' not in found.text


def test_a_fault_ends_a_page_that_has_begun(client, monkeypatch, capsys):
    monkeypatch.setattr(showing, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(ranking, "ranking", None)
    text = shown(client, top="7").text
    assert "A fault in Weft" in text
    assert text.rstrip().endswith("</html>")
    assert "TypeError" in capsys.readouterr().err


def test_a_form_leads_to_an_address_and_names_no_file(client):
    shape = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    pasted = json.dumps({"model_type": "gpt2"} | shape)
    form = {"model_text": pasted, "cluster": "a100", "count": "8", "calibration": "/etc/passwd"}
    found = client.post("/plan", data=form, headers=OWN)
    assert found.status_code == 200
    assert "calibration" not in str(found.url)
    assert "model=pasted-" in str(found.url)
    assert 'class="answer"' in found.text


def test_scaled_clusters_have_other_figures():
    cluster = weft.plan("gpt2", "a100-8", top=1).cluster
    faster = scaled(cluster, Scales(hbm=2, scale_up=4, latency=0.5))
    assert faster.accelerator.memory_Bps == 2 * cluster.accelerator.memory_Bps
    assert faster.tiers[0].bandwidth_Bps == 4 * cluster.tiers[0].bandwidth_Bps
    assert faster.tiers[0].latency_s == 0.5 * cluster.tiers[0].latency_s
    for factor in (0.0, float("nan"), 1e9):
        with pytest.raises(BadInput):
            Scales(peak=factor)
