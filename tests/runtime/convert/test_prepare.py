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
from torch import nn
from torch.nn import functional

import weft.runtime
from weft.errors import BadInput, InDoubt, UnknownName, Unsupported
from weft.runtime import AdamSettings, Head, Norm, Normal, Transposed, Vocabulary, Whole, prepare, run_ranks

STEPS, ROWS, VOCABULARY = 3, 16, 56
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


def language():
    return plain.LlamaForCausalLM(vocab=VOCABULARY)


def transformers_language():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = import_module("transformers")
        config = transformers.LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes)
        return transformers.LlamaForCausalLM(config)


def model_of(which):
    torch.manual_seed(0)
    makers = {"language": language, "transformers": transformers_language, "convolutions": convolutions}
    makers["stack"] = stack
    return makers.get(which, Biased)().double()


def loss_of(which):
    losses = {"convolutions": nn.CrossEntropyLoss(label_smoothing=0.1), "attention": nn.MSELoss()}
    return losses.get(which, "mean")


def batch_of(which):
    generator = torch.Generator().manual_seed(1)
    if which in ("language", "transformers", "stack"):
        ids = torch.randint(VOCABULARY, (ROWS, 7), generator=generator)
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
        error = 1e-4 if which == "transformers" else 1e-10  # norms of transformers are in fp32
        assert losses == pytest.approx(wanted, rel=error / 10), (which, losses, wanted)
        found = step.state_dict()
        assert found.keys() == state.keys()
        for name, values in found.items():
            torch.testing.assert_close(values, state[name], rtol=error, atol=error)


def test_models_train_as_on_one_process(ranks):
    ranks.run(adopted, "tp=2,y=2,fsdp=2,mbs=1")


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(
    "layout",
    [
        "tp=2,pp=2,fsdp=2,mbs=1",
        "pp=2,vpp=2,schedule=zbv,dp=4,mbs=1",
        "pp=4,tp=2,recompute=full",
        "pp=2,schedule=zb1p,y=2,fsdp=2,mbs=2",
        "pp=2,vpp=3,schedule=interleaved,dp=4,mbs=1",
    ],
)
def test_pipelines_cut_sequences(ranks, layout):
    names = ("stack", "convolutions") if "vpp" not in layout and "pp=4" not in layout else ("stack",)
    ranks.run(adopted, layout, None, names)


def staged(folder):
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


def test_checkpoints_and_states_of_stages(ranks, tmp_path):
    ranks.run(staged, str(tmp_path))


def refused_stages():
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


def test_what_cannot_be_cut_into_stages(ranks):
    ranks.run(refused_stages)


class Images(nn.Module):
    """Every layer has a role; the batch has all channels, and the loss takes all outputs."""

    def __init__(self):
        super().__init__()
        self.mix, self.back = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.up, self.down = nn.Linear(72, 32), nn.Linear(32, 12)

    def forward(self, images):
        return self.down(self.up(self.back(self.mix(images).relu()).flatten(1)).tanh())


