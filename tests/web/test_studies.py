"""The page of studies: listed, looked at, begun, ended early, gone on with; no name of a file is taken."""

import json
import re
import time
import warnings
from html import unescape
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

import weft
from weft.studies.kept import Kept
from weft.studies.progress import Progress, read_progress, write_progress
from weft.views.files.csv_out import rows_to_csv
from weft.web import studies
from weft.web.app import application
from weft.web.pages.studies import EXAMPLE
from weft.web.work import Limits, Pool

OWN = {"origin": "http://testserver"}
AXES = {"model": "gpt2-124m", "cluster": "a100", "count": [8, 16], "batch": [4, 32, 64], "layout": ["dp=8", "tp=2"]}
TOML = """name = "pasted"
compute = "estimate"
axes = {model = "gpt2-124m", cluster = "a100-8", layout = ["dp=8", "tp=2"], batch = [32, 64]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("state")
    study = {"name": "layouts", "compute": "estimate", "axes": AXES}
    weft.sweep(study, state=str(made / "mine"), workers=1).close()
    return made


@pytest.fixture(scope="module")
def client(folder):
    pool = Pool(Limits(time_s=60))
    yield TestClient(application(pool, folder, ["testserver"]))
    pool.close()


def listed(client):
    """Name and state of the studies of the page, and their addresses."""
    table = client.get("/studies").text.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    cells = [[unescape(re.sub("<.*?>", "", one)) for one in re.findall(r"<t[dh].*?</t[dh]>", row)] for row in rows]
    return {one[0]: (one[-1], re.search(r'href="([^"]*)"', row)[1]) for one, row in zip(cells, rows, strict=True)}


def begun(client, text=TOML):
    return client.post("/studies", data={"study": text}, headers=OWN, follow_redirects=False)


def ended(client, address):
    """The page of a study when it no longer runs."""
    for _ in range(300):
        page = client.get(address).text
        if "It runs." not in page:
            return page
        time.sleep(0.1)
    raise AssertionError("it still runs")


def test_the_example_is_a_study():
    assert studies.checked(EXAMPLE).points == 24


def test_states_of_the_folder_are_listed_and_shown(client, folder):
    state, address = listed(client)["layouts"]
    assert state == "finished"
    page = client.get(address).text
    with weft.sweep({"name": "layouts", "compute": "estimate", "axes": AXES}, state=str(folder / "mine")) as found:
        assert found.counts.computed == 0
        rows = found.to_dicts()
        columns = list(found.columns())
    assert f"{len(rows)} points of weft estimate" in page
    assert 'class="weft-chart"' in page
    assert client.get(f"{address}/rows.csv").text == rows_to_csv(rows, columns)
    kept = client.get(f"{address}/rows.json?{urlencode({'where': 'count=16'})}").text
    assert json.loads(kept) == [row for row in rows if row["count"] == 16]
    report = client.get(f"{address}/report.html").text
    assert report == weft.make_report(folder / "mine")


def test_filters_and_columns_are_in_the_address(client):
    address = listed(client)["layouts"][1]
    asked = {"where": "count=16", "x": "batch", "y": "mfu", "colour": "layout", "facet": "none"}
    page = client.get(f"{address}?{urlencode(asked)}").text
    assert '<option value="mfu" selected>' in page
    assert f'href="{address}/rows.csv?{urlencode(asked).replace("&", "&amp;")}"' in page


@pytest.mark.parametrize("asked", [{"where": "<script> >"}, {"where": "__import__('os')"}, {"x": "nothing"}])
def test_looks_that_cannot_be_used_are_said_beside_the_form(client, asked):
    found = client.get(f"{listed(client)['layouts'][1]}?{urlencode(asked)}").text
    assert found.count('role="alert"') == 1
    assert found.count("<tr>") > 12
    assert '<input id="where"' in found
    assert "<script> >" not in found


def test_a_pasted_study_is_computed_and_kept(client, folder):
    sent = begun(client)
    assert sent.status_code == 303
    page = ended(client, sent.headers["location"])
    assert "4 points of weft estimate" in page
    assert listed(client)["pasted"] == ("finished", sent.headers["location"])
    with weft.sweep(state=str(folder / "other"), workers=1, study=studies._document(TOML)) as found:
        assert client.get(f"{sent.headers['location']}/rows.json").json() == found.to_dicts()
    assert begun(client).headers["location"] == sent.headers["location"]
    assert "event: end" in client.get(f"{sent.headers['location']}/events").text


@pytest.mark.parametrize(
    ("axes", "word"),
    [
        ('model = "/etc/passwd"\ncluster = "a100-8"', "no name that this page takes"),
        ('model = "../x.json"\ncluster = "a100-8"', "no name that this page takes"),
        ('model = "gpt2"\ncluster = "cluster.toml"', "no such file"),
        ('model = "gpt2"\ncluster = ["a100-8", "here"]', "no name that this page takes"),
        ('model = "gpt2"\ncluster = "a100-8"\ncalibration = "x.toml"', "may name a file"),
        ('models = ["mine"]\ncluster = "a100-8"', "no name that this page takes"),
        ('model = "gpt2"', "needs cluster"),
        ('model = "gpt2"\ncluster = "a100"\ncount = {from = 8, to = 100000, steps = 9000}', "more than 2,000"),
        ('model = "<script>"\ncluster = "a100-8"', "no name that this page takes"),
    ],
)
def test_pasted_studies_name_no_file_and_are_small(tmp_path, monkeypatch, axes, word):
    (tmp_path / "mine").write_text("--num-layers 2")
    (tmp_path / "here").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(weft.WeftError, match=re.escape(word)):
        studies.checked(f"[axes]\n{axes}\n")


@pytest.mark.parametrize("text", ["", "no = toml = at all", "[axes]\nmodel = '<script>'\ncluster = 'a100-8'"])
def test_what_is_no_study_is_said_beside_the_form(client, text):
    before = listed(client)
    found = begun(client, text)
    assert found.status_code == 400
    assert 'role="alert"' in found.text
    assert "<script>'" not in found.text
    assert '<textarea id="study"' in found.text
    assert listed(client) == before


def test_addresses_name_no_folder(client, folder):
    for name in ("mine", "..%2f..%2fetc", "0" * 16):
        assert client.get(f"/studies/{name}").status_code == 404
        assert client.post(f"/studies/{name}/run", headers=OWN).status_code == 404


def test_a_study_that_another_process_computes_runs(client, folder):
    place = folder / "busy"
    place.mkdir()
    write_progress(place, Progress(study="busy", compute="plan", points=10, known=4, left=6))
    with_state = Kept(place)
    try:
        state, address = listed(client)["busy"]
        assert state == "running"
        page = client.get(address).text
        assert "4 of 10" in page
        assert f'data-work="{address}"' in page
        assert "Cancel" not in page
    finally:
        with_state.close()
    assert listed(client)["busy"][0] == "ended early"
    page = client.get(address)
    assert "4 of 10 results are there" in page.text
    assert "Go on" not in page.text


def test_a_study_is_cancelled_and_goes_on(client, folder):
    counts = ", ".join(str(8 * i) for i in range(1, 1500))
    text = f'name = "long"\n[axes]\nmodel = "gpt2-124m"\ncluster = "a100-64"\nbatch = [{counts}]\n'
    address = begun(client, text).headers["location"]
    for _ in range(200):
        if read_progress(studies.find(folder, address.rpartition("/")[2]).folder).known:
            break
        time.sleep(0.1)
    assert "It runs." in client.get(address).text
    assert listed(client)["long"][0] == "running"
    client.post(f"{address}/cancel", headers=OWN)
    page = ended(client, address)
    assert "It ended early" in page
    assert "results are there" in page
    state, known = listed(client)["long"][0], studies.find(folder, address.rpartition("/")[2]).progress.known
    assert state == "ended early"
    assert 0 < known < 1499
    client.post(f"{address}/run", headers=OWN)
    assert "It runs." in client.get(address).text
    client.post(f"{address}/cancel", headers=OWN)
    assert studies.find(folder, address.rpartition("/")[2]).progress.known >= known
