"""Job files of the routing paper: read, refused; the closed forms of its jobs."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric.families import clos, rail
from weft.interop.routing_jobs import COLUMNS, Numbering, numbering, paper_fabric, parse_job, read_jobs
from weft.routing.generate import MODELS, flow_bytes
from weft.routing.plan import plan
from weft.routing.traffic import check_traffic

PAPER = Numbering()
RING = """\
# src dst src_tor dst_tor start_time flow_size compute_time stage_index
96 128 0 1 2500000000 1000 1238770000 0
128 96 1 0 2500000000 1000 1238770000 0

97 129 0 1 2500000000 2000 1238770000 3
129 160 1 2 2500000000 2000 1238770000 3
160 97 2 0 2500000000 2000 1238770000 3
"""
TIMES = {
    ("BLOOM", 2): (7_333_333_334, 1.17333),
    ("BLOOM", 4): (3_666_666_667, 1.76),
    ("BLOOM", 8): (1_833_333_334, 2.05333),
    ("GPT_3", 2): (5_468_750_000, 0.875),
    ("GPT_3", 4): (2_734_375_000, 1.3125),
    ("GPT_3", 8): (1_367_187_500, 1.53125),
    ("LLaMA2_70B", 2): (1_093_750_000, 0.175),
    ("LLaMA2_70B", 4): (546_875_000, 0.2625),
}
"""Bytes of a flow, and seconds of an all-reduce without collisions."""


def read(text, form=PAPER):
    return parse_job(text, "job", form, "job_0-BLOOM.txt")


def test_a_file_is_a_job_of_rings():
    found = read(RING)
    assert found.source.tolist() == [0, 32, 1, 33, 64]
    assert found.target.tolist() == [32, 0, 33, 64, 1]
    assert found.bytes.tolist() == [1000, 1000, 2000, 2000, 2000]
    assert found.collective.tolist() == [0, 0, 1, 1, 1]
    assert found.rounds.tolist() == [2, 4]
    assert found.names == ("stage 0", "stage 3")
    assert found.jobs == ("job",)
    assert found.start_s.tolist() == [2.5]
    assert found.pause_s.tolist() == [1.23877]
    check_traffic(paper_fabric(), found)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("129 160 1 2 2500000000 2000 1238770000 3", "129 160 1 2 25000", "line 6.*is not a flow.*8 whole"),
        ("129 160 1 2 2500000000 2000 1238770000 3", "129 160 1 2 2500000000 2e3 1238770000 3", "line 6"),
        ("129 160 1 2 2500000000 2000 1238770000 3", "129 160 1 2 2500000000 -5 1238770000 3", "line 6"),
        ("1000 1238770000 0\n128", "1000 12387700000000000000000 0\n128", "line 2"),
        ("96 128 0 1", "96 128 0 2", "host 128 is not below ToR 2"),
        ("96 128 0 1", "96 128 1 1", "host 96 is not below ToR 1"),
        ("96 128 0 1", "95 128 0 1", "node 95 is not a host.*hosts are 96 to 2143"),
        ("160 97 2 0", "160 2144 2 64", "node 2144 is not a host"),
        ("160 97 2 0", "160 98 2 0", "stage 1 is not a ring"),
        ("129 160 1 2 2500000000 2000 1238770000 3\n", "", "is not a ring"),
        ("128 96 1 0 2500000000 1000", "128 96 1 0 2600000000 1000", "differ in start_time"),
        ("1238770000 0\n128", "1 0\n128", "differ in start_time or compute_time"),
        ("0\n\n97", "3\n\n97", "holds rings of 2 and 3"),
        (RING, "", "holds no flow"),
        (RING, f"#{COLUMNS}\n", "holds no flow"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(old, new, what):
    text = RING.replace(old, new)
    if "rings of" in what:
        text = RING.replace("1238770000 0", "1238770000 3")
    assert text != RING
    with pytest.raises(BadInput, match=what):
        read(text)


def test_a_file_cut_anywhere_is_read_or_refused():
    whole = read(RING)
    for length in range(len(RING)):
        with suppress(BadInput):
            assert len(read(RING[:length])) in (2, len(whole))


def test_a_host_alone_is_no_flow_to_route():
    alone = read("96 96 0 0 1 1 1 0\n")
    with pytest.raises(BadInput, match="to themselves"):
        check_traffic(paper_fabric(), alone)


def test_folders_are_read_by_the_number_of_the_job(tmp_path):
    for name in ("job_10-B.txt", "job_2-A.txt", "notes.txt", "job_x-A.txt", "job_1-C.txt.bak"):
        (tmp_path / name).write_text(RING if name.startswith("job_") else "no job", encoding="utf-8")
    found = read_jobs(tmp_path)
    assert found.jobs == ("job_2-A", "job_10-B")
    assert found.flow_job.tolist() == [0] * 5 + [1] * 5
    assert found.collective.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]


def test_folders_without_jobs_are_refused(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_jobs(tmp_path / "missing")
    with pytest.raises(BadInput, match=r"holds no job file.*job_0-BLOOM\.txt"):
        read_jobs(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BadInput, match="cannot be read"):
        read_jobs(tmp_path / "file")
    for name in ("job_0-A.txt", "job_00-A.txt"):
        (tmp_path / name).write_text(RING, encoding="utf-8")
    with pytest.raises(BadInput, match="two jobs are called job_0-A"):
        read_jobs(tmp_path)
    (tmp_path / "job_1-A.txt").mkdir()
    with pytest.raises(BadInput):
        read_jobs(tmp_path)


@given(seed=st.integers(0, 10_000))
def test_any_rings_are_read(seed):
    draw = np.random.default_rng(seed)
    form = Numbering(tors=int(draw.integers(1, 9)), spines=int(draw.integers(1, 9)), hosts_per_tor=3)
    start, pause = draw.integers(0, 10**11), draw.integers(0, 10**10)
    lines, flows, rounds = [f"#{COLUMNS}"], [], []
    for number in range(int(draw.integers(1, 5))):
        members, size = draw.permutation(form.hosts)[: int(draw.integers(2, 9))].tolist(), draw.integers(1, 10**12)
        rounds.append(2 * (len(members) - 1))
        for a, b in zip(members, members[1:] + members[:1], strict=True):
            ends = f"{form.first_host + a} {form.first_host + b} {a // 3} {b // 3}"
            lines.append(f"{ends} {start} {size} {pause} {number}")
            flows.append((a, b, float(size), number))
    found = read("\n".join(lines), form)
    columns = (found.source, found.target, found.bytes, found.collective)
    assert list(zip(*(each.tolist() for each in columns), strict=True)) == flows
    assert (found.rounds.tolist(), found.start_s[0], found.pause_s[0]) == (rounds, start / 1e9, pause / 1e9)
    check_traffic(paper_fabric(form), found)


@pytest.mark.parametrize("form", [(64, 32, 32), (12, 2, 2), (4, 4, 4), (3, 7, 2), (1, 1, 5), (9, 2, 6)])
def test_the_network_of_a_numbering_is_what_it_numbers(form):
    """Names of nodes apart, any two-layer network: also where a switch has ports left, or too few."""
    wanted = Numbering(tors=form[0], spines=form[1], hosts_per_tor=form[2])
    fabric = paper_fabric(wanted)
    assert numbering(fabric) == wanted
    assert len(fabric.nodes_of("leaf")) == wanted.tors
    assert len(fabric.nodes_of("spine")) == wanted.spines
    assert fabric.links == 2 * (wanted.hosts + wanted.tors * wanted.spines)
    assert len(set(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True))) == fabric.links
    assert np.all(fabric.capacity_Bps == 12.5e9)
    assert np.all(fabric.latency_s == 0)
    nics = fabric.source < fabric.accelerators
    leaf = fabric.target[nics] - fabric.nodes_of("leaf")[0]
    assert np.array_equal(leaf, fabric.source[nics] // wanted.hosts_per_tor)


def test_the_papers_network_is_the_full_clos_of_64_port_switches():
    built, paper = clos.build(2048, radix=64, bandwidth_Bps=12.5e9, tiers=2), paper_fabric()
    for field in ("source", "target", "capacity_Bps", "cables", "tier", "role"):
        assert np.array_equal(getattr(built, field), getattr(paper, field))


def test_networks_whose_leaves_differ_have_no_numbering():
    with pytest.raises(BadInput, match="not in order below leaves of one size"):
        numbering(clos.build(30, radix=8, bandwidth_Bps=1e9, tiers=2))
    with pytest.raises(BadInput):
        numbering(rail.optimized(30, radix=8, bandwidth_Bps=1e9, planes=2))


@pytest.mark.parametrize(("model", "ring"), TIMES)
def test_flow_sizes_and_times_of_the_papers_jobs(model, ring):
    """The closed form 2 (r - 1) size / bandwidth, and the same of a file on the paper's network."""
    size, seconds = TIMES[model, ring]
    assert flow_bytes(MODELS[model], ring) == size
    assert 2 * (ring - 1) * size / 12.5e9 == pytest.approx(seconds, rel=1e-5)
    hosts = [32 * tor for tor in range(ring)]
    lines = [
        f"{96 + a} {96 + b} {a // 32} {b // 32} 0 {size} 0 0"
        for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True)
    ]
    job = plan(paper_fabric(), read("\n".join(lines))).jobs[0]
    assert job.all_reduce_s == job.alone_s == pytest.approx(seconds, rel=1e-5)


def test_the_papers_job_files_hold_its_jobs():
    folder = os.environ.get("WEFT_ROUTING_JOBS")
    if not folder:
        pytest.skip("WEFT_ROUTING_JOBS is not set")
    seen = set()
    for group in sorted(Path(folder).glob("concurrent_jobs_*/ring_size_*")):
        found = read_jobs(group)
        jobs, ring = int(group.parent.name.split("_")[-1]), int(group.name.split("_")[-1])
        assert len(found.jobs) == jobs
        check_traffic(paper_fabric(), found)
        for number, name in enumerate(found.jobs):
            model = name.split("-", 1)[1]
            size = 2 if (model, ring) == ("LLaMA2_70B", 8) else ring
            one = found.only([number])
            assert one.rounds.tolist() == [2 * (size - 1)] * MODELS[model].stages
            assert set(one.bytes.tolist()) == {flow_bytes(MODELS[model], size)}
            assert one.pause_s[0] == pytest.approx(MODELS[model].pause_s, abs=1e-5)
            assert 1 <= one.start_s[0] - one.pause_s[0] <= 10
            seen.add((model, size))
    assert seen == set(TIMES)
