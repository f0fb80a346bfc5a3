from __future__ import annotations

import pytest

from weft.cluster.calibration import stack_names
from weft.validation.runs import baseline_warning, recognise, stacks


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


def test_every_stack_is_whole() -> None:
    for name, stack in stacks().items():
        assert stack.name == name
        assert stack.source
        assert not stack.sharded_by or stack.sharded_by in stacks()
        assert 0 <= stack.zero <= 3


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


def test_nemo_reduces_gradients_in_16_bits(make) -> None:
    known = recognise(make(source="NVIDIA NeMo 25.09", family=""))
    assert set(known.gradient_bytes.values()) == {2}
    assert "fp8" in known.gradient_bytes


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
