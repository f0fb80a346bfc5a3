"""Roles that a plan gives to modules of a plain model, and what sizes and options plain modules have.

Features of the residual stream are split over y.  What a normal layer gives, and a transposed one takes, is
split over x.  Every other dimension is kept: (batch, sequence, features) becomes rows and comes back.

Easy() and Whole() are for easy mode: between layers every rank has all features of different rows, as plain
data parallelism has.  Norms, activations and attention of a plain model then run unchanged.  Around a layer
rows are exchanged for features: an all-to-all over the axis of inputs, then the layer gathers rows over the
axis of outputs; its partial sums are scattered by rows over the axis of inputs, and an all-to-all over the
axis of outputs brings all features of a rank's own rows.  No rank receives an element that it does not need,
or one twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from weft.errors import BadInput, Unsupported
from weft.layout.spec import Layout
from weft.runtime.core.beneath import in_backward, tree_flatten, tree_unflatten
from weft.runtime.core.collectives import all_parts, moved, own_part
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import EVERY_ROW, Replicated
from weft.runtime.core.split import Draws, Split, TensorCut, marked, plain
from weft.runtime.layers.linear import Conv4D, Kind, Layer4D, Linear4D, Pair
from weft.runtime.layers.norm import Norm4D
from weft.runtime.layers.vocabulary import Embedding4D, Head4D, positions_table


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

    def build(self, site: ModuleSite) -> Converted:
        plain = layer_of(site, "Normal")
        sizes = self._sizes(site, plain.outputs)
        if self.unit is not None:
            width = attribute_of(site.parent, site.name.rpartition(".")[0], self.unit)
            for size in sizes:
                what = f"{site.name}: units of {self.unit}={width} in {size} outputs"
                site.machine.grid.divided(whole_part(size, width, what, site), "x", what=what)
        return _split(site, plain, sizes, "normal")

    def _sizes(self, site: ModuleSite, outputs: int) -> tuple[int, ...]:
        if isinstance(self.parts, int):
            what = f"{site.name}: parts of {outputs} outputs"
            return (whole_part(outputs, self.parts, what, site),) * self.parts
        if sum(self.parts) != outputs or min(self.parts, default=0) < 1:
            site.refuse(f"parts {self.parts} do not add up to {outputs} outputs", "give the size of each part")
        return self.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Transposed:
    """A linear layer or convolution that takes features split over x and gives features split over y."""

    def build(self, site: ModuleSite) -> Converted:
        plain = layer_of(site, "Transposed")
        return _split(site, plain, (plain.outputs,), "transposed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The table of token embeddings: ids to features split over y, its rows split over x and y."""

    def build(self, site: ModuleSite) -> Converted:
        vocab, hidden, padding = table_of(site, "Vocabulary")
        layer = Embedding4D(site.machine, site.name, vocab, hidden, padding_index=padding)
        return Converted(site, layer, takes=None, stream=hidden, splits=("y",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """A table of learned positions, small enough to be whole along x: ids to features split over y."""

    def build(self, site: ModuleSite) -> Converted:
        positions, hidden, padding = table_of(site, "Positions")
        layer = _Positions4D(site.machine, site.name, positions, hidden, padding)
        return Converted(site, layer, takes=None, stream=hidden, splits=("y",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The output projection: features split over y to logits split over the vocabulary.

    Logits have (padded vocabulary / (x y)) entries; ``vocabulary.cross_entropy`` takes them.
    Where x and y are 1 they are plain.

    Attributes:
        tied: the embedding whose table it shares ("model.embed_tokens"), which must be tied already.
    """

    tied: str | None = None

    def build(self, site: ModuleSite) -> Converted:
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
            splits=("x", "y"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A norm of features split over y: LayerNorm, RMSNorm, or a module that computes RMSNorm.

    The last have one ``weight`` and an epsilon of a usual name; they are called once, to see that they do.
    """

    def build(self, site: ModuleSite) -> Converted:
        features, centred, epsilon = norm_of(site)
        machine = site.machine
        layer = Norm4D(machine, site.name, features, centred=centred, epsilon=epsilon)
        return Converted(site, layer, takes=features // machine.grid.size("y"), stream=features, splits=("y",))


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
    """A linear layer or convolution in easy mode: all features of this rank's rows, in and out."""

    def build(self, site: ModuleSite) -> Converted:
        plain = layer_of(site, "Easy")
        over_in, _ = easy_axes(site.machine.grid.layout, plain.inputs, plain.outputs)
        kind: Kind = "normal" if over_in == "y" else "transposed"
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
    """A module that stays: every rank has its parameters, and applies it to all features of the rows that it has.

    Among roles that split features it takes all of them, and gives its own where it gives as many.
    """

    def parameters(self, site: ModuleSite) -> Iterator[nn.Parameter]:
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


def _split(site: ModuleSite, plain: PlainLayer, outputs: tuple[int, ...], kind: Kind) -> Converted:
    """A layer between features that are split over y and features that are split over x."""
    layer = plain.built(site, outputs, kind, bias=plain.bias)
    return Converted(
        site,
        layer,
        takes=plain.inputs // site.machine.grid.size(layer.over_in),
        stream=plain.outputs if layer.transposed else plain.inputs,
        features_at=plain.features_at,
        stored=plain.stored,
        splits=(layer.over_out,),
        fused=len(outputs),
    )


class _Positions4D(nn.Module):
    """Positions (rows,) to (rows, hidden / y), of a table that every rank of x, z and data holds."""

    def __init__(self, machine: Machine, name: str, positions: int, hidden: int, padding: int | None) -> None:
        super().__init__()
        self.padding, self.table = padding, positions_table(machine, f"{name}.weight", positions, hidden)

    def forward(self, places: Tensor) -> Tensor:
        return functional.embedding(places, self.table(), self.padding)


class Easy4D(nn.Module):
    """A layer on (rows of this rank, all features, ...), for (rows of this rank, all outputs, ...).

    All ranks of the grid have different rows, each as many: the batch is split over x, y, z and data, and so
    losses are summed over all of them.  The result is in the number format of the input.

    Args:
        layer: made without bias.
        bias: add one to the rows; every rank holds it whole.
    """

    def __init__(self, layer: Layer4D, *, bias: bool) -> None:
        super().__init__()
        layer.gathers_rows = layer.scatters_rows = True
        layer.weight.holding = replace(layer.weight.holding, rows_over=EVERY_ROW)
        self.layer = layer
        self.bias = None
        if bias:
            weight = layer.weight
            self.bias = Replicated.of(layer.machine, f"{weight.name}.bias", weight.placement.shape[:1])

    @property
    def is_whole(self) -> bool:
        """As of the layer."""
        return self.layer.is_whole

    def forward(self, rows: Tensor) -> Tensor:
        machine, layer = self.layer.machine, self.layer
        out = layer(machine.last.made("easy", rows, layer.over_in, lambda: self._share(rows)))
        if machine.grid.size(layer.over_out) > 1:
            out = moved(
                out,
                lambda shares: _to_rows(shares, machine, layer.over_out),
                lambda own: _to_shares(own, machine, layer.over_out),
            )
        if self.bias is not None:
            out = out + self.bias.to(out.dtype).view(-1, *(1,) * (out.ndim - 2))
        return cast(Tensor, out).to(rows.dtype)

    def _share(self, rows: Tensor) -> Tensor:
        """The rows of all ranks along the axis of inputs, with this rank's share of the features."""
        machine, axis = self.layer.machine, self.layer.over_in
        given = rows.to(machine.precision.compute)
        if machine.grid.size(axis) == 1:
            return given
        return moved(given, lambda own: _to_shares(own, machine, axis), lambda shares: _to_rows(shares, machine, axis))


def easy_axes(layout: Layout, inputs: int, outputs: int) -> tuple[str, str]:
    """The axes of inputs and of outputs with which a layer exchanges fewer bytes, of those that divide its features.

    Each rank receives inputs times the axis of outputs, and outputs times the axis of inputs, for each row.
    """
    x, y = layout.x, layout.y
    normal, transposed = inputs % y or outputs % x, inputs % x or outputs % y
    if bool(normal) != bool(transposed):
        return ("x", "y") if normal else ("y", "x")
    return ("y", "x") if inputs * x + outputs * y <= inputs * y + outputs * x else ("x", "y")


def _to_shares(rows: Tensor, machine: Machine, axis: str) -> Tensor:
    """Own rows with all features, to the rows of all ranks of an axis with this rank's share of features."""
    parts = rows.reshape(len(rows), machine.grid.size(axis), -1, *rows.shape[2:])
    return machine.collectives.all_to_all(parts.transpose(0, 1).flatten(0, 1), axis).wait()


def _to_rows(shares: Tensor, machine: Machine, axis: str) -> Tensor:
    """The inverse."""
    received = machine.collectives.all_to_all(shares, axis).wait()
    parts = received.reshape(machine.grid.size(axis), -1, *received.shape[1:])
    return parts.transpose(0, 1).flatten(1, 2)


EPSILONS = ("eps", "variance_epsilon", "epsilon")
"""What RMS norms call their epsilon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLayer:
    """A plain linear layer or convolution, and what makes a rank's part of it."""

    inputs: int
    outputs: int
    bias: bool
    make: Callable[..., Layer4D] = Linear4D
    stored: Stored | None = None
    features_at: int = -1

    def built(self, site: ModuleSite, outputs: tuple[int, ...], kind: Kind, *, bias: bool) -> Layer4D:
        return self.make(site.machine, site.name, self.inputs, outputs, kind=kind, bias=bias)


def is_layer(module: nn.Module) -> bool:
    """Whether it is a linear layer or convolution that can be cut."""
    return type(module) in (nn.Linear, nn.Conv2d) or type(module).__name__ == "Conv1D"


def undivided(module: nn.Module, layout: Layout) -> str | None:
    """Why easy mode cannot cut a linear layer or convolution over x and y; None where it can."""
    if isinstance(module, nn.Conv2d):
        features = module.in_channels, module.out_channels
        if module.groups != 1:
            return f"groups = {module.groups}"
        if isinstance(module.padding, str) or module.padding_mode != "zeros":
            return f"padding = {module.padding!r}, padding_mode = {module.padding_mode!r}"
    else:
        outputs, inputs = cast(Tensor, module.weight).shape
        features = (inputs, outputs) if isinstance(module, nn.Linear) else (outputs, inputs)
    degrees = [getattr(layout, axis) for axis in easy_axes(layout, *features)]
    if any(size % degree for size, degree in zip(features, degrees, strict=True)):
        return f"{features[0]} inputs and {features[1]} outputs over x={layout.x}, y={layout.y}"
    return None


def layer_of(site: ModuleSite, role: str) -> PlainLayer:
    return convolution_of(site) if type(site.module) is nn.Conv2d else linear_of(site, role)


def convolution_of(site: ModuleSite) -> PlainLayer:
    module = site.module
    assert isinstance(module, nn.Conv2d)
    _check_own(site, ("weight",), optional=("bias",))
    if module.groups != 1:
        site.refuse(f"has groups = {module.groups}", "set groups=1, or give it Whole() in easy mode")
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        given = f"padding = {module.padding!r}, padding_mode = {module.padding_mode!r}"
        site.refuse(f"has {given}", "give the zeros to add on each side as numbers")
    shape = {name: getattr(module, name) for name in ("stride", "padding", "dilation")}
    return PlainLayer(
        inputs=module.in_channels,
        outputs=module.out_channels,
        bias=module.bias is not None,
        make=partial(Conv4D, kernel=cast(Pair, module.kernel_size), **shape),
        stored=Stored(tuple(module.weight.shape)),
        features_at=-3,
    )


def linear_of(site: ModuleSite, role: str) -> PlainLayer:
    module = site.module
    if type(module) is nn.Linear:
        _check_own(site, ("weight",), optional=("bias",))
        outputs, inputs = site.parameter("weight").shape
        return PlainLayer(inputs=inputs, outputs=outputs, bias=module.bias is not None)
    if site.kind != "Conv1D":
        more = "" if role == "Head" else ", nn.Conv2d"
        site.mistyped(role, f"nn.Linear{more} and Hugging Face's Conv1D")
    _check_own(site, ("weight", "bias"))
    weight, bias = site.parameter("weight"), site.parameter("bias")
    if weight.ndim != 2 or bias.shape != weight.shape[1:]:
        site.refuse(f"is a Conv1D with a weight of {tuple(weight.shape)} and a bias of {tuple(bias.shape)}")
    inputs, outputs = weight.shape
    values = {"weight": torch.zeros(inputs, outputs), "bias": torch.arange(float(outputs))}
    values["weight"][0] = torch.arange(1.0, outputs + 1.0)
    values["weight"][:, 0] += torch.arange(float(inputs))
    ramp = torch.linspace(-1.0, 1.0, inputs).expand(1, inputs)
    _check_computes(site, values, ramp, ramp @ values["weight"] + values["bias"], "x @ weight + bias")
    return PlainLayer(inputs=inputs, outputs=outputs, bias=True, stored=Stored((inputs, outputs), flipped=True))


def table_of(site: ModuleSite, role: str) -> tuple[int, int, int | None]:
    """Rows and features of an embedding, and the row that is not trained."""
    module = site.module
    if type(module) is not nn.Embedding:
        site.mistyped(role, "nn.Embedding")
    _check_own(site, ("weight",))
    assert isinstance(module, nn.Embedding)
    check_table(site, module)
    rows, features = module.weight.shape
    return rows, features, module.padding_idx


def check_table(site: ModuleSite, module: nn.Embedding | nn.EmbeddingBag) -> None:
    """Refuse a table that is changed, or trained, by which ids one rank sees."""
    if module.max_norm is not None:
        site.refuse(f"has max_norm = {module.max_norm:g}", "set max_norm to None")
    for option in ("scale_grad_by_freq", "sparse"):
        if getattr(module, option):
            site.refuse(f"has {option} on", f"set {option} to False")


def norm_of(site: ModuleSite) -> tuple[int, bool, float]:
    """Features, whether it is LayerNorm, epsilon."""
    module = site.module
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        if type(module) not in (nn.LayerNorm, nn.RMSNorm):
            site.mistyped("Norm", "nn.LayerNorm, nn.RMSNorm and modules that compute the latter")
        if len(module.normalized_shape) != 1:
            site.refuse(f"is over {len(module.normalized_shape)} dimensions", "only the last can be split")
        centred = isinstance(module, nn.LayerNorm)
        if module.weight is None or (centred and module.bias is None):
            lacking = "weight" if module.weight is None else "bias"
            site.refuse(f"is a {site.kind} without {lacking}", "make it affine, with weight 1 and bias 0")
        _check_own(site, ("weight", "bias") if centred else ("weight",))
        if module.eps is None:
            site.refuse("takes its epsilon from the number format", "give eps a number")
        return module.normalized_shape[0], centred, module.eps
    names = [name for name, _ in module.named_parameters()]
    epsilons = [vars(module)[name] for name in EPSILONS if isinstance(vars(module).get(name), float)]
    if names != ["weight"] or site.parameter("weight").ndim != 1 or len(epsilons) != 1:
        site.mistyped("Norm", f"nn.LayerNorm, nn.RMSNorm and modules with weight and {' or '.join(EPSILONS)}")
    _check_own(site, ("weight",))
    (features,), epsilon = site.parameter("weight").shape, epsilons[0]
    gain = torch.linspace(0.5, 2.0, features)
    rows = torch.linspace(-1.0, 1.5, 2 * features).view(2, features).square() * (4 * max(epsilon, 1e-12)) ** 0.5
    normed = functional.rms_norm(rows.double(), (features,), gain.double(), epsilon)
    _check_computes(site, {"weight": gain}, rows, normed, "RMSNorm")
    return features, False, epsilon


def _check_computes(site: ModuleSite, values: dict[str, Tensor], rows: Tensor, expected: Tensor, what: str) -> None:
    """Call a module whose class says nothing with given values of its parameters."""
    result: Tensor | None = None
    problem = ""
    with torch.no_grad():
        try:
            result = functional_call(site.module, values, (rows,))
        except Exception as error:  # a stranger's code: whatever it raises is the reason to refuse it
            problem = f": {type(error).__name__} ({error})"
    if not isinstance(result, Tensor) or result.shape != expected.shape:
        site.refuse(f"({site.kind}) does not compute {what}{problem}", "write the module in plain torch.nn")
    if not torch.allclose(result.to(expected.dtype), expected, rtol=1e-3, atol=1e-6):
        site.refuse(f"({site.kind}) does not compute {what}", "write the module in plain torch.nn")


def _check_own(site: ModuleSite, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Refuse a module that has more to it than its parameters."""
    module = site.module
    own = {name for name, value in module._parameters.items() if value is not None}
    if not set(names) <= own <= {*names, *optional}:
        result = ", ".join(sorted(own)) or "none"
        site.refuse(f"has the parameters {result}, not {' and '.join(names)}", "take weight_norm and the like away")
    more = [name for name, _ in (*module.named_buffers(), *module.named_children())]
    if more:
        site.refuse(f"holds {', '.join(more)}, which would be lost", "take it away")
    if "forward" in vars(module):
        site.refuse("its instance has another forward, which would be lost", "take the wrapper away")
    for name in sorted(own):
        check_parameter(site, site.parameter(name), f"{site.name}.{name}")


def check_parameter(site: ModuleSite, parameter: nn.Parameter, name: str) -> None:
    precision = site.machine.precision
    hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
    problem: tuple[str, str] | None = None
    if type(parameter) is not nn.Parameter:
        problem = (f"is of class {type(parameter).__name__}", "give plain parameters, neither quantized nor split")
    elif not parameter.numel():
        problem = f"is empty: {tuple(parameter.shape)}", "take it away"
    elif not parameter.requires_grad:
        problem = "is frozen", "the runtime trains all parameters: call requires_grad_(True)"
    elif any(hooks):
        problem = "has a hook, which would be lost", "remove it"
    elif torch.promote_types(parameter.dtype, precision.master) != precision.master:
        problem = (
            f"is {parameter.dtype}, parameters at rest are {precision.master}".replace("torch.", ""),
            "convert the model first, or give the machine another Precision",
        )
    elif parameter.grad is not None:
        problem = "has a gradient, which would be lost", "call zero_grad() first"
    if problem is not None:
        raise Unsupported(problem[0], where=name, remedy=problem[1])


def attribute_of(module: nn.Module, name: str, attribute: str) -> int:
    """A module's own integer above zero."""
    value = vars(module).get(attribute)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(
            f"has no integer attribute {attribute!r}",
            where=name or "the model itself",
            remedy=f"give the plan the name of an attribute of {type(module).__name__}",
        )
    return value


def whole_part(size: int, by: int, what: str, site: ModuleSite) -> int:
    if by < 1 or size % by:
        site.refuse(f"{what}: {size} / {by} is not whole")
    return size // by


# In the model ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleSite:
    """A module to convert.

    Attributes:
        name: in the model.
        parent: the module that holds it.
        built: what has been converted before, by name.
    """

    machine: Machine
    name: str
    module: nn.Module
    parent: nn.Module
    built: Mapping[str, Converted]

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    def refuse(self, what: str, remedy: str | None = None) -> NoReturn:
        """What cannot be converted as it is."""
        raise Unsupported(what, where=self.name, remedy=remedy)

    def mistyped(self, role: str, wanted: str) -> NoReturn:
        """The plan gives the module a role that it cannot have."""
        raise BadInput(
            f"is of class {self.kind}, which {role}() does not convert",
            where=self.name,
            remedy=f"{role}() converts {wanted}, and no subclass of these",
        )

    def parameter(self, name: str) -> nn.Parameter:
        return cast(nn.Parameter, getattr(self.module, name))


class Converted(nn.Module):
    """Stands in for a plain module: takes and gives tensors of this rank's features.

    Args:
        layer: works on rows.
        takes: features that ``layer`` takes; None where it takes ids.
        gives: features to keep of the rows that ``layer`` gives; all by default.
        stream: the whole residual stream's features, which the layer takes or gives.
        easy: it takes all features of different rows on each rank.
        features_at: the dimension of features, counted from the last; earlier ones become rows.
        stored: how the plain module stores its matrix, where not as (outputs, inputs).
        tied: the module whose matrix this one shares.
        splits: the axes over which features of its output are split.
        fused: parts of its output, each of which is split by itself.

    Attributes:
        draws: of the model, where its tensors are to know over which axes they are split; None in compiled blocks,
            which draw one mask for all ranks and check nothing.
    """

    draws: Draws | None = None

    def __init__(
        self,
        site: ModuleSite,
        layer: nn.Module,
        *,
        takes: int | None,
        stream: int,
        gives: int | None = None,
        easy: bool = False,
        features_at: int = -1,
        stored: Stored | None = None,
        tied: str | None = None,
        splits: tuple[str, ...] = (),
        fused: int = 1,
    ) -> None:
        super().__init__()
        self.machine, self.name, self.layer = site.machine, site.name, layer
        self.takes, self.gives, self.stream, self.easy = takes, gives, stream, easy
        self.features_at, self.stored, self.tied, self.splits, self.fused = features_at, stored, tied, splits, fused
        self._known = False
        self.train(site.module.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (as plain modules call it)
        """Apply the layer to ids, or to features of this rank.

        Raises:
            BadInput: the features are not this rank's share, or in easy mode not all.
        """
        return self._applied(input) if getattr(self.layer, "is_whole", False) else self._communicated(input)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _communicated(self, input: Tensor) -> Tensor:  # noqa: A002
        return self._applied(input)

    def _applied(self, input: Tensor) -> Tensor:  # noqa: A002
        leading, one = input.shape, torch.Size()
        if self.takes is not None:
            input = self._share(input)  # noqa: A001
            self._check_features(input.shape)
            self._check_cut(input)
            leading, one = input.shape[: self.features_at], input.shape[self.features_at :]
        rows = self.machine.last.made("rows", input, self.features_at, lambda: plain(input).reshape(-1, *one))
        out = self.layer(rows)[:, : self.gives]
        result = cast(Tensor, out.reshape(*leading, *out.shape[1:]))
        if self.draws is not None and self.draws.parts and self.machine.grid.size(*self.splits) > 1:
            self._check_known(isinstance(input, Split))
            cut = TensorCut(frozenset({result.ndim + self.features_at}), self.fused)
            result = marked(result, self.draws, *self.splits, cut=cut, origin=self.name)
        return result

    def _share(self, input: Tensor) -> Tensor:  # noqa: A002
        """This rank's features of a tensor that has all of them, as the batch has."""
        axis = "y" if self.easy else getattr(self.layer, "over_in", "y")
        size = 1 if self.easy else self.machine.grid.size(axis)
        if size == 1 or input.ndim < -self.features_at or (isinstance(input, Split) and input.cut is not None):
            return input
        if input.shape[self.features_at] != cast(int, self.takes) * size:
            return input
        return own_part(self.machine.collectives, plain(input), axis, self.features_at)

    def _check_known(self, known: bool) -> None:
        """Refuse to compute again with other masks: saved by hooks, tensors forget what they know."""
        if not in_backward():
            self._known = known
        elif self._known and not known:
            raise Unsupported(
                "what it takes is not known to be split when it is computed again, so that other masks would be drawn",
                where=self.name,
                remedy="set recompute of the layout instead of checkpoints within checkpoints or within hooks",
            )

    def _check_features(self, shape: torch.Size) -> None:
        """Refuse what does not have the features that the layer takes."""
        if len(shape) < -self.features_at:
            wanted = f"(..., {self.takes}{', height, width' if self.features_at == -3 else ''})"
            raise BadInput(f"got the shape {tuple(shape)}, but it takes {wanted}", where=self.name)
        result = shape[self.features_at]
        if result == self.takes:
            return
        if self.easy:
            raise BadInput(f"got {result} features, but it takes {self.takes}", where=self.name)
        raise BadInput(
            f"got {result} features, but a rank's share is {self.takes}",
            where=self.name,
            remedy="check the roles around it, and sizes that the model's code writes out (Heads)",
        )

    def _check_cut(self, input: Tensor) -> None:  # noqa: A002
        """Refuse features that are split in another way than the layer takes them."""
        over, cut = getattr(self.layer, "over_in", "y"), input.cut if isinstance(input, Split) else None
        if not isinstance(input, Split) or cut is None:
            return
        if input.axes != {over} or input.ndim + self.features_at not in cut.dims or cut.fused > 1:
            what = f"dimension {min(cut.dims)} over {' and '.join(sorted(input.axes))}" + " in parts" * (cut.fused > 1)
            raise BadInput(
                f"takes features split over {over}, but those of {input.origin} are split along {what}",
                where=self.name,
                remedy="check the roles of both",
            )

    @property
    def weight(self) -> NoReturn:
        """No rank has the plain module's."""
        self._refuse_whole("weight")

    @property
    def bias(self) -> NoReturn:
        """No rank has it either."""
        self._refuse_whole("bias")

    def _refuse_whole(self, key: str) -> NoReturn:
        raise Unsupported(
            "is cut over the grid, and no tensor of this rank",
            where=f"{self.name}.{key}",
            remedy="read it in the state_dict() of the step that prepare returned",
        )

    def _save_to_state_dict(self, *args: object) -> NoReturn:
        raise Unsupported(
            "holds pieces, which torch's state_dict() cannot name",
            where=self.name,
            remedy="call state_dict() of the step that prepare returned",
        )

    def _load_from_state_dict(self, *args: object) -> NoReturn:
        raise Unsupported(
            "holds pieces, which torch's load_state_dict() cannot fill",
            where=self.name,
            remedy="call load_state_dict() of the step that prepare returned",
        )


class Gathered:
    """Puts together what is split over ranks; the first passes tell what is, and over which axis.

    Attributes:
        places: by whether it is a pass of training: of each tensor the axis, the dimension counted from the last, and
            the size of all parts; None of what is not split.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.places: dict[bool, list[tuple[str, int, int] | None]] = {}

    def take(self, trains: bool, values: Any) -> Any:
        """The same values, whole.

        Raises:
            Unsupported: parts that lie in more than one place.
        """
        leaves, structure = tree_flatten(values)
        if any(isinstance(leaf, Split) for leaf in leaves) or trains not in self.places:
            self.places[trains] = [self._place(leaf) for leaf in leaves]
        calls, pairs = self.machine.collectives, zip(leaves, self.places[trains], strict=True)
        whole = [leaf if at is None else all_parts(calls, plain(leaf), *at[:2]) for leaf, at in pairs]
        return tree_unflatten(whole, structure)

    def _place(self, leaf: Any) -> tuple[str, int, int] | None:
        if not isinstance(leaf, Split) or leaf.cut is None:
            return None
        dims = [dim for dim in leaf.cut.dims if leaf.shape[dim] > 1] or [max(leaf.cut.dims)]
        if leaf.cut.fused > 1 or len(leaf.axes) > 1 or len(dims) > 1:
            raise Unsupported(
                "gives parts of its features, which cannot be put together",
                where=leaf.origin,
                remedy="take Transposed() for the layer, Head() for logits, or easy mode",
            )
        axis = next(iter(leaf.axes))
        return axis, dims[0] - leaf.ndim, leaf.shape[dims[0]] * self.machine.grid.size(axis)


class WholeAmongParts:
    """Lets a module that stays whole take all features where others are split, and give its own where it gives as
    many."""

    def __init__(self, machine: Machine, name: str, draws: Draws) -> None:
        self._gathered, self._name, self._draws = Gathered(machine), name, draws

    def take(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        """What the module is called with."""
        given, named = self._gathered.take(module.training, (given, named))
        return given, named

    def give(self, module: nn.Module, _: Any, out: Any) -> Any:
        """What others take of it."""
        place = next((at for at in self._gathered.places[module.training] if at is not None), None)
        if place is None or not isinstance(out, Tensor) or (isinstance(out, Split) and out.cut is not None):
            return out
        axis, dim, size = place
        if out.ndim < -dim or out.shape[dim] != size:
            return out
        part = own_part(self._gathered.machine.collectives, plain(out), axis, dim)
        if not self._draws.parts:
            return part
        return marked(part, self._draws, axis, cut=TensorCut(frozenset({part.ndim + dim})), origin=self._name)


@dataclass(frozen=True, slots=True)
class Stored:
    """A plain parameter's shape; ``flipped``: it is (inputs, outputs), where Weft holds (outputs, inputs)."""

    shape: tuple[int, ...]
    flipped: bool = False

    def whole(self, plain: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A plain parameter in the shape in which Weft holds it."""
        return (plain.t() if self.flipped else plain).reshape(shape)

    def plain(self, whole: Tensor) -> Tensor:
        """The inverse."""
        return (whole.t() if self.flipped else whole).reshape(self.shape).contiguous()
