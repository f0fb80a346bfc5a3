"""Flight records against a walk of ranks through the same collectives, one of which stops."""

from __future__ import annotations

import logging
import random
from argparse import Namespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from weft.cli.app import cli
from weft.errors import BadInput
from weft.flights import Entry, Flight, explain, next_folder, read_flights, record_file

GROUPS = {
    "x": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "z": [[0, 2], [1, 3], [4, 6], [5, 7]],
    "data": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "x z": [[0, 1, 2, 3], [4, 5, 6, 7]],
}
WORLD = 8


def group(axes, rank):
    return next(ranks for ranks in GROUPS[axes] if rank in ranks)


def walked(program, stops, kinds=None):
    """How many collectives each rank issues and ends: one is ended when all its ranks have issued it.

    Args:
        stops: before which collective a rank stops.
    """
    issued, ended = [0] * WORLD, [0] * WORLD
    moved = True
    while moved:
        moved = False
        for rank in range(WORLD):
            if issued[rank] == ended[rank] < stops.get(rank, len(program)):
                issued[rank] += 1
                moved = True
            place = issued[rank] - 1
            if ended[rank] < issued[rank] and all(issued[one] > place for one in group(program[place], rank)):
                ended[rank] += 1
                moved = True
    return issued, ended


def flight(rank, program, issued, ended, **changed):
    entries, counts = [], dict.fromkeys(GROUPS, 0)
    for place in range(issued):
        axes = program[place]
        counts[axes] += 1
        entries.append(
            Entry(
                record_id=place,
                step=1,
                kind="all-reduce",
                process_group=axes,
                collective_seq_id=counts[axes],
                size_bytes=64,
                state="completed" if place < ended else "waiting",
                time_created_s=float(place),
                seconds=0.5 if place < ended else None,
            )
        )
    groups = {axes: group(axes, rank) for axes in GROUPS}
    made = {"cause": "ended", "reason": "SIGTERM"} | changed
    return Flight(
        rank=rank,
        world=WORLD,
        host="h",
        pid=1,
        time_s=99.0,
        step=1,
        groups=groups,
        issued=counts,
        entries=entries,
        **made,
    )


programs = st.lists(st.sampled_from(list(GROUPS)), min_size=1, max_size=30)


@given(program=programs, data=st.data())
def test_the_rank_that_stopped_is_found(program, data):
    rank = data.draw(st.integers(0, WORLD - 1))
    place = data.draw(st.integers(0, len(program) - 1))
    killed = data.draw(st.booleans())
    issued, ended = walked(program, {rank: place})
    records = {one: flight(one, program, issued[one], ended[one]) for one in range(WORLD) if one != rank or not killed}
    found = explain("run", records)
    assert found.first == (rank,)
    assert not found.circle
    assert found.mismatch is None
    for one in range(WORLD):
        stands = found.stands[one]
        if one == rank or ended[one] == len(program):
            assert stands.waits_for == ()
        else:
            wanted = [other for other in group(program[ended[one]], one) if issued[other] <= ended[one]]
            assert list(stands.waits_for) == wanted


def pytorchs(records, caplog):
    """Which collectives lack ranks by PyTorch's analyser of its own flight records: (ranks, number, missing ranks)."""
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    dumps = {
        str(rank): {
            "rank": rank,
            "version": "2.10",
            "pg_config": {axes: {"desc": axes, "ranks": str(ranks)} for axes, ranks in one.groups.items()},
            "entries": [
                {
                    "record_id": entry.record_id,
                    "process_group": (entry.process_group, entry.process_group),
                    "collective_seq_id": entry.collective_seq_id,
                    "p2p_seq_id": 0,
                    "profiling_name": "gloo:all_reduce",
                    "time_created_ns": int(entry.time_created_s * 1e9),
                    **{key: [[16]] for key in ("input_sizes", "output_sizes")},
                    **{key: ["Float"] for key in ("input_dtypes", "output_dtypes")},
                    "state": entry.state,
                    "is_p2p": False,
                    "frames": [],
                }
                for entry in one.entries
            ],
        }
        for rank, one in records.items()
    }
    asked = Namespace(verbose=False, just_print_entries=False, allow_incomplete_ranks=True, mismatch_cap=10)
    caplog.clear()
    with caplog.at_level(logging.INFO, "Flight Recorder"):
        builder.build_db(dumps, asked, "2.10")
    found, number, missing = set(), None, None
    for record in caplog.records:
        if record.msg.startswith("Not all ranks joining"):
            number, missing = record.args[0], None
        elif record.msg.startswith("missing ranks"):
            missing = frozenset(*record.args)
        elif record.msg.startswith("expected ranks") and missing is not None:
            found.add((frozenset(*record.args), number, missing))
            missing = None
    return found


