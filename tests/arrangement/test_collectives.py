"""The collectives of arranged jobs: what is best where they are, against closed forms, and the files for it."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import weft
from weft.arrangement.bundle import read_bundle
from weft.arrangement.collectives import SPAN, Prediction, msccl_text
from weft.commands.app import main
from weft.errors import BadInput, UnknownName

SITE = """schema = "weft.site/1"
name = "two hosts apart"
cluster = "h100-64"
fabric = "fat-tree"
radix = 32
oversubscription = [4.0]
[[jobs]]
name = "flat"
model = "llama-3.1-8b"
layout = "dp=16"
batch = 16
hosts = ["host-0", "host-4"]
[[jobs]]
name = "cut"
model = "llama-3.1-8b"
layout = "tp=8,dp=2,sp"
batch = 16
hosts = ["host-1", "host-5"]
"""


@pytest.fixture(scope="module")
def arranged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collectives")
    (folder / "site.toml").write_text(SITE)
    path = folder / "arranged.json"
    weft.arrange(folder / "site.toml", budget="1s").save(path)
    return path


@pytest.fixture(scope="module")
def bundle(arranged):
    return read_bundle(arranged)


def test_a_schedule_on_two_hosts_sends_what_the_hierarchy_must(bundle):
    """Reduced inside hosts first, a NIC sends half of an eighth of the buffer; in NCCL's ring 15/16 of an eighth."""
    one = bundle.schedules(0).of("reduce-scatter", None)
    assert (one.ranks, one.hosts, [part.size for part in one.dimensions]) == (16, 2, [8, 2])
    assert one.timed is not None
    assert one.reached_Bps is not None
    inside_s = one.bytes * 7 / 8 / one.dimensions[0].bandwidth_Bps
    outside_s = one.bytes / 16 / one.reached_Bps
    assert one.timed.time_s >= max(inside_s, outside_s)
    assert one.timed.time_s <= 1.05 * (inside_s + outside_s)
    ring_s = max(one.bytes * 15 / 16 / 8 / one.reached_Bps, one.bytes * 15 / 16 / one.dimensions[0].bandwidth_Bps)
    steps_s = one.nccl["ring Simple"] - one.launch_s - ring_s
    assert 0 < steps_s < 15 * one.dimensions[1].latency_s


def test_no_best_is_below_its_bound_or_worse_than_nccl(bundle):
    for number in range(2):
        for one in bundle.schedules(number).collectives:
            assert one.bound_s <= one.best.predicted_s * (1 + 1e-9)
            assert one.best.predicted_s <= min(one.nccl.values())
            if one.timed is not None:
                assert one.shares_bound_s <= one.scheduled_s * (1 + 1e-9)
            if one.schedule_is_best:
                assert one.best == Prediction(f"schedule {one.timed.schedule.policy}", one.scheduled_s)


def test_the_prediction_is_the_fastest_of_nccl_where_nothing_contends(bundle):
    for one in bundle.schedules(1).collectives:
        if one.hosts == 1:
            assert one.assumed.predicted_s == pytest.approx(min(one.nccl.values()))


def test_xml_is_for_sizes_around_that_of_the_collective(bundle):
    better = [one for one in bundle.schedules(0).collectives if one.schedule_is_best]
    assert better
    for one in better:
        head = ElementTree.fromstring(msccl_text(one)).attrib
        assert int(head["ngpus"]) == one.ranks
        assert one.bytes / SPAN <= int(head["minBytes"]) < one.bytes < int(head["maxBytes"]) <= one.bytes * SPAN
    flat = [one for one in bundle.schedules(1).collectives if not one.schedule_is_best]
    assert [msccl_text(one) for one in flat] == [None] * len(flat)


def test_the_tuner_file_has_the_groups_of_the_job(bundle):
    shapes = {tuple(line.split(",")[-2:]) for line in bundle.tuners[1].splitlines() if not line.startswith("#")}
    groups = {(str(one.hosts), str(one.ranks)) for one in bundle.schedules(1).collectives}
    assert shapes
    assert shapes <= groups


def test_one_collective_is_scheduled_by_name(arranged, bundle):
    given = {"arrangement": str(arranged), "job": "flat"}
    one = bundle.schedules(0).of("reduce-scatter", "data")
    found = weft.schedule("reduce-scatter", "data", **given)
    assert found.timed.schedule.request.bytes == one.bytes
    assert found.time_s <= one.timed.time_s * (1 + 1e-9)
    assert found.bound_s + one.launch_s == pytest.approx(one.shares_bound_s)
    with pytest.raises(UnknownName, match="unknown collective"):
        weft.schedule("broadcast", **given)
    with pytest.raises(BadInput, match="--dims does not go with --arrangement"):
        weft.schedule("reduce-scatter", dims="switch:8:1GB/s:1us", **given)


def test_files_of_a_job_are_there_and_name_each_other(arranged, tmp_path, monkeypatch, capsys):
    words = ["launch", "--arrangement", str(arranged), "--job", "flat", "--start-at", "1795415400"]
    monkeypatch.setattr(
        "sys.argv", ["weft", *words, "--files", str(tmp_path / "flat"), "-o", str(tmp_path / "run.sh")]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    told = capsys.readouterr().err
    settings = (tmp_path / "flat" / "nccl.env").read_text()
    tuner = re.search("^NCCL_TUNER_CONFIG_FILE=(.*)$", settings, re.MULTILINE)[1]
    assert Path(tuner).read_text() == read_bundle(arranged).tuners[0]
    schedules = re.search("^MSCCL_XML_FILES=(.*)$", (tmp_path / "flat" / "msccl.env").read_text(), re.MULTILINE)[1]
    for path in schedules.split(":"):
        assert ElementTree.parse(path).getroot().tag == "algo"
    assert (tmp_path / "flat" / "hostfile").read_text() == "host-0 slots=8\nhost-4 slots=8\n"
    assert "begin the first step at 2026-11-23T06:30:00" in told
