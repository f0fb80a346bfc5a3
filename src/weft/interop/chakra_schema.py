"""Chakra's execution traces as bytes: the messages of schema 0.0.4, each after its length as a varint.

The messages (MLCommons Chakra, ``et_def.proto``: numbers and types of the fields that are used here) are
built at run time, in a separate pool; fields that they leave out are skipped.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from weft.errors import BadInput, MissingExtra

VERSION = "0.0.4"
PACKAGE = "ChakraProtoMsg"
MOST_NODES = 2_000_000

METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)

ATTRIBUTE = "AttributeProto"
SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
"""Kinds of values of an attribute: kind number k has field 3 + 2 k, and its list the next one."""
MESSAGES = {
    "GlobalMetadata": (("version", 1, "string", False), ("attr", 2, ATTRIBUTE, True)),
    "Node": (
        ("id", 1, "uint64", False),
        ("name", 2, "string", False),
        ("type", 3, "int32", False),
        ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True),
        ("start_time_micros", 6, "uint64", False),
        ("duration_micros", 7, "uint64", False),
        ("attr", 10, ATTRIBUTE, True),
    ),
}
"""Fields of the messages: name, number, type, and whether they repeat.  ``type`` of a node is an enumeration,
which has an int32's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The classes of protobuf's messages, what reads and writes them, and the error of bytes that are none."""

    metadata: Any
    node: Any
    proto: Any
    error: type[Exception]


@cache
def schema() -> Schema:
    """The messages as protobuf's classes.

    Raises:
        MissingExtra: protobuf is not installed.
    """
    try:
        names = ("descriptor_pb2", "message_factory", "message", "proto")
        descriptors, factory, message, proto = (import_module(f"google.protobuf.{name}") for name in names)
    except ImportError:
        raise MissingExtra("a Chakra trace", "chakra") from None
    file = descriptors.FileDescriptorProto(name="weft/chakra.proto", package=PACKAGE, syntax="proto3")
    _add_attribute(file, descriptors.FieldDescriptorProto)
    for name, fields in MESSAGES.items():
        _add(file.message_type.add(name=name), fields, descriptors.FieldDescriptorProto)
    classes = factory.GetMessages([file])
    metadata, node = (classes[f"{PACKAGE}.{name}"] for name in MESSAGES)
    return Schema(metadata=metadata, node=node, proto=proto, error=message.DecodeError)


def _add(message: Any, fields: Any, kinds: Any) -> None:
    for name, number, kind, repeated in fields:
        field = message.field.add(name=name, number=number)
        field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        if kind[0].isupper():
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        else:
            field.type = getattr(kinds, f"TYPE_{kind.upper()}")


def _add_attribute(file: Any, kinds: Any) -> None:
    """An attribute: a name, and one value of any kind, or a list of such."""
    attribute = file.message_type.add(name=ATTRIBUTE)
    _add(attribute, (("name", 1, "string", False), ("doc_string", 2, "string", False)), kinds)
    attribute.oneof_decl.add(name="value")
    for position, kind in enumerate(SCALARS):
        number, values = 3 + 2 * position, f"{kind.capitalize()}List"
        _add(file.message_type.add(name=values), (("values", 1, kind, True),), kinds)
        _add(attribute, ((f"{kind}_val", number, kind, False), (f"{kind}_list", number + 1, values, False)), kinds)
    for field in attribute.field[2:]:
        field.oneof_index = 0


def decode(raw: bytes, where: str) -> Iterator[Any]:
    """The nodes of a trace's bytes, in order; the metadata before them is checked and left out.

    Raises:
        MissingExtra: protobuf is not installed.
    """
    messages, stream = schema(), io.BytesIO(raw)
    if raw[:2] == b"\x1f\x8b":
        raise BadInput("is compressed with gzip", where=where, remedy="unpack it first")

    def parsed(kind: Any, name: str) -> Any:
        try:
            return messages.proto.parse_length_prefixed(kind, stream)
        except (messages.error, ValueError, RecursionError):
            remedy = "check that the file is a whole .et file"
            raise BadInput("is not a message of a Chakra trace", where=f"{where}: {name}", remedy=remedy) from None

    metadata = parsed(messages.metadata, "metadata")
    if metadata is None:
        raise BadInput("is empty", where=where, remedy="give a Chakra trace (.et)")
    if stream.tell() > 1 and not metadata.version and not metadata.attr:
        raise BadInput("does not begin with a trace's metadata", where=where, remedy="give a Chakra trace (.et)")
    number = 0
    while (node := parsed(messages.node, f"message {number + 1}")) is not None:
        number += 1
        if number > MOST_NODES:
            raise BadInput(f"has more than {MOST_NODES:,} nodes", where=where, remedy="split the trace")
        yield node


def encode(nodes: list[Any]) -> bytes:
    """A trace's bytes: the metadata, then the nodes, each after its length."""
    messages, stream = schema(), io.BytesIO()
    for message in (messages.metadata(version=VERSION), *nodes):
        messages.proto.serialize_length_prefixed(message, stream)
    return stream.getvalue()
