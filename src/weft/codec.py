"""Records as JSON types and back, with every field checked, and the JSON schemas of these documents.

pydantic decodes and describes the frozen dataclasses of the package; the first document that is read imports it.
A record's type hints say what its document holds, and ``Annotated`` narrows them: ``Range`` limits numbers and
lengths, ``Coded`` reads a field of another form.  A record that derives from ``Document`` may say
more: ``DOCUMENT`` lists the names of the document where they differ from the fields, as "iteration_s",
"fabric=fabric.name" (an attribute, however deep), "estimate.*" (all names of a field's record), "run?" (left out if
None or empty); ``KIND`` is its ``kind`` among alternatives, and ``SCHEMA`` the ``schema`` of what is written.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from weft.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from pydantic import ValidationError

Value = TypeVar("Value")
_LARGEST = 2**63
"""Of whole numbers without stated limits."""


@dataclass(frozen=True, slots=True)
class Range:
    """Least and largest number, length of a text or items of a list; ``above``: the least itself is too small,
    ``below``: the largest itself is too large; ``printable``: a text has no other characters."""

    least: float
    most: float = math.inf
    above: bool = False
    below: bool = False
    printable: bool = True

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import no_info_after_validator_function

        schema = handler(source)
        if schema["type"] in ("int", "float"):
            schema["gt" if self.above else "ge"] = self.least
            if math.isfinite(self.most):
                schema["lt" if self.below else "le"] = self.most
        else:
            schema |= {"min_length": self.least, "max_length": self.most}
        checked = schema["type"] == "str" and self.printable
        return no_info_after_validator_function(_printable, schema) if checked else schema


@dataclass(frozen=True, slots=True)
class Coded:
    """A value of which documents hold a ``shape``: ``read`` makes the value, or raises BadInput; ``write`` undoes it,
    where the value's own type does not say how."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None
    shape: Any = Any

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import no_info_plain_validator_function

        def read(raw: Any) -> Any:
            try:
                return self.read(raw)
            except BadInput as error:
                raise ValueError(error) from None

        return no_info_plain_validator_function(read, json_schema_input_schema=handler.generate_schema(self.shape))


@dataclass(frozen=True, slots=True)
class Also:
    """Another, shorter name under which people may write a field; messages use it."""

    name: str


