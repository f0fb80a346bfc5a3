"""A plain model onto the grid, in place, by a plan that names every module that has parameters.

``weft.runtime.prepare`` calls it.  The model's own code runs unchanged on tensors with fewer features; what it does to
them must be right for each feature alone (residuals, activations, gates), or for each head alone.  A wrong role
(Normal() for Transposed(), Norm() for a norm over all heads) shows in shapes only where x differs from y.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from weft.errors import BadInput, Unsupported
from weft.layout.mesh import ROWS
from weft.layout.spec import Layout
from weft.runtime.convert.roles import (
    Converted,
    Easy,
    Head,
    Heads,
    ModuleSite,
    Norm,
    Normal,
    Positions,
    Role,
    Stored,
    Transposed,
    Vocabulary,
    Whole,
    WholeAmongParts,
    is_layer,
    undivided,
)
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import EVERY_ROW, FlatRange, Holding, Replicated, differing, holdings
from weft.runtime.core.split import share_draws
from weft.runtime.layers.blocks import blocks_of, check_recomputable, recompute_blocks
from weft.runtime.run.flat import Flat

Plan = Mapping[str, Role]
"""Roles by the names of modules; ``*`` stands for one part of a name between dots."""

LLAMA_PLAN: MappingProxyType[str, Role] = MappingProxyType(
    {
        "model.embed_tokens": Vocabulary(),
        "model.layers.*.input_layernorm": Norm(),
        "model.layers.*.self_attn.q_proj": Normal(unit="head_dim"),
        "model.layers.*.self_attn.k_proj": Normal(unit="head_dim"),
        "model.layers.*.self_attn.v_proj": Normal(unit="head_dim"),
        "model.layers.*.self_attn.o_proj": Transposed(),
        "model.layers.*.post_attention_layernorm": Norm(),
        "model.layers.*.mlp.gate_proj": Normal(),
        "model.layers.*.mlp.up_proj": Normal(),
        "model.layers.*.mlp.down_proj": Transposed(),
        "model.norm": Norm(),
        "lm_head": Head(),
    }
)
"""LlamaForCausalLM, MistralForCausalLM and Qwen2ForCausalLM of transformers 4.48 and later.

With tied embeddings: ``LLAMA_PLAN | {"lm_head": Head(tied="model.embed_tokens")}``.  Older versions reshape
by numbers of heads, which ``"model.layers.*.self_attn": Heads("num_heads", ...)`` divides.
"""

GPT2_PLAN: MappingProxyType[str, Role] = MappingProxyType(
    {
        "transformer.wte": Vocabulary(),
        "transformer.wpe": Positions(),
        "transformer.h.*.ln_1": Norm(),
        "transformer.h.*.attn": Heads("num_heads", "split_size"),
        "transformer.h.*.attn.c_attn": Normal(parts=3, unit="head_dim"),
        "transformer.h.*.attn.c_proj": Transposed(),
        "transformer.h.*.ln_2": Norm(),
        "transformer.h.*.mlp.c_fc": Normal(),
        "transformer.h.*.mlp.c_proj": Transposed(),
        "transformer.ln_f": Norm(),
        "lm_head": Head(tied="transformer.wte"),
    }
)
"""Hugging Face's GPT2LMHeadModel.  Checkpoints keep its matrices as (outputs, inputs)."""

M = TypeVar("M", bound=nn.Module)


def easy_plan(model: nn.Module, layout: Layout | None = None) -> dict[str, Role]:
    """Easy mode for any model: linear layers and convolutions are cut over the grid, all else stays whole.

    Layers that share a parameter with another module, and those that a layout cannot divide, stay whole.
    """
    names = _names(model)
    roles: dict[str, Role] = {}
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own:
            alone = all(len(names[parameter]) == 1 for parameter in own)
            cut = alone and is_layer(module) and (layout is None or undivided(module, layout) is None)
            roles[name] = Easy() if cut else Whole()
    return roles


