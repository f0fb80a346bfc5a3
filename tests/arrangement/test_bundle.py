"""Site files that cannot be used, and arrangements written and read back."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.arrangement.bundle import read_bundle
from weft.arrangement.contract import contracted
from weft.arrangement.schedule import BINS, circle, turned
from weft.arrangement.site import read_site
from weft.cli import main
from weft.errors import BadInput, NothingFeasible
from weft.fabric.spec import SCALE_UP
from weft.fabric.traffic import Phases
from weft.simulation.flows.graph import Graph

EXAMPLE = Path(__file__).parents[2] / "examples" / "site.toml"


def changed(tmp_path, old, new):
    text = EXAMPLE.read_text()
    assert old in text
    path = tmp_path / "site.toml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        ('"host-9"]', '"host-99"]', BadInput, "unknown host 'host-99'"),
        ('"host-9"]', '"host-5"]', BadInput, "host-5 is drained"),
        (
            "weight = 2.0",
            'hosts = ["host-0","host-1","host-3","host-4","host-6","host-8"]',
            BadInput,
            "held by running",
        ),
        ("tp=8,dp=6,sp", "tp=8,dp=12,sp", NothingFeasible, "large needs 12 hosts, 11 are free"),
        ('layout = "ep=8,pp=2,dp=16"', 'layout = "ep=8,pp=2,dp=16"\naccelerators = 64', BadInput, "64"),
        ("classes = 4", "klasses = 4", BadInput, "klasses: is not a known field"),
        ('name = "host-5"', 'name = "spare"\ndomain = 16', BadInput, "the fabric has 16 domains"),
    ],
)
def test_a_site_that_cannot_be_is_refused_with_place_and_remedy(tmp_path, old, new, error, words):
    with pytest.raises(error, match=words):
        read_site(changed(tmp_path, old, new))


def test_a_limit_that_cannot_be_kept_says_the_best_and_writes_nothing(tmp_path, monkeypatch, capsys):
    text = EXAMPLE.read_text().replace("oversubscription = [4.0]", "oversubscription = [15.0]")
    path, out = tmp_path / "site.toml", tmp_path / "out.json"
    path.write_text(text + "\n[limits]\nmax_slowdown = 1.0\n")
    monkeypatch.setattr("sys.argv", ["weft", "arrange", str(path), "-o", str(out), "--budget", "1s"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 3
    assert "the best found is 1." in capsys.readouterr().err
    assert not out.exists()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("arranged") / "arranged.json"
    found = weft.arrange(EXAMPLE, budget="2s")
    found.save(path)
    return found, path


def test_an_arrangement_read_back_keeps_its_promise(written):
    found, path = written
    bundle = read_bundle(path)
    assert bundle.choice == found.best.choice
    assert bundle.site.host_names[:5] == found.site.host_names[:5]
    assert bundle.stepped().iteration_s == pytest.approx(np.array(bundle.promised_s), rel=1e-9)
    for number, job in enumerate(bundle.site.jobs):
        alone = weft.simulate(arrangement=str(path), job=job.name, full=True)
        assert alone.iteration_s == pytest.approx(bundle.alone_here_s[number], rel=1e-9)
        row = found.to_dict()["jobs"][number]
        assert row["slurm"]["SLURM_HOSTFILE"].split() == [name for name in row["hosts"] for _ in range(8)]
        assert bundle.environments[number] == row["nccl_env"]


def test_a_job_of_an_arrangement_is_named(written):
    with pytest.raises(BadInput, match="name one: running, large, experts"):
        weft.simulate(arrangement=str(written[1]))


def test_routes_of_an_arrangement_are_those_of_its_jobs(written):
    routed = weft.route(arrangement=str(written[1]))
    assert routed.plan.traffic.jobs == tuple(job.name for job in written[0].site.jobs)
    assert (routed.plan.fabric.tier[routed.plan.routes.links] > SCALE_UP).any()


@pytest.mark.skipif(importlib.util.find_spec("altair") is None, reason="charts are an extra")
def test_the_picture_names_every_host(written):
    from weft.report.pictures.arrangement import seats_chart
    from weft.report.pictures.charts import rendered

    drawn = rendered(seats_chart(written[0]), ".svg").decode()
    assert "prefers-color-scheme:dark" in drawn
    assert all(name in drawn for name in written[0].site.host_names)


def test_contracted_phases_end_when_the_whole_do():
    draw = np.random.default_rng(0)
    for _ in range(30):
        graph = Graph()
        for number in range(12):
            waits = (
                draw.choice(number, min(number, int(draw.integers(0, 3))), replace=False).tolist() if number else []
            )
            graph.add("p", float(draw.choice([0.0, 1.0, 2.5])), waits)
        phases = graph.phases()
        flows = draw.random(12) < 0.3
        left, number = contracted(phases, flows, 11)
        ends = ends_of(left)
        whole = graph.times()[1]
        for phase in [*np.flatnonzero(flows).tolist(), 11]:
            assert ends[number[phase]] == pytest.approx(whole[phase])


def ends_of(phases: Phases) -> list[float]:
    graph = Graph()
    for phase in range(len(phases)):
        graph.add(
            "p", float(phases.delay_s[phase]), phases.waits[phases.indptr[phase] : phases.indptr[phase + 1]].tolist()
        )
    return list(graph.times()[1])


def test_circles_of_two_jobs_that_send_half_of_the_time_fit():
    wanted = np.zeros((2, 1, BINS))
    wanted[:, 0, : BINS // 2] = 1.0
    best = circle(wanted, 0)[0]
    assert turned(wanted, best) == 0.0
    assert best.tolist() in ([0, BINS // 2],)
    assert turned(wanted, np.array([0, 0])) == BINS // 2
