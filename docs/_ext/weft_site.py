"""What the site adds to Sphinx: formulas as MathML, the command line from click, console blocks in colours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from latex2mathml.converter import convert
from pygments.lexer import RegexLexer, bygroups, using
from pygments.lexers.shell import BashLexer
from pygments.token import Generic
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from weft.commands.app import cli
from weft.commands.info import SCHEMAS, schema


def draw_inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def draw_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


class ConsoleLexer(RegexLexer):
    """Commands after ``$``, with their continued lines; all else is output."""

    name = "console"
    tokens = {
        "root": [
            (r"^(\$ )((?:[^\n]*\\\n)*[^\n]*\n)", bygroups(Generic.Prompt, using(BashLexer))),
            (r"[^\n]*\n", Generic.Output),
        ]
    }


class Commands(Directive):
    """A section for every command: how it is called, its help, its options."""

    def run(self) -> list[nodes.Node]:
        return [section(command, context) for command, context in commands(cli, click.Context(cli, info_name="weft"))]


class Formats(Directive):
    """A section for every schema: its title and its fields."""

    def run(self) -> list[nodes.Node]:
        return [described(name, title) for name, (_, title) in SCHEMAS.items()]


def described(name: str, title: str) -> nodes.section:
    whole = schema(name)
    found = nodes.section(ids=[f"format-{name}"], names=[f"format-{name}"])
    found += nodes.title("", name)
    found += nodes.paragraph("", f"{title}. The whole schema: ", nodes.literal("", f"weft info schemas {name}"))
    for form in whole.get("anyOf", [whole]):
        form = whole["$defs"][form["$ref"].rpartition("/")[2]] if "$ref" in form else form
        listed = nodes.bullet_list()
        for field, value in form["properties"].items():
            missing = "" if field in form.get("required", ()) else ", may be missing"
            line = nodes.paragraph("", "", nodes.literal("", field), nodes.Text(f": {kind_of(value)}{missing}"))
            listed += nodes.list_item("", line)
        found += listed
    return found


def kind_of(value: dict[str, Any]) -> str:
    """What a field may be, in words."""
    if "const" in value:
        return f'"{value["const"]}"'
    if "enum" in value:
        return " or ".join(f'"{one}"' for one in value["enum"])
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2]
    if "anyOf" in value:
        return " or ".join(kind_of(one) for one in value["anyOf"])
    kinds = value.get("type", "anything")
    words = " or ".join([kinds] if isinstance(kinds, str) else kinds)
    return f"{words} of {kind_of(value['items'])}" if value.get("items") else words


def commands(group: click.Group, above: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Every command below a group, with the context of its call."""
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=above)
        yield command, context
        if isinstance(command, click.Group):
            yield from commands(command, context)


def section(command: click.Command, context: click.Context) -> nodes.section:
    path = context.command_path
    found = nodes.section(ids=[path.replace(" ", "-")], names=[path])
    found += nodes.title("", path)
    found += nodes.literal_block("", " ".join([path, *command.collect_usage_pieces(context)]), language="text")
    found += list(paragraphs(command.help or ""))
    records = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    if records:
        found += nodes.definition_list("", *(entry(flags, text) for flags, text in records), classes=["options"])
    return found


def paragraphs(text: str) -> Iterator[nodes.Node]:
    """Help as click takes it: a paragraph after ``\\b`` keeps its lines."""
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.startswith("\b"):
            yield nodes.literal_block("", part.lstrip("\b\n"), language="text")
        else:
            yield nodes.paragraph("", " ".join(part.split()))


def entry(flags: str, text: str) -> nodes.definition_list_item:
    term = nodes.term("", "", nodes.literal("", flags))
    return nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", text)))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    app.add_lexer("console", ConsoleLexer)
    app.add_directive("weft-commands", Commands)
    app.add_directive("weft-formats", Formats)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
