"""Checkpoints: from any grid to any other, whole or not at all, and nothing of a stranger's is executed."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
from math import prod
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.checkpoints import latest, remove_partial, step_folder
from weft.errors import BadInput
from weft.layout.mesh import coordinates
from weft.layout.spec import Layout
from weft.runtime.checkpoints import checkpoint
from weft.runtime.checkpoints.checkpoint import Piece, load, read_state, save
from weft.runtime.core.parameters import FlatRange, fused, share

PARTS = {"qkv.weight": (8, 4, 4), "out.weight": (12,), "norm.weight": (10,)}
SHAPES = {"qkv.weight": (16, 12), "out.weight": (12, 8), "norm.weight": (10,)}
STATE = {"step": 10, "seed": 3, "layout": {"x": 2, "order": ["x", "y"]}, "loss": 1.5, "note": None}


def layout(**degrees):
    return Layout(order=("x", "y", "z", "data", "context", "pipeline"), **degrees)


@pytest.mark.parametrize(
    ("name", "match"),
    [("a" * 301, "its name has 301 characters"), ("a\nb", "cannot be printed"), ("", "has 0 characters")],
)
def test_names_that_could_not_be_loaded_are_not_saved(name, match):
    place = FlatRange(shape=(4,), rows=((0, 4),), columns=(0, 1), start=0, stop=4)
    with pytest.raises(BadInput, match=match):
        Piece(name=name, values=torch.ones(4), placement=place)


def placements(layout, rank, name):
    """Where a rank's parameter lies, and its moment, which the optimizer cuts once more over data.

    Matrices are cut over x and y, and flat over z; vectors over y, so that ranks along x hold copies.
    """
    at, shape = coordinates(layout, rank), SHAPES[name]
    if len(shape) == 2:
        rows = fused(PARTS[name], layout.x, at["x"])
        columns = share(shape[1], layout.y, at["y"])
    else:
        rows, columns = (share(shape[0], layout.y, at["y"]),), (0, 1)
    size = sum(high - low for low, high in rows) * (columns[1] - columns[0])
    over = layout.z * layout.data
    padded = -(-size // over) * over
    block = FlatRange(shape=shape, rows=rows, columns=columns, start=0, stop=padded)
    own = block.part(*share(padded, layout.z, at["z"]))
    moment = own.part(*share(padded // layout.z, layout.data, at["data"]))
    return {name: own, f"{name}/exp_avg": moment}


def whole(name, dtype=None):
    shape = SHAPES[name.partition("/")[0]]
    values = torch.arange(prod(shape), dtype=torch.float32).view(shape) + 1000 * len(name)
    if dtype is None:
        dtype = torch.float32 if "/" in name else torch.bfloat16
    return (values / 8).to(dtype)


def pieces_of(layout, rank, fill=None):
    """A rank's pieces with the values of the wholes, or all ``fill``; padding is -1."""
    found = []
    for stem in SHAPES:
        for name, place in placements(layout, rank, stem).items():
            values = torch.full((place.stop - place.start,), -1.0, dtype=whole(name).dtype)
            for one in place.rectangles():
                window = tuple(slice(low, low + n) for low, n in zip(one.offsets, one.sizes, strict=True))
                part = whole(name)[window].reshape(-1)
                values[one.start : one.start + len(part)] = part if fill is None else fill
            found.append(Piece(name=name, values=values, placement=place))
    return found


def grid_pieces(layout, fill=None):
    """The pieces of all ranks, held by one process."""
    return [piece for rank in range(layout.world) for piece in pieces_of(layout, rank, fill)]


