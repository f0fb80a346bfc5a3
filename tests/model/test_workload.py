"""Workloads: what a list of tasks must not be, and who waits for whom."""

import math

import pytest

from weft.errors import BadInput
from weft.model.workload import Communication, Task, Workload


def workload(*waits, **task):
    tasks = tuple(Task(name=f"task {i}", waits=others, **task) for i, others in enumerate(waits))
    return Workload(name="work", tasks=tasks)


def test_computation_is_added_up():
    tasks = (Task(name="a", seconds=1.5), Task(name="b", seconds=0.25), Task(name="c"))
    assert Workload(name="work", tasks=tasks).compute_s == 1.75


def test_no_tasks():
    with pytest.raises(BadInput, match="work: has no tasks"):
        Workload(name="work", tasks=())


@pytest.mark.parametrize("waits", [((1,),), ((-1,),), ((), (0, 2)), ((), (10**9,))])
def test_waits_for_nobody(waits):
    with pytest.raises(BadInput, match=r"work: task \d+ \(task \d+\): waits for a task that does not exist"):
        workload(*waits)


@pytest.mark.parametrize(("waits", "number"), [(((), (2,), (1,)), 1), (((0,),), 0), (((), (3,), (1,), (2,)), 1)])
def test_the_message_names_a_task_of_the_circle(waits, number):
    with pytest.raises(BadInput, match=rf"task {number} \(task {number}\): tasks wait for each other in a circle"):
        workload(*waits)


@pytest.mark.parametrize("seconds", [-1e-9, -math.inf, math.inf, math.nan, 1e9])
def test_seconds_that_cannot_be(seconds):
    with pytest.raises(BadInput, match="takes"):
        workload((), seconds=seconds)


@pytest.mark.parametrize("bytes_", [-1.0, math.inf, math.nan, 1e18])
def test_bytes_that_cannot_be(bytes_):
    with pytest.raises(BadInput, match="moves"):
        workload((), communication=Communication(kind="all-reduce", bytes=bytes_))


def test_a_task_does_not_compute_and_communicate():
    with pytest.raises(BadInput, match="two tasks"):
        workload((), seconds=1.0, communication=Communication(kind="barrier", bytes=0.0))


def test_a_long_chain_is_no_deep_recursion():
    assert len(workload((), *((i,) for i in range(20_000))).tasks) == 20_001
