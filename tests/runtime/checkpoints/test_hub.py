"""Weights of the Hugging Face hub: every family's logits are those of transformers, whole and over grids."""

from __future__ import annotations

from functools import lru_cache

import pytest

torch = pytest.importorskip("torch")

from compare import worst  # noqa: E402
from models import BATCH, SEQUENCE  # noqa: E402
from ranks import grid_of  # noqa: E402

from weft.layout.spec import Layout  # noqa: E402
from weft.model import read_config  # noqa: E402
from weft.runtime.checkpoints.hub import HubWeights  # noqa: E402
from weft.runtime.convert.details import read_details  # noqa: E402
from weft.runtime.core.grid import Grid  # noqa: E402
from weft.runtime.core.machine import Machine  # noqa: E402
from weft.runtime.core.parameters import holdings  # noqa: E402
from weft.runtime.layers.decoder import Decoder4D  # noqa: E402

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


def tokens(vocab=61):
    return torch.randint(vocab, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder of a family as transformers saves it, in two files, and the logits of its model."""
    transformers = pytest.importorskip("transformers")

    @lru_cache
    def make(family):
        folder = tmp_path_factory.mktemp(family.replace(" ", "-"))
        config = transformers.AutoConfig.for_model(family.split()[0], **SHAPE | FAMILIES[family])
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
            torch.nn.init.normal_(parameter, float("gemma" not in family and "norm" in name), scale, generator)
        model.save_pretrained(folder, max_shard_size="20KB")
        with torch.no_grad():
            return folder, model(tokens()).logits

    return make


def decoder(machine, folder):
    model = read_config(folder)
    made = Decoder4D(machine, model, sequence=SEQUENCE, details=read_details(folder))
    whole = HubWeights(folder, model)
    for holding in holdings(made):
        holding.fill(whole)
    return made


def logits_error(grid, folder, want):
    """Of this rank's logits; behind the vocabulary is padding."""
    machine = Machine.of(grid)
    own = BATCH // grid.layout.data_parallel
    index = grid.coordinates["data"] * grid.size("z") + grid.coordinates["z"]
    rows = slice(index * own, (index + 1) * own)
    with torch.no_grad():
        found = decoder(machine, folder)(tokens()[rows])
    start = grid.index("x", "y") * found.shape[1]
    part = want[rows].flatten(0, 1)[:, start : start + found.shape[1]]
    return worst(found[:, : part.shape[1]], part)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(published, family):
    folder, want = published(family)
    assert want.abs().max() > 0.5
    error = logits_error(Grid.of(Layout()), folder, want)
    print(family, error)
    assert error <= CLOSE


def errors(layout, cases):
    return {family: logits_error(grid_of(layout), folder, want) for family, (folder, want) in cases.items()}


@pytest.mark.parametrize(
    "layout",
    [Layout(x=2, y=2, z=2), Layout(x=4, data=2, sequence_parallel=True), Layout(y=4, z=2)],
    ids=["x2y2z2", "x4data2-sp", "y4z2"],
)
def test_over_grids(ranks, published, layout):
    cases = {family: published(family) for family in FAMILIES}
    for found in ranks.run(errors, layout, cases):
        assert max(found.values()) <= CLOSE, found
