"""Configurations that are Python functions, read from their syntax tree: nothing is imported or executed.

A recipe builds a configuration from constructors, other functions and assignments to fields.  Functions of the same
file, and of files that ``Include`` gives, are followed; the result of anything else is a ``Record`` that knows its
name and arguments, and whose fields can be set.  What needs more than that is ``Open``.  A condition that the text
does not decide makes the fields open that its branches set.
"""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import BadInput
from weft.files import CONFIGURATION_BYTES, read_text

MOST_STEPS = 200_000
DEEPEST = 30
MOST_FILES = 60
_LARGEST = 10**18
_MOST_ITEMS = 10_000
_USUAL = "pretrain_recipe"
"""What NeMo calls the recipe of each of its files."""


@dataclass(frozen=True, slots=True)
class Open:
    """A value that the text does not decide; shown as the text that stands for it."""

    text: str

    def __repr__(self) -> str:
        return self.text if len(self.text) <= 60 else f"{self.text[:57]}..."


@dataclass(slots=True)
class Record:
    """An object that a call makes: ``name`` is what was called, ``of`` the object whose method it was."""

    name: str
    arguments: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    of: Any = None

    def __repr__(self) -> str:
        return f"{self.name}(...)"


@dataclass(frozen=True, slots=True)
class Source:
    """A file of Python text, and where it lies (None: nowhere, so that its imports are not followed)."""

    text: str
    path: Path | None = None


Include = Callable[[str, int, Path], Source | None]
"""Gives the file of a module that the file at a path imports with a number of leading dots, or None."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the function ``name`` returns, and what of it is not in the text."""

    name: str
    root: Record
    notes: tuple[str, ...]

    def settings(self) -> dict[str, Any]:
        """Fields by dotted name; a record also stands under its own name."""
        found: dict[str, Any] = {}
        waiting: list[tuple[str, Record, int]] = [("", self.root, 0)]
        while waiting:
            prefix, record, depth = waiting.pop()
            for name, value in record.fields.items():
                found[f"{prefix}{name}"] = value
                if isinstance(value, Record) and depth < DEEPEST:
                    waiting.append((f"{prefix}{name}.", value, depth + 1))
        return found


def package_files(module: str, level: int, path: Path) -> Source | None:
    """The file of a module in the package that the file ``path`` belongs to; no other file."""
    parts = module.split(".") if module else []
    if level:
        crossed = path.parents[: level - 1]
        bounds = (
            list(path.parents[level - 1 : level]) if all((one / "__init__.py").is_file() for one in crossed) else []
        )
        stems = [bound.joinpath(*parts) for bound in bounds]
    else:
        bounds = [folder for folder in path.parents if parts and folder.name == parts[0]]
        stems = [bound.parent.joinpath(*parts) for bound in bounds]
    for bound, stem in zip(bounds, stems, strict=True):
        for found in (stem.with_suffix(".py"), stem / "__init__.py"):
            try:
                if found.resolve().is_relative_to(bound.resolve()) and found.is_file():
                    return Source(read_text(found, largest=CONFIGURATION_BYTES, remedy="give a recipe"), found)
            except (BadInput, OSError, ValueError):
                return None
    return None


def read_recipe(
    source: Source, function: str | None, *, where: str, include: Include | None = None, opaque: Sequence[str] = ()
) -> Recipe:
    """The configuration that a function of the file returns: ``function``, or the only public one without
    parameters that it must be given.  Functions named in ``opaque`` are not followed where they are imported; the
    record of their result has the field ``module``, the package that they come from.

    Raises:
        BadInput: no Python, no such function, several to choose from, or it returns no configuration.
    """
    machine = _Machine(where=where, include=include, opaque=frozenset(opaque))
    module = machine.module(source)
    functions = {name: value for name, value in module.names.items() if isinstance(value, _Function | _Imported)}
    own = [name for name, value in functions.items() if isinstance(value, _Function) and _callable_alone(name, value)]
    if function is None and _USUAL in own:
        function = _USUAL
    elif function is None:
        if len(own) != 1:
            shown = ", ".join(own[:6]) + (", ..." if len(own) > 6 else "")
            problem = (
                f"holds {len(own)} recipes: {shown}" if own else "holds no recipe (a function without parameters)"
            )
            raise BadInput(problem, where=where, remedy=f"name one, like {where}:{own[0]}" if own else "give its file")
        function = own[0]
    found = machine.resolved(functions.get(function))
    if not isinstance(found, _Function):
        remedy = f"it has {', '.join(own[:6])}" if own else "give the file that defines it"
        raise BadInput(f"no function {function[:80]} in it", where=where, remedy=remedy)
    value = machine.call(found, [], {})
    if not isinstance(value, Record):
        raise BadInput(f"{function} returns no configuration", where=where, remedy="name a recipe that does")
    return Recipe(function, value, tuple(dict.fromkeys(machine.notes)))


