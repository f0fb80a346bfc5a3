"""Failure files, presets, and what a fabric makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.cluster import resolve
from weft.errors import BadInput
from weft.fabric.catalogue import for_cluster
from weft.fabric.cost import bill
from weft.fabric.cost import preset as prices
from weft.reliability.classes import FailureClass, failures_from_toml, preset, read_failures
from weft.reliability.job import (
    Policy,
    broken,
    census,
    failing_job,
    hosts_taken,
    parse_policy,
    parts_of,
    stranded_accelerators,
    switches_of,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = 'schema = "weft.failures/1"\n'


def test_llama_3_has_table_5():
    """466 interruptions in 1,296 hours, on Meta's own numbers of parts."""
    parts = {
        "accelerator": 16384,
        "nic": 16384,
        "access-link": 16384,
        "fabric-link": 18725,
        "host": 2048,
        "leaf": 1024,
        "spine": 171,
        "core": 0,
        "job": 1,
    }
    book = preset("llama-3")
    events = {one.name: one.rate(parts[one.component], 16384) * 1296 * 3600 for one in book.classes}
    known = {"gpu": 148, "hbm": 72, "gpu-other": 48, "nic": 7, "host": 14, "host-maintenance": 32, "software": 63}
    for name, count in known.items():
        assert events[name] == pytest.approx(count, rel=1e-3), name
    assert sum(events[name] for name in ("access-link", "fabric-link", "leaf", "spine", "core")) == pytest.approx(
        35, rel=1e-3
    )
    assert events["planned"] == pytest.approx(47, rel=1e-3)
    assert sum(events.values()) == pytest.approx(466, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "accelerators", "hours"),
    [("rsc-1", 16384, 1.8), ("rsc-1", 131072, 0.23), ("opt-175b", 992, 1440 / 105), ("bloom", 400, 168 / 1.5)],
)
def test_presets_fail_as_often_as_published(name, accelerators, hours):
    (one,) = preset(name).classes
    parts = accelerators if one.component == "accelerator" else accelerators / 8
    assert 1 / one.rate(parts, accelerators) / 3600 == pytest.approx(hours, rel=0.03)


def test_a_file_changes_its_preset():
    book, base = read_failures(EXAMPLES / "failures.toml"), preset("llama-3")
    assert book.name == "our cluster"
    assert {one.name for one in book.classes} == {one.name for one in base.classes} | {"optics", "flap", "rack-power"}
    known = {one.name: one for one in book.classes}
    assert known["gpu"].mtbf_hours == 90_000
    assert known["hbm"] == next(one for one in base.classes if one.name == "hbm")
    assert book.recovery.write_Bps(100) == 2e11
    assert book.recovery.start(2000) == 110.0


CLASS = '[classes.a]\ncomponent = "host"\nmtbf_hours = 10\n'


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("mtbf_hours = 50.0\nrepair_hours = 100.0", "in repair for 100 hours of each 50"),
        ("failures_per_accelerator_hour = 0.1\nrepair_hours = 10.5", "in repair for 10.5 hours of each 10"),
        ("mtbf_hours = 50.0\nrepair_hours = 200.0\nheals = 0.7", "in repair for 60 hours of each 50"),
    ],
)
def test_repairs_longer_than_the_time_between_failures_are_refused(fields, told):
    text = f'{HEAD}[classes.gpu]\ncomponent = "accelerator"\n{fields}\n'
    with pytest.raises(BadInput, match=rf"classes.gpu.repair_hours: .*{told}"):
        failures_from_toml(text)
    assert failures_from_toml(text + "heals = 0.99\n" if "heals" not in fields else text.replace("0.7", "0.8"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "schema: is missing"),
        ('schema = "weft.plan/1"\n' + CLASS, "schema"),
        (HEAD, "there is no class"),
        (HEAD + CLASS.replace("mtbf_hours = 10\n", ""), "classes.a: needs mtbf_hours or"),
        (HEAD + CLASS + "failures_per_accelerator_hour = 1e-6\n", "not both"),
        (HEAD + CLASS + "mtbf_hour = 3\n", "did you mean mtbf_hours"),
        (HEAD + CLASS.replace("10", "-1"), "mtbf_hours"),
        (HEAD + CLASS + "heals = 2\n", "heals"),
        (HEAD + CLASS + 'takes = "fabric"\n', "host is not a part of a fabric"),
        (HEAD + CLASS.replace("host", "job"), "a job takes no host"),
        (HEAD + 'like = "llama"\n' + CLASS, "failure preset"),
        (HEAD + "[recovery]\ndetect_s = -5\n" + CLASS, "detect_s"),
    ],
)
def test_files_that_cannot_be_used(text, told):
    with pytest.raises(BadInput, match=told):
        failures_from_toml(text)


@pytest.mark.parametrize(
    ("text", "policy"),
    [("restart", Policy()), ("shrink, peer,async", Policy(shrink=True, peer=True, background=True))],
)
def test_policies(text, policy):
    assert parse_policy(text) == policy == parse_policy(str(policy))


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized", "fat-tree"])
def test_parts_are_those_of_the_bill(kind):
    fabric = for_cluster(kind, resolve("h100-1024"))
    counted, priced = census(fabric, 1024), bill(fabric, prices("rail-only-v5"))
    assert counted.counts["access-link"] + counted.counts["fabric-link"] == priced.cables
    assert sum(counted.counts[switch] for switch in ("leaf", "spine", "core")) == priced.switches
    assert counted.counts["nic"] == priced.nics
    assert counted.counts["host"] == 128
    assert census(fabric, 512).counts["nic"] == priced.nics / 2


