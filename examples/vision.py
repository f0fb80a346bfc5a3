"""A vision transformer of plain torch.nn modules learns handwritten digits; pip install scikit-learn for its images.

python examples/vision.py, or in stages: torchrun --nproc-per-node 4 examples/vision.py pp=2,dp=2
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from weft.runtime import AdamSettings, prepare

WIDTH, BATCH, STEPS = 64, 64, 28
"""Features, images of a step, steps of an epoch (the last 5 of 1,797 images are left out)."""


class Patches(nn.Module):
    """Images (images, 1, 8, 8) to rows (images, 16, WIDTH): a convolution and learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.positions = nn.Conv2d(1, WIDTH, 2, stride=2), nn.Parameter(torch.randn(16, WIDTH) / 8)

    def forward(self, images: Tensor) -> Tensor:
        return self.mix(images).flatten(2).transpose(1, 2) + self.positions


class Digits(nn.Module):
    """The mean of an image's patches, to ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.norm(rows).mean(1))


def vision() -> nn.Module:
    torch.manual_seed(0)
    blocks = (nn.TransformerEncoderLayer(WIDTH, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True) for _ in "12")
    return nn.Sequential(Patches(), *blocks, Digits())


def batches(epoch: int) -> list[tuple[Tensor, Tensor]]:
    digits = load_digits()  # Alpaydin and Kaynak, UCI, 1998
    images, shown = torch.tensor(digits.images, dtype=torch.float32) / 8 - 1, torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))[: STEPS * BATCH]
    return [(images[rows].unsqueeze(1), shown[rows]) for rows in order.split(BATCH)]


if __name__ == "__main__":
    adam = AdamSettings(rate=3e-3, warmup=20, steps=10 * STEPS)
    _, step = prepare(vision(), sys.argv[1] if len(sys.argv) > 1 else "tp=1", optimizer=adam)
    for epoch in range(10):
        losses = [step(batch) for batch in batches(epoch)]
        if step.machine.grid.rank == 0:
            print(f"epoch {epoch + 1}: loss {sum(losses) / STEPS:.4f}", flush=True)
