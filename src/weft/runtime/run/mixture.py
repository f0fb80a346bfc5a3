"""Several corpora in fixed shares: which row of a global step comes from which is a function of the seed alone.

Of every ``BLOCK`` consecutive rows each corpus has its share, in an order that is computed and not stored, so that a
run goes on from its step over any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import fsum

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from weft.errors import BadInput
from weft.runtime.run.data import Batches, Corpus, shuffled, tensors, visits_of

BLOCK = 4096
"""Rows within which shares are met, and so the precision of weights."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """Corpora and how much of each is wanted.

    Raises:
        BadInput: there is none, or a weight is not above 0.
    """

    corpora: tuple[Corpus, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.corpora or len(self.corpora) != len(self.weights) or not all(0 < w < 1e9 for w in self.weights):
            raise BadInput(f"{len(self.corpora)} corpora with weights {self.weights}", where="data")

    def counts(self) -> tuple[int, ...]:
        """Rows of each corpus in a block: the nearest whole numbers by largest remainders, one at least."""
        exact = np.array(self.weights) / fsum(self.weights) * (BLOCK - len(self.weights))
        found = np.floor(exact).astype(np.int64)
        late = np.argsort(found - exact, kind="stable")[: BLOCK - len(found) - int(found.sum())]
        found[late] += 1
        return tuple(int(one) + 1 for one in found)

    def fingerprint(self) -> str:
        """As ``Corpus.fingerprint``, of all and their shares."""
        parts = (f"{one.fingerprint()} {n}" for one, n in zip(self.corpora, self.counts(), strict=True))
        return blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()

    def split(self, share: float) -> tuple[Mixture, Mixture]:
        """Each corpus without its last ``share``, and those."""
        kept, held = zip(*(one.split(share) for one in self.corpora), strict=True)
        return Mixture(corpora=kept, weights=self.weights), Mixture(corpora=held, weights=self.weights)


Data = Corpus | Mixture


class MixedBatches:
    """The global batches of a run over a mixture, as ``Batches`` of one corpus.

    Raises:
        BadInput: as ``Batches``.
    """

    def __init__(self, mixture: Mixture, *, sequence: int, rows: int, seed: int, vocabulary: int) -> None:
        self.corpus, self.rows, self._seed = mixture, rows, seed
        self._parts = [
            Batches(corpus=one, sequence=sequence, rows=rows, seed=seed + i, vocabulary=vocabulary)
            for i, one in enumerate(mixture.corpora)
        ]
        self._ends = np.cumsum(mixture.counts())

    def batch(self, step: int, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows of a global step, as ``Batches.batch``."""
        which, places = self.sources(visits_of(step, rows, self.rows))
        text = np.empty((len(rows), self._parts[0].sequence + 1), dtype=np.int64)
        for i, part in enumerate(self._parts):
            here = which == i
            if here.any():
                text[here] = part.windows_of(places[here])
        return tensors(text)

    def sources(self, visits: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each row of the whole run its corpus, and how many rows of that came before it."""
        blocks, slots = np.divmod(visits, BLOCK)
        dealt = shuffled(slots, blocks, size=BLOCK, seed=self._seed)
        which = np.searchsorted(self._ends, dealt, side="right").astype(np.int64)
        counts = np.diff(self._ends, prepend=0)
        return which, blocks * counts[which] + dealt - (self._ends - counts)[which]


def batches_of(corpus: Data, *, sequence: int, rows: int, seed: int, vocabulary: int) -> Batches | MixedBatches:
    """The batches of one corpus or of several."""
    if isinstance(corpus, Mixture):
        return MixedBatches(corpus, sequence=sequence, rows=rows, seed=seed, vocabulary=vocabulary)
    return Batches(corpus=corpus, sequence=sequence, rows=rows, seed=seed, vocabulary=vocabulary)
