"""The accuracy page: figures of validate, families, runs part by part, runs of one's own."""

import csv
import re
from functools import cache
from html import unescape
from importlib.resources import files
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
pytest.importorskip("altair")

import weft
from weft.validation.runs import SHIPPED
from weft.web import accuracy, showing
from weft.web.pages.accuracy import EXAMPLE

OWN = {"origin": "http://testserver"}
FAMILY = "korthikanti"


@cache
def validated(*family):
    return weft.validate(family=family or (FAMILY, "tpu-recipes", "papers"))


def shown(client, **asked):
    return client.get(f"/accuracy?{urlencode(asked)}")


def test_all_families_lead_to_their_runs(client):
    published = files("weft.validation").joinpath("data", SHIPPED).read_text(encoding="utf-8").splitlines()
    header, *lines = published
    place = header.split(",").index("family")
    some = [line for line in lines if next(csv.reader([line]))[place] in ("korthikanti", "tpu-recipes", "papers")]
    found = client.post("/accuracy", data={"runs": "\n".join([header, *some])}, headers=OWN)
    whole = validated()
    assert len(whole.families) == 3
    assert f"mean over families: {whole.headline:.1%}" in found.text
    for one in whole.families:
        assert urlencode({"family": one.family}) + '"' in found.text
        assert f"{one.mape:.1%}</td>" in found.text
    assert found.text.count('tabindex="-1" aria-label="') == len(whole.outcomes)


def test_a_family_is_that_of_validate(client):
    text = shown(client, family=FAMILY).text
    assert f"{validated(FAMILY).headline:.1%}" in text
    for one in validated(FAMILY).outcomes:
        assert f"{one.prepared.run.name}</a>" in unescape(text)
        assert f"{one.error:+.1%}</td>" in text


@pytest.mark.parametrize("family", [FAMILY, "maxtext-tpu"])
def test_the_parts_of_a_run_make_its_prediction(family):
    for one in validated(family).outcomes[:2]:
        view = accuracy.shown(None, family, one.prepared.run.name).run
        assert sum(part.share for part in view.bars[0].parts) == pytest.approx(1)
        said = {fact.name: fact.text for fact in view.facts}
        assert said["Predicted"].endswith(f"{one.error:+.1%}")
        assert view.assumptions == one.prepared.assumptions


def test_a_run_is_shown_with_its_assumptions(client):
    one = validated(FAMILY).outcomes[0]
    (link,) = {
        unescape(found)
        for found in re.findall(r'href="([^"]*)"', shown(client, family=FAMILY).text)
        if urlencode({"run": one.prepared.run.name}) + "#run" in unescape(found)
    }
    text = client.get(link).text
    assert 'id="run"' in text
    for told in one.prepared.assumptions:
        assert told in unescape(text)


def test_runs_of_ones_own_are_predicted_and_inert(client):
    hostile = EXAMPLE.replace("mine", "<script>alert(1)</script>")
    found = client.post("/accuracy", data={"runs": hostile}, headers=OWN)
    assert found.status_code == 200
    assert "runs=pasted-" in str(found.url)
    assert "2 of 2 runs are predicted" in found.text
    assert "<script>alert" not in found.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in found.text


@pytest.mark.parametrize("asked", [{"family": "nobody"}, {"runs": "/etc/passwd"}, {"runs": "pasted-../../x"}])
def test_what_cannot_be_used_is_said(client, asked, monkeypatch):
    monkeypatch.setattr(showing, "AT_ONCE_S", 60.0)
    found = shown(client, **asked)
    assert found.status_code == 400
    assert 'role="alert"' in found.text


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n"])
def test_what_is_no_table_of_runs_is_refused(client, text, monkeypatch):
    monkeypatch.setattr(showing, "AT_ONCE_S", 60.0)
    assert client.post("/accuracy", data={"runs": text}, headers=OWN).status_code == 400


def test_a_run_that_is_not_there_is_none():
    assert accuracy.shown(None, FAMILY, "nothing").run is None
