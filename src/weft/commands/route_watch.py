"""``weft route watch``: the controller, fed with events and counters, whose decisions a command carries out."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from weft.commands.command_line import command
from weft.commands.networks import fabric_file
from weft.commands.options import Options, option
from weft.commands.output import chart_option, deliver_chart
from weft.errors import BadInput, printable
from weft.files import read_text
from weft.units import counted

if TYPE_CHECKING:
    from weft.routing.controller import Controller, Decision, Event
    from weft.routing.store import Store


class WatchedNetwork(Options):
    """The fabric, and the routes that it has at the start."""

    group = "Network"
    fabric: str | None = option(None, "Fabric file (default: 64 ToRs x 32 spines).", metavar="FILE")
    routes: str | None = option(
        None, "Routes installed at the start: weft.routes/1 or a CSV of paths.", metavar="FILE"
    )


class WatchOptions(WatchedNetwork):
    """The events that the controller reads, and where its decisions go."""

    group = "Job"
    events: str | None = option(
        None, "Events, a JSON object a line (default: standard input, without other inputs).", metavar="FILE"
    )
    counters: tuple[str, ...] = option(
        (), "Link counters as CSV: time_s, source, target, values (repeats).", metavar="FILE"
    )
    demand: tuple[str, ...] = option(
        (),
        "Measured flows as CSV: source, target, bytes, start_s, end_s; a file is a measurement (repeats).",
        metavar="FILE",
    )
    router: Literal["auto", "destination"] = option(
        "auto", "auto pins each flow; destination gives a switch one link for each destination, as FRR needs."
    )
    seed: int = option(0, "Seed of the searches.", metavar="N", least=0)


class WatchOutput(Options):
    """What carries out and keeps the decisions."""

    group = "Output"
    state: str | None = option(None, "Keep the state in this folder; a restart continues from it.", metavar="DIR")
    apply: str | None = option(
        None, "Show each change as a call of CMD ROUTES.json ROUTES.diff (run it: --push).", metavar="CMD"
    )
    push: bool = option(False, "Run the --apply command; where it fails, run it with the old routes.")
    chart: str | None = chart_option("efficiency over time")
    form: Literal["table", "json"] = option("table", "Format of decisions, one a line.", "--format")

    needs = {"push": "apply"}


@command(options=WatchOptions, out=WatchOutput)
def watch_command(options: WatchOptions, out: WatchOutput) -> None:
    """Keep routes free of collisions while jobs, links and switches come and go.

    \b
    {"time_s": 0, "event": "job-arrives", "job": "a", "flows": [{"source": 0, "target": 32, "bytes": 1e9}]}
    {"time_s": 5, "event": "switch-down", "switch": "spine-3"}

    Events: job-arrives, job-ends, link-down, link-up, switch-down, switch-up, traffic (a measured collective),
    measured ("files": tables as of --demand, or the NCCL logs of a run) and tick. weft route export events writes
    arrivals.

    Each event gives one line: flows placed, flows moved from a live path, the pace of the slowest collective (share of
    its pace alone) before, after and at best, and the reason. With --routes the first line is the repair of the
    installed routes. With --state a decision is on disk before it is printed.
    """
    from weft.fabric.families.clos import two_layers
    from weft.routing.controller import Controller

    hook = None if out.apply is None else Hook(out.apply, push=out.push)
    fabric = two_layers() if options.fabric is None else fabric_file(options.fabric)
    controller = Controller(fabric, router=options.router, seed=options.seed)
    feed = _RouteFeed(controller, options, out, hook)
    if out.state is None:
        feed.run(None, 0)
        return
    from weft.routing.store import Store

    with closing(Store(out.state, controller)) as store:
        done = store.load()
        if done and out.form == "table":
            click.echo(f"Continues after {counted(done, 'event')} in {out.state}", err=True)
        feed.run(store, done)


class _RouteFeed:
    """Events into a controller, decisions out of it."""

    def __init__(self, controller: Controller, options: WatchOptions, out: WatchOutput, hook: Hook | None) -> None:
        self.controller, self.options, self.out, self.hook = controller, options, out, hook
        self.stuck = ""
        self.lines: list[str] = []
        """All decisions, where they are drawn."""
        self.placed, self.moved = 0, 0

    def run(self, store: Store | None, done: int) -> None:
        """Decide on all events."""
        from weft.views.route import heading_line, summary_line

        if self.out.chart is not None and store is not None:
            self.lines = store.decisions()
        decision: Decision | None = None
        events = self._events(store, done)
        first = list(islice(events, 1)) if self.options.events or self.options.counters or self.options.demand else []
        if self.out.form == "table":
            click.echo(heading_line())
        for place, event in chain(first, events):
            try:
                decision = self.controller.apply(event)
            except BadInput as error:
                self._refuse(BadInput(error.what, where=place, remedy=error.remedy))
                continue
            self._tell(event, decision, store)
            if self.stuck:
                remedy = "check the installed routes with weft route audit"
                raise BadInput(f"leaves the network in doubt: {self.stuck}", where="--apply", remedy=remedy)
        if decision is not None and self.out.form == "table":
            click.echo(summary_line(decision, self.placed, self.moved))
        if self.out.chart is not None:
            from weft.views.route import efficiency_chart

            deliver_chart(efficiency_chart([json.loads(line) for line in self.lines]), self.out.chart)

    def _events(self, store: Store | None, done: int) -> Iterator[tuple[str, Event]]:
        """The installed routes, then all events without a decision, with their places.

        Files are opened, and their first event is read, before anything is decided.
        """
        options = self.options
        began = store is not None and done > 0 and '"event": "installed"' in store.event(1)
        if options.routes is not None:
            event = self._installed(options.routes)
            if store is not None and done and store.event(1) != event.text:
                raise BadInput(
                    f"differ from the first routes of the state in {store.where}",
                    where=options.routes,
                    remedy="give the same file, or an empty --state folder",
                )
        measured = self._measured() if options.counters or options.demand else None
        beside = None if measured is None else [(event.time_s, place, event.text) for place, event in measured]
        counters = {event.text: event for _, event in measured or ()}
        lines = undecided(options.events, store, done, first=int(began), beside=beside)
        later = self._read(lines, counters)
        first = list(islice(later, 1)) if options.events or measured is not None else []
        if options.routes is not None and not done:
            yield options.routes, event
        yield from chain(first, later)

    def _read(self, lines: Iterator[tuple[str, str]], counters: dict[str, Event]) -> Iterator[tuple[str, Event]]:
        from weft.interop.events import read_event

        for place, line in lines:
            try:
                event = counters.get(line) or read_event(line, self.controller.whole, place)
            except BadInput as error:
                self._refuse(error)
                continue
            yield place, event

    def _refuse(self, error: BadInput) -> None:
        """Files are refused; a live stream goes on after an event that cannot be used."""
        if self.options.events or self.options.counters or self.options.demand:
            raise error from None
        click.echo(f"Passed over: {error}", err=True)

    def _measured(self) -> list[tuple[str, Event]]:
        """The events of files of counters and of flows in order of time, with their places."""
        from weft.interop.events import read_counters
        from weft.interop.flow_tables import read_records
        from weft.routing.controller import Event
        from weft.routing.demand import recognised

        events: list[tuple[str, Event]] = []
        time_s = 0.0
        for path in self.options.counters:
            result = read_counters(read_text(path, where=path), self.controller.whole, where=path)
            events += [(f"{path}: at {event.time_s:g} s", event) for event in result]
        for path in self.options.demand:
            # A measurement is known when its last flow has ended; without flows it is of the time of the one before.
            records = read_records([path], self.controller.whole)
            time_s, digest = float(records.end_s.max(initial=time_s)), hashlib.sha256()
            for column in (records.source, records.target, records.bytes, records.start_s, records.end_s):
                digest.update(column.tobytes())
            text = json.dumps({"time_s": time_s, "event": "measured", "sha256": digest.hexdigest()})
            traffic = recognised(records, self.controller.whole).traffic
            events.append((path, Event(time_s=time_s, kind="measured", traffic=traffic, text=text)))
        return sorted(events, key=lambda each: each[1].time_s)

    def _installed(self, path: str) -> Event:
        """The routes that a network has, as an event."""
        from weft.interop.routes_json import read_paths
        from weft.routing.controller import Event
        from weft.routing.traffic import check_traffic

        fabric = self.controller.whole
        traffic, routes = read_paths(read_text(path, where=path), fabric, where=path)
        check_traffic(fabric, traffic, path)
        digest = hashlib.sha256(routes.indptr.tobytes() + routes.links.tobytes())
        digest.update(traffic.source.tobytes() + traffic.target.tobytes() + traffic.bytes.tobytes())
        text = json.dumps({"time_s": 0.0, "event": "installed", "sha256": digest.hexdigest()})
        return Event(time_s=0.0, kind="installed", traffic=traffic, routes=routes, text=text)

    def _tell(self, event: Event, decision: Decision, store: Store | None) -> None:
        """Push a decision, keep it, print it."""
        from weft.views.route import change_lines, decision_line, decision_to_json

        fabric = self.controller.whole
        push: str | None = None
        lines = change_lines(decision, fabric)
        if self.hook is not None:
            outcome = self.hook.carry(self.controller, decision, decision_to_json(decision, fabric))
            decision, self.stuck, push = outcome.decision, outcome.stuck, outcome.push
            lines += outcome.lines
        text = decision_to_json(decision, fabric, push=push)
        if store is not None:
            store.save(event.text, decision, text)
        if self.out.chart is not None:
            self.lines.append(text)
        self.placed, self.moved = self.placed + decision.placed, self.moved + decision.moved
        if self.out.form == "json":
            click.echo(text)
        else:
            click.echo("\n".join([decision_line(decision), *(f"       {line}" for line in lines)]))


# Events ------------------------------------------------------------------------------------------

Timed = tuple[float, str, str]
"""Time, place and text of an event."""


def undecided(
    path: str | None, store: Store | None, done: int, *, first: int = 0, beside: Sequence[Timed] | None = None
) -> Iterator[tuple[str, str]]:
    """Place and text of every event for which a controller has no decision yet.

    Args:
        path: a file; standard input where it is None, which never repeats events (unless there are events ``beside``:
            those alone then).
        done: decisions in the store, which the first events of a file must be those of.
        first: how many of these are of no file.
        beside: events of other files in order of time, which go among those of ``path`` by their time.
    """
    where = path or "standard input"
    decided = first
    lines = _lines(path) if path is not None or beside is None else iter(())
    placed = ((f"{where}: line {number}", line) for number, line in lines)
    if beside:  # by time; at one time the file's come first
        timed = ((_time_s(line), place, line) for place, line in placed)
        placed = (event[1:] for event in merge(timed, beside, key=itemgetter(0)))
    for place, line in placed:
        if (path is not None or beside is not None) and store is not None and decided < done:
            decided += 1
            if store.event(decided) != line.strip():
                raise BadInput(
                    f"is not event {decided} of the state in {store.where}",
                    where=place,
                    remedy="give the same file as before, or an empty --state folder",
                )
            continue
        yield place, line


def _time_s(line: str) -> float:
    """The time of an event; of a line that is none, at once, so that it is refused in its place."""
    try:
        return float(json.loads(line)["time_s"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return 0.0


def _lines(path: str | None) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers."""
    lines: Iterable[str] = sys.stdin if path is None else read_text(Path(path), where=path).split("\n")
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line
    except UnicodeDecodeError:
        raise BadInput("is not text in UTF-8", where="standard input") from None


