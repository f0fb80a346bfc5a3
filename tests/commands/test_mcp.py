"""``weft mcp``, with the client of the protocol's own SDK."""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from weft.commands.mcp import TOOLS, input_schema
from weft.commands.options import options_of
from weft.commands.plan import PlanOptions

SERVER = StdioServerParameters(
    command=sys.executable, args=["-c", "from weft.commands.app import main; main()", "mcp"], env={**os.environ}
)


def with_client(use: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Client(SERVER) as client:
            return await use(client)

    return anyio.run(run)


WRONG = [
    ("plan", {"model": "gpt2", "cluster": "a100-9x"}, "a100-9x"),
    ("plan", {"model": "gpt2"}, "Missing argument 'CLUSTER'"),
    ("plan", {"model": "--version", "cluster": "a100-8"}, "unknown model '--version'"),
    ("plan", {"model": "gpt2", "cluster": "a100-8", "output": "mine.json"}, "plan has no option 'output'"),
    ("estimate", {"model": "llama-3.1-405b", "cluster": "a100-8", "layout": "tp=3"}, "tp"),
    ("train", {}, "There is no tool 'train'"),
]


def test_an_agent_finds_the_tools_reads_verdict_and_document_and_what_is_wrong_with_a_call() -> None:
    async def use(client: Any) -> Any:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("plan", {"cluster": "a100-8", "model": "gpt2", "fix": ["tp=2"]})
        return tools, result, [await client.call_tool(tool, given) for tool, given, _ in WRONG]

    tools, result, refused = with_client(use)
    assert [tool.name for tool in tools] == list(TOOLS)
    assert all(tool.description and tool.input_schema["properties"] for tool in tools)
    verdict, document = (content.text for content in result.content)
    assert not result.is_error
    assert verdict.startswith("Use tp=2 ")
    plan = json.loads(document)
    assert len(plan["layouts"]) == 3
    assert {each["layout"]["x"] for each in plan["layouts"]} == {2}
    for (_, _, why), answer in zip(WRONG, refused, strict=True):
        assert answer.is_error
        assert why in answer.content[-1].text


CALLS = {
    "estimate": ({"model": "gpt2", "cluster": "a100-8", "layout": "tp=2"}, "tp=2 dp=4: "),
    "tune": ({"model": "gpt2", "cluster": "a100-8", "layout": "tp=4", "measured": "9%"}, "You run at 9% MFU"),
    "compare": ({"names": ["gpt2", "a100-8", "h100-8"]}, "B "),
    "design": ({"model": "gpt2", "cluster": "a100-16", "no_simulate": True, "no_failures": True}, "Prices only: "),
    "simulate": ({"model": "gpt2", "cluster": "a100-16", "layout": "tp=4"}, "5."),
    "route": ({"cluster": "a100-16", "job": ["gpt2 tp=4,dp=4 0"]}, "Planned routes: "),
    "arrange": ({"site": "examples/site.toml", "budget": "1s"}, "3 jobs "),
}


@pytest.mark.slow
def test_every_tool_gives_a_verdict_and_a_document() -> None:
    async def use(client: Any) -> Any:
        return {tool: await client.call_tool(tool, given) for tool, (given, _) in CALLS.items()}

    assert {"plan", *CALLS} == set(TOOLS)
    for tool, result in with_client(use).items():
        assert not result.is_error, result.content
        assert result.content[0].text.startswith(CALLS[tool][1])
        assert json.loads(result.content[-1].text)


def test_the_input_is_that_of_the_command() -> None:
    schema = input_schema("plan")
    assert schema["required"] == ["model", "cluster"]
    assert schema["properties"]["top"] == {"type": "integer", "description": "Layouts to show.", "default": 3}
    assert schema["properties"]["fix"]["items"] == {"type": "string"}
    assert schema["properties"]["order"]["enum"] == ["ease", "time"]
    assert schema["properties"]["variants"]["type"] == "boolean"
    assert set(schema["properties"]) == {"model", "cluster", *(option.name for option in options_of(PlanOptions))}
