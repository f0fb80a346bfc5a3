"""Fifty users at once, each with form, plan, layout, charts, launch file and document; no answer is wrong."""

from __future__ import annotations

import asyncio

import pytest


@pytest.mark.slow
def test_fifty_users_at_once_meet_no_error(page_benchmark, address):
    pytest.importorskip("httpx")
    pytest.importorskip("altair")
    taken = asyncio.run(page_benchmark.visits(address, page_benchmark.USERS))
    assert len(taken) == 6 * page_benchmark.USERS
    assert max(taken) < 120