# Pushing routes ----------------------------------------------------------------------------------

Action = Literal["apply", "rollback"]
LIMIT_S = 60.0
"""Seconds that a command may run."""
SHOWN = 4
"""Flows of a difference that are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOutcome:
    """The outcome of a decision ("none": nothing to push), the decision now in force, and lines that describe it.

    ``stuck``: neither the new routes nor the former ones could be pushed.
    """

    push: Literal["none", "dry-run", "applied", "rolled-back"]
    decision: Decision
    lines: tuple[str, ...] = ()
    stuck: str = ""


class Hook:
    """A command that takes routes to the network.

    It is started without a shell, with the words of ``command`` and two files behind them: all routes
    (``weft.routes/1``) and the difference.  Its standard input is the decision as a line of JSON; WEFT_ACTION (apply
    or rollback), WEFT_ROUTES, WEFT_DIFF and WEFT_EVENT (the decision's number) say the same.  If it does not exit with
    0, it is called once more, with the former routes, and they are held.

    Args:
        push: whether to run it; otherwise the call is only shown.
    """

    def __init__(self, command: str, *, push: bool) -> None:
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise BadInput(
                f"cannot be split into words ({error})", where="--apply", remedy="close its quotes"
            ) from None
        if not self.words or shutil.which(self.words[0]) is None:
            name = printable(self.words[0] if self.words else "", 60)
            raise BadInput(f"{name!r} is not a command", where="--apply", remedy="name a program on the PATH")
        self.push = push

    def carry(self, controller: Controller, decision: Decision, text: str) -> ApplyOutcome:
        """Push the moves of a decision, or show the call.

        Args:
            text: the decision as JSON with its moves.
        """
        if not decision.moves:
            return ApplyOutcome(push="none", decision=decision)
        forth = difference(controller, decision)
        if not self.push:
            shown = f"would run: {shlex.join(self.words)} routes.json routes.diff"
            return ApplyOutcome(push="dry-run", decision=decision, lines=(shown, *_few(forth)))
        failed = self._run("apply", controller, forth, decision.number, text)
        if not failed:
            return ApplyOutcome(
                push="applied", decision=decision, lines=(f"applied: {counted(len(decision.moves), 'flow')}",)
            )
        back = difference(controller, decision, back=True)
        restored = controller.hold(decision)
        again = self._run("rollback", controller, back, decision.number, text)
        failure = f"{shlex.join(self.words)} {failed}: the old routes stay"
        lines = (failure, f"rollback {again}" if again else "rolled back")
        return ApplyOutcome(
            push="rolled-back", decision=restored, lines=lines, stuck=again and f"apply {failed}, rollback {again}"
        )

    def _run(self, action: Action, controller: Controller, diff: list[str], number: int, text: str) -> str:
        """Run the command on the routes that the controller holds; what went wrong, empty if nothing."""
        with tempfile.TemporaryDirectory(prefix="weft-routes-") as folder:
            files = Path(folder, "routes.json"), Path(folder, "routes.diff")
            files[0].write_text(held_routes(controller), encoding="utf-8")
            files[1].write_text("\n".join([*diff, ""]), encoding="utf-8")
            about = {"WEFT_ACTION": action, "WEFT_EVENT": str(number)}
            about |= {"WEFT_ROUTES": str(files[0]), "WEFT_DIFF": str(files[1])}
            try:
                running = subprocess.Popen(
                    [*self.words, *map(str, files)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=os.environ | about,
                    start_new_session=True,
                )
            except OSError as error:
                return f"does not start ({error.strerror})"
            return _end(running, text)


def _end(running: subprocess.Popen[bytes], text: str) -> str:
    """Wait for a command and kill it after ``LIMIT_S``; what went wrong, empty if nothing."""
    try:
        _, errors = running.communicate(f"{text}\n".encode(), timeout=LIMIT_S)
    except BaseException as error:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return f"ran for more than {LIMIT_S:g} s"
    last = errors.decode(errors="replace").strip().rpartition("\n")[2]
    more = f" ({printable(last, 120)})" if last else ""
    return f"exits with {running.returncode}{more}" if running.returncode else ""


def held_routes(controller: Controller) -> str:
    """The routes that a controller holds, as ``weft.routes/1``; flows without a path are left out."""
    import numpy as np

    from weft.fabric.traffic import single_paths
    from weft.interop import routes_json

    every = controller.traffic
    if every is None:
        from weft.routing.traffic import job_traffic

        none = np.zeros(0, dtype=np.int64)
        every = job_traffic(none, none, np.zeros(0), jobs=())
    rows = controller.rows()
    flows = np.flatnonzero(rows[:, 0] >= 0) if len(rows) else np.zeros(0, dtype=np.int64)
    return routes_json.write(controller.whole, every.select(flows), single_paths(controller.whole, rows[flows]))


def difference(controller: Controller, decision: Decision, *, back: bool = False) -> list[str]:
    """Three lines for each flow that moves: whose it is, the path that goes ("-") and the one that comes ("+")."""
    fabric, lines = controller.whole, []
    for move in decision.moves:
        job, collective, source, target, pair = move.flow
        lines.append(
            f"@@ {printable(job)} / {printable(collective)}: {fabric.names[source]} -> {fabric.names[target]}"
            f", queue pair {pair}"
        )
        paths = (move.path, move.old) if back else (move.old, move.path)
        for sign, path in zip("-+", paths, strict=True):
            if path:
                lines.append(
                    f"{sign} {fabric.names[source]} {' '.join(fabric.names[fabric.target[at]] for at in path)}"
                )
    return lines


def _few(lines: list[str]) -> list[str]:
    """The first flows of a difference."""
    begin = [at for at, line in enumerate(lines) if line.startswith("@@")]
    if len(begin) <= SHOWN:
        return lines
    left_out = f"... and {counted(len(begin) - SHOWN, 'flow')} more (ROUTES.diff and --format json list all)"
    return [*lines[: begin[SHOWN]], left_out]
