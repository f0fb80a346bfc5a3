"""SLURM's jobs and nodes as the JSON of its versions."""

import json

import pytest

from weft.errors import BadInput
from weft.interop.slurm import QueuedJob, read_queue


def jobs(state, number):
    """A job that runs, one that waits and one that has ended, as a version writes states and numbers."""
    rows = [
        {"job_id": 1, "name": "a", "job_state": state("RUNNING"), "nodes": "node[01-02,07]", "node_count": number(3)},
        {"job_id": 2, "name": "b", "job_state": state("PENDING"), "nodes": "", "node_count": number(4)},
        {"job_id": 3, "name": "c", "job_state": state("COMPLETED"), "nodes": "node03", "node_count": number(1)},
    ]
    return {"meta": {"plugin": {}}, "errors": [], "jobs": rows}


def rows_of_sinfo(names, states):
    return {
        "node": {"state": states},
        "nodes": {"allocated": 0, "hostnames": [], "nodes": names},
        "cpus": {"total": 8},
    }


JOBS = [
    jobs(lambda word: word, lambda number: number),  # 22.05
    jobs(lambda word: word, lambda number: {"set": True, "infinite": False, "number": number}),  # 23.02
    jobs(lambda word: [word], lambda number: {"set": True, "infinite": False, "number": number}),  # 23.11 and later
]
NODES = [
    {  # sinfo of 22.05
        "nodes": [
            {"name": "node01", "state": "idle", "state_flags": []},
            {"name": "node02", "state": "mixed", "state_flags": ["DRAIN"]},
            {"name": "node03", "state": "down", "state_flags": ["NOT_RESPONDING"]},
        ]
    },
    {  # scontrol show node since 23.02
        "nodes": [
            {"name": "node01", "state": ["IDLE"]},
            {"name": "node02", "state": ["MIXED", "DRAIN"]},
            {"name": "node03", "state": ["DOWN", "NOT_RESPONDING"]},
        ]
    },
    {  # sinfo since 23.02: a row is what nodes of a partition have in common
        "sinfo": [
            rows_of_sinfo(["node01"], ["IDLE"]),
            rows_of_sinfo(["node02", "node03"], ["MIXED", "DRAIN"]),
            rows_of_sinfo(["node01"], ["IDLE"]),
            rows_of_sinfo([], []),
        ]
    },
]


@pytest.mark.parametrize("document", JOBS, ids=["22.05", "23.02", "23.11"])
def test_jobs(document):
    queue = read_queue(json.dumps(document))
    assert queue.jobs == (QueuedJob("a", 1, ("node01", "node02", "node07"), 3), QueuedJob("b", 2, (), 4))
    assert queue.nodes == {}


@pytest.mark.parametrize("document", NODES, ids=["22.05", "scontrol", "sinfo"])
def test_nodes(document):
    queue = read_queue(json.dumps(document))
    assert queue.jobs == ()
    assert queue.nodes == {"node01": True, "node02": False, "node03": False}


@pytest.mark.parametrize(
    ("states", "nodes", "count"),
    [
        ("SUSPENDED", ("n1",), 1),
        ("CONFIGURING", ("n1",), 1),
        (["RUNNING", "CONFIGURING"], ("n1",), 1),
        (["PENDING", "REQUEUED"], (), 2),
        (["COMPLETED", "COMPLETING"], None, None),
        ("CANCELLED", None, None),
    ],
)
def test_which_jobs_hold_nodes_or_wait(states, nodes, count):
    row = {"job_id": 7, "name": "x", "job_state": states, "nodes": "n1", "node_count": 2}
    found = read_queue(json.dumps({"jobs": [row]})).jobs
    assert found == (() if nodes is None else (QueuedJob("x", 7, nodes, count),))


@pytest.mark.parametrize("number", [None, 0, -1, "4", {"set": False, "infinite": False, "number": 4}, 10**12])
def test_a_job_without_a_number_of_nodes(number):
    row = {"job_id": 7, "name": "x", "job_state": "PENDING", "node_count": number}
    assert read_queue(json.dumps({"jobs": [row]})).jobs == (QueuedJob("x", 7, (), 0),)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"statistics": {}}, "neither jobs nor nodes"),
        ([], "neither jobs nor nodes"),
        ({"jobs": [3]}, r"jobs\[0\]: is not a table"),
        ({"jobs": [{"job_id": 1, "name": "a", "state": {"current": "RUNNING"}}]}, "job_state.*squeue --json"),  # sacct
        ({"jobs": [{"job_id": 1, "job_state": "RUNNING"}]}, "no name"),
        ({"jobs": [{"job_id": 1, "name": "a", "job_state": "RUNNING", "nodes": ""}]}, "names no nodes"),
        ({"jobs": [{"job_id": 1, "name": "a", "job_state": "RUNNING", "nodes": "n[1-"}]}, "brackets"),
        ({"nodes": [{"name": "n1"}]}, r"nodes\[0\]: state"),
        ({"sinfo": [{"node": {"state": ["IDLE"]}}]}, "names no nodes"),
    ],
)
def test_documents_that_do_not_serve(document, words):
    with pytest.raises(BadInput, match=words):
        read_queue(json.dumps(document), where="file.json")
