"""Plain models that are cut by a plan: on one rank the same values and states; what is refused, by name."""

from __future__ import annotations

import copy
import re

import plain
import pytest
import torch
import torch.distributed as dist
from compare import worst
from ranks import grid_of, on_ranks
from torch import nn
from torch.nn import functional

from weft.errors import BadInput, Unsupported
from weft.layout.spec import Layout
from weft.runtime.convert.parallelize import GPT2_PLAN, LLAMA_PLAN, gather_state_dict, load_state_dict, parallelize
from weft.runtime.convert.roles import Head, Heads, Norm, Normal, Positions, Transposed, Vocabulary
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import holdings
from weft.runtime.measure.trace import on_fake_ranks
from weft.runtime.run.flat import Flat

VOCAB, BATCH, SEQUENCE = 53, 16, 6
TIED = {"lm_head": Head(tied="model.embed_tokens")}
MODELS = {
    "llama": (lambda: plain.LlamaForCausalLM(), LLAMA_PLAN),
    "qwen2, tied": (lambda: plain.LlamaForCausalLM(bias=True, tied=True), LLAMA_PLAN | TIED),
    "gpt2": (lambda: plain.GPT2LMHeadModel(), GPT2_PLAN),
}


def made(which, seed=0, dtype=torch.float64):
    model = MODELS[which][0]().to(dtype)
    plain.randomize(model, seed)
    return model


def batch():
    generator = torch.Generator().manual_seed(5)
    both = torch.randint(VOCAB, (BATCH, SEQUENCE + 1), generator=generator)
    return both[:, :-1], both[:, 1:]


