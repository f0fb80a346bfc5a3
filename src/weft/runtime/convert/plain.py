"""What plain modules are: their sizes and options, or why they cannot be converted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from weft.errors import BadInput, Unsupported
from weft.runtime.convert.converted import Site
from weft.runtime.convert.stored import Stored
from weft.runtime.layers.convolution import Conv4D, Pair
from weft.runtime.layers.linear import Kind, Linear4D

EPSILONS = ("eps", "variance_epsilon", "epsilon")
"""What RMS norms call their epsilon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLinear:
    """A plain linear layer."""

    inputs: int
    outputs: int
    bias: bool
    stored: Stored | None = None
    features_at = -1

    def built(self, site: Site, outputs: tuple[int, ...], kind: Kind, *, bias: bool) -> Linear4D:
        return Linear4D(site.machine, site.name, self.inputs, outputs, kind=kind, bias=bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConvolution:
    """A plain convolution."""

    inputs: int
    outputs: int
    bias: bool
    stored: Stored
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    features_at = -3

    def built(self, site: Site, outputs: tuple[int, ...], kind: Kind, *, bias: bool) -> Conv4D:
        return Conv4D(
            site.machine,
            site.name,
            self.inputs,
            outputs,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            kind=kind,
            bias=bias,
        )


def layer_of(site: Site, role: str) -> PlainLinear | PlainConvolution:
    return convolution_of(site) if type(site.module) is nn.Conv2d else linear_of(site, role)


def convolution_of(site: Site) -> PlainConvolution:
    module = site.module
    assert isinstance(module, nn.Conv2d)
    _check_own(site, ("weight",), optional=("bias",))
    if module.groups != 1:
        site.refuse(f"has groups = {module.groups}", "set groups=1, or give it Whole() in easy mode")
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        given = f"padding = {module.padding!r}, padding_mode = {module.padding_mode!r}"
        site.refuse(f"has {given}", "give the zeros to add on each side as numbers")
    return PlainConvolution(
        inputs=module.in_channels,
        outputs=module.out_channels,
        bias=module.bias is not None,
        stored=Stored(tuple(module.weight.shape)),
        kernel=cast(Pair, module.kernel_size),
        stride=cast(Pair, module.stride),
        padding=cast(Pair, module.padding),
        dilation=cast(Pair, module.dilation),
    )


def linear_of(site: Site, role: str) -> PlainLinear:
    module = site.module
    if type(module) is nn.Linear:
        _check_own(site, ("weight",), optional=("bias",))
        outputs, inputs = site.parameter("weight").shape
        return PlainLinear(inputs=inputs, outputs=outputs, bias=module.bias is not None)
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
    return PlainLinear(inputs=inputs, outputs=outputs, bias=True, stored=Stored((inputs, outputs), flipped=True))


def table_of(site: Site, role: str) -> tuple[int, int, int | None]:
    """Rows and features of an embedding, and the row that is not trained."""
    module = site.module
    if type(module) is not nn.Embedding:
        site.mistyped(role, "nn.Embedding")
    _check_own(site, ("weight",))
    assert isinstance(module, nn.Embedding)
    check_table(site, module)
    rows, features = module.weight.shape
    return rows, features, module.padding_idx


def check_table(site: Site, module: nn.Embedding | nn.EmbeddingBag) -> None:
    """Refuse a table that is changed, or trained, by which ids one rank sees."""
    if module.max_norm is not None:
        site.refuse(f"has max_norm = {module.max_norm:g}", "set max_norm to None")
    for option in ("scale_grad_by_freq", "sparse"):
        if getattr(module, option):
            site.refuse(f"has {option} on", f"set {option} to False")


def norm_of(site: Site) -> tuple[int, bool, float]:
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
        site.refuse(f"has the parameters {found}, not {' and '.join(names)}", "take weight_norm and the like away")
    more = [name for name, _ in (*module.named_buffers(), *module.named_children())]
    if more:
        site.refuse(f"holds {', '.join(more)}, which would be lost", "take it away")
    if "forward" in vars(module):
        site.refuse("has a forward of its own instance, which would be lost", "take the wrapper away")
    for name in sorted(own):
        check_parameter(site, site.parameter(name), f"{site.name}.{name}")


def check_parameter(site: Site, parameter: nn.Parameter, name: str) -> None:
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
            f"is {_format(parameter)}, parameters at rest are {str(precision.master).removeprefix('torch.')}",
            "convert the model first, or give the machine another Precision",
        )
    elif parameter.grad is not None:
        problem = "has a gradient, which would be lost", "call zero_grad() first"
    if problem is not None:
        raise Unsupported(problem[0], where=name, remedy=problem[1])


def _format(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def attribute_of(module: nn.Module, name: str, attribute: str) -> int:
    """A module's own integer above zero."""
    value = vars(module).get(attribute)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(
            f"has no integer {attribute!r} of its own",
            where=name or "the model itself",
            remedy=f"give the plan the name of an attribute of {type(module).__name__}",
        )
    return value


def whole_part(size: int, by: int, what: str, site: Site) -> int:
    if by < 1 or size % by:
        site.refuse(f"{what}: {size} / {by} is not whole")
    return size // by
