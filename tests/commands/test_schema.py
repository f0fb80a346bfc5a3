"""Schemas: every document has one that its real outputs obey, and that refuses what is not in it."""

from __future__ import annotations

import contextlib
import json
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator as Validator

import weft
from weft.commands.info import SCHEMAS
from weft.errors import MissingExtra, UnknownName
from weft.results import Result

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    "h100-cluster": "cluster",
    "custom-accelerator": "cluster",
    "failures": "failures",
    "site": "site",
    "study": "study",
}


def audited() -> Result:
    from weft.routing.report import audit

    found = weft.route(generate="BLOOM:2,GPT_3:2", router="ecmp").plan
    return audit(found.fabric, found.traffic, found.routes)


def documents() -> dict[str, type[Result]]:
    """Every class of results that names a schema."""
    for path in sorted((ROOT / "src" / "weft").rglob("*.py")):
        if "(Result)" in (text := path.read_text("utf-8")) and "SCHEMA = " in text:
            with contextlib.suppress(MissingExtra):  # PyTorch's own results, where it is not installed
                import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))

    def below(kind: type[Result]) -> list[type[Result]]:
        return [one for sub in kind.__subclasses__() for one in (sub, *below(sub))]

    return {kind.SCHEMA: kind for kind in below(Result) if kind.SCHEMA and kind.__module__.startswith("weft.")}


def test_every_document_has_a_schema() -> None:
    found = documents()
    assert "weft.plan/1" in found
    for name in found:
        assert f'{{"const": "{name}"' in json.dumps(weft.schema(name)), name


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_one(name: str) -> None:
    Validator.check_schema(weft.schema(name))


def test_an_audit_obeys() -> None:
    document = json.loads(audited().to_json())
    assert [one.message for one in Validator(weft.schema("route-audit")).iter_errors(document)] == []


@pytest.mark.parametrize("file", EXAMPLES)
def test_examples_obey(file: str) -> None:
    table = tomllib.loads((ROOT / "examples" / f"{file}.toml").read_text("utf-8"))
    validator = Validator(weft.schema(EXAMPLES[file]))
    assert [one.message for one in validator.iter_errors(table)] == []
    assert not validator.is_valid(table | {"unknown": 1})


def test_both_names_of_a_field_are_known() -> None:
    validator = Validator(weft.schema("cluster")["$defs"]["TierEntry"])
    tier = {"name": "rail", "size": 8, "kind": "switch"}
    assert validator.is_valid(tier | {"bandwidth": "400 Gb/s"})
    assert validator.is_valid(tier | {"bandwidth_Bps": 5e10})
    assert not validator.is_valid(tier)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownName, match="plan"):
        weft.schema("plam")