def parallelize(model: M, machine: Machine, plan: Plan) -> M:
    """Replace a model's modules by this rank's parts of them, with their values.

    Every rank calls it with the same model.  Where anything is refused the model is left as it was.
    Training passes draw from ``weft.runtime.core.split``: ranks that hold the same activations drop the same, those
    that have other rows, or other features, drop others.
    Blocks, the elements of the model's lists of modules, are recomputed as the layout says.
    Parameters on the meta device become NaN, until ``load_state_dict`` or a checkpoint fills them.

    Returns:
        The model itself; ``weft.runtime.core.parameters.holdings`` has its parameters, under their old names.

    Raises:
        BadInput: the plan does not cover a module with parameters, has a pattern that matches nothing or a
            module of another role, a size cannot be divided over the grid, ranks have different values, there are
            no blocks to recompute, or the model has been parallelized already.
        Unsupported: the layout, or something in the model, has no counterpart in the runtime: hooks, ties
            that the plan does not declare, frozen parameters, subclasses of layers, norms without
            weights; in easy mode statistics of one rank's rows, and tables that depend on them.
    """
    _check_plain(model)
    _check_layout(machine)
    roles = matched(model, plan)
    _check_covered(model, roles)
    easy = _is_easy(roles)
    _check_modules(model, roles, easy=easy)
    _check_ties(model, roles)
    converted = _converted(model, machine, roles)
    rows_over = EVERY_ROW if easy else ROWS
    replicated = _replicated(model, machine, roles, rows_over)
    smaller = [
        item
        for name, role in roles.items()
        if isinstance(role, Heads)
        for item in role.divided(machine, name, model.get_submodule(name))
    ]
    blocks = blocks_of(model, {model.get_submodule(name) for name in converted})
    if machine.grid.layout.pipeline == 1:  # a stage may have none
        check_recomputable(blocks, machine.grid.layout)
    _check_same(model, machine)
    _take_values(model, converted)
    _replicate(model, replicated)
    for name, one in converted.items():
        above, _, child = name.rpartition(".")
        setattr(model.get_submodule(above), child, one)
    for module, attribute, value in smaller:
        setattr(module, attribute, value)
    if easy:
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0  # its fast path reads weights that are cut over the grid
    draws = share_draws(model, machine, rows_over)
    for one in converted.values():
        one.draws = draws
    if draws is not None and not easy:
        for name in (name for name, role in roles.items() if name and isinstance(role, Whole)):
            among = WholeAmongParts(machine, name, draws)
            model.get_submodule(name).register_forward_pre_hook(among.take, with_kwargs=True)
            model.get_submodule(name).register_forward_hook(among.give)
    recompute_blocks(blocks, machine.grid.layout)
    return model.to(machine.grid.device)


# The plan ------------------------------------------------------------------------------------------


def matched(model: nn.Module, plan: Plan) -> dict[str, Role]:
    """The role of each module that the plan names."""
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    patterns: dict[str, str] = {}
    roles: dict[str, Role] = {}
    for pattern, role in plan.items():
        if not isinstance(role, Role):
            raise BadInput(f"{role!r} is not a role", where=f"plan: {pattern}", remedy="give Normal(), Head(), ...")
        shape = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
        result = [name for name in names if shape.fullmatch(name)]
        if not result:
            raise BadInput(
                f"no module of {type(model).__name__} has this name",
                where=f"plan: {pattern}",
                remedy="correct it, or take it out",
            )
        for name in result:
            if name in roles:
                raise BadInput(f"{name} has two roles: {patterns[name]!r} matches it too", where=f"plan: {pattern}")
            patterns[name], roles[name] = pattern, role
    return roles


def _check_covered(model: nn.Module, roles: Mapping[str, Role]) -> None:
    """Every parameter's module is replaced."""
    bare: dict[str, str] = {}
    for name, module in model.named_modules():
        own = [key for key, value in module._parameters.items() if value is not None]
        if own and (name not in roles or isinstance(roles[name], Heads)):
            bare[name] = type(module).__name__
    if bare:
        names = {name for name, _ in model.named_modules()}
        raise BadInput(
            f"no role for {', '.join(_grouped(bare, names))}",
            where="plan",
            remedy="give each a role; a module that has none cannot be split",
        )


