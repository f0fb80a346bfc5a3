"""What is given twice, has no effect or cannot be is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
PAPER = ("--generate", "BLOOM:4")

REFUSED = {
    "an option twice": (
        ("estimate", "gpt2-124m", "a100-8", "--layout", "dp=8", "--layout", "dp=4"),
        "--layout: is given",
    ),
    "twice in two spellings": (
        ("route", "export", "events", *PAPER, "-o", "a", "--output", "b"),
        "--output: is given twice",
    ),
    "a format twice": (
        ("plan", "gpt2-124m", "a100-8", "--format", "json", "--format", "table"),
        "--format: is given twice",
    ),
    "an exported type twice": (("train", "export", "a", "b", "--to", "hf", "--to", "weft"), "--to: is given twice"),
    "commas that part no thousands": (("plan", "gpt2-124m", "a100-8", "--batch", "1,1,1"), "'1,1,1' is not a whole"),
    "export: host map": (("route", "export", "json", *PAPER, "--host-map", "no"), "--host-map: has no effect"),
    "events: radix": (("route", "export", "events", *PAPER, "--radix", "7"), "--radix: applies to"),
    "events: failed": (
        ("route", "export", "events", *PAPER, "--failed", "spine-1"),
        "--failed: does not apply to events",
    ),
    "a time of no events": (("route", "export", "json", *PAPER, "--at", "1"), "--at: does not apply to json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_by_name(refused: Callable[..., str], case: str) -> None:
    arguments, words = REFUSED[case]
    assert words in refused(*arguments)


def test_repeatable_options_and_switches_repeat(weft: Run) -> None:
    job = ("simulate", "gpt2-124m", "a100-8", "--layout", "dp=8", "--batch", "64")
    assert weft(*job, "--full", "--full")[0] == 0
    assert weft(*job, "--slow", "rank=1:1.1", "--slow", "rank=2:1.1")[0] == 0


def test_cables_without_speed_have_the_clusters(weft: Run, tmp_path: Path) -> None:
    file = tmp_path / "cables.csv"
    file.write_text(
        "source_device,source_port,destination_device,destination_port\ngpu1,eth0,leaf1,1\ngpu2,eth0,leaf1,2\n"
    )
    told = "assumed 50 GB/s, the NICs of h100-2, for links without a speed"
    job = ("simulate", "gpt2-124m", "h100-2", "--layout", "dp=2", "--batch", "64", "--fabric", str(file))
    code, out, err = weft(*job)
    assert (code, told in err) == (0, True)
    file.write_text(
        "source_device,source_port,destination_device,destination_port,speed\ngpu1,eth0,leaf1,1,400G\ngpu2,eth0,leaf1,2,400G\n"
    )
    code, same, err = weft(*job)
    assert (code, err) == (0, "")
    assert out == same
    file.write_text(
        "source_device,source_port,destination_device,destination_port\ngpu1,eth0,leaf1,1\ngpu2,eth0,leaf1,2\n"
    )
    code, _, err = weft("route", "--cluster", "h100-2", "--fabric", str(file), "--job", "gpt2-124m dp=2 0")
    assert (code, told in err) == (0, True)
    code, _, err = weft("route", "--fabric", str(file), "--flows", "no.csv")
    assert code == 2
    assert "nothing tells the speed" in err


def test_a_rate_beyond_the_links_of_an_end_is_refused(weft: Run, tmp_path: Path) -> None:
    file = tmp_path / "flows.csv"
    route = ("route", "--cluster", "h100-16", "--flows", str(file))
    file.write_text("source,target,bytes,rate\n0,8,1e9,50 GB/s\n0,1,1e9,450 GB/s\n")
    assert weft(*route)[0] == 0
    file.write_text("source,target,bytes,rate\n0,1,1e9,\n0,8,1e9,900 GB/s\n")
    code, out, err = weft(*route)
    assert (code, out) == (2, "")
    assert f"{file}: line 3: rate: 900 GB/s is more than the 50 GB/s of its ends' links" in err


@pytest.mark.parametrize("cluster", ["h100-16", "mi300x-16"])
@pytest.mark.parametrize("ends", ["0,1,1e9\n1,2,1e9\n", "0,1,1e9\n0,2,1e9\n1,0,1e9\n", "0,1,1e9\n1,8,1e9\n"])
def test_flows_inside_a_domain_are_no_faster_than_alone(weft: Run, tmp_path: Path, cluster: str, ends: str) -> None:
    file = tmp_path / "flows.csv"
    file.write_text(f"source,target,bytes\n{ends}")
    code, out, _ = weft("route", "--cluster", cluster, "--flows", str(file))
    assert code == 0
    assert "no job's communication is slowed down" in out
