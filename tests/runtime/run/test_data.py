"""Rows of batches: the same on every grid, resumable, and every window once an epoch."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import BATCH, SEQUENCE, layout_of, llama
from ranks import grid_of

from weft.errors import BadInput
from weft.layout.spec import Layout
from weft.model import Job, Recipe
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Precision
from weft.runtime.run.data import Batches, Corpus, Shards, byte_corpus, markov_corpus, rows_of, shard_corpus, shuffled
from weft.runtime.run.session import RunSettings, Session


def counting(length, vocabulary=2**16):
    return Corpus(tokens=np.arange(length, dtype=np.uint32), vocabulary=vocabulary, where="numbers")


def batches(corpus=None, **changed):
    values = {"sequence": 8, "rows": 16, "seed": 5, "vocabulary": 2**16} | changed
    return Batches(corpus=corpus or counting(1003), **values)


def grids(**degrees):
    layout = Layout(**degrees)
    return [Grid(layout, torch.device("cpu"), None, rank) for rank in range(layout.world)]


def test_targets_are_the_next_tokens():
    inputs, targets = batches().batch(3, range(4, 9))
    assert inputs.shape == targets.shape == (5, 8)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)
    assert (inputs[:, 0] % 8 == 0).all()


@given(st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 5))
def test_each_epoch_is_a_permutation(size, seed, epoch):
    found = shuffled(np.arange(size), np.full(size, epoch), size=size, seed=seed)
    assert sorted(found.tolist()) == list(range(size))


@given(st.integers(1, 20), st.integers(1, 12), st.integers(1, 30), st.integers(0, 11), st.integers(0, 2**32))
def test_no_window_repeats_within_an_epoch(rows, sequence, windows, rest, seed):
    """Batches run on over the ends of epochs; each epoch has every window once."""
    length = windows * sequence + 1 + rest % sequence
    data = batches(counting(length), sequence=sequence, rows=rows, seed=seed)
    assert data.corpus.windows(sequence) == windows
    steps = -(-2 * windows // rows)
    starts = torch.cat([data.batch(step, range(rows))[0][:, 0] for step in range(steps)])
    for epoch in range(2):
        seen = starts[epoch * windows : (epoch + 1) * windows].tolist()
        assert sorted(seen) == [window * sequence for window in range(windows)]


def test_known_rows():
    """The order never changes: a run resumes under another version."""
    inputs, _ = batches().batch(2, range(4))
    assert (inputs[:, 0] // 8).tolist() == [50, 43, 103, 118]


@pytest.mark.parametrize(
    "degrees",
    [
        {},
        {"x": 2, "y": 2, "z": 2, "data": 2, "pipeline": 2},
        {"z": 4},
        {"data": 4, "x": 3},
        {"z": 2, "data": 2, "order": ("data", "z", "y", "x", "context", "pipeline")},
    ],
)
def test_every_grid_takes_the_same_global_batch(degrees):
    data = batches()
    whole = data.batch(7, range(16))[0]
    taken = {}
    for grid in grids(**degrees):
        own = rows_of(grid, 16 // grid.size("z", "data"))
        assert torch.equal(data.batch(7, own)[0], whole[own.start : own.stop])
        replica = (grid.coordinates["data"], grid.coordinates["z"])
        assert taken.setdefault(replica, own) == own
    assert [row for replica in sorted(taken) for row in taken[replica]] == list(range(16))


def test_rows_beyond_the_batch_are_refused():
    data = batches()
    for step, rows in ((0, range(10, 17)), (0, [-1]), (-1, [0])):
        with pytest.raises(IndexError):
            data.batch(step, rows)


def test_bytes_of_a_text(tmp_path):
    text = "héllo wörld, again".encode()
    (tmp_path / "text").write_bytes(text)
    corpus = byte_corpus(tmp_path / "text")
    assert corpus.vocabulary == 256
    inputs, targets = batches(corpus, sequence=4, rows=4).batch(0, range(4))
    windows = {bytes([*row, last]) for row, last in zip(inputs.tolist(), targets[:, -1].tolist(), strict=True)}
    assert windows == {text[start : start + 5] for start in (0, 4, 8, 12)}
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "empty").touch()
    for name, problem in (("absent", "no such file"), ("empty", "is empty"), ("", "is not a file")):
        with pytest.raises(BadInput, match=problem):
            byte_corpus(tmp_path / name)
    with pytest.raises(BadInput, match=r"cannot be read|no such file"):
        byte_corpus(tmp_path / ("n" * 5000))


def test_texts_that_are_too_short(tmp_path):
    (tmp_path / "text").write_bytes(b"12345678")
    with pytest.raises(BadInput, match="8 tokens are too few for a sequence of 8"):
        batches(byte_corpus(tmp_path / "text"))
    assert batches(counting(9)).corpus.windows(8) == 1


def test_vocabularies_that_the_model_lacks():
    with pytest.raises(BadInput, match="has a vocabulary of 65536, but the model's is 256"):
        batches(vocabulary=256)


def test_sizes_that_are_no_batch():
    for changed in ({"sequence": 0}, {"rows": 0}):
        with pytest.raises(BadInput, match="not a batch"):
            batches(**changed)
    for vocabulary, tokens in ((1, 10), (10, 0)):
        with pytest.raises(BadInput, match="synthetic"):
            markov_corpus(vocabulary, tokens=tokens, seed=0)


@pytest.mark.parametrize("vocabulary", [16, 256, 5000])
def test_synthetic_text_can_be_learned(vocabulary):
    """Counted pairs predict what follows at about the chain's entropy, far below a uniform guess."""
    tokens = markov_corpus(vocabulary, tokens=2**18, seed=1).tokens.astype(np.int64)
    assert tokens.shape == (2**18,)
    assert tokens.max() < vocabulary
    pairs, counts = np.unique(tokens[:-1] * vocabulary + tokens[1:], return_counts=True)
    before = np.bincount(pairs // vocabulary, weights=counts, minlength=vocabulary)
    entropy = -(counts * np.log(counts / before[pairs // vocabulary])).sum() / counts.sum()
    assert entropy < 1.75 * math.log(2) + 0.02
    if vocabulary >= 256:
        assert entropy > 0.9
        assert len(np.unique(tokens)) > 0.9 * vocabulary


def test_synthetic_text_is_that_of_its_seed():
    one, same, other = (markov_corpus(64, tokens=1000, seed=seed).tokens for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert len(markov_corpus(64, tokens=3, seed=1).tokens) == 3


# Tokens in files -----------------------------------------------------------------------------------


def corpus(length, start=0):
    return Corpus(tokens=np.arange(start, start + length, dtype=np.uint32), vocabulary=2**20, where="numbers")


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(0, 30), st.integers(0, 30), st.integers(1, 9))
def test_shards_are_sliced_as_one_array(sizes, start, stop, step):
    whole = np.arange(sum(sizes), dtype=np.uint16)
    tokens = Shards(np.split(whole, np.cumsum(sizes)[:-1]))
    assert len(tokens) == len(whole)
    assert tokens[start:stop:step].tolist() == whole[start:stop:step].tolist()
    cut = min(start, len(whole))
    assert tokens.part(cut, len(whole))[:].tolist() == whole[cut:].tolist()
    assert tokens.part(0, cut)[::step].tolist() == whole[:cut:step].tolist()


def test_files_of_a_folder_in_order(tmp_path):
    """NumPy's and bare ones of 16 bits; values are those that were written."""
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.uint32))
    np.arange(10, 25, dtype=np.uint16).tofile(tmp_path / "b.bin")
    np.save(tmp_path / "c.npy", np.arange(25, 40, dtype=np.int64))
    (tmp_path / "notes.txt").write_text("not tokens")
    found = shard_corpus(tmp_path)
    assert found.tokens[:].tolist() == list(range(40))
    assert found.vocabulary == 40
    same = Corpus(tokens=np.arange(40, dtype=np.uint32), vocabulary=40, where="elsewhere")
    assert found.fingerprint() == same.fingerprint()
    batches = Batches(corpus=found, sequence=8, rows=4, seed=0, vocabulary=64)
    inputs, targets = batches.batch(0, range(4))
    assert torch.equal(inputs + 1, targets)
    assert isinstance(shard_corpus(tmp_path / "a.npy").tokens._arrays[0], np.memmap)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npy", b"nothing", "is damaged"),
        ("a.npy", "2d", r"is an array of float64 of shape \(2, 2\)"),
        ("a.npy", "float", r"is an array of float32 of shape \(3,\) -- save token ids"),
        ("a.npy", "below", "has tokens below 0"),
        ("a.bin", b"abc", "3 bytes are not tokens of 16 bits"),
        ("a.bin", b"", "is empty"),
        ("a.txt", b"text", "holds no shards"),
    ],
)
def test_files_that_are_no_tokens(tmp_path, name, content, words):
    arrays = {"2d": np.zeros((2, 2)), "float": np.zeros(3, np.float32), "below": np.array([3, -1])}
    if isinstance(content, str):
        np.save(tmp_path / name, arrays[content])
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=words):
        shard_corpus(tmp_path)
    if name == "a.bin":
        (tmp_path / "a.idx").touch()
        with pytest.raises(BadInput, match="is indexed"):
            shard_corpus(tmp_path)


