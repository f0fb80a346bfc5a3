"""The collectives of arranged jobs: what is best where they are, against closed forms, and the files for it."""

from xml.etree import ElementTree

import pytest

import weft
from weft.arrangement.bundle import read_bundle
from weft.arrangement.collectives import SPAN, Prediction, msccl_text

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
    one = next(one for one in bundle.collectives(0) if one.kind == "reduce-scatter")
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
        for one in bundle.collectives(number):
            assert one.bound_s <= one.best.predicted_s * (1 + 1e-9)
            assert one.best.predicted_s <= min(one.nccl.values())
            if one.timed is not None:
                assert one.shares_bound_s <= one.scheduled_s * (1 + 1e-9)
            if one.schedule_is_best:
                assert one.best == Prediction(f"schedule {one.timed.schedule.policy}", one.scheduled_s)


def test_the_prediction_is_the_fastest_of_nccl_where_nothing_contends(bundle):
    for one in bundle.collectives(1):
        if one.hosts == 1:
            assert one.assumed.predicted_s == pytest.approx(min(one.nccl.values()))


def test_xml_is_for_sizes_around_that_of_the_collective(bundle):
    better = [one for one in bundle.collectives(0) if one.schedule_is_best]
    assert better
    for one in better:
        head = ElementTree.fromstring(msccl_text(one)).attrib
        assert int(head["ngpus"]) == one.ranks
        assert one.bytes / SPAN <= int(head["minBytes"]) < one.bytes < int(head["maxBytes"]) <= one.bytes * SPAN
    flat = [one for one in bundle.collectives(1) if not one.schedule_is_best]
    assert [msccl_text(one) for one in flat] == [None] * len(flat)


def test_the_tuner_file_has_the_groups_of_the_job(bundle):
    shapes = {
        tuple(line.split(",")[-2:]) for line in bundle.jobs[1].nccl_tuner.splitlines() if not line.startswith("#")
    }
    groups = {(str(one.hosts), str(one.ranks)) for one in bundle.collectives(1)}
    assert shapes
    assert shapes <= groups
