"""Eight ranks of gloo that live as long as the tests and run functions of the test modules together."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from copy import copy
from datetime import timedelta
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

WORLD = 8
LIMIT_S = 300.0
"""A case that takes longer hangs."""
GRACE_S = 5.0
"""When one rank has failed the others have this long to fail too."""
PRELOADED = ["torch", "weft.runtime.run.session", "pytest", "hypothesis", "transformers.models.llama.modeling_llama"]
"""What takes seconds to import is imported once for all ranks; what is not installed is left out."""


class Ranks:
    """Processes that are started at the first case, and anew after one that failed."""

    def __init__(self) -> None:
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, case: Callable[..., Any], *arguments: Any, **named: Any) -> list[Any]:
        """What ``case(*arguments)``, a function of a module in this folder, returns on each rank.

        Raises:
            AssertionError: with the traceback of the rank that failed first, or says which ranks hang.
        """
        if not self._processes:
            self._start()
        module = Path(case.__code__.co_filename).stem
        for connection in self._connections:
            connection.send((module, case.__name__, arguments, named))
        results, problem = self._results()
        if problem is not None:
            self.close()
            raise AssertionError(problem)
        return results

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._folder = tempfile.TemporaryDirectory(prefix="weft-")
        for rank in range(WORLD):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, self._folder.name), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)

    def _results(self) -> tuple[list[Any], str | None]:
        """What all ranks answer, or what is wrong."""
        results: list[Any] = [None] * WORLD
        waiting = {connection: rank for rank, connection in enumerate(self._connections)}
        problem, last = None, time.monotonic() + LIMIT_S
        while waiting:
            ready = wait(list(waiting), timeout=max(last - time.monotonic(), 0.0))
            if not ready:
                return results, problem or f"ranks {sorted(waiting.values())} hang"
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    good, results[rank] = connection.recv()
                except EOFError:
                    good, results[rank] = False, "the process ended"
                if not good and problem is None:
                    problem = f"rank {rank} failed:\n\n{results[rank]}"
                    last = time.monotonic() + GRACE_S
        return results, problem


def on_ranks(body: Callable[..., None]) -> Callable[..., None]:
    """A test whose body runs on every rank."""

    @wraps(body)
    def test(ranks: Ranks, **named: Any) -> None:
        ranks.run(body, **named)

    del test.__wrapped__
    given, asked = signature(body), Parameter("ranks", Parameter.KEYWORD_ONLY)
    test.__signature__ = given.replace(parameters=[*given.parameters.values(), asked])
    test.body = body
    return test


def _serve(connection: Connection, rank: int, folder: str) -> None:
    """One rank: cases until the tests end.  Warnings are errors here too."""
    import torch
    import torch.distributed as dist

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD, timeout=timedelta(seconds=LIMIT_S)
    )
    _share_groups()
    while True:
        try:
            module, name, arguments, named = connection.recv()
        except EOFError:
            return
        torch.manual_seed(0)
        try:
            function = getattr(import_module(module), name)
            answer = True, getattr(function, "body", function)(*arguments, **named)
        except Exception:
            answer = False, traceback.format_exc()
        connection.send(answer)


def _share_groups() -> None:
    """One group for each set of ranks, whatever the mesh: idle threads of hundreds of gloo's would take all
    cores."""
    import torch.distributed as dist
    from torch.distributed import device_mesh

    make = dist.new_group
    made: dict[tuple[int, ...], Any] = {}

    def new_group(ranks: list[int], **options: Any) -> Any:
        if tuple(ranks) not in made:
            made[tuple(ranks)] = make(ranks=ranks, **options)
        return made[tuple(ranks)]

    dist.new_group = device_mesh.new_group = new_group


_grids: dict[Any, Any] = {}


def grid_of(layout: Any) -> Any:
    """The grid of a layout in a rank, made once for each mesh."""
    from weft.layout.spec import AXES, Layout
    from weft.runtime.core.grid import Grid

    axes = (*AXES, "expert", "expert_tensor")
    mesh = Layout(order=layout.order, **{axis: getattr(layout, axis) for axis in axes})
    if mesh not in _grids:
        _grids[mesh] = Grid.of(mesh)
    grid = copy(_grids[mesh])
    grid.layout = layout
    return grid
