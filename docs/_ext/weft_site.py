"""What the site adds to Sphinx: formulas as MathML, the command line from click, console blocks in colours."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from latex2mathml.converter import convert
from pygments.lexer import RegexLexer, bygroups, using
from pygments.lexers.shell import BashLexer
from pygments.token import Generic
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from weft.cli.app import cli


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
    return {"parallel_read_safe": True, "parallel_write_safe": True}
