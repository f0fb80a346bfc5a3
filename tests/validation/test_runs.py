from __future__ import annotations

from pathlib import Path

import pytest

from weft.cluster.calibration import stack_names
from weft.errors import BadInput
from weft.validation.runs import Run, Skipped, baseline_warning, read_runs, recognise, shipped_runs, stacks

HEADER = "id,family,model,gpu,gpus,seq,mfu,sequence_parallel,measured_iter_s,notes,unheard_of"


def read(folder: Path, *lines: str, header: str = HEADER, prefix: str = "") -> tuple[Run | Skipped, ...]:
    file = folder / "runs.csv"
    file.write_text(prefix + "\n".join([header, *lines]) + "\n", encoding="utf-8")
    return read_runs(str(file))


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("8.0", 8), (" 8 ", 8), ('"1,024"', 1024), ("８", 8), ("~64", 64), ("1e3", 1000)],  # noqa: RUF001
)
def test_counts_in_many_spellings(tmp_path: Path, text: str, value: int) -> None:
    (run,) = read(tmp_path, f"a,f,GPT,A100,{text},2048,0.4,1,1.5,,x")
    assert isinstance(run, Run)
    assert run.gpus == value


@pytest.mark.parametrize("text", ["", "-", "N/A", "nan", "?"])
def test_empty_cells_are_none(tmp_path: Path, text: str) -> None:
    (run,) = read(tmp_path, f"a,f,GPT,A100,8,{text},{text},{text},{text},{text},")
    assert isinstance(run, Run)
    assert (run.seq, run.mfu, run.sequence_parallel, run.measured_iter_s, run.notes) == (None,) * 4 + ("",)


@pytest.mark.parametrize(("text", "share"), [("0.415", 0.415), ("41.5", 0.415), ("41.5%", 0.415)])
def test_shares_and_percentages(tmp_path: Path, text: str, share: float) -> None:
    (run,) = read(tmp_path, f"a,f,GPT,A100,8,2048,{text},0,1.5,,")
    assert isinstance(run, Run)
    assert run.mfu == pytest.approx(share)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,f,GPT,A100,eight,2048,,,1.5,,", "gpus = 'eight' is not a number"),
        ("a,f,GPT,A100,8.5,2048,,,1.5,,", "gpus = '8.5' is not a whole number"),
        ("a,f,GPT,A100,0,2048,,,1.5,,", "gpus = '0' is zero"),
        ("a,f,GPT,A100,8,-1,,,1.5,,", "seq = '-1' is not within"),
        ("a,f,GPT,A100,8,2048,,,inf,,", "measured_iter_s = 'inf' is not within"),
        ("a,f,GPT,A100,8,2048,,maybe,1.5,,", "sequence_parallel = 'maybe' is neither 0 nor 1"),
        ("a,f,GPT,,8,2048,,,1.5,,", "gpu is not stated"),
        ("a,f,GPT,A100,8,2048,,,1.5,,,,more", "2 more cells than columns"),
    ],
)
def test_broken_rows_are_kept_with_their_reason(tmp_path: Path, row: str, reason: str) -> None:
    good = "b,f,GPT,A100,8,2048,0.4,1,1.5,,"
    broken, run = read(tmp_path, row, good)
    assert isinstance(broken, Skipped)
    assert isinstance(run, Run)
    assert broken.name == "a"
    assert broken.family == "f"
    assert reason in broken.reason


def test_a_second_run_of_an_id_is_left_out(tmp_path: Path) -> None:
    """Twice the same row counted twice in every mean."""
    first, other, again = read(tmp_path, *(f"{name},f,GPT,A100,8,2048,0.4,1,1.5,," for name in ("a", "b", "a")))
    assert isinstance(first, Run)
    assert isinstance(other, Run)
    assert again == Skipped(name="a", family="f", reason="unreadable: another run has its id (line 2)")
    assert all(isinstance(run, Run) for run in read(tmp_path, *[",f,GPT,A100,8,2048,0.4,1,1.5,,"] * 2))


def test_missing_columns_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"lacks the columns family, gpus, one of measured_iter_s/"):
        read(tmp_path, header="id,model,gpu")


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00id")
    for name in ("absent", "binary", "."):
        with pytest.raises(BadInput, match=r"no such file|cannot be read|not a text file"):
            read_runs(str(tmp_path / name))
    (tmp_path / "empty").write_text("")
    with pytest.raises(BadInput, match="lacks the columns"):
        read_runs(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("text", "value"), [("none", "none"), (" None", "none"), ("", ""), ("n/a", ""), ("full", "full")]
)
def test_no_recomputation_is_something_stated(tmp_path: Path, text: str, value: str) -> None:
    header = HEADER.replace("unheard_of", "recompute")
    (run,) = read(tmp_path, f"a,f,GPT,A100,8,2048,0.4,1,1.5,,{text}", header=header)
    assert isinstance(run, Run)
    assert run.recompute == value


