"""The notebooks: committed without outputs, and every cell runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs(path: Path) -> None:
    code = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert all(cell.outputs for cell in book.cells if cell.cell_type == "code")
