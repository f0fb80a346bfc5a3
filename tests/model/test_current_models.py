"""Configurations of current models: counts as published, patterns of layers, text parts of several modalities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import Unsupported
from weft.model import catalogue, read_config, resolve_job
from weft.model.huggingface import read_config_noted
from weft.model.job import score_pairs
from weft.model.spec import Attention, FeedForward, LatentAttention

# Billions in all, and billions that a token uses without embedding and (where the publisher leaves it out too) head.
PUBLISHED = {
    "nemotron-3-nano": (31.6, 3.2, False),  # arXiv 2512.20848 section 1: 3.6 with embeddings
    "nemotron-3-super": (120.6, 12.7, None),  # technical report, section 1
    "nemotron-3-ultra": (550.0, 55.0, False),  # arXiv 2606.15007, abstract
    "nemotron-h-47b": (46.8, None, False),  # safetensors metadata on huggingface.co, as are the next two
    "nemotron-h-56b": (56.3, None, False),
    "nemotron-h-8b": (8.1, None, False),
    "glm-4.5": (355.0, 32.0, True),  # arXiv 2508.06471 table 1, as GLM-4.5-Air
    "glm-4.5-air": (106.0, 12.0, True),
    "glm-5": (744.0, 40.0, False),  # arXiv 2602.15763, abstract and appendix
    "kimi-k2": (1026.0, 32.0, False),  # README: 1T and 32B; safetensors metadata
    "llama-4-maverick": (400.0, 17.0, None),  # model card
    "minimax-text-01": (456.0, 45.9, True),  # arXiv 2501.08313, abstract
    "minimax-m2": (229.0, 10.0, None),  # safetensors metadata; model card: 10B
    "granite-4.0-h-small": (32.2, 9.0, None),  # model card: 32B and 9B
    "qwen3.5-27b": (26.9, None, False),  # safetensors metadata less vision and prediction parts
    "qwen3.5-35b-a3b": (34.7, 3.0, None),
    "qwen3.5-122b-a10b": (122.0, 10.0, None),  # model cards of these three: their names
    "qwen3.5-397b-a17b": (397.0, 17.0, None),
    "qwen3-next-80b-a3b": (80.0, None, False),  # model card; active, rounded to 3, is no figure to compare with
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(name: str) -> None:
    model = catalogue.load(name).model
    billions, active, headless = PUBLISHED[name]
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    table = model.vocab * model.hidden
    used = model.active_parameters - {None: 0, False: table, True: 2 * table}[headless]
    if name == "minimax-m2":
        used = model.active_parameters - 2 * table
    if active is not None:
        rounded = 0.5 if active == int(active) else 0.01 * active  # names and cards print whole billions
        assert used / 1e9 == pytest.approx(active, abs=rounded)


def test_llama_4_scout_is_the_published_total_less_its_vision_part() -> None:
    """Vision encoder of 34 layers, its two-layer adapter and the projector, as the configuration shapes them."""
    width, layers, intermediate, patches, hidden = 1408, 34, 5632, (336 // 14) ** 2 + 1, 5120
    attention, norms = 4 * (width * width + width), 4 * width
    feed = 2 * width * intermediate + width + intermediate
    tower = layers * (attention + feed + norms) + 3 * 14 * 14 * width + (patches + 1) * width + 4 * width
    adapter = intermediate * 4096 + 4096 * 4096
    projector = 4096 * hidden
    vision = tower + adapter + projector
    assert catalogue.load("llama-4-scout").model.parameters + vision == pytest.approx(108_641_793_536, rel=1e-6)


def test_llama_4_alternates() -> None:
    model = catalogue.load("llama-4-maverick").model
    blocks = [model.kinds[index] for index in model.block_sequence()]
    for layer, block in enumerate(blocks, 1):
        attention = block.attention
        assert isinstance(attention, Attention)
        assert (attention.chunked, attention.rotary) == ((True, True) if layer % 4 else (False, False))
        assert (block.moe is not None) == (layer % 2 == 0)
    dense = blocks[0].feed_forward
    assert isinstance(dense, FeedForward)
    assert dense.intermediate == 16384
    listed = {"no_rope_layers": [1, 1, 0, 1], "moe_layers": [2], "num_hidden_layers": 4}
    record = dict(catalogue._records()["llama-4-maverick"]["config"])
    own = read_config(record | listed)
    order = [own.kinds[index] for index in own.block_sequence()]
    assert [block.attention.rotary for block in order if block.attention] == [True, True, False, True]
    assert [block.moe is not None for block in order] == [False, False, True, False]


@given(st.integers(1, 40), st.integers(1, 12), st.booleans())
def test_score_pairs_are_those_of_the_mask(sequence: int, window: int, chunked: bool) -> None:
    attention = Attention(heads=1, kv_heads=1, head_dim=8, window=window, chunked=chunked)
    seen = sum(
        1
        for query in range(sequence)
        for key in range(query + 1)
        if (key // window == query // window if chunked else query - key < window)
    )
    assert score_pairs(attention, sequence) == seen


def test_the_real_kimi_k2_file_reads() -> None:
    """Keys of moonshotai/Kimi-K2-Instruct that name code or change no shape are passed over."""
    record = dict(catalogue._records()["kimi-k2"]["config"])
    noise = {
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0,
        "ep_size": 1,
        "quantization_config": {"quant_method": "fp8"},
        "aux_loss_alpha": 0.001,
        "topk_method": "noaux_tc",
    }
    assert record["model_type"] == "kimi_k2"
    model = read_config(record | noise, name="kimi-k2")
    assert model == catalogue.load("kimi-k2").model
    assert isinstance(model.kinds[0].attention, LatentAttention)


def test_glm_4_5_has_biases_where_it_projects_in_only() -> None:
    block = catalogue.load("glm-4.5").model.kinds[1]
    biases = {linear.name: linear.bias for linear in block.linears()}
    assert biases == dict.fromkeys(biases, False) | {"qkv": True}


@pytest.mark.parametrize(
    ("outer", "name"),
    [
        ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}, "gemma-3-4b"),
        ({"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"]}, "llama-4-scout"),
        ({"model_type": "mistral3", "vision_config": {"model_type": "pixtral"}}, "mistral-7b"),
        ({"model_type": "kimi_k25"}, "kimi-k2"),
    ],
)
def test_of_several_modalities_the_text_part_is_read_and_said(
    outer: dict[str, Any], name: str, tmp_path: Path
) -> None:
    text = dict(catalogue._records()[name]["config"])
    text = text.get("text_config", text)
    folder = tmp_path / "wrapped"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(outer | {"text_config": text}))
    job = resolve_job(str(folder))
    assert job.model.runs == catalogue.load(name).model.runs
    assert "wrapped without its other modalities: the language model of text_config" in job.defaults


JAMBA = {
    "model_type": "jamba",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "vocab_size": 65536,
}


def test_a_stand_in_says_what_it_replaces() -> None:
    with pytest.raises(Unsupported, match="--as dense-equivalent"):
        read_config(JAMBA)
    read = read_config_noted(JAMBA, stand_in=True)
    assert [read.model.kinds[index].moe is not None for index in read.model.block_sequence()] == [False, True] * 16
    assert len(read.model.attentions) == len(read.model.kinds)
    (note,) = read.notes
    assert "'jamba' is not modelled" in note
    assert "all 32 blocks as full attention and feed-forward parts" in note
    assert f"{read.model.parameters / 1e9:.4g}B parameters" in note
    assert read.model.parameters / 1e9 == pytest.approx(51.6, rel=0.04)  # model card of Jamba-v0.1: 52B


def test_the_stand_in_of_sparse_attention_is_deepseek_v3() -> None:
    indexer = {"model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
    record = dict(catalogue._records()["deepseek-v3"]["config"]) | indexer
    model, dense = read_config_noted(record, stand_in=True).model, catalogue.load("deepseek-v3").model
    assert [run.count for run in model.runs] == [run.count for run in dense.runs]
    assert model.kinds[0] == dense.kinds[0]
    assert model.prediction_layers == 1


def test_glm_5_is_the_published_total_less_its_indexer() -> None:
    """The indexer of each layer, with the shapes of transformers' glm_moe_dsa: 32 heads of 128 features from the
    compressed queries, one key with a norm, a weight per head."""
    indexer = 2048 * 32 * 128 + 6144 * 128 + 2 * 128 + 6144 * 32
    assert (catalogue.load("glm-5").model.parameters + 78 * indexer) / 1e9 == pytest.approx(744.0, abs=0.5)


def test_a_setting_that_is_not_modelled_has_a_stand_in_too() -> None:
    config = {key: value for key, value in JAMBA.items() if "expert" not in key} | {"model_type": "llama"}
    refused = config | {"use_qk_norm": True}
    with pytest.raises(Unsupported, match=r"use_qk_norm.*--as dense-equivalent"):
        read_config(refused)
    assert read_config_noted(refused, stand_in=True).model.runs == read_config(config).runs


@pytest.mark.parametrize(
    "change",
    [{"model_type": "t5"}, {"is_encoder_decoder": True}, {"architectures": ["JambaForSequenceClassification"]}],
)
def test_nothing_stands_in_for_other_tasks(change: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        read_config_noted(JAMBA | change, stand_in=True)


def test_a_modelled_configuration_needs_no_stand_in(tmp_path: Path) -> None:
    path = tmp_path / "kimi.json"
    path.write_text(json.dumps(catalogue._records()["kimi-k2"]["config"]))
    job = resolve_job(str(path), stand_in=True)
    assert job.model.runs == catalogue.load("kimi-k2").model.runs
    assert job.defaults[0] == "dense equivalent: nothing to replace, Weft models all of it"
