"""Memory against the formulas of arXiv 2205.05198 and arXiv 1910.02054."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.calibration import calibration
from weft.cluster.catalogue import load as load_cluster
from weft.cluster.spec import Cluster
from weft.codec import decode
from weft.estimation import Estimate, estimate
from weft.estimation.costs import block_activations
from weft.estimation.iteration import Estimator
from weft.estimation.result import EstimateTable
from weft.layout.operations import Sizes, block_parameters
from weft.layout.spec import Layout
from weft.layout.step import BLOCKWISE, EAGER, FSDP2, RUNTIME, Software
from weft.layout.table import LayoutTable
from weft.layout.text import parse_layout
from weft.model import Attention, Block, BlockRun, FeedForward, Job, MixtureOfExperts, Model, Recipe, resolve_job
from weft.model.catalogue import load as load_model

UNFUSED = Recipe(global_batch=64, sequence=512, precision="fp16", attention="unfused", dropout=True)
FLASH = replace(UNFUSED, attention="flash", dropout=False, precision="bf16")


def gpt(heads: int, hidden: int) -> Block:
    return Block(
        hidden=hidden,
        attention=Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, rotary=False),
        feed_forward=FeedForward(intermediate=4 * hidden, gated=False),
    )


def model(block: Block, layers: int = 4, *, tied: bool = False, vocab: int = 64) -> Model:
    return Model(
        name="m", hidden=block.hidden, vocab=vocab, runs=(BlockRun(block=block, count=layers),), tied_embeddings=tied
    )


def sizes(layout: Layout, recipe: Recipe) -> Sizes:
    return Sizes.of(LayoutTable.of([layout]), recipe)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([128, 256, 1024]))
def test_unfused_block_keeps_what_the_paper_counts(t: int, b: int, h: int) -> None:
    """Table 2 of arXiv 2205.05198."""
    a, s = 8, UNFUSED.sequence
    sbh = float(s * b * h)
    plain = block_activations(gpt(a, h), UNFUSED, sizes(Layout(x=t, micro_batch=b), UNFUSED))
    assert plain.none[0] == pytest.approx(sbh * (10 + 24 / t + 5 * a * s / (h * t)))
    assert plain.selective[0] == pytest.approx(sbh * (10 + 24 / t))
    assert plain.full[0] == pytest.approx(2 * sbh)
    if t == 1:
        return
    layout = Layout(x=t, micro_batch=b, sequence_parallel=True)
    sharded = block_activations(gpt(a, h), UNFUSED, sizes(layout, UNFUSED))
    assert sharded.none[0] == pytest.approx(sbh / t * (34 + 5 * a * s / h))
    assert sharded.selective[0] == pytest.approx(34 * sbh / t)
    assert sharded.full[0] == pytest.approx(2 * sbh / t)


@pytest.mark.parametrize("context", [2, 4])
@pytest.mark.parametrize(
    ("software", "method", "outputs"), [(FSDP2, "ring", 0), (BLOCKWISE, "ring", 1), (RUNTIME, "ulysses", 1)]
)
def test_context_parallelism_divides_activations(software: Software, method: str, outputs: int, context: int) -> None:
    """Ulysses, and Transformer Engine's ring, keep the core's output twice; recomputation of blocks neither."""
    whole = block_activations(gpt(8, 256), FLASH, sizes(Layout(), FLASH), software)
    layout = Layout(context=context, context_method=method)
    cut = block_activations(gpt(8, 256), FLASH, sizes(layout, FLASH), software)
    again = outputs * 2 * FLASH.sequence * 256
    assert cut.none * context == pytest.approx(whole.none + again)
    assert cut.full * context == pytest.approx(whole.full)
    if not software.by_product:
        assert cut.selective * context == pytest.approx(whole.selective + again)


def test_llama_block_keeps_its_gated_activations() -> None:
    """Per token and at 2 bytes: inputs of 2 norms (2h), of qkv and fc1 (2h), of the projection (h), queries
    (h), keys and values (2 kv d), both halves and the product of the gated layer (3f); log-sum-exp (4a)."""
    block = load_model("llama-3-8b").model.runs[0].block
    h, f, kv, a = 4096, 14336, 8 * 128, 32
    per_token = 2 * (2 * h + 2 * h + h + h + 2 * kv + 3 * f) + 4 * a
    recipe = Recipe(global_batch=1, sequence=8192)
    kept = block_activations(block, recipe, sizes(Layout(), recipe))
    assert kept.none[0] == pytest.approx(per_token * 8192)


def test_what_torchtitan_keeps_of_a_llama_block() -> None:
    """Selective recomputation by operation: the block's input, every second product (wq, wv, w1; w2's is not needed),
    attention's output and log-sum-exp; also at 8 bits."""
    block = load_model("llama-3-8b").model.runs[0].block
    per_token = 2 * (4096 + 4096 + 1024 + 14336 + 4096) + 4 * 32
    for precision in ("bf16", "fp8"):
        recipe = Recipe(global_batch=1, sequence=8192, precision=precision)
        kept = block_activations(block, recipe, sizes(Layout(), recipe), FSDP2)
        assert kept.selective[0] == pytest.approx(per_token * 8192)


