"""Pictures of an arrangement: every host in its leaf, and the loads of the links."""

import numpy as np
import pytest

pytest.importorskip("altair")

from weft.arrangement.clock import repeated, together
from weft.arrangement.schedule import link_loads
from weft.arrangement.template import covered
from weft.fabric.spec import SCALE_UP
from weft.fabric.traffic import joined
from weft.simulation.flows.engine import run
from weft.views.arrangement import arrangement_chart, seat_of
from weft.views.charts import COLOURS, INK, rendered


@pytest.fixture(scope="module")
def found(arranged_site):
    return arranged_site


def marks(items, kind):
    return [item for item in items if item.kind == kind and item.role == "mark"]


def test_every_host_is_a_square_of_its_job_inside_its_leaf(found, drawn):
    items = drawn(arrangement_chart(found))
    hosts = [item for item in marks(items, "rect") if "width" in item.look and item.look["width"] == 22]
    assert len(hosts) == len(found.site.host_names)
    for number, job in enumerate(found.site.jobs):
        assert sum(item.look["fill"] == COLOURS[number] for item in hosts) == job.domains
    unit = found.cuts.unit[0]
    frames = [item for item in marks(items, "rect") if item.look["width"] > 22]
    assert len(frames) == unit.max() + 1
    inside = [
        sum(
            frame.x < host.x and host.x + 22 < frame.x + frame.look["width"]
            and frame.y < host.y and host.y + 22 < frame.y + frame.look["height"]
            for host in hosts
        )
        for frame in frames
    ]  # fmt: skip
    assert inside == np.bincount(unit).tolist()
    numbers = [item.words for item in marks(items, "text") if item.words.isdigit()]
    assert sorted(numbers) == sorted(str(number + 1) for number, _ in seat_of(found).values())


def test_loads_are_bytes_over_time_and_capacity(found):
    clock, best = found.clock, found.best
    loads = link_loads(clock, best)
    outer = clock.fabric.tier > SCALE_UP
    assert not loads.share[~outer].any()
    assert 0 < loads.share.max() <= 1
    # What was stepped: whole iterations of each job, at nearly this pace.
    sent = sum(clock.carried(best.choice.hosts, best.choice.router, job) * 12 for job in range(3))
    parts = [repeated(template, 12) for template in clock.templates]
    traffic = together([part.traffic(0.0, 1.0) for part in parts])
    routes = clock.routes(best.choice.hosts, best.choice.router)
    known = joined([of_job.of(part.message) for of_job, part in zip(routes, parts, strict=True)])
    stepped = run(clock.fabric.capacity_Bps, traffic, known)
    assert stepped.link_bytes[outer] == pytest.approx(sent[outer])


def test_covered_spans_stay_apart_and_keep_every_moment():
    draw = np.random.default_rng(0)
    for _ in range(50):
        begin = draw.integers(0, 40, 8).astype(float)
        end = begin + draw.integers(0, 6, 8)
        spans = covered(begin, end)
        assert (spans[1:, 0] > spans[:-1, 1]).all()
        moments = np.arange(0, 50, 0.25)
        inside = ((begin[:, None] <= moments) & (moments <= end[:, None])).any(axis=0)
        again = ((spans[:, :1] <= moments) & (moments <= spans[:, 1:])).any(axis=0)
        assert (inside == again).all()


@pytest.mark.slow_but(1)
def test_charts_follow_the_scheme_and_are_the_same_each_time(found, drawn):
    drawn(arrangement_chart(found))
    first, second = (rendered(arrangement_chart(found), ".svg") for _ in range(2))
    assert first == second
    assert f'svg [fill="{INK}"]'.encode() in first
