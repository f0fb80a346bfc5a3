"""``weft bench``: what it prints and writes of this machine, and one line for every bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@needs_torch
def test_two_ranks_are_measured_and_planned_for(weft: Run, tmp_path: Path) -> None:
    machine, kept = str(tmp_path / "machine.toml"), str(tmp_path / "constants.toml")
    options = ("--repeats", "2", "--sizes", "1KiB,64KiB", "--precision", "fp32", "--device", "cpu")
    code, out, err = weft(
        "bench", "--ranks", "2", *options, "--format", "json", "-o", machine, "--calibration-output", kept
    )
    assert (code, err) == (0, f"Next: weft plan MODEL {machine} --calibration {kept}\n")
    found = json.loads(out)
    assert found["schema"] == "weft.bench/1"
    assert [(one["kind"], one["bytes"]) for one in found["samples"]] == [
        (kind, size) for kind in ("all-reduce", "all-gather", "reduce-scatter") for size in (1024, 65536)
    ]
    for one in found["samples"]:
        assert one["seconds"] > 0
        factor = {"all-reduce": 1.0}.get(one["kind"], 0.5)
        assert one["bus_Bps"] == pytest.approx(factor * one["algorithm_Bps"])
    assert found["cluster"]["accelerator"]["fp32_flops"] == pytest.approx(
        max(one["achieved_flops"] for one in found["products"]), rel=1e-3
    )
    job = ("gpt2-124m", machine, "--batch", "8", "--sequence", "128", "--precision", "fp32")
    for more in ((), ("--calibration", kept)):
        code, out, err = weft("plan", *job, *more, "--format", "json", "--top", "1")
        assert (code, err) == (0, "")
        assert json.loads(out)["layouts"][0]["iteration_s"] > 0


@needs_torch
def test_the_table_is_read_by_axis(weft: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of measured times that are given."""
    from weft.cluster.calibration import AttentionTime
    from weft.layout import Layout
    from weft.layout.measured import KINDS, Measured, Product, Rank, Sample
    from weft.runtime.measure import timing as measure

    def given(request: measure.Request) -> Measured:
        samples = tuple(
            Sample(axis=axis, kind=kind, ranks=2, bytes=size, seconds=1e-4 + size / 1e9)
            for axis in ("x", "data")
            for kind in KINDS
            for size in request.sizes
        )
        rank = Rank(
            name="cpu-1-thread",
            memory_bytes=2.0**32,
            multiprocessors=1,
            copy_Bps=9e9,
            best_copy_Bps=1e10,
            host_Bps=9e9,
            launch_s=2e-6,
        )
        products = (Product(precision="fp32", m=512, n=512, k=512, seconds=2e-3),)
        heads = {"batch": 1.0, "heads": 12.0, "kv_heads": 12.0, "qk_dim": 64.0, "v_dim": 64.0}
        return Measured(
            layout=Layout(x=2, data=2),
            device="cpu",
            repeats=3,
            rank=rank,
            samples=samples,
            products=products,
            attention=(AttentionTime(**heads, sequence=512.0, seconds=3e-3, precision="fp32"),),
        )

    monkeypatch.setattr(measure, "measure", given)
    code, out, err = weft("bench", "--layout", "x=2,data=2", "--sizes", "4KiB:1MiB", "--device", "cpu", "--verbose")
    assert (code, err) == (0, "")
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "tp reduce-scatter 2 4.0 KiB 104 us 39.3 MB/s 19.7 MB/s" in rows
    assert any("100 us 500 MB/s 1" in row for row in rows)
    assert any("3 ms" in row and row.endswith("forward fp32") for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", "2"), "--layout or --ranks is missing"),
        (("--layout", "x=2,q=3"), "unknown key 'q'"),
        (("--layout", "x=3", "--ranks", "4"), "does not divide 4"),
        pytest.param(("--ranks", "2", "--sizes", "soon"), "'soon' is not a quantity", marks=needs_torch),
        pytest.param(("--ranks", "2", "--sizes", "1MiB:1KiB"), "1MiB:1KiB is empty", marks=needs_torch),
        pytest.param(("--ranks", "2", "--sizes", "1TB"), "is not between 1 B and 64 GiB", marks=needs_torch),
        pytest.param(
            ("--ranks", "2", "--sizes", ",".join(map(str, range(1, 99)))), "98 sizes are too many", marks=needs_torch
        ),
        (("--ranks", "2", "-o", "nowhere/machine.toml"), "its folder does not exist"),
        (("--ranks", "2", "--calibration-output", "."), "is a folder"),
        pytest.param(("--ranks", "2", "--precision", "fp8"), "unknown precision 'fp8'", marks=needs_torch),
        pytest.param(("--ranks", "999999"), "are too many for", marks=needs_torch),
    ],
)
def test_bad_input_is_one_line(refused: Callable[..., str], arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("bench", *arguments)