def assert_equal(found, expected, tolerance=0.0):
    """State dictionaries of the same names and values."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert worst(found[name], values) <= tolerance, name


# Eight ranks: what they train is in ``test_prepare`` --------------------------------------------------


def flat_of(model):
    return Flat(model.lm_head.machine, model, holdings(model))


@on_ranks
def test_ranks_with_different_values_or_buffers_are_refused():
    machine = Machine.of(grid_of(Layout(x=2, y=2, z=2)), precision=Precision.of("fp64"))
    model = made("llama")
    if dist.get_rank() == 3:
        with torch.no_grad():
            model.model.norm.weight[0] += 1
    with pytest.raises(BadInput, match=r"different values of model\.norm\.weight --"):
        parallelize(model, machine, LLAMA_PLAN)
    assert type(model.lm_head) is nn.Linear
    model = nn.Sequential(nn.Linear(8, 8))
    model.register_buffer("phases", torch.ones(3, dtype=torch.complex128))
    model.register_buffer("mask", torch.tensor(dist.get_rank() == 2))
    with pytest.raises(BadInput, match="different values of mask --"):
        parallelize(model, machine, {"0": Normal()})


# One rank ------------------------------------------------------------------------------------------


def means(precision="fp64", **degrees):
    """Of one rank; with degrees the first one of a grid that does not run."""
    layout = Layout(**degrees)
    grid = Grid(layout, torch.device("cpu"), None, 0) if degrees else Grid.of(layout)
    return Machine.of(grid, precision=Precision.of(precision))


def one_rank(model, plan, **degrees):
    return parallelize(model, means(**degrees), plan)


@pytest.mark.parametrize("which", MODELS)
def test_one_rank_computes_what_the_plain_model_does(which):
    model, ids = made(which), batch()[0]
    expected = model(ids)
    assert parallelize(model, means(), MODELS[which][1]) is model
    torch.testing.assert_close(model(input_ids=ids), expected, rtol=1e-12, atol=1e-12)
    names = {holding.name for holding in holdings(model)}
    assert names == {name for name, _ in made(which).named_parameters()}


def test_ids_and_rows_of_any_dimensions():
    model = one_rank(made("gpt2"), GPT2_PLAN)
    embedded = model.transformer.wte(torch.tensor([[[1, 2]], [[3, 4]]]))
    assert embedded.shape == (2, 1, 2, 16)
    assert model.transformer.h[0].attn.c_attn(embedded).shape == (2, 1, 2, 48)
    assert model.transformer.ln_f(embedded[0, 0, 0]).shape == (16,)
    assert model.lm_head(input=embedded).shape == (2, 1, 2, VOCAB)


@pytest.mark.parametrize("name", ["wte", "wpe"])
def test_rows_of_padding(name):
    """Of tokens and of positions: looked up, but not trained."""
    model = made("gpt2")
    getattr(model.transformer, name).padding_idx = 2
    model = one_rank(model, GPT2_PLAN)
    with torch.no_grad():
        found = getattr(model.transformer, name)(torch.tensor([2]))
    assert worst(found[0], made("gpt2").state_dict()[f"transformer.{name}.weight"][2]) == 0.0
    getattr(model.transformer, name)(torch.tensor([1, 2])).sum().backward()
    table = getattr(model.transformer, name).layer.table
    (gradient,) = (one.grad.view(-1, 16) for one in table.parameters())
    assert gradient[1].eq(1).all()
    assert gradient[2].eq(0).all()


def test_torch_norms_and_fused_parts():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(9, 8), nn.RMSNorm(8, eps=1e-3)
            self.up, self.down = nn.Linear(8, 24, bias=False), nn.Linear(12, 8, bias=False)

        def forward(self, ids):
            gate, value = self.up(self.norm(self.table(ids))).chunk(2, dim=-1)
            return self.down(functional.silu(gate) * value)

    for parts in (2, (12, 12)):
        model, ids = Gated().double(), torch.arange(9)
        expected = model(ids)
        plan = {"table": Vocabulary(), "norm": Norm(), "up": Normal(parts=parts), "down": Transposed()}
        torch.testing.assert_close(one_rank(model, plan)(ids), expected, rtol=1e-12, atol=1e-12)
        halves = one_rank(Gated(), plan, x=2, y=2).up.layer.weight.placement.rows
        assert halves == ((0, 6), (12, 18))


def test_heads_are_divided():
    attention = one_rank(made("gpt2"), GPT2_PLAN, x=2).transformer.h[1].attn
    assert (attention.num_heads, attention.split_size, attention.head_dim) == (2, 8, 4)


def test_meta_parameters_are_nan_until_they_are_loaded():
    with torch.device("meta"):
        model = plain.LlamaForCausalLM()
    rotary = plain.LlamaRotaryEmbedding(4)
    with pytest.raises(BadInput, match=r"rotary_emb\.inv_freq: is a buffer on the meta device"):
        one_rank(model, LLAMA_PLAN)
    model.model.rotary_emb = rotary
    one_rank(model, LLAMA_PLAN)
    assert model(batch()[0]).isnan().all()
    load_state_dict(model, made("llama").state_dict())
    torch.testing.assert_close(model(batch()[0]), made("llama")(batch()[0]))


def test_shapes_alone_on_the_meta_device():
    with torch.device("meta"):
        model = plain.GPT2LMHeadModel()
    machine = Machine.of(Grid(Layout(x=2, y=2), torch.device("meta"), None, 1))
    held = holdings(parallelize(model, machine, GPT2_PLAN))
    assert all(holding.parameter.is_meta for holding in held)
    assert sum(holding.parameter.numel() for holding in held if "c_attn.weight" in holding.name) == 2 * 48 * 4


def test_a_matrix_used_twice_is_told():
    """Where the grid sums its gradients; alone autograd does."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, rows):
            return self.down(self.up(self.down(self.up(rows))))

    twice, rows = Twice().double(), torch.ones(3, 8, dtype=torch.float64)
    wanted = torch.autograd.grad(twice(rows).sum(), twice.up.weight)[0]
    plan = {"up": Normal(), "down": Transposed()}
    machine = means()
    model = parallelize(copy.deepcopy(twice), machine, plan)
    flat = Flat(machine, model, holdings(model))
    with flat.step(micro_batches=1, loss="sum"):
        model(rows).sum().backward()
    gradient = next(holding.parameter.grad for holding in flat.holdings if holding.name == "up.weight")
    assert torch.allclose(gradient.view(8, 8), wanted)
    with on_fake_ranks(Layout(x=2), 0, "cpu") as grid:
        machine = Machine.of(grid, precision=Precision.of("fp64"))
        model = parallelize(twice, machine, plan)
        flat = Flat(machine, model, holdings(model))
        with pytest.raises(BadInput, match="more gradients"), flat.step(micro_batches=1, loss="sum"):
            model(rows).sum().backward()


# Plans that are refused ----------------------------------------------------------------------------


