"""Routes that were made for a job's flows, found again for the messages of its collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.errors import BadInput
from weft.fabric.checks import some
from weft.fabric.spec import Fabric, Ints
from weft.fabric.traffic import Routes, joined, merged
from weft.routing.traffic import JobTraffic


class FlowRoutes:
    """The routes of some traffic by collective and pair of accelerators.

    A message takes the route of the flow of its collective (by name) between its two accelerators; where the
    traffic has none, the route of the first flow between them.  Parts of a flow on several queue pairs become
    one route, whose links carry their parts' shares.

    Args:
        name: who made the routes, for results and messages.
        idle: source and target of messages that carry nothing, and so are no traffic and need no route.
    """

    def __init__(
        self, fabric: Fabric, traffic: JobTraffic, routes: Routes, *, name: str, idle: tuple[Ints, Ints] | None = None
    ) -> None:
        self.fabric, self.name = fabric, name
        source, target = idle or (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        self.idle = np.unique(source * fabric.accelerators + target)
        pairs = fabric.accelerators**2
        flow = traffic.collective * pairs + traffic.source * fabric.accelerators + traffic.target
        whole, at = np.unique(flow, return_inverse=True)
        self.routes = merged(routes, at.reshape(-1), traffic.bytes, len(whole))
        self.number = {title: number for number, title in reversed(list(enumerate(traffic.names)))}
        named = np.array([self.number[title] for title in traffic.names], dtype=np.int64)
        self.pair, self.of_pair = np.unique(whole % pairs, return_index=True)
        key = named[whole // pairs] * pairs + whole % pairs if len(whole) else whole
        self.key, self.of_key = np.unique(key, return_index=True)

    def of(self, titles: Sequence[str], group: Ints, source: Ints, target: Ints) -> tuple[Routes, Ints]:
        """The routes of messages, message m in the collective ``titles[group[m]]``, and the numbers of those messages
        that carry nothing, which have none.

        Raises:
            BadInput: a pair of accelerators has no route; says how many, and names some.
        """
        pair = source * self.fabric.accelerators + target
        numbers = np.array([self.number.get(title, -1) for title in titles], dtype=np.int64)
        found = _found(self.key, self.of_key, numbers[group] * self.fabric.accelerators**2 + pair)
        found = np.where(found < 0, _found(self.pair, self.of_pair, pair), found)
        without = np.flatnonzero(found < 0)
        missing = without[~np.isin(pair[without], self.idle)]
        if len(missing):
            names = self.fabric.names
            shown = [f"{names[source[one]]} -> {names[target[one]]}" for one in missing.tolist()]
            kinds = sorted({titles[number].partition(",")[0] for number in np.unique(group[missing]).tolist()})
            raise BadInput(
                f"{len(missing):,} of {len(pair):,} messages of {kinds[0]} have no route: {some(shown)}",
                where=self.name,
                remedy="route this layout on this fabric and placement, as weft route --plan does",
            )
        return self.routes.of(found[found >= 0]), without

    def completed(
        self, titles: Sequence[str], group: Ints, source: Ints, target: Ints, inside: Callable[[Ints, Ints], Routes]
    ) -> Routes:
        """The routes of all messages: as ``of`` between domains; what stays in one, or carries nothing, takes what
        ``inside`` gives for its source and target."""
        leaves = self.fabric.domain[source] != self.fabric.domain[target]
        away, stay = np.flatnonzero(leaves), np.flatnonzero(~leaves)
        outside, idle = self.of(titles, group[away], source[away], target[away])
        away, stay = np.delete(away, idle), np.concatenate([away[idle], stay])
        return joined([outside, inside(source[stay], target[stay])]).of(np.argsort(np.concatenate([away, stay])))


def _found(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """The value of each wanted key among sorted ones, or -1."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], -1)
