"""Roles that a plan gives to modules of a plain model, and the modules that take their places.

Features of the residual stream are split over y.  What a normal layer gives, and a transposed one takes, is
split over x.  Every other dimension is kept: (batch, sequence, features) becomes rows and comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from weft.errors import BadInput, Unsupported
from weft.runtime.linear import Linear4D
from weft.runtime.machine import Machine
from weft.runtime.norm import Norm4D
from weft.runtime.parameters import Vector
from weft.runtime.placement import share
from weft.runtime.vocabulary import Embedding4D, Head4D

EPSILONS = ("eps", "variance_epsilon", "epsilon")
"""What RMS norms call their epsilon."""

# What roles are built of ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A module to convert.

    Attributes:
        name: in the model.
        parent: the module that holds it.
        built: what has been converted before, by name.
        dropouts: the model's dropouts, which are off.
    """

    machine: Machine
    name: str
    module: nn.Module
    parent: nn.Module
    built: Mapping[str, Converted]
    dropouts: tuple[str, ...]

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
        flipped: the plain module holds its matrix the other way round.
        tied: the module whose matrix this one shares.
    """

    def __init__(
        self,
        site: Site,
        layer: nn.Module,
        *,
        takes: int | None,
        stream: int,
        gives: int | None = None,
        flipped: bool = False,
        tied: str | None = None,
    ) -> None:
        super().__init__()
        self.machine, self.name, self.layer = site.machine, site.name, layer
        self.takes, self.gives, self.stream = takes, gives, stream
        self.flipped, self.tied = flipped, tied
        self._dropouts = site.dropouts
        self.train(site.module.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (as plain modules call it)
        """Of ids, or of features of this rank.

        Raises:
            BadInput: the features are not this rank's share.
            Unsupported: the model has dropouts and was switched to training.
        """
        if self.training and self._dropouts:
            raise Unsupported(
                "was off when the model was converted, and would differ between replicas",
                where=self._dropouts[0],
                remedy="keep model.eval(), or set its probability to 0 before parallelize",
            )
        leading = input.shape
        if self.takes is not None:
            if input.shape[-1] != self.takes:
                raise BadInput(
                    f"got {input.shape[-1]} features, but a rank's share is {self.takes}",
                    where=self.name,
                    remedy="check the roles around it, and sizes that the model's code writes out (Heads)",
                )
            leading = input.shape[:-1]
        rows = input.reshape(-1) if self.takes is None else input.reshape(-1, self.takes)
        out = self.layer(rows)[:, : self.gives]
        return cast(Tensor, out.reshape(*leading, out.shape[1]))

    def _save_to_state_dict(self, *args: object) -> NoReturn:
        raise Unsupported(
            "holds pieces, which torch's state_dict() cannot name",
            where=self.name,
            remedy="call gather_state_dict or sharded_state_dict of weft.runtime.state_dict",
        )

    def _load_from_state_dict(self, *args: object) -> NoReturn:
        raise Unsupported(
            "holds pieces, which torch's load_state_dict() cannot fill",
            where=self.name,
            remedy="call load_state_dict of weft.runtime.state_dict",
        )


class _Positions4D(nn.Module):
    """Positions (rows,) to (rows, hidden / y), of a table that every rank of x, z and data holds."""

    def __init__(self, machine: Machine, name: str, positions: int, hidden: int) -> None:
        super().__init__()
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
        return functional.embedding(places, self.table())


# Roles ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """A linear layer that takes features split over y and gives features split over x.

    Attributes:
        parts: for layers fused along their outputs, how many equal parts, or their sizes; each is split on
            its own, and a rank's outputs are its shares of the parts, in order.
        unit: name of an integer attribute of the module above ("head_dim"): outputs that stay together.
    """

    parts: int | tuple[int, ...] = 1
    unit: str | None = None

    def build(self, site: Site) -> Converted:
        plain = _linear(site, "Normal")
        sizes = self._sizes(site, plain.outputs)
        if self.unit is not None:
            width = _attribute(site.parent, site.name.rpartition(".")[0], self.unit)
            for size in sizes:
                what = f"{site.name}: units of {self.unit}={width} in {size} outputs"
                site.machine.grid.divided(_whole(size, width, what, site), "x", what=what)
        return plain.built(site, sizes if len(sizes) > 1 else plain.outputs, "normal")

    def _sizes(self, site: Site, outputs: int) -> tuple[int, ...]:
        if isinstance(self.parts, int):
            what = f"{site.name}: parts of {outputs} outputs"
            return (_whole(outputs, self.parts, what, site),) * self.parts
        if sum(self.parts) != outputs or min(self.parts, default=0) < 1:
            site.refuse(
                f"parts {self.parts} do not add up to {outputs} outputs", "give the size of each part"
            )
        return self.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Transposed:
    """A linear layer that takes features split over x and gives features split over y."""

    def build(self, site: Site) -> Converted:
        plain = _linear(site, "Transposed")
        return plain.built(site, plain.outputs, "transposed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The table of token embeddings: ids to features split over y, its rows split over x and y."""

    def build(self, site: Site) -> Converted:
        vocab, hidden = _table(site, "Vocabulary")
        return Converted(site, Embedding4D(site.machine, site.name, vocab, hidden), takes=None, stream=hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """A table of learned positions, small enough to be whole along x: ids to features split over y."""

    def build(self, site: Site) -> Converted:
        positions, hidden = _table(site, "Positions")
        return Converted(
            site, _Positions4D(site.machine, site.name, positions, hidden), takes=None, stream=hidden
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The output projection: features split over y to logits split over the vocabulary.

    Logits have (padded vocabulary / (x y)) entries; ``weft.runtime.vocabulary.cross_entropy`` takes them.
    Where x and y are 1 they are plain.

    Attributes:
        tied: the embedding whose table it shares ("model.embed_tokens"), which must be tied already.
    """

    tied: str | None = None

    def build(self, site: Site) -> Converted:
        plain = _linear(site, "Head")
        table = None
        if self.tied is not None:
            if plain.flipped:
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
            flipped=plain.flipped,
            tied=self.tied,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A norm of features split over y: LayerNorm, RMSNorm, or a module that computes RMSNorm.

    The last have one ``weight`` and an epsilon of a usual name; they are called once, to see that they do.
    """

    def build(self, site: Site) -> Converted:
        features, centred, epsilon = _norm(site)
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
            value = _attribute(module, name, attribute)
            yield module, attribute, machine.grid.divided(value, "x", what=f"{name}.{attribute}")


Role = Normal | Transposed | Vocabulary | Positions | Head | Norm | Heads

# What plain modules are ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """A plain linear layer; ``flipped``: its matrix is (inputs, outputs)."""

    inputs: int
    outputs: int
    bias: bool
    flipped: bool

    def built(
        self, site: Site, outputs: int | tuple[int, ...], kind: Literal["normal", "transposed"]
    ) -> Converted:
        layer = Linear4D(site.machine, site.name, self.inputs, outputs, kind=kind, bias=self.bias)
        return Converted(
            site,
            layer,
            takes=self.inputs // site.machine.grid.size(layer.over_in),
            stream=self.outputs if layer.transposed else self.inputs,
            flipped=self.flipped,
        )


def _linear(site: Site, role: str) -> _Linear:
    module = site.module
    if type(module) is nn.Linear:
        _check_own(site, ("weight",), optional=("bias",))
        outputs, inputs = site.parameter("weight").shape
        return _Linear(inputs=inputs, outputs=outputs, bias=module.bias is not None, flipped=False)
    if site.kind != "Conv1D":
        site.mistyped(role, "nn.Linear and Hugging Face's Conv1D")
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
    return _Linear(inputs=inputs, outputs=outputs, bias=True, flipped=True)


def _table(site: Site, role: str) -> tuple[int, int]:
    """Rows and features of an embedding."""
    module = site.module
    if type(module) is not nn.Embedding:
        site.mistyped(role, "nn.Embedding")
    _check_own(site, ("weight",))
    assert isinstance(module, nn.Embedding)
    for option in ("padding_idx", "max_norm"):
        if getattr(module, option) is not None:
            site.refuse(f"has {option} = {getattr(module, option)}", f"set {option} to None")
    for option in ("scale_grad_by_freq", "sparse"):
        if getattr(module, option):
            site.refuse(f"has {option} on", f"set {option} to False")
    rows, features = module.weight.shape
    return rows, features


def _norm(site: Site) -> tuple[int, bool, float]:
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
    rows = (
        torch.linspace(-1.0, 1.5, 2 * features).view(2, features).square() * (4 * max(epsilon, 1e-12)) ** 0.5
    )
    normed = functional.rms_norm(rows.double(), (features,), gain.double(), epsilon)
    _check_computes(site, {"weight": gain}, rows, normed, "RMSNorm")
    return features, False, epsilon


def _check_computes(site: Site, values: dict[str, Tensor], rows: Tensor, expected: Tensor, what: str) -> None:
    """Call a module whose class says nothing with given values of its parameters."""
    found: Tensor | None = None
    problem = ""
    with torch.no_grad():
        try:
            found = functional_call(site.module, values, (rows,))
        except Exception as error:  # a stranger's code: whatever it raises is the reason to refuse it
            problem = f": {type(error).__name__} ({error})"
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        site.refuse(f"({site.kind}) does not compute {what}{problem}", "write the module in plain torch.nn")
    if not torch.allclose(found.to(expected.dtype), expected, rtol=1e-3, atol=1e-6):
        site.refuse(f"({site.kind}) does not compute {what}", "write the module in plain torch.nn")


def _check_own(site: Site, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Refuse a module that has more to it than its parameters."""
    module = site.module
    own = {name for name, value in module._parameters.items() if value is not None}
    if not set(names) <= own <= {*names, *optional}:
        found = ", ".join(sorted(own)) or "none"
        site.refuse(
            f"has the parameters {found}, not {' and '.join(names)}", "take weight_norm and the like away"
        )
    more = [name for name, _ in (*module.named_buffers(), *module.named_children())]
    if more:
        site.refuse(f"holds {', '.join(more)}, which would be lost", "take it away")
    if "forward" in vars(module):
        site.refuse("has a forward of its own instance, which would be lost", "take the wrapper away")
    for name in sorted(own):
        _check_parameter(site, site.parameter(name), f"{site.name}.{name}")


def _check_parameter(site: Site, parameter: nn.Parameter, name: str) -> None:
    precision = site.machine.precision
    hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
    problem: tuple[str, str] | None = None
    if type(parameter) is not nn.Parameter:
        problem = (
            f"is of class {type(parameter).__name__}",
            "give plain parameters, neither quantized nor split",
        )
    elif not parameter.requires_grad:
        problem = "is frozen", "the runtime trains all parameters: call requires_grad_(True)"
    elif any(hooks):
        problem = "has a hook, which would be lost", "remove it"
    elif torch.promote_types(parameter.dtype, precision.master) != precision.master:
        problem = (
            f"is {_format(parameter)}, parameters at rest are {str(precision.master).removeprefix('torch.')}",
            "convert the model first, or give the machine another Precision",
        )
    elif parameter.grad is not None:
        problem = "has a gradient, which would be lost", "call zero_grad() first"
    if problem is not None:
        raise Unsupported(problem[0], where=name, remedy=problem[1])


def _format(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _attribute(module: nn.Module, name: str, attribute: str) -> int:
    """A module's own integer above zero."""
    value = vars(module).get(attribute)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(
            f"has no integer {attribute!r} of its own",
            where=name or "the model itself",
            remedy=f"give the plan the name of an attribute of {type(module).__name__}",
        )
    return value


def _whole(size: int, by: int, what: str, site: Site) -> int:
    if by < 1 or size % by:
        site.refuse(f"{what}: {size} / {by} is not whole")
    return size // by
