"""What ``weft route watch`` decides, carried to the network by somebody's command."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from weft.errors import BadInput, printable
from weft.units import counted

if TYPE_CHECKING:
    from weft.routing.controller import Controller, Decision

Action = Literal["apply", "rollback"]
LIMIT_S = 60.0
"""Seconds that a command may run."""
SHOWN = 4
"""Flows of a difference that are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a decision ("none": nothing to push), the decision that holds now, and lines that tell it.

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
        push: whether to run it; otherwise it is only said what would be pushed.

    Raises:
        BadInput: there is no such command.
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
            raise BadInput(f"{name!r} is no command", where="--apply", remedy="give a program that can be run")
        self.push = push

    def carry(self, controller: Controller, decision: Decision, text: str) -> Outcome:
        """Push what a decision moves, or say that it would be.

        Args:
            text: the decision as JSON with its moves.
        """
        if not decision.moves:
            return Outcome(push="none", decision=decision)
        forth = difference(controller, decision)
        if not self.push:
            shown = f"would run: {shlex.join(self.words)} routes.json routes.diff"
            return Outcome(push="dry-run", decision=decision, lines=(shown, *_few(forth)))
        failed = self._run("apply", controller, forth, decision.number, text)
        if not failed:
            return Outcome(
                push="applied", decision=decision, lines=(f"applied: {counted(len(decision.moves), 'flow')}",)
            )
        back = difference(controller, decision, back=True)
        held = controller.hold(decision)
        again = self._run("rollback", controller, back, decision.number, text)
        told = f"{shlex.join(self.words)} {failed}: the former routes are held"
        lines = (told, f"rollback {again}" if again else "rolled back")
        return Outcome(
            push="rolled-back", decision=held, lines=lines, stuck=again and f"apply {failed}, rollback {again}"
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
            return self._end(running, text)

    def _end(self, running: subprocess.Popen[bytes], text: str) -> str:
        try:
            _, said = running.communicate(f"{text}\n".encode(), timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            return f"ran for more than {LIMIT_S:g} s"
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            raise
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        more = f" ({printable(last, 120)})" if last else ""
        return f"exits with {running.returncode}{more}" if running.returncode else ""


def held_routes(controller: Controller) -> str:
    """The routes that a controller holds, as ``weft.routes/1``; flows without a path are left out."""
    import numpy as np

    from weft.interop import routes_json
    from weft.routing.choice import routes_on

    every = controller.traffic
    if every is None:
        from weft.routing.traffic import job_traffic

        none = np.zeros(0, dtype=np.int64)
        every = job_traffic(none, none, np.zeros(0), jobs=())
    rows = controller.rows()
    flows = np.flatnonzero(rows[:, 0] >= 0) if len(rows) else np.zeros(0, dtype=np.int64)
    return routes_json.write(controller.whole, every.select(flows), routes_on(controller.whole, rows[flows]))


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
    rest = f"... and {counted(len(begin) - SHOWN, 'flow')} more (all: in CMD's ROUTES.diff, and by --format json)"
    return [*lines[: begin[SHOWN]], rest]
