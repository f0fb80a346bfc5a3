"""``weft route``: plan, watch, export and events, and one clear line for every bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from weft import schema
from weft.routing.controller import Controller
from weft.routing.store import Store

Run = Callable[..., tuple[int, str, str]]

FLOWS = "source,target,bytes,job\n" + "".join(f"{i},{(i + 5) % 32},1GB,{'ab'[i % 2]}\n" for i in range(32))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network of 8 leaves and 4 spines, and flows on it."""
    from weft.fabric.families import clos
    from weft.fabric.files import fabric_to_json

    monkeypatch.chdir(tmp_path)
    fabric = clos.build(16, radix=4, bandwidth_Bps=50e9, tiers=3)
    (tmp_path / "deep.json").write_text(fabric_to_json(fabric))
    (tmp_path / "net.json").write_text(fabric_to_json(clos.build(32, radix=8, bandwidth_Bps=50e9, tiers=2)))
    (tmp_path / "flows.csv").write_text(FLOWS)
    return tmp_path


DISCOVERED = (Path(__file__).parents[1] / "goldens" / "inputs" / "net.txt").read_text()
SMALL = ("route", "--fabric", "net.json", "--flows", "flows.csv")
PLANNED = ("route", "--cluster", "h100-32", "--radix", "8", "--fabric", "fat-tree")


