"""A site's state on disk: with the same site, or not at all."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from online_sites import STORY, events, idle_site

from weft.arrangement.online import SiteController
from weft.arrangement.site_store import FILE, SiteStore
from weft.errors import BadInput


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    site = idle_site(tmp_path)
    controller = SiteController(site, steps=2)
    with closing(SiteStore(tmp_path / "state", controller)) as store:
        for event in events(site, STORY[:7]):
            store.save(event.text, decision := controller.apply(event), repr(decision))
    return tmp_path / "state"


def reload(folder: Path) -> int:
    with closing(SiteStore(folder, SiteController(idle_site(folder.parent), steps=2))) as store:
        return store.load()


def test_it_reads_back(saved):
    assert reload(saved) == 7


def test_the_state_of_another_is_refused(saved):
    site = idle_site(saved.parent)
    others = {
        "site": SiteController(replace(site, classes=2), steps=2),
        "seed": SiteController(site, steps=2, seed=1),
        "steps": SiteController(site, steps=3),
    }
    for what, controller in others.items():
        with pytest.raises(BadInput, match=f"state of another {what}"):
            SiteStore(saved, controller)


@pytest.mark.parametrize(
    "change",
    [
        "update about set value = '{' where name = 'state'",
        "update about set value = replace(value, '\"order\": 0', '\"order\": -1') where name = 'state'",
        "update about set value = replace(value, '\"ecmp\"', '\"guess\"') where name = 'state'",
        "update about set value = replace(value, '\"hosts\": [', '\"hosts\": [99, ') where name = 'state'",
        "update about set value = replace(value, '\"leaf-0\"', '\"nowhere\"') where name = 'state'",
        "update about set value = replace(value, '\"c\":', '\"a\":') where name = 'state'",
        "update about set value = 'many' where name = 'count'",
        "delete from about where name = 'state'",
        "delete from jobs where name = 'c'",
        "update jobs set job = '[]' where name = 'c'",
        "update jobs set job = replace(job, '\"domains\": 4', '\"domains\": 3') where name = 'c'",
        "delete from decisions where number = 2",
        "drop table jobs",
    ],
)
def test_broken_values_are_named(saved, change):
    with closing(sqlite3.connect(saved / FILE)) as base:
        base.execute(change)
        base.commit()
    with pytest.raises(BadInput, match=r"is damaged: .* -- restore a copy of the folder, or give an empty one"):
        reload(saved)