def test_what_is_held_out_is_not_trained_on():
    kept, held = corpus(50, start=500).split(0.1)
    assert (len(kept.tokens), held.tokens.tolist()) == (45, list(range(545, 550)))


# Evaluation --------------------------------------------------------------------------------------


def session(grid):
    model = llama()
    job = Job(model=model, recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))
    kept, held = markov_corpus(model.vocab, tokens=4000, seed=0).split(0.25)
    return Session(job, grid, RunSettings(precision=Precision.of("fp64")), kept, held)


def evaluated(layout):
    running = session(grid_of(layout))
    before = running.evaluate(2)
    running.step()
    return before, running.evaluate(2), running.step().loss


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    "layout", [layout_of((2, 2, 2, 1)), Layout(pipeline=2, x=2, data=2, micro_batch=2)], ids=["x2y2z2", "pipeline"]
)
def test_what_is_held_out_costs_the_same_on_every_grid(ranks, layout):
    """And to look at it changes nothing."""
    alone, plain = session(Grid.of(Layout(micro_batch=BATCH))), session(Grid.of(Layout(micro_batch=BATCH)))
    want = alone.evaluate(2), (alone.step(), alone.evaluate(2))[1]
    plain.step()
    last = plain.step().loss
    for before, after, loss in ranks.run(evaluated, layout):
        assert (before, after) == pytest.approx(want, rel=1e-10)
        assert loss == pytest.approx(last, rel=1e-10) or layout.pipeline > 1
    assert want[1] != want[0]


def test_the_held_out_loss_is_that_of_its_first_batches():
    running = session(Grid.of(Layout(micro_batch=BATCH)))
    held = running._held_out
    with torch.no_grad():
        losses = []
        for number in range(2):
            inputs, targets = held.batch(number, range(BATCH))
            stage = running.stages[0]
            losses.append(stage.losses(stage(inputs), targets).mean())
    assert running.evaluate(2) == pytest.approx(float(sum(losses)) / 2, rel=1e-12)
    assert json.dumps(running.evaluate(1))
