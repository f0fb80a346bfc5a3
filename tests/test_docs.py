"""The documentation: every command and snippet runs and prints what its page says; tables match the code.

Blocks marked ``console`` and ``python`` run, in order, in a folder that holds ``examples``.  A console block
may name the paragraphs it shows (``sections="Time|Memory"``, by their first words; "..." stands for the rest)
and the exit code it expects (``exit=2``).  Numbers may differ by one in their last digit, or by 0.3 %.

``python tests/test_docs.py`` writes the present output and tables into the pages; with names (``README sweep``) into
these alone.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from weft import codec, solvers, validate
from weft.cluster.calibration import Calibration, constants
from weft.cluster.files import AcceleratorEntry, ClusterFile, TierEntry
from weft.commands.app import main
from weft.commands.sweep import VERBS, cluster_axes, computation
from weft.estimation.result import MEMORY_PARTS, TIME_PARTS
from weft.estimation.trust import covered, shipped_runs
from weft.layout.check import CODES, REASONS
from weft.layout.spec import AXES, FIELDS, Layout, word_of
from weft.model.huggingface import MODEL_TYPES
from weft.model.megatron_args import _REFUSED
from weft.reliability.classes import FailureClass, FailureFile
from weft.reliability.renewal import Recovery
from weft.search import SPACES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "benchmarks" / "figures.toml"
WIDTH = "110"
BLOCK = re.compile(r"^```(console|python)([^\n]*)\n(.*?)^```\n(\n```text\n.*?^```\n)?", re.M | re.S)
TABLE = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.S)
PICTURE = re.compile(r"`(weft [^`]*--chart (docs/pictures/[^`\s]+)[^`]*)`")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


# Running ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def workplace(folder: Path) -> Iterator[None]:
    """A current folder with the examples."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    with contextlib.chdir(folder):
        yield


