"""Results: short, complete, safe to show, and rows that make a table."""

from __future__ import annotations

import csv
import inspect
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator as Validator

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
from weft.errors import BadInput, MissingExtra, UnknownName
from weft.results import Result, columns_of
from weft.views import VIEWS, view_of
from weft.views.files import rows_to_csv
from weft.views.terminal import to_text

EXAMPLES = Path(__file__).parents[2] / "examples"
MAKERS: dict[str, Callable[[], Any]] = {
    "plan": lambda: weft.plan("gpt2-124m", "a100-8", top=30, variants=True),
    "layout of a plan": lambda: weft.plan("gpt2-124m", "a100-8", top=1).best,
    "network plan": lambda: weft.plan("gpt2-124m", "a100-8", top=2, fabric="fat-tree"),
    "estimate": lambda: weft.estimate("gpt2-124m", "a100-8", "x=2", tokens="10B", failures="5y"),
    "tune": lambda: weft.tune("gpt2-124m", "a100-8", "dp=8", measured="10%"),
    "goodput": lambda: weft.goodput("llama-3.1-8b", "h100-64", "tp=2,sp", tokens="1T"),
    "compare": lambda: weft.compare("gpt2-124m", "a100-8", "h100-8"),
    "design": lambda: weft.design("llama-3.1-8b", "h100-64", no_simulate=True),
    "bill": lambda: weft.bill_of_materials("h100-64", kind="fat-tree"),
    "collective": lambda: weft.schedule("all-reduce", "1GiB", cluster="h100-64"),
    "workload": lambda: weft.schedule(workload="resnet-50", cluster="h100-64"),
    "route": lambda: weft.route(generate="BLOOM:2", router="ecmp"),
    "simulate": lambda: weft.simulate("gpt2-124m", "a100-16", layout="tp=2"),
    "arrange": lambda: weft.arrange(EXAMPLES / "two-jobs.toml", budget="1s"),
    "sweep": lambda: weft.sweep(models="gpt2-124m", clusters="a100-8,a100-16", workers=1),
    "validate": lambda: weft.validate(family="korthikanti"),
    "dry run": lambda: weft.train("tiny-gpt", layout="x=2,z=2", batch=4, dry_run=True),
}
CHARTS = {
    "plan": {"pareto": True},
    **{name: {} for name in ("network plan", "estimate", "compare", "design", "collective", "arrange", "validate")},
    "sweep": {"x": "cluster", "y": "iteration_s"},
}
"""Results with a chart, and what their charts take."""


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    pytest.importorskip("torch")
    return {name: make() for name, make in MAKERS.items()}


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


@pytest.mark.parametrize("name", MAKERS)
def test_results_show_their_verdict_table_and_chart(results, name):
    """The first text of what the command prints is the repr; notebooks show all of it, and the chart of --chart."""
    result = results[name]
    text = to_text(view_of(result), wide=True)
    assert 5 < len(repr(result)) < 300
    assert "\n" not in repr(result)
    assert repr(result)[:40] in " ".join(text.split())
    page = Balanced()
    page.feed(result._repr_html_())
    assert not page.open
    assert page.rows > 1
    if name in CHARTS:
        assert result.chart(**CHARTS[name]).to_dict()["title"]["text"]
    else:
        with pytest.raises(BadInput, match="has no chart"):
            result.chart()


def test_notebooks_without_the_packages_of_pages_show_text(results, monkeypatch):
    monkeypatch.delitem(sys.modules, "weft.views.html", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert results["plan"]._repr_html_().startswith("<pre>Use ")


@pytest.mark.parametrize("name", MAKERS)
def test_data_frames_hold_the_rows_of_csv(results, name, monkeypatch):
    """One column for each of the CSV; pandas if it is installed, else polars, else one line names the extra."""
    result = results[name]
    made: dict[str, Any] = {}
    for package in ("polars", "pandas"):
        frames = SimpleNamespace(DataFrame=lambda table, strict=True, package=package: made.update({package: table}))
        monkeypatch.setitem(sys.modules, package, frames)
        monkeypatch.setattr("weft.results.find_spec", lambda name: name if sys.modules.get(name) else None)
        result.to_dataframe()
    assert made["pandas"] == made["polars"]
    rows = result.to_dicts()
    heading, *lines = csv.reader(io.StringIO(rows_to_csv(rows, columns_of(result, rows)), newline=""))
    assert heading == list(made["pandas"])
    assert {len(column) for column in made["pandas"].values()} == {len(lines)}
    for package in made:
        monkeypatch.delitem(sys.modules, package)
    with pytest.raises(MissingExtra, match=r"to_dataframe needs the extra weft\[dataframe\] -- pip install"):
        result.to_dataframe()


def test_every_result_has_a_view():
    """Views are found by the name of the class; results of no table show their rows."""
    for path in VIEWS.values():
        module, _, function = path.rpartition(".")
        assert callable(getattr(import_module(f"weft.views.{module}"), function))
    sources = "\n".join(path.read_text("utf-8") for path in Path(weft.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"^class (\w+)\((?:Result|Plan)\)", sources, re.M)) - set(VIEWS) == {"Selftest", "Trained"}


@pytest.mark.parametrize("name", MAKERS)
def test_documents_are_json_begin_with_their_schema_and_obey_it(results, name):
    found, document = results[name], results[name].to_dict()
    assert json.loads(found.to_json()) == json.loads(json.dumps(document))
    assert found.to_json().isascii()
    if found.SCHEMA:
        assert next(iter(document)) == "schema"
        validator, document = Validator(weft.schema(found.SCHEMA)), json.loads(found.to_json())
        assert [f"{one.json_path}: {one.message[:200]}" for one in validator.iter_errors(document)] == []
        assert not validator.is_valid(document | {"unknown": 1})


def test_rows_are_a_table(results):
    """Every row has the same columns, and cells are plain."""
    for found in results.values():
        rows = found.to_dicts()
        assert rows
        for row in rows:
            assert list(row) == list(rows[0])
            assert not found.COLUMNS or set(found.COLUMNS) == set(row)
            json.dumps(row, allow_nan=False)


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
