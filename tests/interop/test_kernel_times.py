"""Products and attention of the profiler's traces: as the GPU's kernels timed them, or a CPU's operators."""

import json
from pathlib import Path
from typing import Any

import pytest

from weft.cluster import read_calibration
from weft.cluster.calibration import AttentionTime, ProductTime
from weft.errors import BadInput
from weft.interop.kernel_times import Traced, read_kernel_times


def operator(
    name: str, number: int, sizes: list[Any], kind: str = "c10::BFloat16", inputs: tuple[str, ...] = ()
) -> Any:
    arguments = {"External id": number, "Input Dims": sizes, "Input type": [kind] * len(sizes)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "dur": 9.0, "args": arguments | {"Concrete Inputs": inputs}}


def kernel(number: int, us: float) -> Any:
    """An event of the GPU."""
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": us, "args": {"External id": number}}


def read(events: list[Any], folder: Path) -> Traced:
    """What is read of a trace with these events."""
    file = folder / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return read_kernel_times(file)


def test_medians_of_the_kernels_of_each_shape(tmp_path: Path) -> None:
    """A product of two kernels takes both; the host's time counts for nothing where a GPU computes."""
    heads = [[2, 16, 512, 64], [2, 4, 512, 64], [2, 4, 512, 128]]
    events = [
        *(operator("aten::mm", i, [[128, 64], [64, 256]]) for i in (1, 2, 3)),
        *(kernel(i, us) for i, us in ((1, 50.0), (2, 10.0), (2, 2.0), (3, 13.0))),
        operator("aten::addmm", 4, [[256], [128, 64], [64, 256], [], []]),
        kernel(4, 13.0),
        operator("aten::baddbmm", 5, [[1], [3, 8, 16], [3, 16, 4]], "float"),
        kernel(5, 5.0),
        operator("aten::_scaled_dot_product_flash_attention", 6, heads, inputs=("", "", "", "0.", "True")),
        kernel(6, 6.0),
        operator("aten::_scaled_dot_product_cudnn_attention_backward", 7, [[2], *heads], inputs=("True",)),
        kernel(7, 7.0),
        operator("aten::_scaled_dot_product_flash_attention", 8, heads, inputs=("", "", "", "0.", "False")),
        kernel(8, 8.0),
        operator("aten::mm", 9, [[8, 8], [8, 8]]),
    ]
    found = read(events, tmp_path)
    sizes = {"batch": 2, "sequence": 512, "heads": 16, "kv_heads": 4, "qk_dim": 64, "v_dim": 128}
    assert found.measured.products == (
        ProductTime(m=128, n=256, k=64, seconds=1.3e-5),
        ProductTime(m=8, n=4, k=16, groups=3, precision="fp32", seconds=5e-6),
    )
    assert found.measured.attention == (
        AttentionTime(**sizes, seconds=6e-6),
        AttentionTime(**sizes, phase="input-gradient", seconds=7e-6),
    )
    assert found.calls == (4, 1, 1, 1)


@pytest.mark.slow
def test_a_real_trace_of_a_cpu(tmp_path: Path) -> None:
    """The products of a linear layer there and back, and what other verbs make of the file."""
    torch = pytest.importorskip("torch")
    layer, tokens = torch.nn.Linear(24, 40), torch.randn(16, 24, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiled:
        layer(tokens).sum().backward()
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    found = read_kernel_times(tmp_path / "trace.json")
    assert isinstance(found, Traced)
    sides = {(*sorted((one.m, one.n)), one.k) for one in found.measured.products}
    assert sides == {(16, 40, 24), (16, 24, 40), (24, 40, 16)}
    assert all(one.precision == "fp32" and 0 < one.seconds < 10 for one in found.measured.products)
    (tmp_path / "mine.toml").write_text(found.to_toml())
    assert read_calibration(str(tmp_path / "mine.toml"), "h100").measured == found.measured


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([], "names no shape"),
        ([operator("aten::mm", 1, [[128, 64], [64, 256]]), kernel(2, 1.0)], "names no shape"),
        ([operator("aten::mm", 1, [[128, 64], [63, 256]])], "names no shape"),
        ([operator("aten::mm", 1, [[1, 1], [1, 1]]), kernel(1, "x")], "'x' is not a number"),  # type: ignore[arg-type]
        ("nothing", "is not a trace"),
    ],
)
def test_what_holds_no_shape_is_refused(events: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=problem):
        read(events, tmp_path)
