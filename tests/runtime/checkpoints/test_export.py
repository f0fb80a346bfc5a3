"""Exported parameters are those of the checkpoint, in a file that safetensors reads."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from ranks import grid_of
from safetensors import safe_open
from safetensors.torch import load_file
from test_training import session

from weft.errors import BadInput
from weft.layout.spec import Layout
from weft.runtime.checkpoints.checkpoint import Piece, save
from weft.runtime.checkpoints.hub import export
from weft.runtime.core.grid import Grid
from weft.runtime.core.parameters import FlatRange


def saved(layout, folder):
    running = session(grid_of(layout), "gpt")
    running.step()
    running.save(Path(folder))


def test_from_a_grid_as_from_one_rank(ranks, tmp_path):
    ranks.run(saved, Layout(x=2, y=2, z=2, micro_batch=8), str(tmp_path / "grid"))
    export(tmp_path / "grid", tmp_path / "grid.safetensors")
    alone = session(Grid.of(Layout(micro_batch=16)), "gpt")
    alone.load(tmp_path / "grid")
    found = load_file(tmp_path / "grid.safetensors")
    wanted = {piece.name: piece for piece in alone.optimizer.pieces() if "/" not in piece.name}
    assert found.keys() == wanted.keys()
    for name, piece in wanted.items():
        assert found[name].shape == torch.Size(piece.placement.shape)
        assert torch.equal(found[name].reshape(-1), piece.values.detach())
    with safe_open(tmp_path / "grid.safetensors", "pt") as file:
        assert json.loads(file.metadata()["weft"])["step"] == 1
    assert [path.name for path in tmp_path.glob("grid.safetensors*")] == ["grid.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_formats_keep_their_bits_and_moments_are_left_out(tmp_path, dtype):
    values = torch.tensor([[0.0, -0.0, torch.inf], [torch.nan, 1.1, -3.0]], dtype=dtype)
    place = FlatRange(shape=(2, 3), rows=((0, 2),), columns=(0, 3), start=0, stop=6)
    names = ("a/b", "a/b/exp_avg", "a/b/exp_avg_sq", "exp_avg")
    save(tmp_path / "a", [Piece(name=name, values=values.view(-1), placement=place) for name in names], {})
    export(tmp_path / "a", tmp_path / "a.safetensors")
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == {"a/b", "exp_avg"}
    assert torch.equal(found["a/b"].view(torch.uint8), values.view(torch.uint8))


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    place = FlatRange(shape=(4,), rows=((0, 4),), columns=(0, 1), start=0, stop=4)
    save(tmp_path / "a", [Piece(name="w", values=torch.ones(4), placement=place)], {})

    def broken(self, name):
        raise OSError(errno.EIO, "Input/output error", str(tmp_path / "a" / "0.bin"))

    monkeypatch.setattr("weft.runtime.checkpoints.hub.FolderReader.tensor", broken)
    with pytest.raises(BadInput, match=r"0\.bin: cannot be read: Input/output error"):
        export(tmp_path / "a", tmp_path / "file")


def test_what_cannot_be_exported(tmp_path):
    with pytest.raises(BadInput, match="no such folder"):
        export(tmp_path / "none", tmp_path / "file")
    place = FlatRange(shape=(4,), rows=((0, 4),), columns=(0, 1), start=0, stop=4)
    save(tmp_path / "a", [Piece(name="w", values=torch.arange(4.0), placement=place)], {})
    with pytest.raises(BadInput, match="cannot be written"):
        export(tmp_path / "a", tmp_path / "none" / "file")
    (tmp_path / "a" / "0.bin").write_bytes(bytes(16))
    (tmp_path / "file").write_text("before")
    with pytest.raises(BadInput, match="the values of w from byte 0 are damaged"):
        export(tmp_path / "a", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "before"
    assert not (tmp_path / "file.partial").exists()
