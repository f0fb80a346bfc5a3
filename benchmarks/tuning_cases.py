"""Whether ``weft tune`` finds what helped in public cases of slow runs, and how well it predicts the gain.

A case has a measured run before and after a change.  Weft is told the run before, in the words of its file, and scored
on the usable cases:

- in the first three: one of the first three changes moves all that the case changed the same way (a change of the
  recipe counts where it is listed);
- predicted: the measured gain, by the correction of the run before, within 15 %.

Weft's constants may have seen runs of the same sources.  Sources count alike.  The cases are not part of this tree.

Run: ``python benchmarks/tuning_cases.py --cases FILE.json`` (two minutes of CPU time).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bench
import numpy as np

from weft.cluster.calibration import Calibration, calibration, with_constants
from weft.estimation.iteration import Estimator
from weft.interop.software import SWITCHES, works
from weft.layout.spec import Layout
from weft.search.enumeration import STANDARD
from weft.search.tune import Anchors, LayoutChange, SettingChange, SoftwareChange, Tuning, differences, tune
from weft.validation.inputs import Prepared, prepare
from weft.validation.runs import Run
from weft.validation.summary import with_stated

FIRST = 3
NEAR = 0.15
WORDS = {
    "dispatcher": (r"\ball-?to-?all\b", r"\b(hybrid|deep)-?ep\b"),
    "dispatch overlap": (r"\b(ep|a2a)[ _]overlap off\b", r"\b(ep|a2a)[ _]overlap on\b"),
    "CUDA graphs": (r"\bno cuda graphs\b", r"\bcuda graphs\b"),
}
"""What cases call a switch that is off, and on."""
ORDERED = {"recompute": ("none", "selective", "full"), "overlap_tensor": ("none", "backward", "full")}

_SIDE = {"tp": 1, "pp": 1, "dp": 64, "zero": 3, "micro_batch": 2, "global_batch": 128, "flags": []}
EXAMPLE: dict[str, Any] = {
    "id": "example",
    "software": "torchtitan, April 2024 (docs/performance.md)",
    "model": {
        "name": "Llama 2 13B",
        "layers": 40,
        "hidden": 5120,
        "heads": 40,
        "kv_heads": 40,
        "ffn": 13824,
        "vocab": 32000,
        "seq": 4096,
    },
    "gpu": "A100-80GB-SXM",
    "gpus": 64,
    "gpus_per_node": 8,
    "network": None,
    "precision": "bf16",
    "before": _SIDE | {"recompute": "selective", "measured": {"tokens_s_gpu": 1904}},
    "after": _SIDE | {"recompute": "none", "measured": {"tokens_s_gpu": 2162}},
    "speedup": 1.136,
    "usable": "yes",
}
"""A case as the file has them."""


@dataclass(frozen=True)
class Side:
    """A run of a case, the constants that its words lead to, and which switches are on."""

    run: Prepared
    constants: Calibration
    on: frozenset[str]

    @property
    def rate(self) -> float:
        """Tokens of an accelerator and step."""
        return self.run.job.recipe.tokens / self.run.cluster.count


def side(case: dict[str, Any], name: str) -> Side:
    """A side of a case as a row of a table of measured runs, which ``weft validate`` reads."""
    stated, model, measured = case[name], case["model"], case[name]["measured"]
    words = "; ".join(stated["flags"])
    zero, recompute = stated.get("zero"), stated.get("recompute") or ""
    # Words that readers of launch files have, and tables have not.
    if recompute == "selective mlp":
        recompute = "full"
    shape = {
        key: model.get(key) for key in ("params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq")
    }
    degrees = {
        key: stated.get(key) for key in ("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "micro_batch", "global_batch")
    }
    figures = {"tflops_per_gpu": "tflops_gpu", "mfu": "mfu", "tokens_s_gpu": "tokens_s_gpu", "iter_s": "iter_s"}
    run = prepare(
        Run(
            line=0,
            id=case["id"],
            source=case["software"],
            software=case["software"],
            kernels=words,
            notes=case["network"] or "",
            model=model["name"],
            experts=model.get("experts"),
            topk=model.get("topk"),
            gpu=case["gpu"],
            gpus=stated.get("gpus") or case["gpus"],
            nodes_gpus=case["gpus_per_node"],
            zero=zero if isinstance(zero, int) else None,
            precision=stated.get("precision") or case["precision"],
            recompute=recompute,
            sequence_parallel=None if stated.get("sequence_parallel") is None else bool(stated["sequence_parallel"]),
            **shape,
            **degrees,
            **{key: measured.get(value) for key, value in figures.items()},
        )
    )
    if not isinstance(run, Prepared):
        raise ValueError(f"{case['id']} {name}: {run.reason}")
    if blocks := re.search(r"full block, (\d+) layers", recompute):
        run = replace(run, layout=replace(run.layout, recompute_layers=int(blocks[1])))
    constants = with_stated(calibration(run.cluster.accelerator.name, run.stack.name), run.stack.stated)
    on = set()
    for switch in SWITCHES:
        off_words, on_words = WORDS[switch.name]
        if re.search(off_words, words, re.IGNORECASE):
            if switch.constant != "launches_per_step":
                constants = with_constants(constants, {switch.constant: 0.0}, where=words)
        elif re.search(on_words, words, re.IGNORECASE):
            on.add(switch.name)
            constants = with_constants(constants, {switch.constant: switch.value}, where=words)
    return Side(run, constants, frozenset(on))


def tuned(before: Side) -> Tuning:
    """What ``weft tune`` says of the run before."""
    run = before.run
    software = [
        SoftwareChange(
            setting=SettingChange(name=switch.name, before=switch.off, after=switch.on),
            constants=with_constants(before.constants, {switch.constant: switch.value}, where="a switch"),
            flags=(),
        )
        for switch in SWITCHES
        if switch.name not in before.on and works(switch, run.job, run.cluster, run.layout)
    ]
    return tune(
        run.job,
        run.cluster,
        run.layout,
        run.measured_s,
        space=STANDARD,
        stack=run.stack.name,
        constants=before.constants,
        software=software,
    )


def helped(change: LayoutChange, before: Layout, wanted: dict[str, Any]) -> bool:
    """Whether a change moves every wanted setting towards its value."""
    made = {setting.name: setting.after for setting in change.settings}
    after = change.estimate.layout

    def towards(name: str, value: Any) -> bool:
        if name not in made and not hasattr(after, name):
            return False
        old, new = getattr(before, name, None), made.get(name, getattr(after, name, None))
        if name in ORDERED:
            old, new, value = (ORDERED[name].index(each) for each in (old, new, value))
        if isinstance(value, int) and not isinstance(value, bool):
            return bool((new - old) * (value - old) > 0)
        return bool(new == value)

    return all(towards(name, value) for name, value in wanted.items())


def scored(case: dict[str, Any]) -> tuple[bool, float, float]:
    """Whether the change is among the first three, and the gain as predicted and measured."""
    before, after = side(case, "before"), side(case, "after")
    result = tuned(before)
    old, new = before.run.job.recipe, after.run.job.recipe
    wanted = {change.name: change.after for change in differences(before.run.layout, after.run.layout)}
    wanted |= {switch.name: switch.on for switch in SWITCHES if switch.name in after.on - before.on}
    found = any(helped(change, before.run.layout, wanted) for change in result.changes[:FIRST])
    if old.precision != new.precision:
        found = any(change.name == "precision" for change in result.recipe)
    estimate = Estimator(after.run.job, after.run.cluster, after.constants).estimates([after.run.layout])[0]
    anchors = Anchors([before.run.layout], [before.run.measured_s], [result.expected.iteration_s])
    seconds, _ = anchors.corrected([after.run.layout], np.array([estimate.iteration_s]))
    predicted = after.rate / float(seconds[0]) / (before.rate / before.run.measured_s)
    found = found and bool(wanted or old.precision != new.precision)
    print(f"{case['id']:40s} {'yes' if found else 'no':4s} {predicted:5.2f} {case['speedup']:5.2f}", end="  ")
    print(f"{result.slower:+.0%} ", ", ".join(wanted), flush=True)
    return found, predicted, case["speedup"]


def main() -> None:
    parser = bench.parser(__doc__)
    parser.add_argument("--cases", type=Path, help="JSON of cases (default: one case)")
    options = parser.parse_args()
    cases = [EXAMPLE] if options.cases is None else json.loads(options.cases.read_text(encoding="utf-8"))["cases"]
    sources: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    print(f"{'case':40s} in 3 pred. meas.  slower than expected, changed")
    for case in cases:
        if case["usable"] == "yes":
            found, predicted, measured = scored(case)
            sources[case["id"].split("-")[0]].append((found, abs(predicted / measured - 1.0) <= NEAR))
        elif case["change_kind"] == ["network"] and not case["missing"]:
            times = 1.0 + tuned(side(case, "before")).slower
            print(f"{case['id']:40s} network: the step is {times:.1f} times as long as expected")
    every = [each for some in sources.values() for each in some]
    by_source = np.mean([np.mean(some, axis=0) for some in sources.values()], axis=0)
    print(f"{len(every)} cases: {np.mean(every, axis=0)} in the first three and predicted; by source {by_source}")
    figures = {"cases": len(every), "first_three": np.mean(every, axis=0)[0], "predicted": np.mean(every, axis=0)[1]}
    figures |= {"first_three_by_source": by_source[0], "predicted_by_source": by_source[1]}
    bench.record(options, {name: float(value) for name, value in figures.items()}, "public cases of slow runs")


if __name__ == "__main__":
    main()
