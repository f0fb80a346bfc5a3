"""State-space blocks: their FLOPs against counted algorithms, their shapes against published configurations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from weft.codec import encode
from weft.errors import BadInput, Unsupported
from weft.model import catalogue, read_config
from weft.model.job import Job, Recipe, block_forward_flops, job_from_dict, model_flops
from weft.model.spec import Attention, StateSpace
from weft.validation.runs import Run, shipped_runs

Matrix = npt.NDArray[np.float64]

NANO: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 32,
    "vocab_size": 128,
    "hybrid_override_pattern": "M-M*-",
}


class Counter:
    """Matrix products that count their FLOPs."""

    def __init__(self) -> None:
        self.flops = 0.0

    def __call__(self, a: Matrix, b: Matrix) -> Matrix:
        self.flops += 2.0 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b


def recurrence(q: Matrix, k: Matrix, v: Matrix, decay: Matrix, beta: Matrix | None) -> Matrix:
    """Token by token: the state decays, takes in the token (less what it holds, with ``beta``) and is read."""
    state, found = np.zeros((k.shape[1], v.shape[1])), []
    for t in range(len(q)):
        state = decay[t] * state
        new = v[t] if beta is None else beta[t] * (v[t] - k[t] @ state)
        state = state + np.outer(k[t], new)
        found.append(q[t] @ state)
    return np.array(found)


def chunked(q: Matrix, k: Matrix, v: Matrix, decay: Matrix, beta: Matrix | None, chunk: int, mm: Counter) -> Matrix:
    """The same in chunks, with the matrix products of Dao & Gu (arXiv 2405.21060, section 6) and, for the delta rule,
    of Yang et al. (arXiv 2406.06484, section 3)."""
    state, found = np.zeros((k.shape[1], v.shape[1])), []
    for start in range(0, len(q), chunk):
        at = slice(start, start + chunk)
        sums = np.cumsum(np.log(decay[at]))
        mask = np.tril(np.exp(sums[:, None] - sums[None, :]))
        scores = mm(q[at], k[at].T) * mask
        new = v[at]
        if beta is not None:
            strength = beta[at][:, None]
            triangle = np.tril(strength * mm(k[at], k[at].T) * mask, -1)
            inverse = np.linalg.inv(np.eye(chunk) + triangle)
            mm.flops += chunk**3 / 3.0
            of_keys = mm(inverse, strength * np.exp(sums)[:, None] * k[at])
            new = mm(inverse, strength * v[at]) - mm(of_keys, state)
        found.append(mm(scores, new) + np.exp(sums)[:, None] * mm(q[at], state))
        left = np.exp(sums[-1] - sums)[:, None]
        state = np.exp(sums[-1]) * state + mm((left * k[at]).T, new)
    return np.concatenate(found)


@pytest.mark.parametrize("update", ["sum", "delta"])
def test_flops_are_those_of_the_chunked_algorithm(update: str) -> None:
    tokens, chunk, heads, width, keys = 64, 16, 3, 8, 12
    state = StateSpace(heads=heads, head_dim=width, groups=heads, state=keys, chunk=chunk, update=update)  # type: ignore[arg-type]
    rng, mm = np.random.default_rng(0), Counter()
    for _ in range(heads):
        q, k = rng.normal(size=(2, tokens, keys)) / keys
        v, decay = rng.normal(size=(tokens, width)), rng.uniform(0.8, 1.0, tokens)
        beta = rng.uniform(0.1, 0.9, tokens) if update == "delta" else None
        found = chunked(q, k, v, decay, beta, chunk, mm)
        np.testing.assert_allclose(found, recurrence(q, k, v, decay, beta), rtol=1e-9, atol=1e-12)
    assert tokens * state.token_flops(tokens, causal=False) == pytest.approx(mm.flops, rel=1e-12)


def test_groups_share_the_products_of_keys_and_queries() -> None:
    shared, own = (
        StateSpace(heads=8, head_dim=4, groups=groups, state=16, chunk=32).token_flops(64, causal=False)
        for groups in (2, 8)
    )
    assert own - shared == 6 * 2 * 32 * 16


def test_causal_flops_are_fewer_and_a_short_sequence_is_one_chunk() -> None:
    state = StateSpace(heads=8, head_dim=4, groups=2, state=16, chunk=32)
    assert state.token_flops(64, causal=True) < state.token_flops(64, causal=False)
    assert state.token_flops(8, causal=False) < state.token_flops(32, causal=False)


def test_parameters_of_a_mamba_block_are_those_of_its_tensors() -> None:
    block = read_config(NANO).kinds[0]
    inner, mixed = 8 * 16, 8 * 16 + 2 * 2 * 32
    tensors = {
        "in_proj": 64 * (inner + mixed + 8),
        "conv1d": mixed * 4 + mixed,
        "A_log, D, dt_bias": 3 * 8,
        "norm of the output": inner,
        "out_proj": inner * 64,
        "norm": 64,
    }
    assert block.parameters == sum(tensors.values())


def test_the_pattern_gives_the_blocks() -> None:
    model = read_config(NANO)
    kinds = ["state" if kind.state_space else "attention" if kind.attention else "feed" for kind in model.kinds]
    assert (kinds, model.block_sequence()) == (["state", "feed", "attention"], (0, 1, 0, 2, 1))
    assert all(kind.norms == kind.branches == 1 for kind in model.kinds)
    words = ["mamba", "mlp", "mamba", "attention", "mlp"]
    listed = {key: value for key, value in NANO.items() if key != "hybrid_override_pattern"}
    assert read_config(listed | {"layers_block_type": words}) == model
    assert not any(attention.rotary for attention in model.attentions)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hybrid_override_pattern": "M-X"}, "'X' is not a kind of block"),
        ({"hybrid_override_pattern": ""}, "hybrid_override_pattern is missing"),
        ({"num_hidden_layers": 6}, "6 layers, but the pattern has 5"),
        ({"n_groups": 3}, "8 heads do not share 3 groups"),
        ({"hybrid_override_pattern": "ME"}, "n_routed_experts is missing"),
    ],
)
def test_bad_patterns(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        read_config(NANO | change)


def test_latent_experts_work_on_projected_tokens() -> None:
    experts = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 48, "n_shared_experts": 1}
    config = NANO | experts | {"moe_shared_expert_intermediate_size": 80, "hybrid_override_pattern": "ME"}
    plain, latent = read_config(config).kinds[1], read_config(config | {"moe_latent_size": 24}).kinds[1]
    assert plain.parameters == 64 + 64 * 16 + 16 * 2 * 64 * 48 + 2 * 64 * 80
    assert latent.parameters == 64 + 64 * 16 + 2 * 64 * 24 + 16 * 2 * 24 * 48 + 2 * 64 * 80


def test_prediction_modules_have_their_own_blocks() -> None:
    ahead = NANO | {"num_nextn_predict_layers": 2, "mtp_hybrid_override_pattern": "*-"}
    model, plain = read_config(ahead), read_config(NANO)
    attention, feed = model.prediction_blocks
    assert (attention, feed) == (plain.kinds[2], plain.kinds[1])
    own = attention.parameters + feed.parameters + 2 * 64 * 64 + 3 * 64
    assert model.prediction_parameters == 2 * own
    recipe = Recipe(global_batch=2, sequence=128)
    more = model_flops(model, recipe) - model_flops(plain, recipe)
    blocks = block_forward_flops(attention, recipe) + block_forward_flops(feed, recipe)
    assert more == pytest.approx(6 * (blocks + 2.0 * recipe.tokens * (2 * 64 * 64 + 64 * 128)))
    repeated = read_config(ahead | {"mtp_use_repeated_layer": True})
    assert repeated.prediction_parameters == own
    assert model_flops(repeated, recipe) == model_flops(model, recipe)
    with pytest.raises(BadInput, match="mtp_hybrid_override_pattern is missing"):
        read_config(NANO | {"num_nextn_predict_layers": 1})


@pytest.mark.parametrize("name", ["nemotron-3-super", "qwen3-next-80b-a3b", "minimax-text-01", "llama-4-scout"])
def test_jobs_read_back_equal(name: str) -> None:
    job = Job(model=catalogue.load(name).model, recipe=Recipe(global_batch=8, sequence=4096))
    assert job_from_dict(encode(job)) == job


def test_documents_with_contradicting_blocks_are_refused() -> None:
    document = encode(Job(model=read_config(NANO), recipe=Recipe(global_batch=8, sequence=4096)))
    block = document["model"]["runs"][0]["block"]
    block["state_space"]["groups"] = 3
    with pytest.raises(BadInput, match="8 heads do not share 3 groups"):
        job_from_dict(document)
    block["state_space"] = None
    with pytest.raises(BadInput, match="neither attention nor state space"):
        job_from_dict(document)


@pytest.mark.parametrize("name", ["Nemotron_3_Nano", "Nemotron_3_Super", "Nemotron_3_Ultra"])
def test_flops_are_those_that_nvidia_reports_with_its_runs(name: str) -> None:
    """TFLOP/s and tokens/s stand side by side in the runs; their quotient is FLOPs a token by Megatron's own count.

    It has causal scores, the recurrence as 7 x state x inner, and inner features as twice the hidden ones, which of
    the three Nano's are not.
    """
    run = next(run for run in shipped_runs() if isinstance(run, Run) and run.model == name)
    assert run.tflops_per_gpu
    assert run.tokens_s_gpu
    assert run.seq
    reported = run.tflops_per_gpu * 1e12 / run.tokens_s_gpu
    recipe, model = Recipe(global_batch=1, sequence=run.seq), catalogue.load(name).model
    counted = model_flops(model, recipe, causal=True) / recipe.tokens
    for block in model.runs:
        if state := block.block.state_space:
            width = 2 * model.hidden - state.inner
            counted += 3 * block.count * width * (6.0 * model.hidden + 7.0 * state.state)
    assert counted == pytest.approx(reported, rel=0.015)


def test_qwen3_next_has_attention_in_every_fourth_layer() -> None:
    model = catalogue.load("qwen3-next").model
    assert [block.attention is not None for block in model.kinds] == [False, True]
    assert model.block_sequence() == (0, 0, 0, 1) * 12
    delta, full = model.kinds[0].state_space, model.kinds[1].attention
    assert delta is not None
    assert (delta.update, delta.mixed, delta.projected) == ("delta", 8192, 8192 + 4096 + 64)
    assert isinstance(full, Attention)
    assert full.gated
    assert next(full.linears(2048)).outputs == (2 * 16 + 2 * 2) * 256


def test_minimax_reads_both_kinds_of_attention_and_m2_under_the_same_type() -> None:
    model = catalogue.load("minimax-text-01").model
    assert model.block_sequence() == (0, 0, 0, 0, 0, 0, 0, 1) * 10
    second = {
        "model_type": "minimax",
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 128,
    }
    assert read_config(second).state_spaces
    assert not read_config(second | {"use_qk_norm": True}).state_spaces
    with pytest.raises(Unsupported, match="shared_intermediate_size"):
        read_config(second | {"shared_intermediate_size": 8})
    with pytest.raises(BadInput, match="attn_type_list"):
        read_config(second | {"attn_type_list": [0]})


def test_granite_mixes_mamba_with_attention() -> None:
    granite = catalogue.load("granite-4.0-h-small").model
    assert [bool(granite.kinds[kind].attention) for kind in granite.block_sequence()].count(True) == 4
    assert not any(attention.rotary for attention in granite.attentions)
    assert all(kind.moe and kind.moe.shared for kind in granite.kinds)
    with pytest.raises(Unsupported, match="layer_types"):
        read_config(
            {"model_type": "granitemoehybrid", "hidden_size": 64, "num_hidden_layers": 1, "layer_types": ["?"]}
        )


def test_prediction_modules_of_qwen_have_full_attention() -> None:
    model = catalogue.load("qwen3.5-35b-a3b").model
    (block,) = model.prediction_module
    assert block == model.kinds[1]
    assert model.prediction_layers == 1
