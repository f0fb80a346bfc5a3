"""AxoNN's communication model: rankings and seconds of the authors' script, and hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import axonn
from weft.errors import BadInput

Row = tuple[tuple[int, int, int, int], float]
CASES = {
    "5B-64": (axonn.PERLMUTTER, "5B", 64, 512, 80, 89.78),
    "20B-32": (axonn.PERLMUTTER, "20B", 32, 512, 36, 206.15),
    "20B-64": (axonn.PERLMUTTER, "20B", 64, 64, 64, 26.18),
    "40B-64": (axonn.PERLMUTTER, "40B", 64, 64, 49, 39.98),
    "80B-1024": (axonn.PERLMUTTER, "80B", 1024, 2048, 230, 1913.33),
    "80B-1024-small": (axonn.PERLMUTTER, "80B", 1024, 512, 225, 478.33),
    "frontier-1024": (axonn.FRONTIER, "80B", 1024, 2048, 230, 3826.66),
    "frontier-8192": (axonn.FRONTIER, "80B", 8192, 8192, 504, 15319.73),
}
CORRECTED: dict[str, list[Row]] = {
    "5B-64": [((1, 1, 64, 1), 0.3322), ((1, 1, 32, 2), 0.3551), ((1, 1, 16, 4), 0.4008)],
    "20B-32": [((1, 1, 32, 1), 1.3351), ((1, 1, 16, 2), 1.5217), ((4, 1, 8, 1), 3.4459)],
    "20B-64": [((1, 1, 64, 1), 1.3566), ((4, 1, 16, 1), 1.4320), ((1, 1, 32, 2), 1.4499)],
    "40B-64": [((8, 1, 8, 1), 2.5863), ((8, 1, 4, 2), 2.6427), ((2, 4, 8, 1), 2.6620)],
    "80B-1024": [((1, 1, 1024, 1), 5.3104), ((1, 1, 512, 2), 5.3329), ((1, 1, 256, 4), 5.3779)],
    "80B-1024-small": [((16, 1, 64, 1), 3.5230), ((16, 1, 32, 2), 3.5299), ((16, 1, 16, 4), 3.5437)],
    "frontier-1024": [((1, 1, 1024, 1), 10.6209), ((1, 1, 512, 2), 10.7212), ((1, 1, 256, 4), 10.9219)],
    "frontier-8192": [((1, 1, 8192, 1), 10.6300), ((1, 1, 4096, 2), 10.6425), ((1, 1, 2048, 4), 10.6676)],
}
SCRIPT = CORRECTED | {
    "20B-32": [((1, 1, 32, 1), 1.3351), ((1, 1, 16, 2), 1.5217), ((4, 1, 8, 1), 5.6859)],
    "20B-64": [((1, 1, 64, 1), 1.3566), ((1, 1, 32, 2), 1.4499), ((4, 1, 16, 1), 1.5720)],
    "40B-64": [((1, 1, 64, 1), 2.6630), ((1, 1, 32, 2), 2.8462), ((4, 1, 16, 1), 2.9637)],
    "80B-1024-small": [((2, 4, 128, 1), 4.2383), ((2, 4, 64, 2), 4.2452)],
}


@pytest.mark.parametrize("script_form", [False, True], ids=["corrected", "script"])
@pytest.mark.parametrize("case", CASES)
def test_best_layouts(case: str, script_form: bool) -> None:
    machine, model, accelerators, batch, count, _ = CASES[case]
    layouts, seconds = axonn.rank(
        axonn.SHAPES[model], machine, accelerators=accelerators, batch=batch, script_form=script_form
    )
    assert len(layouts) == count
    expected = (SCRIPT if script_form else CORRECTED)[case]
    assert [tuple(row) for row in layouts[: len(expected)]] == [row for row, _ in expected]
    assert seconds[: len(expected)] == pytest.approx([time for _, time in expected], abs=6e-5)


@pytest.mark.parametrize("case", CASES)
def test_worst_layout_puts_everything_on_y(case: str) -> None:
    machine, model, accelerators, batch, _, worst = CASES[case]
    layouts, seconds = axonn.rank(axonn.SHAPES[model], machine, accelerators=accelerators, batch=batch)
    assert tuple(layouts[-1]) == (1, accelerators, 1, 1)
    assert seconds[-1] == pytest.approx(worst, rel=2e-4)


def one(*layout: int) -> axonn.Layouts:
    return np.array([layout], np.int64)


def test_worked_layer_sizes_of_80b() -> None:
    layers = axonn.block(12288)
    found = [axonn.buffers(layer, one(4, 1, 256, 1), 2048 * 2048) for layer in layers]
    assert [moved.shard_elements.item() for moved in found] == [442_368, 147_456, 589_824, 589_824]
    gathered = [226_492_416, 75_497_472, 301_989_888, 301_989_888]
    assert [moved.gathered_bytes.item() for moved in found] == gathered
    reduced = [
        found[0].backward_bytes.item(),
        found[1].forward_bytes.item(),
        found[2].backward_bytes.item(),
        found[3].forward_bytes.item(),
    ]
    assert reduced == [402_653_184] * 4


@pytest.mark.parametrize("machine", [axonn.PERLMUTTER, axonn.FRONTIER], ids=lambda machine: machine.name)
def test_bandwidth_within_a_node_is_the_measured_table(machine: axonn.Supercomputer) -> None:
    for (inner, size), expected in machine.intra_GiBps.items():
        found = machine.bandwidth_Bps(np.array([inner]), np.array([size]))
        assert found.item() == expected * 2**30


@given(st.sampled_from([axonn.PERLMUTTER, axonn.FRONTIER]), st.integers(0, 12), st.integers(1, 12))
def test_bandwidth_across_nodes_never_grows_with_the_inner_axes(
    machine: axonn.Supercomputer, inner: int, size: int
) -> None:
    inners, sizes = 2 ** np.arange(inner, inner + 3), np.full(3, 2**size)
    across = inners * sizes > machine.node
    assert np.all(np.diff(machine.bandwidth_Bps(inners, sizes)[across]) <= 0)


def total_bytes(layout: axonn.Layouts, counts: axonn.CollectiveCounts | None = None) -> axonn.Values:
    parts = [axonn.ring_bytes(layer, layout, 4096, counts=counts) for layer in axonn.block(1024)]
    total: axonn.Values = np.sum(parts, axis=0)[0]
    return total


def test_x_alone_is_megatron_tensor_parallelism() -> None:
    all_reduces = 4
    expected = all_reduces * 2 * 7 / 8 * 4096 * 1024 * 2
    found = total_bytes(one(8, 1, 1, 1), axonn.CollectiveCounts(gather=1, forward=1))
    assert found == pytest.approx([expected, 0, 0, 0])


def test_candidates_multiply_out_and_divide_the_batch() -> None:
    layouts = axonn.candidates(256, 96, 8)
    assert np.all(layouts.prod(axis=1) == 256)
    assert np.all(layouts[:, :3].prod(axis=1) >= 8)
    assert np.all(96 % (layouts[:, 2] * layouts[:, 3]) == 0)
    assert len(np.unique(layouts, axis=0)) == len(layouts)


def test_bad_input_is_named() -> None:
    with pytest.raises(BadInput, match="not a power of two"):
        axonn.candidates(96, 96, 8)
    with pytest.raises(BadInput, match="a batch of 0 is empty"):
        axonn.candidates(64, 0, 8)
    with pytest.raises(BadInput, match="no measured bandwidth on Frontier"):
        axonn.communication_time(axonn.SHAPES["5B"], axonn.FRONTIER, one(3, 1, 1, 1), batch=3)
    with pytest.raises(BadInput, match="rows of four positive degrees"):
        axonn.communication_time(axonn.SHAPES["5B"], axonn.FRONTIER, one(0, 1, 1, 1), batch=3)
