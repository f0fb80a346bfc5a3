"""Values that know which dimension is split: each function is right on parts, as brute force says, or refused."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from ranks import grid_of, on_ranks
from torch import nn
from torch.nn import functional as f

from weft.errors import Unsupported
from weft.layout.spec import Layout
from weft.runtime.convert.parallelize import parallelize
from weft.runtime.convert.roles import Head, Normal, Transposed, Vocabulary
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.split import Split, TensorCut, marked

PLAN, LAYOUT = {"up": Normal(), "down": Transposed()}, Layout(x=2, y=2, data=2)
DRAWS = SimpleNamespace(trains=False)
SHAPE = (4, 6, 8)
PARTS = 2


def cut(values, dim, axis="x", fused=1):
    return marked(values, DRAWS, axis, cut=TensorCut(frozenset({dim}), fused), origin="up")


def positive():
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.1


def written(values):
    made = torch.zeros_like(values)
    made[:, 1:3] = values[:, :2]
    return made


EACH = {
    "arithmetic": lambda x: (2 * x - 1) / (x + 3) ** 2 + (1 - x) % 0.7 - -x + 2 / x,
    "in place": lambda x: x.clone().mul_(2).add_(x).clamp_(max=3).masked_fill_(x > 0.5, 0.0),
    "activations": lambda x: f.gelu(f.silu(f.relu(x))) + f.softplus(x) * torch.sigmoid(x).tanh() + f.leaky_relu(x),
    "more activations": lambda x: f.hardswish(x) + f.mish(x) + f.elu(x) + f.logsigmoid(x) + f.relu6(x) + f.softsign(x),
    "logic": lambda x: torch.where((x > 0.5) & ~(x < 0.3) | (x == 0), x, torch.zeros_like(x)),
    "formats": lambda x: x.float().to(torch.float64).type_as(x).double().contiguous().detach(),
    "maxima": lambda x: torch.max(x, x.square()) + torch.minimum(x, x.sqrt()) + x.new_ones(x.shape),
    "dropout": lambda x: f.dropout(x, 0.0) + f.dropout(x, 0.5, training=False),
    "iterate": lambda x: torch.stack(list(x)),
    "iterate over columns": lambda x: torch.stack([one * 2 for one in x.unbind(1)], 1),
    "cat 0": lambda x: torch.cat([x, x * 2], 0),
    "cat last": lambda x: torch.cat([x, x], -1),
    "stack 1": lambda x: torch.stack((x, x), dim=1),
    "transpose": lambda x: x.transpose(1, 2),
    "transpose ends": lambda x: x.transpose(0, -1).exp(),
    "permute": lambda x: x.permute(2, 0, 1),
    "permute list": lambda x: x.permute([1, 2, 0]) * 2,
    "turned": lambda x: x.mT,
    "heads": lambda x: x.view(*x.shape[:2], -1, 2),
    "heads and back": lambda x: x.unflatten(-1, (-1, 2)).transpose(1, 2).exp().transpose(1, 2).flatten(2),
    "merge rows": lambda x: x.flatten(0, 1),
    "merge columns": lambda x: x.reshape(x.shape[0], -1),
    "all in one": lambda x: x.flatten(),
    "unsqueeze": lambda x: x.unsqueeze(1).squeeze(1),
    "expand": lambda x: x[:, :, None, :].expand(-1, -1, 3, -1),
    "repeat heads": lambda x: (
        x[:, :, None].expand(x.shape[0], x.shape[1], 3, x.shape[2]).reshape(x.shape[0], -1, x.shape[2])
    ),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat in front": lambda x: x.repeat(3, 1, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "index": lambda x: x[0],
    "index last": lambda x: x[..., 0],
    "slices": lambda x: x[:, 1:3],
    "half of the last": lambda x: x[..., : x.shape[-1] // 2],
    "every other": lambda x: x[:, ::2],
    "list": lambda x: x[:, torch.tensor([2, 0])],
    "mask": lambda x: x[torch.tensor([True, False] * (x.shape[0] // 2))],
    "written": written,
    "chunk": lambda x: x.chunk(2, -1),
    "split": lambda x: x.split(1, 1),
    "narrow": lambda x: x.narrow(1, 0, 2),
    "select": lambda x: x.select(2, 0),
    "glu": lambda x: f.glu(x, -1),
    "half a gate": lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1],
    "pad last": lambda x: f.pad(x, (1, 0)),
    "pad rows": lambda x: f.pad(x, (0, 0, 0, 2)),
    "roll": lambda x: x.roll(1, 1),
    "roll all": lambda x: x.roll(1),
    "flip": lambda x: x.flip(-1),
    "tril": lambda x: x.tril(),
    "gather": lambda x: x.gather(1, torch.zeros(x.shape[0], 1, x.shape[2], dtype=torch.int64)),
    "index_select": lambda x: x.index_select(0, torch.tensor([1, 0])),
    "diff": lambda x: x.diff(dim=1),
    "sum": lambda x: x.sum(),
    "mean last": lambda x: x.mean(-1, keepdim=True),
    "mean by norm": lambda x: x / x.mean(dim=(1, 2), keepdim=True),
    "sum of rows": lambda x: torch.sum(x, 1),
    "prod": lambda x: x.prod(0),
    "amax": lambda x: x.amax(-1),
    "max": lambda x: x.max(1).values,
    "max of all": lambda x: x.max(),
    "argmax": lambda x: x.argmax(-1),
    "any": lambda x: (x > 1).any(1),
    "std": lambda x: x.std(-1),
    "var": lambda x: x.var(1, unbiased=False),
    "std_mean": lambda x: torch.std_mean(x, dim=1),
    "norm": lambda x: x.norm(dim=-1),
    "norm of all": lambda x: torch.linalg.vector_norm(x),
    "normalize": lambda x: f.normalize(x, dim=-1),
    "normalize columns": f.normalize,
    "cosine": lambda x: f.cosine_similarity(x, x.square(), dim=1),
    "softmax": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: f.softmax(x, dim=1),
    "log_softmax": lambda x: torch.log_softmax(x, 0),
    "logsumexp": lambda x: x.logsumexp(2),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: torch.cumprod(x, dim=0),
    "sort": lambda x: x.sort().values,
    "argsort": lambda x: x.argsort(1),
    "topk": lambda x: x.topk(2).values,
    "median": lambda x: x.median(1).values,
    "layer_norm": lambda x: f.layer_norm(x, x.shape[-1:]),
    "layer_norm of two": lambda x: f.layer_norm(x, x.shape[1:]),
    "rms_norm": lambda x: f.rms_norm(x, x.shape[-1:]),
    "scores": lambda x: x @ x.transpose(1, 2),
    "weights": lambda x: x @ torch.arange(16.0, dtype=x.dtype).view(8, 2)[: x.shape[2]],
    "of columns": lambda x: torch.arange(12.0, dtype=x.dtype).view(2, 6)[:, : x.shape[1]] @ x,
    "vector": lambda x: x @ torch.arange(8.0, dtype=x.dtype)[: x.shape[2]],
    "linear": lambda x: f.linear(x, torch.ones(3, x.shape[2], dtype=x.dtype), torch.ones(3, dtype=x.dtype)),
    "bmm": lambda x: torch.bmm(x, x.mT),
    "einsum of rows": lambda x: torch.einsum("bsd,btd->bst", x, x),
    "einsum of columns": lambda x: torch.einsum("...sd, ...se -> ...de", x, x * 2),
    "einsum turns": lambda x: torch.einsum("bsd->dbs", x),
    "attention": lambda x: f.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None] * 2, is_causal=True),
    "attention of columns": lambda x: f.scaled_dot_product_attention(x[None], x[None], x[None]),
    "masked attention": lambda x: f.scaled_dot_product_attention(
        x, x, x, torch.zeros(6, 6, dtype=x.dtype)[: x.shape[1], : x.shape[1]]
    ),
    "unknown": lambda x: torch.fft.fft(x).real,
    "interpolated": lambda x: f.avg_pool1d(x, 2),
    "positions": lambda x: x + torch.arange(8.0, dtype=x.dtype)[: x.shape[2]],
    "slopes of heads": lambda x: x * torch.arange(4.0, dtype=x.dtype)[: x.shape[0]].view(-1, 1, 1),
    "mask of rows": lambda x: x.masked_fill(torch.ones(6, 1, dtype=torch.bool)[: x.shape[1]], 1.0),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, torch.zeros(x.shape, dtype=torch.int64), 1.0),
}
"""Functions of values of three dimensions whose sizes are taken from their shapes."""
STRICT = {
    *("mask", "mask of rows", "split", "iterate", "iterate over columns", "unknown", "interpolated", "written"),
    *("list", "slices", "narrow"),
}
"""Loops and pieces along what is split may be right, and are refused; so is what is unknown."""


def pieces_of(found):
    return list(found) if isinstance(found, tuple | list) else [found]


def is_right(whole, parts, dims=None):
    """Whether parts are those of the whole along some dimension."""
    if any(len(pieces_of(part)) != len(pieces_of(whole)) for part in parts):
        return False
    for index, one in enumerate(pieces_of(whole)):
        given = [pieces_of(part)[index].as_subclass(torch.Tensor) for part in parts]
        along = range(one.ndim) if dims is None else dims[index]
        if not any(together(given, dim, one) for dim in along):
            return False
    return True


def together(given, dim, one):
    if any(part.ndim != one.ndim for part in given):
        return False
    try:
        joined = torch.cat(given, dim)
    except RuntimeError:
        return False
    return joined.shape == one.shape and torch.allclose(joined.to(one.dtype), one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dim", range(3))
@pytest.mark.parametrize("name", EACH)
def test_what_is_not_refused_is_right_on_parts(name, dim):
    """The parts of a function's result, along the dimension that they say, are the whole's."""
    function, values = EACH[name], positive()
    whole = function(values)
    plain = []
    for part in values.chunk(PARTS, dim):
        try:
            plain.append(function(part))
        except (RuntimeError, IndexError):  # a size that is written out
            break
    right = len(plain) == PARTS and is_right(whole, plain)
    refused = ""
    try:
        found = [function(cut(part, dim)) for part in values.chunk(PARTS, dim)]
    except Unsupported as refusal:
        refused = str(refusal)
    except (RuntimeError, IndexError):
        return
    if refused:
        assert re.match(r"up: \w+\(\) would be wrong for its features, which are split over x: .*easy mode", refused)
        assert not right or name in STRICT
        return
    dims = [one.cut.dims for one in pieces_of(found[0])]
    assert right
    assert is_right(whole, found, dims)


def test_readings_of_one_head():
    """A head's features, or a dimension of size 1 in front of all: what follows decides."""
    one = cut(torch.rand(4, 6, 8), 2).view(4, 6, 1, 8)
    assert one.cut.dims == {2, 3}
    heads = one.transpose(1, 2)
    assert (heads @ heads.mT).cut.dims == {1}
    assert one.softmax(2).cut.dims == {3}
    with pytest.raises(Unsupported, match="softmax"):
        one.softmax(3).softmax(2)
    assert cut(torch.rand(4, 1, 8), 2).view(4, 1, -1, 2).cut.dims == {2}


