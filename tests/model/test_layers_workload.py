"""Iterations made from tables of layers, against the order in which training runs them."""

import pytest

from weft.errors import BadInput
from weft.model.workload import Communication, Layer, training_iteration


def reduce(bytes_):
    return Communication(kind="all-reduce", bytes=bytes_)


def layer(name, forward=1.0, inputs=2.0, weights=4.0, **collectives):
    return Layer(name=name, forward_s=forward, input_gradient_s=inputs, weight_gradient_s=weights, **collectives)


def listed(workload):
    return [(task.name, task.waits) for task in workload.tasks]


def test_forward_then_backward_from_the_last():
    found = training_iteration("net", [layer("a"), layer("b")])
    assert listed(found) == [
        ("a forward", ()),
        ("b forward", (0,)),
        ("b weight gradient", (1,)),
        ("b input gradient", (2,)),
        ("a weight gradient", (3,)),
    ]
    assert found.compute_s == 1 + 1 + 4 + 2 + 4


def test_gradients_travel_beside_the_rest():
    found = training_iteration(
        "net", [layer("a", weight_gradient=reduce(1.0)), layer("b", weight_gradient=reduce(2.0))]
    )
    assert listed(found) == [
        ("a forward", ()),
        ("b forward", (0,)),
        ("b weight gradient", (1,)),
        ("b weights all-reduce", (2,)),
        ("b input gradient", (2,)),
        ("a weight gradient", (4,)),
        ("a weights all-reduce", (5,)),
    ]
    sent = [task.communication.bytes for task in found.tasks if task.communication]
    assert sent == [2.0, 1.0]


def test_activations_hold_the_computation_up():
    found = training_iteration("net", [layer("a"), layer("b", input_gradient=reduce(5.0))])
    assert listed(found)[-3:] == [
        ("b input gradient", (2,)),
        ("b input gradient all-reduce", (3,)),
        ("a weight gradient", (4,)),
    ]
    found = training_iteration("net", [layer("a", forward=0.5), layer("b", weights=0.0)])
    assert listed(found) == [
        ("a forward", ()),
        ("b forward", (0,)),
        ("b input gradient", (1,)),
        ("a weight gradient", (2,)),
    ]


def test_recomputation_runs_the_forward_pass_and_its_collective_again():
    table = [Layer(name="a", forward_s=1.0, input_gradient_s=2.0, weight_gradient_s=4.0, forward=reduce(7.0))]
    once = training_iteration("net", table)
    twice = training_iteration("net", table, recompute=True)
    assert twice.compute_s == once.compute_s + 1
    assert [task.name for task in twice.tasks] == [
        "a forward",
        "a forward all-reduce",
        "a again",
        "a again all-reduce",
        "a weight gradient",
    ]
    assert [task.waits for task in twice.tasks] == [(), (0,), (1,), (2,), (3,)]


def test_a_layer_without_seconds_still_communicates():
    found = training_iteration("net", [layer("a", 0.0, 0.0, 0.0, weight_gradient=reduce(1.0))])
    assert listed(found) == [("a weights all-reduce", ())]


def test_no_work():
    with pytest.raises(BadInput, match="no tasks"):
        training_iteration("net", [])


def test_assumptions_are_kept():
    assert training_iteration("net", [layer("a")], assumptions=["x", "y"]).assumptions == ("x", "y")
