from __future__ import annotations

import pytest

from weft.validation.inputs import Prepared, machine, named_accelerator, prepare, shape
from weft.validation.runs import Skipped


def prepared(run) -> Prepared:
    found = prepare(run)
    assert isinstance(found, Prepared), found
    return found


def test_a_published_run(make) -> None:
    found = prepared(make())
    recipe, layout = found.job.recipe, found.layout
    assert found.job.model.parameters == pytest.approx(22e9, rel=0.02)
    assert (recipe.attention, recipe.dropout, recipe.precision) == ("unfused", True, "fp16")
    assert (layout.x, layout.data, layout.micro_batch, layout.recompute, layout.zero) == (8, 1, 4, "full", 0)
    assert not layout.sequence_parallel
    assert (found.measured_s, found.derived) == (1.42, False)


def test_a_hostile_family_and_id_change_nothing(make) -> None:
    plain = prepared(make())
    renamed = prepared(make(id="nemo", family="zzz"))
    assert (plain.job, plain.layout, plain.cluster) == (renamed.job, renamed.layout, renamed.cluster)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("LLAMA3_70B", "llama-3-70b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("DeepSeekV3", "deepseek-v3"),
        ("Qwen3_30B_a3B", "qwen3-30b-a3b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("Kimi_K2", "kimi-k2"),
        ("Nemotron-340B", "nemotron-4-340b"),
        ("meta-llama/Llama-2-13b-hf", "llama-2-13b"),
        ("Mixtral-8x7B (tokendrop)", "mixtral-8x7b"),
    ],
)
def test_names_of_the_catalogue(make, model: str, name: str) -> None:
    empty = dict.fromkeys(("layers", "hidden", "heads", "vocab"))
    assert shape(make(model=model, **empty), [], prediction=True).name == name


def test_a_model_cut_to_fewer_layers_keeps_every_kind(make) -> None:
    run = make(model="deepseekv3 cut to 4 layers", layers=4, hidden=7168, heads=128, vocab=129280)
    model = shape(run, [], prediction=True)
    assert [(run.block.moe is None, run.count) for run in model.runs] == [(True, 1), (False, 3)]
    assert model.prediction_layers == 0


@pytest.mark.parametrize(
    ("columns", "gated"),
    [
        ({"model": "GPT 7B"}, False),
        ({"model": "Llama-like 7B"}, True),
        ({"model": "ours", "params_b": 6.7, "ffn": 11008}, True),
        ({"model": "ours", "params_b": 6.7, "ffn": 16384}, False),
        ({"model": "ours", "kv_heads": 8}, True),
        ({"model": "ours"}, False),
    ],
)
def test_shapes_of_unknown_models(make, columns: dict[str, object], gated: bool) -> None:
    run = make(**({"layers": 32, "hidden": 4096, "heads": 32, "vocab": None} | columns))
    block = shape(run, [], prediction=True).runs[0].block
    assert block.feed_forward.gated is gated


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "Jamba 1.5 Mini", "layers": None}, "state-space"),
        ({"model": "Kimi-Linear 48B", "layers": None}, "linear attention"),
        ({"model": "Secret 9", "layers": None}, "neither its shape nor a model"),
        ({"gpu": "Abacus 3000"}, "not in the catalogue"),
        ({"precision": "fp8"}, "no matrix units for fp8"),
        ({"precision": "int3"}, "'int3' is not modelled"),
        ({"measured_iter_s": None}, "no time, rate or MFU"),
        ({"tp": 3}, "do not divide 8 accelerators"),
        ({"tp": 1, "micro_batch": None}, "leaves a remainder"),
        ({"heads": 60, "hidden": 6120}, "heads-not-divisible"),
    ],
)
def test_reasons_to_skip(make, changes: dict[str, object], reason: str) -> None:
    found = prepare(make(**changes))
    assert isinstance(found, Skipped)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-80GB-SXM", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100 40 GB PCIe", "a100-pcie-40gb"),
        ("DGX-GB300", "gb300"),
        ("NVIDIA GB200 NVL72", "gb200"),
        ("H100 (GH200, Alps)", "gh200-96gb"),
        ("8xH100 SXM5", "h100"),
        ("H20-96GB", "h20"),
        ("TPUv4", "tpu-v4"),
        ("TPU v5p-128", "tpu-v5p"),
        ("Gaudi 2", "gaudi2"),
        ("RTX4090", "rtx-4090"),
        ("MI250X GCD (Frontier)", "mi250x"),
    ],
)
def test_accelerators_by_name(text: str, name: str) -> None:
    assert named_accelerator(text).name == name


def test_what_an_accelerators_name_states(make) -> None:
    chip = machine(make(gpu="H100-96GB (500 W, HBM2e 2.4 TB/s)"), []).accelerator
    assert chip.memory_bytes == pytest.approx(96e9, rel=0.03)
    assert (chip.memory_Bps, chip.power_w) == (2.4e12, 500.0)


def test_domains_that_the_accelerators_fill(make) -> None:
    cluster = machine(make(gpu="DGX-GB300", gpus=256, nodes_gpus=72), [])
    tiers = cluster.tiers
    assert (cluster.accelerator.scale_up_size, cluster.spares_per_domain) == (72, 8)
    assert [tier.size for tier in tiers] == [64, 4]


@pytest.mark.parametrize(
    ("notes", "Gbps"),
    [
        ("4 HCAs per node (800 Gb/s per node)", 100),
        ("8 x 100 Gb/s per node", 100),
        ("NVLink; 400 Gbps per GPU", 400),
        ("nothing said", 200),
    ],
)
def test_network_from_notes(make, notes: str, Gbps: float) -> None:
    cluster = machine(make(gpus=64, notes=notes), [])
    assert cluster.tiers[1].bandwidth_Bps == Gbps * 1.25e8


