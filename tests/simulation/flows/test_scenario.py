"""Plain scenarios: golden makespans, and files that cannot be used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.errors import BadInput
from weft.simulation.flows.engine import run
from weft.simulation.flows.scenario import read_scenario

ROOT = Path(__file__).parents[2]
GENERATOR = Path(os.environ.get("WEFT_SHARED", ROOT / ".." / "shared")) / "bench" / "simgrid" / "gen_scenario.py"
GOLDEN = {
    (8, "ring"): 0.08,
    (8, "ringshuf"): 0.4,
    (8, "perm"): 0.24,
    (8, "permmix"): 0.344262,
    (8, "perm8"): 1.12,
    (16, "ring"): 0.08,
    (16, "ringshuf"): 0.4,
    (16, "perm"): 0.48,
    (16, "permmix"): 0.549085,
    (16, "perm8"): 1.44,
}
"""Makespans in s that three other simulators (SimGrid 3.32 among them) agree on, for seed 1."""


@pytest.mark.skipif(not GENERATOR.exists(), reason="the scenario generator is not here (WEFT_SHARED)")
@pytest.mark.parametrize(("radix", "kind"), GOLDEN)
def test_golden_makespans(radix, kind, tmp_path):
    path = tmp_path / "scenario.txt"
    subprocess.run([sys.executable, GENERATOR, str(radix), kind, "1", path], check=True)
    case = read_scenario(path)
    assert run(*case).makespan_s == pytest.approx(GOLDEN[radix, kind], abs=1e-6)
    if radix == 8:
        assert run(*case, local=0.0).makespan_s == pytest.approx(GOLDEN[radix, kind], abs=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds nothing"),
        ("\n \n", "holds nothing"),
        ("1 2\n", "line 1: has 2 numbers"),
        ("-1 1 1 1e9\n", "line 1: -1 hosts"),
        ("1.5 1 1 1e9\n", r"line 1: 1\.5 hosts"),
        ("1e400 1 1 1\n", "line 1: inf hosts"),
        ("2 1 1 0\n0 1 5 1 0\n0 1\n", "0 bytes/s"),
        ("2 1 1 nan\n0 1 5 1 0\n0 1\n", r"line 1: .* nan bytes/s"),
        ("2 1 1 1e9\n0 1 5 1 x\n0 1\n", "line 2: 'x' is not a number"),
        ("2 1 1 1e9\n0 1 1-1 1 0\n0 1\n", "line 2: '1-1' is not a number"),
        ("2 1 2 1e9\n0 1 5 1 0\n0 1\n", "has 3 lines, but line 1 announces 2 flows and 1 links"),
        ("2 1 1 1e9\n0 1 5\n0 1\n", "line 2: has 3 numbers"),
        ("2 1 1 1e9\n0 1 5 2 0\n0 1\n", r"line 2: has 5 numbers"),
        ("2 1 1 1e9\n0 1 5 1 0\n0 1 2\n", "line 3: has 3 numbers, not 2"),
        ("2 1 1 1e9\n0 7 5 1 0\n0 1\n", "line 2: destination 7 is none of 2 hosts"),
        ("2 1 1 1e9\n-1 1 5 1 0\n0 1\n", "line 2: source -1"),
        ("2 1 1 1e9\n0 1 -5 1 0\n0 1\n", "line 2: -5 bytes"),
        ("2 1 1 1e9\n0 1 1e999 1 0\n0 1\n", "line 2: inf bytes"),
        ("2 1 1 1e9\n0 1 5 1 0.5\n0 1\n", r"line 2: link 0\.5 is none"),
        ("2 1 1 1e9\n0 1 5 1 1\n0 1\n", "line 2: link 1 is none of 1 links"),
        ("2 1 1 1e9\n0 1 5 1 0\n0 -1\n", "line 3: node -1"),
        ("1 0 1 1e9\n0 0 500 0\n", "line 2: goes from 0 to itself"),
        ("2 1 1 1e9\n0 1 5 0\n0 1\n", "line 2: has no path"),
        ("3 2 2 1e9\n0 1 5 1 0\n0 2 5 1 1\n0 1\n1 2\n", "line 3: link 1 leaves 1, not 0"),
        ("3 2 1 1e9\n0 2 5 2 0 0\n0 1\n1 2\n", "line 2: link 0 leaves 0, not 1"),
        ("3 1 1 1e9\n0 2 5 1 0\n0 1\n", "line 2: path ends at 1, not 2"),
        ("3 3 1 1e9\n0 2 5 4 0 1 0 2\n0 1\n1 0\n1 2\n", "line 2: path passes [01] twice"),
    ],
)
def test_bad_files_are_named_by_line(text, words, tmp_path):
    path = tmp_path / "scenario.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        read_scenario(path)


def test_bad_paths_and_binary_files(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        read_scenario(tmp_path / "none.txt")
    with pytest.raises(BadInput, match="cannot be read"):
        read_scenario(tmp_path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_scenario("a\0b")
    path = tmp_path / "binary"
    path.write_bytes(bytes(range(256)) * 100)
    with pytest.raises(BadInput, match=r"line 1: .* is not a number"):
        read_scenario(path)
