"""The controller against plain counts: whatever happens, in whatever order, with restarts in between."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil
from tempfile import TemporaryDirectory
from types import ModuleType

import networkx as nx
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from weft.errors import BadInput
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos
from weft.fabric.spec import Fabric
from weft.fabric.traffic import Routes
from weft.routing.controller import Controller, Decision, Event, Gain, Key
from weft.routing.controller import Path as LinkPath
from weft.routing.store import Store
from weft.routing.traffic import JobTraffic, job_traffic, merged

NIC = 50e9
FABRICS = {
    "two tiers": clos.build(18, radix=6, bandwidth_Bps=NIC, tiers=2),
    "two tiers, oversubscribed": clos.build(16, radix=6, bandwidth_Bps=NIC, tiers=2, oversubscription=2),
    "three tiers": clos.build(16, radix=4, bandwidth_Bps=NIC, tiers=3),
    "domains": clos.build(
        16, radix=8, bandwidth_Bps=NIC, tiers=2, scale_up=Dimension(size=2, kind="switch", bandwidth_Bps=450e9)
    ),
}
NAMES = ("a", "b", "c", "d")
SEEDS = st.integers(0, 2**20)
QUIET = ("traffic", "tick")
Flow = tuple[int, int, float]


def flows_of(job: str, flows: list[Flow], *, alone: bool = True) -> JobTraffic:
    """A job; every flow is a collective of its own, or all are one."""
    count = len(flows)
    return job_traffic(
        np.array([flow[0] for flow in flows]),
        np.array([flow[1] for flow in flows]),
        np.array([flow[2] for flow in flows]),
        collective=np.arange(count) if alone else np.zeros(count, dtype=np.int64),
        queue_pair=np.arange(count),
        names=[f"c{i}" for i in range(count)] if alone else ["all"],
        jobs=(job,),
    )


def keys(job: str, traffic: JobTraffic) -> list[Key]:
    names = [traffic.names[group] for group in traffic.collective.tolist()]
    ends = (each.tolist() for each in (traffic.source, traffic.target, traffic.queue_pair))
    return list(zip([job] * len(traffic), names, *ends, strict=True))


def paths(controller: Controller) -> dict[Key, LinkPath]:
    """The links of every flow."""
    found: dict[Key, LinkPath] = {}
    for name, traffic in controller.jobs.items():
        for key, row in zip(keys(name, traffic), controller.links[name].tolist(), strict=True):
            assert key not in found
            found[key] = tuple(link for link in row if link >= 0)
    return found


def state(controller: Controller) -> tuple[object, ...]:
    """All that decides what the controller does next."""
    links = {name: rows.tolist() for name, rows in controller.links.items()}
    clock = controller.count, controller.now_s, controller.planned_s
    known = [(name, id(traffic)) for name, traffic in controller.jobs.items()]
    return links, clock, known, controller.down.copy(), controller.fabric.up.tolist()


def timeless(decision: Decision) -> Decision:
    return replace(decision, solve_s=0.0)


def as_routes(found: list[LinkPath]) -> Routes:
    links = [link for path in found for link in path]
    return Routes(
        indptr=np.cumsum([0, *(len(path) for path in found)]),
        links=np.array(links, dtype=np.int64),
        usage=np.ones(len(links)),
        latency_s=np.zeros(len(found)),
    )


def network(fabric: Fabric) -> nx.DiGraph:
    """What is up."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(fabric.nodes))
    live = np.flatnonzero(fabric.up)
    graph.add_edges_from(zip(fabric.source[live].tolist(), fabric.target[live].tolist(), strict=True))
    return graph


def shortest(fabric: Fabric, found: dict[Key, LinkPath]) -> bool:
    """Whether no flow takes a detour around failures that are mended."""
    graph = network(fabric)
    return all(nx.shortest_path_length(graph, *key[2:4]) == len(path) for key, path in found.items())


def follows_tables(fabric: Fabric, found: dict[Key, LinkPath]) -> bool:
    """Whether flows to one destination leave each switch by one link."""
    leaving: dict[tuple[int, int], set[int]] = {}
    for key, path in found.items():
        for link in path[1:]:
            leaving.setdefault((key[3], int(fabric.source[link])), set()).add(link)
    return all(len(links) == 1 for links in leaving.values())


