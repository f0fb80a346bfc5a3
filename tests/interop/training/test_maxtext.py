"""MaxText: defaults, the mesh over slices and within them, shapes and names of models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput, Unsupported
from weft.interop import read_run
from weft.interop.training import maxtext
from weft.layout.spec import Layout
from weft.model import catalogue

LLAMA = {
    "decoder_block": "llama2",
    "base_emb_dim": 8192,
    "base_num_query_heads": 64,
    "base_num_kv_heads": 8,
    "base_num_decoder_layers": 80,
    "base_mlp_dim": 28672,
    "head_dim": 128,
    "vocab_size": 128256,
}
MIXTRAL = {
    "decoder_block": "mixtral",
    "base_emb_dim": 4096,
    "base_num_query_heads": 32,
    "base_num_kv_heads": 8,
    "base_num_decoder_layers": 32,
    "base_mlp_dim": 14336,
    "base_moe_mlp_dim": 14336,
    "head_dim": 128,
    "vocab_size": 32000,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
DEEPSEEK = {
    "decoder_block": "deepseek",
    "base_emb_dim": 7168,
    "base_num_query_heads": 128,
    "base_num_kv_heads": 128,
    "base_mlp_dim": 18432,
    "base_moe_mlp_dim": 2048,
    "base_num_decoder_layers": 61,
    "first_num_dense_layers": 3,
    "vocab_size": 129280,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "shared_experts": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
QWEN = {
    "decoder_block": "qwen3_moe",
    "base_emb_dim": 2048,
    "base_mlp_dim": 768,
    "base_moe_mlp_dim": 768,
    "base_num_query_heads": 32,
    "base_num_kv_heads": 4,
    "base_num_decoder_layers": 48,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
GPT_OSS = {
    "decoder_block": "gpt_oss",
    "base_emb_dim": 2880,
    "base_num_query_heads": 64,
    "base_num_kv_heads": 8,
    "head_dim": 64,
    "sliding_window_size": 128,
    "base_mlp_dim": 2880,
    "base_moe_mlp_dim": 2880,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "base_num_decoder_layers": 24,
    "vocab_size": 201088,
}


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (LLAMA, "llama-3-70b"),
        (MIXTRAL, "mixtral-8x7b"),
        (DEEPSEEK, "deepseek-v3"),
        (QWEN, "qwen3-30b-a3b"),
        (GPT_OSS, "gpt-oss-20b"),
    ],
)
def test_shapes_are_those_of_the_catalogue(shape, name):
    found = maxtext.read(shape, world=64).model
    assert (found.vocab, found.tied_embeddings) == (catalogue.load(name).model.vocab, False)
    assert found.parameters == catalogue.load(name).model.parameters
    assert found.active_parameters == catalogue.load(name).model.active_parameters


@pytest.mark.parametrize(
    ("named", "name"), [("llama3.1-405b", "llama-3.1-405b"), ("gpt3-175b", "gpt-3-175b"), ("gemma2-9b", "gemma-2-9b")]
)
def test_models_by_name(named, name):
    assert maxtext.read({"model_name": named}, world=8).model == catalogue.load(name).model


def test_defaults_are_those_of_base_yml():
    run = maxtext.read({}, world=16)
    assert run.layout == Layout(z=16, zero=0, micro_batch=12, recompute="full")
    assert (run.global_batch, run.sequence, run.precision, run.gradient_bytes) == (192, 2048, "bf16", 4)
    assert (run.model, run.problem) == (None, "does not state the model")


def test_a_configuration_file(tmp_path):
    path = tmp_path / "run.yml"
    path.write_text(
        "base_config: base.yml\nmodel_name: mixtral-8x7b   # shape\nper_device_batch_size: 0.5\n"
        "max_target_length: 4_096\nremat_policy: minimal_with_context\nquantization: fp8\n"
        "ici_tensor_parallelism: 4\nici_expert_parallelism: 2\ndcn_data_parallelism: 2\nattention: dot_product\n",
        encoding="utf-8",
    )
    run = read_run(path, world=32)
    assert run.layout == Layout(
        x=4,
        z=4,
        data=2,
        zero=0,
        expert=2,
        expert_tensor=4,
        micro_batch=2,
        recompute="selective",
        sequence_parallel=True,
    )
    assert (run.global_batch, run.sequence, run.precision, run.attention) == (16, 4096, "fp8", "unfused")
    assert run.model == catalogue.load("mixtral-8x7b").model
    assert run.notes == ("the expert axis shards the dense weights and the batch too, as MaxText's rules have it",)


degree = st.sampled_from((1, 2, 4))


@given(
    outer=st.dictionaries(st.sampled_from(("data", "fsdp", "pipeline")), degree),
    inner=st.dictionaries(st.sampled_from(("data", "tensor", "context", "tensor_sequence", "pipeline")), degree),
    fsdp=degree,
    auto=st.booleans(),
)
def test_the_mesh_is_the_product_of_slices_and_what_lies_within(outer, inner, fsdp, auto):
    tables = {f"dcn_{axis}_parallelism": n for axis, n in outer.items()} | {"per_device_batch_size": 64}
    tables |= {f"ici_{axis}_parallelism": n for axis, n in inner.items()}
    tables |= {"ici_fsdp_parallelism": -1 if auto else fsdp}
    world = fsdp
    for n in (*outer.values(), *inner.values()):
        world *= n
    run = maxtext.read(tables, world=world)
    layout = run.layout
    assert layout.world == run.world == world
    assert layout.z == fsdp * outer.get("fsdp", 1)
    assert layout.pipeline == outer.get("pipeline", 1) * inner.get("pipeline", 1)
    assert layout.x == inner.get("tensor", 1) * inner.get("tensor_sequence", 1)
    assert run.global_batch == 64 * world
    if not auto:
        assert maxtext.read(tables).world == world


@pytest.mark.parametrize(
    ("tables", "world", "message"),
    [
        ({}, None, "the number of devices is not in it"),
        ({"ici_fsdp_parallelism": 3}, 16, "do not|does not divide"),
        ({"ici_fsdp_parallelism": 8}, 16, "the ici axes make 8 devices of 16"),
        ({"ici_data_parallelism": -1}, 16, "two axes are -1"),
        ({"dcn_data_parallelism": 3}, 16, "does not divide 16"),
        ({"ici_fsdp_parallelism": "many"}, 16, "not a whole number"),
        ({"per_device_batch_size": 0.3}, 16, "whole micro-batches"),
        ({"per_device_batch_size": "x"}, 16, "not a number"),
        ({"remat_policy": "most"}, 16, "not modelled"),
    ],
)
def test_bad_settings_are_named(tables, world, message):
    with pytest.raises(BadInput, match=message):
        maxtext.read(tables, world=world)


@pytest.mark.parametrize(
    ("given", "rounds"), [({}, 20), ({"num_layers_per_pipeline_stage": 5}, 4), ({"num_pipeline_repeats": 2}, 2)]
)
def test_rounds_of_the_pipeline(given, rounds):
    tables = LLAMA | given | {"ici_pipeline_parallelism": 4, "per_device_batch_size": 2}
    layout = maxtext.read(tables, world=16).layout
    assert (layout.pipeline, layout.z, layout.virtual_stages, layout.schedule) == (4, 4, rounds, "interleaved")
    assert layout.micro_batch == 2
    with pytest.raises(BadInput, match="80 layers do not make whole rounds of 4 stages of 3"):
        maxtext.read(tables | {"num_pipeline_repeats": -1, "num_layers_per_pipeline_stage": 3}, world=16)


def test_what_is_not_modelled_is_named():
    told = maxtext.read({"capacity_factor": 1.0, "weight_dtype": "float32", "opt_type": "muon"}, world=16)
    assert "change time or memory, and are not modelled: capacity_factor, opt_type" in told.notes
    with pytest.raises(Unsupported, match="the axis autoregressive"):
        maxtext.read({"ici_autoregressive_parallelism": 2}, world=16)
    for tables, problem in (
        (LLAMA | {"use_indexer": True}, "use_indexer changes the shape"),
        (LLAMA | {"decoder_block": "envy"}, "decoder_block envy is not read"),
        ({"model_name": "mixtral-8x7b", "base_num_decoder_layers": 8}, "base_num_decoder_layers changes the shape"),
        ({"model_name": "olmo3-7b"}, "model_name olmo3-7b is not in the catalogue"),
    ):
        run = maxtext.read(tables, world=16)
        assert run.model is None
        assert problem in run.problem
        assert any(problem in note for note in run.notes)