def test_time_from_tflops_counts_recomputation(make) -> None:
    """arXiv 2104.04473, eq. 3: 96 B s l h^2 (1 + s / 6h + V / 16 l h)."""
    stated = {"measured_iter_s": None, "tflops_per_gpu": 100.0, "counts_recompute": True}
    found = prepared(make(**stated))
    flops = 96 * 4 * 2048 * 48 * 6144**2 * (1 + 2048 / (6 * 6144) + 51200 / (16 * 48 * 6144))
    assert found.derived
    assert found.measured_s == pytest.approx(flops / 8e14, rel=1e-6)
    model = prepared(make(**(stated | {"counts_recompute": False})))
    assert model.measured_s == pytest.approx(found.measured_s * 0.755, rel=0.01)


def test_time_from_tokens(make) -> None:
    found = prepared(make(measured_iter_s=None, tokens_s_gpu=1024.0))
    assert found.measured_s == 1.0


@pytest.mark.parametrize(
    ("source", "zero", "layout"),
    [
        ("llm-foundry", 3, (8, 1, 1)),
        ("llm-foundry", 2, (1, 8, 2)),
        ("Megatron-LM 2024", 1, (1, 8, 1)),
        ("torchtitan", None, (8, 1, 1)),
    ],
)
def test_sharding(make, source: str, zero: int | None, layout: tuple[int, int, int]) -> None:
    found = prepared(make(source=source, zero=zero, tp=1, global_batch=32)).layout
    assert (found.z, found.data, found.zero) == layout


def test_more_chunks_than_layers(make) -> None:
    """NeMo counts embedding and loss as layers: 128 chunks of 126 layers."""
    run = make(layers=126, gpus=128, tp=8, pp=16, vpp=8, micro_batch=1, global_batch=64)
    found = prepared(run)
    assert found.layout.virtual_stages == 4
    assert any("more than layers" in words for words in found.assumptions)


def test_every_default_is_listed(make) -> None:
    missing = dict.fromkeys(("precision", "vocab", "heads", "seq", "micro_batch", "zero", "recompute"), None)
    run = make(**(missing | {"model": "ours", "precision": "", "recompute": ""}))
    words = " | ".join(prepared(run).assumptions)
    for part in ("precision", "vocabulary 51,200", "heads of 128", "sequences of", "micro-batch", "ZeRO"):
        assert part in words
    assert "recomputation" in words


def test_llama_3_as_its_paper_says(make) -> None:
    """arXiv 2407.21783 section 3.3.2: gathered weights are kept, and pipelines are interleaved."""
    run = make(
        source="Llama Team 2024",
        model="Llama 3.1 405B",
        gpu="H100",
        gpus=8192,
        layers=None,
        hidden=None,
        heads=None,
        vocab=None,
        zero=None,
        precision="bf16",
        recompute="none",
        pp=16,
        global_batch=2048,
        micro_batch=None,
        seq=8192,
    )
    layout = prepared(run).layout
    assert (layout.z, layout.data, layout.zero, layout.schedule) == (1, 64, 1, "interleaved")


def test_nothing_but_the_time_depends_on_the_result(make) -> None:
    fast, slow = (
        prepared(make(measured_iter_s=seconds, tflops_per_gpu=rate)) for seconds, rate in ((1, 250), (9, 28))
    )
    assert (fast.job, fast.layout, fast.cluster) == (slow.job, slow.layout, slow.cluster)
    assert fast.assumptions == slow.assumptions


@pytest.mark.parametrize(
    ("notes", "recompute"), [("", "full"), ("remat_policy ['full']", "full"), ("remat_policy ['custom']", "none")]
)
def test_maxtext_recomputes_everything_unless_it_names_a_policy(make, notes: str, recompute: str) -> None:
    """Its base.yml: remat_policy = full; what a policy keeps is not known, so that memory decides."""
    run = make(
        source="MaxText",
        notes=notes,
        gpu="TPU v5p",
        recompute="",
        tp=1,
        zero=3,
        global_batch=8,
        micro_batch=1,
        layers=8,
    )
    assert prepared(run).layout.recompute == recompute


def test_stated_without_recomputation(make) -> None:
    known = {"source": "vTrain", "notes": "Megatron-DeepSpeed", "micro_batch": 1}
    assert prepared(make(recompute="none", **known)).layout.recompute == "none"
    assert prepared(make(recompute="", **known)).layout.recompute == "full"


def test_the_cut_of_each_expert(make) -> None:
    run = {"model": "Grok1 314b", "layers": 64, "hidden": 6144, "heads": 48, "kv_heads": 8, "ffn": 32768}
    cut = {"experts": 8, "topk": 2, "gpu": "DGX-H100", "gpus": 32, "tp": 4, "ep": 8, "etp": 4, "global_batch": 8}
    layout = prepared(make(**run, **cut, micro_batch=1, zero=None, precision="bf16")).layout
    assert (layout.expert, layout.expert_tensor, layout.expert_data) == (8, 4, 1)


@pytest.mark.parametrize("words", [{"kernels": "torch"}, {"kernels": "fused"}, {"notes": "kernel: torch; 2023"}])
def test_kernels_that_are_not_fused_attention(make, words) -> None:
    """As Aleph Alpha's sheets name them."""
    usual = {"source": "Aleph Alpha", "precision": "bf16"}
    assert prepare(make(**usual, **words)).job.recipe.attention == "unfused"
    assert prepare(make(**usual, kernels="FlashAttention 2")).job.recipe.attention == "flash"
