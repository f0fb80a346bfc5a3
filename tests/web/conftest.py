"""A client of the page, without a browser."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("starlette")
    pytest.importorskip("httpx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from starlette.testclient import TestClient
    from weft.web.app import application
    from weft.web.work import Limits, Pool

    pool = Pool(Limits(time_s=120))
    yield TestClient(application(pool, tmp_path_factory.mktemp("state"), ["testserver"]))
    pool.close()