class Life(RuleBasedStateMachine):
    """A controller that is told nonsense and is restarted, beside one that hears the good events alone."""

    def __init__(self, kit: ModuleType, name: str, equal: bool) -> None:
        super().__init__()
        self.kit, self.whole, self.equal = kit, FABRICS[name], equal
        self.plain, self.full = name != "domains", name == "two tiers"
        self.folder = TemporaryDirectory()
        self.now_s = 0.0
        self.known: dict[str, set[Key]] = {}
        self.down: list[tuple[str, ...]] = []
        self.said: list[str] = []

    @initialize(
        router=st.sampled_from(["auto", "auto", "auto", "repair", "greedy", "destination", "destination"]),
        replan_s=st.sampled_from([0.0, 60.0]),
    )
    def begin(self, router: str, replan_s: float) -> None:
        self.router, self.replan_s = router, replan_s
        self.main, self.twin = self.fresh(), self.fresh()
        self.store = Store(self.folder.name, self.main)
        assert self.store.load() == 0

    def fresh(self) -> Controller:
        return Controller(self.whole, router=self.router, seed=3, replan_s=self.replan_s)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        self.folder.cleanup()

    # What may happen

    @rule(data=st.data(), count=st.integers(5, 30), alone=st.booleans())
    def arrive(self, data: st.DataObject, count: int, alone: bool) -> None:
        free = [name for name in NAMES if name not in self.known]
        if free:
            traffic = flows_of(free[0], self.drawn(data, count), alone=alone or self.equal)
            self.tell(data, "job-arrives", job=free[0], traffic=traffic)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.tell(data, "job-ends", job=data.draw(st.sampled_from(sorted(self.known))))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), switch=st.booleans())
    def fail(self, data: st.DataObject, switch: bool) -> None:
        whole = self.whole
        if switch:
            nodes = (data.draw(st.sampled_from(whole.names[:-7:-1])),)
        else:
            rising = np.flatnonzero((whole.tier > 0) & (whole.source < whole.target))
            link = data.draw(st.sampled_from(rising[whole.tier[rising] > 1].tolist() + rising[:2].tolist()))
            nodes = tuple(self.whole.names[each[link]] for each in (self.whole.source, self.whole.target))
        self.tell(data, "switch-down" if switch else "link-down", nodes=nodes)

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        nodes = data.draw(st.sampled_from(self.down))
        self.tell(data, "switch-up" if len(nodes) == 1 else "link-up", nodes=nodes)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), count=st.integers(-2, 5))
    def measure(self, data: st.DataObject, count: int) -> None:
        if count < 0:
            self.tell(data, "tick")
            return
        job = data.draw(st.sampled_from(sorted(self.known)))
        self.tell(data, "traffic", job=job, traffic=flows_of(job, self.drawn(data, count + 1)))

    @rule(data=st.data())
    def nonsense(self, data: st.DataObject) -> None:
        job, top = next(iter(self.known), "nobody"), self.whole.names[-1]
        wrong = [
            Event(time_s=self.now_s, kind="job-ends", job="nobody"),
            Event(time_s=self.now_s, kind="switch-down", nodes=("nothing",)),
            Event(time_s=self.now_s, kind="link-down", nodes=(top, top)),
            Event(time_s=self.now_s, kind="link-down", nodes=(self.whole.names[0], top)),
            Event(time_s=self.now_s, kind="switch-up", nodes=(self.whole.names[1],)),
            Event(time_s=self.now_s - 1, kind="tick"),
            *(
                Event(time_s=self.now_s, kind="job-arrives", job="new", traffic=flows_of("new", flows))
                for flows in ([(0, 1, 0.0)], [(2, 2, 1e9)], [(0, 99, 1e9)], [(0, 1, 1e9), (0, 1, np.nan)])
            ),
        ]
        if self.known:
            again = flows_of(job, [(0, 1, 1e9)])
            wrong.append(Event(time_s=self.now_s, kind="job-arrives", job=job, traffic=again))
            twice = flows_of(job, [(0, 1, 1e9)] * 2, alone=False)
            twice = replace(twice, queue_pair=np.zeros(2, dtype=np.int64))
            wrong.append(Event(time_s=self.now_s, kind="traffic", job=job, traffic=twice))
        self.refused(data.draw(st.sampled_from(wrong)))

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.main = self.fresh()
        self.store = Store(self.folder.name, self.main)
        assert self.store.load() == len(self.said)
        texts = self.store.base.execute("select decision from decisions order by number")
        assert [text for (text,) in texts] == self.said

    # What must then hold

    def drawn(self, data: st.DataObject, count: int) -> list[Flow]:
        draw, hosts = np.random.default_rng(data.draw(SEEDS)), self.whole.accelerators
        pairs = [draw.choice(hosts, 2, replace=False).tolist() for _ in range(count)]
        sizes = [1e9] * count if self.equal else draw.choice([0.3e9, 1e9, 1.7e9], count).tolist()
        return [(*pair, size) for pair, size in zip(pairs, sizes, strict=True)]

    def live(self, down: list[tuple[str, ...]]) -> Fabric:
        fabric = self.whole
        for names in down:
            nodes = [fabric.names.index(name) for name in names]
            if len(nodes) == 1:
                fabric = fabric.failed(nodes=np.array(nodes))
            else:
                joined = (fabric.source == nodes[0]) & (fabric.target == nodes[1])
                fabric = fabric.failed(links=np.flatnonzero(joined))
        return fabric

    def tell(self, data: st.DataObject, kind: str, **what: object) -> None:
        self.now_s += data.draw(st.sampled_from([0.0, 1.0, 25.0, 70.0]))
        event = Event(time_s=self.now_s, kind=kind, **what)
        known, down = {name: found.copy() for name, found in self.known.items()}, self.down.copy()
        if kind == "job-ends":
            del known[event.job]
        elif event.traffic is not None:
            known[event.job] = known.get(event.job, set()) | set(keys(event.job, event.traffic))
        if kind.endswith("down"):
            down = [names for names in down if set(names) != set(event.nodes)] + [event.nodes]
        elif kind.endswith("up"):
            down.remove(event.nodes)
        fabric = self.live(down)
        before = paths(self.main)
        decision = self.main.apply(event)
        self.known, self.down = known, down
        assert timeless(decision) == timeless(self.twin.apply(event))
        self.said.append(f"decision {decision.number}")
        self.store.save(f"event {decision.number}", decision, self.said[-1])
        self.judge(event, decision, before, fabric)

    def refused(self, event: Event) -> None:
        before = state(self.main)
        with pytest.raises(BadInput):
            self.main.apply(event)
        assert state(self.main) == before
        self.now_s = self.main.now_s

    def judge(self, event: Event, decision: Decision, before: dict[Key, LinkPath], fabric: Fabric) -> None:
        kit, traffic, every = self.kit, self.main.traffic, paths(self.main)
        after = {key: path for key, path in every.items() if path}
        assert (decision.number, decision.time_s, decision.kind) == (len(self.said), self.now_s, event.kind)
        assert decision.flows == len(every)
        assert decision.cut == len(every) - len(after)
        graph = network(fabric)
        assert every.keys() - after.keys() == {key for key in every if not nx.has_path(graph, *key[2:4])}
        assert self.main.fabric.up.tolist() == fabric.up.tolist()
        assert {*every} == {key for found in self.known.values() for key in found}
        kept = {key: path for key, path in before.items() if path and key in after and fabric.up[list(path)].all()}
        changed = {key: path for key, path in after.items() if before.get(key) != path}
        assert {move.flow: move.path for move in decision.moves} == changed
        assert len(decision.moves) == len(changed)
        assert {move.flow for move in decision.moves if move.new} == after.keys() - kept.keys()
        assert decision.placed == len(after.keys() - kept.keys())
        assert decision.moved == len(changed.keys() & kept.keys())
        assert (decision.how == "kept") == (not changed)
        if decision.how == "placed":
            assert decision.moved == 0
        elif decision.how == "repaired":
            assert decision.moved > 0
        if traffic is None or not after:
            assert (decision.alpha, decision.alpha_bound) == (0, 0)
            return
        rows = np.flatnonzero([bool(path) for path in every.values()])
        # What flows ask for is of the whole network: it does not change as parts of it fail.
        whole_demands = kit.demands_of(self.main.whole, traffic)
        demands = [whole_demands[row] for row in rows]
        traffic = traffic.select(rows)
        kit.assert_paths(fabric, traffic, as_routes(list(after.values())))
        alpha = kit.recount(fabric, traffic, as_routes(list(after.values())), demands)
        assert decision.alpha == pytest.approx(alpha, abs=1e-8)
        assert decision.alpha >= decision.alpha_bound
        if self.router == "destination":
            assert follows_tables(fabric, after)
        if kept.keys() == after.keys() and shortest(fabric, kept):
            old = kit.recount(fabric, traffic, as_routes([kept[key] for key in after]), demands)
            assert alpha <= old * (1 + 1e-9)
            if old <= decision.alpha_bound + 6e-10:
                assert decision.how == "kept"
        whole = self.full and not self.down and set(demands) == {NIC}
        if whole and self.router == "auto" and event.kind not in QUIET:
            assert decision.alpha == pytest.approx(self.least(traffic))

    def least(self, traffic: JobTraffic) -> int:
        """Flows on the busiest port, or ceil(Delta / n): of a leaf over its 3 ways to a spine."""
        count: Counter[tuple[str, int]] = Counter()
        for source, target in zip(traffic.source.tolist(), traffic.target.tolist(), strict=True):
            count["out", source] += 1
            count["in", target] += 1
            if source // 3 != target // 3:
                count["up", source // 3] += 1
                count["down", target // 3] += 1
        return max(ceil(flows / 3) if kind in ("up", "down") else flows for (kind, _), flows in count.items())

    @invariant()
    def both_know_the_same(self) -> None:
        if hasattr(self, "main"):
            assert self.main.links.keys() == self.main.jobs.keys() == self.known.keys()
            assert self.main.count == self.twin.count == len(self.said)
            assert paths(self.main) == paths(self.twin)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("examples", "steps"), [(6, 20), pytest.param(60, 40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "unequal"])
@pytest.mark.parametrize("name", FABRICS)
def test_any_life(kit: ModuleType, name: str, equal: bool, examples: int, steps: int) -> None:
    chosen = settings(max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(lambda: Life(kit, name, equal), settings=chosen)


SMALL = FABRICS["two tiers"]


def arrival(job: str, flows: list[Flow], time_s: float = 0.0) -> Event:
    return Event(time_s=time_s, kind="job-arrives", job=job, traffic=flows_of(job, flows))


def test_measured_traffic_teaches_unknown_flows() -> None:
    controller = Controller(SMALL)
    first = flows_of("a", [(0, 9, 1e9), (1, 10, 1e9)])
    decision = controller.apply(Event(time_s=0.0, kind="traffic", job="a", traffic=first))
    assert (decision.flows, decision.placed, decision.how) == (2, 2, "placed")
    assert controller.jobs["a"] is first
    more = flows_of("a", [(0, 9, 7e9), (1, 10, 7e9), (2, 11, 3e9)])
    decision = controller.apply(Event(time_s=1.0, kind="traffic", job="a", traffic=more))
    assert (decision.flows, decision.placed, decision.moved) == (3, 1, 0)
    assert controller.jobs["a"].bytes.tolist() == [1e9, 1e9, 3e9]
    again = controller.apply(Event(time_s=2.0, kind="traffic", job="a", traffic=more))
    assert (again.flows, again.how) == (3, "kept")


def test_flows_that_are_cut_off_have_no_pace() -> None:
    """Of two jobs one loses its leaf: its pace is 0, the mean one half, and all is as before when the leaf is back."""
    controller = Controller(SMALL)
    far = SMALL.accelerators - 1
    for job, flow in (("a", (0, 3, 1e9)), ("b", (far, 4, 1e9))):
        controller.apply(arrival(job, [flow]))
    leaf = (SMALL.names[SMALL.target[np.flatnonzero((SMALL.source == 0) & (SMALL.tier > 0))[0]]],)
    down = controller.apply(Event(time_s=1.0, kind="switch-down", nodes=leaf))
    assert (down.cut, down.cut_jobs) == (1, ("a",))
    assert down.gain == Gain(before=0.0, after=0.0, bound=0.0, mean_before=0.5, mean_after=0.5)
    again = controller.apply(Event(time_s=2.0, kind="tick"))
    assert (again.gain.before, again.gain.after) == (0.0, 0.0)
    late = controller.apply(arrival("c", [(1, far, 1e9)], 3.0))
    assert (late.cut_jobs, late.gain.after, late.gain.mean_after) == (("a", "c"), 0.0, pytest.approx(1 / 3))
    alone = controller.apply(Event(time_s=4.0, kind="job-ends", job="b"))
    assert (alone.gain.after, alone.gain.mean_after) == (0.0, 0.0)
    back = controller.apply(Event(time_s=5.0, kind="switch-up", nodes=leaf))
    assert (back.cut_jobs, back.gain.after, back.gain.bound) == ((), 1.0, 1.0)


@pytest.mark.parametrize(("router", "message"), [("edge-coloring", "equal flows"), ("spray", "pins no flow")])
def test_a_router_that_refuses_changes_nothing(router: str, message: str) -> None:
    """3 flows of a leaf on its 2 ways up and a small one elsewhere ask for a plan that these cannot make."""
    controller = Controller(FABRICS["two tiers, oversubscribed"], router=router)
    controller.apply(arrival("a", [(3, 12, 1e9)], 5.0))
    controller.apply(Event(time_s=5.0, kind="job-ends", job="a"))
    before = state(controller)
    traffic = flows_of("b", [(0, 4, 1e9), (1, 8, 1e9), (2, 12, 1e9), (5, 9, 1e9)])
    traffic = replace(traffic, cap_Bps=np.array([np.inf, np.inf, np.inf, NIC / 10]))
    event = Event(time_s=500.0, kind="job-arrives", job="b", traffic=traffic)
    with pytest.raises(BadInput, match=message):
        controller.apply(event)
    assert state(controller) == before


def measured(controller: Controller, *jobs: JobTraffic) -> Decision:
    return controller.apply(Event(time_s=controller.now_s + 60, kind="measured", traffic=merged(jobs)))


def test_measured_jobs_come_change_and_go() -> None:
    controller = Controller(SMALL)
    a = flows_of("job 0", [(0, 9, 1e9), (9, 0, 1e9), (1, 10, 1e9), (10, 1, 1e9)])
    b = flows_of("job 1", [(3, 12, 1e9), (12, 3, 1e9)])
    first = measured(controller, a, b)
    assert (first.placed, first.about, [*controller.jobs]) == (6, "+job 0, +job 1", ["job 0", "job 1"])
    # Jobs go by their flows: the names of the next measurement may be others.
    known = controller.jobs["job 0"]
    again = measured(controller, replace(b, jobs=("job 0",)), replace(a, jobs=("job 1",), bytes=a.bytes * 1.02))
    assert (again.how, again.about) == ("kept", "")
    assert controller.jobs["job 0"] is known
    # New flows are placed, known ones stay; one measurement without a job does not end it, a second one does.
    more = flows_of("job 5", [(0, 9, 1e9), (9, 0, 1e9), (1, 10, 1e9), (10, 1, 1e9), (2, 11, 1e9)])
    before = {key[2:]: path for key, path in paths(controller).items()}
    grown = measured(controller, more)
    assert (grown.placed, grown.moved, grown.about) == (1, 0, "")
    assert before.items() <= {key[2:]: path for key, path in paths(controller).items()}.items()
    assert measured(controller, more).about == "-job 1"
    assert [*controller.jobs] == ["job 0"]


def test_announced_jobs_are_not_ended_by_measurements() -> None:
    controller = Controller(SMALL)
    controller.apply(arrival("told", [(4, 13, 1e9)]))
    for _ in range(3):
        measured(controller, flows_of("seen", [(0, 9, 1e9)]))
    assert [*controller.jobs] == ["told", "seen"]


@pytest.mark.parametrize(("share", "moves"), [(0.03, False), (0.9, True)])
def test_a_measured_collision_moves_flows_where_that_pays(share: float, moves: bool) -> None:
    """Two flows of a leaf share a way up, though one is free; the second may be too small to matter."""
    controller = Controller(SMALL)
    flows = flows_of("a", [(0, 9, 1e9), (1, 12, 1e9)])
    measured(controller, replace(flows, cap_Bps=np.array([NIC, NIC * 0.02])))
    rows = controller.links["a"].copy()
    shared = rows[0].tolist()[1]
    leaf = SMALL.target[rows[1, 2]]
    down = np.flatnonzero((SMALL.source == SMALL.target[shared]) & (SMALL.target == leaf))[0]
    rows[1, 1:3] = shared, down
    controller.links = {"a": rows}
    decision = measured(controller, replace(flows, cap_Bps=np.array([NIC, NIC * share])))
    assert bool(decision.moved) is moves
    assert decision.withheld is not moves
