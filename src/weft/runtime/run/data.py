"""Training data by global step: row i of step s is a function of the seed, s and i alone, on every grid.

A corpus is cut into windows; each epoch visits every window once, in an order that is computed and not
stored, so that a run resumes from its step.  Files of tokens are mapped: NumPy's ``.npy`` (integers, one dimension),
and bare ``.bin`` of 16 bits (nanoGPT).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.errors import BadInput
from weft.files import refused
from weft.runtime.core.grid import Grid

Words = NDArray[np.uint64]

_ROUNDS = 8
_SAMPLES = 1 << 20
_SUCCESSORS = 4
_CHAINS = 256
_TOGETHER = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corpus:
    """Tokens to learn from.

    Attributes:
        tokens: shape (length,), not negative; each is less than ``vocabulary``.  An array, or what is sliced as one.
        vocabulary: how many tokens there are to choose from.
        where: what messages call it.
    """

    tokens: Any
    vocabulary: int
    where: str

    def split(self, share: float) -> tuple[Corpus, Corpus]:
        """Without its last ``share``, and that."""
        size = len(self.tokens)
        cut = size - int(size * share)
        part = getattr(self.tokens, "part", lambda start, stop: self.tokens[start:stop])
        return replace(self, tokens=part(0, cut)), replace(self, tokens=part(cut, size))

    def windows(self, sequence: int) -> int:
        """Windows of an epoch."""
        return (len(self.tokens) - 1) // sequence

    def check(self, sequence: int, vocabulary: int) -> None:
        """Refuse tokens that a model of some vocabulary has not, or too few for one window."""
        if self.vocabulary > vocabulary:
            raise BadInput(
                f"has a vocabulary of {self.vocabulary}, but the model's is {vocabulary}",
                where=self.where,
                remedy="choose a model with a larger vocabulary, or other data",
            )
        if self.windows(sequence) < 1:
            raise BadInput(
                f"{len(self.tokens)} tokens are too few for a sequence of {sequence}",
                where=self.where,
                remedy=f"give {sequence + 1} or more, or shorten the sequence",
            )

    def fingerprint(self) -> str:
        """A hash of length, vocabulary and evenly spaced tokens: the same data has the same, wherever it lies."""
        sample = np.ascontiguousarray(sampled(self.tokens)).astype(np.uint32).tobytes()
        head = f"{len(self.tokens)} {self.vocabulary} ".encode()
        return blake2b(head + sample, digest_size=16).hexdigest()


def sampled(tokens: Any) -> NDArray[np.integer[Any]]:
    """Evenly spaced ones."""
    return tokens[:: max(len(tokens) // _SAMPLES, 1)]  # type: ignore[no-any-return]


def byte_corpus(path: str | os.PathLike[str]) -> Corpus:
    """A file's bytes as tokens, mapped into memory; the vocabulary is 256.

    Raises:
        BadInput: no such file, it cannot be read, or it is empty.
    """
    where = os.fspath(path)
    with refused("cannot be read", where):
        if not os.path.isfile(path):
            what = "is not a file" if os.path.exists(path) else "no such file"
            raise BadInput(what, where=where, remedy="check the path")
        if not os.path.getsize(path):
            raise BadInput("is empty", where=where, remedy="give a text")
        tokens = np.memmap(path, dtype=np.uint8, mode="r")
    return Corpus(tokens=tokens, vocabulary=256, where=where)


def markov_corpus(vocabulary: int, *, tokens: int, seed: int) -> Corpus:
    """Synthetic text with something to learn: a Markov chain in which four tokens may follow each.

    They do with probabilities 1/2, 1/4, 1/8 and 1/8, so that a model that has learned them reaches a loss of
    at most 1.75 ln 2 = 1.213 per token, where ignorance costs ln(vocabulary).

    Raises:
        BadInput: less than two tokens to choose from, or none to make.
    """
    if vocabulary < 2 or tokens < 1:
        raise BadInput(
            f"{tokens} tokens of a vocabulary of {vocabulary}", where="synthetic data", remedy="ask for more"
        )
    chains = np.arange(min(_CHAINS, tokens), dtype=np.uint64)
    successors = np.arange(vocabulary * _SUCCESSORS, dtype=np.uint64)
    table = (_hashed(seed, 0, successors) % np.uint64(vocabulary)).reshape(vocabulary, _SUCCESSORS)
    steps = -(-tokens // len(chains))
    made = np.empty((len(chains), steps), dtype=np.uint32)
    state = _hashed(seed, 1, chains) % np.uint64(vocabulary)
    for step in range(steps):
        made[:, step] = state
        drawn = _hashed(seed, 2, chains, step)
        choice = np.where(drawn & 1, 0, np.where(drawn & 2, 1, np.where(drawn & 4, 2, 3)))
        state = table[state, choice]
    return Corpus(tokens=made.reshape(-1)[:tokens], vocabulary=vocabulary, where="synthetic data")


class Batches:
    """The global batches of a run over a corpus.

    Args:
        sequence: tokens per row.
        rows: rows per global batch.
        seed: of the order of the windows.
        vocabulary: of the model.

    Raises:
        BadInput: the corpus has tokens that the model does not, or not one window; a size is not positive.
    """

    def __init__(self, corpus: Corpus, *, sequence: int, rows: int, seed: int, vocabulary: int) -> None:
        if sequence < 1 or rows < 1:
            raise BadInput(f"{rows} rows of {sequence} tokens are not a batch", where="batch")
        self.corpus, self.rows, self._seed, self._sequence = corpus, rows, seed, sequence
        corpus.check(sequence, vocabulary)

    def batch(self, step: int, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows of a global step (from 0).

        Returns:
            Two int64 tensors of shape (len(rows), sequence).

        Raises:
            IndexError: the global batch has no such row.
        """
        if step < 0 or min(rows) < 0 or max(rows) >= self.rows:
            raise IndexError(f"rows {rows} of step {step}; a batch has {self.rows}")
        length = self._sequence
        windows = np.empty((len(rows), length + 1), dtype=np.int64)
        for row, index in enumerate(rows):
            visit = step * self.rows + index
            order = _order(self.corpus.windows(length), self._seed, visit // _TOGETHER)
            start = order[visit % _TOGETHER] * length
            windows[row] = self.corpus.tokens[start : start + length + 1]
        tokens = torch.from_numpy(windows)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@lru_cache(maxsize=64)
def _order(windows: int, seed: int, block: int) -> list[int]:
    """The windows of a block of visits: an order is computed for many as fast as for one."""
    epochs, positions = np.divmod(np.arange(block * _TOGETHER, (block + 1) * _TOGETHER), windows)
    return [int(window) for window in shuffled(positions, epochs, size=windows, seed=seed)]


def rows_of(grid: Grid, count: int) -> range:
    """The rows of the global batch that a rank takes; those along z and data take different ones, ``count`` each."""
    replica = grid.coordinates["data"] * grid.size("z") + grid.coordinates["z"]
    return range(replica * count, (replica + 1) * count)


def shuffled(positions: NDArray[np.int64], epochs: NDArray[np.int64], *, size: int, seed: int) -> NDArray[np.int64]:
    """Where positions of 0 to ``size`` - 1 lie in the order of their epochs: a permutation each.

    A Feistel network on the least even number of bits, walked until it is back in range (Black and Rogaway
    2002, "Ciphers with arbitrary finite domains"), so that no order is stored.
    """
    half = max((int(size - 1).bit_length() + 1) // 2, 1)
    result = positions.astype(np.uint64)
    keys = [_hashed(seed, epochs.astype(np.uint64), turn) for turn in range(_ROUNDS)]
    outside = np.ones(len(result), dtype=np.bool_)
    while outside.any():
        result[outside] = _feistel(result[outside], [key[outside] for key in keys], half)
        outside = result >= size
    return result.astype(np.int64)


def _feistel(values: Words, keys: list[Words], half: int) -> Words:
    """A permutation of the numbers of 2 ``half`` bits, one for each combination of the rounds' keys."""
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(key, right) & mask)
    return (left << bits) | right


def _hashed(*parts: int | Words) -> Words:
    """64 bits from integers, at least one of them an array (SplitMix64's finalizer, Steele et al. 2014)."""
    result = np.zeros(1, dtype=np.uint64)
    for part in parts:
        result = _mixed(result, np.uint64(part % 2**64) if isinstance(part, int) else part)
    return result


def _mixed(hashed: Words, part: np.uint64 | Words) -> Words:
    """A hash of one part more."""
    result = (hashed ^ part) + np.uint64(0x9E3779B97F4A7C15)
    result = (result ^ (result >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    result = (result ^ (result >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result ^= result >> np.uint64(31)
    return result


# Tokens in files ---------------------------------------------------------------------------------

SUFFIXES = (".npy", ".bin")
"""Of files that hold tokens and no text."""
_REMEDY = "give .npy, or .bin of 16 bits"

Tokens = NDArray[np.integer[Any]]


class Shards:
    """Arrays one after the other, of which slices are read; ``first`` to ``last`` of them all."""

    def __init__(self, arrays: Sequence[Tokens]) -> None:
        self._arrays = tuple(arrays)
        self._ends = list(accumulate(len(one) for one in arrays))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, wanted: slice) -> Tokens:
        start, stop, step = wanted.indices(len(self))
        result = []
        while start < stop:
            which = bisect_right(self._ends, start)
            before = self._ends[which] - len(self._arrays[which])
            part = self._arrays[which][start - before : stop - before : step]
            result.append(part)
            start += len(part) * step
        return result[0] if len(result) == 1 else np.concatenate(result or [np.empty(0, np.uint32)])

    def part(self, start: int, stop: int) -> Shards:
        """Some of the tokens, without reading them."""
        begins = [end - len(one) for end, one in zip(self._ends, self._arrays, strict=True)]
        kept = (one[max(start - at, 0) : max(stop - at, 0)] for at, one in zip(begins, self._arrays, strict=True))
        return Shards([one for one in kept if len(one)] or [np.empty(0, np.uint32)])


def is_tokens(path: str) -> bool:
    """Whether a file or folder holds tokens, and no text."""
    return os.path.isdir(path) or path.endswith(SUFFIXES)


def shard_corpus(path: str | os.PathLike[str]) -> Corpus:
    """The tokens of a file, or of all such files of a folder in the order of their names, mapped into memory.

    Its vocabulary is that of evenly spaced tokens: a model's smaller one is found out here or when it meets an id.

    Raises:
        BadInput: no such file, none in the folder, it is damaged, or it has no tokens or negative ones.
    """
    where = os.fspath(path)
    files = [Path(path)]
    if os.path.isdir(path):
        files = sorted(one for one in Path(path).iterdir() if one.suffix in SUFFIXES)
    if not files:
        raise BadInput("holds no shards of tokens", where=where, remedy=_REMEDY)
    tokens = Shards([_mapped(file) for file in files])
    if not len(tokens):
        raise BadInput("is empty", where=where, remedy="give tokens")
    sample = sampled(tokens)
    if sample.min() < 0:
        raise BadInput("has tokens below 0", where=where, remedy="give token ids")
    return Corpus(tokens=tokens, vocabulary=int(sample.max()) + 1, where=where)


def _mapped(path: Path) -> Tokens:
    where = str(path)
    try:
        if path.suffix == ".npy":
            array = _array(path)
            if array.ndim != 1 or array.dtype.kind not in "ui":
                raise BadInput(
                    f"is an array of {array.dtype} of shape {array.shape}",
                    where=where,
                    remedy="save token ids as one dimension of integers",
                )
            return array
        size = path.stat().st_size
        if path.with_suffix(".idx").is_file():
            raise BadInput("is indexed (Megatron-LM's)", where=where, remedy="save its tokens as .npy")
        if size % 2:
            raise BadInput(f"{size:,} bytes are not tokens of 16 bits", where=where, remedy=_REMEDY)
        return np.memmap(path, dtype=np.uint16, mode="r") if size else np.empty(0, np.uint16)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=where, remedy="check the path") from None
    except ValueError as error:
        raise BadInput(f"is damaged: {str(error).splitlines()[0]:.100}", where=where, remedy=_REMEDY) from None


def _array(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except OSError:
        raise
    except Exception as error:  # its header is parsed as Python, which fails in many ways
        raise ValueError(f"no array of NumPy: {error}") from None
