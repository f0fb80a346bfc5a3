"""Megatron-Bridge and NeMo 2: recipes in their style, YAML overrides, and what is named instead of guessed."""

import pytest

from weft.errors import BadInput, Unsupported
from weft.interop import read_run
from weft.interop.training import bridge
from weft.layout.spec import Layout
from weft.model import catalogue

BRIDGE = '''
import torch
from bridge import AutoBridge, CommOverlapConfig, Config, ConfigContainer, bf16_with_fp8_current_scaling_mixed, steer

LENGTH = 8192


def _common():
    return ConfigContainer(
        model=None,
        train=Config(global_batch_size=32, micro_batch_size=2),
        ddp=Config(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            use_distributed_optimizer=True,
            data_parallel_sharding_strategy="optim_grads_params",
        ),
        dataset=Config(seq_length=4096),
        mixed_precision="bf16_mixed",
    )


def llama31_70b_pretrain_64gpu_config():
    """Seventy billion."""
    cfg = _common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.1-70B").get_model_config()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.recompute_granularity = None
    cfg.model.cuda_graph_impl = "none"
    cfg.dataset.seq_length = LENGTH
    cfg.train.global_batch_size = 256
    cfg.train.micro_batch_size = 1
    cfg.mixed_precision = bf16_with_fp8_current_scaling_mixed()
    cfg.mixed_precision.grad_reduce_in_fp32 = False
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    cfg.optimizer.lr = 1e-4
    return cfg


def mixture():
    cfg = _common()
    cfg.model = AutoBridge.from_hf_pretrained("deepseek-ai/DeepSeek-V2-Lite").to_megatron_provider()
    cfg.model.expert_model_parallel_size = 8
    cfg.model.expert_tensor_parallel_size = 1
    cfg.model.recompute_granularity = "full"
    cfg.model.recompute_method = "uniform"
    cfg.model.recompute_num_layers = 1
    cfg.ddp.use_megatron_fsdp = True
    return cfg


def adapters():
    cfg = _common()
    cfg.peft = Config(rank=8)
    return cfg


def unknown_1gpu():
    cfg = other_recipe()
    cfg.model.pipeline_model_parallel_layout = steer(LENGTH)
    return cfg
'''

NEMO = """
import nemo_run as run
from nemo import lightning as nl
from nemo.models import Llama3Config70B, LlamaModel


def model():
    return run.Config(LlamaModel, config=run.Config(Llama3Config70B))


def trainer(tensor_parallelism=4, num_nodes=4, num_gpus_per_node=8, callbacks=None):
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=tensor_parallelism,
        pipeline_model_parallel_size=4,
        virtual_pipeline_model_parallel_size=5,
        context_parallel_size=2,
        sequence_parallel=True,
        ddp=run.Config(DDP, grad_reduce_in_fp32=True, overlap_grad_reduce=True, overlap_param_gather=True),
    )
    return run.Config(
        nl.Trainer,
        devices=num_gpus_per_node,
        num_nodes=num_nodes,
        plugins=run.Config(nl.MegatronMixedPrecision, precision="bf16-mixed"),
        strategy=strategy,
        callbacks=callbacks,
    )


def pretrain_recipe(name="default", num_nodes=8, fn=None):
    recipe = run.Partial(
        fn,
        model=model(),
        trainer=trainer(num_nodes=num_nodes, callbacks=[run.Config(Timing)]),
        data=run.Config(Mock, seq_length=8192, global_batch_size=512, micro_batch_size=1),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4),
    )
    recipe.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True))
    return recipe
"""


def test_a_bridge_recipe():
    run = bridge.read_recipe(BRIDGE, function="llama31_70b_pretrain_64gpu_config")
    assert run.layout == Layout(
        x=4,
        data=2,
        pipeline=4,
        context=2,
        virtual_stages=5,
        schedule="interleaved",
        sequence_parallel=True,
        overlap_tensor="full",
    )
    assert run.model == catalogue.load("llama-3.1-70b").model
    assert (run.world, run.global_batch, run.sequence) == (64, 256, 8192)
    assert (run.precision, run.gradient_bytes) == ("fp8", 2)
    assert run.ignored == ("optimizer.lr",)
    assert run.notes == ()


def test_experts_and_sharded_data(tmp_path):
    path = tmp_path / "recipes.py"
    path.write_text(BRIDGE, encoding="utf-8")
    run = read_run(f"{path}:mixture", world=16)
    assert run.layout == Layout(z=16, zero=0, expert=8, micro_batch=2, recompute="full")
    assert run.model == catalogue.load("deepseek-v2-lite").model
    assert (run.precision, run.gradient_bytes, run.sequence) == ("bf16", 4, 4096)
    with pytest.raises(BadInput, match="holds 4 recipes: llama31_70b_pretrain_64gpu_config, mixture, adapters"):
        read_run(path, world=16)


def test_what_is_not_in_the_text_is_named():
    run = bridge.read_recipe(BRIDGE, function="unknown_1gpu")
    assert (run.model, run.problem, run.precision) == (None, "does not state the model", None)
    assert run.notes == (
        "what other_recipe() sets is not in the text",
        "the pipeline's layout is not in the text: equal stages are assumed",
        "the precision is not in the text",
    )
    with pytest.raises(Unsupported, match="peft: training of adapters"):
        bridge.read_recipe(BRIDGE, function="adapters", world=8)
    with pytest.raises(BadInput, match="number of accelerators"):
        bridge.read_recipe(BRIDGE, function="mixture")
    strange = BRIDGE.replace("DeepSeek-V2-Lite", "Other-9B")
    assert bridge.read_recipe(strange, function="mixture", world=8).problem.startswith(
        "the model deepseek-ai/Other-9B"
    )
    changed = BRIDGE.replace("cfg.model.expert_tensor_parallel_size = 1", "cfg.model.num_layers = 4")
    assert bridge.read_recipe(changed, function="mixture", world=8).problem.startswith("model.num_layers changes")


def test_a_nemo_recipe():
    run = bridge.read_recipe(NEMO)
    assert (run.tool, run.world) == ("NeMo", 64)
    assert run.layout == Layout(
        x=4,
        data=2,
        pipeline=4,
        context=2,
        virtual_stages=5,
        schedule="interleaved",
        sequence_parallel=True,
        overlap_tensor="full",
    )
    assert run.model == catalogue.load("llama-3-70b").model
    assert (run.global_batch, run.sequence, run.precision, run.gradient_bytes) == (512, 8192, "bf16", 4)


def test_yaml_overrides(tmp_path):
    path = tmp_path / "override.yaml"
    path.write_text(
        "model:\n  tensor_model_parallel_size: 2\n  sequence_parallel: true\n  recompute_modules: [layernorm]\n"
        "  recompute_granularity: selective\ntrain:\n  global_batch_size: 64\n  micro_batch_size: 2\n"
        "ddp:\n  use_distributed_optimizer: true\n  overlap_grad_reduce: true\n"
        "mixed_precision: bf16_with_mxfp8_mixed\n",
        encoding="utf-8",
    )
    run = read_run(path, world=16)
    assert run.layout == Layout(
        x=2, data=8, micro_batch=2, recompute="selective", sequence_parallel=True, overlap_gather=False
    )
    assert (run.tool, run.global_batch, run.precision, run.model) == ("Megatron-Bridge", 64, "mxfp8", None)
    with pytest.raises(BadInput, match="number of accelerators"):
        read_run(path)
