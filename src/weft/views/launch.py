"""Launch arguments as they are to be copied: file, command, notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.views.blocks import Block, Copied, Heading, Paragraph

if TYPE_CHECKING:
    from weft.interop.launch import LaunchArguments


def launch_view(arguments: LaunchArguments) -> Iterator[Block]:
    """What a tool reads, how it starts, and what to know."""
    yield Heading(f"Launch with {arguments.tool}: save this as {arguments.file}")
    yield Copied(arguments.text, arguments.file)
    yield Copied(f"\n{arguments.command}\n", "command")
    for note in arguments.notes:
        yield Paragraph(f"note: {note}")