def test_what_plain_modules_keep_of_a_llama_block() -> None:
    """Beyond fused ones: norms three copies, one of them in 32 bits; the activation's output; and what sequence
    parallelism gathered, for qkv and the gated layer."""
    block = load_model("llama-3-8b").model.runs[0].block
    recipe = Recipe(global_batch=1, sequence=8192)
    for layout, gathered in ((Layout(x=4), 0.0), (Layout(x=4, sequence_parallel=True), 0.75)):
        fused, plain = (
            block_activations(block, recipe, sizes(layout, recipe), one).none[0] for one in (BLOCKWISE, EAGER)
        )
        own = 0.25 if layout.sequence_parallel else 1.0
        more = 2 * (8 - 2) * 4096 * own + 2 * 14336 / 4 + 2 * 2 * 4096 * gathered
        assert plain - fused == pytest.approx(8192 * more)


def test_selective_recomputation_makes_what_latents_project_up_again() -> None:
    """Queries and keys of 192 features, values of 128, 128 heads each, at 2 bytes (DeepSeek-V3)."""
    block = load_model("deepseek-v3").model.kinds[1]
    recipe = Recipe(global_batch=1, sequence=4096, precision="fp8")
    again, kept = (
        block_activations(block, recipe, sizes(Layout(), recipe), one).selective[0]
        for one in (BLOCKWISE, replace(BLOCKWISE, repeats_latents=False))
    )
    assert kept - again == pytest.approx(4096 * 2 * 128 * (192 + 192 + 128))


