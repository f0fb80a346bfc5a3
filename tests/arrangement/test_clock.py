"""The clock: jobs of very different iterations stepped together."""

from types import SimpleNamespace

import numpy as np
import pytest

from weft.arrangement.clock import ended_s, epochs, settled
from weft.arrangement.search import Search
from weft.errors import Unsupported
from weft.fabric.traffic import Routes, phases


def of_bytes(delay_s, bytes_):
    """A job whose iteration waits, then sends over the only link; with its route."""
    none = np.zeros(0, dtype=np.int64)
    iteration = SimpleNamespace(
        phases=phases(np.array([delay_s]), np.zeros(2, dtype=np.int64), none),
        last=0,
        phase=np.zeros(1, dtype=np.int64),
        bytes=np.array([bytes_]),
        message=np.zeros(1, dtype=np.int64),
    )
    only = Routes(indptr=np.arange(2), links=np.zeros(1, dtype=np.int64), usage=np.ones(1), latency_s=np.zeros(1))
    return iteration, only


def seconds_of(jobs, alone_s, weights):
    """Steady seconds of jobs that begin together."""

    def ended(group, counts):
        return ended_s(np.ones(1), jobs, counts, [0.0, 0.0], weights)

    return settled(ended, [[0, 1]], epochs(np.array(alone_s)), np.full(2, 2))


@pytest.mark.parametrize("times", [20, 200, 2_000, 20_000])
def test_a_job_that_is_much_shorter_than_another_slows_it_for_all_of_its_time(times):
    # In each cycle of the short job the long one has the link for a second, then half of it for two: 2 bytes in 3 s.
    jobs = [of_bytes(1.0, 1.0), of_bytes(0.0, 2.0 * times)]
    seconds = seconds_of(jobs, [2.0, 2.0 * times], [1.0, 1.0])
    assert seconds == pytest.approx([3.0, 3.0 * times], rel=2e-2)


def test_a_job_of_which_no_two_iterations_can_be_stepped_has_no_seconds(monkeypatch):
    jobs = [of_bytes(1.0, 1.0), of_bytes(0.0, 4_000.0)]
    monkeypatch.setattr("weft.arrangement.clock.MOST_STEPPED", 2_000)
    assert np.isinf(seconds_of(jobs, [2.0, 4_000.0], [1.0, 1.0])).all()


def test_a_lower_class_counts_however_long_it_waits():
    # Both always want the link: the job of weight 3 has three quarters of it.
    jobs = [of_bytes(0.0, 1.0), of_bytes(0.0, 1.0)]
    seconds = seconds_of(jobs, [1.0, 1.0], [63.0, 1.0])
    assert seconds == pytest.approx([64 / 63, 64.0], rel=1e-6)


def test_a_site_whose_jobs_cannot_be_stepped_together_is_refused(site_of, monkeypatch):
    site = site_of("a100-32", [{"layout": "tp=4,dp=4", "batch": 16}] * 2)
    monkeypatch.setattr("weft.arrangement.clock.settled", lambda ended, groups, counts, sizes: np.full(2, np.inf))
    with pytest.raises(Unsupported, match="iterations differ so much"):
        Search(site, budget_s=5).run()
