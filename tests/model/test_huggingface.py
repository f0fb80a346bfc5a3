from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.errors import BadInput, UnknownName, Unsupported, WeftError
from weft.model import catalogue
from weft.model.huggingface import LARGEST_CONFIGURATION_BYTES, read_config
from weft.model.spec import Attention, FeedForward, LatentAttention, MixtureOfExperts, Rope

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def configs() -> list[dict[str, Any]]:
    """One configuration of each model type in the catalogue."""
    found = {record["config"]["model_type"]: record["config"] for record in catalogue._records().values()}
    return [found[kind] for kind in sorted(found)]


def attention_of(config: dict[str, Any]) -> Attention:
    attention = read_config(config).runs[0].block.attention
    assert isinstance(attention, Attention)
    return attention


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def test_path_folder_and_mapping_agree(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder, by_path = read_config(folder), read_config(str(folder / "config.json"))
    assert by_folder == by_path == read_config(LLAMA, name="my-llama")
    assert read_config(folder, name="other").name == "other"
    assert read_config(LLAMA | {"_name_or_path": "meta-llama/Meta-Llama-3-8B"}).name == "Meta-Llama-3-8B"


def test_keys_without_effect_are_ignored() -> None:
    noise = {
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "auto_map": {"AutoModel": "evil.py"},
        "architectures": ["LlamaForCausalLM"],
        "quantization_config": {"bits": 4},
        "head_dim": None,
        "pretraining_tp": 1,
    }
    assert read_config(LLAMA | noise, name="a") == read_config(LLAMA, name="a")


def problem_of(config: dict[str, Any]) -> str:
    """The message of the error that the configuration gives; empty when there is none."""
    try:
        assert read_config(config).parameters > 0
    except WeftError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("config", configs(), ids=lambda config: config["model_type"])
def test_missing_required_keys_are_named(config: dict[str, Any]) -> None:
    problems = {key: problem_of(without(config, key)) for key in without(config, "model_type")}
    missing = {key: problem for key, problem in problems.items() if "is missing" in problem}
    assert len(missing) >= 3
    for key, problem in missing.items():
        assert f"{key} is missing" in problem
        assert repr(config["model_type"]) in problem
    defaulted = set(problems) - set(missing)
    assert all(problems[key] == "" or "heads cannot share" in problems[key] for key in defaulted)


def test_defaults_of_llama() -> None:
    attention = attention_of(without(LLAMA, "num_key_value_heads"))
    assert (attention.kv_heads, attention.head_dim, attention.window) == (32, 128, None)
    assert not read_config(LLAMA).tied_embeddings
    assert read_config(LLAMA | {"tie_word_embeddings": True}).tied_embeddings


# Defaults of num_key_value_heads as the configuration classes of transformers state them.
@pytest.mark.parametrize(
    ("kind", "kv_heads"), [("mistral", 8), ("qwen2", 32), ("qwen3", 32), ("gemma", 16), ("phi3", 32)]
)
def test_default_key_value_heads(kind: str, kv_heads: int) -> None:
    config = without(LLAMA, "num_key_value_heads") | {"model_type": kind}
    assert attention_of(config).kv_heads == kv_heads
    assert attention_of(config | {"num_key_value_heads": None}).kv_heads == 32


def test_biases() -> None:
    attention = attention_of(LLAMA | {"attention_bias": True})
    assert (attention.qkv_bias, attention.out_bias) == (True, True)
    qwen = attention_of(LLAMA | {"model_type": "qwen2"})
    assert (qwen.qkv_bias, qwen.out_bias) == (True, False)
    feed = read_config(LLAMA | {"mlp_bias": True}).runs[0].block.feed_forward
    assert feed == FeedForward(intermediate=14336, bias=True)


def test_sinks_are_no_norms_of_heads() -> None:
    sinks = {"model_type": "gpt_oss", "num_attention_heads": 128, "head_dim": 64, "num_local_experts": 8}
    attention = attention_of(LLAMA | sinks | {"num_experts_per_tok": 2})
    assert (attention.sinks, attention.head_norms) == (True, False)
    assert attention.vector_parameters(bias=False) == 128
    attention = attention_of(LLAMA | {"model_type": "qwen3", "head_dim": 64})
    assert (attention.sinks, attention.head_norms) == (False, True)
    assert attention.vector_parameters(bias=False) == 128
    assert not Attention(heads=128, kv_heads=8, head_dim=64, extra_parameters=128).head_norms


def windows(name: str) -> list[int | None]:
    model = catalogue.load(name).model
    return [model.kinds[kind].attention.window for kind in model.block_sequence()]


def test_window_patterns() -> None:
    assert windows("gemma-2-9b") == [4096, None] * 21
    assert windows("gemma-3-27b") == ([1024] * 5 + [None]) * 10 + [1024] * 2
    assert windows("gpt-oss-20b") == [128, None] * 12
    assert windows("mistral-7b") == [4096] * 32
    assert windows("mistral-large-2") == [None] * 88


def test_mistral_without_the_key_slides() -> None:
    assert attention_of(LLAMA | {"model_type": "mistral"}).window == 4096
    assert attention_of(LLAMA | {"model_type": "mistral", "sliding_window": None}).window is None


def test_layer_types_decide() -> None:
    kinds = ["full_attention"] * 31 + ["sliding_attention"]
    model = read_config(LLAMA | {"model_type": "gemma2", "sliding_window": 512, "layer_types": kinds})
    assert [run.count for run in model.runs] == [31, 1]
    assert model.runs[1].block.attention.window == 512
    with pytest.raises(BadInput, match="2 entries for 32 layers"):
        read_config(LLAMA | {"model_type": "gemma2", "layer_types": kinds[:2]})
    with pytest.raises(Unsupported, match="layer_types"):
        read_config(LLAMA | {"model_type": "gemma2", "layer_types": ["chunked_attention"] * 32})


def test_qwen_slides_above_max_window_layers() -> None:
    config = LLAMA | {"model_type": "qwen2", "sliding_window": 8192, "max_window_layers": 30}
    assert len(read_config(config).runs) == 1
    runs = read_config(config | {"use_sliding_window": True}).runs
    assert [(run.count, run.block.attention.window) for run in runs] == [(30, None), (2, 8192)]


def test_gemma_3_wrapper_with_sparse_text_config() -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "model_type": "gemma3_text",
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    model = read_config({"model_type": "gemma3", "text_config": text, "vision_config": {}}, name="gemma-3-4b")
    assert model == catalogue.load("gemma-3-4b").model


def test_deepseek_layers() -> None:
    model = catalogue.load("deepseek-v3").model
    assert [(run.count, run.block.moe is not None) for run in model.runs] == [(3, False), (58, True)]
    block = model.runs[1].block
    assert isinstance(block.attention, LatentAttention)
    assert isinstance(block.feed_forward, MixtureOfExperts)
    assert block.feed_forward.shared == FeedForward(intermediate=2048)
    assert (block.attention.qk_dim, block.attention.v_dim) == (192, 128)
    assert model.prediction_layers == 1
    lite = catalogue.load("deepseek-v2-lite").model.runs[0].block.attention
    assert isinstance(lite, LatentAttention)
    assert lite.q_rank is None


def test_deepseek_every_other_layer() -> None:
    config = dict(catalogue._records()["deepseek-v2"]["config"]) | {"moe_layer_freq": 2}
    model = read_config(config)
    routed = [model.kinds[kind].moe is not None for kind in model.block_sequence()]
    assert routed == [layer >= 1 and layer % 2 == 0 for layer in range(60)]


def test_qwen_moe_dense_layers() -> None:
    config = dict(catalogue._records()["qwen3-30b-a3b"]["config"]) | {"decoder_sparse_step": 2, "mlp_only_layers": [1]}
    model = read_config(config)
    routed = [model.kinds[kind].moe is not None for kind in model.block_sequence()]
    assert routed == [layer % 2 == 1 and layer != 1 for layer in range(48)]


def test_shapes_of_the_classic_families() -> None:
    falcon = catalogue.load("falcon-7b").model.runs[0].block
    assert (falcon.norms, falcon.parallel, falcon.attention.kv_heads) == (1, True, 1)
    grouped = catalogue.load("falcon-180b").model.runs[0].block
    assert (grouped.norms, grouped.parallel, grouped.attention.kv_heads) == (2, True, 8)
    assert catalogue.load("opt-125m").model.positions == 2050
    narrow = catalogue.load("opt-350m").model
    assert (narrow.embedding_features, narrow.final_norm) == (512, False)
    assert catalogue.load("mpt-7b").model.positions == 0
    assert catalogue.load("bloom-176b").model.embedding_norm
    palm = catalogue.load("palm-540b").model.runs[0].block
    assert (palm.norms, palm.parallel, palm.attention.kv_heads, palm.norm_bias) == (1, True, 1, False)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hidden_size": 0}, "outside 1 to"),
        ({"hidden_size": -4096}, "outside 1 to"),
        ({"hidden_size": 10**30}, "outside 1 to"),
        ({"hidden_size": True}, "not a whole number"),
        ({"hidden_size": "4096"}, "not a whole number"),
        ({"hidden_size": 4096.5}, "not a whole number"),
        ({"hidden_size": float("nan")}, "not a whole number"),
        ({"hidden_size": 4097}, "not a multiple of 32 heads"),
        ({"num_hidden_layers": 10**9}, "outside 1 to 10000"),
        ({"num_key_value_heads": 7}, "cannot share 7"),
        ({"tie_word_embeddings": "yes"}, "neither true nor false"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "3 of 2 experts"),
        ({"model_type": "qwen2", "layer_types": [1] * 32, "use_sliding_window": True}, "not a list of words"),
        ({"model_type": "gemma3", "text_config": [1]}, "not a table"),
        *(({"max_position_embeddings": value}, "max_position_embeddings: .* outside 1 to") for value in (0, -1)),
        ({"n_positions": 0}, "n_positions: 0 is outside 1 to"),
        *(({"attention_dropout": value}, "attention_dropout: .* from 0 to 1") for value in (2, -0.1, 1.5)),
        ({"model_type": "gpt2", "resid_pdrop": 2}, "resid_pdrop: 2 is not a share from 0 to 1"),
        ({"architectures": ["MixtralForCausalLM"]}, "'llama' does not go with .*'MixtralForCausalLM'"),
        ({"architectures": ["JambaForCausalLM"]}, "'llama' does not go with"),
        ({"model_type": "gpt2", "architectures": ["GPTNeoXForCausalLM"]}, 'write "gpt_neox"'),
    ],
)
def test_bad_values(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        read_config(LLAMA | change)


@pytest.mark.parametrize(
    "change",
    [
        {"is_encoder_decoder": True},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"num_local_experts": 8},
        {"use_qk_norm": True},
        {"model_type": "jamba"},
        {"model_type": "deepseek_v32"},
        {"model_type": "deepseek_v4"},
        {"model_type": "glm_moe_dsa"},
        {"model_type": "minimax_m2", "num_experts_per_tok": 1, "qk_norm_type": "per_head"},
        {"model_type": "gpt2", "add_cross_attention": True},
        {"model_type": "opt", "layer_norm_elementwise_affine": False},
        {"model_type": "mpt", "d_model": 64, "attn_config": {"qk_ln": True}},
        {"model_type": "deepseek_v3", "attention_bias": True},
    ],
)
def test_what_is_not_modelled_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=str(next(reversed(change)))):
        read_config(LLAMA | change)