@dataclass(slots=True)
class _Function:
    node: ast.FunctionDef
    module: _Module


@dataclass(frozen=True, slots=True)
class _Imported:
    module: str
    name: str
    level: int
    by: Path | None


@dataclass(slots=True)
class _Module:
    path: Path | None
    names: dict[str, Any] = field(default_factory=dict)


def _callable_alone(name: str, function: _Function) -> bool:
    a = function.node.args
    needed = len(a.posonlyargs) + len(a.args) - len(a.defaults) + sum(value is None for value in a.kw_defaults)
    return not name.startswith("_") and needed == 0


class _Return(Exception):
    """A function ends."""

    def __init__(self, value: Any) -> None:
        self.value = value


_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_NUMBERS = (int, float)


@dataclass(slots=True)
class _Machine:
    where: str
    include: Include | None
    opaque: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    files: dict[Path, _Module] = field(default_factory=dict)
    steps: int = 0
    depth: int = 0

    def module(self, source: Source) -> _Module:
        """The functions, imports and constants of a file."""
        try:
            tree = ast.parse(source.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = str(source.path or self.where)
            raise BadInput(f"is not Python: {error}", where=where, remedy="give a recipe") from None
        module = _Module(source.path)
        if source.path is not None:
            self.files[source.path.resolve()] = module
        for node in tree.body:
            self.define(node, module, module.names)
        return module

    def define(self, node: ast.stmt, module: _Module, names: dict[str, Any]) -> None:
        match node:
            case ast.FunctionDef():
                names[node.name] = _Function(node, module)
            case ast.ImportFrom():
                for alias in node.names:
                    found = _Imported(node.module or "", alias.name, node.level, module.path)
                    names[alias.asname or alias.name] = found
            case ast.Assign() | ast.AnnAssign() if node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        names[target.id] = self.value(node.value, names, module)

    def resolved(self, value: Any) -> Any:
        """What an import stands for, as far as files are given."""
        for _ in range(DEEPEST):
            if not isinstance(value, _Imported):
                return value
            module = self.file(value)
            if module is None or value.name not in module.names:
                return Open(value.name)
            value = module.names[value.name]
        return Open("import")

    def file(self, wanted: _Imported) -> _Module | None:
        if self.include is None or wanted.by is None or len(self.files) >= MOST_FILES or self.depth >= DEEPEST:
            return None
        source = self.include(wanted.module, wanted.level, wanted.by)
        if source is None or source.path is None:
            return None
        known = self.files.get(source.path.resolve())
        return known if known is not None else self.module(source)

    def call(self, function: _Function, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if self.depth >= DEEPEST:
            return Open(f"{function.node.name}()")
        a = function.node.args
        parameters = [*a.posonlyargs, *a.args]
        module = function.module
        scope: dict[str, Any] = {one.arg: Open(one.arg) for one in [*parameters, *a.kwonlyargs]}
        late = parameters[len(parameters) - len(a.defaults) :]
        for one, default in [*zip(late, a.defaults, strict=True), *zip(a.kwonlyargs, a.kw_defaults, strict=True)]:
            if default is not None:
                scope[one.arg] = self.value(default, module.names, module)
        scope |= {one.arg: value for one, value in zip(parameters, arguments, strict=False)}
        scope |= {name: value for name, value in named.items() if name in scope or a.kwarg}
        self.depth += 1
        try:
            self.body(function.node.body, {"": module.names} | scope, module)
        except _Return as end:
            return end.value
        finally:
            self.depth -= 1
        return None

    # Statements

    def body(self, nodes: Sequence[ast.stmt], names: dict[str, Any], module: _Module) -> None:
        for node in nodes:
            self.step()
            self.statement(node, names, module)

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise BadInput("does too much to be read", where=self.where, remedy="give a recipe")

    def statement(self, node: ast.stmt, names: dict[str, Any], module: _Module) -> None:
        match node:
            case ast.Return(value=value):
                raise _Return(None if value is None else self.value(value, names, module))
            case ast.Assign(targets=targets, value=value):
                found = self.value(value, names, module)
                for target in targets:
                    self.store(target, found, names, module)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.store(target, self.value(value, names, module), names, module)
            case ast.AugAssign(target=target, op=op, value=value):
                now = self.value(target, names, module)
                self.store(target, _combine(op, now, self.value(value, names, module), node), names, module)
            case ast.Expr(value=value):
                self.value(value, names, module)
            case ast.If(test=test, body=body, orelse=otherwise):
                truth = _truth(self.value(test, names, module))
                if truth is None:
                    self.forget([*body, *otherwise], names, module)
                else:
                    self.body(body if truth else otherwise, names, module)
            case ast.With(body=body) | ast.Try(body=body):
                self.body(body, names, module)
            case ast.For() | ast.While():
                self.forget([node], names, module)
            case ast.FunctionDef() | ast.ImportFrom():
                self.define(node, module, names)

    def forget(self, nodes: Sequence[ast.stmt], names: dict[str, Any], module: _Module) -> None:
        """Make open what statements set that may or may not run."""
        for node in (inner for one in nodes for inner in ast.walk(one)):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else targets
            for target in targets:
                self.store(target, Open(_written(target)), names, module)

    def store(self, target: ast.expr, value: Any, names: dict[str, Any], module: _Module) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Attribute(value=base, attr=name):
                record = self.record(base, names, module)
                if record is not None:
                    record.fields[name] = value
            case ast.Subscript(value=base, slice=key):
                holder, place = self.value(base, names, module), self.value(key, names, module)
                if isinstance(holder, dict) and isinstance(place, str | int):
                    holder[place] = value
            case ast.Tuple(elts=items) | ast.List(elts=items):
                parts = list(value) if isinstance(value, tuple | list) and len(value) == len(items) else None
                for number, item in enumerate(items):
                    self.store(item, parts[number] if parts else Open(_written(item)), names, module)

    def record(self, node: ast.expr, names: dict[str, Any], module: _Module) -> Record | None:
        """The record that an expression names, made where there is none yet."""
        value = self.value(node, names, module)
        if isinstance(value, Record):
            return value
        if value is None or isinstance(value, Open):
            made = Record(value.text if isinstance(value, Open) else _written(node))
            self.store(node, made, names, module)
            return made
        return None

    # Values

    def value(self, node: ast.expr, names: Mapping[str, Any], module: _Module) -> Any:
        self.step()
        if self.depth >= DEEPEST:
            return Open("...")
        self.depth += 1
        try:
            return self._value(node, names, module)
        finally:
            self.depth -= 1

    def _value(self, node: ast.expr, names: Mapping[str, Any], module: _Module) -> Any:
        def of(inner: ast.expr) -> Any:
            return self.value(inner, names, module)

        match node:
            case ast.Constant(value=int(value)) if abs(value) > _LARGEST:
                return Open("a very large number")
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.named(name, names)
            case ast.Attribute(value=base, attr=name):
                holder = of(base)
                if isinstance(holder, Record) and name in holder.fields:
                    return holder.fields[name]
                return Open(f"{holder.text}.{name}" if isinstance(holder, Open) else _written(node))
            case ast.List(elts=items) | ast.Tuple(elts=items):
                found = [of(item) for item in items if not isinstance(item, ast.Starred)]
                return found if isinstance(node, ast.List) else tuple(found)
            case ast.Dict(keys=keys, values=values):
                pairs = [(of(key), of(value)) for key, value in zip(keys, values, strict=True) if key is not None]
                return {key: value for key, value in pairs if isinstance(key, str | int | float | bool | None)}
            case ast.BinOp(left=left, op=op, right=right):
                return _combine(op, of(left), of(right), node)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                value = of(inner)
                return -value if isinstance(value, _NUMBERS) else Open(_written(node))
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                truth = _truth(of(inner))
                return Open(_written(node)) if truth is None else not truth
            case ast.BoolOp(op=op, values=values):
                return self._joined(isinstance(op, ast.Or), values, of, node)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _combine(op, of(left), of(right), node)
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                truth = _truth(of(test))
                return Open(_written(node)) if truth is None else of(body if truth else otherwise)
            case ast.JoinedStr(values=values):
                parts = [of(part.value if isinstance(part, ast.FormattedValue) else part) for part in values]
                plain = all(isinstance(part, str | int) for part in parts)
                return "".join(map(str, parts))[:10_000] if plain else Open(_written(node))
            case ast.Call():
                return self._call(node, names, module)
            case ast.Subscript(value=base, slice=key):
                holder, place = of(base), of(key)
                if isinstance(holder, dict) and isinstance(place, str | int) and place in holder:
                    return holder[place]
                if isinstance(holder, list | tuple) and isinstance(place, int) and -len(holder) <= place < len(holder):
                    return holder[place]
        return Open(_written(node))

    def _joined(self, stops: bool, values: Sequence[ast.expr], of: Callable[[ast.expr], Any], node: ast.expr) -> Any:
        found: Any = None
        for inner in values:
            found = of(inner)
            truth = _truth(found)
            if truth is None:
                return Open(_written(node))
            if truth is stops:
                return found
        return found

    def named(self, name: str, names: Mapping[str, Any]) -> Any:
        outer = names.get("", {})
        value = names[name] if name in names else outer.get(name, Open(name))
        return self.resolved(value)

    def _call(self, node: ast.Call, names: Mapping[str, Any], module: _Module) -> Any:
        arguments = [self.value(one, names, module) for one in node.args if not isinstance(one, ast.Starred)]
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, names, module)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, dict):
                named |= {str(key): inner for key, inner in value.items()}
        if isinstance(node.func, ast.Name) and node.func.id in self.opaque:
            imported = names.get(node.func.id, names.get("", {}).get(node.func.id))
            return Record(node.func.id, arguments, named | {"module": _package(imported)})
        callee = self.named(node.func.id, names) if isinstance(node.func, ast.Name) else None
        if isinstance(callee, _Function):
            return self.call(callee, arguments, named)
        if isinstance(node.func, ast.Name) and isinstance(callee, Open):
            built_in = _built_in(node.func.id, arguments)
            if built_in is not None:
                return built_in[0]
        of = self.value(node.func.value, names, module) if isinstance(node.func, ast.Attribute) else None
        if isinstance(of, list) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            of += arguments if len(of) < _MOST_ITEMS else []
            return None
        name = _written(node.func)
        if isinstance(node.func, ast.Name) and any(isinstance(one, Record) for one in arguments):
            self.notes.append(f"what {name}() does to the configuration is not read")
        return Record(name, arguments, named, of)


