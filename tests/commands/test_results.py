"""Results: short, complete, safe to show, and rows that make a table."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from html.parser import HTMLParser

import click
import pytest

import weft
from weft.commands.app import cli
from weft.commands.command_line import DefaultGroup
from weft.commands.design import DesignOptions
from weft.commands.estimate import EstimateOptions
from weft.commands.options import options_of
from weft.commands.plan import PlanOptions
from weft.commands.schedule import ScheduleOptions
from weft.commands.train import TrainOptions
from weft.commands.validate import ValidateOptions
from weft.errors import BadInput, UnknownName
from weft.results import SHOWN_ROWS, Result, html_table


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    pytest.importorskip("torch")
    return {
        "plan": weft.plan("gpt2-124m", "a100-8", top=30, variants=True),
        "estimate": weft.estimate("gpt2-124m", "a100-8", "x=2", tokens="10B", failures="5y"),
        "design": weft.design("llama-3.1-8b", "h100-64", no_simulate=True),
        "collective": weft.schedule("all-reduce", "1GiB", cluster="h100-64"),
        "workload": weft.schedule(workload="resnet-152", cluster="h100-64"),
        "dry run": weft.train("tiny-gpt", layout="x=2,z=2", batch=4, dry_run=True),
    }


class Balanced(HTMLParser):
    """Every tag is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_shown_in_short(results):
    for found in results.values():
        assert len(repr(found)) < 300
        assert "\n" not in repr(found)
        page = Balanced()
        page.feed(found._repr_html_())
        assert not page.open
        assert 2 <= page.rows <= SHOWN_ROWS + 1


def test_documents_are_json_and_begin_with_their_schema(results):
    for found in results.values():
        document = found.to_dict()
        assert next(iter(document)) == "schema"
        assert json.loads(found.to_json()) == json.loads(json.dumps(document))
        assert found.to_json().isascii()


def test_rows_are_a_table(results):
    """Every row has the same columns, and cells are plain."""
    for found in results.values():
        rows = found.to_dicts()
        assert rows
        for row in rows:
            assert list(row) == list(rows[0])
            assert found.COLUMNS in ((), tuple(row))
            json.dumps(row, allow_nan=False)


def test_cells_are_escaped():
    text = html_table([{"<b>": "<script>alert(1)</script>"}] * 25)
    assert "<script>" not in text
    assert "<b>" not in text
    assert "and 5 more rows" in text


def test_the_command_line_writes_the_document(results, tmp_path):
    from click.testing import CliRunner

    path = tmp_path / "estimate.json"
    asked = ["estimate", "gpt2-124m", "a100-8", "--layout", "x=2", "--tokens", "10B", "--failures", "5y"]
    assert CliRunner().invoke(cli, [*asked, "--format", "json", "-o", str(path)]).exit_code == 0
    assert path.read_text(encoding="utf-8") == results["estimate"].to_json()
    assert weft.read(path) == results["estimate"]


def test_other_documents_are_refused(results, tmp_path):
    path = tmp_path / "design.json"
    results["design"].save(path)
    with pytest.raises(BadInput, match=r"'weft.design/1', not 'weft.plan/1', 'weft.estimate/1' or 'weft.arr"):
        weft.read(path)


def test_a_plan_gives_the_layout():
    plan = weft.plan("llama-3.1-8b", "h100-64", top=3)
    found = weft.estimate(plan=plan, rank=2)
    assert found.estimate == plan.layouts[1]
    with pytest.raises(BadInput, match="choose 1 to 3"):
        weft.estimate(plan=plan, rank=4)
    with pytest.raises(BadInput, match="already in the plan"):
        weft.estimate("llama-3.1-8b", plan=plan)
    job, cluster = plan.job, plan.cluster
    assert weft.estimate(job, cluster, plan.layouts[0].layout).estimate == plan.layouts[0]


def test_the_best_of_nothing():
    nothing = weft.plan("llama-3.1-405b", "a100-40gb-8")
    assert nothing.to_dicts() == []
    with pytest.raises(weft.NothingFeasible, match=r"none of .* is feasible .*does-not-fit"):
        _ = nothing.best


def test_options_are_a_record_or_keywords():
    asked = PlanOptions(top=2, fix="tp=2", batch=64)
    assert asked.fix == ("tp=2",)
    assert weft.plan("gpt2-124m", "a100-8", asked) == weft.plan("gpt2-124m", "a100-8", top=2, fix="tp=2", batch=64)
    with pytest.raises(UnknownName, match=r"unknown option 'topp' -- did you mean top"):
        weft.plan("gpt2-124m", "a100-8", topp=2)
    with pytest.raises(BadInput, match="top beside options"):
        weft.plan("gpt2-124m", "a100-8", asked, top=2)


@pytest.mark.parametrize("name", ["plan", "estimate", "design", "schedule", "train", "validate"])
def test_functions_and_commands_have_the_same_options(name):
    """Signature, documentation and command follow from one record."""
    function, command = getattr(weft, name), cli.get_command(click.Context(cli), name)
    if isinstance(command, DefaultGroup):
        command = command.commands[command.default]
    flags = {option for param in command.params for option in param.opts}
    keywords = inspect.signature(function).parameters
    record = next(one for one in inspect.get_annotations(function, eval_str=False).values() if "Options" in str(one))
    module = inspect.getmodule(inspect.unwrap(function))
    kind = getattr(module, str(record).split(" ")[0])
    for one in options_of(kind):
        assert one.name in keywords
        assert set(one.flags) <= flags
        assert f"{one.name}: {one.help}" in function.__doc__
    assert {one.name for one in options_of(kind)} == {one.name for one in fields(kind)}


JUNK = (None, True, 0, -1, 10**400, 0.5, float("nan"), "", "x" * 10**6, "\x1b", b"x", (), ("a", 1), [2], {}, object())


@pytest.mark.parametrize(
    "record", [PlanOptions, EstimateOptions, DesignOptions, ScheduleOptions, TrainOptions, ValidateOptions]
)
def test_options_take_a_value_or_refuse_it_in_one_short_line(record):
    refused = []
    for one in options_of(record):
        for value in JUNK:
            try:
                record(**{one.name: value})
            except BadInput as error:
                refused.append(str(error))
    assert refused
    assert all(len(message) < 300 and "\n" not in message for message in refused)
