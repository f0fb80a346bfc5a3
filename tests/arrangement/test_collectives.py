"""The collectives of arranged jobs: NCCL's best where they are, against closed forms, and the tuner file."""

import pytest

import weft
from weft.arrangement.bundle import read_bundle
from weft.arrangement.collectives import job_collectives
from weft.cluster.calibration import calibration
from weft.collectives.cost import PROTOCOLS, Network

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
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collectives")
    (folder / "site.toml").write_text(SITE)
    path = folder / "arranged.json"
    weft.arrange(folder / "site.toml", budget="1s").save(path)
    return read_bundle(path)


def collectives(bundle, number):
    return job_collectives(bundle.site, number, bundle.placement(number), bundle.choice.router, bundle.routes)


def test_a_ring_on_two_hosts_sends_fifteen_sixteenths_over_the_ports_of_one(bundle):
    one = next(one for one in collectives(bundle, 0) if one.kind == "reduce-scatter")
    assert (one.ranks, one.hosts, one.best.algorithm) == (16, 2, "ring Simple")
    network = Network.of(one.cluster, calibration(bundle.site.cluster.accelerator.name))
    ring_s = one.bytes * 15 / 16 * max(1 / 8 / one.reached_Bps, 1 / network.achieved_Bps[0])
    steps_s = one.best.predicted_s - network.launch_s - ring_s
    assert 0 < steps_s < 15 * (network.latency_s[1] + PROTOCOLS[-1].outside_s)


def test_no_best_is_below_its_bound(bundle):
    for number in range(2):
        for one in collectives(bundle, number):
            assert one.bound_s <= one.best.predicted_s * (1 + 1e-9)


def test_the_prediction_is_the_fastest_of_nccl_where_nothing_contends(bundle):
    inside = [one for one in collectives(bundle, 1) if one.hosts == 1]
    assert inside
    for one in inside:
        assert one.assumed.predicted_s == pytest.approx(one.best.predicted_s)


def test_the_tuner_file_has_the_groups_of_the_job(bundle):
    shapes = {
        tuple(line.split(",")[-2:]) for line in bundle.jobs[1].nccl_tuner.splitlines() if not line.startswith("#")
    }
    groups = {(str(one.hosts), str(one.ranks)) for one in collectives(bundle, 1)}
    assert shapes
    assert shapes <= groups
