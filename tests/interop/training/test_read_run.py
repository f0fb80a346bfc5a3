"""Which reader a file gets, and files that no reader can use."""

import pytest

from weft.errors import BadInput
from weft.interop import read_run

MEGATRON = "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --bf16\n"
TITAN = "[parallelism]\ntensor_parallel_degree = 4\n"
DEEPSPEED = '{"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 4}}\n'


@pytest.mark.parametrize(
    ("name", "text", "tool"),
    [
        ("run.sh", MEGATRON, "Megatron-LM"),
        ("arguments.txt", MEGATRON, "Megatron-LM"),
        ("arguments", MEGATRON, "Megatron-LM"),
        ("job.toml", TITAN, "torchtitan (TOML)"),
        ("job", TITAN, "torchtitan (TOML)"),
        ("ds.json", DEEPSPEED, "DeepSpeed"),
        ("ds", DEEPSPEED, "DeepSpeed"),
    ],
)
def test_format_follows_from_name_or_content(tmp_path, name, text, tool):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    run = read_run(path, world=16)
    assert run.tool == tool
    assert (run.layout.x, run.layout.data_parallel, run.world) == (4, 4, 16)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.sh", b"", "no argument"),
        ("binary.sh", b"\xff\xfe\x00\x81" * 50, "is not a text file"),
        ("zeros", b"\x00" * 100, "control character"),
        ("config.yaml", b"parallelism:\n  dp: 2\n", "in Python and YAML are not read"),
        ("recipe.py", b"def planned():\n", "in Python and YAML are not read"),
        ("prose.txt", b"no flags here\n", "no argument"),
        ("big.sh", b"#" * 10_000_001, "larger than 10 MB"),
        ("broken.json", b"{", "not valid JSON"),
        ("broken.toml", b"[", "not valid TOML"),
    ],
)
def test_unusable_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message) as caught:
        read_run(path, world=8)
    assert name in str(caught.value)
