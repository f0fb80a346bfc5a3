from __future__ import annotations

import subprocess
import sys

import pytest

from weft.errors import UnknownName
from weft.model import catalogue
from weft.model.job import PRECISIONS


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("llama3.1-405b", "llama-3.1-405b"),
        ("LLaMA 3.1 405B", "llama-3.1-405b"),
        ("meta-llama/Llama-3.1-405B", "llama-3.1-405b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("gpt3-175b", "gpt-3-175b"),
        ("gpt2", "gpt2-124m"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("GPT-1T", "gpt-1t-korthikanti"),
        ("megatron_1t", "megatron-1t"),
    ],
)
def test_aliases_and_spellings(alias: str, name: str) -> None:
    assert catalogue.load(alias).model.name == name


@pytest.mark.parametrize("name", catalogue.names())
def test_entries_are_whole(name: str) -> None:
    entry = catalogue.load(name)
    assert entry.model.name == name == name.lower()
    assert entry.source
    if entry.recipe is not None:
        assert entry.recipe.precision in PRECISIONS
        assert entry.recipe.tokens >= 2**16 // 8
        assert entry.model.positions == 0 or entry.recipe.sequence <= entry.model.positions


def test_no_two_models_answer_to_one_spelling() -> None:
    keys = [catalogue._key(name) for name in catalogue.names()]
    assert len(set(keys)) == len(keys)
    for name, record in catalogue._records().items():
        for spelling in (name, *record["aliases"]):
            assert catalogue.load(spelling).model.name == name


def test_unknown_name_suggests() -> None:
    with pytest.raises(UnknownName, match=r"unknown model 'llama-3.1-450b'.*did you mean .*llama-3.1-405b"):
        catalogue.load("llama-3.1-450b")


def test_published_recipes() -> None:
    deepseek = catalogue.load("deepseek-v3").recipe
    assert deepseek is not None
    assert (deepseek.global_batch, deepseek.sequence, deepseek.precision) == (15360, 4096, "fp8")


# arXiv 2205.05198 section 6: batch of the runs of table 5.
@pytest.mark.parametrize(("name", "batch"), [("22b", 4), ("175b", 64), ("530b", 280), ("1t", 512)])
def test_korthikanti_runs(name: str, batch: int) -> None:
    recipe = catalogue.load(f"gpt-{name}-korthikanti").recipe
    assert recipe is not None
    assert (recipe.global_batch, recipe.attention, recipe.dropout) == (batch, "unfused", True)
    assert recipe.precision == "fp16"


def test_one_load_is_fast_and_imports_neither_numpy_nor_pydantic() -> None:
    program = (
        "import sys, time; from weft.model import catalogue; t = time.perf_counter();"
        "catalogue.load('llama-3.1-405b'); t = time.perf_counter() - t;"
        "print(t, 'numpy' in sys.modules, 'pydantic' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    seconds, numpy, pydantic = out.split()
    assert (numpy, pydantic) == ("False", "False")
    assert float(seconds) < 0.2