def refused(model, plan, match, error=BadInput, **degrees):
    """The message, in one line; the model is as before."""
    before = [(name, type(module)) for name, module in model.named_modules()]
    with pytest.raises(error, match=match) as caught:
        one_rank(model, plan, **degrees)
    assert "\n" not in str(caught.value)
    assert [(name, type(module)) for name, module in model.named_modules()] == before
    return str(caught.value)


def without(plan, *names):
    return {name: role for name, role in plan.items() if name not in names}


def test_uncovered_modules_are_named():
    plan = without(LLAMA_PLAN, "model.norm", "model.layers.*.mlp.up_proj")
    message = refused(made("llama"), plan, "no role for ")
    assert "model.layers.*.mlp.up_proj (2 Linear)" in message
    assert "model.norm (RMSNorm)" in message
    plan = without(LLAMA_PLAN, "model.layers.*.mlp.up_proj") | {"model.layers.0.mlp.up_proj": Normal()}
    assert "*" not in refused(made("llama"), plan, r"no role for model\.layers\.1\.mlp\.up_proj \(Linear\) --")


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"model.layers.*.mlp.gate": Normal()}, r"plan: model\.layers\.\*\.mlp\.gate: no module"),
        ({"model.layers": Heads("num_heads"), "layers.*": Normal()}, "plan: layers"),
        ({"model.*.0.mlp.up_proj": Normal()}, r"model\.layers\.0\.mlp\.up_proj has two roles"),
        ({"lm_head": Norm()}, r"lm_head: is of class Linear, which Norm\(\) does not convert"),
        ({"lm_head": Positions()}, r"lm_head: is of class Linear, which Positions\(\) does not"),
        ({"model.embed_tokens": Head()}, r"embed_tokens: is of class Embedding, which Head\(\) does not"),
        ({"model.norm": Transposed()}, r"model\.norm: is of class RMSNorm, which Transposed\(\)"),
        ({"lm_head": Head}, "is not a role"),
        ({"model.layers.*.self_attn": Heads("num_heads")}, "no integer attribute 'num_heads'"),
        ({"model.layers.*.self_attn": Heads("attention_dropout")}, "no integer attribute 'attention_dropout'"),
        ({"model.layers.*.self_attn.q_proj": Normal(unit="width")}, "self_attn: has no integer attribute 'width'"),
        ({"lm_head": Head(tied="model.embed_tokens")}, "not the same parameter"),
        ({"lm_head": Normal(parts=3)}, "parts of 53 outputs: 53 / 3 is not whole"),
        ({"lm_head": Normal(parts=(50, 2))}, r"parts \(50, 2\) do not add up to 53"),
    ],
)
def test_plans_that_do_not_fit(more, match):
    refused(made("llama"), dict(LLAMA_PLAN) | more, match)


@pytest.mark.parametrize(
    ("degrees", "match"),
    [
        ({"x": 8}, r"self_attn\.k_proj: units of head_dim=4 in 16 outputs = 4 cannot be divided over x=8"),
        ({"x": 3}, "units of head_dim=4 in 32 outputs = 8 cannot be divided over x=3"),
        ({"y": 3}, "embed_tokens: hidden features = 16 cannot be divided over y=3"),
        ({"x": 2, "sequence_parallel": True}, "cannot have sequence_parallel"),
        ({"recompute": "full", "recompute_layers": 3}, "3 blocks are to be recomputed, the model has 2 in lists"),
        ({"zero": 2}, "cannot have zero = 2"),
        ({"offload_optimizer": True}, "cannot have offloading"),
    ],
)
def test_layouts_that_do_not_fit(degrees, match):
    refused(made("llama"), LLAMA_PLAN, match, **degrees)


def test_heads_that_cannot_be_divided():
    plan = dict(GPT2_PLAN) | {"transformer.h.*.attn": Heads("num_heads", "head_dim")}
    model = plain.GPT2LMHeadModel(hidden=24, heads=8).double()
    refused(model, plan, r"transformer\.h\.0\.attn\.head_dim = 3 cannot be divided over x=2", x=2)


# Models that are refused ---------------------------------------------------------------------------


class Doubled(nn.Linear):
    def forward(self, rows):
        return 2 * super().forward(rows)


class Conv1D(plain.Conv1D):
    def forward(self, rows):
        return functional.linear(rows, self.weight, self.bias)


class Quantized(nn.Parameter):
    pass


def parameter(*shape):
    return nn.Parameter(torch.ones(shape))


