"""Weights of the Hugging Face hub: every family's logits are those of transformers, whole and over grids."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from compare import worst
from models import BATCH, SEQUENCE
from ranks import grid_of
from safetensors.torch import load_file, save_file

from weft.errors import BadInput, Unsupported
from weft.layout.spec import Layout
from weft.model import Job, Recipe, read_config
from weft.runtime.checkpoints.hub import INDEX, SINGLE, HubWeights, export_hub
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import holdings
from weft.runtime.layers.decoder import read_details
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.pipeline import build_stages
from weft.runtime.run.session import RunSettings, Session

CLOSE = 1e-5
SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES = {
    "llama": {"num_key_value_heads": 8},
    "llama 3": {"rope_parameters": LLAMA_3, "tie_word_embeddings": True},
    "qwen2": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen2 windows": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3": {"head_dim": 12, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 4, "head_dim": 6},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0},
    "gemma3_text": {
        "num_hidden_layers": 3,
        "head_dim": 8,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}


EXPERTS = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "head_dim": 8,
    },
    "qwen3_moe plain": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "head_dim": 8,
        "norm_topk_prob": False,
        "mlp_only_layers": [1],
    },
}


def tokens(vocab=61):
    return torch.randint(vocab, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder of a family as transformers saves it, in two files, and the logits of its model."""
    transformers = pytest.importorskip("transformers")

    @lru_cache
    def make(family):
        folder = tmp_path_factory.mktemp(family.replace(" ", "-"))
        config = transformers.AutoConfig.for_model(family.split()[0], **SHAPE | (FAMILIES | EXPERTS)[family])
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            torch.nn.init.normal_(parameter, float("gemma" not in family and "norm" in name), scale, generator)
        model.save_pretrained(folder, max_shard_size="20KB")
        with torch.no_grad():
            return folder, model(tokens()).logits

    return make


def decoder(machine, folder):
    model = read_config(folder)
    (made,) = build_stages(machine, model, sequence=SEQUENCE, details=read_details(folder))
    whole = HubWeights(folder, model)
    for holding in holdings(made):
        holding.fill(whole)
    return made


def logits_error(grid, folder, want):
    """Of this rank's logits; behind the vocabulary is padding."""
    machine = Machine.of(grid)
    own = BATCH // grid.layout.dp
    index = grid.coordinates["data"] * grid.size("z") + grid.coordinates["z"]
    rows = slice(index * own, (index + 1) * own)
    with torch.no_grad():
        found = decoder(machine, folder)(tokens()[rows])
    start = grid.index("x", "y") * found.shape[1]
    part = want[rows].flatten(0, 1)[:, start : start + found.shape[1]]
    return worst(found[:, : part.shape[1]], part)


@pytest.mark.parametrize("family", [*FAMILIES, *EXPERTS])
def test_logits_are_those_of_transformers(published, family):
    folder, want = published(family)
    assert want.abs().max() > 0.5
    error = logits_error(Grid.of(Layout()), folder, want)
    print(family, error)
    assert error <= CLOSE


def errors(layout, cases):
    return {family: logits_error(grid_of(layout), folder, want) for family, (folder, want) in cases.items()}


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    "layout",
    [Layout(x=2, y=2, z=2), Layout(x=4, data=2, sequence_parallel=True), Layout(y=4, z=2)],
    ids=["x2y2z2", "x4data2-sp", "y4z2"],
)
def test_over_grids(ranks, published, layout):
    cases = {family: published(family) for family in FAMILIES}
    for found in ranks.run(errors, layout, cases):
        assert max(found.values()) <= CLOSE, found


@pytest.mark.parametrize(
    "layout",
    [
        Layout(x=2, z=2, data=2, sequence_parallel=True),
        Layout(z=2, data=4, expert=4),
        Layout(x=2, y=2, data=2, expert=2, expert_tensor=2),
    ],
    ids=["x2z2data2-sp", "z2data4-expert4", "x2y2data2-expert2-cut2"],
)
def test_experts_over_grids(ranks, published, layout):
    cases = {family: published(family) for family in EXPERTS}
    for found in ranks.run(errors, layout, cases):
        assert max(found.values()) <= CLOSE, found


# Runs that begin with them, and what goes out ------------------------------------------------------


def session(grid, folder, **settings):
    """A run that begins with the weights of a folder."""
    job = Job(model=read_config(folder), recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))
    corpus = markov_corpus(61, tokens=2000, seed=0)
    return Session(job, grid, RunSettings(details=read_details(folder), weights=str(folder), **settings), corpus)


def saved(layout, folder, out):
    running = session(grid_of(layout), folder)
    running.step()
    running.save(Path(out) / "step-00000001")


@pytest.fixture
def written(published):
    """Copy a family's folder, with other tensors or formats, into one file; its tensors."""

    def copy(folder, family, *, more=None, less=(), dtype=torch.float32):
        folder.mkdir(exist_ok=True)
        shutil.copy(published(family)[0] / "config.json", folder)
        tensors = {name: one.to(dtype) for name, one in read(published(family)[0]).items() if name not in less}
        write(folder / SINGLE, tensors | (more or {}))
        return tensors

    return copy


def write(path, tensors):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def read(folder):
    return {name: one for path in sorted(folder.glob("*.safetensors")) for name, one in load_file(path).items()}


