"""One call trains a model of anyone's on any grid as on one process; what cannot be trained is refused by name."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import plain
import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.nn import functional

import weft.runtime
from weft.errors import BadInput, InDoubt, UnknownName, Unsupported
from weft.runtime import AdamSettings, Head, Norm, Normal, Transposed, Vocabulary, Whole, prepare, run_ranks
from weft.runtime.convert.parallelize import GPT2_PLAN, LLAMA_PLAN

STEPS, ROWS, VOCABULARY, ODD_VOCABULARY = 2, 16, 56, 53
EXAMPLES = Path(__file__).parents[3] / "examples"


class Residual(nn.Module):
    """A depthwise and a pointwise convolution beside a residual."""

    def __init__(self, channels):
        super().__init__()
        self.deep = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm, self.point = nn.GroupNorm(4, channels), nn.Conv2d(channels, channels, 1)

    def forward(self, images):
        return images + functional.gelu(self.point(self.norm(self.deep(images))))


def convolutions():
    """Grey images to ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), Residual(16), nn.Conv2d(16, 32, 2, stride=2), nn.Flatten(), nn.Linear(512, 10)
    )


class Biased(nn.Module):
    """Attention with softmax and relative positions of its own, to a regression."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 6, 6))
        self.qkv, self.out, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 1)
        self.norm = nn.LayerNorm(32)

    def forward(self, values, scale):
        queries, keys, mixed = self.qkv(self.norm(values)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        chances = (queries @ keys.mT * scale[:, None, None, None] + self.bias).softmax(-1)
        return self.head(values + self.out((chances @ mixed).transpose(1, 2).flatten(2))).squeeze(-1).mean(-1)


class Feed(nn.Module):
    """A residual layer with dropout that does nothing."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.0)

    def forward(self, hidden):
        return hidden + self.drop(self.down(self.up(hidden).tanh()))


def stack():
    """A language model without attention, whose modules follow each other."""
    table, head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
    return nn.Sequential(table, Feed(), Feed(), Feed(), nn.LayerNorm(16), head)


SIZES = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 16}
LLAMA = SIZES | {"vocab_size": VOCABULARY, "intermediate_size": 24, "num_key_value_heads": 4}
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout")
TIED = dict(LLAMA_PLAN) | {"lm_head": Head(tied="model.embed_tokens")}
HUGGING_FACE = {
    "Llama": (LLAMA, LLAMA_PLAN),
    "Mistral": (LLAMA, LLAMA_PLAN),
    "Qwen2": (LLAMA | {"tie_word_embeddings": True}, TIED),
    "GPT2": (SIZES | {"vocab_size": VOCABULARY}, GPT2_PLAN),
}


def hugging_face(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = import_module("transformers")
        config = getattr(transformers, f"{name}Config")(**HUGGING_FACE[name][0])
        for dropout in DROPOUTS:
            setattr(config, dropout, 0.0)
        kind = f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
        return getattr(transformers, kind)(config)


MAKERS = {
    "language": partial(plain.LlamaForCausalLM, vocab=VOCABULARY),
    "llama": plain.LlamaForCausalLM,
    "qwen2, tied": partial(plain.LlamaForCausalLM, bias=True, tied=True),
    "gpt2": plain.GPT2LMHeadModel,
    "convolutions": convolutions,
    "stack": stack,
    "attention": Biased,
    **{name: partial(hugging_face, name) for name in HUGGING_FACE},
}


def model_of(which):
    torch.manual_seed(0)
    return MAKERS[which]().double()


def loss_of(which):
    losses = {"convolutions": nn.CrossEntropyLoss(label_smoothing=0.1), "attention": nn.MSELoss()}
    return losses.get(which, "mean")


def batch_of(which):
    generator = torch.Generator().manual_seed(1)
    if loss_of(which) == "mean":
        ids = torch.randint(ODD_VOCABULARY, (ROWS, 7), generator=generator)
        targets = ids[:, 1:].clone()
        targets[:5, 2:] = -100  # so that rows count unequally
        return ids[:, :-1] if which == "stack" else {"input_ids": ids[:, :-1]}, targets
    if which == "convolutions":
        images = torch.randn(ROWS, 1, 8, 8, generator=generator, dtype=torch.float64)
        return images, torch.randint(10, (ROWS,), generator=generator)
    values = torch.randn(ROWS, 6, 32, generator=generator, dtype=torch.float64)
    return (values, values[:, 0, 0]), values[:, 1, 1]


def plainly(which):
    """The losses and the state of one process without Weft."""
    model, (inputs, targets), loss = model_of(which), batch_of(which), loss_of(which)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0), []
    for _ in range(STEPS):
        if loss == "mean":
            out = model(inputs) if which == "stack" else model(**inputs)
            logits = getattr(out, "logits", out)
            value = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        else:
            value = loss(model(*inputs) if isinstance(inputs, tuple) else model(inputs), targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, model.state_dict()


ADAM = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.0)