def the(component: str, takes: str, **more: float) -> FailureClass:
    return FailureClass(name="one", component=component, takes=takes, mtbf_hours=1e5, **more)  # type: ignore[arg-type]


def test_the_radius_of_a_blast_is_the_networks():
    """A leaf of a fat-tree takes the hosts under it; a rail's switch takes none, since peers of the domain forward."""
    cluster = resolve("h100-1024")
    tree, rails = for_cluster("fat-tree", cluster), for_cluster("rail-only", cluster)
    assert hosts_taken(tree, the("leaf", "fabric"), 8) == 4
    assert hosts_taken(rails, the("leaf", "fabric"), 8) == 0
    assert hosts_taken(tree, the("spine", "fabric"), 8) == 0
    assert hosts_taken(tree, the("leaf", "leaf"), 8) == 4
    assert hosts_taken(rails, the("leaf", "leaf"), 8) == 32
    assert hosts_taken(rails, the("leaf", "rail"), 8) == 128
    assert hosts_taken(tree, the("host", "host"), 8) == 1
    assert hosts_taken(tree, the("leaf", "fabric", capacity=0.5), 8) == 0


def test_broken_parts():
    fabric = for_cluster("fat-tree", resolve("h100-64"))
    (link, *_) = parts_of(fabric, "access-link")
    half = broken(fabric, [("access-link", int(link), 0.5)])
    changed = np.flatnonzero(half.capacity_Bps != fabric.capacity_Bps)
    assert {(int(half.source[i]), int(half.target[i])) for i in changed} == {
        (int(fabric.source[link]), int(fabric.target[link])),
        (int(fabric.target[link]), int(fabric.source[link])),
    }
    assert np.allclose(half.capacity_Bps[changed], fabric.capacity_Bps[changed] / 2)
    (switch, *_) = switches_of(fabric, "leaf")
    dead = broken(fabric, [("leaf", int(switch), 0.0)])
    assert not dead.up[(dead.source == switch) | (dead.target == switch)].any()
    assert len(stranded_accelerators(broken(fabric, [("access-link", int(link), 0.0)]))) == 0


def test_one_of_parallel_cables_fails():
    fabric = for_cluster("fat-tree", resolve("h100-1024"))
    link = int(parts_of(fabric, "fabric-link")[0])
    ends = fabric.source[link], fabric.target[link]
    beside = np.flatnonzero((fabric.source == ends[0]) & (fabric.target == ends[1]))
    assert len(beside) == 2
    both = [link, int(fabric.reverse[link])]
    gone = broken(fabric, [("fabric-link", link, 0.0)])
    assert np.flatnonzero(~gone.up).tolist() == sorted(both)
    slow = broken(fabric, [("fabric-link", link, 0.5)])
    assert np.flatnonzero(slow.capacity_Bps < fabric.capacity_Bps).tolist() == sorted(both)


def job(policy: str = "restart", name: str = "llama-3", kind: str = "rail-optimized"):
    cluster = resolve("h100-1024")
    fabric = for_cluster(kind, cluster)
    return failing_job(preset(name), parse_policy(policy), cluster, fabric, accelerators=1024, checkpoint_bytes=1e12)


def test_restarts_and_savings_by_policy():
    plain, hot = job().process(2), job("restart,hot").process(2)
    times = preset("llama-3").recovery
    by_name = {one.name: one for one in plain.stops if one.hosts}
    load_s = 1e12 / (1024 * times.storage_Bps_per_accelerator)
    expected = times.detect_s + times.swap_s + times.start(1024) + load_s
    assert by_name["host"].restart_s == pytest.approx(expected)
    assert next(one for one in hot.stops if one.name == "host").restart_s == pytest.approx(expected - times.swap_s)
    assert job().saving.storage_s == pytest.approx(load_s)
    background = job("restart,async").saving
    assert background.lag_s == pytest.approx(load_s)
    assert background.storage_s < load_s / 10
    peers = job("restart,peer")
    assert peers.saving.stall_s == pytest.approx(1e12 / 1024 / 50e9)
    assert not any(one.severe for one in peers.process(2).stops if one.hosts <= 1)


def test_rates_of_a_process_are_those_of_the_classes():
    """What heals restarts without a repair; a link that is routed around stops nothing."""
    found = job()
    process = found.process(3)
    for one in found.classes:
        stops = [stop for stop in process.stops if stop.name == one.known.name]
        if one.known.planned:
            assert not stops
        else:
            assert sum(stop.rate for stop in stops) == pytest.approx(one.rate)
        lasting = sum(stop.rate for stop in stops if stop.hosts)
        if one.hosts:
            assert lasting == pytest.approx(one.rate * (1 - one.known.heals))
    rerouted = {stop.name for stop in job("restart,reroute").process(3).stops}
    assert {"access-link", "fabric-link", "leaf", "spine"} & rerouted == set()
    assert {"gpu", "software", "nic"} <= rerouted