def test_pytorchs_analyser_finds_the_same_ranks_missing(caplog):
    dice, compared = random.Random(1), 0
    for _ in range(20):
        program = [dice.choice(list(GROUPS)) for _ in range(20)]
        issued, ended = walked(program, {dice.randrange(WORLD): dice.randrange(len(program))})
        records = {one: flight(one, program, issued[one], ended[one]) for one in range(WORLD)}
        waiting = [stand for stand in explain("run", records).stands if stand.waits_for]
        ours = {
            (frozenset(group(one.at.process_group, one.rank)), one.at.collective_seq_id, frozenset(one.waits_for))
            for one in waiting
        }
        assert ours == pytorchs(records, caplog)
        compared += len(ours)
    assert compared > 20


@given(program=programs, data=st.data())
def test_the_first_collective_that_differs_is_named(program, data):
    rank, place = data.draw(st.integers(0, WORLD - 1)), data.draw(st.integers(0, len(program) - 1))
    change = data.draw(st.sampled_from([{"kind": "all-gather"}, {"size_bytes": 65}]))
    records = {one: flight(one, program, len(program), len(program)) for one in range(WORLD)}
    entries = list(records[rank].entries)
    for later in range(place, len(program)):
        entries[later] = entries[later].model_copy(update=change)
    records[rank] = records[rank].model_copy(update={"entries": entries})
    found = explain("run", records).mismatch
    assert rank in found.ranks
    assert set(found.ranks) <= set(group(program[place], rank))
    assert found.entries[0].record_id == place
    assert f"over {program[place]} (step 1): rank {found.ranks[0]} issued" in found.words


def test_ranks_that_wait_for_each_other_are_a_circle():
    """Two ranks take two collectives in turned order."""
    records = {one: flight(one, [], 0, 0) for one in range(WORLD)}
    records[0], records[1] = flight(0, ["x"], 1, 0), flight(1, ["x z"], 1, 0)
    records |= {one: flight(one, ["x z"], 1, 0) for one in (2, 3)}
    found = explain("run", records)
    assert set(found.circle) == {0, 1}
    assert found.first == ()


def message(kind, rank, peer, state="scheduled"):
    of = "forward of micro-batch 3 to stage 1"
    return Entry(record_id=9, step=1, kind=kind, of=of, peer=peer, state=state, time_created_s=5.0)


def between(*entries, rank):
    return flight(rank, [], 0, 0).model_copy(update={"entries": list(entries)})


def test_a_stage_waits_for_what_was_not_sent():
    passing = Entry(record_id=3, step=1, kind="forward", of="micro-batch 3", state="scheduled", time_created_s=2.0)
    records = {one: flight(one, [], 0, 0) for one in range(WORLD)}
    records[0], records[4] = between(passing, rank=0), between(message("receive", 4, 0), rank=4)
    found = explain("run", records)
    assert found.first == (0,)
    assert found.stands[4].waits_for == (0,)
    records[0] = between(message("send", 0, 4), rank=0)
    assert explain("run", records).stands[4].waits_for == ()


def test_of_several_stops_the_earliest_comes_first_and_a_dead_rank_before_all():
    program = ["x"] * 6
    issued, ended = walked(program, {0: 4, 2: 1, 5: 3})
    records = {one: flight(one, program, issued[one], ended[one]) for one in range(WORLD) if one != 5}
    assert explain("run", records).first == (5, 2, 0)


def test_a_failure_for_which_nobody_waits():
    records = {one: flight(one, ["x"], 1, 1) for one in range(WORLD)}
    records[6] = flight(6, ["x"], 1, 1, cause="error", reason="a bug")
    assert explain("run", records).first == (6,)


def written(run, records):
    folder = next_folder(run)
    folder.mkdir(parents=True)
    for one in records:
        record_file(folder, one.rank).write_text(one.model_dump_json())
    return folder


def test_explain_reads_the_newest_records_of_a_run(tmp_path):
    run = tmp_path / "out"
    written(run, [flight(rank, ["x"], 1, 1) for rank in range(WORLD)])
    program = ["z", "x z", "x"]
    issued, ended = walked(program, {3: 1})
    folder = written(run, [flight(one, program, issued[one], ended[one]) for one in range(WORLD) if one != 3])
    assert folder.name == "flight-0002"
    done = CliRunner().invoke(cli, ["explain", str(run)])
    assert done.exit_code == 0
    said = " ".join(done.output.split())
    assert "7 of 8 ranks left a record" in said
    assert "Rank 3 left no record" in said
    assert "ranks 0, 1, 2 wait for it in all-reduce 1 over x z of step 1" in said
    assert read_flights(folder) == read_flights(run)


def test_what_is_no_record_is_refused(tmp_path):
    with pytest.raises(BadInput, match="holds no flight records"):
        read_flights(tmp_path)
    folder = written(tmp_path, [flight(0, ["x"], 1, 1)])
    (folder / "rank-1.json").write_text(flight(0, ["x"], 1, 1).model_dump_json())
    with pytest.raises(BadInput, match=r"rank-1\.json: is not of the same run"):
        read_flights(tmp_path)
    (folder / "rank-1.json").write_text("{}")
    with pytest.raises(BadInput, match=r"rank-1\.json: rank: is missing"):
        read_flights(tmp_path)
