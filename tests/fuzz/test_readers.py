"""Whatever a reader is given, it reads or refuses in words, soon and in bounded memory; and no reader is left out.

A fault names a reader and a number: ``python tests/fuzz/trials.py READER NUMBER`` tries that input again, and
``python tests/fuzz/trials.py`` prints what becomes of 10,000.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import readers
from readers import READERS
from trials import tried

import weft
from weft.errors import WeftError
from weft.interop.formats import FORMATS

FEW, MANY = 12, 100_000
ROOT = Path(weft.__file__).parent
NAMED = re.compile(r"^(read|parse|lint|load|resolve)(_|$)|(^|_)from_(dict|json|toml|text)$")
OPENS = {"read_text", "read_bytes", "parse_json", "parse_toml", "parse_yaml", "parse_xml"}
"""What a function that takes somebody's file or text calls, itself or by private functions of its module."""

NOT_READERS = {
    "cluster.files.parse_parameter": "reads a value of a study's axis; study_from_dict goes through it",
    "commands.command_line.DefaultGroup.parse_args": "parses the words of a command, as click does",
    "commands.app.Verbs.parse_args": "parses the words of a command, as click does",
    "commands.tune.write_change": "gives a run's file to read_run",
    "commands.tune.tune": "gives a run's file to read_run, or a plan to planned_subject",
    "commands.schedule.schedule": "gives files to read_network and read_system of interop.astra",
    "commands.schedule.schedule_command": "does what schedule does",
    "commands.route.export_command": "gives files to read_probes and read_subnet",
    "commands.route_watch.undecided": "gives lines of files to read_event",
    "collectives.schedules.timing.resolve_active": "takes a number, or a word of an option's choices",
    "estimation.trust.runs_from_json": "reads what Weft ships",
    "cluster.calibration.constants": "reads what Weft ships",
    "fabric.cost.preset": "reads what Weft ships",
    "model.workload.workloads": "reads what Weft ships",
    "reliability.classes.preset": "reads what Weft ships",
    "files.read_bytes": "gives bytes as they are; readers of files go through it",
    "files.read_text": "gives text as it is; readers of files go through it",
    "model.megatron_args.read_numerics": "takes flags of parse_arguments",
    "routing.choice.PathChoice.load": "tells the load of a link",
    "runtime.convert.prepare.Step.load": "checkpoint.load",
    "runtime.convert.prepare.Step.load_state_dict": "takes tensors",
    "runtime.checkpoints.checkpoint.load": "read_state and read_index, then bytes with checksums",
    "runtime.convert.parallelize.load_state_dict": "takes tensors in memory",
    "model.huggingface.read_text_part": "gives a table to read_details and check_model",
    "runtime.measure.selftest.read_findings": "reads what its own ranks wrote",
    "runtime.run.session.load_latest": "gives folders to Session.load",
    "runtime.run.session.Session.load": "read_state and RunState.read, then checkpoint.load",
    "commands.networks.network_of": "gives files to fabric_file and to clusters' readers",
    "interop.formats.Format.read": "gives the reader of a format; all of them are here",
    "interop.fabric_files.read_wiring": "gives texts to the readers of FORMATS, as read_fabric does",
    "commands.fabric.check_fabric": "gives files to fabric_files.read_wiring and read_names",
    "commands.networks.left_out": "gives a file to read_host_map",
    "commands.networks.routes_of": "gives a file to routes_json.read",
    "commands.route.installed": "gives files to routes_json.read_paths and opensm.read_tables",
}
"""Public functions that look like readers, and why no input is made for them."""


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of a module, and methods of its public classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from ((f"{node.name}.{one.name}", one) for one in node.body if isinstance(one, ast.FunctionDef))


def called(node: ast.AST) -> set[str]:
    """Functions that a function calls by their bare names."""
    return {one.func.id for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)}


@cache
def suspects() -> set[str]:
    """Public functions that are called like readers, or that open files or texts."""
    found = set()
    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        calls = {name: called(node) for name, node in functions(ast.parse(path.read_text(encoding="utf-8")))}
        opens = {name for name, names in calls.items() if names & OPENS}
        while (
            more := {name for name, names in calls.items() if names & {one for one in opens if one[0] == "_"}} - opens
        ):
            opens |= more
        for name in calls:
            own = name.rpartition(".")[2]
            if not own.startswith("_") and (NAMED.search(own) or name in opens):
                found.add(f"{module}.{name}")
    return found


def test_every_reader_is_here() -> None:
    known = {name.removeprefix("weft.") for one in READERS.values() for name in one.names}
    formats = {form.reader.replace(":", ".") for form in FORMATS if form.reader}
    missing = sorted((suspects() | formats) - known - set(NOT_READERS))
    assert not missing, f"register them in tests/fuzz/readers.py, or say why not: {missing}"
    gone = sorted(set(NOT_READERS) - suspects())
    assert not gone, f"they are no readers, or are gone: {gone}"


@pytest.mark.parametrize("name", READERS)
def test_a_few_inputs(name: str) -> None:
    assert tried(READERS[name], range(FEW)).faults == {}


@pytest.mark.parametrize("kind", ["absent", "folder", "no name"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of files get a path with nothing there, of a folder, or that no system takes."""

    def unwritten(raw: bytes, path: Path) -> Path:
        if kind == "folder":
            path.mkdir()
        return path.with_name("a\0b") if kind == "no name" else path

    reader = READERS[name]
    seed = next(one if isinstance(one, bytes) else one.encode() for one in reader.seeds())
    monkeypatch.setattr(readers, "written", unwritten)
    with suppress(WeftError):
        reader.read(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_inputs(name: str) -> None:
    assert tried(READERS[name], range(-(-MANY // len(READERS)))).faults == {}
