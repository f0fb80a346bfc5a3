"""The plan page: a layout looked at and held against the best, launch files, other hardware, faults."""

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
from weft.interop.launch import launch_arguments
from weft.layout.text import format_layout
from weft.units import format_seconds
from weft.web import app

ASKED = {"model": "llama-3.1-8b", "cluster": "h100-64"}
OWN = {"origin": "http://testserver"}


def shown(client, **asked):
    return client.get(f"/plan?{urlencode(ASKED | asked)}")


def document(client, **asked):
    return json.loads(client.get(f"/plan/json?{urlencode(ASKED | asked)}").text)


def test_fields_are_options_of_the_verb(client):
    options = {"top": "5", "fix": "tp=2,sp", "max": "pp=2", "order": "time", "precision": "fp8"}
    given = options | {"top": 5}
    assert document(client, **options) == json.loads(weft.plan(*ASKED.values(), **given).to_json())


def test_a_layout_is_shown_and_compared_with_the_best(client):
    plan = weft.plan(*ASKED.values())
    text = shown(client).text
    assert f"--layout {format_layout(plan.best.layout)}</code>" in text
    assert f"{plan.layouts[1].memory_bytes / 2**30:.1f}</td>" in text
    second = weft.estimate(*ASKED.values(), plan.layouts[1].layout)
    text = shown(client, layout=format_layout(second.layout)).text
    assert 'id="the-layout"' in text
    assert text.count(format_seconds(second.iteration_s)) > 1
    assert 'id="side-by-side"' in text
    assert 'id="side-by-side"' not in shown(client, layout=format_layout(plan.best.layout)).text


def test_what_was_rejected_and_what_does_not_fit_is_said(client):
    text = shown(client).text
    assert all(f"{one.layouts:,}  {one.code}: " in text for one in weft.plan(*ASKED.values()).rejected)
    for show in ("layouts", "launch"):
        asked = {"model": "llama-3.1-405b", "cluster": "h100-8", "show": show}
        nothing = client.get(f"/plan?{urlencode(asked)}")
        assert nothing.status_code == 200
        assert "Use more accelerators" in nothing.text
        assert 'id="rejected-layouts"' in nothing.text


def test_launch_files_are_shown_and_saved_or_refused(client):
    plan = weft.plan(*ASKED.values())
    asked = {"tool": "torchtitan-toml"}
    written = launch_arguments(asked["tool"], plan.job, plan.cluster, plan.best.layout)
    assert written.text.strip() in unescape(shown(client, show="launch", **asked).text)
    found = client.get(f"/plan/launch-file?{urlencode(ASKED | asked)}")
    assert found.text == written.text
    assert found.headers["content-disposition"] == f'attachment; filename="{written.file}"'
    refused = {"tool": "megatron", "layout": "y=2,dp=32"}
    assert "cannot run this layout" in shown(client, show="launch", **refused).text
    assert client.get(f"/plan/launch-file?{urlencode(ASKED | refused)}").status_code == 422
    assert client.get(f"/plan/launch-file?{urlencode(ASKED | {'tool': '../x'})}").status_code == 400


def test_what_other_networks_change_is_said(client):
    as_it_is = weft.plan(*ASKED.values()).layouts[0].iteration_s
    cluster = oversubscribed(with_domain(load("h100-64"), 4), 4)
    slower = weft.plan(ASKED["model"], cluster).layouts[0].iteration_s
    assert slower > as_it_is
    text = unescape(shown(client, domain="4", oversubscription="4").text)
    told = f"{format_seconds(slower)} per iteration instead of {format_seconds(as_it_is)}"
    assert f"{told} ({slower / as_it_is - 1:+.1%})" in text
    assert "what if: domains of 4, oversubscription 4" in text
    assert "What if: " not in shown(client).text


def test_a_pasted_model_and_cluster_are_kept_with_another_count(client):
    shape = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    form = {"model_text": json.dumps({"model_type": "gpt2"} | shape), "count": "32"}
    form["cluster_text"] = 'accelerator = "a100"\ncount = 16\nname = "<script>own"'
    found = client.post("/plan", data=form, headers=OWN)
    assert re.search(r"<dt>Cluster</dt><dd>([^<]*)", found.text)[1].startswith("32 a100")
    assert "model=pasted-" in str(found.url)
    assert "<script>own" not in found.text
    assert client.get(str(found.url)).status_code == 200


def test_a_fault_ends_a_page_that_has_begun(client, monkeypatch, capsys):
    monkeypatch.setattr(app, "AT_ONCE_S", 0.0)
    original = app.render

    def faulty(name, **given):
        return original(name, **given | {"tabs": None} if name == "answer.html" else given)

    monkeypatch.setattr(app, "render", faulty)
    text = shown(client, top="7").text
    assert "A fault in Weft" in text
    assert text.rstrip().endswith("</html>")
    assert "TypeError" in capsys.readouterr().err


def test_scaled_clusters_have_other_figures():
    cluster = load("a100-8")
    faster = scaled(cluster, Scales(hbm=2, scale_up=4, latency=0.5))
    assert faster.accelerator.memory_Bps == 2 * cluster.accelerator.memory_Bps
    assert faster.tiers[0].bandwidth_Bps == 4 * cluster.tiers[0].bandwidth_Bps
    assert faster.tiers[0].latency_s == 0.5 * cluster.tiers[0].latency_s
    for factor in (0.0, float("nan"), 1e9):
        with pytest.raises(BadInput):
            Scales(peak=factor)
    with pytest.raises(BadInput, match="units of 8"):
        resized(load("h100-64"), 12)
