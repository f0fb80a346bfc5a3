"""SimuMax's ``system.json``: kernels and collectives that it measured, as constants and times by shape.

Its documentation is ``docs/system.md`` of MooreThreads/SimuMax; what the numbers mean is in its
``core/config.py`` (``compute_op_accuracy_time``, ``compute_mem_access_time``, ``compute_net_op_time``) and in
``simu_tools/efficency_test``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import fsum
from typing import Any

from weft.cluster.measurements import DEFAULT, SCALE_OUT, SCALE_UP
from weft.codec import number, positive, table_of
from weft.errors import BadInput

GIB_PER_GB = 1024**3 / 1e9
"""Bandwidths are called GB/s, and counted in GiB/s."""
PHASES = {"TN": "forward", "NN": "input-gradient", "NT": "weight-gradient"}
STAGES = {"fwd": "forward", "bwd_grad_act": "input-gradient", "bwd_grad_w": "weight-gradient"}
PRODUCTS = (("matmul", "bf16"), ("fp8_matmul", "fp8"), ("group_matmul", "bf16"), ("fp8_group_matmul", "fp8"))
ATTENTION = (("sdp_fwd", "forward", 2.0), ("sdp_bwd", "input-gradient", 5.0))
"""Operator, phase, and FLOPs per score of the whole square and feature of queries and values: the mask's half is
counted too."""
MEMORY = (
    ("default", DEFAULT, "any"),
    ("ce_fusion", "cross-entropy", "any"),
    ("ce", "cross-entropy", "any"),
    ("permute_fwd", "expert.permute", "forward"),
    ("permute_bwd", "expert.permute", "input-gradient"),
)
KINDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all2all": "all-to-all",
    "p2p": "send",
}
INTER_NODE = "inter_node"
INTRA_NODE = ("high_intra_node", "low_intra_node")
"""Between the accelerators of a node; SimuMax uses the first."""
PCIE = (("intra_node_pcie_2x", (2,)), ("intra_node_pcie_4x", (3, 4)), ("intra_node_pcie_8x", (5, 6, 7, 8)))
"""The same over PCIe, by ranks of the group."""
USUAL_NODE = 8
"""Accelerators of a node for which latencies count every step of a ring."""
MOST_PER_NODE = 1024
_PAIR = re.compile(r"\s*(\w+)=([^,\s]+)\s*(?:,|$)")
LONGEST = 15
"""Digits of a size."""
Ranges = Mapping[str, tuple[float, float]]


def is_simumax(values: object) -> bool:
    """Whether a document is a ``system.json``."""
    return isinstance(values, Mapping) and {"accelerator", "networks", "num_per_node"} <= set(values)


def simumax_calibration(values: Mapping[str, Any], ranges: Ranges, *, where: str) -> dict[str, Any]:
    """Constants and measured times of a ``system.json``, as a calibration file names them.

    Its default efficiencies become constants, put into their ``ranges``; they hold at the machine's own power and
    for products of any depth.
    """
    chip = table_of(values["accelerator"], f"{where}: accelerator")
    ops = table_of(chip.get("op"), f"{where}: accelerator.op")
    memory = table_of(chip.get("bandwidth"), f"{where}: accelerator.bandwidth")
    result: dict[str, Any] = {"source": f"SimuMax {values.get('sys_name', 'system.json')}"}
    for name, value in _constants(ops, memory, f"{where}: accelerator"):
        result[name] = min(max(value, ranges[name][0]), ranges[name][1])
    result["products"] = list(_products(ops, f"{where}: accelerator.op"))
    result["attention"] = list(_attention(ops, f"{where}: accelerator.op"))
    result["memory"] = list(_memory(memory, f"{where}: accelerator.bandwidth"))
    result["collectives"] = list(_collectives(values, where))
    return result


def _constants(ops: Mapping[str, Any], memory: Mapping[str, Any], where: str) -> Iterator[tuple[str, float]]:
    yield "reference_power_w", 0.0
    yield "gemm_depth", 0.0
    yield "gemm_share", 1.0
    usual = _share(ops, "default", where)
    yield "gemm_efficiency", _share(ops, "matmul", where, usual)
    # SimuMax's file for B200 has 0: not measured.
    if table_of(ops.get("fp8_matmul", {}), f"{where}.fp8_matmul").get("efficient_factor") != 0:
        yield "low_precision_efficiency", _share(ops, "fp8_matmul", where, usual)
    yield "expert_share", 1.0
    if attention := [share for name, *_ in ATTENTION if (share := _share(ops, name, where))]:
        yield "attention_share", 1.0
        yield "attention_efficiency", fsum(attention) / len(attention) / 2.0
    if "default" in memory:
        yield "memory_efficiency", GIB_PER_GB * _share(memory, "default", where)


def _share(ops: Mapping[str, Any], name: str, where: str, usual: float = 0.0) -> float:
    """The default efficiency of an operator, ``usual`` where the file states none."""
    place = f"{where}.{name}"
    share = table_of(ops[name], place).get("efficient_factor") if name in ops else None
    return usual if share is None else positive(share, f"{place}.efficient_factor")


def _products(ops: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    for name, precision in PRODUCTS:
        for shape, peak_flops, place in _measured(ops, name, where):
            groups, phase, (m, n, k) = _product(shape, place)
            yield {
                "m": m,
                "n": n,
                "k": k,
                "groups": groups,
                "phase": phase,
                "precision": precision,
                "seconds": 2.0 * groups * m * n * k / peak_flops,
            }


def _product(shape: Mapping[str, str], place: str) -> tuple[float, str, tuple[float, float, float]]:
    """Groups, phase and sides: a grouped product states those of its forward pass, a batch is more rows."""
    if "ng" not in shape:
        phase = _one_of(PHASES, shape, "layout", place)
        m, n, k = (_size(shape, side, place) for side in ("m", "n", "k"))
        return 1.0, phase, (m * _size(shape, "b", place), n, k)
    phase = _one_of(STAGES, shape, "stage", place)
    tokens, outputs, inputs = (_size(shape, side, place) for side in ("M", "N", "K"))
    sides = {
        "forward": (tokens, outputs, inputs),
        "input-gradient": (tokens, inputs, outputs),
        "weight-gradient": (outputs, inputs, tokens),
    }
    return _size(shape, "ng", place), phase, sides[phase]


def _attention(ops: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    names = {"batch": "batch", "sequence": "seq_len", "heads": "head_num", "kv_heads": "kv_head_num"}
    names |= {"qk_dim": "qk_head_dim", "v_dim": "v_head_dim"}
    for name, phase, flops in ATTENTION:
        for shape, peak_flops, place in _measured(ops, name, where):
            if shape.get("qkv_contiguous", "True") != "True":
                continue
            sizes = {ours: _size(shape, theirs, place) for ours, theirs in names.items()}
            scores = sizes["batch"] * sizes["sequence"] ** 2 * max(sizes["heads"], sizes["kv_heads"])
            features = sizes["qk_dim"] + sizes["v_dim"]
            yield {**sizes, "phase": phase, "seconds": flops * scores * features / peak_flops}


def _measured(ops: Mapping[str, Any], name: str, where: str) -> Iterator[tuple[dict[str, str], float, str]]:
    """Shape, achieved FLOP/s and place of every shape that was measured of an operator."""
    if name not in ops:
        return
    op = table_of(ops[name], f"{where}.{name}")
    shapes = table_of(op.get("accurate_efficient_factor") or {}, f"{where}.{name}.accurate_efficient_factor")
    for text, share in shapes.items():
        place = f"{where}.{name}[{text[:60]}]"
        achieved = 1e12 * positive(op.get("tflops"), f"{where}.{name}.tflops") * positive(share, place)
        yield dict(_PAIR.findall(text)), achieved, place


def _memory(memory: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    for theirs, ours, phase in MEMORY:
        if theirs in memory:
            place = f"{where}.{theirs}"
            entry = table_of(memory[theirs], place)
            yield {
                "name": ours,
                "phase": phase,
                "Bps": GIB_PER_GB * 1e9 * positive(entry.get("gbps"), place) * _share(memory, theirs, where),
                "latency_s": 1e-6 * number(entry.get("latency_us", 0.0), place),
            }


def _collectives(values: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    per_node = number(values["num_per_node"], f"{where}: num_per_node")
    if not 1 <= per_node <= MOST_PER_NODE or per_node % 1:
        problem = f"{per_node:g} is not a whole number from 1 to {MOST_PER_NODE}"
        raise BadInput(problem, where=f"{where}: num_per_node")
    node, where = int(per_node), f"{where}: networks"
    networks = table_of(values["networks"], where)
    inside: list[tuple[str, tuple[int, ...]]] = [(name, ranks) for name, ranks in PCIE if name in networks]
    if not networks.get("intra_with_pcie"):
        plain = next((name for name in INTRA_NODE if name in networks), None)
        every: tuple[int, ...] = tuple(range(2, node + 1)) if values.get("FC8") else (0,)
        inside = [] if plain is None else [(plain, every)]
    for name, ranks in inside:
        for count in ranks:
            links = (count - 1) / (USUAL_NODE - 1) if values.get("FC8") else 1.0
            yield from _scope(networks[name], f"{where}.{name}", SCALE_UP, count, node, links)
    if INTER_NODE in networks:
        yield from _scope(networks[INTER_NODE], f"{where}.{INTER_NODE}", SCALE_OUT, 0, node, 1.0 / node)


def _scope(raw: object, where: str, scope: str, ranks: int, node: int, share: float) -> Iterator[dict[str, Any]]:
    """Every collective of one network, of whose bandwidth an accelerator has a ``share``."""
    network = table_of(raw, where)
    usual = table_of(network.get("bandwidth"), f"{where}.bandwidth")
    ops = table_of(network.get("op"), f"{where}.op")
    for theirs, ours in KINDS.items():
        if theirs not in ops:
            continue
        place = f"{where}.op.{theirs}"
        op = {"efficient_factor": usual.get("efficient_factor"), "latency_us": usual.get("latency_us")}
        op |= {name: value for name, value in table_of(ops[theirs], place).items() if value is not None}
        step_s = 1e-6 * number(op["latency_us"], place)
        Bps = GIB_PER_GB * 1e9 * share * positive(usual.get("gbps"), f"{where}.bandwidth.gbps")
        entry = {"kind": ours, "scope": scope, "Bps": Bps * positive(op["efficient_factor"], place)}
        stepped = node == USUAL_NODE and ours != "send"
        by_ranks = table_of(op.get("fixed_latency_us_by_comm_num") or {}, place)
        fixed = op.get("fixed_latency_us", usual.get("fixed_latency", 0.0))
        for count, more in ((ranks, fixed), *(() if ranks else by_ranks.items())):
            fixed_s = 1e-6 * number(more, place)
            yield entry | {
                "ranks": _ranks(count, place),
                "step_s": step_s if stepped else 0.0,
                "latency_s": fixed_s if stepped else fixed_s + step_s,
            }


def _ranks(count: int | str, where: str) -> int:
    """A number of ranks, which JSON writes as the name of a field."""
    if isinstance(count, str) and not (count.isdecimal() and len(count) <= LONGEST):
        raise BadInput(f"{count[:40]!r} is not a number of ranks", where=where)
    return int(count)


def _one_of(names: Mapping[str, str], shape: Mapping[str, str], field: str, where: str) -> str:
    if shape.get(field) not in names:
        raise BadInput(f"{field} is none of {', '.join(names)}", where=where)
    return names[shape[field]]


def _size(shape: Mapping[str, str], name: str, where: str) -> float:
    text = shape.get(name, "")
    if not text.isdecimal() or len(text) > LONGEST or not int(text):
        raise BadInput(f"{name} is not a positive whole number", where=where)
    return float(text)
