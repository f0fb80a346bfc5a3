"""``weft train``: a job trained with its layout, measured beside its prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.cli.build import takes
from weft.cli.options import check_count
from weft.verbs.train import USAGE, DryRun, TrainOptions
from weft.verbs.train import train as trained

if TYPE_CHECKING:
    from weft.verbs.train import Trained


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL]")
@takes(options=TrainOptions)
def train(names: tuple[str, ...], options: TrainOptions) -> None:
    """Train MODEL on the ranks of torchrun, or on ranks that are started on this machine.

    The grid is the layout's x * y * context * z * data * pipeline; every grid gives the same losses.
    Checkpoints load on any other grid.

    Exit code 1: --compare or --dry-run found other collectives than predicted.
    """
    check_count(names, 1, "train", USAGE)
    found: Trained | DryRun = trained(names[0] if names else None, options, quiet=False)
    if isinstance(found, DryRun) and found.ends:
        _show(found)


def _show(found: DryRun) -> None:
    from weft.verbs.train_rank import Differs
    from weft.views.terminal import print_blocks
    from weft.views.training_run import extrapolated_view, traced_view

    for end in found.ends:
        print_blocks(
            traced_view(
                predicted=end.predicted, found=end.found, rank=end.rank, ranks=found.layout.world, stage=end.stage
            )
        )
    print_blocks(extrapolated_view(micro_batches=found.ends[-1].micro_batches, traced=found.ends[-1].traced))
    if not found.equal:
        raise Differs("the traced collectives differ from the prediction")
