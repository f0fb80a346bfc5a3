"""A vision transformer of Weft's layers learns handwritten digits; pip install scikit-learn for its images.

python examples/vision.py --pipeline 2 --data 2
"""

import argparse
import sys
from hashlib import blake2b

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import BadInput, WeftError
from weft.layout import Layout
from weft.model.spec import Attention, FeedForward
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import holdings, share
from weft.runtime.layers.decoder import Attention4D
from weft.runtime.layers.experts import FeedForward4D
from weft.runtime.layers.linear import Conv4D
from weft.runtime.layers.norm import Norm4D
from weft.runtime.layers.vocabulary import Head4D, cross_entropy, positions_table
from weft.runtime.run.flat import Flat
from weft.runtime.run.optimizer import AdamSettings, Optimizer
from weft.runtime.run.pipeline import StepPasses
from weft.runtime.run.ranks import run_ranks

HIDDEN, HEADS, BLOCKS, DIGITS, PATCHES = 64, 4, 2, 10, 16
BATCH, STEPS, MICRO_BATCHES = 64, 28, 2
"""Images of a step, steps of an epoch (the last 5 of 1,797 images are left out), micro-batches of a rank."""
ADAM = AdamSettings(rate=3e-3, warmup=20, steps=10 * STEPS)


class Block(nn.Module):
    """Attention of all patches to all, and a feed-forward layer."""

    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__()
        heads = Attention(heads=HEADS, kv_heads=HEADS, head_dim=HIDDEN // HEADS, qkv_bias=True, out_bias=True)
        feed = FeedForward(intermediate=2 * HIDDEN, gated=False, bias=True)
        self.norm1, self.norm2 = (Norm4D(machine, f"{name}.norm{number}", HIDDEN, centred=True) for number in (1, 2))
        self.attention = Attention4D(machine, name, HIDDEN, heads, sequence=PATCHES, rotary=None, causal=False)
        self.feed_forward = FeedForward4D(machine, name, HIDDEN, feed, "gelu")

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows + self.attention(self.norm1(rows))
        return rows + self.feed_forward(self.norm2(rows))


class Patches(nn.Module):
    """Images (images, 1, 8, 8) to rows (images * PATCHES, HIDDEN / y): a convolution and learned positions.

    Pixels of 2 x 2 become channels first, so that there are channels to split over x.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.grid = machine.grid
        self.mix = Conv4D(machine, "patches", 4, HIDDEN, (3, 3), padding=(1, 1), kind="transposed")
        self.positions = positions_table(machine, "positions", PATCHES, HIDDEN)

    def forward(self, images: Tensor) -> Tensor:
        start, stop = share(4, self.grid.size("x"), self.grid.index("x"))
        features = self.mix(functional.pixel_unshuffle(images, 2)[:, start:stop])
        rows: Tensor = features.flatten(2).transpose(1, 2) + self.positions()
        return rows.flatten(0, 1)


class Vision(nn.Module):
    """One pipeline stage of the model (weft.runtime.run.pipeline.StageModule), or all of it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        stages, stage = machine.grid.size("pipeline"), machine.grid.index("pipeline")
        self.first, self.last = stage == 0, stage == stages - 1
        self.patches = Patches(machine) if self.first else nn.Identity()
        machine.grid.divided(BLOCKS, "pipeline", what="blocks")
        here = range(*share(BLOCKS, stages, stage))
        self.blocks = nn.Sequential(*(Block(machine, f"blocks.{index}") for index in here))
        if self.last:
            self.norm = Norm4D(machine, "norm", HIDDEN, centred=True)
            self.head = Head4D(machine, "head", DIGITS, HIDDEN, bias=True)

    def forward(self, given: Tensor) -> Tensor:
        rows = self.blocks(self.patches(given))
        if not self.last:
            return rows
        means = self.norm(rows).unflatten(0, (-1, PATCHES)).mean(1)
        return self.head(means)

    def losses(self, logits: Tensor, digits: Tensor) -> Tensor:
        return cross_entropy(self.machine, logits, digits, DIGITS)

    def takes(self, micro_batch: int) -> Tensor:
        if self.first:
            return torch.empty(micro_batch, 1, 8, 8, device="meta")
        return self._rows(micro_batch * PATCHES, HIDDEN // self.machine.grid.size("y"))

    def gives(self, micro_batch: int) -> Tensor:
        if self.last:
            return self._rows(micro_batch, self.head.table.block_shape[0])
        return self._rows(micro_batch * PATCHES, HIDDEN // self.machine.grid.size("y"))

    def _rows(self, count: int, width: int) -> Tensor:
        return torch.empty(count, width, device="meta", requires_grad=True)


def initial(name: str, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """A part of a whole parameter's first values, the same on every grid."""
    if len(shape) == 1:
        return torch.full(sizes, 0.0 if name.endswith("bias") else 1.0)
    seed = int.from_bytes(blake2b(name.encode(), digest_size=7).digest())
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / shape[1] ** 0.5
    return whole[tuple(slice(first, first + size) for first, size in zip(offsets, sizes, strict=True))]


def images_and_digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) from -1 to 1, and what they show (Alpaydin and Kaynak, UCI, 1998).

    Raises:
        BadInput: scikit-learn is absent.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise BadInput(
            "the images come with scikit-learn", where="sklearn", remedy="pip install scikit-learn"
        ) from None
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 8.0 - 1.0
    return images, torch.tensor(found.target)


class Training:
    """One rank's part of the training."""

    def __init__(self, layout: Layout) -> None:
        self.grid = Grid.of(layout)
        self.machine = Machine.of(self.grid)
        stages = nn.ModuleList([Vision(self.machine)])
        held = holdings(stages)
        for holding in held:
            holding.fill(initial)
        self.flat = Flat(self.machine, stages, held)
        self.optimizer = Optimizer(self.flat, ADAM)
        self.own = self.grid.divided(BATCH, "z", "data", what="images of a step")
        self.passes = StepPasses(
            self.machine, stages, micro_batch=self.own // MICRO_BATCHES, micro_batches=MICRO_BATCHES, tokens=BATCH
        )
        self.images, self.digits = images_and_digits()

    def step(self, number: int) -> Tensor:
        """This rank's share of the mean loss, shape (1,); 0 but on the last stage."""
        epoch, place = divmod(number, STEPS)
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(epoch))
        first = place * BATCH + self.grid.index("z", "data") * self.own
        rows = order[first : first + self.own]
        with self.flat.step(MICRO_BATCHES, loss="sum"):
            loss = self.passes.run(self.images[rows], self.digits[rows])
        self.optimizer.step()
        return loss

    def epoch(self, number: int) -> float:
        """The mean loss of an epoch, 0 but on the last stage."""
        total = torch.stack([self.step(number * STEPS + place) for place in range(STEPS)]).mean(0)
        return float(self.machine.collectives.all_reduce(total, "z", "data").wait())


def train(layout: Layout, epochs: int) -> None:
    """On one rank of the grid."""
    training = Training(layout)
    speaks = training.passes.has_head and training.grid.index("x", "y", "z", "data") == 0
    for epoch in range(epochs):
        loss = training.epoch(epoch)
        if speaks:
            print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)


AXES = {
    "pipeline": "stages, each of as many blocks",
    "data": "copies of the model, each on its part of the images",
    "z": "parts of the images and, at rest, of the weights",
    "y": "parts of a normal layer's inputs",
    "x": "parts of a normal layer's outputs (heads)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for axis, meaning in AXES.items():
        parser.add_argument(f"--{axis}", type=int, default=1, metavar="N", help=meaning)
    parser.add_argument("--epochs", type=int, default=10, metavar="N", help="passes over all images")
    given = vars(parser.parse_args())
    epochs = given.pop("epochs")
    try:
        images_and_digits()
        layout = Layout(**given)
        run_ranks(train, (layout, epochs), layout.world)
    except WeftError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