@pytest.mark.parametrize(
    "keys",
    [
        {"architectures": ["LlavaLlamaForCausalLM"]},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
        {"max_position_embeddings": None, "attention_dropout": 0, "hidden_dropout": 0.1, "use_dropout": True},
    ],
)
def test_values_and_architectures_that_fit_are_read(keys: dict[str, Any]) -> None:
    assert read_config(LLAMA | keys).parameters > 0


def test_a_family_under_another_type_goes_with_its_architecture() -> None:
    config = next(one for one in configs() if one["model_type"] == "deepseek_v3")
    kimi = config | {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    assert read_config(kimi, name="a") == read_config(config, name="a")


def test_unknown_model_type_lists_the_supported_ones() -> None:
    with pytest.raises(UnknownName, match=r"'qwen4'.*did you mean.*supported: .*gpt_oss"):
        read_config(LLAMA | {"model_type": "qwen4"})
    with pytest.raises(BadInput, match="model_type"):
        read_config(without(LLAMA, "model_type"))


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * (LARGEST_CONFIGURATION_BYTES + 1))
    with pytest.raises(BadInput, match=r"config\.json.*larger"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, Rope()),
        ({"rope_theta": 5e5}, Rope(base=5e5)),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, Rope(scaling="linear", factor=4.0)),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, Rope(scaling="llama3", factor=8.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, Rope(base=1e6)),
        ({"partial_rotary_factor": 0.5, "rope_scaling": None}, Rope(share=0.5)),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, None),
    ],
)
def test_rotary_positions(keys: dict[str, object], expected: Rope | None) -> None:
    """Defaults and names are those of transformers."""
    found = read_config(LLAMA | keys, name="a")
    assert found.rope == expected
    assert found.parameters == read_config(LLAMA, name="a").parameters
    assert catalogue.load("gpt-3-175b").model.rope is None
    assert catalogue.load("pythia-1b").model.rope == Rope(share=0.25)


@pytest.mark.parametrize("value", [0, -1, "x", True, 1e13, {}])
def test_bases_that_cannot_be(value: object) -> None:
    with pytest.raises(BadInput, match=r"rope_theta: .* is not a positive number"):
        read_config(LLAMA | {"rope_theta": value}, name="a")