def with_roles(layout, last):
    def made():
        torch.manual_seed(0)
        return Images().double()

    generator = torch.Generator().manual_seed(1)
    images, targets = torch.randn(ROWS, 8, 3, 3, generator=generator, dtype=torch.float64), torch.arange(ROWS) % 12
    plan = {"mix": Normal(), "back": Transposed(), "up": Normal(), "down": last}
    model, plainly_made = made(), made()
    _, step = prepare(model, layout, optimizer=ADAM, loss=functional.cross_entropy, plan=plan)
    optimizer = torch.optim.AdamW(plainly_made.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(STEPS):
        wanted = functional.cross_entropy(plainly_made(images), targets)
        assert step.evaluate((images, targets)) == pytest.approx(wanted.item(), rel=1e-10)
        assert step((images, targets)) == pytest.approx(wanted.item(), rel=1e-10)
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()


@pytest.mark.parametrize("layout", ["tp=4,y=2", "tp=2,y=2,fsdp=2,mbs=4"])
def test_plans_of_roles_take_and_give_all_features(ranks, layout):
    ranks.run(with_roles, layout, Transposed())


class Mixed(nn.Module):
    """A norm and a residual layer that no role cuts, between layers that are."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.mix = nn.Linear(24, 16), nn.LayerNorm(16, bias=False), nn.Linear(16, 16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 3)

    def forward(self, rows):
        hidden = self.first(rows)
        hidden = hidden + self.mix(self.norm(hidden)).sigmoid()
        return self.head(hidden + self.down(self.up(hidden).tanh()))


def mixed(layout):
    def made():
        torch.manual_seed(0)
        return Mixed().double()

    generator = torch.Generator().manual_seed(1)
    rows, targets = torch.randn(ROWS, 24, generator=generator, dtype=torch.float64), torch.arange(ROWS) % 3
    plan = {"first": Transposed(), "norm": Whole(), "mix": Whole(), "up": Normal(), "down": Transposed()}
    wanted = made()
    optimizer = torch.optim.AdamW(wanted.parameters(), lr=1e-2, weight_decay=0.0)
    _, step = prepare(made(), layout, optimizer=ADAM, loss=functional.cross_entropy, plan=plan | {"head": Whole()})
    for _ in range(STEPS):
        loss = functional.cross_entropy(wanted(rows), targets)
        assert step((rows, targets)) == pytest.approx(loss.item(), rel=1e-10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, values in step.state_dict().items():
        torch.testing.assert_close(values, wanted.state_dict()[name], rtol=1e-9, atol=1e-9)


def test_modules_stay_whole_among_roles(ranks):
    ranks.run(mixed, "tp=2,y=2,dp=2,mbs=4")


def refused_roles():
    with pytest.raises(BadInput, match="takes features split over y, but those of up are split along dimension 1"):
        with_roles("tp=2,y=2,dp=2", Normal())


def test_roles_that_do_not_follow_each_other(ranks):
    ranks.run(refused_roles)


def test_plans_by_name(ranks):
    ranks.run(adopted, "tp=2,y=2,dp=2", "llama", ("language",))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp=2", "fsdp=2", "tp=2,dp=2", "y=2,fsdp=2,mbs=2", "tp=4"])
def test_models_on_two_and_four_ranks(layout):
    """Ranks that Weft starts, as for a script of one's own."""
    names = ("convolutions", "attention", "language" if find_spec("transformers") is None else "transformers")
    world = 2 if layout in ("tp=2", "fsdp=2") else 4
    run_ranks(adopted, (layout, None, names), world)


def built_in(layout):
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    _, step = prepare("tiny-gpt", layout, optimizer=AdamSettings(rate=1e-2), precision="fp64")
    ids = torch.randint(50, (32, step._passes._sequence + 1), generator=torch.Generator().manual_seed(3))
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


def saved(folder):
    _, step = prepare(model_of("attention"), "fsdp=4,dp=8", loss=nn.MSELoss())
    step(batch_of("attention"))
    step.save(f"{folder}/saved")
    wanted = step(batch_of("attention"))
    _, other = prepare(Biased().double(), "y=2,dp=4", loss=nn.MSELoss())
    other.load(f"{folder}/saved")
    assert other.steps == 1
    assert other(batch_of("attention")) == pytest.approx(wanted, rel=1e-11)
    assert {*other.state_dict(rank=1)} == ({*model_of("attention").state_dict()} if dist.get_rank() == 1 else set())


def test_checkpoints_load_on_other_layouts(ranks, tmp_path):
    ranks.run(saved, str(tmp_path))


def different_batches():
    _, step = prepare(model_of("attention"), "dp=8", loss=nn.MSELoss())
    (values, scale), targets = batch_of("attention")
    shown = values
    if dist.get_rank() == 5:  # the same rows in another order
        shown = values.flip(0)
    with pytest.raises(BadInput, match="batch: ranks give different batches -- give every rank the same whole batch"):
        step(((shown, scale), targets))
    with pytest.raises(BadInput, match="rows of a batch = 15 cannot be divided"):
        step(((values[:15], scale[:15]), targets[:15]))


def test_ranks_with_different_batches_are_refused(ranks):
    ranks.run(different_batches)


def whole_layers():
    expected = pytest.warns(InDoubt, match=r"stay whole .*: 0 \(1 inputs and 16 outputs over x=2, y=2\), 1\.deep \(gr")
    with expected if dist.get_rank() == 0 else warnings.catch_warnings():
        model, _ = prepare(model_of("convolutions"), "tp=2,y=2,dp=2", plan={"4": Whole()})
    assert [type(model[number]).__name__ for number in (0, 2, 4)] == ["Conv2d", "Converted", "Linear"]


def test_layers_that_cannot_be_divided_stay_whole(ranks):
    ranks.run(whole_layers)


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
