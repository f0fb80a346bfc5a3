"""What carries the flows of a simulated network, as the verbs take it."""

from __future__ import annotations

import pytest

import weft
from weft.errors import BadInput

SMALL = ("gpt2-124m", "a100-16", "dp=16")


def seconds(**given: object) -> float:
    found = weft.simulate(*SMALL, fabric="fat-tree", radix=4, batch=64, **given)
    assert found.to_dict()["transport"] == ":".join(
        str(given[name]) for name in ("transport", "queue_pairs") if name in given
    ) or (not given and found.to_dict()["transport"] == "ideal")
    return found.iteration_s


def test_queue_pairs_bring_hashing_near_spraying() -> None:
    one, many = seconds(transport="roce-ecmp"), seconds(transport="roce-ecmp", queue_pairs=64)
    sprayed = seconds(transport="roce-adaptive")
    assert sprayed <= many * (1 + 1e-9)
    assert many < one
    assert seconds() > 0


def test_every_verb_says_the_transport() -> None:
    asked = {"radix": 4, "batch": 64, "transport": "roce-ecmp", "queue_pairs": 2}
    planned = weft.plan("gpt2-124m", "a100-16", fabric="fat-tree", top=1, axis_order="usual", **asked)
    designed = weft.design("gpt2-124m", "a100-16", layout="dp=16", fabrics="fat-tree", no_failures=True, **asked)
    assert [one.to_dict()["transport"] for one in (planned, designed)] == ["roce-ecmp:2"] * 2


def test_the_transport_is_never_faster_than_the_ideal_on_its_paths() -> None:
    for transport in ("roce-adaptive", "packet-spray", "infiniband"):
        assert seconds(transport=transport) >= weft.simulate(
            *SMALL, fabric="fat-tree", radix=4, batch=64, routing="spray"
        ).iteration_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"transport": "roce-ecmp", "routing": "spray"}, "goes without --transport roce-ecmp"),
        ({"transport": "roce-ecmp", "routing": "planned"}, "goes without --transport roce-ecmp"),
        ({"transport": "infiniband", "queue_pairs": 2}, "change nothing on infiniband"),
        ({"queue_pairs": 2}, "change nothing on ideal"),
        ({"transport": "tcp"}, "transport"),
        ({"queue_pairs": 129}, "128"),
    ],
)
def test_what_cannot_be_asked(given: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        weft.simulate(*SMALL, fabric="fat-tree", radix=4, batch=64, **given)
    with pytest.raises(BadInput, match="says nothing without --fabric"):
        weft.compare("gpt2-124m", "a100-16", layout=("dp=16", "tp=2,dp=8"), transport="roce-ecmp")


def test_what_links_reach_is_what_the_transport_or_their_calibration_leaves() -> None:
    def reached(**given: object) -> list[float]:
        found = weft.simulate(*SMALL, fabric="fat-tree", radix=4, batch=64, **given)
        return [tier["reached"] for tier in found.to_dict()["tiers"]]

    ideal, sprayed = reached(), reached(transport="packet-spray")
    assert ideal[0] == sprayed[0]
    assert all(0 < there <= here <= 1 for here, there in zip(ideal, sprayed, strict=True))
    assert min(sprayed) <= 0.87