def assert_equal(found, expected):
    assert [piece.name for piece in found] == [piece.name for piece in expected]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.values, other.values), one.name


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a grid of 4, as one process writes it."""
    folder = tmp_path / "saved"
    save(folder, grid_pieces(layout(x=2, z=2)), STATE)
    return folder


ONE = pieces_of(layout(), 0, fill=0)


def refused(folder, match, pieces=None):
    with pytest.raises(BadInput, match=match) as caught:
        load(folder, ONE if pieces is None else pieces)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edited(folder, change):
    """Change the index."""
    index = json.loads((folder / "tensors.json").read_text())
    change({tensor["name"]: tensor for tensor in index["tensors"]}, index)
    (folder / "tensors.json").write_text(json.dumps(index))


DEGREES = st.sampled_from([1, 2])


@st.composite
def layouts(draw):
    z = draw(st.sampled_from([1, 2, 3, 5]))
    return layout(x=draw(st.sampled_from([1, 2, 4])), y=draw(DEGREES), z=z, data=draw(DEGREES))


@pytest.mark.slow
@given(layouts(), layouts())
@settings(max_examples=30)
def test_from_any_grid_to_any_other(tmp_path, written, read):
    folder = tmp_path / "checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    save(folder, grid_pieces(written), STATE)
    for rank in range(read.world):
        pieces = pieces_of(read, rank, fill=0)
        assert load(folder, pieces) == STATE
        assert_equal(pieces, pieces_of(read, rank))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_formats_keep_their_bits(tmp_path, dtype):
    bits = torch.tensor([0.0, -0.0, 1e-8, torch.inf, -torch.inf, torch.nan, 1.1, -3.0], dtype=dtype)
    place = FlatRange(shape=(8,), rows=((0, 8),), columns=(0, 1), start=0, stop=8)
    save(tmp_path / "a", [Piece(name="w", values=bits, placement=place)], {})
    read = torch.zeros(8, dtype=dtype)
    load(tmp_path / "a", [Piece(name="w", values=read, placement=place)])
    assert torch.equal(read.view(torch.uint8), bits.view(torch.uint8))


# Whole or not at all


def test_a_folder_that_exists_is_not_replaced(saved):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(BadInput, match="exists already"):
        save(saved, ONE, {"step": 11})
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_a_crash_leaves_no_checkpoint(tmp_path, monkeypatch):
    """And what it leaves is no obstacle."""
    folder = step_folder(tmp_path, 10)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sync_folder", crash)
        with pytest.raises(KeyboardInterrupt):
            save(folder, ONE, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010.partial"]
    assert latest(tmp_path) is None
    refused(folder, "no such folder")
    save(folder, ONE, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    assert latest(tmp_path) == folder


def test_states_that_cannot_be_saved(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path / "a", ONE, {"loss": float("nan")})
    monkeypatch.setattr(checkpoint, "LARGEST_STATE_BYTES", 100)
    with pytest.raises(BadInput, match="bytes are more than 100"):
        save(tmp_path / "a", ONE, {"note": "x" * 200})
    assert not (tmp_path / "a").exists()


def test_what_ended_runs_left_is_removed(tmp_path):
    save(step_folder(tmp_path, 5), [], {})
    for name in ("step-00000007.partial", "other.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000007.partial" / "0.bin").touch()
    remove_partial(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000005", "other.partial"}


def test_the_latest_step(tmp_path):
    assert latest(tmp_path / "absent") is None
    assert latest(tmp_path) is None
    for step in (5, 200_000_000, 40):
        save(step_folder(tmp_path, step), [], {"step": step})
    for name in ("step-999999999", "step-00000500.partial", "step-x", "step-٠٠٠٠٠٩٩٩"):
        (tmp_path / name).mkdir()
    assert step_folder(tmp_path, 5).name == "step-00000005"
    assert latest(tmp_path) == tmp_path / "step-200000000"


# Refusals


def test_folders_that_are_no_checkpoint(tmp_path):
    refused(tmp_path / "absent", "no such folder")
    refused(tmp_path, "is not a checkpoint: it has no weft.json")
    (tmp_path / "weft.json").write_text('{"step": 10}')
    refused(tmp_path, r"weft.json: is not of the format 'weft checkpoint 2' -- load it with the version")


def test_checkpoints_that_are_not_complete(saved):
    (saved / "tensors.json").unlink()
    refused(saved, r"tensors.json: no such file -- is the checkpoint complete")


def test_other_models(saved):
    place = FlatRange(shape=(12, 8), rows=((0, 12),), columns=(0, 8), start=0, stop=96)
    extra = [Piece(name=f"blocks.{n}", values=torch.zeros(96), placement=place) for n in range(6)]
    text = refused(saved, "has no blocks.0, blocks.1, blocks.2, blocks.3 and 2 more", [*ONE, *extra])
    assert "is it a checkpoint of this model?" in text
    wide = Piece(name="qkv.weight", values=torch.zeros(96, dtype=torch.bfloat16), placement=place)
    refused(saved, "qkv.weight is 16 x 12 of bfloat16 in the checkpoint, but 12 x 8 of bfloat16 here", [wide])
    single = Piece(name="out.weight", values=torch.zeros(96), placement=place)
    refused(saved, "12 x 8 of bfloat16 in the checkpoint, but 12 x 8 of float32 here", [single])


@pytest.mark.parametrize(
    "change",
    [
        lambda chunks: chunks.pop(),
        lambda chunks: chunks.append(chunks[0]),
        lambda chunks: chunks.__setitem__(1, chunks[0]),
        lambda chunks: chunks[0]["sizes"].__setitem__(0, chunks[0]["sizes"][0] + 1),
        lambda chunks: chunks[0]["offsets"].__setitem__(1, 1),
        lambda chunks: chunks[0]["offsets"].pop(),
        lambda chunks: chunks[0]["sizes"].append(1),
        lambda chunks: chunks.clear(),
    ],
)
def test_pieces_of_a_tensor_that_are_missing(saved, change):
    edited(saved, lambda tensors, _: change(tensors["qkv.weight"]["chunks"]))
    refused(saved, "the pieces of qkv.weight leave gaps in its 16 x 12 or overlap")


@pytest.mark.parametrize("name", ["weft.json", "tensors.json", "0.bin"])
def test_files_that_are_cut_or_absent(saved, name):
    raw = (saved / name).read_bytes()
    (saved / name).write_bytes(raw[: len(raw) // 2])
    refused(saved, "ends at byte" if name == "0.bin" else "not valid JSON")
    (saved / name).unlink()
    refused(saved, "it has no weft.json" if name == "weft.json" else f"{name}: no such file")
    (saved / name).mkdir()
    refused(saved, f"{name}: is not a file")
    (saved / name).rmdir()
    os.mkfifo(saved / name)
    refused(saved, f"{name}: is not a file")


@given(st.data())
@settings(max_examples=30)
def test_any_changed_value_is_found(saved, data):
    raw = (saved / "0.bin").read_bytes()
    place = data.draw(st.integers(0, len(raw) - 1))
    changed = bytes([raw[place] ^ data.draw(st.integers(1, 255))])
    (saved / "0.bin").write_bytes(raw[:place] + changed + raw[place + 1 :])
    refused(saved, "the values of .* are damaged -- take another checkpoint")
    (saved / "0.bin").write_bytes(raw)


@given(st.data())
@settings(max_examples=30)
def test_any_changed_bit_of_the_state_is_found(saved, data):
    raw = (saved / "weft.json").read_bytes()
    place = data.draw(st.integers(raw.index(b"state") - 1, len(raw) - 1))
    changed = bytes([raw[place] ^ 1 << data.draw(st.integers(0, 7))])
    (saved / "weft.json").write_bytes(raw[:place] + changed + raw[place + 1 :])
    with contextlib.suppress(BadInput):
        assert read_state(saved) == STATE, "white space alone may change unseen"
    (saved / "weft.json").write_bytes(raw)


def test_a_state_that_is_refused_fills_nothing(saved):
    def refuse(state):
        raise BadInput(f"step {state['step']}")

    pieces = pieces_of(layout(), 0, fill=0)
    with pytest.raises(BadInput, match="step 10"):
        load(saved, pieces, refuse)
    assert_equal(pieces, pieces_of(layout(), 0, fill=0))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not valid JSON"),
        ("[1]", "is not a table of fields"),
        ('{"a": NaN}', "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1, "a": 2}', "given twice"),
        ("\udcff", "not a text file in UTF-8"),
        (f'{{"a": "{"x" * 2000}"}}', "is larger than"),
    ],
)
def test_states_that_are_none(saved, text, problem, monkeypatch):
    if problem == "is larger than":
        monkeypatch.setattr(checkpoint, "LARGEST_STATE_BYTES", 1000)
    (saved / "weft.json").write_bytes(text.encode(errors="surrogateescape"))
    refused(saved, problem)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("file", "../0.bin"),
        ("file", ".metadata"),
        ("file", 0),
        ("start", -1),
        ("start", True),
        ("sizes", [0, 0]),
        ("sizes", [10**30, 1]),
        ("offsets", None),
        ("crc32", 2**32),
    ],
)
def test_chunks_that_are_none(saved, field, value):
    edited(saved, lambda tensors, _: tensors["qkv.weight"]["chunks"][0].__setitem__(field, value))
    refused(saved, rf"tensors.json: tensors\[\d\].chunks\[0\].{field}")


@pytest.mark.parametrize(
    ("field", "value"),
    [("dtype", "int64"), ("shape", []), ("shape", [2**60, 2]), ("shape", [2, 2, 2]), ("name", "a\nb"), ("chunks", {})],
)
def test_tensors_that_are_none(saved, field, value):
    edited(saved, lambda tensors, _: tensors["qkv.weight"].__setitem__(field, value))
    refused(saved, rf"tensors.json: tensors\[\d\].{field}")
    edited(saved, lambda _, index: index.__setitem__("format", "weft checkpoint 9"))
    refused(saved, "tensors.json: is not of the format 'weft checkpoint 2'")


def test_files_that_lie_elsewhere(saved, tmp_path):
    """A link is no file of a checkpoint."""
    (saved / "0.bin").rename(tmp_path / "secret")
    (saved / "0.bin").symlink_to(tmp_path / "secret")
    refused(saved, "0.bin: is not a file")


class Malicious:
    """Unpickling it makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["weft.json", "tensors.json", "0.bin", ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_pickles_are_not_executed(saved, tmp_path, name, writer):
    mark = tmp_path / "executed"
    known = (saved / name).exists()
    with (saved / name).open("wb") as file:
        (pickle.dump if writer == "pickle" else torch.save)(Malicious(mark), file)
        file.write(b"\0" * 10_000)
    if known:
        refused(saved, "UTF-8|JSON|damaged")
    else:
        pieces = pieces_of(layout(), 0, fill=0)
        load(saved, pieces)
        assert_equal(pieces, pieces_of(layout(), 0))
    assert not mark.exists()
    pickle.loads(pickle.dumps(Malicious(mark)))
    assert mark.exists(), "the trap works"


# On eight ranks


def play(root):
    """One of them."""
    root, rank = Path(root), dist.get_rank()
    folder = root / "checkpoint"
    save(folder, pieces_of(layout(x=2, data=4), rank), STATE)
    for other in (layout(y=2, z=4), layout(z=8), layout(data=8), layout(x=4, z=2)):
        pieces = pieces_of(other, rank, fill=0)
        assert load(folder, pieces) == STATE
        assert_equal(pieces, pieces_of(other, rank))
    place = FlatRange(shape=(1,), rows=((0, 1),), columns=(0, 1), start=0, stop=1)
    unknown = [Piece(name="unknown", values=torch.zeros(1), placement=place)]
    with pytest.raises(BadInput, match="has no unknown"):
        load(folder, unknown if rank == 2 else [])
    with pytest.raises(BadInput, match="exists already"):
        save(folder, [], STATE)
    dist.barrier()
    raw = (folder / "1.bin").read_bytes()
    dist.barrier()
    if rank == 3:
        (folder / "1.bin").write_bytes(bytes(len(raw)))
    dist.barrier()
    with pytest.raises(BadInput, match=r"1.bin: the values of .* are damaged"):
        load(folder, pieces_of(layout(x=2, data=4), rank))
    dist.barrier()
    if rank == 3:
        (folder / "1.bin").write_bytes(raw)
    with pytest.raises(ValueError, match="do not make up"):
        save(root / "other", pieces_of(layout(x=4), 0), STATE)


def test_ranks_save_and_another_grid_loads(ranks, tmp_path):
    """Also: a rank's refusal is every rank's."""
    ranks.run(play, str(tmp_path))
    folder = tmp_path / "checkpoint"
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "other.partial"}
    assert sum(path.stat().st_size for path in folder.glob("*.bin")) == 6 * sum(map(prod, SHAPES.values()))
    assert len(list(folder.glob("*.bin"))) == 8, "copies are spread over the ranks"
    pieces = pieces_of(layout(), 0, fill=0)
    assert load(folder, pieces) == STATE
    assert_equal(pieces, pieces_of(layout(), 0))