def _grouped(result: Mapping[str, str], names: set[str]) -> Iterator[str]:
    """Names with their classes; one pattern for names that differ only by indices, where it has no others."""

    def pattern(name: str) -> str:
        return ".".join("*" if part.isdigit() else part for part in name.split("."))

    among, of = defaultdict(list), defaultdict(list)
    for name in names:
        among[pattern(name)].append(name)
    for name in result:
        of[pattern(name)].append(name)
    for shape, members in of.items():
        kinds = {result[name] for name in members}
        if len(members) > 1 and len(members) == len(among[shape]) and len(kinds) == 1:
            yield f"{shape} ({len(members)} {kinds.pop()})"
        else:
            yield from (f"{name or 'the model itself'} ({result[name]})" for name in members)


def _is_easy(roles: Mapping[str, Role]) -> bool:
    """Whether the plan is one of easy mode; roles of both ways are refused."""
    easy = [name for name, role in roles.items() if isinstance(role, Easy)]
    split = [name for name, role in roles.items() if not isinstance(role, Easy | Whole)]
    if easy and split:
        raise BadInput(
            f"{easy[0]} is in easy mode, {split[0]} is not",
            where="plan",
            remedy="give Easy() to no module beside other roles than Whole()",
        )
    return bool(roles) and not split


# What cannot be converted --------------------------------------------------------------------------


def _check_plain(model: nn.Module) -> None:
    """Nothing of it has been converted before."""
    kinds = (*model.modules(), *model.parameters())
    if any(isinstance(kind, Converted | Replicated) for kind in kinds):
        raise BadInput(
            "has been parallelized already", where=type(model).__name__, remedy="call prepare once, on the plain model"
        )


def _check_layout(machine: Machine) -> None:
    layout = machine.grid.layout
    own = "train Weft's own decoder (weft train), or"
    refused = (
        (layout.context > 1, f"context = {layout.context}", f"{own} set context=1"),
        (machine.rows_cut, "sequence_parallel", f"{own} set sequence_parallel=False"),
        (layout.zero > 1, f"zero = {layout.zero}", "set zero=1, or shard over z"),
        (layout.recompute == "selective", "recompute = selective", "set recompute=full or none"),
        (layout.offload_optimizer or layout.offload_activations, "offloading", "set offload_*=False"),
    )
    for wanted, what, remedy in refused:
        if wanted:
            raise Unsupported(f"a plain model cannot have {what}", where="layout", remedy=remedy)


def _check_modules(model: nn.Module, roles: Mapping[str, Role], *, easy: bool) -> None:
    """Refuse what would see one rank's features, or in easy mode one rank's rows, and take them for all."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        hooks = [hook for hook in _HOOKS if vars(module).get(hook)]
        if hooks and (not easy or isinstance(roles.get(name), Easy)):
            what = hooks[0].strip("_").replace("_", " ").removesuffix("s")
            problem = f"has a {what}, which would see the features of one rank alone"
            remedy = "remove it (weight_norm adds one too)"
        elif easy and isinstance(module, nn.modules.batchnorm._BatchNorm):
            problem = f"would take the statistics of one rank's rows alone ({kind})"
            remedy = "use a LayerNorm or GroupNorm"
        elif easy and isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            problem = f"would take the statistics of one rank's rows alone ({kind})"
            remedy = "set track_running_stats=False"
        elif not easy and "norm" in kind.lower() and name not in roles and _is_bare(module):
            problem = f"is a {kind} without weights, over features that are split"
            remedy = "make it affine, and give it the role Norm()"
        else:
            continue
        raise Unsupported(problem, where=name or "the model itself", remedy=remedy)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _is_bare(module: nn.Module) -> bool:
    return next(module.children(), None) is None and next(module.parameters(), None) is None


def _check_ties(model: nn.Module, roles: Mapping[str, Role]) -> None:
    """Parameters under several names are a head's and its embedding's, as the plan declares."""
    tied = {
        (f"{role.tied}.weight", f"{name}.weight")
        for name, role in roles.items()
        if isinstance(role, Head) and role.tied is not None
    }
    whole = {model.get_submodule(name) for name, role in roles.items() if isinstance(role, Whole)}
    shared = {
        tuple(sorted(result))
        for result in _names(model).values()
        if len(result) > 1 and not all(model.get_submodule(name.rpartition(".")[0]) in whole for name in result)
    }
    for embedding, head in sorted(tied):
        if tuple(sorted((embedding, head))) not in shared:
            raise BadInput(
                f"{head} is not the same parameter as {embedding}", where="plan", remedy="tie them, or declare Head()"
            )
    for result in sorted(shared - {tuple(sorted(pair)) for pair in tied}):
        raise Unsupported(
            f"{', '.join(result)} are one parameter",
            where="plan",
            remedy='for a tied head declare Head(tied="..."), naming the embedding; else untie them',
        )


def _names(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter."""
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    return names