def test_the_runs_that_weft_comes_with_are_whole() -> None:
    runs = shipped_runs()
    assert all(isinstance(run, Run) and run.source and run.source_url for run in runs)
    assert len({run.name for run in runs}) == len(runs)
    page = (Path(__file__).parents[2] / "docs" / "measured-runs.md").read_text(encoding="utf-8")
    families = {run.family for run in runs}
    assert all(f"\n| {family} |" in page for family in families)
    assert f"{len(runs):,} published" in page


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"source": "Korthikanti et al. 2022, Table 5"}, "megatron-lm-2022"),
        ({"source": "Narayanan et al., SC21, Table 1"}, "megatron-lm-2021"),
        ({"source": "Narayanan et al., SC21, Table 2", "zero": 3}, "deepspeed-2021"),
        ({"source": "Megatron-LM README weak scaling (Megatron-Core r0.8.0)"}, "megatron-core"),
        ({"source": "NVIDIA NeMo / Megatron Bridge performance summary"}, "nemo"),
        ({"source": "vTrain", "notes": "Megatron-DeepSpeed; NVLink nodes"}, "megatron-deepspeed"),
        ({"source": "MosaicML llm-foundry benchmarks"}, "llm-foundry"),
        ({"source": "torchtitan benchmarks", "notes": "FSDP, eager"}, "torchtitan"),
        ({"source": "a blog", "notes": "PyTorch FSDP2"}, "fsdp"),
        ({"source": "Hugging Face Accelerate examples"}, "fsdp"),
        ({"source": "DeepSpeed blog, ZeRO-3"}, "deepspeed"),
        ({"source": "SimuMax, measured Megatron-LM", "notes": "ZeRO-1 and SP"}, "megatron-core"),
        ({"source": "SimuMax, measured Megatron-LM", "gpu": "B200-SXM"}, "megatron-core-te"),
        ({"source": "MaxText README", "gpu": "TPU v5e"}, "maxtext"),
        ({"source": "MaxText README", "gpu": "H100-80GB-SXM"}, "maxtext-gpu"),
        ({"source": "NVIDIA NeMo AutoModel"}, "nemo-automodel"),
        ({"source": "Aleph Alpha, arXiv 2311.05610"}, "aa-scaling"),
        ({"source": "NVIDIA DGX Cloud, JAX Pax 2024.03.04", "gpu": "DGX-H100"}, "paxml"),
        ({"source": "MegaScale, table 2", "software": "Megatron-LM of 2023"}, "megatron-lm-2023"),
        ({"source": "NVIDIA NeMo / Megatron Bridge performance summary", "software": "26.08"}, "nemo"),
        ({"source": "MegaScale, table 2", "notes": "Megatron-LM baseline"}, "megatron-core"),
        ({"source": "MLPerf Training v5.1, Dell, NVIDIA NeMo 25.09"}, "nemo-mlperf"),
        ({"source": "MegaScale, table 2"}, "megascale"),
        ({"source": "Megatron-LM of 2023"}, "megatron-lm-2023"),
        ({"source": "Colossal-AI benchmarks"}, "colossal-ai"),
        ({"source": "Nanotron, the ultra-scale playbook"}, "nanotron"),
        ({"source": "AxoNN, SC24"}, "axonn"),
        ({"source": "somebody", "family": "other"}, "unknown"),
        ({"source": "", "family": "x", "source_url": "https://github.com/pytorch/torchtitan"}, "torchtitan"),
    ],
)
def test_recognised_from_words(make, changes: dict[str, object], name: str) -> None:
    blank = {"source": "", "family": "", "notes": "", "zero": None, "model": ""}
    assert recognise(make(**(blank | changes))).name == name


def test_kernels_count_whether_in_their_own_column_or_in_notes(make) -> None:
    words = "FlashAttention 1.0.8, RMS norm kernel"
    stated = {"norm_overhead": 1.0, "attention_share": 0.55}
    assert dict(recognise(make(source="Aleph Alpha", kernels=words)).stated) == stated
    assert dict(recognise(make(source="Aleph Alpha", notes=f"kernel: {words}")).stated) == stated
    assert dict(recognise(make(kernels="FlashAttention 2, unbalanced experts")).stated) == {}
    assert dict(recognise(make(notes="force-balanced experts")).stated) == {"expert_spread": 0.0}


def test_a_baseline_of_another_systems_paper_is_warned_of(make) -> None:
    words = baseline_warning(make(source="MegaScale, table 2", notes="Megatron-LM baseline"))
    assert words.startswith("a baseline, by its notes: taken for Megatron-LM since 2023")
    assert not baseline_warning(make(source="MegaScale, table 2", notes="12,288 GPUs"))
    assert not baseline_warning(make(software="Megatron-LM", notes="Megatron-LM baseline"))


def test_every_stack_has_constants() -> None:
    assert set(stacks()) <= set(stack_names())


@pytest.mark.parametrize(
    ("source", "flops"),
    [
        ("NeMo 24.12", "full"),
        ("NeMo v2.1.0 docs", "full"),
        ("NVIDIA NeMo 25.04", "full"),
        ("NVIDIA NeMo 25.09", "causal"),
        ("25.11 NeMo Container", "causal"),
        ("26.04.01 NeMo Container", "causal"),
    ],
)
def test_nemo_counted_the_whole_square_of_attention_until_august_2025(make, source: str, flops: str) -> None:
    """NVIDIA-NeMo/NeMo, pull request 14424."""
    assert recognise(make(source=source, family="")).flops == flops


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        ("", {}),
        ("recipe of Megatron Bridge: HybridEP, dispatch overlapped", {"dispatch_once": 1.0}),
        ("DeepEP, dispatch not overlapped", {"dispatch_once": 1.0, "expert_overlap": 0.0}),
        ("no CUDA graphs", {"launches_per_step": 3.0}),
        ("NCCL all-to-alls, CUDA graphs of routing", {"dispatch_once": 0.0, "launches_per_step": 2.25}),
        ("CUDA graphs of attention and routing", {"launches_per_step": 1.5}),
        ("CUDA graphs of whole iterations", {"launches_per_step": 0.3}),
    ],
)
def test_words_state_constants(make, words: str, stated: dict[str, float]) -> None:
    assert dict(recognise(make(source="NVIDIA NeMo 26.02", notes=words)).stated) == stated
