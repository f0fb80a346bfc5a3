"""Count how large Weft is, and hold the counts against ``budget.toml``.

Run: ``python tools/budget.py`` prints every count beside its budget, and exits with 1 when one is above it.
``--write`` lowers budgets to the counts of today where these are less, and raises none.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "weft"
BUDGET = ROOT / "budget.toml"
LONGEST_FUNCTION = 80
LONGEST_FILE = 1000
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
CALLS = {
    "plan": "weft.plan('llama-3.1-8b', 'h100-64', top=3)",
    "simulate": "weft.simulate('gpt2', 'h100-16', layout='tp=4,dp=4')",
    "route": "weft.route(generate='BLOOM:2', seed=1)",
    "design": "weft.design('gpt2', 'h100-16', layout='tp=4,dp=4', fabrics=['fat-tree'])",
    "schedule": "weft.schedule('all-reduce', '1MiB', cluster='h100-16')",
}
"""What is called to count the functions that run, imports included."""
FORMAT_CHOICES = ("export", "kind", "tool")
"""Parameters of commands that choose the format of a file."""
PROFILE = """
import json, sys, threading
codes = set()
def note(frame, event, argument):
    if event == "call":
        code = frame.f_code
        codes.add((code.co_filename, code.co_firstlineno, code.co_name))
threading.setprofile(note)
sys.setprofile(note)
import weft
{call}
sys.setprofile(None)
ours = [place for place in codes if place[0].startswith({source!r})]
print(json.dumps([len(ours), len({{place[0] for place in ours}})]))
"""
"""Bodies of modules, classes and comprehensions count as functions."""


# Text ------------------------------------------------------------------------------------------------


def trees() -> dict[Path, ast.Module]:
    """The syntax tree of every file of the package."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of strings that stand alone."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(path: Path, tree: ast.Module) -> int:
    """Lines that are no docstring, no comment and not blank."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(tree))


def too_long(files: Mapping[Path, ast.Module]) -> Iterator[str]:
    """Files and functions that have more lines than they may have."""
    for path, tree in files.items():
        name = path.relative_to(ROOT)
        if (lines := path.read_text(encoding="utf-8").count("\n")) > LONGEST_FILE:
            yield f"{name}, {lines} lines"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    yield f"{name}:{node.lineno} {node.name}, {lines} lines"


def text_counts(files: Mapping[Path, ast.Module]) -> Iterator[tuple[str, int]]:
    """Lines by package, files, and what is longer than it may be."""
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in files}
    packages: Counter[str] = Counter()
    for path, count in lines.items():
        inner = path.relative_to(SOURCE).parts
        packages[f"weft.{inner[0]}" if len(inner) > 1 else "weft, its own files"] += count
    yield "lines", sum(lines.values())
    yield "code lines", sum(code_lines(path, tree) for path, tree in files.items())
    yield "files", len(files)
    yield "files and functions too long", len(list(too_long(files)))
    for package, count in sorted(packages.items()):
        yield f"lines of {package}", count


# Structure -------------------------------------------------------------------------------------------


def module_of(path: Path) -> str:
    """The name that a file is imported by."""
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imports(tree: ast.Module) -> Iterator[str]:
    """Names that a file imports anywhere, of modules or in modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(files: Mapping[Path, ast.Module]) -> dict[str, set[str]]:
    """Modules by each module that they import; ``from a import b`` imports b alone where b is a module."""
    modules = {module_of(path) for path in files}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in files.items():
        for name in set(imports(tree)) & modules - {module_of(path)}:
            found[name].add(module_of(path))
    return found


def structure_counts(files: Mapping[Path, ast.Module]) -> Iterator[tuple[str, int]]:
    """Names and modules that could be fewer."""
    nodes = [node for tree in files.values() for node in ast.walk(tree)]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    yield "class names used twice or more", sum(count > 1 for count in classes.values())
    yield "modules with one importer", sum(len(names) == 1 for names in importers(files).values())
    public = [
        node.name
        for path, tree in files.items()
        if "interop" in path.parts
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    ]
    yield "readers in weft.interop", sum(name == "read" or name.startswith("read_") for name in public)
    writers = ("write_", "launch_arguments")
    yield "writers in weft.interop", sum(name == "write" or name.startswith(writers) for name in public)


# Surface ---------------------------------------------------------------------------------------------


def surface_counts() -> Iterator[tuple[str, int]]:
    """What users can name: commands, options, formats to choose, public names."""
    import click

    import weft
    from weft.commands.app import cli

    groups, commands = [click.Context(cli)], 0
    parameters = list(cli.params)
    while groups:
        context = groups.pop()
        assert isinstance(context.command, click.Group)
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            parameters += command.params
            if isinstance(command, click.Group):
                groups.append(click.Context(command))
            else:
                commands += 1
    yield "commands", commands
    yield "options", sum(isinstance(one, click.Option) for one in parameters)
    formats = {tuple(getattr(one.type, "choices", ())) for one in parameters if one.name in FORMAT_CHOICES}
    yield "formats that commands write", sum(map(len, formats))
    yield "public names", len(dir(weft))


# Calls -----------------------------------------------------------------------------------------------


def call_counts() -> Iterator[tuple[str, int]]:
    """Functions and files that run in calls, in processes of their own; each has its kernels compiled before."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "PYTHONHASHSEED": "0"}
    for name, call in CALLS.items():
        for code in (f"import weft\n{call}", PROFILE.format(call=call, source=f"{SOURCE}{os.sep}")):
            words = [sys.executable, "-c", code]
            done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{call}: exit code {done.returncode}\n{done.stderr}")
        functions, paths = json.loads(done.stdout.splitlines()[-1])
        yield f"functions that weft.{name} runs", functions
        yield f"files that weft.{name} runs", paths


# Budget ----------------------------------------------------------------------------------------------


def counts() -> dict[str, int]:
    """All counts by name."""
    files = trees()
    return dict([*text_counts(files), *structure_counts(files), *surface_counts(), *call_counts()])


def write(now: Mapping[str, int], budget: Mapping[str, int]) -> None:
    """Lower budgets to what is counted, add those of new names, and drop those of names that are gone."""
    lines = [f'"{name}" = {min(count, budget.get(name, count))}' for name, count in now.items()]
    BUDGET.write_text("# At most so many, of what tools/budget.py counts.\n" + "\n".join(lines) + "\n", "utf-8")


def main() -> int:
    """Print the table; 1 when a count is above its budget, or has none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="lower budgets to the counts of today")
    lower = parser.parse_args().write
    sys.path.insert(0, str(SOURCE.parent))
    now = counts()
    budget = tomllib.loads(BUDGET.read_text(encoding="utf-8")) if BUDGET.exists() else {}
    if lower:
        write(now, budget)
        budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    width = max(map(len, now))
    print(f"{'name':{width}s} | {'now':>7s} | {'budget':>7s}")
    above = 0
    for name, count in now.items():
        over = count > budget.get(name, -1)
        above += over
        print(f"{name:{width}s} | {count:7d} | {budget.get(name, '-'):>7}{'  above its budget' if over else ''}")
    for place in too_long(trees()):
        print(f"too long: {place}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
