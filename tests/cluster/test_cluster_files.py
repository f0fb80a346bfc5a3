"""Cluster files: examples read, written clusters read back equal, bad input named without a traceback."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import catalogue
from weft.cluster.files import cluster_from_dict, read_cluster, write_cluster
from weft.cluster.spec import Accelerator, Cluster, Tier
from weft.codec import encode
from weft.errors import BadInput

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = 'name = "test"\naccelerator = "h100"\n'
TIERS = HEAD + 'count = 16\n[[tiers]]\nname = "a"\nsize = 8\nkind = "switch"\nbandwidth = "450 GB/s"\n'
SPELLED = (EXAMPLES / "custom-accelerator.toml").read_text()


def test_oversubscribed_example() -> None:
    cluster = read_cluster(EXAMPLES / "h100-cluster.toml")
    assert cluster.spans == (8, 256, 1024)
    assert cluster.accelerator == catalogue.accelerator("h100")
    assert cluster.tiers[1].bandwidth_Bps == 50e9
    assert cluster.tiers[2].effective_Bps == 25e9
    assert cluster.tiers[0].latency_s == pytest.approx(0.6e-6)
    assert cluster.defaults == ()


def test_known_accelerator_with_another_nic_gets_default_tiers() -> None:
    cluster = read_cluster(EXAMPLES / "a100-half-nic.toml")
    assert [(tier.size, tier.bandwidth_Bps) for tier in cluster.tiers] == [(8, 300e9), (64, 12.5e9)]
    assert cluster.accelerator.usd_per_hour == 1.6
    assert cluster.defaults == ("tiers: scale-up of 8 and network of 64",)


def test_spelled_out_accelerator() -> None:
    chip = read_cluster(EXAMPLES / "custom-accelerator.toml").accelerator
    assert (chip.bf16_flops, chip.fp8_flops, chip.memory_bytes) == (275e12, 0.0, 32 * 2**30)


def test_like_keeps_the_wiring_of_its_model() -> None:
    text = 'name = "t"\naccelerator = {like = "mi300x", name = "mine"}\ncount = 8\n'
    assert read_cluster(text).tiers[0].kind == "fully-connected"


def test_missing_latency_is_a_recorded_default() -> None:
    cluster = read_cluster(TIERS.replace("count = 16", "count = 8"))
    assert cluster.tiers[0].latency_s == catalogue.SCALE_UP_LATENCY_S
    assert cluster.defaults == ("tiers[0].latency: 0.6 us",)


positive = st.floats(1e9, 1e13)
words = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=20)
chips = st.builds(
    Accelerator,
    name=words,
    vendor=words,
    **dict.fromkeys(["fp32_flops", "fp16_flops", "bf16_flops"], positive),
    **dict.fromkeys(["fp8_flops", "fp4_flops"], st.just(0.0) | positive),
    **dict.fromkeys(["memory_bytes", "memory_Bps", "scale_up_Bps", "nic_Bps", "host_Bps"], positive),
    scale_up_size=st.integers(1, 576),
    multiprocessors=st.integers(1, 500),
    power_w=st.floats(1, 3000),
    in_switch_reduction=st.booleans(),
    usd_per_hour=st.floats(0, 100),
)
tiers = st.builds(
    Tier,
    name=words,
    size=st.integers(1, 20),
    kind=st.sampled_from(["ring", "fully-connected", "switch"]),
    bandwidth_Bps=positive,
    latency_s=st.floats(0, 0.5),
    oversubscription=st.floats(1, 100),
    in_network_reduction=st.booleans(),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    chosen = tuple(draw(st.lists(tiers, min_size=1, max_size=4, unique_by=lambda tier: tier.name)))
    return Cluster(
        name=draw(words),
        accelerator=draw(chips),
        count=prod(tier.size for tier in chosen),
        tiers=chosen,
        defaults=tuple(draw(st.lists(words, max_size=2))),
    )


@given(clusters())
def test_written_clusters_read_back_equal(cluster: Cluster) -> None:
    read = read_cluster(write_cluster(cluster))
    assert replace(read, defaults=cluster.defaults) == cluster
    assert read_cluster(write_cluster(read)) == read
    assert cluster_from_dict(json.loads(json.dumps(encode(cluster)))) == read


FAST = """name = "c"
count = 16
accelerator = "h100"
[[tiers]]
name = "scale-up"
size = 8
kind = "switch"
bandwidth = "450 GB/s"
latency = "1 us"
[[tiers]]
name = "rail"
size = 2
kind = "switch"
bandwidth = "10 TB/s"
latency = "3 us"
"""


def test_a_tier_faster_than_the_nic_is_listed_as_assumed() -> None:
    note = "tiers[1] carries 10 TB/s per accelerator, more than its NIC of 50 GB/s"
    assert read_cluster(FAST).defaults == (note,)
    assert read_cluster(FAST.replace("10 TB/s", "400 Gb/s")).defaults == ()
    assert read_cluster(FAST.replace('"10 TB/s"', '"100 GB/s"\noversubscription = 2.0')).defaults == ()


@pytest.mark.parametrize("name", ["scale_up_bandwidth", "memory_bandwidth", "nic_bandwidth", "host_bandwidth"])
def test_bits_and_bytes_exchanged_are_refused(name: str) -> None:
    own = {"scale_up": 450e9, "memory": 3350e9, "nic": 50e9, "host": 63e9}[name.removesuffix("_bandwidth")]
    text = 'name = "c"\ncount = 16\n[accelerator]\nlike = "h100"\n'
    for shown, words in ((f"{own:g} b/s", "an eighth of the"), (f"{8 * own:g} B/s", "eight times the")):
        with pytest.raises(BadInput, match=f"accelerator.{name}: '.*' is {words}") as caught:
            read_cluster(f'{text}{name} = "{shown}"')
        assert caught.value.remedy is not None
        assert "did you mean" in caught.value.remedy
    assert read_cluster(f"{text}{name} = {own / 8}").accelerator.name == "h100"


def test_a_first_tier_in_bits_is_refused() -> None:
    with pytest.raises(BadInput, match=r"tiers\[0\].bandwidth: '450 Gb/s' is an eighth of the scale-up") as caught:
        read_cluster(FAST.replace("450 GB/s", "450 Gb/s"))
    assert "did you mean 450 GB/s?" in str(caught.value)


RACKS = 'name = "racks"\naccelerator = "gb200"\ncount = {}\nused_per_domain = {}\n'


def test_a_file_says_how_much_of_each_domain_is_used() -> None:
    cluster = read_cluster(RACKS.format(576, 64))
    assert [tier.size for tier in cluster.tiers] == [64, 9]
    assert (cluster.spares_per_domain, cluster.spares) == (8, 72)
    assert encode(cluster)["used_per_domain"] == 64
    assert read_cluster(write_cluster(cluster)) == cluster
    rack = read_cluster(RACKS.format(64, 64))
    assert ([tier.size for tier in rack.tiers], rack.spares) == ([64], 8)
    whole = read_cluster(RACKS.format(576, 72))
    assert (whole.spares, "used_per_domain" in encode(whole)) == (0, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RACKS.format(720, 80), r"used_per_domain: 80 acc.* cannot be used of scale-up domains of 72"),
        (RACKS.format(1000, 64), "count: 1000 accelerators do not fill .* of 64 .* use 960 or 1024"),
        (RACKS.format(8, 64), "do not fill .* use 64"),
        (RACKS.format(576, 0), "used_per_domain: 0 should be greater"),
        (TIERS.replace("count = 16", "count = 8\nused_per_domain = 4"), r"4 acc.* with tiers\[0\].size = 8"),
    ],
)
def test_a_part_of_a_domain_that_cannot_be_used_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_cluster(text)


@pytest.mark.parametrize("name", ["a100-512", "gb200-nvl72-4608", "gb200-4096", "frontier-64", "v100-8"])
def test_presets_survive_writing(name: str) -> None:
    cluster = catalogue.load(name)
    assert read_cluster(write_cluster(cluster)) == cluster


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TIERS, r"tiers: tier sizes 8 = 8, but count = 16"),
        (TIERS.replace("bandwidth", "bandwith"), r"tiers\[0\].bandwith: is not a known field -- did you mean"),
        (TIERS.replace("450 GB/s", "450 G"), r"tiers\[0\].bandwidth: '450 G' has the wrong unit"),
        (TIERS.replace("450 GB/s", "3 B/s"), r"'3 B/s' is too small"),
        (TIERS.replace("450 GB/s", "-450 GB/s"), r"'-450 GB/s' is too small"),
        (TIERS.replace("450 GB/s", "450 PB/s"), r"'450 PB/s' is too large"),
        (
            TIERS.replace('"450 GB/s"', "[1]"),
            r"\[1\] is neither text nor a finite number -- write a number with its unit",
        ),
        (TIERS.replace('"450 GB/s"', "inf"), r"inf is neither text nor a finite number"),
        (TIERS.replace('"450 GB/s"', "1" + "0" * 400), r"more than 300 digits"),
        (TIERS.replace('"switch"', '"tree"'), r"tiers\[0\].kind: unknown kind 'tree'"),
        (TIERS.replace("size = 8", "size = 0"), r"tiers\[0\].size: 0 should be greater"),
        (TIERS + "oversubscription = 0.5", r"oversubscription: 0.5 should be greater"),
        (TIERS + "latency = 2", r"latency: 2.0 is too large -- write it like 2 us"),
        (TIERS + 'latency = "-1 us"', r"latency: '-1 us' is too small"),
        (TIERS + 'latency = "1 s"', r"latency: '1 s' is too large"),
        (TIERS + TIERS[TIERS.index("[[") :].replace("8", "2"), r"two tiers are named 'a'"),
        (HEAD + "tiers = []\ncount = 8", r"tiers: \[\] should have at least 1 item"),
        (HEAD + "count = 12", r"count: 12 accelerators do not fill .* use 8 or 16"),
        (HEAD + "count = true", r"count: True is not a whole number"),
        (HEAD + "count = nan", r"count: nan is not a whole number"),
        (HEAD + "count = 99999999999", r"count: 99999999999 should be less"),
        (HEAD, r"count: is missing"),
        (HEAD + "count = 8\ncolour = 3", r"colour: is not a known field"),
        (HEAD.replace("h100", "h10") + "count = 8", r"accelerator: unknown accelerator 'h10'"),
        ('name = "x"\ncount = 8\naccelerator = 3', r"accelerator: 3 is neither text nor a table of fields"),
        ('name = "x"\ncount = 8\naccelerator = {like = "zz"}', r"accelerator.like: unknown accelerator"),
        ('name = "x"\ncount = 8\naccelerator = {name = "zz"}', r"accelerator: lacks memory, .* like = "),
        ('name = "x\\u0007"\ncount = 8\naccelerator = "h100"', r"control character"),
        (SPELLED.replace("275 TFLOP/s", "275"), r"accelerator.bf16: '275' is too small"),
        (SPELLED.replace('bf16 = "275 TFLOP/s"', ""), r"accelerator: has no peak"),
        (SPELLED.replace("32 GiB", "32"), r"accelerator.memory: '32' is too small"),
        (SPELLED + "[other]\n", r"other: is not a known field"),
        ("a==1", r"not valid TOML"),
    ],
)
def test_bad_files_are_named(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_cluster(text)


@pytest.mark.parametrize("field", ["nic_bandwidth", "tiers"])
def test_bytes_in_place_of_bits_are_caught(field: str) -> None:
    text = TIERS + '[[tiers]]\nname = "b"\nsize = 2\nkind = "switch"\nbandwidth = "400 GB/s"\n'
    if field == "nic_bandwidth":
        text = 'name = "x"\ncount = 8\naccelerator = {like = "h100", nic_bandwidth = "400 GB/s"}\n'
    with pytest.raises(BadInput, match="did you mean 400 Gb/s"):
        read_cluster(text)


def test_both_names_of_a_field() -> None:
    with pytest.raises(BadInput, match="given twice"):
        read_cluster(TIERS + "bandwidth_Bps = 1e9")
