"""Numbers of a model from its configuration."""

from __future__ import annotations

import json

import pytest

from weft.errors import BadInput, Unsupported
from weft.model import catalogue, resolve_job
from weft.runtime.layers.decoder import DEFAULTS, Details, details_of, in_words, is_config, read_details


def read(tmp_path, **fields):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return read_details(tmp_path)


def test_values_that_are_given(tmp_path):
    llama = {"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500000, "hidden_act": "gelu"}
    wanted = Details(activation="gelu", norm_epsilon=1e-5, rotary_theta=500000.0)
    assert read(tmp_path, **llama) == wanted
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    assert read(tmp_path, **(llama | {"rope_theta": None, "rope_parameters": rope})) == wanted
    gpt = {"model_type": "gpt2", "layer_norm_epsilon": 1e-3, "activation_function": "relu"}
    assert read(tmp_path, **gpt) == Details(activation="relu", norm_epsilon=1e-3)
    plain = {"model_type": "llama", "rope_scaling": {"type": "default"}, "partial_rotary_factor": 1}
    assert read(tmp_path, **plain) == DEFAULTS["llama"]


@pytest.mark.parametrize("kind", DEFAULTS)
def test_what_transformers_takes_where_nothing_is_given(tmp_path, kind):
    """Of version 5.23 when this was written."""
    configurations = pytest.importorskip("transformers.models.auto.configuration_auto")
    usual = configurations.CONFIG_MAPPING[kind]().to_dict()
    given = {name: value for name, value in usual.items() if value is not None}
    size = {"hidden_size": 32} if kind.startswith("gemma") else {}
    assert read(tmp_path, model_type=kind, **size) == read(tmp_path, **given | {"model_type": kind} | size)


def test_what_gemma_and_llama_3_scale(tmp_path):
    gemma = {"model_type": "gemma2", "hidden_size": 64, "query_pre_attn_scalar": 16, "final_logit_softcapping": None}
    found = read(tmp_path, **gemma)
    assert (found.embedding_scale, found.query_scale, found.score_cap, found.logit_cap) == (8.0, 0.25, 50.0, None)
    legacy = {"model_type": "gemma3_text", "hidden_size": 64, "rope_theta": 5e5, "rope_local_base_freq": 2e4}
    found = read(tmp_path, **legacy, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert (found.rotary_theta, found.local_theta, found.rotary_factor) == (5e5, 2e4, 8.0)
    assert read(tmp_path, model_type="gemma", hidden_size=64, hidden_act="gelu").activation == "gelu-tanh"
    band = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    found = read(tmp_path, model_type="llama", rope_scaling=band, max_position_embeddings=512)
    assert (found.rotary_low, found.rotary_high, found.rotary_original) == (1.0, 4.0, 512.0)
    with pytest.raises(BadInput, match="high_freq_factor is missing"):
        read(tmp_path, model_type="llama", rope_scaling=band | {"high_freq_factor": None})


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"hidden_act": "relu2"}, "hidden_act: the runtime does not compute hidden_act = 'relu2'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"model_type": "gpt_neox"}, "model_type: the runtime does not train models of type 'gpt_neox'"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before"),
        ({"model_type": None}, "model_type"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path, fields, place):
    with pytest.raises(Unsupported, match=f"config.json: {place}"):
        read(tmp_path, **{"model_type": "llama"} | fields)


@pytest.mark.parametrize(
    "fields",
    [{"rms_norm_eps": 0}, {"rms_norm_eps": 5}, {"rope_theta": -1}, {"hidden_act": 5}, {"rope_scaling": "llama3"}],
)
def test_values_that_are_none(tmp_path, fields):
    with pytest.raises(BadInput, match=f"config.json: {next(iter(fields))}: "):
        read(tmp_path, **{"model_type": "llama"} | fields)


def test_files_that_are_no_configuration(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        read_details(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(Unsupported, match="model_type"):
        read_details(tmp_path / "config.json")
    assert is_config(str(tmp_path))
    assert is_config("some/config.json")
    assert not is_config("tiny-gpt")


def test_what_is_assumed_of_a_catalogue_model():
    llama, gpt = resolve_job("tiny-llama").model, resolve_job("tiny-gpt").model
    assert in_words(Details(), llama) == "activation silu, norm epsilon 1e-05, rotary theta 10000"
    assert in_words(Details(), gpt) == "activation gelu, norm epsilon 1e-05"


def test_catalogue_models_of_known_types_have_all_numbers():
    read = {}
    for name in catalogue.names():
        table = catalogue.configuration(catalogue.load(name).model)
        if table["model_type"] in DEFAULTS and name != "opt-350m":  # whose norms come behind its layers
            read[name] = details_of(table, name)
    assert len(read) > 40
    for name, factor in (("llama-3.1-70b", 8), ("llama-3.2-1b", 32), ("llama-3.2-3b", 32), ("llama-3.3-70b", 8)):
        found = read[name]
        band = (found.rotary_factor, found.rotary_low, found.rotary_high, found.rotary_original)
        assert band == (factor, 1, 4, 8192)
