"""The guard, the workers and the pasted texts of the server."""

import asyncio
import json
import operator
import os
import time
import warnings

import pytest

from weft.errors import BadInput, UnknownName

pytest.importorskip("starlette")
pytest.importorskip("httpx")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from weft.model.resolve import RecipeChanges
from weft.web.app import BODY_BYTES, QUERY_BYTES, application
from weft.web.pages import Text, Texts, cluster_of_text, job_of_text
from weft.web.work import Failure, Pool, Question


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with TestClient(application(Pool(time_s=30), tmp_path_factory.mktemp("state"), ["testserver"])) as made:
        yield made


def with_pool(check):
    """Run a check of a pool in an event loop."""

    async def run():
        pool = Pool(time_s=30)
        await pool.start()
        try:
            await check(pool)
        finally:
            pool.close()

    asyncio.run(run())


async def end_of(ticket):
    """The answer of a ticket, or the code of its failure."""
    assert await ticket.wait(30)
    try:
        return ticket.result()
    except Failure as failure:
        return failure.code
    finally:
        ticket.close()


def test_answers_forbid_scripts_within_pages_and_frames(client):
    for path in ("/", "/static/weft.css", "/nothing"):
        policy = client.get(path).headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert client.get(path).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"host": "evil.example"}, 421),
        ("GET", {"host": "testserver.evil.example"}, 421),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ("POST", {}, 403),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"origin": "http://evil.example"}, 403),
        ("POST", {"origin": "http://testserver"}, 405),
        ("PUT", {}, 405),
    ],
)
def test_requests_of_other_sites_are_refused(client, method, headers, status):
    assert client.request(method, "/", headers=headers).status_code == status


def test_large_requests_are_refused(client):
    own = {"origin": "http://testserver"}
    assert client.post("/", headers=own, content=b"x" * (BODY_BYTES + 1)).status_code == 413
    assert client.get("/?" + "x" * (QUERY_BYTES + 1)).status_code == 414


def test_errors_are_pages(client):
    found = client.get("/nothing")
    assert found.status_code == 404
    assert "<h1>" in found.text


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "/tmp/config.json", "x.toml", "pasted-../../a"])
def test_no_name_reads_a_file(name, tmp_path):
    texts = Texts(tmp_path)
    with pytest.raises(BadInput):
        job_of_text(texts.find("model", name), RecipeChanges(), 8)
    with pytest.raises(BadInput):
        cluster_of_text(texts.find("cluster", name))


def test_a_name_is_not_taken_for_a_file_that_is_there(tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("--num-layers 2")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName):
        job_of_text(Text("mine"), RecipeChanges(), 8)


def test_pasted_texts_are_kept_by_their_content(tmp_path):
    texts = Texts(tmp_path)
    name = texts.keep("cluster", 'name = "small"\ncount = 16\naccelerator = "h100"')
    assert cluster_of_text(Texts(tmp_path).find("cluster", name)).count == 16
    shape = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    pasted = json.dumps({"model_type": "gpt2"} | shape)
    job = job_of_text(texts.find("model", texts.keep("model", pasted)), RecipeChanges(global_batch=8), 8)
    assert (job.model.parameters, job.recipe.global_batch) == (124439808, 8)
    for odd in ("", "a\x1bb", "x" * 4_000_001):
        with pytest.raises(BadInput):
            texts.keep("model", odd)


def test_work_ends_with_an_answer_or_says_why_not():
    async def check(pool):
        assert await end_of(pool.ask(Question(operator.add, (1, 2)))) == 3
        assert await end_of(pool.ask(Question(operator.truediv, (1, 0)))) == "bug"
        assert await end_of(pool.ask(Question(time.sleep, (60,), time_s=0.5))) == "time"
        assert await end_of(pool.ask(Question(operator.mul, (b"x", 10**10)))) == "memory"
        assert await end_of(pool.ask(Question(os._exit, (1,)))) == "memory"
        assert await end_of(pool.ask(Question(operator.add, (3, 4)))) == 7

    with_pool(check)


def test_equal_questions_share_an_answer():
    async def check(pool):
        tickets = [pool.ask(Question(time.monotonic, ())) for _ in range(20)]
        assert len({await end_of(one) for one in tickets}) == 1

    with_pool(check)


def test_work_is_cancelled():
    async def check(pool):
        asked = pool.ask(Question(time.sleep, (61,)))
        asked.cancel()
        assert await end_of(asked) == "cancelled"
        left = pool.ask(Question(time.sleep, (62,)))
        again = pool.ask(Question(time.sleep, (62,)))
        assert not await again.wait(0.2)
        left.close()
        assert not again.done
        again.close()
        assert await end_of(again) == "cancelled"

    with_pool(check)


def test_long_work_leaves_a_process_for_others():
    async def check(pool):
        long = [pool.ask(Question(time.sleep, (70 + i,), time_s=90.0)) for i in range(3)]
        assert await end_of(pool.ask(Question(operator.add, (5, 6)))) == 11
        for one in long:
            one.cancel()
            assert await end_of(one) == "cancelled"

    with_pool(check)


def test_a_field_cannot_say_where_the_answer_goes(client, monkeypatch):
    monkeypatch.setattr("weft.web.app.AT_ONCE_S", 0.0)
    page = client.get("/plan?model=gpt2-124m&cluster=h100-8&fix=a%1Eanswer%1Eb").text
    assert page.index("</form>") < page.index('role="alert"') < page.index("</main>")
