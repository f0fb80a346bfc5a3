"""How long functions and files are: percentiles per part of the tree, and what is over budget.

Run: ``python tools/size_report.py``.  Exits with 1 when a function or a module of the package is over its
maximum.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST_FUNCTION = 80
LONGEST_FILE = 700


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """Length and place of every function of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield node.end_lineno - node.lineno + 1, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def percentile(values: Sequence[int], share: float) -> int:
    """The value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def main() -> int:
    """Print the table; 1 when something is over budget."""
    print(f"{'part':12s} {'files':>5s} {'lines':>6s} {'file p50/p90/max':>18s} {'function p50/p90/max':>21s}")
    over = []
    for part in ("src", "tests", "benchmarks", "tools"):
        paths = sorted((ROOT / part).rglob("*.py"))
        files = [(path.read_text(encoding="utf-8").count("\n"), str(path.relative_to(ROOT))) for path in paths]
        bodies = [found for path in paths for found in functions(path)]
        if not files or not bodies:
            continue
        shown = [
            "/".join(str(value) for value in (percentile(sizes, 0.5), percentile(sizes, 0.9), max(sizes)))
            for sizes in ([lines for lines, _ in files], [lines for lines, _ in bodies])
        ]
        total = sum(lines for lines, _ in files)
        print(f"{part:12s} {len(files):5d} {total:6d} {shown[0]:>18s} {shown[1]:>21s}")
        if part == "src":
            over = [found for found in bodies if found[0] > LONGEST_FUNCTION]
            over += [found for found in files if found[0] > LONGEST_FILE]
    for lines, place in over:
        print(f"over budget: {lines} lines, {place}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
