"""The public names, the command surface and the start-up budget are decisions: to change one, change this."""

import doctest
import inspect
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import weft
from weft.commands.app import VERBS, cli


def loaded_after(code: str) -> set[str]:
    """Top-level packages in a fresh interpreter after running ``code``."""
    script = f"{code}\nimport sys; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_public_names():
    assert weft.__all__ == [
        *("BadInput", "Cluster", "Estimate", "Job", "Layout", "Model", "NothingFeasible", "Plan", "Recipe"),
        *("Unsupported", "WeftError", "__version__", "arrange", "audit_routes", "bill_of_materials", "calibrate"),
        *("check_fabric", "compare", "design", "estimate", "goodput", "make_report", "plan", "read"),
        *("read_cluster", "read_config", "read_plan", "resolve_cluster", "resolve_job", "route", "schedule"),
        *("schema", "simulate", "sweep", "train", "tune", "validate"),
    ]
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    assert dir(weft) == weft.__all__


def commands(group: click.Group = cli, above: str = "") -> dict[str, click.Command]:
    """All verbs, those of a group after its name."""
    found = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found[above + name] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{above}{name} ")
    return found


SURFACE = """
plan: cluster model --as --attention --axis-order --batch --budget --calibration --chart --fabric --failures
    --fix --format --max --memory-margin --order --output --placement --policy --precision --radix
    --reduce-bf16 --routing --runnable --sequence --space --stack --tokens --top --usd-per-hour --variants
    --verbose --wide
estimate: cluster model --as --attention --batch --calibration --chart --failures --format --layout
    --output --plan --policy --precision --rank --reduce-bf16 --run --sequence --stack --tokens
    --usd-per-hour --verbose --vocab --wide
tune: cluster model --also --batch --calibration --format --keep --layout --measured --output --precision
    --run --sequence --stack --trace --verbose --wide --write
compare: names --batch --chart --fabric --format --layout --output --precision --routing --sequence --stack
    --tokens --usd-per-hour --verbose --wide
design: cluster model --against --batch --batches --chart --fabrics --failures --format --layout
    --network-life --no-failures --no-simulate --output --oversubscription --plan --policy --precision
    --prices --radix --rank --routing --sequence --sizes --tokens --usd-per-hour --verbose --wide
simulate: cluster model --arrangement --batch --calibration --fabric --failed --flows --format --full --job --layout
    --output --placement --plan --precision --radix --rank --routes --routing --seed --sequence --slow
    --timeline --verbose --wide
train:
train export: file folder --config --dtype --to
train run: model --arrangement --background-save --batch --calibration --clip --cluster
    --compare --compile --data --deterministic --device --dry-run --eval-batches --eval-data
    --eval-every --expert-balance --from --job --keep --layout --no-overlap --out --plan --precision
    --profile --rank --rate --reduce-bf16 --restart
    --resume --resume-from --save-every --seed --sequence --start-at --steps --tensorboard --timeout
    --warmup
serve: --open --port --state
fabric:
fabric bill: network --format --kind --output --prices --radix --spares --wide
fabric check: as_built --against --cluster --exclude --format --host-map --hosts --link-speed --names
    --output --radix --scale-up --wide
fabric show: cluster --exclude --export --host-map --hosts --kind --link-speed --output --picture --prices
    --radix --scale-up --wide
schedule: collective size --active --algorithms --calibration --chart --chunks --cluster --compare
    --dims --export --format --groups --layout --order --output --plan --policy --system --timeline
    --verbose --wide --workload
route:
route audit: --arrangement --cluster --demand --exclude --fabric --failed --flows --format --generate
    --host-map --job --output --placement --plan --radix --routes --scale-up --seed --verbose --wide
route export: kind --arrangement --at --cluster --demand --exclude --fabric --failed --flows --generate
    --host-map --job --output --placement --plan --probes --radix --router --routes --scale-up --seed
route plan: --arrangement --cluster --compare --demand --fabric --failed --flows --format --generate --job
    --output --paths --placement --plan --radix --router --seed --split --verbose
    --wide
route watch: --apply --chart --counters --demand --events --fabric --format --push --router --routes --seed --state
arrange: site --budget --chart --format --output --seed --verbose --wide
sweep:
sweep run: study --axis --clusters --compute --dry-run --models --output --state --wide --workers
sweep show: folder --chart --colour --facet --format --output --where --wide --x --y
launch: plan_file --arrangement --files --job --output --rank --start-at --tool
report: subject --format --output
bench:
bench run: --calibration-output --device --format --layout --output --precision --ranks --repeats --sizes
    --trace --verbose --wide
bench selftest: --format --gpu --output --ranks --wide
validate: runs --calibration --errors --family --fit --format --output --plot --regret --verbose
    --wide
info: name topic --wide
mcp:
"""
"""Every command with its arguments and options; -o stands beside each --output."""


def test_command_surface():
    expected = {}
    for line in SURFACE.strip().replace("\n    ", " ").splitlines():
        name, _, words = line.partition(":")
        expected[name] = sorted([*words.split(), *(["-o"] if "--output" in words.split() else [])])
    assert expected == {
        name: sorted(option for param in command.params for option in (*param.opts, *param.secondary_opts))
        for name, command in commands().items()
    }


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("name", [name for name in weft.__all__ if inspect.isfunction(getattr(weft, name))])
def test_every_public_function_shows_an_example_that_runs(name):
    found = doctest.DocTestFinder(recurse=False).find(getattr(weft, name), name)
    assert sum(len(one.examples) for one in found) > 0, "no example"
    results = [doctest.DocTestRunner().run(one) for one in found]
    assert not sum(result.failed for result in results)


def test_every_option_explains_itself():
    for name, command in commands().items():
        assert command.help, name
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help, f"{name} {param.name}"


def test_help_fits_on_a_screen_and_names_every_command():
    text = CliRunner().invoke(cli, ["--help"]).output
    assert len(text.splitlines()) <= 30
    assert {name for name in VERBS if not re.search(rf"\b{name}\b", text)} == set()
    assert len(VERBS) <= 19


def test_help_imports_no_numpy():
    loaded = loaded_after(
        "from click.testing import CliRunner; from weft.commands.app import cli\n"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0"
    )
    assert not loaded & {"numpy", "pydantic", "rich", "numba", "torch"}


def test_import_weft_is_light():
    assert not loaded_after("import weft") & {"numpy", "pydantic", "rich", "click", "numba", "torch"}


def test_plan_imports_no_numba():
    loaded = loaded_after(
        "from click.testing import CliRunner; from weft.commands.app import cli\n"
        "assert CliRunner().invoke(cli, ['plan', 'gpt2', 'a100-8']).exit_code == 0"
    )
    assert "numpy" in loaded
    assert not loaded & {"numba", "scipy", "torch", "pydantic"}
