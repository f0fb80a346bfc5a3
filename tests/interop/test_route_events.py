"""Events as lines of JSON: what is read, written and read again, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.interop.events import arrival_line, read_event
from weft.routing.controller import KINDS
from weft.routing.traffic import JobTraffic, job_traffic

FABRIC = clos.build(8, radix=4, bandwidth_Bps=50e9, tiers=2)
FLOW = {"source": "accelerator-0", "target": 5, "bytes": 1e9}


def read(**fields: object):
    return read_event(json.dumps({"time_s": 1, **fields}), FABRIC, "file: line 7")


def test_an_arrival() -> None:
    flow = FLOW | {"collective": "ring", "rounds": 6, "queue_pair": 2, "rate_Bps": 1e9}
    event = read(event="job-arrives", job="a", flows=[FLOW, flow], pause_s=1.5)
    traffic = event.traffic
    assert traffic is not None
    assert (event.time_s, event.kind, event.job) == (1.0, "job-arrives", "a")
    assert (traffic.jobs, traffic.names) == (("a",), ("flows", "ring"))
    assert (traffic.source.tolist(), traffic.target.tolist()) == ([0, 0], [5, 5])
    assert (traffic.rounds.tolist(), traffic.queue_pair.tolist()) == ([1, 6], [0, 2])
    assert (traffic.cap_Bps.tolist(), traffic.pause_s.tolist()) == ([np.inf, 1e9], [1.5])


def test_every_other_kind() -> None:
    assert read(event="job-ends", job="a").job == "a"
    for way in ("down", "up"):
        assert read(event=f"link-{way}", link=["leaf-0", "spine-0"]).nodes == ("leaf-0", "spine-0")
        assert read(event=f"switch-{way}", switch="spine-0").nodes == ("spine-0",)
    measured = read(event="traffic", job="a", flows=[FLOW])
    assert measured.traffic is not None
    assert (measured.kind, measured.job, len(measured.traffic)) == ("traffic", "a", 1)
    assert read(event="tick").kind == "tick"
    assert len(KINDS) == 9


def test_measured_jobs_are_those_of_the_files(tmp_path: Path) -> None:
    rows = [f"{a},{a + 2},1e9,{2 * turn},{2 * turn + 0.5}" for turn in range(20) for a in (0, 4)]
    path = tmp_path / "flows.csv"
    path.write_text("\n".join(["source,target,bytes,start_s,end_s", *rows]) + "\n")
    event = read(event="measured", files=[str(path)])
    assert event.traffic is not None
    assert event.traffic.source.tolist() == [0, 4]
    with pytest.raises(BadInput, match=r"no\.csv: no such file"):
        read(event="measured", files=["no.csv"])


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=20)
HOSTS = st.integers(0, 7)
FLOWS = st.lists(
    st.tuples(
        HOSTS,
        HOSTS,
        st.floats(1e-3, 1e15),
        st.integers(0, 2),
        st.integers(0, 9),
        st.just(float("inf")) | st.floats(1, 1e12),
    ),
    min_size=1,
    max_size=12,
)


@given(
    FLOWS,
    NAMES,
    st.lists(NAMES, min_size=3, max_size=3, unique=True),
    st.tuples(*[st.integers(1, 10**8)] * 3),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
)
def test_arrivals_read_back_the_same(
    flows: list[tuple[int, int, float, int, int, float]],
    job: str,
    names: list[str],
    rounds: tuple[int, ...],
    pause_s: float,
    time_s: float,
) -> None:
    flows = sorted(flows, key=lambda flow: flow[3])
    used = sorted({flow[3] for flow in flows})
    columns = [np.array(column) for column in zip(*flows, strict=True)]
    traffic = job_traffic(
        *columns[:3],
        collective=np.searchsorted(used, columns[3]),
        queue_pair=columns[4],
        cap_Bps=columns[5],
        rounds=np.array([rounds[at] for at in used]),
        names=[names[at] for at in used],
        jobs=(job,),
        start_s=np.array([time_s]),
        pause_s=np.array([pause_s]),
    )
    line = arrival_line(traffic, FABRIC, time_s)
    assert "\n" not in line
    event = read_event(line, FABRIC, "x")
    assert (event.time_s, event.job, event.text) == (time_s, job, line)
    assert event.traffic is not None
    for field in JobTraffic.__dataclass_fields__:
        ours, theirs = getattr(traffic, field), getattr(event.traffic, field)
        assert np.array_equal(ours, theirs), field


ARRIVES = {"event": "job-arrives", "job": "a"}
BAD = {
    "unknown kind": ({"event": "link-dwn", "link": ["leaf-0", "spine-0"]}, "event: unknown event 'link-dwn'"),
    "no kind": ({}, "event: is missing"),
    "unknown field": ({"event": "tick", "jop": "a"}, "did you mean job"),
    "negative time": ({"event": "tick", "time_s": -1}, "time_s: -1"),
    "huge time": ({"event": "tick", "time_s": 10**299}, "time_s: a huge number"),
    "no job": ({"event": "job-ends"}, "job: is missing"),
    "no flows": (ARRIVES, "flows: is missing"),
    "no link": ({"event": "link-down"}, "link: is missing"),
    "unknown host": (ARRIVES | {"flows": [FLOW | {"target": "accelerator-8"}]}, "use names like"),
    "a switch as host": (ARRIVES | {"flows": [FLOW | {"target": "leaf-0"}]}, "not an accelerator"),
    "a number beyond": (ARRIVES | {"flows": [FLOW | {"target": 8}]}, "8 is not an accelerator"),
    "true as host": (ARRIVES | {"flows": [FLOW | {"target": True}]}, "flows[0].target"),
    "negative bytes": (ARRIVES | {"flows": [FLOW | {"bytes": -1.0}]}, "flows[0].bytes: -1.0"),
    "no rounds": (ARRIVES | {"flows": [FLOW | {"rounds": 0}]}, "flows[0].rounds"),
    "two rounds": (ARRIVES | {"flows": [FLOW, FLOW | {"rounds": 2}]}, "several numbers of rounds"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str) -> None:
    fields, message = BAD[name]
    with pytest.raises(BadInput) as caught:
        read(**fields)
    assert message in str(caught.value)
    assert str(caught.value).startswith("file: line 7")
    assert "\n" not in str(caught.value)


WHOLE = json.dumps({"time_s": 1, **ARRIVES, "flows": [FLOW]})


@pytest.mark.parametrize("end", range(0, len(WHOLE), 25))
def test_torn_lines(end: int) -> None:
    with pytest.raises(BadInput, match=r"file: line 7: is torn or no JSON .* one whole line"):
        read_event(WHOLE[:end], FABRIC, "file: line 7")


@pytest.mark.parametrize(
    "line", ["[1]", "3", "null", '{"time_s": NaN, "event": "tick"}', '{"event": "tick", "event": "tick"}']
)
def test_lines_that_are_no_event(line: str) -> None:
    with pytest.raises(BadInput, match="file: line 7"):
        read_event(line, FABRIC, "file: line 7")
