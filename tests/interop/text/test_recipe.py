"""Python configurations read from their syntax tree: what is decided, what is open, and that nothing runs."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.interop.text.recipe import Open, Record, Source, package_files, read_recipe

RECIPE = '''
import torch
from lib import Config, Inner, tuned

LENGTH = 4 * 1024
TABLE = {"small": 2, "large": LENGTH // 512}


def _base(size="small", *, wide=False):
    """Not a recipe: its name begins with an underscore."""
    config = Config(inner=Inner(size=TABLE[size], length=LENGTH), wide=wide)
    config.name = f"{size}-{LENGTH}"
    return config


def large():
    cfg = _base("large", wide=True)
    if isinstance(cfg.inner, str) or cfg.wide is None:
        cfg.inner.size = -1
    elif cfg.wide and not cfg.inner.size > 8:
        cfg.inner.size *= 2
    if torch.cuda.is_available():
        cfg.device = "gpu"
    cfg.items = [1, 2]
    cfg.items.append(3)
    cfg.inner.dtype = torch.bfloat16
    cfg.inner.both = cfg.inner.size if cfg.wide else 0
    tuned(cfg)
    return cfg


def needs(argument):
    return argument
'''


def settings(text, function=None, **given):
    return read_recipe(Source(text), function, where="recipe.py", **given).settings()


def test_functions_conditions_and_fields():
    recipe = read_recipe(Source(RECIPE), None, where="recipe.py")
    found = recipe.settings()
    assert recipe.name == "large"
    assert {name: value for name, value in found.items() if not isinstance(value, Record | Open)} == {
        "wide": True,
        "name": "large-4096",
        "items": [1, 2, 3],
        "inner.size": 16,
        "inner.length": 4096,
        "inner.both": 16,
    }
    assert found["device"] == Open("cfg.device")
    assert found["inner.dtype"] == Open("torch.bfloat16")
    assert recipe.notes == ("what tuned() does to the configuration is not read",)
    assert recipe.root.name == "Config"


@given(st.recursive(st.integers(-99, 99), lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner), max_leaves=8))
def test_arithmetic_is_that_of_python(tree):
    def text(node):
        return f"({text(node[0])} {node[1]} {text(node[2])})" if isinstance(node, tuple) else f"({node})"

    written = text(tree)
    expected = eval(written, {"__builtins__": {}})
    assert settings(f"def r():\n    return C(x={written})\n")["x"] == expected


def test_a_method_keeps_what_it_is_called_on():
    found = settings(
        'def r():\n    c = C()\n    c.model = A.load("org/name").config()\n    c.model.depth = 3\n    return c\n'
    )
    assert found["model.depth"] == 3
    assert found["model"].of.arguments == ["org/name"]


def test_imports_come_from_the_same_package_only(tmp_path):
    package = tmp_path / "pack" / "deep"
    package.mkdir(parents=True)
    (tmp_path / "other.py").write_text("def base():\n    return C(x=9)\n", encoding="utf-8")
    (tmp_path / "pack" / "base.py").write_text("def base():\n    return C(x=1)\n", encoding="utf-8")
    (package / "near.py").write_text("from ..base import base as again\n", encoding="utf-8")
    (package / "__init__.py").touch()
    path = package / "recipe.py"
    for line, expected in (
        ("from pack.base import base", 1),
        ("from ..base import base", 1),
        ("from .near import again as base", 1),
        ("from other import base", None),
        ("from ...other import base", None),
        ("from pack.absent import base", None),
    ):
        source = Source(f"{line}\ndef r():\n    c = base()\n    c.y = 2\n    return c\n", path)
        found = read_recipe(source, "r", where="recipe.py", include=package_files).settings()
        assert (found.get("x"), found["y"]) == (expected, 2), line


def test_opaque_functions_say_where_they_come_from():
    text = "from torchtitan.models.llama3 import make\ndef r():\n    return C(spec=make('8B', n=1))\n"
    spec = settings(text, opaque=("make",))["spec"]
    assert (spec.name, spec.arguments, spec.fields) == ("make", ["8B"], {"n": 1, "module": "llama3"})


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        ("def r(:\n", None, "is not Python"),
        ("x = 1\n", None, "holds no recipe"),
        ("def a():\n  pass\ndef b():\n  pass\n", None, "holds 2 recipes: a, b .*recipe.py:a"),
        ("def a():\n  return C()\n", "b", "no function b in it.*it has a"),
        ("def a():\n  return 3\n", None, "returns no configuration"),
        ("def a():\n" + "  x = C()\n" * 1_500 + "  return x\n", None, "does too much"),
    ],
)
def test_unusable_recipes_are_named(monkeypatch, text, function, message):
    monkeypatch.setattr("weft.interop.text.recipe.MOST_STEPS", 2_000)
    with pytest.raises(BadInput, match=message):
        settings(text, function)


def test_nothing_runs_and_nothing_is_endless(tmp_path):
    mark = tmp_path / "mark"
    text = f"open({str(mark)!r}, 'w')\ndef a():\n    c = C()\n    c.x = open({str(mark)!r}, 'w').name\n    return c\n"
    assert settings(text)["x"] == Open(f"open({str(mark)!r}, 'w').name")
    assert not mark.exists()
    assert settings("def a():\n    c = C()\n    c.x = f()\n    return c\ndef f():\n    return f()\n", "a")[
        "x"
    ] == Open("f()")
    assert settings("def a():\n    return C(x=9**9**9, y=2**70, z='a' * 10**9)\n")["y"] == Open("2 ** 70")
    huge = f"def a():\n    c = C(x=0x{'f' * 9000})\n    c.y = -0x{'f' * 9000} ** c.x\n    return c\n"
    assert settings(huge)["x"] == Open("a very large number")
    circular = "def a():\n    c = C()\n    c.c = c\n    c.n = 1\n    return c\n"
    assert settings(circular)["n"] == 1


WORDS = [
    "def r():\n",
    "    return C()\n",
    "    x = C(a=1)\n",
    "    x.b.c = x\n",
    "    if x:\n        x = 1\n",
    "    x[0] = 2\n",
]
WORDS += [
    "    for i in x:\n        i.a = 1\n",
    "    a, b = x\n",
    "    return x\n",
    "    x += 1\n",
    "    y = x.a[1:2]\n",
]


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_any_recipe_is_read_or_refused(lines):
    text = "".join(lines)
    try:
        ast.parse(text)
        known = "def r" in text
    except SyntaxError:
        known = False
    try:
        found = settings(text, "r")
    except BadInput:
        return
    assert known
    assert isinstance(found, dict)