def _check_same(model: nn.Module, machine: Machine) -> None:
    """Every rank has the same parameters and buffers: sums of their bits agree."""
    buffers = dict(model.named_buffers())
    for name, buffer in buffers.items():
        if buffer.is_meta and machine.grid.device.type != "meta":
            remedy = "compute it on a real device first; parameters alone may stay on meta"
            raise BadInput("is a buffer on the meta device", where=name, remedy=remedy)
    everything = {**dict(model.named_parameters()), **buffers}
    different = differing(machine, {name: one.detach() for name, one in everything.items()}, *EVERY_ROW)
    if different:
        more = f" and {len(different) - 1} more" if len(different) > 1 else ""
        raise BadInput(
            f"ranks hold different values of {different[0]}{more}",
            where="model",
            remedy="seed every rank alike before building the model, or load one checkpoint on all",
        )


# Conversion ----------------------------------------------------------------------------------------


def _converted(model: nn.Module, machine: Machine, roles: Mapping[str, Role]) -> dict[str, Converted]:
    """What takes the place of each module; tables come first, which heads may share."""
    built: dict[str, Converted] = {}
    for name, role in sorted(roles.items(), key=lambda item: not isinstance(item[1], Vocabulary)):
        if isinstance(role, Heads | Whole):
            continue
        if not name:
            raise Unsupported(
                f"a single {type(model).__name__} cannot be replaced in place",
                where="the model itself",
                remedy="put it into a module",
            )
        built[name] = role.build(_site(model, machine, name, built))
    streams = {built[name].stream for name in built if not isinstance(roles[name], Norm)}
    for name, one in built.items():
        if isinstance(roles[name], Norm) and one.stream not in streams:
            raise BadInput(
                f"is over {one.stream} features, but those split over y are "
                f"{' or '.join(map(str, sorted(streams))) or 'none'} wide",
                where=name,
                remedy="Norm() is for the residual stream; norms of heads cannot be converted",
            )
    return built


def _site(model: nn.Module, machine: Machine, name: str, built: Mapping[str, Converted]) -> ModuleSite:
    return ModuleSite(
        machine=machine,
        name=name,
        module=model.get_submodule(name),
        parent=model.get_submodule(name.rpartition(".")[0]),
        built=built,
    )


def _replicated(
    model: nn.Module, machine: Machine, roles: Mapping[str, Role], rows_over: tuple[str, ...]
) -> dict[nn.Parameter, Replicated]:
    """What takes the place of each parameter of modules that stay whole, with their values."""
    names, result = _names(model), {}
    for name, role in roles.items():
        if not isinstance(role, Whole):
            continue
        for plain in role.parameters(_site(model, machine, name, {})):
            first, *others = names[plain]
            shape = tuple(plain.shape)
            result[plain] = Replicated.of(machine, first, shape, tuple(others), rows_over)
            fill(result[plain].holding, plain.detach(), Stored(shape))
    return result