class OneOf:
    """Marks a union of records that their ``KIND`` tells apart."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import tagged_union_schema

        def tag(raw: Any) -> str | None:  # in brackets, so that it is not a name of a field in the place of an error
            kind = raw.get("kind") if isinstance(raw, Mapping) else None
            return f"({kind})" if isinstance(kind, str) else None

        choices = {f"({kind.KIND})": handler.generate_schema(kind) for kind in get_args(source)}
        return tagged_union_schema(choices, discriminator=tag)


Count = Annotated[int, Range(1, 10**9)]
Name = Annotated[str, Range(1, 2000)]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]


class Entry(NamedTuple):
    """One name of a document: the attribute that it shows, and the field ("a.b": a record's) that it fills, if any."""

    name: str
    also: str | None
    path: tuple[str, ...]
    hint: Any
    optional: bool
    field: str | None
    needed: bool
    write: Callable[[Any], Any]


class Document:
    """Base of records whose documents are not all of their fields by name."""

    __slots__ = ()
    DOCUMENT: ClassVar[str] = ""
    KIND: ClassVar[str] = ""
    SCHEMA: ClassVar[str] = ""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        fixed = {name: text for name, text in (("schema", cls.SCHEMA), ("kind", cls.KIND)) if text}
        table = {
            name: core_schema.typed_dict_field(core_schema.literal_schema([text]), required=False)
            for name, text in fixed.items()
        }
        listed = entries(cast(Any, cls))
        for entry in listed:
            shape = handler.generate_schema(_without_arrays(entry.hint))
            notes = {"derived": entry.field is None, "optional": entry.optional, "also": entry.also}
            alias: Any = [[entry.also], [entry.name]] if entry.also else None
            table[entry.name] = core_schema.typed_dict_field(
                shape, required=entry.needed, validation_alias=alias, metadata=notes
            )

        def build(table: Mapping[str, Any]) -> Any:
            values, inner = dict[str, Any](), dict[str, dict[str, Any]]()
            for entry in listed:
                if entry.field and entry.name in table:
                    outer, _, name = entry.field.rpartition(".")
                    (inner.setdefault(outer, {}) if outer else values)[name] = table[entry.name]
            kinds = get_type_hints(cls) if inner else {}
            return cls(**values, **{name: kinds[name](**some) for name, some in inner.items()})

        names = core_schema.typed_dict_schema(table, cls_name=cls.__name__, extra_behavior="forbid")
        return core_schema.no_info_after_validator_function(build, names, ref=f"{cls.__module__}.{cls.__name__}")


def _without_arrays(hint: Any) -> Any:
    """A type with lists for arrays of NumPy."""
    homes = [getattr(get_origin(part) or part, "__module__", "") for part in (hint, *get_args(hint))]
    parts = [home.partition(".")[0] == "numpy" for home in homes]
    return hint if not any(parts) else list[Any] if parts[0] else list[Any] | None


@cache
def entries(kind: type[Any]) -> tuple[Entry, ...]:
    """What a document of a record holds, in order."""
    known = {field.name: field for field in fields(kind)} if is_dataclass(kind) else {}
    result: dict[str, Entry] = {}
    for word in (getattr(kind, "DOCUMENT", "") or " ".join(known)).split():
        name, _, source = word.rstrip("?").partition("=")
        path, hint = tuple((source or name).removesuffix(".*").split(".")), cast(Any, kind)
        for part in path:
            attribute = getattr(hint, part, None)
            getter = attribute.fget if isinstance(attribute, property) else getattr(attribute, "func", None)
            hint = get_type_hints(getter or hint, include_extras=True)["return" if getter else part]
        if word.endswith(".*"):
            outer = path[0] if len(path) == 1 and path[0] in known else None
            for entry in entries(hint):
                inside = f"{outer}.{entry.field}" if outer and entry.field else None
                needed = entry.needed and inside is not None
                result[entry.name] = entry._replace(path=path + entry.path, field=inside, needed=needed)
            continue
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        write = next((note.write for note in notes if isinstance(note, Coded) and note.write), encode)
        also = next((note.name for note in notes if isinstance(note, Also)), None)
        field = known.get(path[0]) if len(path) == 1 else None
        needed = field is not None and field.default is MISSING and field.default_factory is MISSING
        result[name] = Entry(name, also, path, hint, word.endswith("?"), field.name if field else None, needed, write)
    return tuple(result.values())


def encode(value: Any) -> Any:
    """A record, with all that it holds, as JSON types; ``decode`` makes an equal one of it."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "tolist"):  # an array of NumPy
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    if not is_dataclass(value) and not isinstance(value, Document):
        return [encode(item) for item in value]
    kind: Any = type(value)
    table = {"kind": kind.KIND} if getattr(kind, "KIND", "") else {}
    for entry in entries(kind):
        item: Any = value
        for part in entry.path:
            item = getattr(item, part)
        if not entry.optional or not (item is None or (isinstance(item, str | Sequence | Mapping) and not item)):
            table[entry.name] = entry.write(item)
    return table


def decode(kind: type[Value], document: object, where: str) -> Value:
    """A record from a document; fields with a default may be left out.

    Args:
        where: the file, option or part of a file that messages name, before the path in the document.

    Raises:
        BadInput: a field is unknown, missing, of the wrong type or out of range; the first such.
    """
    from pydantic import ValidationError

    validator, names = _validator(cast(Any, kind))
    try:
        return cast(Value, validator.validate_python(document))
    except ValidationError as error:
        raise _first_problem(error, document, names, where) from None


@cache
def _validator(kind: Any) -> tuple[Any, dict[str, str | None]]:
    """What checks documents of a type, and all names of fields in them, each with its second one."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    schema = TypeAdapter(kind).core_schema
    names = dict(_made_strict(schema))
    return SchemaValidator(schema), names


def _made_strict(schema: Any) -> Iterator[tuple[str, str | None]]:
    """Refuse what is nearly a number, NaN and unknown fields, also in parts; gives all names of fields.

    pydantic's own strict mode refuses lists for tuples and tables for records as well.
    """
    if isinstance(schema, dict):
        match schema.get("type"):
            case "int":
                schema |= {"strict": True} | (
                    {} if schema.keys() & {"ge", "gt"} else {"ge": -_LARGEST, "le": _LARGEST}
                )
            case "float":
                schema |= {"strict": True, "allow_inf_nan": False}
            case "bool" | "str":
                schema["strict"] = True
            case "dataclass-args":
                schema["extra_behavior"] = "forbid"
                yield from ((field["name"], None) for field in schema["fields"])
            case "typed-dict":
                yield from ((name, entry.get("metadata", {}).get("also")) for name, entry in schema["fields"].items())
            case "typed-dict-field" if schema.get("metadata", {}).get("derived"):
                schema["schema"] = {"type": "any"}
        for part in schema.values():
            yield from _made_strict(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from _made_strict(part)


_PROBLEMS = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a finite number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table of fields",
    "dataclass_type": "a table of fields",
    "mapping_type": "a table of fields",
    "union_tag_not_found": "a table of fields",
}
_EITHER = {"text", "a finite number"}
_QUANTITY = "write a number with its unit, or a finite number in SI"


def _first_problem(error: ValidationError, document: Any, names: Mapping[str, str | None], where: str) -> BadInput:
    """Another schema explains all other problems, and an unknown field often a missing one."""

    def urgency(problem: Any) -> int:
        unknown = problem["type"] in ("extra_forbidden", "unexpected_keyword_argument")
        return 0 if problem["loc"] == ("schema",) and problem["type"] != "missing" else 1 if unknown else 2

    problems = error.errors(include_url=False)
    first = min(problems, key=urgency)
    kind, raw, place = first["type"], first["input"], where
    last, path = "value", ""
    for i, part in enumerate(first["loc"]):
        known: Any = range(len(document)) if isinstance(document, list | tuple) else document
        inside = isinstance(known, Mapping | range) and part in known
        if inside or (kind == "missing" and i == len(first["loc"]) - 1):  # else the name of an alternative
            path += f"[{part}]" if isinstance(part, int) else f".{str(part)[:60]}"
            last = str(part)
            document = document[part] if inside else None
    if path:
        within = where.isidentifier() or re.search(r": [\w.\[\]-]+$", where)
        place = f"{where}{path}" if within or path[0] == "[" else f"{where}: {path[1:]}"
    if kind == "missing":
        return BadInput("is missing", where=place, remedy="add it")
    if urgency(first) == 1:
        if names.get(last):
            return BadInput("is given twice, under its short and its full name", where=place, remedy="keep one")
        known = {*names, *filter(None, names.values())} - {last}  # a field of another part may have its name
        near = difflib.get_close_matches(last, sorted(known), n=2)
        remedy = f"did you mean {' or '.join(near)}?" if near else "remove it"
        return BadInput("is not a known field", where=place, remedy=remedy)
    context: Any = first.get("ctx", {})
    if kind == "value_error":
        message = context["error"].args[0]
        if isinstance(message, BadInput):
            message.where = place + (message.where or "")
            return message
        return BadInput(f"{shown(raw)} {message}", where=place)
    if kind == "greater_than" and context["gt"] == 0:
        return BadInput(f"{shown(raw)} is not positive", where=place)
    choices = re.findall(r"'\(?([^']*?)\)?'", context.get("expected") or context.get("expected_tags") or "")
    if kind.startswith("union_tag") and isinstance(raw, Mapping):
        raw, place, last = raw.get("kind"), f"{place}.kind", "kind"
        kind = "string_type"
    if isinstance(raw, str) and len(choices) > 1:
        return UnknownName(last, raw[:40], choices, where=place)
    if kind in _PROBLEMS:  # of all alternatives that stand here
        alike = [problem["type"] for problem in problems if problem["input"] is raw]
        wanted = dict.fromkeys(_PROBLEMS[name] for name in [kind, *alike] if name in _PROBLEMS)
        *first_words, last = wanted
        message = f"{shown(raw)} is {'neither' if first_words else 'not'} {' nor '.join([*first_words, last])}"
        return BadInput(message, where=place, remedy=_QUANTITY if wanted.keys() == _EITHER else None)
    message = re.sub(r"^(Input|String|List|Tuple|Dictionary) | after validation.*$", "", first["msg"])
    return BadInput(f"{shown(raw)} {message}", where=place)


def schema(*kinds: Any) -> dict[str, Any]:
    """The JSON schema of documents of a type, or of any of several.

    Names that a record only shows, and fields with defaults that it always shows, are required of documents with a
    ``SCHEMA``, which Weft writes, and not of others, which people write.
    """
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Generate(GenerateJsonSchema):
        def field_is_required(self, field: Any, total: bool) -> bool:
            notes = field.get("metadata") or {}
            required = written and "derived" in notes  # not of a part, whose defaults may be left out
            return not notes["optional"] if required else super().field_is_required(field, total)

        def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
            document = super().typed_dict_schema(schema)
            for name, field in schema["fields"].items():
                if also := field.get("metadata", {}).get("also"):
                    document["properties"][name] = document["properties"][also]
                    if also in document.get("required", ()):
                        document["required"].remove(also)
                        either = {"anyOf": [{"required": [also]}, {"required": [name]}]}
                        document.setdefault("allOf", []).append(either)
            return document

    written = any(getattr(kind, "SCHEMA", "") for kind in kinds)
    *before, hint = kinds
    if not all(issubclass(hint, kind) for kind in before):
        hint = Union[kinds]  # noqa: UP007
    document = _plain(TypeAdapter(hint).json_schema(schema_generator=Generate))
    if before and "required" in document:  # of a record and of one with more names: the former's are needed
        document["required"] = schema(*before)["required"]
    return cast(dict[str, Any], document)


def _plain(part: Any, named: bool = False) -> Any:
    """A schema without the titles and defaults that pydantic writes, and closed to other fields."""
    if isinstance(part, list):
        return [_plain(part) for part in part]
    if not isinstance(part, dict):
        return part
    properties = {
        name: _plain(value, named=not named and name in ("properties", "$defs"))
        for name, value in part.items()
        if named or name not in ("title", "default", "description", "discriminator")
    }
    return properties | ({"additionalProperties": False} if "properties" in properties and not named else {})


def table_of(value: object, where: str) -> Mapping[str, Any]:
    """The value, which is to be a table of fields.

    Raises:
        BadInput: it is none.
    """
    if not isinstance(value, Mapping):
        raise BadInput(f"{shown(value)} is not a table of fields", where=where)
    return value


def number(raw: object, where: str) -> float:
    """The value, which is to be a finite number, as a float.

    Raises:
        BadInput: it is none.
    """
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        raise BadInput(f"{shown(raw)} is not a finite number", where=where)
    return float(raw)


def positive(raw: object, where: str) -> float:
    """The value, which is to be a finite number above 0, as a float.

    Raises:
        BadInput: it is none.
    """
    value = number(raw, where)
    if value <= 0:
        raise BadInput(f"{value:g} is not positive", where=where)
    return value


def shown(value: object) -> str:
    """A value in a message."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge number"
    return reprlib.repr(value)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text