def adopted(layout, plan=None, names=("language", "convolutions", "attention")):
    """Models on a grid are trained as on one process."""
    for which in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InDoubt)
            _, step = prepare(model_of(which), layout, optimizer=ADAM, loss=loss_of(which), plan=plan)
        wanted, state = plainly(which)
        losses = [step(batch_of(which)) for _ in range(STEPS)]
        error = 1e-4 if which in HUGGING_FACE else 1e-10  # norms of transformers are in fp32
        assert losses == pytest.approx(wanted, rel=error / 10), (which, losses, wanted)
        found = step.state_dict()
        assert found.keys() == state.keys()
        for name, values in found.items():
            torch.testing.assert_close(values, state[name], rtol=error, atol=error)


@on_ranks
def test_models_train_as_on_one_process():
    adopted("tp=2,y=2,fsdp=2,mbs=1")


ORDERED = "tp=4,y=2,order=y/x/data/z/context/pipeline"
PLANNED = {"llama": LLAMA_PLAN, "qwen2, tied": TIED, "gpt2": GPT2_PLAN}


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("layout", ["tp=2,y=2,fsdp=2", ORDERED, "y=2,fsdp=2,dp=4,mbs=2", "tp=2,dp=4", "fsdp=8"])
@on_ranks
def test_plans_train_as_one_process_does(layout):
    for which, plan in PLANNED.items():
        adopted(layout, plan, (which,))


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.slow_but(1)
@pytest.mark.parametrize("which", HUGGING_FACE)
@on_ranks
def test_models_of_transformers(which):
    adopted("tp=2,y=2,fsdp=2", HUGGING_FACE[which][1], (which,))


@on_ranks
def test_exact_values_are_gathered():
    """Weights are gathered in 16 bits: values of states are those of the owners, with ZeRO-1 as without."""
    states = []
    for zero in (0, 1):
        model = plain.GPT2LMHeadModel()
        plain.randomize(model)
        _, step = prepare(model, f"tp=4,dp=2,zero={zero}", plan="gpt2", precision="bf16")
        step(batch_of("gpt2"))
        states.append(step.state_dict())
    for name, values in states[0].items():
        assert states[1][name].equal(values), name
    table = states[0]["transformer.wte.weight"]
    assert not torch.equal(table, table.bfloat16().float())


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("tp=2,pp=2,fsdp=2,mbs=1", ("stack", "convolutions")),
        ("pp=2,vpp=2,schedule=zbv,dp=4,mbs=1", ("stack",)),
        ("pp=4,tp=2,recompute=full", ("stack",)),
        ("pp=2,schedule=zb1p,y=2,fsdp=2,mbs=2", ("stack", "convolutions")),
        ("pp=2,vpp=3,schedule=interleaved,dp=4,mbs=1", ("stack",)),
    ],
)
@on_ranks
def test_pipelines_cut_sequences(layout, names):
    adopted(layout, None, names)


