"""``weft schedule``: every option, every format, and one clear line for every bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as library

Run = Callable[..., tuple[int, str, str]]

DIMS = ("--dims", "switch:4:150GiB/s:1us,ring:4:100GiB/s:1us")
SMALL = ("schedule", "all-reduce", "64MiB", *DIMS)
WHOLE = ("schedule", "--workload", "gnmt", *DIMS)
BANDWIDTH_S = 2 * 2**26 * 15 / 16 / (250 * 2**30)
"""Bytes that every accelerator must send, 2 S (N - 1)/N, over all bandwidth."""


def as_json(weft: Run, *arguments: str) -> dict:
    code, out, err = weft(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--policy", "baseline"), {"policy": "baseline", "order": "fifo", "chunks": 64}),
        (("--policy", "blueconnect"), {"policy": "baseline"}),
        (("--policy", "themis"), {"policy": "themis", "order": "scf", "chunks": 64}),
        (("--policy", "themis", "--order", "fifo"), {"policy": "themis", "order": "fifo"}),
        (("--policy", "themis", "--order", "astra-scf"), {"order": "astra-scf"}),
        (("--policy", "themis", "--chunks", "5"), {"chunks": 5}),
        (("--policy", "weft"), {"policy": "weft", "order": "fixed"}),
        (("--policy", "baseline", "--active", "1"), {"active": 1}),
        (("--policy", "baseline", "--active", "3"), {"active": 3}),
        (("--policy", "baseline", "--active", "overlap"), {"active": None}),
    ],
)
def test_options_are_heard(weft: Run, options: tuple[str, ...], expected: dict) -> None:
    found = as_json(weft, *SMALL, *options)
    assert {name: found[name] for name in expected} == expected


def test_a_switch_of_no_power_of_two_says_what_it_takes(weft: Run) -> None:
    _, out, _ = weft("schedule", "all-reduce", "1MiB", "--dims", "switch:6:100GB/s:1us,switch:2:100GB/s:1us")
    assert "Assumed: dimension 1: ring instead of halving-doubling on a switch of 6" in out


# Exports ----------------------------------------------------------------------------------------


def test_a_system_file_is_the_same_schedule(weft: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "system.txt")
    options = ("--policy", "baseline", "--chunks", "8", "--active", "1")
    assert weft(*SMALL, *options, "--export", "astra-system", "-o", path) == (0, "", "")
    assert as_json(weft, *SMALL, "--system", path) == as_json(weft, *SMALL, *options)


def test_options_overrule_a_system_file(weft: Run, tmp_path: Path) -> None:
    path = tmp_path / "system.json"
    path.write_text(json.dumps({"preferred-dataset-splits": 64, "active-chunks-per-dimension": 2}))
    for options, values in (((), ("baseline", 64)), (("--policy", "themis", "--chunks", "7"), ("themis", 7))):
        found = as_json(weft, *SMALL, "--system", str(path), *options)
        assert (found["policy"], found["order"], found["chunks"]) == (values[0], "fifo", values[1])


def test_chakra_traces_are_a_workload(weft: Run, tmp_path: Path) -> None:
    folder = str(tmp_path / "traces")
    code, out, err = weft(*SMALL, "--export", "chakra", "-o", folder)
    assert (code, out, err) == (0, "", f"16 traces: {folder}/trace.<rank>.et\n")
    assert len(list((tmp_path / "traces").iterdir())) == 16
    found = as_json(weft, "schedule", "--workload", f"{folder}/trace.3.et", *DIMS)
    times = {one["policy"]: one["iteration_s"] for one in found["policies"]}
    assert times["ideal"] == pytest.approx(BANDWIDTH_S)
    assert times["baseline"] == pytest.approx(as_json(weft, *SMALL, "--policy", "baseline")["time_s"])


# Pictures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [SMALL, WHOLE], ids=["collective", "workload"])
def test_an_output_file_holds_what_the_terminal_shows(weft: Run, tmp_path: Path, arguments) -> None:
    for options in ((), ("--format", "json")):
        path = tmp_path / "out.txt"
        code, out, err = weft(*arguments, *options, "-o", str(path))
        assert (code, out, err.startswith("Weft: ")) == (0, "", bool(options))
        assert path.read_text() == weft(*arguments, *options)[1]


# Whole iterations -------------------------------------------------------------------------------


def test_a_planned_job(weft: Run, tmp_path: Path) -> None:
    job = ("--workload", "llama-3.2-1b", "--layout", "fsdp=16,mbs=1", "--cluster", "h100-16")
    found = as_json(weft, "schedule", *job, "--chunks", "8", "--active", "overlap")
    assert found["workload"] == "llama-3.2-1b on h100-16"
    times = []
    for batch in (32, 64):
        path = str(tmp_path / "plan.json")
        library.plan("llama-3.2-1b", "h100-16", batch=batch, sequence=2048, fix=("fsdp=16", "mbs=1"), top=1).save(path)
        times.append(as_json(weft, "schedule", "--plan", path, "--chunks", "8")["compute_s"])
    assert times[1] == pytest.approx(2 * times[0], rel=0.1)
    slower = tmp_path / "slower.toml"
    slower.write_text("gemm_efficiency = 0.5\n")
    slow = as_json(weft, "schedule", *job, "--calibration", str(slower), "--chunks", "8")
    assert slow["compute_s"] > found["compute_s"] * 1.1


def test_a_workload_hears_chunks_active_and_order(weft: Run) -> None:
    usual = as_json(weft, *WHOLE, "--active", "1")
    few = as_json(weft, *WHOLE, "--active", "1", "--chunks", "1")
    assert few["policies"][0]["iteration_s"] > usual["policies"][0]["iteration_s"]
    first = as_json(weft, *WHOLE, "--active", "1", "--order", "fifo")
    assert first["policies"][1]["iteration_s"] != usual["policies"][1]["iteration_s"]


def test_process_groups_of_a_trace(weft: Run, tmp_path: Path) -> None:
    """The trace names the group, the file its ranks: 1 GB in four neighbours on a switch of 8."""
    from weft.interop import chakra

    node = chakra.schema().node(name="reduce", type=chakra.COLLECTIVE)
    node.attr.add(name="comm_type").int64_val = 0
    node.attr.add(name="comm_size").int64_val = 10**9
    node.attr.add(name="pg_name").string_val = "1"
    (tmp_path / "trace.0.et").write_bytes(chakra.encode_messages([node]))
    groups = tmp_path / "groups.json"
    groups.write_text('{"1": [0, 1, 2, 3]}')
    trace = ("schedule", "--workload", str(tmp_path / "trace.0.et"), "--dims", "switch:8:100GB/s:0s")
    found = as_json(weft, *trace, "--groups", str(groups))
    assert found["policies"][0]["iteration_s"] == pytest.approx(2 * 3 / 4 * 1e9 / 100e9)
    groups.write_text("{")
    code, out, err = weft(*trace, "--groups", str(groups))
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1


# Bad input --------------------------------------------------------------------------------------

BAD = {
    "nothing": (("schedule",), "COLLECTIVE and SIZE are missing"),
    "no size": (("schedule", "all-reduce", *DIMS), "COLLECTIVE and SIZE are missing"),
    "too many words": ((*SMALL, "now"), "unexpected extra argument"),
    "policy": ((*SMALL, "--policy", "tacos"), "weft"),
    "order": ((*SMALL, "--policy", "themis", "--order", "lifo"), "fifo"),
    "export": ((*SMALL, "--export", "nccl"), "msccl"),
    "format": ((*SMALL, "--format", "csv"), "json"),
    "chunks": ((*SMALL, "--chunks", "many"), "whole number"),
    "option": ((*SMALL, "--chunk", "4"), "--chunks"),
    "unknown collective": (("schedule", "all-reduct", "1GiB", *DIMS), "did you mean all-reduce"),
    "size is no size": (("schedule", "all-reduce", "big", *DIMS), "quantity"),
    "no network": (("schedule", "all-reduce", "1GiB"), "--cluster and --dims"),
    "two networks": ((*SMALL, "--cluster", "h100-8"), "--cluster and --dims"),
    "kind of dimension": (("schedule", "all-reduce", "1GiB", "--dims", "rign:4:1GB/s:1us"), "did you mean ring"),
    "algorithm": ((*SMALL, "--algorithms", "rign,-"), "did you mean ring"),
    "no chunks": ((*SMALL, "--chunks", "0"), "0 chunks"),
    "active": ((*SMALL, "--active", "some"), "not a number"),
    "unknown cluster": (("schedule", "all-reduce", "1GiB", "--cluster", "h1000-8"), "unknown cluster"),
    "missing network": (("schedule", "all-reduce", "1GiB", "--dims", "no.yml"), "no.yml"),
    "missing system": ((*SMALL, "--system", "no.txt"), "no.txt"),
    "groups alone": ((*SMALL, "--groups", "no.json"), "--workload"),
    "missing groups": (("schedule", "--workload", "no.et", *DIMS, "--groups", "no.json"), "no.json"),
    "layout alone": ((*SMALL, "--layout", "dp=16"), "--workload"),
    "tuner without cluster": ((*SMALL, "--export", "nccl-tuner"), "--cluster"),
    "astra-system of weft": ((*SMALL, "--export", "astra-system"), "--policy baseline"),
    "chakra to the terminal": ((*SMALL, "--export", "chakra"), "-o"),
    "chakra folder": ((*SMALL, "--export", "chakra", "-o", "/no/such/folder/x"), "cannot be written"),
    "msccl of an all-to-all": (
        ("schedule", "all-to-all", "1GiB", *DIMS, "--export", "msccl"),
        "messages for all-to-all",
    ),
    "msccl in the switch": (
        (
            *("schedule", "all-reduce", "1GiB", "--dims", "switch:4:1GB/s:1us:reduce"),
            *("--algorithms", "in-switch", "--export", "msccl"),
        ),
        "--algorithms",
    ),
    "msccl of too many": (
        ("schedule", "all-reduce", "1GiB", "--cluster", "h100-16384", "--export", "msccl"),
        "fewer chunks",
    ),
    "chart": ((*SMALL, "--chart", "x.gif"), ".svg, .png or .pdf"),
    "chart folder": ((*SMALL, "--chart", "/no/such/folder/x.svg"), "folder"),
    "output folder": ((*SMALL, "-o", "/no/such/folder/x.txt"), "cannot be written"),
    "unknown workload": (("schedule", "--workload", "gnmd", *DIMS), "did you mean gnmt"),
    "workload and collective": ((*SMALL, "--workload", "gnmt"), "drop one"),
    "missing chakra": (("schedule", "--workload", "no.et", *DIMS), "no.et"),
    "missing trace": (("schedule", "--workload", "no.json", *DIMS), "no.json"),
    "missing packed trace": (("schedule", "--workload", "no.json.gz", *DIMS), "no.json.gz"),
    "workload without network": (("schedule", "--workload", "gnmt"), "--dims"),
    "job without cluster": (("schedule", "--workload", "gpt2", "--layout", "dp=16", *DIMS), "--cluster"),
    "job's layout": (("schedule", "--workload", "gpt2", "--layout", "dp=3", "--cluster", "h100-8"), ""),
    "job's rule": (("schedule", "--workload", "gpt2", "--layout", "pp=2,vpp=9", "--cluster", "h100-8"), "stages"),
    "job's model": (("schedule", "--workload", "gtp2", "--layout", "dp=8", "--cluster", "h100-8"), "did you mean"),
    "workload's chunks": ((*WHOLE, "--chunks", "-1"), "-1 chunks"),
    "workload's active": ((*WHOLE, "--active", "0"), "1 to 4096"),
    "absurd sizes": (("schedule", "all-reduce", "1e300", "--dims", "switch:4:1e-200:0s,ring:4:1GB/s:0s"), ""),
    "timeline": ((*SMALL, "--timeline", "/no/such/folder/x.pftrace"), ""),
    "workload's timeline": ((*WHOLE, "--timeline", "/no/such/folder/x.pftrace"), ""),
    **{
        f"workload with {name}": ((*WHOLE, *words), "one collective")
        for name, words in {
            "export": ("--export", "msccl"),
            "chart": ("--chart", "x.svg"),
            "compare": ("--compare",),
        }.items()
    },
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    refused: Callable[..., str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD[name]
    assert message in refused(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--timeline", "--chart"])
def test_no_picture_is_forgotten_beside_an_export(weft: Run, tmp_path: Path, option: str) -> None:
    """It is drawn, or refused."""
    path = tmp_path / "picture.svg"
    code, _, _ = weft(*SMALL, "--export", "msccl", option, str(path))
    assert path.exists() if code == 0 else code == 2


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_trace_of_a_barrier_alone_takes_no_time(weft: Run, tmp_path: Path, form: str) -> None:
    path = tmp_path / "barrier.json"
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 0, "dur": 1}
    path.write_text(json.dumps([kernel | {"args": {"Collective name": "barrier"}}]))
    code, out, err = weft("schedule", "--workload", str(path), *DIMS, "--format", form)
    assert (code, err) == (0, "")
    assert "barrier.json" in out


def test_a_workload_hears_algorithms(weft: Run) -> None:
    """A direct exchange takes one latency, a ring on the same switch takes 15."""
    dims = ("--dims", "switch:16:900GB/s:1ms")
    times = [
        as_json(weft, "schedule", "--workload", "gnmt", *dims, "--algorithms", name)["policies"][0]
        for name in ("direct", "ring")
    ]
    assert times[0]["iteration_s"] < times[1]["iteration_s"] / 2


JUNK = ["--dims", "--algorithms", "--active", "--chunks", "--workload"]


@given(st.text(max_size=30), st.sampled_from(JUNK))
def test_junk_options_never_crash(weft: Run, text: str, option: str) -> None:
    network = () if option == "--dims" else DIMS
    wanted = () if option == "--workload" else ("all-reduce", "1MiB")
    code, _, err = weft("schedule", *wanted, *network, f"{option}={text}")
    assert code in (0, 2)
    assert (err == "") if code == 0 else err.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in err
