"""Steps of a run for TensorBoard and Weights & Biases, written by their own libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.errors import BadInput, MissingExtra
from weft.files import read_text, write_text

Tell = Callable[[Mapping[str, Any]], None]
"""Takes the record of a step as the metrics file has it."""
KINDS = ("tensorboard", "wandb")
RUN = "wandb-run"
"""File in the folder of a run that names it to Weights & Biases, so that the run goes on there."""


def parse_log(text: str) -> tuple[str, str]:
    """The library, and its folder or project, of "tensorboard=DIR" or "wandb=PROJECT".

    Raises:
        BadInput: neither.
    """
    kind, _, where = text.partition("=")
    if kind not in KINDS or not where:
        raise BadInput(f"{text[:80]!r} is no log", where="--log", remedy="give tensorboard=DIR or wandb=PROJECT")
    return kind, where


@contextmanager
def logged(text: str, config: Mapping[str, Any], *, done: int, out: Path | None) -> Iterator[Tell]:
    """What takes the records of steps after ``done``; those of earlier attempts at them are dropped.

    Args:
        config: of the run, for Weights & Biases.
        out: the folder of the run.

    Raises:
        BadInput: the log cannot be begun.
        MissingExtra: its library is not installed.
    """
    kind, where = parse_log(text)
    begin = _tensorboard if kind == "tensorboard" else _wandb
    try:
        tell, close = begin(where, config, done, out)
    except ImportError:
        raise MissingExtra(f"--log {kind}", kind) from None
    except BadInput:
        raise
    except Exception as error:  # the libraries raise nothing narrower
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"cannot be begun: {reason[:200]}", where=f"--log {kind}") from None
    try:
        yield tell
    finally:
        close()


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a step's record, by name; waiting by axes as "exposed_s/x"."""
    found = {name: float(value) for name, value in record.items() if isinstance(value, int | float) and name != "step"}
    for one in record.get("axes", ()):
        found[f"exposed_s/{' '.join(one['axes'])}"] = one["exposed_s"]
    return found


def _tensorboard(
    folder: str, config: Mapping[str, Any], done: int, out: Path | None
) -> tuple[Tell, Callable[[], None]]:
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(log_dir=folder, purge_step=done + 1)

    def tell(record: Mapping[str, Any]) -> None:
        for name, value in scalars(record).items():
            writer.add_scalar(name, value, record["step"])
        writer.flush()

    return tell, writer.close


def _wandb(project: str, config: Mapping[str, Any], done: int, out: Path | None) -> tuple[Tell, Callable[[], None]]:
    package: Any = import_module("wandb")
    kept = None if out is None else out / RUN
    known = read_text(kept, where=str(kept)).strip() if kept is not None and done and kept.is_file() else None
    run = package.init(project=project, config=dict(config), id=known, resume="allow" if known else None)
    if kept is not None:
        write_text(kept, f"{run.id}\n")

    def tell(record: Mapping[str, Any]) -> None:
        run.log(scalars(record), step=record["step"])

    return tell, run.finish
