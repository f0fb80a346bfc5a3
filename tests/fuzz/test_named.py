"""Inputs that once hung a reader, took all memory, or ended in a traceback, where no module of tests has them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from readers import TESTS
from trials import limits

import weft
from weft.cluster import read_calibration, resolve
from weft.errors import BadInput
from weft.interop.fabric_files import read_fabric
from weft.interop.launch import read_run
from weft.validation.runs import Skipped, read_runs
from weft.validation.summary import Predictions, validation


@pytest.fixture(autouse=True)
def bounded():
    before = time.process_time()
    with limits():
        yield
    assert time.process_time() - before < 5


ENDLESS = {
    "runs": read_runs,
    "validate": weft.validate,
    "calibrate": weft.calibrate,
    "constants": lambda path: read_calibration(path, "h100"),
    "validate with constants": lambda path: weft.validate(TESTS / "commands" / "published_runs.csv", calibration=path),
    "a run": read_run,
    "a cluster": resolve,
    "a plan": weft.read,
}


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless device")
@pytest.mark.parametrize("what", ENDLESS)
def test_endless_files(what: str) -> None:
    with pytest.raises(BadInput, match="is larger than"):
        ENDLESS[what]("/dev/zero")


@pytest.mark.parametrize(
    "name", ["a" * 100_000, "a-" * 50_000, "/" + "a" * 100_000, "\n" * 100_000, "a.toml" * 20_000]
)
def test_names_that_no_system_takes(name: str) -> None:
    for read in (weft.resolve_job, weft.resolve_cluster):
        with pytest.raises(BadInput):
            read(name)


TOML = {
    "clusters": resolve,
    "fabrics": read_fabric,
    "constants": lambda path: read_calibration(path, "h100"),
    "prices": lambda path: weft.design("llama-3.1-8b", "h100-64", prices=path),
    "runs": read_run,
}


@pytest.mark.parametrize("what", TOML)
def test_keys_with_many_dots(tmp_path: Path, what: str) -> None:
    path = tmp_path / "given.toml"
    path.write_text("schema = 1\n[training]\n" + ".".join("a" * 20_000) + " = 1\n")
    with pytest.raises(BadInput, match="more than 64 dots"):
        TOML[what](str(path))


def test_no_reader_of_toml_goes_around_the_bounds() -> None:
    """Beside parse_toml, tomllib reads what Weft ships."""
    users = {
        path.relative_to(Path(weft.__file__).parent).as_posix() for path in _modules() if "tomllib" in path.read_text()
    }
    assert users == {"documents.py", "cluster/catalogue.py", "validation/inputs.py", "validation/runs.py"}


def _modules() -> list[Path]:
    return sorted(Path(weft.__file__).parent.rglob("*.py"))


CELLS = {
    "gpu": "1" * 130_000,
    "model": "(" * 130_000,
    "notes": "gradacc" * 18_000,
    "source": "[" * 130_000,
    "gpus": "9" * 130_000,
    "recompute": " " * 130_000,
}


@pytest.mark.parametrize("column", CELLS)
def test_long_cells(tmp_path: Path, column: str) -> None:
    header, row = (TESTS / "commands" / "published_runs.csv").read_text().splitlines()[:2]
    cells = dict(zip(header.split(","), row.split(","), strict=True)) | {column: CELLS[column]}
    path = tmp_path / "runs.csv"
    path.write_text(header + "\n" + ",".join(cells.values()) + "\n")
    assert len(weft.validate(path).rows) == 1


@pytest.mark.slow
def test_many_runs(tmp_path: Path) -> None:
    """Rows of a published table again and again, under other names."""
    header, *rows = (TESTS / "commands" / "published_runs.csv").read_text().splitlines()
    path = tmp_path / "runs.csv"
    lines = [f"{i},{rows[i % len(rows)].partition(',')[2]}" for i in range(4_000)]
    path.write_text("\n".join([header, *lines]) + "\n")
    found = weft.validate(path)
    assert len(found.rows) == 4_000
    assert found.headline == pytest.approx(weft.validate(TESTS / "commands" / "published_runs.csv").headline, rel=0.01)


@pytest.mark.slow
def test_many_families() -> None:
    rows = [Skipped(name=str(i), family=f"f{i}", reason="none") for i in range(20_000)]
    nothing = np.zeros(0)
    assert len(validation(rows, Predictions(seconds=nothing, memory_bytes=nothing)).families) == 20_000
