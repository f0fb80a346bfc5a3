"""``weft fabric check``: from a plan that Weft writes to what is wrong with the cables."""

import csv
import io
import json

import pytest
from jsonschema import validate

import weft as library
from weft.errors import BadInput

KIND = ("--against", "rail-optimized", "--cluster", "h100-64", "--radix", "16")


@pytest.fixture
def plan(weft, tmp_path):
    path = tmp_path / "plan.csv"
    weft("fabric", "h100-64", "--kind", "rail-optimized", "--radix", "16", "--export", "p2p", "-o", str(path))
    return path


@pytest.fixture
def built(plan, tmp_path):
    """Two plugs exchanged, a slow cable and one that is missing."""
    rows = list(csv.reader(io.StringIO(plan.read_text())))
    rows[5][2:4], rows[10][2:4] = rows[10][2:4], rows[5][2:4]
    rows[20][4] = "100G"
    del rows[40]
    path = tmp_path / "built.csv"
    path.write_text("\n".join(",".join(row) for row in rows))
    return path


@pytest.mark.parametrize("option", ["--link-speed", "--scale-up"])
@pytest.mark.parametrize("speed", ["0", "-5 GB/s"])
def test_speeds_of_files_are_above_zero(weft, plan, option, speed):
    code, out, err = weft("fabric", "check", str(plan), "--against", str(plan), option, speed)
    assert (code, out) == (2, "")
    assert f"Error: {option}: " in err
    assert "is not a finite number above 0" in err


def test_what_is_wrong(weft, plan, built):
    code, out, _ = weft("fabric", "check", str(built), "--against", str(plan), "--format", "json")
    found = json.loads(out)
    validate(found, library.schema("fabric-check"))
    assert code == 1
    assert {kind: count for kind, count in found["counts"].items() if count} == {
        "wrong-rail": 1,
        "missing": 1,
        "slow": 1,
    }
    code, out, _ = weft("fabric", "check", str(built), "--against", str(plan))
    assert code == 1
    assert "exchange the plugs of leaf-" in out
    assert "100 of 400 Gb/s" in out
    rows = list(csv.DictReader(io.StringIO(weft("fabric", "check", str(built), *KIND, "--format", "csv")[1])))
    assert [row["kind"] for row in rows] == ["wrong-rail", "missing", "slow"]


def test_names_and_messages(weft, plan, tmp_path):
    moved = tmp_path / "moved.csv"
    moved.write_text(plan.read_text().replace("node", "rack1-n").replace("leaf-", "sw-l").replace("spine-", "sw-s"))
    code, _, error = weft("fabric", "check", str(moved), "--against", str(plan))
    assert code == 2
    assert "no device of the design is there: 'rack1-n0' of 20 as built, 'node0' of 20 in the design" in error
    names = tmp_path / "names"
    lines = [f"{old}{i} {new}{i}" for old, new in (("rack1-n", "node"), ("sw-l", "leaf-")) for i in range(8)]
    names.write_text("\n".join([*lines, *(f"sw-s{i} spine-{i}" for i in range(4))]))
    assert weft("fabric", "check", str(moved), "--against", str(plan), "--names", str(names))[0] == 0
    names.write_text("\n".join(lines))
    out = weft("fabric", "check", str(moved), "--against", str(plan), "--names", str(names))[1]
    assert "Missing devices: spine-0, spine-1" in out
    assert "map them with --names FILE" in out
    with pytest.raises(BadInput, match="'rail-only' is not a file, and a kind of network needs --cluster"):
        library.check_fabric(str(plan), against="rail-only")
    with pytest.raises(BadInput, match="--against: is missing"):
        library.check_fabric(str(plan))
    assert repr(library.check_fabric(str(plan), against=str(plan))) == "Wiring: all 128 cables are as designed"
