"""Site files that cannot be used, and arrangements written and read back."""

import copy
import json
from dataclasses import replace
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.arrangement.bundle import read_bundle
from weft.arrangement.clock import Assignment, Clock
from weft.arrangement.schedule import BINS, circle, turned
from weft.arrangement.site import read_site
from weft.arrangement.template import contracted, template
from weft.commands.app import main
from weft.errors import BadInput, NothingFeasible
from weft.fabric.traffic import Phases
from weft.simulation.iteration.simulate import Graph

EXAMPLE = Path(__file__).parents[2] / "examples" / "site.toml"


def changed(tmp_path, old, new):
    text = EXAMPLE.read_text()
    assert old in text
    path = tmp_path / "site.toml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        ('"host-9"]', '"host-99"]', BadInput, "unknown host 'host-99'"),
        ('"host-9"]', '"host-5"]', BadInput, "host-5 is drained"),
        (
            "weight = 2.0",
            'hosts = ["host-0","host-1","host-3","host-4","host-6","host-8"]',
            BadInput,
            "held by running",
        ),
        ("tp=8,dp=6,sp", "tp=8,dp=12,sp", NothingFeasible, "large needs 12 hosts, 11 are free"),
        ('layout = "ep=8,pp=2,dp=16"', 'layout = "ep=8,pp=2,dp=16"\naccelerators = 64', BadInput, "64"),
        ("classes = 4", "klasses = 4", BadInput, "klasses: is not a known field"),
        ('name = "host-5"', 'name = "spare"\ndomain = 16', BadInput, "the fabric has 16 domains"),
    ],
)
def test_a_site_that_cannot_be_is_refused_with_place_and_remedy(tmp_path, old, new, error, words):
    with pytest.raises(error, match=words):
        read_site(changed(tmp_path, old, new))


def test_a_limit_that_cannot_be_kept_says_the_best_and_writes_nothing(tmp_path, site_file, monkeypatch, capsys):
    jobs = [{"layout": "dp=16", "batch": 32, "hosts": [f"host-{at}" for at in hosts]} for hosts in ((0, 2), (1, 3))]
    path = site_file("a100-32", jobs, radix=20, ratio=8.0, tail=["[limits]", "max_slowdown = 1.0"])
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["weft", "arrange", str(path), "-o", str(out)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 3
    assert "is slowed down" in capsys.readouterr().err
    assert not out.exists()


@pytest.fixture(scope="module")
def written(tmp_path_factory, arranged_site):
    path = tmp_path_factory.mktemp("arranged") / "arranged.json"
    arranged_site.save(path)
    return arranged_site, path


def test_an_arrangement_read_back_keeps_its_promise(written):
    found, path = written
    bundle = read_bundle(path)
    assert bundle.choice == found.best.choice
    assert bundle.site.host_names[:5] == found.site.host_names[:5]
    templates = tuple(template(job, bundle.site.cluster) for job in bundle.site.jobs)
    stepped = Clock(bundle.site, templates, planned_routes=bundle.routes).timed(bundle.choice)
    assert stepped.iteration_s == pytest.approx([job.iteration_s for job in bundle.jobs], rel=1e-9)
    for number, job in enumerate(bundle.site.jobs):
        alone = weft.simulate(arrangement=str(path), job=job.name, full=True)
        assert alone.iteration_s == pytest.approx(bundle.jobs[number].alone_here_s, rel=1e-9)
        row = found.to_dict()["jobs"][number]
        assert row["slurm"]["SLURM_HOSTFILE"].split() == [name for name in row["hosts"] for _ in range(8)]
        assert bundle.jobs[number].nccl_env == row["nccl_env"]


TWO = EXAMPLE.with_name("two-jobs.toml")


@cache
def two_jobs():
    """Two tiny jobs that may share 16 hosts in any way."""
    return weft.arrange(TWO, budget="1s")


@st.composite
def choices(draw):
    hosts = draw(st.permutations(range(16)))
    orders = st.sampled_from([(0, 0), (0, 1), (1, 0)])
    return Assignment(
        hosts=(tuple(hosts[:2]), tuple(hosts[2:4])),
        router=draw(st.sampled_from(["ecmp", "planned", "spray"])),
        offset_s=tuple(draw(st.tuples(*[st.floats(0.0, 10.0)] * 2))),
        order=draw(orders),
    )


@given(choices())
@settings(max_examples=3)
def test_any_arrangement_is_read_back_as_it_was(tmp_path_factory, choice):
    found = two_jobs()
    timed = found.clock.timed(choice)
    one = replace(found, policies={**found.policies, "arrange": timed})
    path = tmp_path_factory.mktemp("any") / "arranged.json"
    one.save(path)
    bundle, document = read_bundle(path), json.loads(path.read_text())
    assert bundle.choice == choice
    assert bundle.classes() == one.classes()
    assert [job.layout for job in bundle.site.jobs] == [job.layout for job in one.site.jobs]
    assert [job.iteration_s for job in bundle.jobs] == timed.iteration_s.tolist()
    rows = []
    for number, row in enumerate(document["jobs"]):
        assert list(bundle.host_names(number)) == row["slurm"]["SLURM_HOSTFILE"].split()
        rows += [flow for rank in bundle.paths(number) for flow in rank]
    written = [] if document["routes"] is None else document["routes"]["flows"]
    assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, written))
    assert (choice.router == "planned") == (bundle.routes is not None)
    assert weft.read(path).to_json() == path.read_text()


