"""Shards of tokens, texts that are tokenized once, and what is held out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from models import BATCH, SEQUENCE, layout_of, llama  # noqa: E402
from ranks import grid_of  # noqa: E402

from weft.errors import BadInput  # noqa: E402
from weft.layout.spec import Layout  # noqa: E402
from weft.model import Job, Recipe  # noqa: E402
from weft.runtime.core.grid import Grid  # noqa: E402
from weft.runtime.core.machine import Precision  # noqa: E402
from weft.runtime.run.data import Batches, Corpus, Shards, markov_corpus, shard_corpus, text_corpus  # noqa: E402
from weft.runtime.run.session import RunSettings, Session  # noqa: E402


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
    """NumPy's, bare ones of 16 bits and Megatron-LM's; values are those that were written."""
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.uint32))
    np.arange(10, 25, dtype=np.uint16).tofile(tmp_path / "b.bin")
    np.arange(25, 40, dtype=np.int32).tofile(tmp_path / "c.bin")
    (tmp_path / "c.idx").write_bytes(b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([4]) + bytes(16))
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
        ("a.bin", b"abc", "3 bytes are not tokens of uint16"),
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
        (tmp_path / "a.idx").write_bytes(b"MMIDIDX\x00\x00" + bytes(9))
        with pytest.raises(BadInput, match="not an index of token ids"):
            shard_corpus(tmp_path)


def test_what_is_held_out_is_not_trained_on():
    kept, held = corpus(50, start=500).split(0.1)
    assert (len(kept.tokens), held.tokens.tolist()) == (45, list(range(545, 550)))


# Texts -------------------------------------------------------------------------------------------


def tokenized(text, tokenizer):
    corpus = text_corpus(text, tokenizer)
    return corpus.tokens.tolist(), corpus.vocabulary


def test_a_text_is_tokenized_by_the_first_rank(ranks, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="c"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("a b b a d")
    paths = str(tmp_path / "text"), str(tmp_path / "tokenizer.json")
    assert ranks.run(tokenized, *paths) == [([0, 1, 1, 0, 2], 3)] * 8
    assert tokenized(*paths) == ([0, 1, 1, 0, 2], 3)


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
