"""Imports go down only, as docs/architecture.md draws the layers, and never in a circle."""

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import weft

ROOT = Path(weft.__file__).parent
LAYERS = {
    "errors": 0,
    "files": 0,
    "launched": 0,
    "checkpoints": 0,
    "documents": 0,
    "units": 0,
    "codec": 0,
    "results": 0,
    "solvers": 0,
    "states": 0,
    "model": 1,
    "cluster": 1,
    "fabric": 1,
    "layout": 2,
    "runtime": 2.5,
    "collectives": 3,
    "routing": 3,
    "reliability": 3,
    "estimation": 4,
    "simulation": 4,
    "search": 5,
    "arrangement": 5,
    "studies": 5,
    "calibration": 5,
    "validation": 5,
    "views": 5.5,
    "commands": 6,
    "web": 7,
    "interop": 4.5,
}
_BESIDE = ("collectives", "routing", "reliability")
SIBLINGS = {(one, other) for one in _BESIDE for other in _BESIDE if one != other}
STRANGERS = [{"runtime/layers", "runtime/checkpoints"}, {"simulation/flows", "simulation"}]
"""Rooms that must not import each other."""


def module_of(path: Path) -> str:
    """``fabric.paths``; a package by its own name."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    """The folder that holds a module: ``runtime/core``, ``layout``, or ``.``."""
    path = MODULES[module]
    return path.parent.relative_to(ROOT).as_posix()


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def package_of(module: str) -> str:
    return module.split(".")[0]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """The imports, conditions and calls of a file, parsed once for all tests."""
    kinds = ast.Import | ast.ImportFrom | ast.If | ast.Call
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]


@cache
def imported(module: str) -> frozenset[str]:
    """Modules of the library that one imports, at its top or within functions; not for types alone."""
    nodes = nodes_of(MODULES[module])
    for_types = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in nodes:
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("weft.")}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "weft":
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name.removeprefix("weft.") in MODULES else str(node.module) for name in full}
    names = {name.removeprefix("weft.") for name in found} - {"weft"}
    assert names <= set(MODULES), f"{module} imports {names - set(MODULES)}"
    return frozenset(names - {module})


def circles(edges: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Sets of nodes that reach each other."""
    reach: dict[str, set[str]] = {}
    for start in edges:
        seen: set[str] = set()
        stack = list(edges[start])
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += edges.get(node, ())
        reach[start] = seen
    found: list[set[str]] = []
    for node, seen in reach.items():
        circle = {other for other in seen if node in reach.get(other, ())}
        if circle and circle not in found:
            found.append(circle)
    return found


def rooms() -> dict[str, set[str]]:
    """Rooms that each room imports, but for its own package's top and the rooms below that."""
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        here = room_of(module)
        for other in map(room_of, imported(module)):
            if other != here and not here.startswith(f"{other}/") and not other.startswith(f"{here}/"):
                edges.setdefault(here, set()).add(other)
    return edges


def test_imports_go_down_only():
    broken = []
    for module in MODULES:
        package = package_of(module)
        if package in ("__init__", "__main__"):
            continue
        for other in {package_of(name) for name in imported(module)} | types_only(module):
            upward = LAYERS[other] > LAYERS[package] or (package, other) in SIBLINGS
            if other != package and upward:
                broken.append(f"{module} imports weft.{other}")
    assert not broken


def types_only(module: str) -> set[str]:
    """Packages whose types a module names: these count for layers, not for circles."""
    nodes = [node for node in nodes_of(MODULES[module]) if isinstance(node, ast.ImportFrom)]
    return {node.module.split(".")[1] for node in nodes if node.module and node.module.startswith("weft.")}


def test_no_module_imports_itself_by_way_of_others():
    assert circles({module: imported(module) for module in MODULES}) == []


def test_rooms_import_in_one_direction():
    assert circles(rooms()) == []


def test_strangers_do_not_meet():
    edges = rooms()
    for strangers in STRANGERS:
        assert strangers <= {room_of(module) for module in MODULES}
        for room in strangers:
            assert not edges.get(room, set()) & strangers, room


def test_a_circle_is_found():
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [{"a", "b", "c"}]
    assert circles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_every_package_has_a_layer():
    assert {package_of(module) for module in MODULES} - {"__init__", "__main__"} <= set(LAYERS)


def attributes_of(path: Path, name: str) -> set[str]:
    """Attributes that a module reads of what it imported by a name."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


def test_no_dangerous_calls():
    """Nothing pickles, evaluates text or starts a shell; one module imports PyYAML.

    One module runs the command that its user names, without a shell.
    """
    forbidden = {"eval", "exec", "compile", "__import__"}
    modules = {"pickle", "marshal", "shelve", "subprocess", "yaml"}
    readers = {ROOT / "interop/yaml_text.py": {"yaml"}, ROOT / "commands/route_watch.py": {"subprocess"}}
    pushed = (ROOT / "commands/route_watch.py").read_text().partition("import os")[2]
    assert "shell" not in pushed.replace("a shell", "")
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        unsafe = modules - readers.get(path, set())
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in forbidden:
                found.append(f"{path.name}:{node.lineno} {node.func.id}")
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            found += [f"{path.name}:{node.lineno} imports {name}" for name in names if name.split(".")[0] in unsafe]
    assert not found


def test_yaml_is_read_as_events():
    """Nothing is constructed from YAML: no loader runs beyond its parser, and none but the safe ones is named."""
    used = attributes_of(ROOT / "interop/yaml_text.py", "yaml")
    assert {name for name in used if not name.endswith("Event")} == {"parse", "SafeLoader", "YAMLError"}
