"""Conditions over the values of a point, as ``cluster.count >= batch / 4``: parsed by Python's grammar, never run as
Python.

Numbers, texts in quotes, names, lists; ``+ - * / // %``; comparisons (also chained, also ``in``); ``and``, ``or``,
``not``. A value that is not there makes arithmetic give nothing and a comparison false; so does a division by zero.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection
from typing import Any

from weft.errors import BadInput, UnknownName

Look = Callable[[str], Any]
"""The value of a name."""
_Part = Callable[[Look], Any]
LONGEST = 500
"""Characters of a condition."""
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}
_REMEDY = "write it like cluster.count >= batch / 4 and model != 'gpt2'"


class Condition:
    """What a point must be.

    Args:
        text: the expression.
        known: names that it may use.
        where: how messages name it.

    Raises:
        BadInput: it is no such expression.
        UnknownName: it uses a name that is not known.
    """

    def __init__(self, text: str, known: Collection[str], where: str) -> None:
        self.text, self._known, self._where = text, known, where
        if len(text) > LONGEST:
            raise self._problem(f"has {len(text):,} characters, more than {LONGEST}")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._problem("is no condition") from None
        try:
            self._holds = self._part(tree)
        except RecursionError:
            raise self._problem("is nested too deeply") from None

    def __call__(self, look: Look) -> bool:
        """Whether a point is so; ``look`` gives the value of a name, None where there is none.

        Raises:
            BadInput: it compares what cannot be compared.
        """
        try:
            return bool(self._holds(look))
        except TypeError:
            raise self._problem("holds texts against numbers") from None

    def _problem(self, what: str) -> BadInput:
        return BadInput(f"{self.text[:60]!r} {what}", where=self._where, remedy=_REMEDY)

    def _part(self, node: ast.expr) -> _Part:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
            value = node.value
            return lambda look: value
        if isinstance(node, ast.Name | ast.Attribute):
            return self._name(node)
        if isinstance(node, ast.List | ast.Tuple):
            parts = [self._part(one) for one in node.elts]
            return lambda look: [part(look) for part in parts]
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            act, left, right = _ARITHMETIC[type(node.op)], self._part(node.left), self._part(node.right)
            return lambda look: _computed(act, left(look), right(look))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._part(node.operand)
            return lambda look: _computed(operator.sub, 0, inner(look))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._part(node.operand)
            return lambda look: not inner(look)
        if isinstance(node, ast.BoolOp):
            parts, every = [self._part(one) for one in node.values], isinstance(node.op, ast.And)
            return lambda look: all(part(look) for part in parts) if every else any(part(look) for part in parts)
        if isinstance(node, ast.Compare) and all(type(one) in _COMPARISONS for one in node.ops):
            return self._comparison(node)
        raise self._problem("is no condition")

    def _comparison(self, node: ast.Compare) -> _Part:
        acts = [_COMPARISONS[type(one)] for one in node.ops]
        parts = [self._part(one) for one in (node.left, *node.comparators)]

        def holds(look: Look) -> bool:
            values = [part(look) for part in parts]
            pairs = zip(acts, values, values[1:], strict=False)
            return None not in values and all(act(one, other) for act, one, other in pairs)

        return holds

    def _name(self, node: ast.expr) -> _Part:
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            raise self._problem("is no condition")
        name = ".".join((node.id, *words))
        if name not in self._known:
            raise UnknownName("name", name[:60], self._known, where=f"{self._where}: {self.text[:60]!r}")
        return lambda look: look(name)


def _computed(act: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    if one is None or other is None:
        return None
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        raise TypeError
    try:
        return act(one, other)
    except (ZeroDivisionError, OverflowError):
        return None