@on_ranks
def test_checkpoints_and_states_of_stages(tmp_path):
    folder = tmp_path
    _, step = prepare(model_of("stack"), "pp=2,tp=2,dp=2")
    before = step.state_dict()
    step(batch_of("stack"))
    step.save(f"{folder}/staged")
    wanted = step(batch_of("stack"))
    _, other = prepare(stack().double(), "tp=2,pp=4")
    other.load(f"{folder}/staged")
    assert other(batch_of("stack")) == pytest.approx(wanted, rel=1e-11)
    other.load_state_dict(before)
    assert {*other.state_dict(rank=1)} == ({*before} if dist.get_rank() == 1 else set())
    for name, values in other.state_dict().items():
        assert values.equal(before[name])
    with pytest.raises(BadInput, match=r"state: has the unknown names 9\.weight"):
        other.load_state_dict(before | {"9.weight": torch.ones(1)})
    # What stages draw differs.
    stages, _ = prepare(
        nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)) for _ in range(2))), "pp=2,dp=4"
    )
    dropped = (stages[0](torch.ones(1, 64)) == 0).to(torch.int64)
    both = step.machine.collectives.all_reduce(dropped.clone(), "pipeline").wait()
    assert both.unique().tolist() == [0, 1, 2]


@on_ranks
def test_what_cannot_be_cut_into_stages():
    tied = stack()
    tied[-1].weight = tied[0].weight
    many, still = "pp=2,vpp=4,schedule=interleaved,dp=4", nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    for model, layout, plan, match in (
        (Biased(), "pp=2,dp=4", None, "pp: a Biased cannot be cut into stages -- give an nn.Sequential"),
        (stack(), "pp=2,dp=4", {"5": Head()}, "a plan of roles cannot be cut"),
        (stack(), many, None, "8 stages cannot be cut from 6 modules -- set a smaller pp or vpp"),
        (still, "pp=2,dp=4", None, r"stage 1 \(1\) has no parameters"),
        (tied, "pp=2,dp=4", None, "stages 0 and 1 share a parameter -- untie them"),
    ):
        with pytest.raises((BadInput, Unsupported), match=match):
            prepare(model, layout, plan=plan)
    _, step = prepare(nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4), nn.Linear(4, 4)), "pp=2,dp=4")
    with pytest.raises(BadInput, match="stage 0 does not pass one tensor of floats on"):
        step((torch.ones(16, 4), torch.ones(16, dtype=torch.int64)))


class Images(nn.Module):
    """Every layer has a role; the batch has all channels, and the loss takes all outputs."""

    shape, classes = (8, 3, 3), 12
    plan = {"mix": Normal(), "back": Transposed(), "up": Normal(), "down": Transposed()}

    def __init__(self):
        super().__init__()
        self.mix, self.back = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.up, self.down = nn.Linear(72, 32), nn.Linear(32, 12)

    def forward(self, images):
        return self.down(self.up(self.back(self.mix(images).relu()).flatten(1)).tanh())


class Mixed(nn.Module):
    """A norm and a residual layer that no role cuts, between layers that are."""

    shape, classes = (24,), 3
    plan = {"first": Transposed(), "norm": Whole(), "mix": Whole(), "up": Normal(), "down": Transposed()}
    plan |= {"head": Whole()}

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.mix = nn.Linear(24, 16), nn.LayerNorm(16, bias=False), nn.Linear(16, 16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 3)

    def forward(self, rows):
        hidden = self.first(rows)
        hidden = hidden + self.mix(self.norm(hidden)).sigmoid()
        return self.head(hidden + self.down(self.up(hidden).tanh()))