def test_fused_parts():
    """Queries, keys and values of one layer."""
    fused = cut(torch.rand(4, 6, 24), 2, fused=3)
    assert [one.cut for one in fused.chunk(3, -1)] == [TensorCut(frozenset({2}))] * 3
    assert [one.cut for one in fused.split(8, dim=2)] == [TensorCut(frozenset({2}))] * 3
    assert fused[..., :8].cut == TensorCut(frozenset({2}))
    assert fused.exp().cut == fused.cut
    heads = fused.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    assert heads.cut == TensorCut(frozenset({2}))
    assert all(one.cut == TensorCut(frozenset({1})) for one in heads)
    for wrong in (
        lambda: fused.view(4, 6, 2, 12),
        lambda: fused + cut(torch.rand(4, 6, 24), 2),
        lambda: fused.sum(-1),
    ):
        with pytest.raises(Unsupported):
            wrong()
    with pytest.raises(Unsupported, match="chunk"):
        cut(torch.rand(4, 6, 8), 2).chunk(2, -1)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x, y: x + cut(y, 1), "split in another way"),
        (lambda x, y: x * cut(y, 2, "y"), "others are split over other axes"),
        (lambda x, y: x * y, r"not at all \(make that by zeros_like"),
        (lambda x, y: torch.cat([x, y], 1), "not at all"),
        (lambda x, y: y.clone().__setitem__(0, x[0]), "setitem.* its result is not split"),
        (lambda x, y: y.index_add(0, torch.tensor([0]), x[:1]), "index_add.* its result is not split"),
        (lambda x, y: y.clone().add_(x), "not at all"),
        (lambda x, y: x.__setitem__((..., 0), 0.0), "setitem"),
        (lambda x, y: torch.einsum("bsd,bsd", x, x), "behind an arrow"),
    ],
)
def test_two_values(function, match):
    with pytest.raises(Unsupported, match=match):
        function(cut(positive(), 2), positive())


