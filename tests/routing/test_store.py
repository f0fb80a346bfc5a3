"""The controller's state on disk: go on after any event, alone, with the same fabric, or not at all."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.routing.controller import Controller, Decision, Event
from weft.routing.store import FILE, Store
from weft.routing.traffic import JobTraffic, job_traffic

FABRIC = clos.build(16, radix=4, bandwidth_Bps=50e9, tiers=3)


def job(name: str, shift: int, size: float = 1e9) -> JobTraffic:
    hosts = np.arange(16)
    return job_traffic(hosts, np.roll(hosts, shift), np.full(16, size), names=["ring"], jobs=(name,))


def story() -> list[Event]:
    """Jobs, failures and measurements; some of it moves flows."""
    what = [
        Event(time_s=0, kind="job-arrives", job="a", traffic=job("a", 3)),
        Event(time_s=1, kind="job-arrives", job="b", traffic=job("b", 5, 0.1)),
        Event(time_s=4, kind="link-down", nodes=("leaf-0", "spine-0")),
        Event(time_s=13, kind="switch-down", nodes=("core-1",)),
        Event(time_s=22, kind="traffic", job="c", traffic=job("c", 7)),
        Event(time_s=23, kind="link-up", nodes=("leaf-0", "spine-0")),
        Event(time_s=24, kind="job-ends", job="b"),
        Event(time_s=90, kind="tick"),
        Event(time_s=91, kind="job-arrives", job="b", traffic=job("b", 9)),
        Event(time_s=92, kind="switch-down", nodes=("core-0",)),
        Event(time_s=93, kind="job-ends", job="a"),
    ]
    return [replace(event, text=f"event {number}") for number, event in enumerate(what)]


def tell(controller: Controller, store: Store, events: list[Event]) -> list[Decision]:
    found = []
    for event in events:
        decision = replace(controller.apply(event), solve_s=0.0)
        store.save(event.text, decision, repr(decision))
        found.append(decision)
    return found


def decisions(store: Store) -> list[str]:
    return [text for (text,) in store.base.execute("select decision from decisions order by number")]


@pytest.fixture(scope="module")
def uninterrupted() -> list[Decision]:
    controller = Controller(FABRIC)
    return [replace(controller.apply(event), solve_s=0.0) for event in story()]


@pytest.mark.slow_but(4)
@pytest.mark.parametrize("stop", range(len(story()) + 1))
def test_after_any_prefix_it_goes_on_the_same(tmp_path: Path, uninterrupted: list[Decision], stop: int) -> None:
    events = story()
    first = Controller(FABRIC)
    store = Store(tmp_path, first)
    said = tell(first, store, events[:stop])
    store.close()
    second = Controller(FABRIC)
    store = Store(tmp_path, second)
    assert store.load() == stop
    said += tell(second, store, events[stop:])
    assert said == uninterrupted
    assert decisions(store) == [repr(decision) for decision in uninterrupted]
    assert [store.event(number + 1) for number in range(len(events))] == [event.text for event in events]
    assert store.event(len(events) + 1) == ""
    store.close()


def test_a_copy_taken_at_any_moment_is_whole(tmp_path: Path, uninterrupted: list[Decision]) -> None:
    """What a kill leaves behind: the files as they are while the controller runs."""
    controller = Controller(FABRIC)
    store = Store(tmp_path / "live", controller)
    for number, event in enumerate(story(), start=1):
        tell(controller, store, [event])
        shutil.copytree(tmp_path / "live", tmp_path / str(number))
    store.close()
    for number in range(1, len(story()) + 1):
        other = Controller(FABRIC)
        copy = Store(tmp_path / str(number), other)
        assert copy.load() == number
        assert decisions(copy) == [repr(decision) for decision in uninterrupted[:number]]
        copy.close()


def test_a_decision_that_cannot_be_kept_leaves_the_state_before(tmp_path: Path) -> None:
    controller = Controller(FABRIC)
    store = Store(tmp_path, controller)
    (first,) = tell(controller, store, story()[:1])
    second = controller.apply(story()[1])
    with pytest.raises(BadInput, match="cannot be used"):
        store.save("event", replace(second, number=first.number), "twice the same number")
    store.close()
    other = Controller(FABRIC)
    store = Store(tmp_path, other)
    assert store.load() == 1
    assert set(other.jobs) == {"a"}
    store.close()


def test_one_controller_at_a_time(tmp_path: Path) -> None:
    first = Store(tmp_path, Controller(FABRIC))
    with pytest.raises(BadInput, match="in use by another controller"):
        Store(tmp_path, Controller(FABRIC))
    first.close()
    Store(tmp_path, Controller(FABRIC)).close()


OTHERS = {
    "fabric": Controller(clos.build(16, radix=4, bandwidth_Bps=25e9, tiers=3)),
    "router": Controller(FABRIC, router="repair"),
    "seed": Controller(FABRIC, seed=1),
    "replan_s": Controller(FABRIC, replan_s=1.0),
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_state_of_another_is_refused(tmp_path: Path, what: str) -> None:
    Store(tmp_path, Controller(FABRIC)).close()
    with pytest.raises(BadInput, match=f"state of another {what}"):
        Store(tmp_path, OTHERS[what])
    Store(tmp_path, Controller(FABRIC)).close()


def saved(folder: Path) -> Path:
    controller = Controller(FABRIC)
    store = Store(folder, controller)
    tell(controller, store, story()[:8])
    store.close()
    return folder / FILE


def reload(folder: Path) -> int:
    with closing(Store(folder, Controller(FABRIC))) as store:
        return store.load()


BROKEN = {
    "junk": lambda raw: b"junk" * 1000,
    "cut": lambda raw: raw[: len(raw) // 2 + 100],
    "overwritten": lambda raw: raw[:4096] + b"\xff" * (len(raw) - 4096),
    "header": lambda raw: b"\0" * 100 + raw[100:],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path)
    path.write_bytes(BROKEN[name](path.read_bytes()))

    with pytest.raises(BadInput, match=r"cannot be used|is damaged") as caught:
        reload(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        *(f"update parts set value = '{{}}' where name = '{name}'" for name in ("clock", "health", "traffic a")),
        "update parts set value = x'00' where name = 'links a'",
        "update parts set value = 7 where name = 'links a'",
        "update parts set name = 'links nobody' where name = 'links a'",
        "delete from parts where name = 'clock'",
        "delete from parts",
        "delete from decisions where number = 3",
        "drop table decisions",
    ],
)
def test_broken_values_are_named(tmp_path: Path, change: str) -> None:
    path = saved(tmp_path)
    with closing(sqlite3.connect(path)) as base:
        base.execute(change)
        base.commit()
    with pytest.raises(BadInput, match=r"is damaged: .* -- restore a copy of the folder, or give an empty one"):
        reload(tmp_path)