def _package(imported: Any) -> str:
    """The last name of the package that something is imported from; empty where nobody knows."""
    if not isinstance(imported, _Imported):
        return ""
    if imported.module:
        return imported.module.rpartition(".")[2]
    return imported.by.resolve().parent.name if imported.by else ""


def _built_in(name: str, arguments: Sequence[Any]) -> tuple[Any] | None:
    """The result of a few functions of Python, if this is one of them and its arguments are known."""
    match name, arguments:
        case (("int" | "float" | "bool" | "str"), [int() | float() | str() | bool() as value]):
            try:
                return ({"int": int, "float": float, "bool": bool, "str": str}[name](value),)
            except (ValueError, OverflowError):
                return (Open(name),)
        case "deepcopy", [value]:
            return (copy.deepcopy(value),)
        case "isinstance", [value, Open(text="str")] if _truth(value) is not None:
            return (isinstance(value, str),)
        case "hasattr", [Record(fields=fields), str(field_name)] if field_name in fields:
            return (True,)
        case "getattr", [Record(fields=fields), str(field_name), *_] if field_name in fields:
            return (fields[field_name],)
        case (("isinstance" | "hasattr" | "getattr"), _):
            return (Open(name),)
    return None


def _written(node: ast.AST) -> str:
    """The text of an expression, at most 200 characters of it; a dot where Python cannot write it."""
    try:
        return ast.unparse(node)[:200]
    except (ValueError, RecursionError):
        return "."


