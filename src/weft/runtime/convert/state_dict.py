"""Values of a parallelized model by the names that its parameters had before: taken in, and given out.

Whole tensors are those of the plain model's ``state_dict()``, buffers and tied names included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.errors import BadInput
from weft.runtime.convert.converted import Converted, Stored
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Holding, Replicated, holdings
from weft.runtime.core.placement import FlatRange
from weft.runtime.run.flat import Flat


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
    _check_names(untied, {*known.held, *known.buffers})
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
        here: Tensor
        if name in self.buffers:
            here = self.buffers[name]
            shape = tuple(here.shape)
        else:
            here = self.held[name].parameter
            stored = self.stored.get(name)
            shape = self.held[name].placement.shape if stored is None else stored.shape
        if type(value) not in (Tensor, nn.Parameter, nn.Buffer):
            raise BadInput(f"is a {type(value).__name__}, no plain tensor", where=f"state: {name}")
        if value.shape != shape:
            raise BadInput(
                f"has the shape {tuple(value.shape)}, but the whole is {shape}",
                where=f"state: {name}",
                remedy="give whole tensors",
            )
        if value.is_meta:
            raise BadInput("is on the meta device", where=f"state: {name}", remedy="give values")
        _check_format(name, value, here)


def _known(model: nn.Module) -> _Known:
    """Names of a model that has been parallelized."""
    machines = [one.machine for one in model.parameters() if isinstance(one, Replicated)]
    for name, module in model.named_modules():
        if isinstance(module, Converted):
            machines.append(module.machine)
            if module.name != name:
                raise BadInput(
                    f"its {name} was {module.name} when it was parallelized",
                    where=type(model).__name__,
                    remedy="give the model that prepare returned",
                )
    if not machines:
        raise BadInput("has not been parallelized", where=type(model).__name__)
    return _Known(
        machine=machines[0],
        held={holding.name: holding for holding in holdings(model)},
        stored=stored_of(model),
        ties=dict(_ties(model)),
        buffers=dict(_buffers(model)),
    )


def stored_of(model: nn.Module) -> dict[str, Stored]:
    """Parameters that the plain model stores in another way, by name."""
    result = {}
    for module in model.modules():
        if isinstance(module, Converted) and module.stored is not None:
            result[f"{module.name}.weight"] = module.stored
    for parameter in model.parameters():
        if isinstance(parameter, Replicated):
            result[parameter.plain_name] = Stored(tuple(parameter.shape))
    return result


def _ties(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Second names of tied parameters, and their first ones."""
    for module in model.modules():
        if isinstance(module, Converted) and module.tied is not None:
            yield f"{module.name}.weight", f"{module.tied}.weight"
    for parameter in model.parameters():
        if isinstance(parameter, Replicated):
            yield from ((name, parameter.plain_name) for name in parameter.second_names)


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, module in model.named_modules():
        for key, buffer in module.named_buffers(recurse=False):
            if key not in module._non_persistent_buffers_set:
                yield f"{name}.{key}" if name else key, buffer


def _check_names(given: Iterable[str], expected: set[str]) -> None:
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


def _check_format(name: str, value: Tensor, here: Tensor) -> None:
    if torch.promote_types(value.dtype, here.dtype) != here.dtype:
        there, own = (str(one.dtype).removeprefix("torch.") for one in (value, here))
        raise BadInput(f"is {there}, but {own} here", where=f"state: {name}", remedy=f"convert it to {own} first")


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