@pytest.mark.parametrize("family", ["llama 3", "qwen3", "gemma3_text", "qwen2"])
def test_what_comes_in_goes_out(written, tmp_path, family):
    """Of one process, bit by bit; Gemma's gains have been added to 1."""
    tensors = written(tmp_path / "hub", family)
    session(Grid.of(Layout(micro_batch=BATCH)), tmp_path / "hub").save(tmp_path / "run" / "step-00000000")
    export_hub(tmp_path / "run" / "step-00000000", tmp_path / "out", config=tmp_path / "hub", largest_bytes=20_000)
    found = read(tmp_path / "out")
    assert found.keys() == tensors.keys()
    for name, want in tensors.items():
        assert worst(found[name], want) <= (1e-7 if "gemma" in family and "norm" in name else 0), name
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert set(index["weight_map"]) == set(tensors)
    assert len(set(index["weight_map"].values())) > 2
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in tensors.values())
    again = HubWeights(tmp_path / "out", read_config(tmp_path / "out"))
    assert torch.equal(
        again("embedding.weight", (61, 32), (5, 3), (7, 9)), tensors["model.embed_tokens.weight"][5:12, 3:12]
    )


def test_a_grids_model_goes_out_as_one_ranks(ranks, written, tmp_path):
    """After a step from weights in bf16, of which each rank read its part; out in bf16."""
    written(tmp_path / "hub", "gemma2", dtype=torch.bfloat16)
    layout = Layout(x=2, y=2, z=2, micro_batch=BATCH // 2)
    ranks.run(saved, layout, str(tmp_path / "hub"), str(tmp_path / "grid"))
    alone = session(Grid.of(Layout(micro_batch=BATCH)), tmp_path / "hub")
    alone.step()
    alone.save(tmp_path / "one" / "step-00000001")
    for which in ("grid", "one"):
        config = (tmp_path / "hub" / "config.json").read_text()
        (tmp_path / which / "config.json").write_text(config)
        export_hub(tmp_path / which / "step-00000001", tmp_path / f"{which}-out", dtype="fp32")
    found, want = read(tmp_path / "grid-out"), read(tmp_path / "one-out")
    assert found.keys() == want.keys()
    assert max(worst(found[name], want[name]) for name in want) <= 2e-6
    config = json.loads((tmp_path / "grid-out" / "config.json").read_text())
    assert config["architectures"] == ["Gemma2ForCausalLM"]
    assert config["dtype"] == "float32"


def test_transformers_loads_what_goes_out(published, tmp_path):
    transformers = pytest.importorskip("transformers")
    for family in ("llama 3", "gemma3_text", "qwen3", "mixtral", "qwen3_moe"):
        folder, want = published(family)
        run, out = tmp_path / family / "run", tmp_path / family / "out"
        session(Grid.of(Layout(micro_batch=BATCH)), folder).save(run / "step-00000000")
        export_hub(run / "step-00000000", out, config=folder)
        with torch.no_grad():
            found = transformers.AutoModelForCausalLM.from_pretrained(out).eval()(tokens()).logits
        assert worst(found, want) <= CLOSE


def test_a_text_part_within_several_modalities(written, tmp_path):
    tensors = written(tmp_path, "llama")
    table = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": table}))
    renamed = {f"language_model.{name}": one for name, one in tensors.items()}
    write(tmp_path / SINGLE, renamed | {"vision_tower.patch.weight": torch.zeros(2, 2)})
    whole = HubWeights(tmp_path, read_config(tmp_path))
    for name, hub in (("head.weight", "lm_head.weight"), ("embedding.weight", "model.embed_tokens.weight")):
        assert torch.equal(whole(name, (61, 32), (0, 0), (61, 32)), tensors[hub])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"less": ("model.norm.weight",)}, "misses 1 tensor, the first is model.norm.weight"),
        ({"more": {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}}, "holds 1 tensor of no layer"),
        ({"more": {"model.layers.0.mlp.up_proj.weight": torch.zeros(40, 32)}}, "up_proj.weight has the shape"),
        ({"more": {"model.norm.weight": torch.zeros(32, dtype=torch.int8)}}, "its numbers are I8"),
        ({"less": ("model.embed_tokens.weight",)}, "0 tensors end in embed_tokens.weight"),
    ],
)
def test_weights_of_another_model_are_refused(written, tmp_path, change, words):
    written(tmp_path, "llama", **change)
    with pytest.raises(BadInput, match=words):
        session(Grid.of(Layout(micro_batch=BATCH)), tmp_path)


PLACED = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 16, (2).to_bytes(8, "little") + b"[]", len(PLACED).to_bytes(8, "little") + PLACED + bytes(8)],
)
def test_damaged_files_are_refused(written, tmp_path, content):
    written(tmp_path, "llama")
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(BadInput, match="is not a safetensors file"):
        HubWeights(tmp_path, read_config(tmp_path))


def test_folders_that_do_not_fit(written, tmp_path):
    written(tmp_path / "hub", "llama")
    (tmp_path / "hub" / INDEX).write_text(json.dumps({"weight_map": {"model.embed_tokens.weight": "../other"}}))
    with pytest.raises(BadInput, match="is not in its folder"):
        HubWeights(tmp_path / "hub", read_config(tmp_path / "hub"))
    (tmp_path / "hub" / INDEX).unlink()
    session(Grid.of(Layout(micro_batch=BATCH)), tmp_path / "hub").save(tmp_path / "run" / "step-00000000")
    with pytest.raises(BadInput, match=r"there is no config.json"):
        export_hub(tmp_path / "run" / "step-00000000", tmp_path / "out")
    with pytest.raises(BadInput, match=r"the folder is not empty"):
        export_hub(tmp_path / "run" / "step-00000000", tmp_path / "hub", config=tmp_path / "hub")
    written(tmp_path / "other", "qwen3")
    with pytest.raises(BadInput, match=r"is of another model than the config.json"):
        export_hub(tmp_path / "run" / "step-00000000", tmp_path / "out", config=tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(Unsupported, match=r"'gpt2' are not read or written"):
        export_hub(tmp_path / "run" / "step-00000000", tmp_path / "out", config=tmp_path / "other")
