"""The report of a study: its parts, hostile texts, light for any size."""

import json
import re
from html import unescape

import pytest
from click.testing import CliRunner

import weft
from weft.commands.app import cli
from weft.errors import BadInput
from weft.studies.result import Sweep
from weft.studies.run import Counts, StudyState
from weft.studies.study import AxisKind, Computation, Points, study_from_dict
from weft.units import parse_whole

HOSTILE = "<script>alert(1)</script>|`x`"
AXES = {"model": ["gpt2-124m", "gpt2-355m"], "cluster": "a100", "count": [8, 16], "layout": ["mbs=1", "tp=2"]}
STUDY = {"name": "small models", "compute": "estimate", "axes": AXES | {"batch": [4, 32, 64]}}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    with weft.sweep(STUDY, state=str(folder), workers=1) as found:
        assert sum(row["failure"] is not None for row in found.rows()) == 6
    return folder


@pytest.fixture(scope="module")
def page(state):
    return weft.make_report(state)


def made(folder, rows, left=0):
    """A study with given figures at its points, the last ones not computed."""
    kinds = {"model": AxisKind("model", lambda value, where: value), "a": AxisKind("a", parse_whole)}
    computation = Computation(name="plan", axes=kinds, needed=())
    models = sorted({row["model"] for row in rows})
    axes = {"model": models, "a": list(range(len(rows) // len(models)))}
    points = Points(study_from_dict({"schema": "weft.study/1", "axes": axes}, lambda name, where: computation))
    keys = points.keys("1")
    kept = StudyState(folder, {"version": "1"})
    texts = [json.dumps({"failure": None, "message": None} | row) for row in rows]
    kept.add([(bytes(key), text) for key, text in zip(keys[: len(keys) - left], texts, strict=False)])
    return Sweep(points, kept, keys, Counts.of(keys, kept)[0])


def text_of(page, name):
    """The rows of a table of a page, cell by cell."""
    (table,) = re.findall(rf'<table id="{name}".*?</table>', page, re.DOTALL)
    (body,) = re.findall(r"<tbody>(.*?)</tbody>", table, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [[unescape(one) for one in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)] for row in rows]


def test_a_page_says_all_parts_and_loads_nothing(page):
    for name in ("charts", "points", "failed", "provenance"):
        assert f'<h2 id="{name}"' in page
        assert f'href="#{name}"' in page
    assert page.count('class="weft-chart"') == 3
    assert not re.search(r'(src|href)="(?!#)', page)
    assert "24 points of estimate: 18 with a result, 6 failed (" in page
    assert "Over model (2 values), count (2 values), layout (2 values) and batch (3 values)." in page
    with weft.sweep(STUDY, workers=1) as found:
        assert found.counts.computed == 24
        rows = list(found.rows())
        assert weft.make_report(found) == page
        assert found.version in page
    assert len(text_of(page, "points-table")) == len(rows)
    failed = [row for row in rows if row["failure"]]
    assert {row["failure"] for row in failed} == {"bad-input"}, "said once: all rows have it"
    assert "bad-input" in page
    assert [cells[-1] for cells in text_of(page, "failed-table")] == [row["message"] for row in failed]


@pytest.mark.parametrize("form", ["html", "md"])
def test_hostile_texts_are_inert(tmp_path, form):
    rows = [{"model": HOSTILE, "mfu": 0.1 * i, "layout_text": HOSTILE} for i in range(3)]
    rows.append({"model": HOSTILE, "failure": HOSTILE, "message": HOSTILE})
    with made(tmp_path, rows) as found:
        text = weft.make_report(found, form=form)
    before, fence, study = text.partition("\n```\n{")
    assert "<script>alert" not in before
    assert not fence or study.count("```") == 1  # a block of code, which nothing within it ends
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_large_study_is_light_and_says_what_is_left_out(tmp_path):
    rows = [
        {"model": "m", "memory_bytes": (i * 7919) % 10_007, "tokens_per_s": float(i * i % 10_009)}
        for i in range(6_000)
    ]
    with made(tmp_path, rows, left=2_000) as found:
        page = weft.make_report(found)
    assert len(page.encode()) < 3_000_000
    assert "2,000 points are not computed yet" in page
    assert f"The first {len(text_of(page, 'points-table')):,} of 4,000 rows" in page
    assert "Not drawn" in page


def test_markdown_has_the_rows(state):
    text = weft.make_report(state, form="md")
    assert sum(line.startswith("| gpt2-") for line in text.splitlines()) > 24
    assert "## Points" in text


def test_the_command_takes_a_state_and_says_what_it_does_not_take(state, page, tmp_path):
    written, table = tmp_path / "report.html", tmp_path / "rows.csv"
    done = CliRunner().invoke(cli, ["report", str(state), "-o", str(written)])
    assert done.exit_code == 0, done.output
    assert written.read_text() == page
    table.write_text("model,mfu\n")
    for subject, word in ((str(table), "which does not say"), (str(tmp_path), "is not the state of a sweep")):
        found = CliRunner().invoke(cli, ["report", subject])
        assert isinstance(found.exception, BadInput)
        assert word in str(found.exception)