@pytest.mark.parametrize(("model", "most_gib"), [("deepseek-v3", 70), ("llama-3.1-405b", 79.3)])
def test_layouts_as_their_authors_ran_them_fit(model: str, most_gib: float) -> None:
    """DeepSeek-V3 (arXiv 2412.19437, section 3): 16 stages of a zero-bubble V, 64 ranks of experts, no tensor
    parallelism.  Llama 3.1 405B (arXiv 2407.21783, table 4): tp 8, 16 stages, dp 128, what is cheap freed early."""
    layouts = {
        "deepseek-v3": "pipeline=16,data=128,expert=64,zero=1,schedule=zbv,virtual_stages=2,recompute=selective",
        "llama-3.1-405b": "x=8,pipeline=16,data=128,zero=1,sequence_parallel=1,recompute=selective",
    }
    cluster, stack = {"deepseek-v3": ("h800-2048", "hai-llm"), "llama-3.1-405b": ("h100-16384", "meta-llama")}[model]
    job = resolve_job(model)
    job = replace(job, recipe=replace(job.recipe, global_batch=job.recipe.global_batch // 128 * 128))
    found = estimate(
        job, load_cluster(cluster), [parse_layout(layouts[model]).complete()], calibration(cluster, stack)
    )
    assert found[0].memory_bytes < most_gib * 2**30


def test_temporaries_of_a_block_s_backward() -> None:
    """Whole: the gradients of both gated inputs, and of the residual stream; cut over x with sequence parallelism:
    the gathered input and its gradient, two of them where the products are not one."""
    block = load_model("llama-3-8b").model.runs[0].block
    recipe = Recipe(global_batch=1, sequence=8192)
    whole = block_activations(block, recipe, sizes(Layout(), recipe)).gradients[0]
    assert whole == pytest.approx(8192 * 2 * (2 * 14336 + 4096))
    cut = Layout(x=8, sequence_parallel=True)
    joined, apart = (
        block_activations(block, recipe, sizes(cut, recipe), one).gradients[0] for one in (BLOCKWISE, FSDP2)
    )
    assert joined == pytest.approx(8192 * 2 * 4096 * (2 + 1 / 8))
    assert apart == pytest.approx(8192 * 2 * 4096 * (3 + 1 / 8))


def test_logits_at_the_loss() -> None:
    """In 16 bits, and as many copies in 32 as the software makes, beside what the head reads and two workspaces; the
    head's backward pass has gradients of its input and weights.  A little block cannot hide them."""
    work, recipe = model(gpt(8, 256), vocab=65536), replace(FLASH, global_batch=8)
    logits = 512 * 65536
    for stack, copies in (("megatron-core", 1), ("torchtitan-2024", 3)):
        constants = replace(calibration("h100", stack), gradient_dummies=0.0)
        buffers = [
            Estimator(Job(model=work, recipe=recipe), load_cluster("h100-8"), one)
            .evaluate(LayoutTable.of([Layout(data=8, zero=0)]))
            .buffers_bytes[0]
            for one in (constants, replace(constants, loss_copies=0.0))
        ]
        stream, workspaces = 512 * 256 * 2, 2 * 32 * 2**20
        assert buffers[0] - workspaces - 2 * stream == pytest.approx(logits * (2 + 4 * copies))
        back = logits * 2 + 2 * (65536 + 1) * 256
        assert buffers[1] - workspaces - 3 * stream == pytest.approx(back, rel=1e-3)


def evaluate(
    work: Model, layouts: list[Layout], recipe: Recipe = FLASH, cluster: Cluster | None = None
) -> EstimateTable:
    made = cluster or load_cluster(f"h100-{layouts[0].world}")
    return Estimator(Job(model=work, recipe=recipe), made).evaluate(LayoutTable.of(layouts))


def states(found: EstimateTable) -> list[tuple[float, float, float]]:
    parts = (found.weights_bytes, found.gradients_bytes, found.optimizer_bytes)
    return [tuple(float(part[i]) for part in parts) for i in range(len(found))]  # type: ignore[misc]


def test_eighteen_bytes_per_parameter_and_zero_stages() -> None:
    """16-bit weights, fp32 gradients, fp32 master weights and two moments; ZeRO-1 divides the last three by
    the replicas, ZeRO-2 the gradients as well (arXiv 1910.02054, figure 1)."""
    work = model(gpt(8, 256))
    psi = float(work.parameters)
    found = evaluate(work, [Layout(data=8, zero=zero) for zero in (0, 1, 2)])
    assert states(found) == [
        pytest.approx((2 * psi, 4 * psi, 12 * psi)),
        pytest.approx((2 * psi, 4 * psi, 12 * psi / 8)),
        pytest.approx((2 * psi, 4 * psi / 8, 12 * psi / 8)),
    ]


def test_fully_sharded_states_are_divided_by_z() -> None:
    work = model(gpt(8, 256))
    psi = float(work.parameters)
    found = evaluate(work, [Layout(z=8), Layout(z=2, data=4, zero=0), Layout(z=2, data=4, zero=1)])
    assert found.gradients_bytes == pytest.approx(4 * psi / np.array([8.0, 2.0, 2.0]))
    assert found.optimizer_bytes == pytest.approx(12 * psi / np.array([8.0, 2.0, 8.0]))


@pytest.mark.parametrize("name", ["gemma-2-2b", "llama-3.2-1b", "gpt2-xl", "llama-3-8b"])
def test_one_rank_holds_every_parameter_once(name: str) -> None:
    """Tied embeddings are one matrix where embedding and head share a stage."""
    work = load_model(name).model
    found = evaluate(work, [Layout(data=8, zero=0)])
    assert found.weights_bytes[0] == pytest.approx(2 * work.parameters, rel=1e-9)


def test_tied_embeddings_are_copied_to_the_last_stage() -> None:
    """Stages of one block: the first holds embedding, the last a copy; both hold V h more than the middle."""
    work = model(gpt(8, 256), tied=True, vocab=65536)
    found = evaluate(work, [Layout(pipeline=4, data=2, zero=0)])
    block = work.runs[0].block.parameters
    assert found.weights_bytes[0] == pytest.approx(2 * (block + 65536 * 256 + 256), rel=1e-3)


def test_tensor_parallelism_divides_all_but_the_norms() -> None:
    block = gpt(8, 256)
    whole = block_parameters(block, sizes(Layout(), FLASH)).dense[0]
    cut = block_parameters(block, sizes(Layout(x=4), FLASH)).dense[0]
    assert cut == pytest.approx((whole - block.vector_parameters) / 4 + block.vector_parameters)
    both = block_parameters(block, sizes(Layout(x=4, y=2), FLASH)).dense[0]
    assert both == pytest.approx((whole - block.vector_parameters) / 8 + block.vector_parameters)


def test_expert_parallelism_divides_experts_only() -> None:
    block = replace(
        gpt(8, 256), feed_forward=MixtureOfExperts(experts=8, top_k=2, expert=FeedForward(intermediate=512))
    )
    work = model(block)
    experts = 4 * 8 * 3 * 256 * 512
    psi = float(work.parameters)
    found = evaluate(work, [Layout(data=8, expert=expert, zero=0) for expert in (1, 2, 8)])
    expected = [2 * (psi - experts + experts / expert) for expert in (1, 2, 8)]
    assert found.weights_bytes == pytest.approx(np.array(expected))
    whole = evaluate(work, [Layout(data=8, expert=expert, zero=1) for expert in (1, 2, 8)])
    assert whole.optimizer_bytes == pytest.approx(np.full(3, 12 * psi / 8))


@pytest.mark.parametrize(
    ("layout", "in_flight"),
    [
        (Layout(pipeline=4), 4.0),
        (Layout(pipeline=4, virtual_stages=2, schedule="interleaved"), 4 + 3 / 2),
        (Layout(pipeline=4, schedule="zb1p"), 4.0),
        (Layout(pipeline=4, virtual_stages=2, schedule="zbv"), 4.0),
        (Layout(pipeline=4, micro_batch=32), 2.0),
    ],
)
def test_first_stage_holds_the_pipelines_micro_batches(layout: Layout, in_flight: float) -> None:
    """1F1B p, interleaved p (1 + (p - 1) / (p v)), zero-bubble p, and never more than there are."""
    work = model(gpt(8, 256), layers=8)
    kept = block_activations(work.runs[0].block, FLASH, sizes(layout, FLASH)).none[0]
    found = evaluate(work, [layout], cluster=load_cluster("h100-4"))
    assert found.activations_bytes[0] == pytest.approx(2 * in_flight * kept)


def test_documents_of_before_have_no_communicators() -> None:
    (found,) = estimate(
        Job(model=model(gpt(8, 256)), recipe=replace(FLASH, global_batch=8)), load_cluster("h100-8"), [Layout(data=8)]
    )
    document = found.to_dict()
    outside = document["memory"].pop("communicators_bytes")
    read = decode(Estimate, document, "plan")
    assert outside > 0
    assert {part.name: part.value for part in read.memory}["communicators_bytes"] == 0
    assert read.allocated_bytes == pytest.approx(found.allocated_bytes + outside)


def test_communicators_of_one_rank_and_of_other_vendors_take_nothing() -> None:
    for cluster, layout in (("h100-1", Layout()), ("tpu-v5p-8", Layout(data=8))):
        found = evaluate(model(gpt(8, 256)), [layout], replace(FLASH, global_batch=8), load_cluster(cluster))
        assert found.communicators_bytes[0] == 0
