"""What the command line refuses the functions refuse, in the same words."""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest

import weft
from weft.commands.app import main
from weft.errors import BadInput, WeftError
from weft.estimation import estimate
from weft.layout import Layout

BAD_LAYOUTS = (
    *("x=3", "zero=7", "zero=3,data=2", "schedule=foo", "recompute=some", "x=0", "x=8,data=7", "x=64,data=1"),
    *("pp=3", "pp=64,data=1", "sp", "y=2,sp", "cp=3", "ep=2", "vpp=2", "schedule=zbv,pp=1", "pp=4,vpp=2,mbs=512"),
    *("mbs=7", "recompute_layers=3", "order=x/y", "x=2,x=4", "w=3"),
)
BAD_OPTIONS = (
    {"batch": 0},
    {"batch": -3},
    {"sequence": 10**12},
    {"precision": "fp12"},
    {"attention": "slow"},
    {"calibration": "absent.toml"},
    {"stack": "nobody"},
    {"failures": "5y"},
    {"usd_per_hour": 2.0},
    {"tokens": "many"},
    {"tokens": "1T", "failures": "1s"},
    {"rank": 2},
)
PLAN_OPTIONS = (
    {"space": "all"},
    {"top": 0},
    {"top": 10**6},
    {"fix": "tp=3"},
    {"fix": "q=3"},
    {"fix": ("tp=2", "tp=4")},
    {"max": "sp=1"},
    {"max": "order=1"},
    {"memory_margin": "120%"},
    {"memory_margin": "much"},
    {"fix": "recompute_layers=2,recompute=none"},
    {"fix": "context_method=none"},
)


def told(*arguments: str) -> str:
    """The one line that the program says, without its first word."""
    said: list[str] = []
    with (
        patch.object(sys, "argv", ["weft", *arguments]),
        patch("click.echo", lambda text="", **more: said.append(str(text))),
        pytest.raises(SystemExit) as left,
    ):
        main()
    assert left.value.code == 2
    (line,) = said
    assert line.startswith("Error: ")
    assert "\n" not in line
    return line.removeprefix("Error: ")


def flags(options: dict[str, object]) -> list[str]:
    found = []
    for name, value in options.items():
        for one in value if isinstance(value, tuple) else (value,):
            found += [f"--{name.replace('_', '-')}", str(one)]
    return found


def raised(function, *arguments, **options) -> str:
    with pytest.raises(WeftError) as caught:
        function(*arguments, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("layout", BAD_LAYOUTS)
def test_layouts(layout):
    for verb in ("estimate", "design"):
        message = raised(getattr(weft, verb), "llama-2-7b", "h100-64", layout=layout)
        assert message == told(verb, "llama-2-7b", "h100-64", "--layout", layout)
    message = raised(weft.schedule, workload="llama-2-7b", cluster="h100-64", layout=layout)
    assert message == told("schedule", "--workload", "llama-2-7b", "--cluster", "h100-64", "--layout", layout)


@pytest.mark.parametrize("options", [*({"layout": "x=8"} | one for one in BAD_OPTIONS), *PLAN_OPTIONS], ids=str)
def test_options(options):
    verb = "estimate" if "layout" in options else "plan"
    message = raised(getattr(weft, verb), "llama-2-7b", "h100-64", **options)
    assert message == told(verb, "llama-2-7b", "h100-64", *flags(options))


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("plan", ("gtp2", "h100-64")),
        ("plan", ("gpt2-124m", "h1000-64")),
        ("plan", ("gpt2-124m", "absent.toml")),
        ("estimate", ("gpt2-124m", "h100-64")),
        ("design", ("gpt2-124m",)),
        ("validate", ("absent.csv",)),
        ("schedule", ("all-reduce", "1GiB")),
        ("schedule", ("all-reduct", "1GiB")),
    ],
)
def test_names_and_files(verb, arguments):
    assert raised(getattr(weft, verb), *arguments) == told(verb, *arguments)


@pytest.mark.parametrize(
    "fields",
    [
        {"x": 3.0},
        {"x": 0},
        {"x": True},
        {"zero": 7},
        {"zero": 3},
        {"schedule": "foo"},
        {"recompute": None},
        {"sequence_parallel": "yes"},
        {"order": ("x", "y")},
        {"recompute_layers": -1},
        {"micro_batch": 10**10},
    ],
    ids=str,
)
def test_layouts_are_refused_where_they_are_made(fields):
    with pytest.raises(BadInput) as caught:
        Layout(**fields)
    assert f"layout: {next(iter(fields))}" in str(caught.value)


def test_layouts_that_cannot_run_have_no_estimate():
    job, cluster = weft.resolve_job("llama-2-7b"), weft.resolve_cluster("h100-64")
    for layout in (Layout(data=32), Layout(x=64), Layout(data=64, virtual_stages=2), Layout(data=64, micro_batch=3)):
        with pytest.raises(BadInput, match=r"^layout \("):
            estimate(job, cluster, [layout])
