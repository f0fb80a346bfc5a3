from __future__ import annotations

import contextlib
import time

import pytest

from weft.errors import BadInput, Unsupported
from weft.model import catalogue
from weft.model.megatron_args import parse_arguments, read_megatron_args, read_megatron_job
from weft.model.spec import Attention, Model

GPT_175B = """
#!/bin/bash
# The 175B model   --num-layers 7
TP=8
MBS=${MBS:-1}
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288      # --hidden-size 1
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
)
TRAINING_ARGS=(
    --micro-batch-size $MBS
    --global-batch-size 1536
    --adam-beta1 0.9
    --init-method-std=0.006
    --fp16
)
PARALLEL="--tensor-model-parallel-size ${TP} \\
  --pipeline-model-parallel-size 16"
DATA_ARGS="
    --vocab-file $VOCAB_FILE
    --merge-file $MERGE_FILE
    --split 949,50,1
"
torchrun ${GPT_MODEL_ARGS[@]} pretrain_gpt.py --use-flash-attn \\
  ${TRAINING_ARGS[@]} $PARALLEL ${DATA_ARGS}
"""

MIXTRAL = """--use-mcore-models --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --normalization RMSNorm
  --position-embedding-type rope --swiglu --untie-embeddings-and-output-weights --group-query-attention
  --num-query-groups 8 --no-position-embedding --num-experts 8 --moe-router-topk 2 --vocab-size 32000
"""

DEEPSEEK = """--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
  --kv-channels 128 --position-embedding-type rope --make-vocab-size-divisible-by 3232
  --normalization RMSNorm --swiglu
  --untie-embeddings-and-output-weights --multi-latent-attention --qk-layernorm --num-experts 256
  --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
  --moe-router-topk 8 --moe-router-enable-expert-bias --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128
  --qk-pos-emb-head-dim 64 --v-head-dim 128 --mtp-num-layers 1 --disable-bias-linear
"""

GPT_OSS = """--num-layers 24 --hidden-size 2880 --num-attention-heads 64 --group-query-attention
  --num-query-groups 8 --kv-channels 64 --ffn-hidden-size 2880 --quick-geglu --normalization RMSNorm
  --position-embedding-type yarn
  --untie-embeddings-and-output-weights --softmax-type learnable --window-size 127,0 --window-attn-skip-freq 2
  --num-experts 32 --moe-router-topk 4 --vocab-size 201088
"""


def same_shape(model: Model, name: str) -> bool:
    expected = catalogue.load(name).model
    sizes = ("runs", "vocab", "hidden", "positions", "parameters")
    fields = (*sizes, "tied_embeddings", "norm_bias", "prediction_layers")
    return all(getattr(model, field) == getattr(expected, field) for field in fields)


def test_published_scripts_give_the_catalogue_models() -> None:
    assert same_shape(read_megatron_args(GPT_175B), "gpt-3-175b")
    assert same_shape(read_megatron_args(MIXTRAL), "mixtral-8x7b")
    assert same_shape(read_megatron_args(DEEPSEEK, vocab=128_815), "deepseek-v3")
    assert same_shape(read_megatron_args(GPT_OSS), "gpt-oss-20b")


@pytest.mark.parametrize("name", [name for name in catalogue.names() if name.endswith(("-sc21", "-korthikanti"))])
def test_gpt_shapes_of_the_catalogue(name: str) -> None:
    model = catalogue.load(name).model
    heads = model.runs[0].block.attention.heads
    command = (
        f"--num-layers {model.layers} --hidden-size {model.hidden} --num-attention-heads {heads} "
        f"--max-position-embeddings 2048 --tokenizer-type GPT2BPETokenizer --tensor-model-parallel-size 8"
    )
    assert same_shape(read_megatron_args(command, name=name), name)


def test_qwen_and_llama_flags() -> None:
    base = (
        "--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 --swiglu "
        "--group-query-attention --num-query-groups 4 --disable-bias-linear --add-qkv-bias "
        "--normalization RMSNorm --position-embedding-type rope "
        "--untie-embeddings-and-output-weights --padded-vocab-size 152064"
    )
    assert same_shape(read_megatron_args(base), "qwen2.5-7b")
    qwen3 = (
        "--num-layers 36 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 32 --swiglu "
        "--kv-channels 128 --group-query-attention "
        "--num-query-groups 8 --disable-bias-linear --normalization RMSNorm "
        "--qk-layernorm --position-embedding-type rope "
        "--untie-embeddings-and-output-weights --vocab-size 151936"
    )
    assert same_shape(read_megatron_args(qwen3), "qwen3-8b")


def test_recipe() -> None:
    recipe = read_megatron_job(GPT_175B).recipe
    assert (recipe.global_batch, recipe.sequence, recipe.precision) == (1536, 2048, "fp16")
    assert (recipe.attention, recipe.dropout, recipe.gradient_bytes) == ("flash", True, 2)
    quiet = MIXTRAL + "--bf16 --hidden-dropout 0.0 --attention-dropout 0 --global-batch-size 256"
    recipe = read_megatron_job(quiet).recipe
    assert (recipe.precision, recipe.dropout, recipe.gradient_bytes) == ("bf16", False, 4)
    assert read_megatron_job(quiet + " --fp8-format e4m3 --fp8-recipe mxfp8").recipe.precision == "mxfp8"
    assert read_megatron_job(quiet + " --fp8-format hybrid").recipe.precision == "fp8"
    assert read_megatron_job(quiet + " --attention-backend unfused").recipe.attention == "unfused"
    assert read_megatron_job(quiet + " --transformer-impl local").recipe.attention == "unfused"
    assert read_megatron_job(quiet + " --grad-reduce-in-bf16").recipe.gradient_bytes == 2
    for flag, value in (("--hidden-dropout", "2"), ("--attention-dropout", "-0.1")):
        with pytest.raises(BadInput, match=f"{flag}: {value} is not a number from 0 to 1"):
            read_megatron_job(f"{quiet} {flag} {value}")


