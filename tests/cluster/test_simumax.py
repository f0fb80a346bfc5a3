"""SimuMax's system.json: every number against SimuMax's own formulas, in its units."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.cluster import Calibration, accelerator, calibration, load, read_calibration
from weft.collectives.cost import Network, collective_s
from weft.errors import BadInput
from weft.estimation.kernels import KernelModel
from weft.layout.mesh import spread
from weft.layout.operations import Gemm
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable

GIB = 1024**3
NETWORK = {
    "bandwidth": {"efficient_factor": 0.5, "gbps": 400, "latency_us": 10},
    "op": {
        "all_reduce": {"scale": 2, "offset": -1, "efficient_factor": 0.75, "latency_us": 5, "fixed_latency_us": 20},
        "all_gather": {"scale": 1, "offset": -1},
        "all2all": {"scale": 1, "offset": -1, "fixed_latency_us_by_comm_num": {"4": 50}},
        "p2p": {"scale": 1, "offset": 0},
    },
}
SYSTEM: dict[str, Any] = {
    "sys_name": "test",
    "num_per_node": 8,
    "accelerator": {
        "backend": "cuda",
        "mem_gbs": 80,
        "mode": "roofline",
        "op": {
            "default": {"tflops": 1000, "efficient_factor": 0.5},
            "matmul": {
                "tflops": 1000,
                "efficient_factor": 0.6,
                "accurate_efficient_factor": {
                    "b=2, m=4096, k=8192, n=1024, layout=TN, accumulate=False, out_dtype=bf16": 0.55,
                    "b=1, m=1024, k=8192, n=8192, layout=NT, accumulate=True, out_dtype=fp32": 0.45,
                },
            },
            "group_matmul": {
                "tflops": 1000,
                "efficient_factor": 0.4,
                "accurate_efficient_factor": {
                    "ng=4, M=512, N=3072, K=1024, dtype=bf16, stage=bwd_grad_w, grad=True": 0.3
                },
            },
            "sdp_fwd": {
                "tflops": 1000,
                "efficient_factor": 0.9,
                "accurate_efficient_factor": {
                    "batch=1, seq_len=4096, head_num=8, kv_head_num=2, qk_head_dim=128, v_head_dim=128,"
                    " qkv_contiguous=True": 0.8
                },
            },
        },
        "bandwidth": {"default": {"efficient_factor": 0.7, "gbps": 3000, "latency_us": 30}},
    },
    "networks": {"intra_with_pcie": False, "high_intra_node": NETWORK, "inter_node": NETWORK},
}


def read(system: object, tmp_path: Path) -> Calibration:
    """The calibration of a document."""
    file = tmp_path / "system.json"
    file.write_text(json.dumps(system))
    return read_calibration(str(file), "h100")


@pytest.fixture
def constants(tmp_path: Path) -> Calibration:
    return read(SYSTEM, tmp_path)


@pytest.mark.parametrize(
    ("phase", "m", "n", "k", "copies", "share"),
    [
        ("forward", 8192, 1024, 8192, 1, 0.55),
        ("weight-gradient", 1024, 8192, 8192, 1, 0.45),
        ("weight-gradient", 3072, 1024, 512, 4, 0.3),
    ],
)
def test_a_measured_product_takes_what_was_measured(
    constants: Calibration, phase: Any, m: int, n: int, k: int, copies: int, share: float
) -> None:
    """The rows of a batch are rows; a grouped product states the sides of its forward pass."""
    sides = {"m": np.array([float(m)]), "n": np.array([float(n)]), "k": np.array([float(k)])}
    gemm = Gemm(name="one", phase=phase, copies=np.array([float(copies)]), **sides)
    seconds = KernelModel(accelerator("h100"), constants, "bf16").seconds(gemm)[0]
    assert seconds == pytest.approx(2 * copies * m * n * k / (1000e12 * share), rel=1e-9)


def test_attention_counts_the_whole_square(constants: Calibration) -> None:
    assert constants.measured is not None
    (one,) = constants.measured.attention
    assert one.seconds == pytest.approx(2 * 8 * 4096**2 * (128 + 128) / (1000e12 * 0.8))


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "all-to-all", "send"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_collectives_of_a_node(constants: Calibration, kind: Any, ranks: int) -> None:
    op, size = NETWORK["op"][{"all-to-all": "all2all", "send": "p2p"}.get(kind, kind.replace("-", "_"))], 1e8
    base = NETWORK["bandwidth"]
    moved = size * op["scale"] * (1 + op["offset"] / ranks)
    steps = 1 if kind == "send" else (ranks + op["offset"]) * op["scale"]
    fixed = op.get("fixed_latency_us_by_comm_num", {}).get(str(ranks), op.get("fixed_latency_us", 0))
    Bps = 400 * GIB * op.get("efficient_factor", base["efficient_factor"])
    expected = moved / Bps + 1e-6 * (op.get("latency_us", base["latency_us"]) * steps + fixed)
    assert timed(constants, kind, size, ranks) == pytest.approx(expected, rel=1e-9)


def test_bandwidth_between_nodes_is_the_nodes(constants: Calibration) -> None:
    """A ring over whole nodes has all of it, a ring of one rank a node an eighth, and so has a send."""
    size = 1e9
    latency = 1e-6 * (5 * 2 * 15 + 20)
    whole = timed(constants, "all-reduce", size, 16) - latency
    assert whole == pytest.approx(2 * size * 15 / 16 / (400 * GIB * 0.75), rel=1e-6)
    alone = timed(constants, "all-reduce", size, 4, inner=8) - 1e-6 * (5 * 2 * 3 + 20)
    assert alone == pytest.approx(2 * size * 3 / 4 / (400 / 8 * GIB * 0.75), rel=1e-6)
    assert timed(constants, "send", size, 2, inner=8) == pytest.approx(10e-6 + size / (50 * GIB * 0.5), rel=1e-6)


def timed(constants: Calibration, kind: Any, size: float, ranks: int, inner: int = 1) -> float:
    """Seconds of a collective of ranks that are ``inner`` apart."""
    network = Network.of(load("h100-64"), constants)
    layout = Layout(x=inner, data=ranks, pipeline=64 // (ranks * inner))
    group = spread(LayoutTable.of([layout]), ("data",), network.spans)
    return float(collective_s(kind, np.array([size]), group, network)[0])


def test_defaults_become_constants(constants: Calibration) -> None:
    assert constants.gemm_efficiency == 0.6
    assert constants.attention_efficiency == pytest.approx(0.45)
    assert constants.memory_efficiency == pytest.approx(0.7 * GIB / 1e9)


def test_pcie_networks_by_ranks(tmp_path: Path) -> None:
    system = deepcopy(SYSTEM)
    system["networks"] = {"intra_with_pcie": True, "intra_node_pcie_2x": NETWORK, "inter_node": NETWORK}
    system["networks"]["intra_node_pcie_4x"] = {**NETWORK, "bandwidth": {**NETWORK["bandwidth"], "gbps": 100}}
    constants = read(system, tmp_path)
    two, four = (timed(constants, "send", 1e9, ranks) - 10e-6 for ranks in (2, 4))
    assert four == pytest.approx(4 * two)


def test_an_fp8_efficiency_that_was_not_measured_stays_the_accelerators(tmp_path: Path) -> None:
    """As in SimuMax's own file for B200."""
    system = deepcopy(SYSTEM)
    system["accelerator"]["op"]["fp8_matmul"] = {"tflops": 1000, "efficient_factor": 0}
    assert read(system, tmp_path).low_precision_efficiency == calibration("h100", stack=None).low_precision_efficiency


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("accelerator", "op", "matmul", "tflops"), -1, "matmul.tflops: -1 is not positive"),
        (("accelerator", "op", "matmul", "accurate_efficient_factor"), {"m=4": 0.5}, "layout is none of TN, NN, NT"),
        (("networks", "inter_node", "bandwidth", "gbps"), "fast", "'fast' is not a finite number"),
        (("accelerator", "bandwidth"), None, "None is not a table of fields"),
        *((("num_per_node",), size, f"num_per_node: {size:g} is not a whole") for size in (0.5, 8.9, 0, -8, 1e12)),
        (("accelerator", "op", "matmul", "efficient_factor"), 0, "matmul.efficient_factor: 0 is not positive"),
        (("accelerator", "bandwidth", "default", "efficient_factor"), 0.0, "default.efficient_factor: 0 is not"),
        (("num_per_node",), "8", "'8' is not a finite number"),
        (("accelerator",), [], "[] is not a table of fields"),
    ],
)
def test_what_means_nothing_is_refused(path: tuple[str, ...], value: object, problem: str, tmp_path: Path) -> None:
    system = deepcopy(SYSTEM)
    table = system
    for name in path[:-1]:
        table = table[name]
    table[path[-1]] = value
    with pytest.raises(BadInput) as caught:
        read(system, tmp_path)
    assert problem in str(caught.value)


def test_other_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no system"):
        read({"hidden_size": 3}, tmp_path)
