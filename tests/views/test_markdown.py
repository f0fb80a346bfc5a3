"""Blocks as Markdown: every kind, and nothing in a name that acts."""

import pytest

pytest.importorskip("jinja2")

from weft.views.blocks import Blank, Column, Copied, Fact, Figure, Heading, Paragraph, Table, rows_grid
from weft.views.reports import to_markdown

HOSTILE = "<script>x</script> | `a` *b* [c](d) ![e](f) @g #1\n# h"


def test_every_kind_of_block_has_its_markdown():
    grid = rows_grid(("run", "time"), [("a", "1 s"), ("b", "2 s")], left=("run",))
    made = to_markdown(
        "Title",
        [
            Heading("One"),
            Fact("Job:", "x"),
            Fact("For", "y"),
            Blank(),
            grid,
            Figure("<svg/>", "c"),
            Copied("\nrun\n", "command"),
        ],
    )
    assert made == (
        "# Title\n\n## One\n\n- **Job**: x\n- **For**: y\n\n"
        "| run | time |\n|---|---:|\n| a | 1 s |\n| b | 2 s |\n\ncommand:\n\n```\nrun\n```\n"
    )


def test_names_do_not_act():
    columns = [Column(HOSTILE, [HOSTILE])]
    made = to_markdown(HOSTILE, [Heading(HOSTILE), Fact(HOSTILE, HOSTILE), Paragraph(HOSTILE), Table(*columns)])
    assert "<script>" not in made
    inert = r"&lt;script&gt;x&lt;/script&gt; \| \`a\` \*b\* \[c\](d) \!\[e\](f) \@g \#1 \# h"
    assert made.count(inert) == 7
    assert [line[:3] for line in made.splitlines() if line.startswith("#")] == ["# &", "## "]


@pytest.mark.parametrize("text", ["```", "a\n````\nb", "`x`"])
def test_nothing_ends_a_block_of_code_but_its_end(text):
    fence, *inner, end = to_markdown("t", [Copied(text, "c")]).partition("c:\n\n")[2].rstrip("\n").split("\n")
    assert (fence, "\n".join(inner)) == (end, text)
    assert all(fence not in line for line in inner)