def test_parsing() -> None:
    arguments = parse_arguments(GPT_175B)
    assert arguments.integer("--num-layers") == 96
    assert arguments.integer("--tensor-model-parallel-size") == 8
    assert arguments.integer("--pipeline-model-parallel-size") == 16
    assert arguments.integer("--micro-batch-size") == 1
    assert arguments.number("--init-method-std", 0.02) == 0.006
    assert arguments.text("--vocab-file") == "$VOCAB_FILE"
    assert arguments.has("--fp16")
    assert arguments.text("--fp16", "absent") == "absent"
    assert arguments.integer("--absent", default=3) == 3
    assert parse_arguments("--a 1 --a 2").integer("--a") == 2
    assert parse_arguments(["--recompute-modules", "mlp", "moe"]).text("--recompute-modules") == "mlp moe"
    assert parse_arguments('--spec-like "two words" -1').text("--spec-like") == "two words -1"


def test_variables_with_several_values_are_not_guessed() -> None:
    script = "if a; then\n LAYERS=12\nelse\n LAYERS=24\nfi\nrun --num-layers $LAYERS"
    with pytest.raises(BadInput, match="line 4: LAYERS=24 is not read -- paste the expanded arguments"):
        parse_arguments(script).integer("--num-layers")


@pytest.mark.parametrize(
    ("flags", "kind", "words"),
    [
        ("--hybrid-layer-pattern M*M", Unsupported, "--hybrid-layer-pattern"),
        ("--position-embedding-type relative", Unsupported, "relative"),
        ("--num-query-groups 7 --group-query-attention", BadInput, "cannot share 7"),
        ("--num-layers x", BadInput, "not a whole number"),
        ("--num-layers 0", BadInput, "outside 1 to"),
        ("--num-layers 99999999", BadInput, "outside 1 to"),
        ("--hidden-size 4100", BadInput, "not a multiple"),
        ("--moe-router-topk 9", BadInput, "9 of 8 experts"),
        ("--moe-layer-freq [0]*3", BadInput, "3 entries for 32"),
        ("--moe-layer-freq [2]*32", BadInput, "not a layer pattern"),
        ("--moe-layer-freq [1]*9999999999", BadInput, "not a layer pattern"),
        ("--moe-layer-freq __import__('os')", BadInput, "not a layer pattern"),
        ("--window-size 128", BadInput, "not a causal window"),
        ("--multi-latent-attention --window-size 127,0", Unsupported, "--window-size"),
    ],
)
def test_refusals(flags: str, kind: type[BadInput], words: str) -> None:
    with pytest.raises(kind, match=words):
        read_megatron_args(MIXTRAL + flags)


@pytest.mark.parametrize("flag", ["--num-layers", "--hidden-size", "--num-attention-heads", "--vocab-size"])
def test_missing_flags_are_named(flag: str) -> None:
    with pytest.raises(BadInput, match=f"{flag} is not stated"):
        read_megatron_args(MIXTRAL.replace(f"{flag} ", "--other "))
    with pytest.raises(BadInput, match="--global-batch-size is not stated"):
        read_megatron_job(MIXTRAL)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("\n" * 400_000 + "--a 1", 1),
        (" " * 400_000 + "--a 1", 1),
        ("--a " + "x " * 400_000, 799_999),
        ("export A=1\n" * 50_000 + "--a 1", 1),
    ],
)
def test_large_texts_take_time_in_proportion(text: str, size: int) -> None:
    before = time.process_time()
    assert len(parse_arguments(text).text("--a")) == size
    assert time.process_time() - before < 5


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("piece", ["${a-", "$(b ", "$((", "A=(", "a <<E\n", "'", '"$(', "`x", "\\\n", "if "])
def test_large_texts_are_refused_in_proportion(piece: str) -> None:
    before = time.process_time()
    with contextlib.suppress(BadInput):
        parse_arguments("show " + piece * 30_000 + " --a 1")
    assert time.process_time() - before < 5


def test_variables_do_not_multiply_a_text() -> None:
    with pytest.raises(BadInput, match="longer than 1000000 characters"):
        parse_arguments("A=" + "x" * 9_000 + "\n--a " + "$A " * 1_000)


def test_moe_every_other_layer_and_biases() -> None:
    text = MIXTRAL.replace("--disable-bias-linear", "") + "--moe-layer-freq 2"
    model = read_megatron_args(text)
    routed = [model.kinds[kind].moe is not None for kind in model.block_sequence()]
    assert routed == [True, False] * 16
    block = model.runs[0].block
    assert isinstance(block.attention, Attention)
    assert block.attention.out_bias
    assert block.moe is not None
    assert (block.moe.router_bias, block.moe.expert.bias) == (True, True)
