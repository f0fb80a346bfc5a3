"""Roles that a plan gives to modules of a plain model.

Features of the residual stream are split over y.  What a normal layer gives, and a transposed one takes, is
split over x.  Every other dimension is kept: (batch, sequence, features) becomes rows and comes back.
Easy() and Whole() are for the other way (``easy.py``), in which ranks have all features of their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from weft.runtime.convert.converted import Converted, Site
from weft.runtime.convert.easy import Easy4D, cheaper_kind
from weft.runtime.convert.plain import (
    PlainConvolution,
    PlainLinear,
    attribute_of,
    check_parameter,
    check_table,
    layer_of,
    linear_of,
    norm_of,
    table_of,
    whole_part,
)
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Vector
from weft.runtime.core.placement import share
from weft.runtime.layers.linear import Kind, Layer4D
from weft.runtime.layers.norm import Norm4D
from weft.runtime.layers.vocabulary import Embedding4D, Head4D


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """A linear layer or convolution that takes features split over y and gives features split over x.

    Attributes:
        parts: for layers fused along their outputs, how many equal parts, or their sizes; each is split on
            its own, and a rank's outputs are its shares of the parts, in order.
        unit: name of an integer attribute of the module above ("head_dim"): outputs that stay together.
    """

    parts: int | tuple[int, ...] = 1
    unit: str | None = None

    def build(self, site: Site) -> Converted:
        plain = layer_of(site, "Normal")
        sizes = self._sizes(site, plain.outputs)
        if self.unit is not None:
            width = attribute_of(site.parent, site.name.rpartition(".")[0], self.unit)
            for size in sizes:
                what = f"{site.name}: units of {self.unit}={width} in {size} outputs"
                site.machine.grid.divided(whole_part(size, width, what, site), "x", what=what)
        return _split(site, plain, sizes, "normal")

    def _sizes(self, site: Site, outputs: int) -> tuple[int, ...]:
        if isinstance(self.parts, int):
            what = f"{site.name}: parts of {outputs} outputs"
            return (whole_part(outputs, self.parts, what, site),) * self.parts
        if sum(self.parts) != outputs or min(self.parts, default=0) < 1:
            site.refuse(f"parts {self.parts} do not add up to {outputs} outputs", "give the size of each part")
        return self.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Transposed:
    """A linear layer or convolution that takes features split over x and gives features split over y."""

    def build(self, site: Site) -> Converted:
        plain = layer_of(site, "Transposed")
        return _split(site, plain, (plain.outputs,), "transposed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The table of token embeddings: ids to features split over y, its rows split over x and y."""

    def build(self, site: Site) -> Converted:
        vocab, hidden, padding = table_of(site, "Vocabulary")
        layer = Embedding4D(site.machine, site.name, vocab, hidden, padding_index=padding)
        return Converted(site, layer, takes=None, stream=hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """A table of learned positions, small enough to be whole along x: ids to features split over y."""

    def build(self, site: Site) -> Converted:
        positions, hidden, padding = table_of(site, "Positions")
        layer = _Positions4D(site.machine, site.name, positions, hidden, padding)
        return Converted(site, layer, takes=None, stream=hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The output projection: features split over y to logits split over the vocabulary.

    Logits have (padded vocabulary / (x y)) entries; ``vocabulary.cross_entropy`` takes them.
    Where x and y are 1 they are plain.

    Attributes:
        tied: the embedding whose table it shares ("model.embed_tokens"), which must be tied already.
    """

    tied: str | None = None

    def build(self, site: Site) -> Converted:
        plain = linear_of(site, "Head")
        table = None
        if self.tied is not None:
            if plain.stored is not None:
                site.mistyped("Head", "nn.Linear where it is tied")
            shared = site.built.get(self.tied)
            if shared is None or not isinstance(shared.layer, Embedding4D):
                site.refuse(f"tied to {self.tied!r}, which is no Vocabulary() of the plan")
            table = shared.layer.table
        head = Head4D(site.machine, site.name, plain.outputs, plain.inputs, bias=plain.bias, table=table)
        grid = site.machine.grid
        return Converted(
            site,
            head,
            takes=grid.divided(plain.inputs, "y", what=f"{site.name}: inputs"),
            gives=plain.outputs if grid.size("x", "y") == 1 else None,
            stream=plain.inputs,
            stored=plain.stored,
            tied=self.tied,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A norm of features split over y: LayerNorm, RMSNorm, or a module that computes RMSNorm.

    The last have one ``weight`` and an epsilon of a usual name; they are called once, to see that they do.
    """

    def build(self, site: Site) -> Converted:
        features, centred, epsilon = norm_of(site)
        machine = site.machine
        layer = Norm4D(machine, site.name, features, centred=centred, epsilon=epsilon)
        return Converted(site, layer, takes=features // machine.grid.size("y"), stream=features)


@dataclass(frozen=True, slots=True, init=False)
class Heads:
    """Integer attributes of a module that stays, which are divided by x: numbers of heads, widths of these.

    For models whose own code reshapes by them.
    """

    attributes: tuple[str, ...]

    def __init__(self, *attributes: str) -> None:
        object.__setattr__(self, "attributes", attributes)

    def divided(self, machine: Machine, name: str, module: nn.Module) -> Iterator[tuple[nn.Module, str, int]]:
        """Attributes and what they become.

        Raises:
            BadInput: the module has no such integer, or it cannot be divided.
        """
        for attribute in self.attributes:
            value = attribute_of(module, name, attribute)
            yield module, attribute, machine.grid.divided(value, "x", what=f"{name}.{attribute}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Easy:
    """A linear layer or convolution in easy mode: all features of rows of this rank's own, in and out."""

    def build(self, site: Site) -> Converted:
        plain = layer_of(site, "Easy")
        kind = cheaper_kind(site.machine, plain.inputs, plain.outputs)
        layer = Easy4D(plain.built(site, (plain.outputs,), kind, bias=False), bias=plain.bias)
        return Converted(
            site,
            layer,
            takes=plain.inputs,
            stream=plain.inputs,
            easy=True,
            features_at=plain.features_at,
            stored=plain.stored,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A module that stays, in easy mode: every rank has its parameters, and applies it to rows of its own."""

    def parameters(self, site: Site) -> Iterator[nn.Parameter]:
        """The module's own parameters, which all ranks are to hold.

        Raises:
            Unsupported: a table would change by the ids of one rank, or a parameter is not plain.
        """
        if isinstance(site.module, nn.Embedding | nn.EmbeddingBag):
            check_table(site, site.module)
        for key, parameter in site.module.named_parameters(recurse=False):
            check_parameter(site, parameter, f"{site.name}.{key}" if site.name else key)
            yield parameter


Role = Normal | Transposed | Vocabulary | Positions | Head | Norm | Heads | Easy | Whole

# What takes their places --------------------------------------------------------------------------


def _split(site: Site, plain: PlainLinear | PlainConvolution, outputs: tuple[int, ...], kind: Kind) -> Converted:
    """A layer between features that are split over y and features that are split over x."""
    layer: Layer4D = plain.built(site, outputs, kind, bias=plain.bias)
    return Converted(
        site,
        layer,
        takes=plain.inputs // site.machine.grid.size(layer.over_in),
        stream=plain.outputs if layer.transposed else plain.inputs,
        features_at=plain.features_at,
        stored=plain.stored,
    )


class _Positions4D(nn.Module):
    """Positions (rows,) to (rows, hidden / y), of a table that every rank of x, z and data holds."""

    def __init__(self, machine: Machine, name: str, positions: int, hidden: int, padding: int | None) -> None:
        super().__init__()
        self.padding = padding
        grid = machine.grid
        local = grid.divided(hidden, "y", what=f"{name}: features")
        self.table = Vector(
            machine,
            f"{name}.weight",
            shape=(positions, hidden),
            rows=((0, positions),),
            columns=share(hidden, grid.size("y"), grid.index("y")),
            local_shape=(positions, local),
            split_over=("y",),
            own_tokens=True,
        )

    def forward(self, places: Tensor) -> Tensor:
        return functional.embedding(places, self.table(), self.padding)