def _truth(value: Any) -> bool | None:
    if isinstance(value, Open) or (isinstance(value, Record) and not _constructed(value)):
        return None
    return True if isinstance(value, Record) else bool(value)


def _constructed(record: Record) -> bool:
    """Whether a record comes from a class, as its name says: only then is it known to be something."""
    return record.name.rpartition(".")[2][:1].isupper()


def _combine(op: ast.AST, left: Any, right: Any, node: ast.AST) -> Any:
    """The outcome of an operator on known values within bounds; otherwise open."""
    compared = isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq)
    unknown = any(
        isinstance(one, Open) or (isinstance(one, Record) and not _constructed(one)) for one in (left, right)
    )
    if unknown or type(op) not in _OPERATORS:
        return Open(_written(node))
    numbers = isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS)
    bounded = numbers and abs(left) <= _LARGEST and abs(right) <= _LARGEST
    listed = isinstance(op, ast.In | ast.NotIn) and isinstance(right, str | list | tuple | dict)
    joined = isinstance(op, ast.Add) and type(left) is type(right) and isinstance(left, str | list | tuple)
    if joined and len(left) + len(right) > 10_000:
        return Open(_written(node))
    if not (compared or bounded or listed or joined):
        return Open(_written(node))
    try:
        return _OPERATORS[type(op)](left, right)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return Open(_written(node))


def records_of(value: Any) -> Iterator[Record]:
    """A record, and those whose methods made it, from the last to the first."""
    while isinstance(value, Record):
        yield value
        value = value.of