def with_roles(kind, layout, plan):
    def made():
        torch.manual_seed(0)
        return kind().double()

    rows = torch.randn(ROWS, *kind.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets, wanted = torch.arange(ROWS) % kind.classes, made()
    optimizer = torch.optim.AdamW(wanted.parameters(), lr=1e-2, weight_decay=0.0)
    _, step = prepare(made(), layout, optimizer=ADAM, loss=functional.cross_entropy, plan=plan)
    for _ in range(STEPS):
        loss = functional.cross_entropy(wanted(rows), targets)
        assert step.evaluate((rows, targets)) == pytest.approx(loss.item(), rel=1e-10)
        assert step((rows, targets)) == pytest.approx(loss.item(), rel=1e-10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, values in step.state_dict().items():
        torch.testing.assert_close(values, wanted.state_dict()[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "layout"), [(Images, "tp=4,y=2"), (Images, "tp=2,y=2,fsdp=2,mbs=4"), (Mixed, "tp=2,y=2,dp=2,mbs=4")]
)
@on_ranks
def test_plans_of_roles_take_and_give_all_features(kind, layout):
    with_roles(kind, layout, kind.plan)


@on_ranks
def test_roles_that_do_not_follow_each_other():
    with pytest.raises(BadInput, match="takes features split over y, but those of up are split along dimension 1"):
        with_roles(Images, "tp=2,y=2,dp=2", Images.plan | {"down": Normal()})


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp=2", "y=2,fsdp=2,mbs=2"])
def test_models_on_two_and_four_ranks(layout):
    """Ranks that Weft starts, as for a script of one's own."""
    names = ("convolutions", "attention", "language" if find_spec("transformers") is None else "Llama")
    run_ranks(adopted, (layout, None, names), 2 if layout == "tp=2" else 4)


def built_in(layout):
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    _, step = prepare("tiny-gpt", layout, optimizer=AdamSettings(rate=1e-2), precision="fp64")
    ids = torch.randint(50, (16, step._passes._sequence + 1), generator=torch.Generator().manual_seed(3))
    batch = ids[:, :-1], ids[:, 1:]
    return [step.evaluate(batch), step(batch), step(batch)]


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("layout", ["tp=2,pp=2,dp=2", "cp=2,tp=2,fsdp=2,mbs=2"])
def test_built_in_models(ranks, layout):
    """Every axis of the runtime; the first rank's seed draws the weights."""
    wanted = built_in("tp=1")
    assert wanted[2] < wanted[1] == pytest.approx(wanted[0], rel=1e-12)
    for found in ranks.run(built_in, layout):
        assert found == pytest.approx(wanted, rel=1e-9)


@on_ranks
def test_checkpoints_load_on_other_layouts(tmp_path):
    _, step = prepare(model_of("gpt2"), "tp=2,fsdp=2,dp=4", plan="gpt2", precision="fp64")
    step(batch_of("gpt2"))
    step.save(f"{tmp_path}/saved")
    wanted = step(batch_of("gpt2"))
    _, other = prepare(plain.GPT2LMHeadModel().double(), "y=2,dp=4", plan="gpt2", precision="fp64")
    other.load(f"{tmp_path}/saved")
    assert other.steps == 1
    assert other(batch_of("gpt2")) == pytest.approx(wanted, rel=1e-11)


@on_ranks
def test_ranks_with_different_batches_are_refused():
    _, step = prepare(model_of("attention"), "dp=8", loss=nn.MSELoss())
    (values, scale), targets = batch_of("attention")
    shown = values
    if dist.get_rank() == 5:  # the same rows in another order
        shown = values.flip(0)
    with pytest.raises(BadInput, match="batch: ranks give different batches -- give every rank the same whole batch"):
        step(((shown, scale), targets))
    with pytest.raises(BadInput, match="rows of a batch = 15 cannot be divided"):
        step(((values[:15], scale[:15]), targets[:15]))


@on_ranks
def test_layers_that_cannot_be_divided_stay_whole():
    expected = pytest.warns(InDoubt, match=r"stay whole .*: 0 \(1 inputs and 16 outputs over x=2, y=2\), 1\.deep \(gr")
    with expected if dist.get_rank() == 0 else warnings.catch_warnings():
        model, _ = prepare(model_of("convolutions"), "tp=2,y=2,dp=2", plan={"4": Whole()})
    assert [type(model[number]).__name__ for number in (0, 2, 4)] == ["Conv2d", "Converted", "Linear"]


# One process ---------------------------------------------------------------------------------------


def test_public_names():
    """At most ten beside the call itself."""
    assert weft.runtime.__all__ == [
        *("AdamSettings", "Head", "Heads", "Norm", "Normal", "Positions", "Transposed", "Vocabulary", "Whole"),
        *("prepare", "run_ranks"),
    ]
    with pytest.raises(AttributeError, match="has no attribute 'parallelize'"):
        _ = weft.runtime.parallelize


def test_without_torch_the_extra_is_named():
    code = "import sys; sys.modules['torch'] = None; import weft.runtime"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "weft.runtime needs the extra weft[runtime] -- pip install " in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_examples_print_the_same_losses():
    """Beside PyTorch's parallelize_module and fully_shard."""
    found = []
    for name in ("own_model.py", "own_model_torch.py"):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(EXAMPLES / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(done.stdout.splitlines())
    assert found[0] == found[1]
    assert len(found[0]) == 10
    assert len((EXAMPLES / "own_model.py").read_text().splitlines()) <= 40


def test_optimizers_of_torch():
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    _, step = prepare(model, "tp=1", optimizer=torch.optim.SGD, loss=nn.MSELoss())
    assert isinstance(step.optimizer, torch.optim.SGD)
    step.optimizer.param_groups[0]["lr"] = 0.5
    assert step((torch.ones(2, 4), torch.ones(2, 1))) == 9.0
    assert step.state_dict()["0.weight"].tolist() == [[-2.0] * 4]
    with pytest.raises(Unsupported, match=r"save: checkpoints hold the moments of AdamSettings, not of SGD"):
        step.save("nowhere")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"layout": "tp=2"}, r"tp=2,dp=1 needs 2 ranks, but 1 run -- start them: torchrun --nproc-per-node 2"),
        ({"layout": "width=2"}, "width"),
        ({"loss": "sum"}, "loss = 'sum' -- give \"mean\""),
        ({"loss": nn.MSELoss(reduction="sum")}, r"MSELoss\(\) is not the mean over rows"),
        ({"loss": nn.CrossEntropyLoss(weight=torch.ones(2))}, r"CrossEntropyLoss\(\) is not the mean over rows"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS: updates an element by others of its parameter"),
        ({"optimizer": 0.1}, r"0\.1 is not a class of optimizer -- give AdamSettings"),
        ({"plan": "bert"}, "plan 'bert'"),
        ({"plan": {"5": Whole()}}, "plan: 5: no module of Sequential has this name"),
        ({"plan": {"0": Normal()}}, r"no role for 1 \(LayerNorm\)"),
        ({"plan": {"0": Normal(), "1": Norm()}, "compile": True}, r"compile: without a Head\(\)"),
        ({"model": "tiny-gpt", "plan": "gpt2"}, "a built-in model has its own loss and plan"),
        ({"model": "tiny-giraffe"}, "tiny-giraffe"),
    ],
)
def test_what_is_refused(options, match):
    given = {"model": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "layout": "tp=1"} | options
    with pytest.raises((BadInput, UnknownName, Unsupported), match=match):
        prepare(given.pop("model"), given.pop("layout"), **given)


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        ({"input_ids": torch.ones(2, 4)}, r"batch: is a dict -- give \(inputs, targets\)"),
        ((torch.ones(2, 4), torch.ones(3, dtype=torch.int64)), "its tensors have 2 or 3 rows"),
        ((torch.ones(0, 4), torch.ones(0, dtype=torch.int64)), "its tensors have 0 rows"),
        ((torch.ones(2, 4), torch.ones(2)), "targets are not the ids that a cross-entropy takes"),
        ((torch.ones(2, 4), torch.full((2,), -100)), "every target is -100"),
        ((torch.ones(2, 4), torch.ones(2, 1, dtype=torch.int64)), r"the model gives \(2, 4\) for targets of \(2, 1\)"),
        ((torch.ones(2, 4), torch.full((2,), 1)), None),
        ((torch.full((2, 4), torch.nan), torch.full((2,), 1)), "the loss is nan"),
    ],
)
def test_batches_that_are_refused(batch, match):
    model, step = prepare(nn.Sequential(nn.Linear(4, 4)), "tp=1")
    if match is None:
        assert step(batch) > 0
        return
    before = step.state_dict()["0.weight"].clone()
    with pytest.raises(BadInput, match=match):
        step(batch)
    assert step.state_dict()["0.weight"].equal(before)
    assert isinstance(model, nn.Sequential)


def test_targets_that_a_function_would_leave_out():
    _, step = prepare(nn.Sequential(nn.Linear(4, 4)), "tp=1", loss=functional.cross_entropy)
    with pytest.raises(BadInput, match=r'some targets are -100: .* prepare with loss="mean"'):
        step((torch.ones(2, 4), torch.tensor([1, -100])))


def test_heads_have_the_mean_cross_entropy():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.up, self.down = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 9)

        def forward(self, ids):
            return self.head(self.down(self.up(self.table(ids)).relu()))

    plan = {"table": Vocabulary(), "up": Normal(), "down": Transposed(), "head": Head()}
    with pytest.raises(BadInput, match="a function would see a rank's part of the logits"):
        prepare(Model(), "tp=1", plan=plan, loss=functional.cross_entropy)