def as_json(weft: Run, *arguments: str) -> dict:
    code, out, err = weft(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_failures_leave_paths(weft: Run, here: Path) -> None:
    names = ("--failed", "spine-0", "--failed", "leaf-0:spine-1", "--failed", "spine-3", "--paths")
    found = as_json(weft, *SMALL, *names)
    used = {pair for flow in found["flows"] for pair in zip(flow["path"], flow["path"][1:], strict=False)}
    nodes = {node for pair in used for node in pair}
    assert not nodes & {"spine-0", "spine-3"}
    assert not used & {("leaf-0", "spine-1"), ("spine-1", "leaf-0")}


def test_measured_flows_are_recognised_routed_and_exported(weft: Run, here: Path) -> None:
    rows = [f"{k},{(k + 4) % 16},1e9,{2 * n}.0,{2 * n}.3\n" for n in range(12) for k in range(16)]
    Path("measured.csv").write_text("source,target,bytes,start_s,end_s\n" + "".join(rows))
    given = ("--fabric", "net.json", "--demand", "measured.csv")
    code, out, _ = weft("route", *given)
    assert code == 0
    assert out.startswith("Planned routes: no job's communication is slowed down by collisions")
    assert "Recognised 1 job in 192 records" in out
    assert "4 x ring of 4" in out
    found = as_json(weft, "route", *given, "--paths")
    assert found["alpha"] == 1.0
    (job,) = found["demand"]["jobs"]
    assert (job["accelerators"], job["period_s"], job["bytes"]) == (list(range(16)), 2.0, 16e9)
    Path("routes.json").write_text(json.dumps(found))
    audit = as_json(weft, "route", "audit", "--routes", "routes.json", *given)
    assert audit["demand"] == found["demand"]
    event = json.loads(weft("route", "export", "events", *given)[1])
    assert (event["job"], len(event["flows"])) == ("measured 0", 16)


def test_planned_jobs_lie_side_by_side(weft: Run) -> None:
    jobs = ("--job", "llama-3.1-8b tp=8,dp=2", "--job", "llama-3.1-8b tp=8,dp=2")
    found = as_json(weft, *PLANNED, *jobs, "--paths")
    assert [one["job"] for one in found["jobs"]] == ["job 0: llama-3.1-8b", "job 1: llama-3.1-8b"]
    hosts = [{flow["source"] for flow in found["flows"] if flow["job"].startswith(f"job {i}")} for i in (0, 1)]
    assert hosts == [{f"accelerator-{i + 16 * j}" for i in range(16)} for j in (0, 1)]


# Exports ----------------------------------------------------------------------------------------


def test_adapters_that_name_no_host_are_told_of_and_can_be_left_out(weft: Run, here: Path) -> None:
    text = DISCOVERED.replace('"host20"', '"MT4123 ConnectX6"')
    Path("net.txt").write_text(text)
    Path("flows.csv").write_text("source,target,bytes\n0,2,1GB\n")
    arguments = ("route", "export", "opensm", "--fabric", "net.txt", "--flows", "flows.csv")
    code, _, err = weft(*arguments, "-o", "out")
    assert code == 0
    assert err.startswith("Warning: net.txt: 1 of 6 adapters name no host, as 'MT4123 ConnectX6': ")
    code, _, err = weft(*arguments, "--exclude", "MT4123*", "-o", "less")
    assert (code, "Warning" in err) == (0, False)
    Path("hosts").write_text("".join(f'0x{16 * lid:x} "gpu{lid}"\n' for lid in range(30, 36)))
    code, _, err = weft(*arguments, "--host-map", "hosts", "-o", "mapped")
    assert (code, "Warning" in err) == (0, False)


# Watch and events -------------------------------------------------------------------------------

EVENTS = [
    {"time_s": 2, "event": "switch-down", "switch": "spine-0"},
    {"time_s": 3, "event": "link-down", "link": ["leaf-1", "spine-1"]},
    {"time_s": 4, "event": "switch-up", "switch": "spine-0"},
    {"time_s": 5, "event": "tick"},
    {"time_s": 6, "event": "job-ends", "job": "a"},
]
WATCH = ("route", "watch", "--fabric", "net.json", "--format", "json")


@pytest.fixture
def story(weft: Run, here: Path) -> list[str]:
    """Arrivals of both jobs, and what happens then."""
    code, out, err = weft("route", "export", "events", *SMALL[1:], "--at", "1")
    assert (code, err) == (0, "")
    lines = out.splitlines() + [json.dumps(event) for event in EVENTS]
    assert len(lines) == 7
    Path("story.jsonl").write_text("\n".join(lines) + "\n")
    return lines


def test_a_watched_story(weft: Run, story: list[str]) -> None:
    code, out, err = weft(*WATCH, "--events", "story.jsonl")
    assert (code, err) == (0, "")
    said = [json.loads(line) for line in out.splitlines()]
    assert [one["number"] for one in said] == list(range(1, 8))
    assert [one["time_s"] for one in said] == [1, 1, 2, 3, 4, 5, 6]
    assert [one["flows"] for one in said] == [16, 32, 32, 32, 32, 32, 16]
    obeys = Draft202012Validator(schema("route-decision"))
    assert [error.message for one in said for error in obeys.iter_errors(one)] == []
    assert not obeys.is_valid(said[0] | {"unknown": 1})
    for one in said:
        assert one["alpha"] >= one["alpha_bound"]
        assert sum(move["new"] for move in one["moves"]) == one["placed"]
        assert len(one["moves"]) == one["placed"] + one["moved"]
    assert all("spine-0" not in move["path"] for one in said[2:4] for move in one["moves"])
    assert weft(*WATCH, "--events", "story.jsonl") == (code, out, err)
    code, table, _ = weft(*WATCH[:4], "--events", "story.jsonl")
    assert code == 0
    assert len(table.splitlines()) == 1 + 1 + 7 + 1
    assert table.splitlines()[-1].startswith("7 decisions: ")
    code, again, _ = weft(*WATCH[:4], "--events", "story.jsonl", "--state", "drawn", "--chart", "over-time.svg")
    assert (code, again) == (0, table)
    # A restart draws what was decided before as well.
    first = Path("over-time.svg").read_bytes()
    assert weft(*WATCH[:4], "--events", "story.jsonl", "--state", "drawn", "--chart", "over-time.svg")[0] == 0
    assert Path("over-time.svg").read_bytes() == first
    assert b"best possible" in first


@pytest.mark.parametrize("stop", [0, 1, 4, 7])
def test_a_state_goes_on(weft: Run, story: list[str], stop: int) -> None:
    _, whole, _ = weft(*WATCH, "--events", "story.jsonl")
    Path("part.jsonl").write_text("\n".join(story[:stop]))
    code, first, err = weft(*WATCH, "--state", "state", "--events", "part.jsonl")
    assert (code, err) == (0, "")
    code, rest, err = weft(*WATCH, "--state", "state", "--events", "story.jsonl")
    assert (code, err) == (0, "")
    assert first + rest == whole
    assert weft(*WATCH, "--state", "state", "--events", "story.jsonl") == (0, "", "")


def test_another_story_in_the_same_folder(weft: Run, story: list[str]) -> None:
    weft(*WATCH, "--state", "state", "--events", "story.jsonl")
    Path("other.jsonl").write_text("\n".join([story[1], story[0]]))
    code, out, err = weft(*WATCH, "--state", "state", "--events", "other.jsonl")
    assert (code, out) == (2, "")
    assert "is not event 1 of the state in state" in err
    for options in (("--seed", "1"), ("--fabric", "deep.json")):
        watch = [one for one in WATCH if options[0] != "--fabric" or one not in ("--fabric", "net.json")]
        code, out, err = weft(*watch, *options, "--state", "state", "--events", "story.jsonl")
        assert (code, out) == (2, "")
        assert err.startswith("Error: state: holds the state of another ")
    (Path("state") / "controller.sqlite").write_bytes(b"junk" * 500)
    code, out, err = weft(*WATCH, "--state", "state", "--events", "story.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith("Error: state: cannot be used: ")
    assert err.count("\n") == 1


def test_a_torn_line_stops_after_the_whole_ones(weft: Run, story: list[str]) -> None:
    Path("torn.jsonl").write_text("\n".join(story[:3]) + "\n" + story[3][:20])
    code, out, err = weft(*WATCH, "--state", "state", "--events", "torn.jsonl")
    assert code == 2
    assert len(out.splitlines()) == 3
    assert err.startswith("Error: torn.jsonl: line 4: is torn or no JSON")
    assert err.count("\n") == 1
    code, out, err = weft(*WATCH, "--state", "state", "--events", "story.jsonl")
    assert (code, len(out.splitlines()), err) == (0, 4, "")


def test_installed_routes_measured_and_pushed(weft: Run, here: Path) -> None:
    """The first decision says what few moves gain; counters of a file come between; a command gets it all."""
    code, text, err = weft(*SMALL, "--router", "ecmp", "--format", "json", "--paths")
    assert (code, err) == (0, "")
    Path("installed.json").write_text(text)
    Path("net.csv").write_text("time_s,source,target,loss\n5,leaf-0,spine-0,0.01\n900,leaf-0,spine-0,0\n")
    Path("later.jsonl").write_text('{"time_s": 7, "event": "tick"}\n')
    script = Path("push.py")
    script.write_text(PUSH)
    asked = (*WATCH, "--routes", "installed.json", "--counters", "net.csv", "--events", "later.jsonl")
    command = f"{sys.executable} push.py 'a b' $HOME;"
    code, out, err = weft(*asked, "--apply", command, "--push", "--state", "state")
    assert (code, err) == (0, "")
    said = [json.loads(line) for line in out.splitlines()]
    assert [one["event"] for one in said] == ["installed", "counters", "tick", "counters"]
    assert all(Draft202012Validator(schema("route-decision")).is_valid(one) for one in said)
    assert said[0]["efficiency"]["before"] < said[0]["efficiency"]["after"] == said[0]["efficiency"]["bound"] == 1
    assert [one["kind"] for one in said[1]["changes"]] == ["avoided"]
    assert [one["push"] for one in said] == ["applied", "applied", "none", "applied" if said[3]["moves"] else "none"]
    runs = [json.loads(line) for line in Path("runs").read_text().splitlines()]
    assert [one["words"] for one in runs] == [["a b", "$HOME;"]] * len(runs)
    assert [(one["action"], one["number"]) for one in runs[:2]] == [("apply", "1"), ("apply", "2")]
    for run, one in zip(runs, said, strict=False):
        assert run["flows"] == 32
        assert run["moves"] == one["placed"] + one["moved"] == run["diff"].count("@@")
        assert run["diff"].count("\n+") == run["diff"].count("\n-") == run["moves"]
    assert weft(*asked, "--state", "state")[:2] == (0, "")
    assert weft(*asked, "--seed", "0", "--apply", command, "--push", "--state", "two")[1] == out


@pytest.mark.parametrize(
    "given",
    [("--counters", "empty.csv"), ("--events", "none.jsonl"), ("--events", "empty.csv", "--counters", "junk.csv")],
)
def test_nothing_is_decided_or_pushed_before_the_inputs_are_read(
    weft: Run, here: Path, given: tuple[str, ...]
) -> None:
    Path("installed.json").write_text(weft(*SMALL, "--router", "ecmp", "--format", "json", "--paths")[1])
    Path("empty.csv").write_text("")
    Path("junk.csv").write_text("\0\1")
    Path("push.py").write_text(PUSH)
    apply = ("--apply", f"{sys.executable} push.py", "--push")
    code, out, err = weft(*WATCH, "--routes", "installed.json", *given, *apply)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_routes_that_are_given_are_written(weft: Run, here: Path) -> None:
    """What a command of --apply gets is what is exported."""
    asked = (*SMALL, "--router", "greedy", "--format", "json", "--paths", "-o", "given.json")
    assert weft(*asked)[0] == 0
    code, out, err = weft("route", "export", "json", "--fabric", "net.json", "--routes", "given.json")
    assert (code, err) == (0, "")
    given = json.loads(Path("given.json").read_text())["flows"]
    assert [flow["path"] for flow in json.loads(out)["flows"]] == [flow["path"] for flow in given]


PUSH = """
import json, os, sys
routes, diff = sys.argv[-2:]
assert (routes, diff) == (os.environ["WEFT_ROUTES"], os.environ["WEFT_DIFF"])
said = json.loads(sys.stdin.readline())
with open("runs", "a") as file:
    about = {"words": sys.argv[1:-2], "action": os.environ["WEFT_ACTION"], "number": os.environ["WEFT_EVENT"]}
    about |= {"flows": len(json.load(open(routes))["flows"]), "diff": open(diff).read(), "moves": len(said["moves"])}
    print(json.dumps(about), file=file)
sys.exit(json.load(open("codes")).pop(0) if os.path.exists("codes") and about["action"] == "apply" else 0)
"""


def test_a_command_that_fails_is_called_again_with_the_former_routes(weft: Run, story: list[str]) -> None:
    Path("push.py").write_text(PUSH)
    Path("codes").write_text("[3]")
    asked = (*WATCH, "--events", "story.jsonl", "--apply", f"{sys.executable} push.py", "--push", "--state", "state")
    code, out, err = weft(*asked)
    assert (code, err) == (0, "")
    said = [json.loads(line) for line in out.splitlines()]
    assert said[0]["push"] == "rolled-back"
    assert (said[0]["routes"], said[0]["moves"], said[0]["efficiency"]["after"]) == ("rolled-back", [], 0)
    runs = [json.loads(line) for line in Path("runs").read_text().splitlines()]
    assert [(one["action"], one["flows"]) for one in runs[:3]] == [("apply", 16), ("rollback", 0), ("apply", 32)]
    assert runs[1]["diff"] == runs[0]["diff"].replace("\n+", "\n-")
    table = weft(*WATCH[:4], "--events", "story.jsonl", *asked[-5:-2])[1]
    assert "exits with 3: the old routes stay" in table
    assert "rolled back" in table


def test_a_command_that_fails_both_ways_stops_the_controller(
    weft: Run, story: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("fail.py").write_text("import sys; print('no link to the switch', file=sys.stderr); sys.exit(4)")
    asked = (*WATCH, "--events", "story.jsonl", "--apply", f"{sys.executable} fail.py", "--push", "--state", "state")
    code, out, err = weft(*asked)
    assert (code, len(out.splitlines())) == (2, 1)
    assert "apply exits with 4 (no link to the switch), rollback exits with 4" in err
    assert err.count("\n") == 1
    Path("fail.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr("weft.commands.route_watch.LIMIT_S", 0.2)
    code, out, err = weft(*asked)
    assert "apply ran for more than 0.2 s" in err


def started(*arguments: str, **streams: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from weft.commands.app import main; main()", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **streams)


def test_a_live_stream_survives_bad_events(weft: Run, story: list[str]) -> None:
    """Each is reported in a line; the decisions are those without it.  In a file it is an error."""
    bad = ['{"time_s": 1, "event": "job-ends", "job": "nobody"}', story[4][:9], '{"time_s": 1, "event": "explodes"}']
    bad.append('{"time_s": 1, "event": "tick", "source": 1}')
    mixed = [story[0], *bad, *story[1:]]
    Path("mixed.jsonl").write_text("\n".join(mixed))
    code, _, err = weft(*WATCH, "--events", "mixed.jsonl")
    assert (code, err) == (2, "Error: mixed.jsonl: line 2: there is no job 'nobody' -- name one that runs\n")
    running = started(*WATCH, stderr=subprocess.PIPE)
    out, said = running.communicate("\n".join(mixed).encode())
    assert running.returncode == 0
    assert out.decode() == weft(*WATCH, "--events", "story.jsonl")[1]
    lines = said.decode().splitlines()
    assert [line.split(" line ")[1][0] for line in lines] == ["2", "3", "4", "5"]
    assert lines[-1].endswith("source: is not a known field -- remove it")
    assert all(line.startswith("Passed over: standard input: ") for line in lines)


def test_a_killed_controller_goes_on(weft: Run, story: list[str]) -> None:
    """Killed while it waits for more: what it printed is on disk, a second is refused, a third goes on."""
    _, whole, _ = weft(*WATCH, "--events", "story.jsonl")
    running = started(*WATCH, "--state", "state")
    assert running.stdin is not None
    assert running.stdout is not None
    try:
        said = []
        for line in story[:3]:
            running.stdin.write(line.encode() + b"\n")
            running.stdin.flush()
            said.append(running.stdout.readline().decode())
        code, out, err = weft(*WATCH, "--state", "state", "--events", "story.jsonl")
        assert (code, out) == (2, "")
        assert err == "Error: state: is in use by another controller -- give it its own folder\n"
        running.stdin.write(story[3].encode() + b"\n" + story[4][:9].encode())
        running.stdin.flush()
    finally:
        os.kill(running.pid, signal.SIGKILL)
        said += [line.decode() for line in running.stdout.readlines() if line.endswith(b"\n")]
        running.stdin.close()
        running.stdout.close()
        assert running.wait() == -signal.SIGKILL
    from weft.interop.fabric_files import read_fabric

    controller = Controller(read_fabric("net.json"))
    store = Store("state", controller)
    done = store.load()
    texts = store.base.execute("select decision from decisions order by number")
    stored = [f"{text}\n" for (text,) in texts]
    store.close()
    assert len(said) <= done <= 4
    assert stored[: len(said)] == said == whole.splitlines(keepends=True)[: len(said)]
    code, rest, err = weft(*WATCH, "--state", "state", "--events", "story.jsonl")
    assert (code, err) == (0, "")
    assert "".join(stored) + rest == whole


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("text", [bytes(range(128, 256)) + b"\n", b'{"time_s": 0, "eve'])
def test_nonsense_on_standard_input(here: Path, text: bytes) -> None:
    """It is passed over: one bad event leaves a network with its controller."""
    running = started(*WATCH, stderr=subprocess.PIPE)
    out, err = running.communicate(text)
    assert (running.returncode, out) == (0, b"")
    assert err.startswith(b"Passed over: standard input")
    assert err.count(b"\n") == 1


# Bad input --------------------------------------------------------------------------------------

FILES = {
    "strange.csv": "source,target,bytes\n0,99,5\n",
    "self.csv": "source,target,bytes\n3,3,5\n",
    "back.csv": "source,target,bytes,start_s,end_s\n3,4,5,2,1\n",
    "zero.csv": "source,target,bytes\n3,4,0\n",
    "typo.jsonl": '{"time_s": 0, "event": "link-dwn", "link": ["leaf-0", "spine-0"]}\n',
    "end.jsonl": '\n{"time_s": 0, "event": "job-ends", "job": "a"}\n',
    "up.jsonl": '{"time_s": 0, "event": "link-up", "link": ["leaf-0", "spine-0"]}\n',
    "switch.jsonl": '{"time_s": 0, "event": "switch-down", "switch": "spine-9"}\n',
}
NET = ("route", "--fabric", "net.json")
BAD = {
    "no traffic": (NET, "there is no traffic"),
    "missing flows": ((*NET, "--flows", "no.csv"), "no.csv: no such file"),
    "unknown host": ((*NET, "--flows", "strange.csv"), "strange.csv: line 2: target: '99'"),
    "measured backwards": ((*NET, "--demand", "back.csv"), "back.csv: line 2: ends before it starts"),
    "measured nothing": ((*NET, "--demand", "flows.csv"), "lacks the column start_s"),
    "twice": ((*SMALL, "--flows", "flows.csv"), "two jobs are called a"),
    "no ring": ((*NET, "--generate", "BLOOM"), "no ring size"),
    "unknown model": ((*NET, "--generate", "BLUM:4"), "known: BLOOM"),
    "cut host": ((*SMALL, "--failed", "leaf-0"), "accelerator-"),
    "no link": ((*SMALL, "--failed", "leaf-0:leaf-1"), "is not a switch or a link of"),
    "compare": ((*SMALL, "--compare", "ecmp,gredy"), "did you mean greedy"),
    "job without cluster": ((*NET, "--job", "gpt2 dp=8"), "--job needs a cluster"),
    "job in one word": ((*PLANNED, "--job", "gpt2"), "is not a model with a layout"),
    "job's model": ((*PLANNED, "--job", "gtp2 dp=16"), "did you mean"),
    "job in a domain": ((*PLANNED, "--job", "gpt2 dp=8"), "sends nothing"),
    "kind without cluster": (("route", "--fabric", "fat-tree", "--flows", "flows.csv"), "needs --cluster"),
    "missing fabric": (("route", "--fabric", "no.json", "--flows", "flows.csv"), "no.json"),
    "unknown cluster": (("route", "--cluster", "h1000-8", "--flows", "flows.csv"), "unknown cluster"),
    "output": ((*SMALL, "-o", "no/such/folder"), "its folder does not exist"),
    "opensm without fabric": (("route", "export", "opensm", "--generate", "BLOOM:2"), "ibnetdiscover"),
    "opensm of another file": (("route", "export", "opensm", *SMALL[1:], "-o", "out"), "net.json"),
    "probes of another kind": (
        ("route", "export", "json", *SMALL[1:], "--probes", "flows.csv"),
        "does not apply to json",
    ),
    "missing probes": (("route", "export", "roce-csv", *SMALL[1:], "--probes", "no.csv"), "no.csv"),
    "export to a file": (("route", "export", "json", *SMALL[1:], "-o", "flows.csv"), "flows.csv"),
    "events without traffic": (("route", "export", "events", *NET[1:]), "there is no traffic"),
    "missing events": ((*WATCH, "--events", "no.jsonl"), "no.jsonl: no such file"),
    "state in a file": ((*WATCH, "--events", "end.jsonl", "--state", "flows.csv"), "cannot be used"),
    "unknown event": ((*WATCH, "--events", "typo.jsonl"), "typo.jsonl: line 1: event: unknown event 'link-dwn'"),
    "unknown job": ((*WATCH, "--events", "end.jsonl"), "end.jsonl: line 2: there is no job 'a'"),
    "link that is up": ((*WATCH, "--events", "up.jsonl"), "leaf-0 - spine-0 is not down"),
    "unknown switch": ((*WATCH, "--events", "switch.jsonl"), "'spine-9' is not a node"),
    "router": ((*SMALL, "--router", "best"), "edge-coloring"),
    "format": ((*SMALL, "--format", "xml"), "csv"),
    "split": ((*SMALL, "--split", "0"), "64"),
    "option": ((*SMALL, "--rooter", "ilp"), "--router"),
    "kind of export": (("route", "export", "bird", *SMALL[1:]), "opensm"),
    "sprayed export": (("route", "export", "json", *SMALL[1:], "--router", "spray"), "greedy"),
    "hashed export": (("route", "export", "json", *SMALL[1:], "--router", "ecmp"), "unknown choice 'ecmp'"),
    "no command": ((*WATCH, "--apply", "no-such-program-here"), "is not a command"),
    "open quotes": ((*WATCH, "--apply", "echo 'a"), "cannot be split"),
    "push alone": ((*WATCH, "--push"), "--apply"),
    "no such routes": ((*WATCH, "--routes", "none.json"), "none.json"),
    "no such counters": ((*WATCH, "--counters", "none.csv"), "none.csv"),
    "no counters": ((*WATCH, "--counters", "flows.csv"), "lacks the column time_s"),
    "state without a folder": ((*WATCH, "--state"), "--state"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(refused: Callable[..., str], here: Path, name: str) -> None:
    for file, text in FILES.items():
        Path(file).write_text(text)
    arguments, message = BAD[name]
    assert message in refused(*arguments)


def test_a_folder_that_cannot_be_made_is_named(refused: Callable[..., str], here: Path) -> None:
    Path("file").write_text("")
    exported = refused("route", "export", "roce-csv", *SMALL[1:], "-o", "file/below")
    assert exported.startswith("Error: file/below: cannot be written: ")


def test_measured_flows_are_watched(weft: Run, story: list[str]) -> None:
    """Two rings appear, then one has gone for two measurements."""
    rings = {0: [(0, 4), (4, 0)], 1: [(1, 5), (5, 1)]}
    for at, jobs in enumerate([(0, 1), (0, 1), (0,), (0,)]):
        rows = ["source,target,bytes,start_s,end_s"]
        for job in jobs:
            period = 2.0 + job
            starts = [1000.0 * at + period * turn for turn in range(20)]
            rows += [f"{a},{b},1e9,{start},{start + 0.5}" for start in starts for a, b in rings[job]]
        Path(f"{at}.csv").write_text("\n".join(rows) + "\n")
    files = [word for at in range(4) for word in ("--demand", f"{at}.csv")]
    code, out, err = weft(*WATCH, *files)
    assert (code, err) == (0, "")
    said = [json.loads(line) for line in out.splitlines()]
    assert [one["event"] for one in said] == ["measured"] * 4
    assert [(one["flows"], one["placed"], one["moved"]) for one in said] == [
        (4, 4, 0),
        (4, 0, 0),
        (4, 0, 0),
        (2, 0, 0),
    ]
    assert said[3]["about"].startswith("-")
    # Tables without flows say that nothing was sent: at the second one in a row all jobs have gone.
    Path("none.csv").write_text("source,target,bytes,start_s,end_s\n")
    quiet = weft(*WATCH, *files, *("--demand", "none.csv") * 2)[1].splitlines()
    assert [json.loads(line)["flows"] for line in quiet] == [4, 4, 4, 2, 2, 0]
    # Events name the same files, one by one as they are measured.
    named = [{"time_s": one["time_s"], "event": "measured", "files": [f"{at}.csv"]} for at, one in enumerate(said)]
    Path("measured.jsonl").write_text("".join(json.dumps(event) + "\n" for event in named))
    assert weft(*WATCH, "--events", "measured.jsonl") == (0, out, "")
    # With a state, measurements that were decided on are not decided on again.
    assert weft(*WATCH, "--state", "seen", *files)[1] == out
    assert weft(*WATCH, "--state", "seen", *files) == (0, "", "")