DAMAGED = {
    "hosts in another order": (("jobs", 0, "hosts"), lambda old: old[::-1], "not the names of its domains"),
    "a host twice": (("jobs", 0, "hosts"), lambda old: [old[0]] * 2, "not the names of its domains"),
    "a host of two names": (("jobs", 0, "hosts"), lambda old: [old, old[1]], "is not text"),
    "a host too few": (("jobs", 0, "domains"), lambda old: old[:1], "1 hosts of 2 for 4 ranks"),
    "no such host": (("jobs", 1, "domains"), lambda old: [99, 1], "not hosts below 16"),
    "a class too many": (("jobs", 1, "class"), lambda old: 2, "not classes of jobs"),
    "a negative offset": (("jobs", 0, "offset_s"), lambda old: -0.1, "offset_s: -0.1 should be greater"),
    "an offset as text": (("jobs", 0, "offset_s"), str, "offset_s: '0.0' is not a finite number"),
    "no iteration": (("jobs", 0, "iteration_s"), lambda old: 0.0, "iteration_s: 0.0 should be greater"),
    "a name twice": (("jobs", 1, "name"), lambda old: "first", "share a host or a name"),
    "another layout": (("jobs", 0, "layout", "data"), lambda old: 3, "global batch 8"),
    "an unknown setting": (("jobs", 0, "nccl_env"), lambda old: old + "NCCL_FAST=1\n", "NCCL_FAST is not known"),
    "a tuner of words": (("jobs", 0, "nccl_tuner"), lambda old: "fast please\n", "not a line of a tuner file"),
    "a list for SLURM": (("jobs", 0, "slurm", "SLURM_HOSTFILE"), lambda old: "", "SLURM_HOSTFILE: does not list"),
    "no routes": (("routes",), lambda old: None, "routes: are missing"),
    "a broken route": (("routes", "flows", 0, "path"), lambda old: old[:1], "the path does not lead from source"),
    "another router": (("router",), lambda old: "ecmp", "the router is ecmp"),
    "another cluster": (("cluster", "tiers", 0, "size"), lambda old: 4, "cluster|hosts are not those"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_arrangement_is_refused_with_one_message(tmp_path, monkeypatch, capsys, name):
    where, change, words = DAMAGED[name]
    document = planned_document()
    at = document
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = change(at[where[-1]])
    path = tmp_path / "arranged.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=words):
        read_bundle(path)
    monkeypatch.setattr("sys.argv", ["weft", "simulate", "--arrangement", str(path), "--job", "first"])
    with pytest.raises(SystemExit) as stop:
        main()
    told = capsys.readouterr()
    assert (stop.value.code, told.out) == (2, "")
    assert told.err.startswith("Error: ")
    assert "Traceback" not in told.err


def planned_document():
    found = two_jobs()
    choice = Assignment(hosts=((0, 8), (1, 9)), router="planned", offset_s=(0.0, 0.5), order=(1, 0))
    policies = {**found.policies, "arrange": found.clock.timed(choice)}
    return copy.deepcopy(replace(found, policies=policies).to_dict())


def test_contracted_phases_end_when_the_whole_do():
    draw = np.random.default_rng(0)
    for _ in range(30):
        graph = Graph()
        for number in range(12):
            waits = (
                draw.choice(number, min(number, int(draw.integers(0, 3))), replace=False).tolist() if number else []
            )
            graph.add("p", float(draw.choice([0.0, 1.0, 2.5])), waits)
        phases = graph.phases()
        flows = draw.random(12) < 0.3
        left, number = contracted(phases, flows, 11)
        ends = ends_of(left)
        whole = ends_of(phases)
        for phase in [*np.flatnonzero(flows).tolist(), 11]:
            assert ends[number[phase]] == pytest.approx(whole[phase])


def ends_of(phases: Phases) -> dict[int, float]:
    """When phases without flows end, one by one."""
    waits = {i: phases.waits[phases.indptr[i] : phases.indptr[i + 1]].tolist() for i in range(len(phases))}
    ends: dict[int, float] = {}
    for phase in TopologicalSorter(waits).static_order():
        ends[phase] = max((ends[other] for other in waits[phase]), default=0.0) + float(phases.delay_s[phase])
    return ends


def test_circles_of_two_jobs_that_send_half_of_the_time_fit():
    wanted = np.zeros((2, 1, BINS))
    wanted[:, 0, : BINS // 2] = 1.0
    best = circle(wanted, 0)[0]
    assert turned(wanted, best) == 0.0
    assert best.tolist() in ([0, BINS // 2],)
    assert turned(wanted, np.array([0, 0])) == BINS // 2
