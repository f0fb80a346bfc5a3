"""Measured links: figures from counters, hysteresis, lossy links that are avoided where anything else leads."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.routing.controller import Controller, Event
from weft.routing.plan import route
from weft.routing.store import Store
from weft.routing.telemetry import LinkSample, Telemetry
from weft.routing.traffic import job_traffic

NIC = 50e9
FABRIC = clos.build(18, radix=6, bandwidth_Bps=NIC, tiers=2)
NUMBER = {name: node for node, name in enumerate(FABRIC.names)}
UP = NUMBER["leaf-0"], NUMBER["spine-0"]
NOTHING = np.zeros(FABRIC.links)


def flows(shift: int = 3):
    hosts = np.arange(18)
    return job_traffic(hosts, (hosts + shift) % 18, np.full(18, 1e9), jobs=("a",), collective=hosts)


def read(*samples: tuple[float, dict[str, float]], known=NOTHING) -> Telemetry:
    found = Telemetry(whole=FABRIC)
    for time_s, figures in samples:
        found, _ = found.after((LinkSample(ends=UP, **figures),), time_s, known)
    return found


@pytest.mark.parametrize(
    ("samples", "load", "loss"),
    [
        ([(0, {"load": 0.4})], 0.4, -1),
        ([(0, {"rate_Bps": 20e9})], 0.4, -1),
        ([(0, {"sent_bytes": 5e12})], -1, -1),
        ([(10, {"sent_bytes": 5e12}), (20, {"sent_bytes": 5.2e12})], 0.4, -1),
        ([(10, {"sent_bytes": 5e12}), (20, {"sent_bytes": 1e9}), (30, {"sent_bytes": 1e9 + 1e11})], 0.2, -1),
        ([(0, {"packets": 0, "lost": 0}), (1, {"packets": 98, "lost": 2})], -1, 0.02),
        ([(0, {"sent_bytes": 0, "lost": 0}), (1, {"sent_bytes": 98 * 4096, "lost": 2})], 98 * 4096 / NIC, 0.02),
        ([(0, {"received": 7, "damaged": 1}), (1, {"received": 106, "damaged": 2})], -1, 0.01),
        ([(0, {"loss": 0.5}), (1, {"load": 0.1})], 0.1, 0.5),
    ],
)
def test_figures(samples, load, loss) -> None:
    found = read(*samples).health[UP]
    assert (found.load, found.loss) == (pytest.approx(load), pytest.approx(loss))


def test_a_link_is_lossy_until_it_has_been_clean_for_long_and_longer_after_a_relapse() -> None:
    story = [(0, 2e-4, 1), (10, 5e-5, 1), (20, 0, 1), (300, 0, 1), (319, 0, 1), (320, 0, 0), (330, 5e-5, 0)]
    story += [(340, 2e-4, 1), (350, 0, 1), (660, 0, 1), (949, 0, 1), (950, 0, 0)]
    found = Telemetry(whole=FABRIC)
    for time_s, loss, lossy in story:
        found, _ = found.after((LinkSample(ends=UP, loss=loss),), time_s, NOTHING)
        assert found.health[UP].lossy == lossy, time_s


def test_load_of_others_counts_in_steps() -> None:
    found, said = Telemetry(whole=FABRIC), []
    known = np.where((FABRIC.source == UP[0]) & (FABRIC.target == UP[1]), 0.5 * NIC, 0.0)
    for load in (0.5, 0.59, 0.61, 0.64, 0.57, 0.7, 0.53, 0.59):
        found, changes = found.after((LinkSample(ends=UP, load=load),), 0.0, known)
        said.append([(one.kind, round(one.value, 6)) for one in changes])
    assert said == [[], [], [("beyond", 0.11)], [], [], [("beyond", 0.2)], [("released", 0)], []]


@given(st.lists(st.tuples(st.integers(0, 35), st.sampled_from([1e-3, 2e-3, 3e-3])), max_size=30), st.integers(0, 5))
def test_what_is_avoided_never_cuts_and_keeps_the_best(pairs, seed) -> None:
    """Against networkx: the avoided links leave every part joined, and no spanning set of lossy links is better."""
    draw = np.random.default_rng(seed)
    between = np.flatnonzero((FABRIC.source >= 18) & (FABRIC.source < FABRIC.target))
    fabric = FABRIC.failed(links=draw.choice(between, 4, replace=False))
    samples = []
    for at, loss in pairs:
        link = [*np.flatnonzero(FABRIC.source < 18), *between][at]
        samples.append(LinkSample(ends=(int(FABRIC.source[link]), int(FABRIC.target[link])), loss=loss))
    found, _ = Telemetry(whole=FABRIC).after(tuple(samples), 0.0, NOTHING)
    graph, lossy = nx.Graph(), found.lossy()
    for link in np.flatnonzero(fabric.up):
        ends = tuple(sorted((int(fabric.source[link]), int(fabric.target[link]))))
        graph.add_edge(*ends, weight=lossy.get(ends, 0.0))
    less = graph.copy()
    less.remove_edges_from(found.avoided(fabric))
    assert nx.number_connected_components(less) == nx.number_connected_components(graph)
    least = sum(one["weight"] for _, _, one in nx.minimum_spanning_edges(graph, data=True))
    assert sum(one["weight"] for _, _, one in less.edges(data=True)) == pytest.approx(least)
    assert found.avoided(fabric) <= set(lossy)


def told(controller: Controller, time_s: float, *samples: LinkSample):
    return controller.apply(Event(time_s=time_s, kind="counters", samples=samples))


def crossing(controller: Controller, ends: tuple[int, int]) -> int:
    links = np.flatnonzero((FABRIC.source == ends[0]) & (FABRIC.target == ends[1]))
    return int(np.isin(controller.rows(), links).any(axis=1).sum())


def test_the_controller_leaves_lossy_links_and_comes_back() -> None:
    controller = Controller(FABRIC, replan_s=0)
    controller.apply(Event(time_s=0, kind="job-arrives", job="a", traffic=flows()))
    assert crossing(controller, UP) == 1
    decision = told(controller, 1, LinkSample(ends=UP, loss=1e-3))
    assert [(one.kind, one.ends) for one in decision.changes] == [("avoided", UP)]
    assert crossing(controller, UP) == 0
    assert decision.moved > 0
    assert (decision.placed, decision.alpha, decision.gain.before, decision.gain.after) == (0, 2, 1, 0.5)
    assert told(controller, 2, LinkSample(ends=UP, loss=0.0)).how == "kept"
    decision = told(controller, 400, LinkSample(ends=UP, loss=0.0))
    assert [one.kind for one in decision.changes] == ["back"]
    assert decision.gain.after == 1


def test_a_link_that_nothing_replaces_is_kept() -> None:
    controller = Controller(FABRIC)
    controller.apply(Event(time_s=0, kind="job-arrives", job="a", traffic=flows()))
    decision = told(controller, 1, LinkSample(ends=(0, NUMBER["leaf-0"]), loss=0.1))
    assert [(one.kind, one.value) for one in decision.changes] == [("kept", 0.1)]
    assert (decision.how, decision.cut) == ("kept", 0)


def test_flows_leave_a_link_that_others_use() -> None:
    """One flow of a leaf; whatever link it takes, when others fill that it goes elsewhere, and stays there."""
    controller = Controller(FABRIC)
    one = job_traffic(np.array([0]), np.array([3]), np.array([1e9]), jobs=("a",))
    controller.apply(Event(time_s=0, kind="job-arrives", job="a", traffic=one))
    (link,) = [at for at in controller.rows()[0].tolist() if FABRIC.source[at] == NUMBER["leaf-0"]]
    ends = int(FABRIC.source[link]), int(FABRIC.target[link])
    assert told(controller, 1, LinkSample(ends=ends, load=1.0)).how == "kept"
    controller.apply(Event(time_s=2, kind="job-ends", job="a"))
    decision = told(controller, 3, LinkSample(ends=ends, load=0.6))
    assert [(one.kind, one.value) for one in decision.changes] == [("beyond", 0.6)]
    decision = controller.apply(Event(time_s=4, kind="job-arrives", job="a", traffic=one))
    assert decision.gain.after == 1
    assert crossing(controller, ends) == 0


def test_installed_routes_are_where_it_begins() -> None:
    traffic = flows()
    before = route(FABRIC, traffic, router="ecmp", seed=1)
    controller = Controller(FABRIC)
    decision = controller.apply(Event(time_s=0, kind="installed", traffic=traffic, routes=before))
    assert decision.placed == 0
    assert 0 < decision.moved < 18
    assert decision.gain.before < decision.gain.after == decision.gain.bound == 1
    assert all(move.old and move.old != move.path for move in decision.moves)
    with pytest.raises(BadInput, match="known already"):
        controller.apply(Event(time_s=1, kind="installed", traffic=traffic, routes=before))


def test_no_move_can_be_left_out() -> None:
    """Single moves undone: each leaves some link above the congestion that was reached."""
    traffic = flows(5)
    for seed in range(8):
        controller = Controller(FABRIC)
        before = route(FABRIC, traffic, router="ecmp", seed=seed)
        decision = controller.apply(Event(time_s=0, kind="installed", traffic=traffic, routes=before))
        load = np.zeros(FABRIC.links)
        rows = controller.rows()
        np.add.at(load, rows[rows >= 0], 1.0)
        for move in decision.moves:
            changed = load.copy()
            changed[list(move.path)] -= 1
            changed[list(move.old)] += 1
            assert changed.max() > decision.alpha


def test_a_decision_that_is_not_carried_out_leaves_the_paths_before() -> None:
    traffic = flows()
    controller = Controller(FABRIC)
    before = route(FABRIC, traffic, router="ecmp", seed=1)
    decision = controller.apply(Event(time_s=0, kind="installed", traffic=traffic, routes=before))
    held = controller.hold(decision)
    assert (held.how, held.moved, held.moves) == ("rolled-back", 0, ())
    assert held.gain.after == decision.gain.before
    assert held.alpha == round(1 / decision.gain.before)
    rows = [[link for link in row if link >= 0] for row in controller.rows().tolist()]
    assert rows == [before.links[a:b].tolist() for a, b in zip(before.indptr, before.indptr[1:], strict=False)]
    again = controller.apply(Event(time_s=0, kind="tick"))
    assert again.how == "kept"
    assert controller.apply(Event(time_s=100, kind="tick")).gain.after == 1


def test_what_was_measured_survives_a_restart(tmp_path) -> None:
    first = Controller(FABRIC)
    store = Store(tmp_path, first)
    events = [
        Event(time_s=0, kind="job-arrives", job="a", traffic=flows()),
        Event(time_s=1, kind="counters", samples=(LinkSample(ends=UP, loss=1e-3, sent_bytes=1e9),)),
    ]
    for event in events:
        decision = first.apply(event)
        store.save("event", decision, "decision")
    store.close()
    second = Controller(FABRIC)
    store = Store(tmp_path, second)
    assert store.load() == 2
    assert second.telemetry.health == first.telemetry.health
    assert second.fabric.up.tolist() == first.fabric.up.tolist()
    store.close()
