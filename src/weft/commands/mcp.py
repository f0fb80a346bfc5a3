"""``weft mcp``: the main commands as tools of an agent (Model Context Protocol, over standard input and output).

A tool takes the arguments and options of its command.  Each call runs the command in a separate process, so that a
cancelled one ends at once and none disturbs another; its answer is the verdict, then the JSON document.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from weft.commands.app import cli
from weft.commands.command_line import DefaultGroup, command
from weft.errors import MissingExtra
from weft.solvers import FOR_GOOD, FOR_NOW

TOOLS = ("plan", "estimate", "tune", "compare", "design", "simulate", "route", "arrange")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {"plan": {"top": 3}}
"""Where a tool's differ from its command's: an agent reads all of a document."""
_OUTPUT = ("output", "form", "wide", "verbose", "chart", "picture", "paths")
_TYPES = {"integer": "integer", "integers": "integer", "number": "number"}
_PROGRAM = (sys.executable, "-c", "from weft.commands.app import main; main()")


@command()
def mcp_command() -> None:
    """Offer plan, estimate, tune, compare, design, simulate, route and arrange to agents, over MCP.

    The agent starts it: name weft as the command and mcp as its argument in the agent's list of servers. Paths of
    files are relative to the folder in which it starts. Needs the extra mcp: pip install 'weft[mcp]'.
    """
    if find_spec("mcp") is None:
        raise MissingExtra("weft mcp", "mcp")
    import anyio

    anyio.run(_serve)


async def _serve() -> None:
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    async def tools(context: Any, request: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=_command(name)[1].help, input_schema=input_schema(name))
                for name in TOOLS
            ]
        )

    async def call(context: Any, request: types.CallToolRequestParams) -> types.CallToolResult:
        failed, texts = await answer(request.name, request.arguments or {})
        return types.CallToolResult(content=[types.TextContent(text=text) for text in texts], is_error=failed)

    server: Server[Any] = Server("weft", version=version("weft"), on_list_tools=tools, on_call_tool=call)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


@cache
def _command(name: str) -> tuple[list[str], click.Command]:
    """The words that run a tool's command, and the command; of a group its default."""
    context = click.Context(cli)
    words, made = [name], cli.get_command(context, name)
    if isinstance(made, DefaultGroup):
        words, made = [name, made.default], made.get_command(context, made.default)
    assert made is not None
    return words, made


def _params(name: str) -> dict[str, click.Parameter]:
    """The arguments and options of a tool, by name."""
    return {str(param.name): param for param in _command(name)[1].params if param.name not in _OUTPUT}


def input_schema(name: str) -> dict[str, Any]:
    """The JSON schema of a tool's input."""
    params = _params(name)
    return {
        "type": "object",
        "properties": {key: _property(param, DEFAULTS.get(name, {}).get(key)) for key, param in params.items()},
        "required": [key for key, param in params.items() if param.required],
        "additionalProperties": False,
    }


def _property(param: click.Parameter, default: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES.get(param.type.name, "string")}
    if getattr(param, "is_flag", False):
        schema = {"type": "boolean"}
    elif choices := getattr(param.type, "choices", ()):
        schema["enum"] = list(choices)
    if param.nargs == -1 or param.multiple:
        schema = {"type": "array", "items": schema}
    if text := getattr(param, "help", param.metavar):
        schema["description"] = text
    return schema if default is None else schema | {"default": default}


async def answer(name: str, given: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Run a tool; whether it failed, and its texts: the verdict and the document, or why there are none."""
    import anyio

    if name not in TOOLS:
        return True, [f"There is no tool {name[:40]!r}. Take one of {', '.join(TOOLS)}."]
    params, flags, arguments = _params(name), list[str](), list[str]()
    if unknown := sorted(set(given) - set(params)):
        return True, [f"{name} has no option {unknown[0][:40]!r}. Take some of {', '.join(params)}."]
    for key, param in params.items():
        value = given.get(key, DEFAULTS.get(name, {}).get(key))
        values = value if isinstance(value, list) else [] if value is None or value is False else [value]
        flag = max(param.opts, key=len)
        if isinstance(param, click.Argument):
            arguments += map(str, values)
        else:
            flags += [flag if each is True else f"{flag}={each}" for each in values]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        words = [*_PROGRAM, *_command(name)[0], *flags, "--format=json", f"--output={file}", "--", *arguments]
        run = await anyio.run_process(words, input=b"", check=False, env=os.environ | {"COLUMNS": "2000"})
        document = [file.read_text(encoding="utf-8")] if file.exists() else []
    said = [line for line in run.stderr.decode().splitlines() if line and line not in (FOR_GOOD, FOR_NOW)]
    return not document, ["\n".join(sorted(said, key=lambda line: line.startswith("Warning: "))), *document]
