"""Charts: to scale, readable, inert, the same bytes each time, in every form."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("altair")

import weft
from weft.cluster import catalogue as clusters
from weft.errors import BadInput
from weft.fabric.cost import preset
from weft.model import Job, Recipe
from weft.model import catalogue as models
from weft.search.design import DesignTerms, design
from weft.units import format_seconds
from weft.views import comparison
from weft.views.breakdown import breakdown_chart
from weft.views.charts import INK, LINE, PAPER, bounds, data, embedded, finished, ink_on, rendered, scheme_css, spread
from weft.views.design import design_chart
from weft.views.ranking import pareto_chart
from weft.views.words import PARTS

TIME_COLOURS = {part.colour for part in PARTS.values() if part.short}
NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_bars_are_to_scale_and_stacked_as_the_legend_says(small_plan, drawn):
    items = drawn(breakdown_chart(small_plan, top=3))
    bars = [
        item
        for item in items
        if item.kind == "rect" and item.look.get("fill") in {part.colour for part in PARTS.values() if part.short}
    ]
    best = small_plan.layouts[0]
    first = min(bar.y for bar in bars)
    left = min(bar.x for bar in bars)
    stack = [bar for bar in bars if bar.y == first and bar.x < left + 620]
    times = [part for part in best.time if part.value]
    scale = (stack[-1].x + stack[-1].look["width"] - left) / best.iteration_s
    assert [bar.look["width"] for bar in stack] == pytest.approx([scale * part.value for part in times])
    assert [bar.look["fill"] for bar in stack] == [PARTS[part.name].colour for part in times]
    assert all(a.x + a.look["width"] == pytest.approx(b.x) for a, b in pairwise(stack))
    legend = [PARTS[part.name].label for part in times]
    entries = [item for item in items if item.kind == "text" and item.words in legend]
    assert [item.words for item in sorted(entries, key=lambda item: (item.x, item.y))] == legend
    words = [item.words for item in items if item.kind == "text"]
    assert sum(word.startswith(("1. ", "2. ", "3. ", "4. ")) for word in words) == 3
    assert sum(word.endswith(" of 79.2 GiB") for word in words) == 3


def test_pareto_draws_a_point_a_layout(small_plan, drawn):
    fastest = small_plan.pareto[0].iteration_s
    shown = [one for one in small_plan.pareto if one.iteration_s <= 2 * fastest]
    points = [item for item in drawn(pareto_chart(small_plan)) if item.kind == "symbol"]
    assert len(points) == len(shown)
    assert [point.x for point in points] == sorted(point.x for point in points)
    alone = drawn(pareto_chart(replace(small_plan, pareto=small_plan.pareto[:1])))
    assert any("memory of one accelerator" in item.words for item in alone if item.kind == "text")


@cache
def studied(domains=(), batches=()):
    job = Job(model=models.load("llama-3.1-8b").model, recipe=Recipe(global_batch=64, sequence=4096))
    options = DesignTerms(simulate=False, failures=False, radix=16, prices=preset("rail-only-v5"))
    kinds = ["rail-only", "rail-optimized", "fat-tree"]
    return design(job, clusters.load("h100-64"), kinds, options, domains=domains, batches=batches)


def marks(items, kind):
    return [item for item in items if item.kind == kind and item.role == "mark"]


def test_designs_stand_where_their_figures_say(drawn):
    study = studied()
    items = drawn(design_chart(study))
    points = {(one.bill.usd, one.closed_form_s) for one in study.designs}
    circles = marks(items, "symbol")
    assert len(circles) == len(points) > 1
    low, high = bounds([usd for usd, _ in points])
    across = sorted(item.x for item in circles)
    expected = sorted(usd / (high - low) * 640 for usd, _ in points)
    assert [at - across[0] for at in across] == pytest.approx([at - expected[0] for at in expected])
    words = [item.words for item in items if item.kind == "text"]
    for one in study.designs:
        parts = one.kind, f"{one.bill.watts / 1e3:,.0f} kW", format_seconds(one.closed_form_s)
        assert any(all(part in word for part in parts) for word in words), parts
    with pytest.raises(BadInput, match="no design to draw"):
        design_chart(replace(study, designs=()))


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(("domains", "batches"), [((4, 8, 16), ()), ((), (64, 256)), ((4, 8), (64, 256))])
def test_studies_of_domains_and_batches_have_a_point_a_design(drawn, domains, batches):
    study = studied(domains, batches)
    chart = design_chart(study)
    items = drawn(chart)
    assert len(study.designs) == 3 * max(1, len(domains)) * max(1, len(batches))
    circles = marks(items, "symbol")
    costs = [one.total_usd if domains else one.bill.usd for one in study.designs]
    times_s = [1e6 / one.tokens_per_s if batches else one.closed_form_s for one in study.designs]
    points = set(zip(costs, times_s, strict=True))
    assert len(circles) == len(points)
    down, seconds = sorted(item.y for item in circles), sorted((second for _, second in points), reverse=True)
    per_second = (down[-1] - down[0]) / (seconds[0] - seconds[-1])
    assert [at - down[0] for at in down] == pytest.approx([per_second * (seconds[0] - each) for each in seconds])
    assert ("a million tokens" in json.dumps(chart.to_dict())) == bool(batches)


def test_waterfalls_go_from_one_side_to_the_other(drawn):
    found = weft.compare("llama-3.1-8b", "h100-64", layout=("tp=2,sp", "tp=8", "tp=2,sp"))
    items = drawn(comparison.comparison_chart(found))
    bars = [item for item in items if item.kind == "rect" and item.look.get("fill") == comparison.WHOLE]
    assert len(bars) == 2 * len(found.differences)
    words = [item.words for item in items if item.kind == "text"]
    for difference in found.differences:
        for part in difference.time:
            shown = f"{'+' if part.difference > 0 else '-'}{format_seconds(abs(part.difference))}"
            worth = abs(part.difference) > 0.005 * max(side.iteration_s for side in found.sides)
            assert not worth or shown in words
    one = drawn(comparison.comparison_chart(weft.compare("llama-3.1-8b", "h100-64", layout=("tp=2,sp", "tp=8"))))
    wide = {
        colour: [item.look["width"] for item in one if item.kind == "rect" and item.look.get("fill") == colour]
        for colour in (comparison.WHOLE, comparison.SLOWER, comparison.FASTER)
    }
    before, after = wide[comparison.WHOLE]
    assert after - before == pytest.approx(sum(wide[comparison.SLOWER]) - sum(wide[comparison.FASTER]))


def test_nothing_to_draw_is_refused(starved_plan):
    for draw in (breakdown_chart, pareto_chart):
        with pytest.raises(BadInput, match="no layout to draw"):
            draw(starved_plan)


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "begin"), [(".svg", b"<svg"), (".PNG", b"\x89PNG"), (".pdf", b"%PDF-1.")])
def test_forms_are_the_same_bytes_each_time_and_need_no_other_file(small_plan, suffix, begin):
    first, second = (rendered(breakdown_chart(small_plan, top=2), suffix) for _ in range(2))
    assert first.startswith(begin)
    assert len(first) > 10_000
    assert first == second or suffix == ".pdf"
    if suffix == ".svg":
        text = first.decode()
        assert scheme_css() in text
        assert INK in text
        assert not re.findall(r"<(?:link|img|iframe|script)\b|url\((?!#)|@import", text)


@pytest.mark.slow
def test_names_are_inert(small_plan):
    name = "</script><script>alert(1)</script>&\x1b"
    model = replace(small_plan.job.model, name=name)
    hostile = replace(small_plan, job=replace(small_plan.job, model=model))
    for chart in (breakdown_chart(hostile), pareto_chart(hostile)):
        root = ElementTree.fromstring(rendered(chart, ".svg"))
        assert not list(root.iter(f"{NAMESPACE}script"))
        assert name.replace("\x1b", "?") in "".join(root.itertext())


def clipped(title):
    """A chart whose drawing has identifiers: marks clipped at the frame."""
    import altair

    base = altair.Chart(data([{"x": 1, "y": 2, "words": f"<b>{title}</b>"}]))
    marks = base.mark_circle(clip=True).encode(x="x:Q", y="y:Q", tooltip=[altair.Tooltip("words:N", title="said")])
    return finished(altair.layer(marks), title, "a subtitle")


def test_pages_hold_charts_without_style_or_script():
    (first, *_), (second, *heading) = (embedded(clipped(title)) for title in ("one", "two & <script>"))
    assert heading == ["two & <script>", "a subtitle"]
    assert first == embedded(clipped("one"))[0]
    held = [set(re.findall(r' id="([^"]+)"', text)) for text in (first, second)]
    assert all(held)
    assert not held[0] & held[1]
    for text, names in zip((first, second), held, strict=True):
        root = ElementTree.fromstring(text)
        assert set(re.findall(r"url\(#([^)]+)\)", text)) <= names
        assert not [one for one in root.iter() if one.tag in (f"{NAMESPACE}style", f"{NAMESPACE}script")]
        assert "style=" not in text
        assert PAPER not in text
        assert root.get("role") == "img"
        assert not [one for one in root.iter() if one is not root and (one.get("role") or one.get("aria-label"))]
    root = ElementTree.fromstring(second)
    assert root.get("aria-label") == "two & <script>. a subtitle"
    assert [one.text for one in root.iter(f"{NAMESPACE}title")] == ["said: <b>two & <script></b>"]


def luminance(colour):
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", sorted(TIME_COLOURS))
def test_words_on_bars_can_be_read(colour):
    """A contrast of 4.5 to 1 (WCAG 2.2, AA)."""
    light = luminance(colour)
    contrast = 1.05 / (light + 0.05) if ink_on(colour) == "white" else (light + 0.05) / 0.05
    assert contrast >= 4.5


@given(st.lists(st.floats(0, 400), max_size=20).map(sorted))
def test_labels_stay_apart_and_in_order(downs):
    placed = spread(downs, 400.0)
    assert all(after - before >= LINE - 1e-9 for before, after in pairwise(placed))
    assert all(0 <= down <= 400 + 1e-9 for down in placed)
    if all(after - before >= LINE for before, after in pairwise(downs)) and downs[-1:] <= [400.0 - LINE]:
        assert placed == pytest.approx(downs)


DRAWS = """import resource, sys
import altair as alt
from weft.errors import BadInput
from weft.views.charts import rendered
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
chart = alt.layer(alt.Chart(alt.Data(values=[{"a": 1, "b": 2}])).mark_point().encode(x="a:Q", y="b:Q"))
try:
    sys.stdout.buffer.write(rendered(chart, sys.argv[2]))
except BadInput as error:
    sys.exit(f"Error: {error}")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of address space is Linux's")
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_charts_within_a_limit_of_address_space(suffix: str) -> None:
    """V8 ended the whole process by SIGTRAP and wrote a native stack."""
    free, wide, narrow = (
        subprocess.run([sys.executable, "-c", DRAWS, str(limit), suffix], capture_output=True, check=False)
        for limit in (0, 100 * 10**9, 40 * 10**9)
    )
    assert (free.returncode, free.stderr) == (0, b"")
    assert (wide.returncode, wide.stderr, wide.stdout == free.stdout) == (0, b"", True)
    assert (narrow.returncode, narrow.stdout) == (1, b"")
    assert narrow.stderr.count(b"\n") == 1
    assert b"ulimit -v: charts cannot be drawn within 40,000,000,000 bytes" in narrow.stderr
