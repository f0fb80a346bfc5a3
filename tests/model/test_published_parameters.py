"""Parameter counts against those that publishers print."""

from __future__ import annotations

import pytest

from weft.model import catalogue

# Totals of the safetensors metadata on the model's huggingface.co page; for GPT-2, OPT and MPT, whose files
# hold buffers or another format, the count of transformers' num_parameters(); else what the comment says.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-large-2": 122_610_069_504,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "nemotron-3-nano": 31_577_937_344,  # without the balancing biases, which are buffers
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,  # main model, without multi-token prediction and fp8 scales
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gpt2-124m": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,  # arXiv 2204.06745 section 2
    "pythia-70m": 70_426_624,  # pythia: arXiv 2304.01373 table 1 and the suite's README
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-2.8b": 2_775_208_960,
    "pythia-12b": 11_846_072_320,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "mpt-7b": 6_649_286_656,
    "falcon-7b": 6_921_720_704,  # arXiv 2311.16867: tied embeddings
    "bloom-176b": 176_247_271_424,  # model card
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}

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


@pytest.mark.parametrize("name", PUBLISHED)
def test_exact_counts_equal_the_published_ones(name: str) -> None:
    assert catalogue.load(name).model.parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", catalogue.names())
def test_counts_in_the_data_equal_the_model(name: str) -> None:
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