def test_values_made_like_others_fit():
    x = cut(positive(), 2)
    assert (x + x.new_zeros(SHAPE)).cut == torch.cat([torch.empty(0), x], 0).cut == x.cut
    assert (x * torch.ones(6, 1)).cut == x.cut
    assert isinstance(x[0].sum(0), Split)


# In models -----------------------------------------------------------------------------------------


class Between(nn.Module):
    """Something between a layer that gives features split over x and one that takes them, and in the stream."""

    def __init__(self, between=lambda hidden: hidden, behind=lambda stream: stream):
        super().__init__()
        self.up, self.down, self.between, self.behind = nn.Linear(8, 16), nn.Linear(16, 8), between, behind

    def forward(self, rows):
        return rows + self.behind(self.down(self.between(self.up(rows))))


WRONG = {
    "softmax": lambda values: values.softmax(-1),
    "mean": lambda values: values - values.mean(-1, keepdim=True),
    "norm": lambda values: values / values.norm(dim=-1, keepdim=True),
    "sum": lambda values: values / values.sum(-1, keepdim=True),
}


@pytest.mark.parametrize(("where", "origin", "axis"), [("between", "up", "x"), ("behind", "down", "y")])
@on_ranks
def test_models_that_need_all_features_are_refused(where, origin, axis):
    """In training and, later, in evaluation alone; they trained wrongly in silence."""
    machine = Machine.of(grid_of(LAYOUT), precision=Precision.of("fp64"))
    match = rf"^{origin}: \w+\(\) would be wrong for its features, which are split over {axis}: "
    for wrong in WRONG.values():
        for trains in (True, False):
            model = parallelize(Between(**{where: wrong}).double(), machine, PLAN).train(trains)
            with pytest.raises(Unsupported, match=match):
                model(torch.ones(4, 8 // LAYOUT.y, dtype=torch.float64))


@on_ranks
def test_models_are_followed_in_the_first_pass_of_training_and_of_evaluation():
    """Functions of each feature and of all rows alone; what later passes know."""
    machine, seen = Machine.of(grid_of(LAYOUT), precision=Precision.of("fp64")), []

    def between(hidden):
        seen.append(type(hidden).__name__)
        return f.gelu(hidden) - hidden.mean(0) + hidden.cumsum(0)

    torch.manual_seed(0)
    model = Between(between).double()
    rows = torch.rand(4, 8, dtype=torch.float64)
    whole = model(rows).detach()
    seen.clear()
    model = parallelize(model, machine, PLAN)
    own = [part.chunk(LAYOUT.y, 1)[machine.grid.index("y")] for part in (rows, whole)]
    with torch.no_grad():
        for trains in (True, True, False, False):
            assert (model.train(trains)(own[0]) - own[1]).abs().max() < 1e-12
    assert seen == ["Split", "Tensor", "Split", "Tensor"]


class Loss(nn.Module):
    """A model that makes a loss of its own logits."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 8), nn.Linear(8, 8, bias=False)

    def forward(self, ids):
        return f.cross_entropy(self.head(self.embedding(ids)), torch.zeros_like(ids))


@on_ranks
def test_losses_of_split_logits_are_refused():
    model = parallelize(Loss(), Machine.of(grid_of(LAYOUT)), {"embedding": Vocabulary(), "head": Head()})
    with pytest.raises(Unsupported, match=r"head: cross_entropy\(\) .* split over x and y: .* weft's cross_entropy"):
        model(torch.zeros(2, dtype=torch.int64))
