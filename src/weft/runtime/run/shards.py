"""Tokens that lie in files: shards mapped into memory as one array, and texts that a tokenizer has been over.

Read are NumPy's ``.npy`` (unsigned, one dimension), bare ``.bin`` of 16 bits (nanoGPT), and ``.bin`` with an ``.idx``
beside it (Megatron-LM's indexed data set: magic, version, format, then sizes and places of sequences).
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import BadInput
from weft.files import read_bytes, writing
from weft.runtime.run.data import Corpus, byte_corpus, sampled, token_corpus

SUFFIXES = (".npy", ".bin")
"""Of files that hold tokens and no text."""
_MAGIC = b"MMIDIDX\x00\x00"
_FORMATS: dict[int, Any] = {1: np.uint8, 4: np.int32, 5: np.int64, 8: np.uint16}
"""Of Megatron-LM's index that hold token ids."""
_REMEDY = "give .npy, .bin, or .bin with its .idx"

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
    tokens = Shards([_mapped(one) for one in files])
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
        index = path.with_suffix(".idx")
        kind = _indexed(index) if index.is_file() else np.uint16
        size = path.stat().st_size
        if size % np.dtype(kind).itemsize:
            raise BadInput(f"{size:,} bytes are not tokens of {np.dtype(kind)}", where=where, remedy=_REMEDY)
        return np.memmap(path, dtype=kind, mode="r") if size else np.empty(0, kind)
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


def _indexed(index: Path) -> Any:
    """The format of the tokens beside an index."""
    with index.open("rb") as file:
        head = file.read(len(_MAGIC) + 9)
    code = head[-1] if len(head) == len(_MAGIC) + 9 and head.startswith(_MAGIC) else None
    if code not in _FORMATS:
        raise BadInput("is not an index of token ids of Megatron-LM", where=str(index), remedy=_REMEDY)
    return np.dtype(_FORMATS[code]).newbyteorder("<")


# Texts -------------------------------------------------------------------------------------------


def text_corpus(path: str, tokenizer: str | None, *, leads: bool, wait: Callable[[], None]) -> Corpus:
    """A text's bytes, or with a tokenizer the tokens that one process of a machine makes of it.

    What a tokenizer made is kept in the folder for temporary files, under a hash of text and tokenizer, and mapped.

    Args:
        leads: this process is the one of its machine that tokenizes.
        wait: returns when the leaders of all machines have called it.

    Raises:
        BadInput, MissingExtra: as ``byte_corpus`` and ``token_corpus``.
    """
    if tokenizer is None:
        return byte_corpus(path)
    place = _kept_under(path, tokenizer)
    if leads and not place.is_file():
        made = token_corpus(path, tokenizer)
        with writing(place) as file:
            np.save(file, np.concatenate((np.array([made.vocabulary], np.uint32), made.tokens[:])))
    wait()
    kept = np.load(place, mmap_mode="r", allow_pickle=False)
    return Corpus(tokens=kept[1:], vocabulary=int(kept[0]), where=path)


def _kept_under(path: str, tokenizer: str) -> Path:
    """The file for a text's tokens, in a folder of this user's alone."""
    digest = blake2b(digest_size=16)
    for part in (path, tokenizer):
        raw = read_bytes(part, where=part)
        digest.update(len(raw).to_bytes(8, "little") + raw)
    folder = Path(tempfile.gettempdir()) / f"weft-tokens-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        held = folder.stat()
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(folder), remedy="set TMPDIR") from None
    if held.st_uid != os.getuid() or held.st_mode & 0o022 or folder.is_symlink():
        raise BadInput("others may write there", where=str(folder), remedy="set TMPDIR to a private folder")
    return folder / f"{digest.hexdigest()}.npy"
