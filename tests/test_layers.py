"""Imports go down only, as docs/architecture.md draws the layers."""

import ast
from pathlib import Path

import weft

ROOT = Path(weft.__file__).parent
LAYERS = {
    "errors": 0,
    "units": 0,
    "records": 0,
    "results": 0,
    "solvers": 0,
    "model": 1,
    "cluster": 1,
    "fabric": 1,
    "layout": 2,
    "runtime": 2.5,
    "collectives": 3,
    "routing": 3,
    "estimation": 4,
    "simulation": 4,
    "reproductions": 4.5,
    "search": 5,
    "calibration": 5,
    "validation": 5,
    "report": 5.5,
    "verbs": 6,
    "cli": 7,
    "interop": 4.5,
}
SIBLINGS = {("collectives", "routing"), ("routing", "collectives")}


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("weft."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "weft":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("weft.")}
    return found


def test_imports_go_down_only():
    broken = []
    for path in sorted(ROOT.rglob("*.py")):
        package = package_of(path)
        if package in ("__init__", "__main__"):
            continue
        for other in imported_packages(path):
            upward = LAYERS[other] > LAYERS[package] or (package, other) in SIBLINGS
            if other != package and upward:
                broken.append(f"{path.relative_to(ROOT)} imports weft.{other}")
    assert not broken


def test_every_package_has_a_layer():
    assert {package_of(path) for path in ROOT.rglob("*.py")} - {"__init__", "__main__"} <= set(LAYERS)


def test_no_dangerous_calls():
    """Nothing unpickles, evaluates text or starts a shell."""
    forbidden = {"eval", "exec", "compile", "__import__"}
    modules = {"pickle", "marshal", "shelve", "subprocess", "yaml"}
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in forbidden:
                found.append(f"{path.name}:{node.lineno} {node.func.id}")
            if isinstance(node, ast.Import) and {alias.name for alias in node.names} & modules:
                found.append(f"{path.name}:{node.lineno} imports {[alias.name for alias in node.names]}")
    assert not found
