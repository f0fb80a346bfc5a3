"""Parameter counts against those that publishers print."""

from __future__ import annotations

import pytest

from weft.model import catalogue

# Billions, as rounded in arXiv 2104.04473 (SC21), 2205.05198, 2204.02311 (PaLM), 2205.01068, 2005.14165.
ROUNDED = {
    "gpt-1.7b-sc21": 1.7,
    "gpt-3.6b-sc21": 3.6,
    "gpt-7.5b-sc21": 7.5,
    "gpt-18.4b-sc21": 18.4,
    "gpt-39.1b-sc21": 39.1,
    "gpt-76.1b-sc21": 76.1,
    "gpt-145.6b-sc21": 145.6,
    "gpt-174.6b-sc21": 174.6,
    "gpt-310.1b-sc21": 310.1,
    "gpt-529.6b-sc21": 529.6,
    "gpt-1008b-sc21": 1008.0,
    "gpt-22b-korthikanti": 22.0,
    "palm-540b": 540.35,
    "opt-175b": 175.0,
    "gpt-3-175b": 175.0,
}

# Billions that one token uses, as published with (True) or without (False) the input embedding.
ACTIVE = {
    "mixtral-8x7b": (12.9, True),
    "mixtral-8x22b": (39.0, True),
    "deepseek-v2": (21.0, False),
    "deepseek-v3": (36.6, False),
    "qwen3-30b-a3b": (3.3, True),
    "qwen3-235b-a22b": (22.0, True),
    "qwen2-57b-a14b": (14.0, True),
    "gpt-oss-20b": (3.61, False),
    "gpt-oss-120b": (5.13, False),
}


@pytest.mark.parametrize("name", catalogue.names())
def test_counts_in_the_data_equal_the_model(name: str) -> None:
    """Totals of the safetensors metadata on the model's huggingface.co page; for GPT-2, OPT and MPT, whose files hold
    buffers or another format, the count of transformers' num_parameters(); GPT-NeoX, Pythia, Falcon and BLOOM: papers
    and model cards."""
    entry = catalogue.load(name)
    assert entry.published_parameters in (None, entry.model.parameters)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_counts_equal_the_published_ones(name: str) -> None:
    assert catalogue.load(name).model.parameters / 1e9 == pytest.approx(ROUNDED[name], rel=0.004, abs=0.06)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_equal_the_published_ones(name: str) -> None:
    model = catalogue.load(name).model
    billions, with_embedding = ACTIVE[name]
    used = model.active_parameters - (0 if with_embedding else model.embedding_parameters)
    assert used / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "published"),
    [("gemma-3-4b", 4_300_079_472), ("gemma-3-12b", 12_187_325_040), ("gemma-3-27b", 27_432_406_640)],
)
def test_gemma_3_is_the_published_total_less_its_vision_part(name: str, published: int) -> None:
    hidden, width, layers, intermediate, patch = catalogue.load(name).model.hidden, 1152, 27, 4304, 14
    attention, norms = 4 * (width * width + width), 4 * width
    feed = 2 * width * intermediate + width + intermediate
    patches = 3 * patch * patch * width + width + (896 // patch) ** 2 * width
    tower = layers * (attention + feed + norms) + patches + 2 * width
    projector = width * hidden + width
    assert catalogue.load(name).model.parameters == published - tower - projector


@pytest.mark.parametrize(("name", "stored"), [("falcon-40b", 41_835_970_560), ("falcon-180b", 179_522_565_120)])
def test_falcon_files_store_the_tied_table_twice(name: str, stored: int) -> None:
    model = catalogue.load(name).model
    assert model.parameters + model.vocab * model.hidden == stored


def test_deepseek_v3_prediction_module() -> None:
    # README_WEIGHTS.md of DeepSeek-V3: 11.5B own parameters (without shared embedding and head).
    assert catalogue.load("deepseek-v3").model.prediction_parameters / 1e9 == pytest.approx(11.5, rel=0.01)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("5b", 5.05), ("10b", 10.34), ("20b", 20.11), ("40b", 39.23), ("60b", 57.57), ("80b", 76.76), ("160b", 152.87)],
)
def test_axonn_shapes_follow_narayanan_formula(name: str, billions: float) -> None:
    # arXiv 2104.04473 eq. 2, which leaves out the final norm.
    model = catalogue.load(f"axonn-{name}").model
    layers, hidden = model.layers, model.hidden
    rows = (model.vocab + model.positions) / (12 * layers * hidden)
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + rows)
    assert model.parameters - 2 * hidden == pytest.approx(formula, rel=1e-12)
    assert formula / 1e9 == pytest.approx(billions, abs=0.006)
