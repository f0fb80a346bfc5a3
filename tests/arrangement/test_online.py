"""A site from event to event: who gives way, who waits, what is kept, and that it goes on the same after a restart."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from online_sites import STORY, arrival, events, idle_site, other

from weft.arrangement.clock import Clock
from weft.arrangement.online import ALIKE, Decision, Occupancy, Seat, SiteController
from weft.arrangement.sharing import POLICIES
from weft.errors import BadInput
from weft.fabric.traffic import joined

HASHED = POLICIES[0]
WINDOW = 1e-2
"""What the window of stepped iterations can change of a slowdown, as in the tests of the search."""


def decided(site, lines):
    controller = SiteController(site)
    return controller, [controller.apply(event) for event in events(site, lines)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> list[Decision]:
    return decided(idle_site(tmp_path_factory.mktemp("site")), STORY)[1]


def said(decision: Decision) -> list[tuple[str, str]]:
    """Who came, went, waits or moved."""
    return [(change.job, change.what) for change in decision.changes if change.what != "retimed"]


def test_the_story(tmp_path):
    site = idle_site(tmp_path)
    controller, found = decided(site, STORY)
    assert [said(one) for one in found[:7]] == [
        [("a", "placed")],
        [("b", "placed")],
        [("c", "waits")],
        [("d", "placed")],
        [("a", "evicted"), ("c", "placed")],
        [("b", "ended"), ("a", "placed")],
        [("a", "moved")],
    ]
    by_event = [{change.job: change for change in one.changes} for one in found]
    assert by_event[2]["c"].why == "needs 4 hosts, 2 are free"
    assert by_event[4]["a"].why == "host-1 is down; needs 7 hosts, 6 are free"
    assert by_event[6]["a"].why.startswith("its hosts are cut off from each other; 7 hosts in ")
    assert found[1].objective < float(by_event[1]["b"].why.split("ECMP ")[1])
    assert found[4].waiting == ("a",)
    assert [one.free for one in found[:6]] == [9, 2, 2, 0, 2, 2]
    for before, after in pairwise(found):
        assert after.number == before.number + 1
    assert controller.held.jobs.keys() == {"a", "c", "d", "e"}


def test_a_job_goes_where_it_leaves_room_for_others(tmp_path):
    """Leaves hold six, six and four: four hosts go to the last, six to the second."""
    site = idle_site(tmp_path)
    _, found = decided(site, [arrival("a", 4, 0), arrival("b", 4, 1), arrival("c", 6, 2)])
    assert [one.changes[0].seat.hosts for one in found] == [(12, 13, 14, 15), (0, 1, 2, 3), (6, 7, 8, 9, 10, 11)]


def test_jobs_of_the_site_run_from_the_start_and_stay(tmp_path):
    held = '[[jobs]]\nname = "old"\nmodel = "gpt2-124m"\nlayout = "dp=16"\nbatch = 16\nhosts = ["host-3", "host-9"]\n'
    site = idle_site(tmp_path, jobs=held)
    controller, found = decided(site, [arrival("a", 14, 0), arrival("b", 1, 1), other("job-ends", 2, job="old")])
    seats = {change.job: change.seat for change in found[0].changes}
    assert set(seats["a"].hosts) == set(range(16)) - {3, 9}
    assert said(found[1]) == [("b", "waits")]
    assert [what for _, what in said(found[2])][:2] == ["ended", "placed"]
    with pytest.raises(BadInput, match="old has no hosts"):
        Occupancy(idle_site(tmp_path, jobs=held.replace('hosts = ["host-3", "host-9"]\n', "")))
    assert controller.count == 3


def test_a_limit_makes_a_job_wait(tmp_path):
    site = idle_site(tmp_path, limit="[limits]\nmax_slowdown = 1.0001", ratio=16.0)
    _, found = decided(site, [arrival("a", 4, 0), arrival("b", 7, 1)])
    assert said(found[0]) == [("a", "placed")]
    change = found[1].changes[0]
    assert change.what == "waits"
    assert change.why.startswith("would slow ")
    assert change.why.endswith(", above max_slowdown 1.0001")


def test_spares_stay_free(tmp_path):
    site = idle_site(tmp_path, limit="[limits]\nspares = 4")
    controller, found = decided(site, [arrival("a", 10, 0), arrival("b", 3, 1), arrival("c", 2, 2)])
    assert [said(one) for one in found] == [[("a", "placed")], [("b", "waits")], [("c", "placed")]]
    assert found[1].changes[0].why == "needs 3 hosts, 6 are free, of which 4 stay spare"
    assert len(controller.held.free()) == 4


@pytest.mark.parametrize("goal", ["makespan", "utilization"])
def test_objectives_of_jobs_that_are_all_known_are_refused(tmp_path, goal):
    with pytest.raises(BadInput, match=f"{goal} is of jobs that are all known"):
        Occupancy(idle_site(tmp_path, limit=f'[objective]\nkind = "{goal}"'))


BAD = {
    "no layout": (
        '{"time_s": 1e6, "event": "job-arrives", "job": "z", "model": "gpt2-124m", "accelerators": 8, "batch": 8}',
        "z has no layout",
    ),
    "unknown host": (other("host-down", 1e6, host="host-99"), "host"),
    "host that is up": (other("host-up", 1e6, host="host-3"), "host-3 is not down"),
    "unknown switch": (other("switch-down", 1e6, switch="nowhere"), "is no node of"),
    "no link": (other("link-down", 1e6, link=["leaf-0", "leaf-1"]), "share no link"),
    "link that is up": (other("link-up", 1e6, link=["leaf-1", "spine-0"]), "is not down"),
    "duplicate job": (arrival("c", 1, 1e6), "'c' is there already"),
    "unknown job": (other("job-ends", 1e6, job="z"), "z"),
    "too large": (arrival("z", 17, 1e6), "needs 17 hosts, the site has 16 for jobs"),
    "taken hosts": (arrival("z", 1, 1e6, hosts=["host-2"]), "host-2 is not free"),
    "out of order": (arrival("z", 1, 0), "comes after"),
}


def test_bad_events_change_nothing(tmp_path, uninterrupted):
    site = idle_site(tmp_path)
    controller, found = decided(site, STORY[:9])
    before = controller.held.copied()
    for name, (line, message) in BAD.items():
        with pytest.raises(BadInput, match=message):
            controller.apply(events(site, [line])[0])
        assert (name, controller.count, controller.now_s) == (name, 9, 960.0)
        assert controller.held.copied() == before
    assert found + [controller.apply(one) for one in events(site, STORY[9:])] == uninterrupted


def drawn(seed: int) -> list[str]:
    """Random arrivals, ends and failures."""
    draw = np.random.default_rng(seed)
    lines, alive, dead = [], [], []
    for number in range(12):
        kind, at = draw.random(), float(number)
        if kind < 0.55 or not alive:
            alive.append(f"job-{number}")
            hosts = int(draw.integers(1, 8))
            lines.append(arrival(alive[-1], hosts, at, 8 * hosts * int(draw.integers(1, 3))))
        elif kind < 0.75:
            lines.append(other("job-ends", at, job=alive.pop(int(draw.integers(len(alive))))))
        elif kind < 0.9 or not dead:
            dead.append(f"host-{int(draw.integers(16))}")
            lines.append(other("host-down", at, host=dead[-1]))
            dead = list(dict.fromkeys(dead))
        else:
            lines.append(other("host-up", at, host=dead.pop()))
    return lines


@pytest.mark.slow_but(3)
@pytest.mark.parametrize("seed", range(60))
def test_an_event_never_ends_worse_than_first_fit_with_ecmp(tmp_path, seed):
    """For the same jobs on the same hosts before; running jobs keep their hosts, and who waits finds no room."""
    site = idle_site(tmp_path)
    controller = SiteController(site)
    held = controller.held
    for event in events(site, drawn(seed)):
        plain = Occupancy(site, HASHED)
        before = {name: seat.hosts for name, seat in held.seats.items()}
        down_before = held.down_hosts
        jobs = dict(held.jobs)
        decision = controller.apply(event)
        if event.kind == "job-arrives":
            plain.restore(
                jobs=jobs,
                seats={name: Seat(hosts=hosts) for name, hosts in before.items()},
                down=held.down,
                down_hosts=down_before,
            )
            plain.jobs[event.job.name] = event.job
            plain.update()
            assert held.seats.keys() == plain.seats.keys()
            assert held.objective <= plain.objective + ALIKE * 2
        taken = [host for seat in held.seats.values() for host in seat.hosts]
        assert len(set(taken)) == len(taken)
        assert not set(taken) & held.down_hosts
        for name, hosts in before.items():
            if name in held.jobs and not set(hosts) & held.down_hosts:
                assert held.seats[name].hosts == hosts
        for name in decision.waiting:
            assert held.jobs[name].domains > decision.free
        assert decision.objective >= 1 - WINDOW


KINDS = [("fat-tree", 32, 5), ("rail-optimized", 16, 6), ("torus", 64, 2)]


@pytest.mark.parametrize(("kind", "radix", "count"), KINDS)
def test_groups_share_no_link_whatever_the_router_and_step_as_the_whole(tmp_path, kind, radix, count):
    site = idle_site(tmp_path, kind=kind, radix=radix)
    held = Occupancy(site, HASHED)
    for number, hosts in enumerate((3, 4, 3, 2, 1, 2)):
        held.jobs[f"job-{number}"] = events(site, [arrival(f"job-{number}", hosts, 0)])[0].job
    held.update()
    names = list(held.seats)
    together = tuple((held.jobs[name], held.seats[name].hosts) for name in names)
    groups = held.fleet.groups(together)
    assert sorted(one for group in groups for one in group) == list(range(len(names)))
    assert len(groups) == count
    clock = held.fleet.clock(together)
    hosts = tuple(seat for _, seat in together)
    for router in ("ecmp", "planned", "spray"):
        routes = clock.routes(hosts, router)
        links = [set(joined([routes[one] for one in group]).links.tolist()) for group in groups]
        assert sum(map(len, links)) == len(set().union(*links))
    if kind == "torus":  # jobs that hold each other up for long beat: the window of all jobs then says less
        return
    whole = Clock(clock.site, clock.templates).timed(clock.plain(hosts)).slowdown
    assert list(held.slowdown.values()) == pytest.approx(whole.tolist(), rel=WINDOW)


@pytest.mark.slow_but(3)
@pytest.mark.parametrize("stop", [5, 2, 9, 0, 1, 3, 4, 6, 7, 8, 10, 11, 12])
def test_after_any_prefix_it_goes_on_the_same(tmp_path: Path, uninterrupted, stop):
    from weft.arrangement.site_store import SiteStore

    site = idle_site(tmp_path)
    controller = SiteController(site)
    store = SiteStore(tmp_path / "state", controller)
    found = []
    for event in events(site, STORY[:stop]):
        found.append(controller.apply(event))
        store.save(event.text, found[-1], repr(found[-1]))
    store.close()
    controller = SiteController(site)
    store = SiteStore(tmp_path / "state", controller)
    assert store.load() == stop
    for event in events(site, STORY[stop:]):
        found.append(controller.apply(event))
        store.save(event.text, found[-1], repr(found[-1]))
    assert found == uninterrupted
    assert store.decisions() == [repr(one) for one in uninterrupted]
    assert store.event(3) == STORY[2]
    store.close()
