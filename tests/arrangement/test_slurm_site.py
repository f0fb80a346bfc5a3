"""Sites whose hosts and jobs SLURM knows."""

import json

import pytest

from weft.arrangement.site import read_site
from weft.errors import BadInput, NothingFeasible, UnknownName

TOPOLOGY = """\
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[1-4]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[5-8]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[0-1]
"""
HEAD = """\
schema = "weft.site/1"
name = "site"
cluster = "h100-64"
fabric = "topology.conf"
oversubscription = [4.0]
slurm = ["jobs.json", "nodes.json"]
"""


def job(number, name, state, nodes="", count=None):
    return {"job_id": number, "name": name, "job_state": state, "nodes": nodes, "node_count": count}


RUNS = [job(1, "a", "RUNNING", "n[3,5]"), job(2, "b", "PENDING", count=2), job(3, "else", "RUNNING", "n8")]
A = {"name": "a", "layout": "tp=8,dp=2"}
B = {"name": "b", "layout": "tp=8"}


@pytest.fixture
def site(tmp_path):
    """Writes a site beside what SLURM says, and reads it."""

    def read(*entries, jobs=RUNS, out=(), tail="", head=HEAD):
        nodes = [{"name": f"n{i}", "state": ["MIXED", "DRAIN"] if i in out else ["IDLE"]} for i in range(1, 9)]
        (tmp_path / "topology.conf").write_text(TOPOLOGY)
        (tmp_path / "jobs.json").write_text(json.dumps({"jobs": list(jobs)}))
        (tmp_path / "nodes.json").write_text(json.dumps({"nodes": nodes}))
        lines = [head, tail]
        for entry in entries:
            fields = {"model": "llama-3.1-8b", "batch": 144} | entry
            lines += ["[[jobs]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
        path = tmp_path / "site.toml"
        path.write_text("\n".join(lines) + "\n")
        return read_site(path)

    return read


def names(site, number):
    return [site.host_names[host] for host in site.jobs[number].hosts]


def test_a_topology_of_another_size_is_refused(site):
    with pytest.raises(BadInput, match="fabric: has 64 accelerators, h100-128 128"):
        site(A, B, head=HEAD.replace("h100-64", "h100-128"))


def test_jobs_have_the_hosts_and_the_size_that_slurm_says(site):
    found = site(A | {"may": "reorder"}, B | {"may": "reorder"})
    assert found.host_names == tuple(f"n{i}" for i in range(1, 9))
    assert (names(found, 0), found.jobs[0].may) == (["n3", "n5"], "reorder")
    assert (found.jobs[1].hosts, found.jobs[1].may, found.jobs[1].layout.world) == ((), "move", 16)
    assert [name for name, up in zip(found.host_names, found.usable, strict=True) if not up] == ["n8"]


def test_without_a_layout_weft_chooses_for_as_many_hosts(site):
    found = site({"name": "a"}, {"name": "b"})
    assert [(job.cut, job.layout.world, job.domains) for job in found.jobs] == [("choose", 16, 2), ("choose", 16, 2)]


def test_a_draining_node_is_up_for_a_job_that_stays_there(site):
    assert site(A, out=(3, 6)).usable == (True, True, True, True, True, False, True, False)
    assert site(A | {"may": "move"}, out=(3, 6)).usable == (True, True, False, True, True, False, True, False)


def test_a_job_may_be_unknown_to_slurm_or_name_its_hosts_in_rank_order(site):
    found = site(A | {"hosts": ["n5", "n3"]}, {"name": "new", "layout": "tp=8,dp=3"})
    assert names(found, 0) == ["n5", "n3"]
    assert found.jobs[1].domains == 3


def test_the_site_may_say_how_large_a_job_is(site):
    found = site(B | {"accelerators": 8}, jobs=[job(2, "b", "PENDING")])
    assert (found.jobs[0].domains, found.jobs[0].layout.world) == (1, 8)


def test_nodes_that_slurm_does_not_list_are_missing(site, tmp_path):
    site(A)
    (tmp_path / "nodes.json").write_text(json.dumps({"nodes": [{"name": "n3", "state": "idle"}]}))
    assert read_site(tmp_path / "site.toml").usable == tuple(name in ("n3", "n5") for name in site(A).host_names)


@pytest.mark.parametrize(
    ("entries", "jobs", "error", "words"),
    [
        ([A], [*RUNS, job(9, "a", "PENDING", count=2)], BadInput, "jobs 1 and 9 are both called a"),
        ([B], [job(2, "b", "PENDING")], BadInput, r"job 2 \(b\) does not say how many nodes"),
        ([A], [job(1, "a", "RUNNING", "n[3,9]")], UnknownName, "n9"),
        ([B | {"layout": "tp=8,dp=4"}], RUNS, BadInput, "= 32, but there are 16 accelerators"),
        ([A | {"layout": "tp=8,dp=4"}], RUNS, BadInput, "= 32, but there are 16 accelerators"),
        ([B], [job(2, "b", "PENDING", count=9)], NothingFeasible, "needs 9 hosts"),
    ],
)
def test_what_does_not_fit_together(site, entries, jobs, error, words):
    with pytest.raises(error, match=words):
        site(*entries, jobs=jobs)