def forward_of_its_own(module):
    forward = module.forward
    module.forward = lambda rows: forward(rows) * 2


HOOKS = ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
HOOKED = r"model\.layers\.1\.mlp: has a (forward|backward)( pre)? hook"
SHARED = r"model\.layers\.0\.mlp\.down_proj\.weight, model\.layers\.1"
UNROLED = [
    ("llama", lambda m: setattr(m, "scale", parameter()), r"no role for the model itself \(LlamaForCausalLM\)"),
    ("gpt2", lambda m: setattr(m.transformer.h[0].attn, "sinks", parameter(4)), r"no role for transformer\.h\.0\.att"),
    (
        "llama",
        lambda m: nn.utils.parametrizations.weight_norm(m.model.layers[0].mlp.up_proj),
        r"no role for .*up_proj\.parametrizations\.weight",
    ),
    ("llama", lambda m: setattr(m, "lm_head", Doubled(16, VOCAB, bias=False)), "lm_head: is of class Doubled"),
    ("llama", lambda m: setattr(m.model, "mix", nn.Conv1d(16, 16, 1)), r"no role for model\.mix \(Conv1d\)"),
    ("gpt2", lambda m: setattr(m.transformer, "ln_f", nn.BatchNorm1d(16)), "ln_f: is of class BatchNorm1d"),
]
CHANGED = [
    *(("llama", lambda m, at=at: getattr(m.model.layers[1].mlp, f"register_{at}")(print), HOOKED) for at in HOOKS),
    ("llama", lambda m: m.lm_head.weight.register_hook(print), r"lm_head\.weight: has a hook"),
    ("llama", lambda m: m.lm_head.weight.register_post_accumulate_grad_hook(print), r"lm_head\.weight: has a hook"),
    ("llama", lambda m: setattr(m.model.layers[1], "mlp", m.model.layers[0].mlp), SHARED),
    ("llama", lambda m: setattr(m.lm_head, "mask", nn.Buffer(torch.ones(3))), "lm_head: holds mask"),
    ("llama", lambda m: setattr(m.lm_head, "more", parameter(3)), "lm_head: has the parameters more, weight, not"),
    ("llama", lambda m: forward_of_its_own(m.lm_head), "lm_head: its instance has another forward"),
    ("llama", lambda m: setattr(m.model.embed_tokens, "max_norm", 2.0), "embed_tokens: has max_norm = 2"),
    ("llama", lambda m: setattr(m.model.embed_tokens, "sparse", True), "embed_tokens: has sparse on"),
    ("llama", lambda m: m.model.norm.weight.requires_grad_(False), r"model\.norm\.weight: is frozen"),
    ("llama", lambda m: setattr(m.model.norm.weight, "grad", torch.ones(16).double()), "weight: has a gradient"),
    ("llama", lambda m: setattr(m.lm_head, "weight", Quantized(m.lm_head.weight.detach())), "is of class Quantized"),
    ("gpt2", lambda m: setattr(m.transformer.h[1].attn, "c_proj", Conv1D(16, 16)), r"c_proj: \(Conv1D\) does not"),
    *(
        ("gpt2", lambda m, norm=norm: setattr(m.transformer, "ln_f", norm), f"ln_f: {match}")
        for norm, match in (
            (nn.LayerNorm(16, elementwise_affine=False), "is a LayerNorm without weight"),
            (nn.LayerNorm(16, bias=False), "is a LayerNorm without bias"),
            (nn.LayerNorm((2, 8)), "is over 2 dimensions"),
            (nn.RMSNorm(16), "takes its epsilon from the number format"),
        )
    ),
]


@pytest.mark.parametrize(
    ("which", "change", "match", "error"),
    [*((*case, BadInput) for case in UNROLED), *((*case, Unsupported) for case in CHANGED)],
)
def test_models_that_would_not_be_the_same_are_refused(which, change, match, error):
    model = made(which)
    change(model)
    refused(model.double(), MODELS[which][1], match, error)


def test_ties_are_of_a_plan():
    tie = r"lm_head\.weight, model\.embed_tokens\.weight are one parameter"
    refused(made("qwen2, tied"), LLAMA_PLAN, tie, Unsupported)
    plan = dict(LLAMA_PLAN) | TIED | {"model.embed_tokens": Positions()}
    refused(made("qwen2, tied"), plan, r"lm_head: tied to .*which is no Vocabulary\(\)", Unsupported)