def _replicate(model: nn.Module, replicated: Mapping[nn.Parameter, Replicated]) -> None:
    for module in model.modules():
        for key, parameter in list(module._parameters.items()):
            if parameter is not None and parameter in replicated:
                setattr(module, key, replicated[parameter])


def _take_values(model: nn.Module, converted: Mapping[str, Converted]) -> None:
    """Fill what has been built from the plain model."""
    plain, built = dict(model.named_parameters()), nn.ModuleList(converted.values())
    stored = {f"{name}.weight": one.stored for name, one in converted.items()}
    for holding in holdings(built):
        fill(holding, plain[holding.name].detach(), stored.get(holding.name))


# State dictionaries ------------------------------------------------------------------------------


def load_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Fill a parallelized model, in place.

    Every rank calls it, with whole tensors of all parameters and persistent buffers (a tied parameter under
    one of its names or both).  Nothing is changed where something is refused.

    Raises:
        BadInput: names are missing or unknown, a tensor is not whole, a tensor would lose precision, tied names
            have different values.
    """
    known = _known(model)
    untied = known.untied(state)
    check_names(untied, {*known.held, *known.buffers})
    for name, value in untied.items():
        known.check_whole(name, value)
    with torch.no_grad():
        for name, buffer in known.buffers.items():
            buffer.copy_(untied[name])
        for name, holding in known.held.items():
            fill(holding, untied[name].detach(), known.stored.get(name))


def gather_state_dict(model: nn.Module, flat: Flat, *, rank: int | None = None) -> dict[str, Tensor]:
    """Whole tensors on the CPU, as the plain model's ``state_dict()`` has them; every rank calls it.

    Args:
        flat: what trains the model: with ZeRO-1 a rank knows the exact values of its share alone.
        rank: keep the tensors on this rank alone; others get an empty dictionary.
    """
    known = _known(model)
    machine = known.machine
    pieces: dict[str, list[tuple[FlatRange, Tensor]]] = {name: [] for name in known.held}
    for name, placement, values in _once(machine, flat):
        pieces[name].append((placement, values))
    kept = rank is None or rank == machine.grid.rank
    result: dict[str, Tensor] = {}
    for name, holding in known.held.items():
        whole = _gathered(machine, holding, pieces[name])
        if kept:
            stored = known.stored.get(name)
            result[name] = (whole if stored is None else stored.plain(whole)).cpu()
    if kept:
        result |= {name: result[first] for name, first in known.ties.items()}
        result |= {name: buffer.detach().cpu() for name, buffer in known.buffers.items()}
    return result


def fill(holding: Holding, plain: Tensor, stored: Stored | None) -> None:
    """Take a holding's piece from the plain parameter; NaN where that is on the meta device.

    Args:
        stored: how the plain model stores it, where not as the holding's whole.
    """
    upright = plain if stored is None else stored.whole(plain, holding.placement.shape)

    def part(_: str, __: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        if upright.is_meta:
            return torch.full(sizes, torch.nan, device=holding.parameter.device)
        return upright[_window(offsets, sizes)]

    holding.fill(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A parallelized model's names; ``stored`` are parameters that the plain model stores in another way."""

    machine: Machine
    held: dict[str, Holding]
    stored: Mapping[str, Stored]
    ties: dict[str, str]
    buffers: dict[str, Tensor]

    def untied(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A state under first names alone."""
        result = dict(state)
        for second, first in self.ties.items():
            if second not in result:
                continue
            value = result.pop(second)
            if first in result and not torch.equal(value, result[first]):
                raise BadInput(f"differs from {first}, to which it is tied", where=f"state: {second}")
            result.setdefault(first, value)
        return result

    def check_whole(self, name: str, value: Tensor) -> None:
        here = self.buffers[name] if name in self.buffers else self.held[name].parameter
        shape = tuple(here.shape) if name in self.buffers else self.held[name].placement.shape
        if name in self.stored:
            shape = self.stored[name].shape
        problem: tuple[str, str | None] | None = None
        if type(value) not in (Tensor, nn.Parameter, nn.Buffer):
            problem = f"is a {type(value).__name__}, no plain tensor", None
        elif value.shape != shape:
            problem = f"has the shape {tuple(value.shape)}, but the whole is {shape}", "give whole tensors"
        elif value.is_meta:
            problem = "is on the meta device", "give values"
        elif torch.promote_types(value.dtype, here.dtype) != here.dtype:
            there, own = (str(one.dtype).removeprefix("torch.") for one in (value, here))
            problem = f"is {there}, but {own} here", f"convert it to {own} first"
        if problem is not None:
            raise BadInput(problem[0], where=f"state: {name}", remedy=problem[1])


def _known(model: nn.Module) -> _Known:
    """Names of a model that has been parallelized, or of stages of one."""
    machines: list[Machine] = []
    stored: dict[str, Stored] = {}
    ties: dict[str, str] = {}
    parts = list(model) if type(model) is nn.ModuleList else [model]
    for name, module in (item for part in parts for item in part.named_modules()):
        if not isinstance(module, Converted):
            continue
        machines.append(module.machine)
        if module.name != name:
            raise BadInput(
                f"its {name} was {module.name} when it was parallelized",
                where=type(model).__name__,
                remedy="give the model that prepare returned",
            )
        if module.stored is not None:
            stored[f"{name}.weight"] = module.stored
        if module.tied is not None:
            ties[f"{name}.weight"] = f"{module.tied}.weight"
    for parameter in model.parameters():
        if isinstance(parameter, Replicated):
            machines.append(parameter.machine)
            stored[parameter.plain_name] = Stored(tuple(parameter.shape))
            ties |= dict.fromkeys(parameter.second_names, parameter.plain_name)
    if not machines:
        raise BadInput("has not been parallelized", where=type(model).__name__)
    held = {holding.name: holding for holding in holdings(model)}
    buffers = dict(item for part in parts for item in _buffers(part))
    return _Known(machine=machines[0], held=held, stored=stored, ties=ties, buffers=buffers)


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, module in model.named_modules():
        for key, buffer in module.named_buffers(recurse=False):
            if key not in module._non_persistent_buffers_set:
                yield f"{name}.{key}" if name else key, buffer


def check_names(given: Iterable[str], expected: set[str]) -> None:
    result = set(given)
    for what, names in (("lacks", expected - result), ("has the unknown names", result - expected)):
        if names:
            shown = sorted(names)
            more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
            raise BadInput(
                f"{what} {', '.join(shown[:3])}{more}",
                where="state",
                remedy="give all parameters and persistent buffers of the plain model, by their names",
            )


def _once(machine: Machine, flat: Flat) -> Iterator[tuple[str, FlatRange, Tensor]]:
    """This rank's pieces; over all ranks each value is in one of them."""
    for owned in flat.owned:
        for slot, (low, high) in owned.buffer.within(owned.start, owned.stop):
            if slot.counted or (owned.matrix and machine.cuts_updates(owned.buffer.sum_over)):
                placement = slot.holding.placement.part(low - slot.start, high - slot.start)
                yield (slot.holding.name, placement, owned.leaf.detach()[low - owned.start : high - owned.start])


def _gathered(machine: Machine, holding: Holding, pieces: list[tuple[FlatRange, Tensor]]) -> Tensor:
    """A whole parameter: bytes are summed over ranks; all but one of these have zeros."""
    parameter = holding.parameter
    whole = torch.zeros(holding.placement.shape, dtype=parameter.dtype, device=parameter.device)
    for placement, values in pieces:
        for one in placement.rectangles():
            part = whole[_window(one.offsets, one.sizes)]
            part.copy_(values[one.start : one.start + part.numel()].view(one.sizes))
    machine.collectives.all_reduce(whole.view(torch.uint8), "x", "y", "z", "data").wait()
    return whole


def _window(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
