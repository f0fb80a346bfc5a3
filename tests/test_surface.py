"""The public names, the command surface and the start-up budget are decisions: to change one, change this."""

import doctest
import inspect
import subprocess
import sys

import click
import pytest

import weft
from weft.commands.app import VERBS, cli


def loaded_after(code: str) -> set[str]:
    """Top-level packages in a fresh interpreter after running ``code``."""
    script = f"{code}\nimport sys; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_public_names():
    assert weft.__all__ == [
        "BadInput",
        "Cluster",
        "Estimate",
        "Job",
        "Layout",
        "Model",
        "NothingFeasible",
        "Plan",
        "Recipe",
        "Unsupported",
        "WeftError",
        "__version__",
        "arrange",
        "audit_routes",
        "bill_of_materials",
        "calibrate",
        "check_fabric",
        "compare",
        "design",
        "estimate",
        "goodput",
        "make_report",
        "plan",
        "read",
        "read_cluster",
        "read_config",
        "read_plan",
        "resolve_cluster",
        "resolve_job",
        "route",
        "schedule",
        "schema",
        "simulate",
        "sweep",
        "train",
        "validate",
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


def test_command_surface():
    surface = {
        name: sorted(option for param in command.params for option in (*param.opts, *param.secondary_opts))
        for name, command in commands().items()
    }
    recipe = ["--as", "--attention", "--batch", "--precision", "--reduce-bf16", "--sequence"]
    output = ["--calibration", "--chart", "--format", "--launch", "--output", "--stack", "-o"]
    run = ["--failures", "--mtbf", "--tokens", "--usd-per-hour"]
    files = ["--exclude", "--host-map", "--hosts", "--link-speed", "--scale-up"]
    network = [*files, "--cluster", "--fabric", "--radix", "--seed"]
    jobs = ["--calibration", "--flows", "--generate", "--job", "--jobs", "--placement", "--plan", "--rank"]
    traffic = [*network, *jobs, "--arrangement", "--failed", "--failed-spines"]
    search = [
        *("--fix", "--max", "--memory-margin", "--order", "--pareto", "--runnable"),
        *("--space", "--top", "--variants"),
    ]
    crossed = ["--queue-pairs", "--routing", "--transport"]
    chosen = [*crossed, "--axis-order", "--budget", "--fabric", "--placement", "--radix", "--seed"]
    assert surface == {
        "report": sorted([*("--colour", "--facet", "--format", "--output", "--where", "--x", "--y", "-o"), "subject"]),
        "plan": sorted([*recipe, *output, *run, *search, *chosen, "model", "cluster"]),
        "estimate": sorted(
            [
                *recipe,
                *output,
                *run,
                "--layout",
                "--plan",
                "--rank",
                "--run",
                "--stage",
                "--timeline",
                "--vocab",
                "names",
            ]
        ),
        "compare": sorted(
            [
                *recipe,
                *crossed,
                *("--chart", "--fabric", "--format", "--layout", "--output", "--radix", "--stack"),
                *("--tokens", "--usd-per-hour", "-o", "names"),
            ]
        ),
        "sweep": [],
        "sweep run": sorted(
            [
                *("--axis", "--batches", "--chart", "--clusters", "--colour", "--compute", "--dry-run", "--fabrics"),
                *("--facet", "--limit", "--models", "--output", "--precisions", "--sequences", "--state", "--strict"),
                *("--workers", "--x", "--y", "-o", "study"),
            ]
        ),
        "sweep show": sorted(
            [
                *("--chart", "--colour", "--columns", "--facet", "--format", "--output"),
                *("--where", "--x", "--y", "-o", "folder"),
            ]
        ),
        "schedule": sorted(
            [
                *recipe,
                *("--active", "--algorithms", "--calibration", "--chart", "--chunk-counts", "--chunks", "--cluster"),
                *(
                    "--compare",
                    "--dims",
                    "--export",
                    "--fabric",
                    "--format",
                    "--groups",
                    "--independent",
                    "--late",
                    "--layout",
                    "--plan",
                    "--rank",
                ),
                *(
                    "--network",
                    "--npus",
                    "--order",
                    "--output",
                    "--placement",
                    "--policy",
                    "--radix",
                    "--routing",
                    "--seed",
                ),
                *("--arrangement", "--job", "--slow", "--system", "--timeline", "--workload", "-o", "names"),
            ]
        ),
        "design": sorted(
            [
                *recipe,
                *crossed,
                *("--against", "--batches", "--chart", "--fabrics", "--failures", "--format", "--layout"),
                *("--network-life", "--oversubscription"),
                *("--no-failures", "--no-simulate", "--output", "--plan", "--policy", "--prices", "--radix"),
                *("--rank", "--seed", "--sizes", "--tokens", "--usd-per-hour", "-o", "names"),
            ]
        ),
        "goodput": sorted(
            [
                *recipe,
                *("--calibration", "--chart", "--fabric", "--failures", "--format", "--layout", "--output", "--plan"),
                *("--policy", "--radix", "--rank", "--routing", "--seed", "--simultaneous", "--spares", "--stack"),
                *("--tokens", "--usd-per-hour", "-o", "names"),
            ]
        ),
        "simulate": sorted(
            [
                *recipe,
                *crossed,
                *("--arrangement", "--calibration", "--fabric", "--failed", "--failures", "--flows", "--format"),
                *("--full", "--job", "--layout"),
                *(
                    "--mode",
                    "--output",
                    "--picture",
                    "--placement",
                    "--plan",
                    "--radix",
                    "--rank",
                    "--routes",
                    "--seed",
                    "--slow",
                ),
                *("--timeline", "-o", "names"),
            ]
        ),
        "fabric": [],
        "fabric check": sorted(
            [
                *(*files, *recipe, "--against", "--calibration", "--cluster", "--format", "--layout", "--model"),
                *("--names", "--output", "--plan", "--radix", "--rank", "--routing", "-o", "as_built"),
            ]
        ),
        "fabric show": sorted(
            [*files, *("--export", "--kind", "--output", "--picture", "--prices"), *("--radix", "-o", "cluster")]
        ),
        "fabric bill": sorted(
            [*files, *("--format", "--kind", "--output", "--prices", "--radix", "--spares", "-o", "network")]
        ),
        "route": [],
        "route plan": sorted(
            [
                *traffic,
                *("--compare", "--format", "--objective", "--output", "--paths", "--picture", "--router"),
                *("--split", "-o"),
            ]
        ),
        "route audit": sorted([*traffic, *("--format", "--output", "--path-bits", "--routes", "-o")]),
        "route evaluate": sorted(
            [
                *network,
                *jobs,
                *("--chart", "--controller", "--epochs", "--events", "--failed-spines"),
                *("--format", "--output", "--router", "--split", "-o"),
            ]
        ),
        "route watch": sorted(
            [
                *traffic,
                *("--apply", "--counters", "--events", "--format", "--path-bits", "--push", "--routes", "--state"),
            ]
        ),
        "route export": sorted(
            [*traffic, "--output", "--probes", "--router", "--routes", "--split", "--switch-hash", "-o", "kind"]
        ),
        "arrange": ["--budget", "--chart", "--draw", "--format", "--output", "--seed", "-o", "site"],
        "route events": sorted([*traffic, "--at", "--output", "-o"]),
        "bench-comm": sorted(
            [
                *("--calibration-output", "--device", "--format", "--layout", "--output", "--precision"),
                *("--ranks", "--repeats", "--sizes", "-o"),
            ]
        ),
        "train": sorted(
            [
                *recipe,
                *(
                    "--calibration",
                    "--clip",
                    "--cluster",
                    "--compare",
                    "--compile",
                    "--data",
                    "--deterministic",
                    "--device",
                    "--layout",
                ),
                *("--dry-run", "--metrics", "--no-overlap", "--out", "--plan", "--profile", "--rank", "--rate"),
                *("--resume", "--resume-from", "--save-every", "--seed", "--steps", "--tokenizer"),
                *(
                    "--background-save",
                    "--check-replicas",
                    "--keep",
                    "--tensorboard",
                    "--restart",
                    "--restart-layout",
                    "--timeout",
                    "--profile-ranks",
                    "--profile-steps",
                ),
                *("--from", "--slow"),
                *("--document-end", "--eval-batches", "--eval-data", "--eval-every", "--eval-share"),
                *("--expert-balance", "--expert-capacity"),
                *("--arrangement", "--job", "--start-at", "--warmup", "--weight-cache", "names"),
            ]
        ),
        "launch": sorted(
            ["--arrangement", "--files", "--job", "--output", "--rank", "--start-at", "--tool", "-o", "plan_file"]
        ),
        "export-checkpoint": ["--config", "--dtype", "--to", "file", "folder"],
        "validate": sorted(
            [*("--by", "--calibration", "--family", "--format", "--output", "--plot", "--regret", "-o", "runs")]
        ),
        "calibrate": ["--errors", "--output", "--start", "--trace", "-o", "runs"],
        "serve": ["--open", "--port", "--state"],
        "selftest": ["--format", "--gpu", "--output", "--ranks", "--steps", "-o"],
        "doctor": ["--format", "--output", "-o"],
        "models": ["word"],
        "clusters": ["word"],
        "stacks": [],
        "schema": ["name"],
        "explain": ["code"],
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


def test_the_list_of_commands_says_what_each_says():
    said = commands()
    for name, sentence in VERBS.items():
        assert said[name].get_short_help_str(200) == sentence


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