def test_formats_at_rest_are_those_of_the_run():
    with pytest.raises(Unsupported, match="is float64, parameters at rest are float32"):
        parallelize(made("llama"), means("bf16"), LLAMA_PLAN)


def test_norms_that_only_look_like_rms():
    class Shifted(plain.RMSNorm):
        """Gemma's: the gain is 1 + weight."""

        def forward(self, rows):
            return super().forward(rows) / self.weight * (1 + self.weight)

    class Outside(plain.RMSNorm):
        """Epsilon beside the root."""

        def forward(self, rows):
            return self.weight * rows / (rows.square().mean(-1, keepdim=True).sqrt() + self.variance_epsilon)

    for kind in (Shifted, Outside):
        model = made("llama")
        model.model.norm = kind(16, eps=1e-4).double()
        refused(model, LLAMA_PLAN, rf"model\.norm: \({kind.__name__}\) does not compute RMSNorm", Unsupported)


def test_norms_of_heads():
    model = made("llama")
    for layer in model.model.layers:
        layer.self_attn.q_norm = plain.RMSNorm(4).double()
    plan = dict(LLAMA_PLAN) | {"model.layers.*.self_attn.q_norm": Norm()}
    refused(model, plan, r"q_norm: is over 4 features, but those split over y are 16 or 24 wide|are 16 wide")


def test_a_single_layer():
    refused(nn.Linear(4, 4).double(), {"": Normal()}, "the model itself: a single Linear", Unsupported)


# State dictionaries that are refused ----------------------------------------------------------------


def test_torchs_state_dictionaries_are_refused():
    model = one_rank(made("llama"), LLAMA_PLAN)
    with pytest.raises(Unsupported, match=r"state_dict\(\) of the step"):
        model.state_dict()
    with pytest.raises(Unsupported, match=r"load_state_dict\(\) of the step"):
        model.load_state_dict(made("llama").state_dict(), strict=False)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda state: state.pop("model.norm.weight"), r"lacks model\.norm\.weight --"),
        (lambda state: state.clear(), r"lacks lm_head\.weight, .* and \d+ more --"),
        (lambda state: state.update(head=torch.ones(1)), "has the unknown names head"),
        (
            lambda state: state.update({"model.norm.weight": torch.ones(8)}),
            r"state: model\.norm\.weight: has the shape \(8,\), but the whole is \(16,\)",
        ),
        (lambda state: state.update({"model.norm.weight": torch.ones(16, device="meta")}), "is on the meta device"),
        (
            lambda state: state.update({"model.norm.weight": torch.ones(16, dtype=torch.complex128)}),
            "is complex128, but float64 here",
        ),
        (lambda state: state.update({"model.norm.weight": [1.0] * 16}), "is a list, no plain tensor"),
    ],
)
def test_states_that_do_not_fit(change, match):
    model = one_rank(made("llama"), LLAMA_PLAN)
    state = made("llama", seed=1).state_dict()
    change(state)
    with pytest.raises(BadInput, match=match):
        load_state_dict(model, state)
    assert_equal(gather_state_dict(model, flat_of(model)), made("llama").state_dict())


def test_tied_names():
    model = one_rank(made("qwen2, tied"), LLAMA_PLAN | TIED)
    flat, other = flat_of(model), made("qwen2, tied", seed=1).state_dict()
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        load_state_dict(model, without(other, name))
        assert_equal(gather_state_dict(model, flat), other)
    with pytest.raises(BadInput, match=r"lm_head\.weight: differs from model\.embed_tokens\.weight"):
        load_state_dict(model, other | {"lm_head.weight": other["lm_head.weight"] + 1})


def test_the_model_that_was_parallelized_is_asked_for():
    with pytest.raises(BadInput, match="has not been parallelized"):
        load_state_dict(made("llama"), {})
    model = one_rank(made("llama"), LLAMA_PLAN)
    with pytest.raises(BadInput, match=r"embed_tokens was model\.embed_tokens when it was parallelized"):
        load_state_dict(model.model, {})


def test_features_that_are_no_share():
    model = one_rank(made("llama"), LLAMA_PLAN)
    with pytest.raises(BadInput, match=re.escape("model.norm: got 8 features, but a rank's share is 16")):
        model.model.norm(torch.ones(2, 8, dtype=torch.float64))
