"""Options that several verbs share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.errors import BadInput, MissingExtra, UnknownName

if TYPE_CHECKING:
    from rich.console import Console

    from weft.cluster import Calibration, Cluster
    from weft.fabric import Fabric
    from weft.fabric.cost import Prices
    from weft.model import RecipeChanges
    from weft.report.pictures.charts import Chart

Command = Callable[..., Any]
FORMATS = ("table", "json", "csv")
CHARTS = (".svg", ".png", ".html")


def recipe_options(command: Command) -> Command:
    """How the model is trained."""
    options = (
        click.option("--batch", type=int, metavar="N", help="Global batch in sequences."),
        click.option("--sequence", type=int, metavar="N", help="Sequence length in tokens."),
        click.option("--precision", metavar="P", help="fp32, fp16, bf16, fp8, mxfp8 or nvfp4."),
        click.option(
            "--attention",
            type=click.Choice(["flash", "unfused"]),
            help="Attention kernel (default flash, or the recipe's).",
        ),
        click.option("--reduce-bf16", is_flag=True, help="Accumulate and reduce gradients in 16 bits instead of 32."),
    )
    return add_options(options, command)


def add_options(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    """The command with options, in order."""
    for option in reversed(options):
        command = option(command)
    return command


def recipe_changes(values: dict[str, Any]) -> RecipeChanges:
    """The recipe options as given."""
    from weft.model import RecipeChanges

    return RecipeChanges(
        global_batch=values["batch"],
        sequence=values["sequence"],
        precision=values["precision"],
        attention=values["attention"],
        gradient_bytes=2 if values["reduce_bf16"] else None,
    )


def constants(path: str | None, cluster: Cluster, stack: str | None = None) -> Calibration | None:
    """The calibration of ``--calibration`` on top of the accelerator's and the software's own.

    Raises:
        UnknownName: no constants are known of the software.
    """
    if path is None and stack is None:
        return None
    from weft.cluster.calibration import USUAL_STACK, calibration, read_calibration, stack_names

    if stack is not None and stack not in stack_names():
        raise UnknownName("software", stack, stack_names(), where="--stack")
    named = (cluster.accelerator.name, stack or USUAL_STACK)
    return calibration(*named) if path is None else read_calibration(path, *named)


def console(*, error: bool = False) -> Console:
    """A console that does not wrap below 100 columns when piped."""
    from weft.report.tables.grid import terminal

    return terminal(error=error)


def deliver(text: str, output: str | None) -> None:
    """Text to the terminal or, whole or not at all, to a file."""
    if output is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    deliver_bytes(text.encode("utf-8"), output)


def deliver_bytes(data: bytes, output: str) -> None:
    """Data to a file, whole or not at all."""
    target = Path(output)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        partial = target.with_name(target.name + ".partial")
        partial.write_bytes(data)
        partial.replace(target)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror or error}", where=output) from None


def check_chart(path: str | None, option: str = "--chart") -> None:
    """Refuse a chart that cannot be drawn or written before anything runs."""
    if path is None:
        return
    if Path(path).suffix.lower() not in CHARTS:
        known = f"{', '.join(CHARTS[:-1])} or {CHARTS[-1]}"
        raise BadInput(f"{path!r} does not end in {known}", where=option, remedy="name it like chart.svg")
    check_folder(path, option)
    if find_spec("altair") is None or find_spec("vl_convert") is None:
        raise MissingExtra(option, "plot")


def deliver_chart(chart: Chart, path: str) -> None:
    """A chart to a file, in the form that the ending of its name says."""
    from weft.report.pictures.charts import rendered

    deliver_bytes(rendered(chart, Path(path).suffix), path)


def check_folder(path: str | None, option: str) -> None:
    """Refuse a file that cannot be written, because there is no folder for it, before anything runs."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise BadInput("its folder does not exist", where=f"{option} {path}", remedy="make the folder first")


def check_count(names: tuple[str, ...], most: int, verb: str, usage: str) -> None:
    """Refuse more names than a verb takes."""
    if len(names) > most:
        raise BadInput(f"{len(names)} names given, at most {most} needed", where=verb, remedy=usage)


class Progress:
    """A bar on the terminal for searches that take more than a moment; silent when piped."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __enter__(self) -> Any:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        shown = console(error=True)
        self.bar = Progress(
            TextColumn(self.words),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=shown,
            transient=True,
            disable=not shown.is_terminal,
        )
        self.bar.start()
        task = self.bar.add_task("", total=None)
        return lambda done, total: self.bar.update(task, completed=done, total=total)

    def __exit__(self, *unused: object) -> None:
        self.bar.stop()


def load_fabric(name: str | None, cluster: Cluster, radix: int) -> Fabric:
    """A fabric file, or a kind built for the cluster (its default kind without a name)."""
    from weft.fabric.catalogue import default_kind, for_cluster

    if name is not None and is_file(name):
        from weft.interop.fabrics.formats import read_fabric

        return read_fabric(name)
    return for_cluster(name or default_kind(cluster), cluster, radix=radix)


def is_file(name: str) -> bool:
    """Whether a name means a file, not a kind of network."""
    return bool(Path(name).suffix) or Path(name).exists()


def file_options(command: Command) -> Command:
    """What fabric files may leave out."""
    options = (
        click.option("--link-speed", metavar="SPEED", help="Of links whose file has none, as '400 Gb/s'."),
        click.option("--hosts", metavar="PATTERN", multiple=True, help="Names of hosts where the file does not tell."),
    )
    return add_options(options, command)


def load_file(name: str, values: dict[str, Any]) -> Fabric:
    """A fabric file, with ``file_options`` for what it leaves out."""
    from weft.interop.fabrics.formats import read_fabric
    from weft.units import parse_bandwidth

    speed = values["link_speed"]
    capacity = None if speed is None else parse_bandwidth(speed, "--link-speed")
    return read_fabric(name, capacity_Bps=capacity, hosts=values["hosts"])


def load_prices(name: str) -> Prices:
    """Prices of a preset, or of a TOML file."""
    from pathlib import Path

    from weft.fabric.cost import preset, read_prices

    return read_prices(name) if Path(name).suffix == ".toml" or Path(name).exists() else preset(name)
