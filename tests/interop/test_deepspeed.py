"""DeepSpeed: setting names, round trips, and configurations as people write them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.interop.layouts import layouts

import weft
from weft.errors import BadInput
from weft.interop import deepspeed
from weft.layout.spec import ContextMethod, Layout
from weft.model.settings import flatten

NAMES = frozenset(Path(__file__).with_name("deepspeed_settings.txt").read_text(encoding="ascii").split())
"""Names in DeepSpeed (commit edaa7221): docs/_pages/config-json.md, runtime/config.py and zero/config.py."""

LAYOUTS = layouts(
    x=(1, 1, 2, 8),
    pipeline=(1, 1, 2, 4),
    context=(1, 1, 2),
    context_method=tuple(ContextMethod),
    sequence_parallel=(False,),
)


def canonical(layout):
    """The layout without switches that have no effect, or that DeepSpeed decides itself."""
    stage = 3 if layout.z > 1 else layout.zero
    return replace(
        layout,
        zero=0 if layout.z > 1 else layout.zero,
        context_method="ulysses" if layout.context > 1 else "ring",
        overlap_tensor="backward" if layout.x > 1 and layout.overlap_tensor != "none" else "none",
        overlap_reduce=layout.overlap_reduce and stage > 0,
        overlap_gather=layout.overlap_reduce and stage == 3,
    )


@settings(max_examples=100)
@given(layout=LAYOUTS, precision=st.sampled_from(("bf16", "fp16", "fp32")))
def test_written_configuration_reads_back_as_the_same_layout(layout, precision, cluster, job_for, expressed):
    job = job_for(layout, precision=precision)
    written = expressed(deepspeed.write, job, cluster, layout)
    if not written:
        return
    values = json.loads(written.text)
    assert set(flatten(values)) <= NAMES
    share = values["train_micro_batch_size_per_gpu"] * values["gradient_accumulation_steps"]
    assert values["train_batch_size"] == share * layout.dp
    for world in (None, layout.world):
        run = deepspeed.read(written.text, world=world)
        assert run.layout == canonical(layout)
        assert (run.world, run.global_batch, run.precision) == (layout.world, job.recipe.global_batch, precision)


def test_experts_need_ranks_of_their_own(cluster, job_for):
    layout = Layout(data=8, zero=1, expert=4)
    written = deepspeed.write(job_for(layout, "deepseek-v2-lite"), cluster, layout)
    assert deepspeed.read(written.text).layout.expert == 4
    assert written.command.startswith("deepspeed --num_nodes 1 --num_gpus 8 ")


def test_stage_3_with_automatic_batch_sizes():
    """As the Hugging Face trainer's users write it."""
    text = json.dumps(
        {
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}, "reduce_bucket_size": "auto"},
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": 1,
        }
    )
    run = deepspeed.read(text, world=16)
    assert (run.layout.z, run.layout.data, run.layout.offload_optimizer) == (16, 1, True)
    assert (run.precision, run.layout.micro_batch, run.global_batch) == ("fp16", 4, 64)
    assert run.ignored == ("zero_optimization.reduce_bucket_size",)
    for steps in ("auto", 1):  # DeepSpeed derives the steps from the ranks
        stated = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": steps} if steps == "auto" else {}
        with pytest.raises(BadInput, match="number of accelerators"):
            deepspeed.read(json.dumps(json.loads(text) | stated))


def test_what_auto_leaves_to_the_script_is_named(tmp_path):
    """The file that Hugging Face's trainer fills in, beside a model's config.json."""
    text = {
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 3},
        "data_types": {"grad_accum_dtype": "bf16"},
    }
    run = deepspeed.read(json.dumps(text), world=8)
    assert (run.precision, run.gradient_bytes, run.global_batch) == (None, 2, 16)
    assert run.notes[1] == "left to the training script (auto): train_micro_batch_size_per_gpu, bf16.enabled"
    (tmp_path / "ds.json").write_text(json.dumps(text), encoding="utf-8")
    shape = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    shape |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    (tmp_path / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    found = weft.estimate(tmp_path / "config.json", "h100-8", run=str(tmp_path / "ds.json"), batch=32, sequence=4096)
    assert (found.layout.z, found.job.recipe.global_batch, found.job.recipe.gradient_bytes) == (8, 32, 2)
    with pytest.raises(BadInput, match=r"does not state the model.*name the model"):
        weft.estimate(None, "h100-8", run=str(tmp_path / "ds.json"))