def weft(command: str) -> tuple[str, int]:
    """Output (both streams) and exit code of a command of the program, run in this process."""
    words = shlex.split(command.replace("\\\n", " "))
    assert words[0] == "weft", command
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    code: int | str | None = 0
    environment = {name: value for name, value in os.environ.items() if "COLOR" not in name}
    with (
        patch.dict(os.environ, environment | {"COLUMNS": WIDTH}, clear=True),
        patch.object(sys, "argv", words),
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    text = stream.buffer.getvalue().decode("utf-8")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n"), int(code or 0)


def paragraphs(output: str, wanted: str) -> str:
    """The paragraphs that begin with one of the words, "..." for those between."""
    found: list[str] = []
    for part in output.split("\n\n"):
        shown = part if part.lstrip().startswith(tuple(wanted.split("|"))) else "..."
        if shown != "..." or not found or found[-1] != "...":
            found.append(shown)
    assert len(found) > 1 or found != ["..."], f"none of {wanted} in:\n{output}"
    return "\n\n".join(found)


def console_block(info: str, body: str) -> str:
    """The block with the output that its commands have now."""
    settings = dict(word.split("=", 1) for word in shlex.split(info))
    commands = re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n", body, re.M)
    assert commands, f"no command in {body!r}"
    lines = []
    for command in commands:
        output, code = weft(command)
        expected = int(settings.get("exit", 0)) if command == commands[-1] else 0
        assert code == expected, f"{command}: exit code {code}\n{output}"
        if "sections" in settings and output:
            output = paragraphs(output, settings["sections"])
        lines += [f"$ {command}", *([output] if output else [])]
    return "\n".join(lines) + "\n"


def python_block(body: str, namespace: dict[str, object]) -> str:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(compile(body, "snippet", "exec"), namespace)
    return stream.getvalue()


def refreshed(page: str) -> str:
    """The page as it would be with today's output and tables."""
    namespace: dict[str, object] = {"__name__": "snippet"}

    def block(match: re.Match[str]) -> str:
        language, info, body, output = match.groups()
        if language == "console":
            return f"```console{info}\n{console_block(info, body)}```\n" + (output or "")
        printed = python_block(body, namespace)
        shown = f"\n```text\n{printed}```\n" if printed else ""
        return f"```python{info}\n{body}```\n{shown}"

    tables = TABLE.sub(lambda match: f"{match[1]}{GENERATED[match[2]]()}{match[3]}", page)
    return BLOCK.sub(block, tables)


def nearly_equal(old: str, new: str) -> bool:
    """Equal but for blanks, the length of bars, and one in the last digit of numbers."""

    def words(text: str) -> list[str]:
        return re.sub(r"\s+", " ", re.sub("[█#]{2,}|█", "#", text)).split(" ")

    def close(before: str, after: str) -> bool:
        if before == after:
            return True
        if NUMBER.sub("0", before) != NUMBER.sub("0", after):
            return False
        pairs = zip(NUMBER.findall(before), NUMBER.findall(after), strict=True)
        return all(abs(float(a.replace(",", "")) - float(b.replace(",", ""))) <= unit(a) for a, b in pairs)

    def unit(number: str) -> float:
        decimals = len(number.partition("e")[0].partition(".")[2])
        return float(max(1.01 * 10.0**-decimals, 0.003 * float(number.replace(",", ""))))

    first, second = words(old), words(new)
    return len(first) == len(second) and all(map(close, first, second))


def pictures(page: str) -> dict[str, str]:
    """Commands of a page that draw its pictures, by the picture's path."""
    return {path: command for command, path in PICTURE.findall(page)}


def drawn(command: str, path: str) -> str:
    """What a command draws there now."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path(path).parent.mkdir(parents=True)
        output, code = weft(command)
        assert code == 0, output
        return Path(path).read_text(encoding="utf-8")


# Tables -----------------------------------------------------------------------------------------


def rows(heads: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    text = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(line) for line in lines)]
    return "".join(f"| {line} |\n" for line in text)


def calibration_table() -> str:
    default = Calibration()
    heads = ("constant", "default", "range", "source")
    lines = [
        (
            f"`{name}`",
            f"{getattr(default, name):g}",
            unit if "or" in unit.split() else f"{low:g} to {high:g} {unit}",
            source,
        )
        for name, unit, low, high, source in constants()
    ]
    return rows(heads, lines)


def layout_table() -> str:
    default = Layout()
    words = {name: getattr(default, name) for name in FIELDS}
    shown = {
        name: "/".join(value) if isinstance(value, tuple) else str(value).lower() for name, value in words.items()
    }
    return "".join(f"- `{word_of(name)}` (default {value})\n" for name, value in shown.items())


def records() -> dict[str, dict[str, Any]]:
    """The records of the benchmarks, by name; of plans on networks also how many are proved, and what they took."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    plans = found["plan_on_fabric"]["figures"]
    ends = {end: [value for name, value in plans.items() if name.endswith(end)] for end in ("_gap", "_lost", "_cpu_s")}
    plans |= {"cells": len(ends["_gap"]), "proved": ends["_gap"].count(0.0), "most_lost": max(ends["_lost"])}
    plans |= {"least_cpu_s": min(ends["_cpu_s"]), "most_cpu_s": max(ends["_cpu_s"])}
    return found


def figures() -> dict[str, dict[str, Any]]:
    """Figures of the records, and the errors on the runs that Weft ships: their mean, and each family's."""
    known = shipped_runs()
    by_family, by_kind = (
        {
            family: float(np.abs([getattr(one, name) for one in known if one.family == family]).mean())
            for family in covered(known)
        }
        for name in ("error", "without_kind")
    )
    means = [float(np.mean(list(each.values()))) for each in (by_family, by_kind)]
    errors = {"runs": len(known), "mean": means[0], "kind_mean": means[1]} | by_family
    return {name: record["figures"] for name, record in records().items()} | {"errors": errors}


def quoted(kind: str) -> Any:
    """Rows, lines or passages of figures as they are written down."""
    found: Any = tomllib.loads(FIGURES.read_text(encoding="utf-8"))[kind]
    return found


def figures_table(name: str) -> str:
    """The figures of a page, with the records that they come from."""
    known = records()
    figures = {one: record["figures"] for one, record in known.items()}
    lines, used = [], set()
    for row in (row for row in quoted("row") if row["page"] == name):
        sources = sorted(set(re.findall(r"\{(\w+)\[", row["what"] + row["result"])))
        used |= set(sources)
        dates = ", ".join(f"{known[one]['date']} ({known[one]['commit'].rstrip('+')[:7]})" for one in sources)
        texts = (row[key].format_map(figures) for key in ("what", "result"))
        lines.append((*texts, f"`{row['command'].removeprefix('python ')}` {dates}".rstrip()))
    machines: dict[str, list[str]] = {}
    for source in sorted(used):
        machine = known[source]["machine"]
        name = f"{machine['cores']} cores of {machine['processor']}"
        machines.setdefault(name, []).append(f"`{source}` {machine['load_at_start']}")
    loads = "; ".join(f"{name} ({', '.join(sources)})" for name, sources in machines.items())
    heads = ("what", "result", "recorded by (date, commit)")
    return rows(heads, lines) + f"\nMachines, with the load when each benchmark began: {loads}.\n"


def first_lines() -> str:
    """What README says first, each with its proof."""
    values = figures()
    return "".join(f"- {one['text'].format_map(values)} [Proof](docs/{one['proof']})\n" for one in quoted("first"))


def beside_table() -> str:
    """Figures of other tools and Weft's on the same cases."""
    quotes = quoted("beside")
    families = tuple(sorted({name for one in quotes for name in re.findall(r"{memory\[([^]]+)]", one["ours"])}))
    memory = {one.family: one.memory_mape for one in validate(family=families).families}
    values = figures() | {"memory": memory}
    lines = [(one["case"], f"{one['tool']}: {one['theirs']}", one["ours"].format_map(values)) for one in quotes]
    return rows(("case", "other tool", "Weft"), lines)


def passage(name: str) -> str:
    text: str = quoted("passage")[name]
    return text.format_map(figures())


def errors_table() -> str:
    """How far predictions of each family are by constants that had not seen it, or no run of its kind, from the runs
    that Weft ships."""
    known, inside = shipped_runs(), covered(shipped_runs())
    lines, means = [], []
    for family in sorted(inside):
        runs = [one for one in known if one.family == family]
        names = ("error", "without_kind", "unfitted")
        errors, by_kind, unfitted = (np.abs([getattr(one, name) for one in runs]) for name in names)
        means.append((errors.mean(), by_kind.mean(), unfitted.mean(), inside[family]))
        shares = (f"{one:.1%}" for one in (errors.mean(), errors.max(), by_kind.mean(), unfitted.mean()))
        lines.append((family, str(len(runs)), *shares, f"{inside[family]:.0%}"))
    mean = np.mean(means, axis=0)
    shares = (f"{mean[0]:.1%}", "", f"{mean[1]:.1%}", f"{mean[2]:.1%}", f"{mean[3]:.0%}")
    lines.append(("mean over families", str(len(known)), *shares))
    heads = ("family", "runs", "source left out", "worst", "kind left out", "before any run", "inside the bar")
    return rows(heads, lines)


def listed(items: tuple[str, ...]) -> str:
    return ", ".join(f"`{item}`" for item in items) + ".\n"


def studies_table() -> str:
    lines = ["| `compute` | needs | may vary beside clusters and their figures |", "| --- | --- | --- |"]
    for name in VERBS:
        found = computation(name)
        own = sorted(axis for axis in found.axes if axis not in (*found.needed, *cluster_axes()))
        words = (", ".join(f"`{axis}`" for axis in axes) for axes in (found.needed, own))
        lines.append(f"| `{name}` | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


GENERATED = {
    "calibration": calibration_table,
    "model-types": lambda: listed(MODEL_TYPES),
    "refused-flags": lambda: listed(_REFUSED),
    "layout-fields": layout_table,
    "performance": lambda: figures_table("performance"),
    "accuracy": lambda: figures_table("accuracy"),
    "first": first_lines,
    "beside": beside_table,
    "actuators": lambda: passage("actuators"),
    "congestion": lambda: passage("congestion"),
    "congestion-published": lambda: passage("congestion-published"),
    "errors": errors_table,
    "studies": studies_table,
}


# Tests ------------------------------------------------------------------------------------------


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_shows_what_the_program_prints(path: Path, tmp_path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    with workplace(tmp_path / "work"):
        now = refreshed(page)
    difference = "\n".join(difflib.unified_diff(page.splitlines(), now.splitlines(), lineterm="", n=0))
    assert nearly_equal(page, now), f"run python tests/test_docs.py, then read what changed:\n{difference}"


@pytest.mark.slow
def test_pictures_are_what_their_commands_draw() -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    shown = {path: command for page in PAGES for path, command in pictures(page.read_text("utf-8")).items()}
    assert set(shown) == {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "pictures").iterdir()}
    for path, command in shown.items():
        # A comma parts coordinates here, not thousands.
        there, now = (
            one.replace(",", " ") for one in ((ROOT / path).read_text(encoding="utf-8"), drawn(command, path))
        )
        assert nearly_equal(there, now), f"{command} draws another picture: run python tests/test_docs.py, and look"


QUOTING = {
    "actuators": "docs/routing",
    "performance": "docs/performance",
    "accuracy": "docs/accuracy",
    "first": "README",
    "beside": "docs/comparison",
    "congestion": "docs/congestion",
    "congestion-published": "docs/congestion",
}


@pytest.mark.parametrize(("name", "path"), QUOTING.items(), ids=QUOTING)
def test_figures_are_those_that_the_benchmarks_recorded(name: str, path: str) -> None:
    text = (ROOT / f"{path}.md").read_text(encoding="utf-8")
    (shown,) = re.findall(f"<!-- generated: {name} -->\n(.*?)<!-- end -->", text, re.S)
    assert shown == GENERATED[name]()


def test_records_say_where_and_when_they_were_made() -> None:
    paths = sorted(RESULTS.glob("*.json"))
    assert paths
    for path in paths:
        record = json.loads(path.read_text(encoding="utf-8"))
        assert record["benchmark"] == path.stem
        assert record["command"].startswith("python benchmarks/")
        assert all(record[key] for key in ("commit", "date", "machine", "versions", "figures")), path
        assert "/" not in json.dumps([record["figures"], record["machine"], record["data"]]), path


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_every_rejection_is_documented() -> None:
    text = page("rejections")
    assert re.findall(r"^## ([a-z-]+)$", text, re.M) == list(CODES)
    for code in CODES:
        assert REASONS[code] in text, code


def test_every_part_of_an_estimate_is_explained() -> None:
    text = page("estimates")
    for part in (*TIME_PARTS, *MEMORY_PARTS):
        assert f"`{part}`" in text, part


def test_every_field_of_a_cluster_file_is_explained() -> None:
    text = page("models-and-clusters")
    for kind in (ClusterFile, TierEntry, AcceleratorEntry):
        for entry in codec.entries(kind):
            for name in {entry.name, entry.also or entry.name}:
                assert f"`{name}`" in text, name


def test_every_field_of_a_failure_file_is_explained() -> None:
    for kind in (FailureFile, FailureClass, Recovery):
        for entry in codec.entries(kind):
            assert f"`{entry.name}`" in page("goodput") or f"[{entry.name}" in page("goodput"), entry.name


def test_every_space_and_axis_is_explained() -> None:
    for name in SPACES:
        assert f"`{name}`" in page("estimates"), name
    for axis in AXES:
        assert re.search(rf"\*\*{axis}\*\*|\(`{axis}`\)", page("glossary")), axis


def test_json_keys_of_a_plan_are_documented(tmp_path: Path) -> None:
    text = page("reference/formats")
    with workplace(tmp_path / "work"):
        weft("weft plan gpt2 a100-8 --top 1 --tokens 1B --failures 5y --format json -o plan.json")
        weft("weft estimate gpt2 a100-8 --layout dp=8 --format json -o one.json")
        plan, one = (json.loads(Path(name).read_text(encoding="utf-8")) for name in ("plan.json", "one.json"))
    keys = {*plan, *plan["layouts"][0], *one, *one["sensitivities"][0], *plan["layouts"][0]["run"]}
    keys |= set(plan["layouts"][0]["run"]["failures"])
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_links_lead_somewhere() -> None:
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_architecture_names_files_that_exist() -> None:
    files = re.findall(r"`((?:\w+/)*\w+\.(?:py|md|toml))`", page("architecture"))
    assert [name for name in files if not (ROOT / name).exists() and not (ROOT / "src" / "weft" / name).exists()] == []
    assert len(files) > 30


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 520


def test_comparison_names_a_source_for_every_tool() -> None:
    parts = re.split(r"^### ", page("comparison").partition("## Figures on the same cases")[0], flags=re.M)[1:]
    assert len(parts) > 8
    links = dict(re.findall(r"^\[([^\]]+)\]: (https://\S+)$", page("comparison"), re.M))
    for part in parts:
        assert {name for name in re.findall(r"\[([^\]]+)\](?![(\[])", part) if name in links}, part[:40]
    unknown = [name for name in re.findall(r"\]\[([^\]]+)\]", page("comparison")) if name not in links]
    assert unknown == []


def test_differences_are_seen() -> None:
    assert nearly_equal("time 5.86 s ███", "time  5.87 s ██")
    assert not nearly_equal("time 5.86 s", "time 5.96 s")
    assert not nearly_equal("fits", "does not fit")


def _refresh() -> None:
    solvers.heard.update((solvers.FOR_GOOD, solvers.FOR_NOW))  # as conftest.py does
    for path in (path for path in PAGES if path.stem in sys.argv[1:] or not sys.argv[1:]):
        old = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder, workplace(Path(folder) / "work"):
            new = refreshed(old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(f"{path.relative_to(ROOT)} rewritten")
        for picture, command in pictures(new).items():
            (ROOT / picture).write_text(drawn(command, picture), encoding="utf-8")


if __name__ == "__main__":
    _refresh()
