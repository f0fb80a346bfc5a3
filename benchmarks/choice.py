"""Choosing among measured layouts of one job: Weft beside Calculon, SimuMax and two rules of thumb.

A sweep is a job that was measured in five layouts or more: LLaMA 13B to 65B on 64 and 128 A100 (Aleph Alpha), GPT on
64 to 512 A100 and on 2 to 8 (vTrain).  All tools are scored on the same layouts: what one of them refuses counts for
none.

Weft predicts each run by constants that had not seen its source; where the shipped errors lack the run, by the shipped
constants, and the figures count these runs.  The others have their own constants, and from the job what their users
write: model, layout, 8 GPUs a node, bandwidth of a GPU within and beyond it.

- Calculon: ``systems/a100_80g.json``.  bf16 counts as fp16, which is the only type of that file, and its limit of
  memory is lifted: it knows no fused attention and would refuse layouts that ran.
- SimuMax: ``configs/system/a100_pcie.json``, its only A100, with NVLink in the place of PCIe as its
  ``docs/system.md`` writes it (half of the bandwidth, 10 us); shapes that it has not measured run at its default.

Run: ``python benchmarks/choice.py --calculon DIR --simumax DIR`` (a minute of CPU time); the folders are checkouts of
calculon-ai/calculon and MooreThreads/SimuMax, of which nothing is shipped.  Both need pandas, SimuMax also sympy,
tabulate and tqdm.  Without a folder the tool is left out.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import bench

from weft.errors import NothingFeasible
from weft.estimation.trust import shipped_runs as known_runs
from weft.interop import calculon
from weft.layout.spec import PipelineSchedule, Recompute
from weft.model.spec import Attention, FeedForward
from weft.validation.inputs import Prepared, prepare_all
from weft.validation.runs import Run, shipped_runs
from weft.validation.summary import FamilyChoices, Predictor, choices

FEWEST = 5
"""Layouts of a sweep."""
TINY = "vtrain"
NVLINK = {"efficient_factor": 0.5, "latency_us": 10}
"""Of SimuMax's docs/system.md."""
TITLES = {
    "weft": "Weft",
    "calculon": "Calculon",
    "simumax": "SimuMax",
    "fewest": "fewest tp x pp",
    "random": "random layout",
}
RULES = ("fewest", "random")
Predict = Callable[[Prepared], float]


class Refused(Exception):
    """A tool has no prediction of a layout."""


def sweeps(tiny: bool) -> list[Prepared]:
    """The runs of all sweeps."""
    rows = [row for row in shipped_runs() if isinstance(row, Run) and (not tiny or row.family == TINY)]
    jobs: dict[object, list[Prepared]] = {}
    for run in prepare_all(rows):
        if isinstance(run, Prepared):
            jobs.setdefault((run.run.family, run.same_job), []).append(run)
    several = (group for group in jobs.values() if len({run.layout for run in group}) >= FEWEST)
    return [run for group in several for run in group]


def weft_tool(runs: Sequence[Prepared]) -> tuple[Predict, Counter[str]]:
    """Weft without the source of a run, and how many runs of each family have the shipped constants instead."""
    unseen = {one.run: one.error for one in known_runs()}
    shipped = {run.run.name: s for run, s in zip(runs, Predictor(runs).predict().seconds, strict=True)}
    instead = Counter(run.run.family for run in runs if run.run.name not in unseen)

    def predict(run: Prepared) -> float:
        name = run.run.name
        return (1.0 + unseen[name]) * run.measured_s if name in unseen else float(shipped[name])

    return predict, instead


def calculon_tool(folder: Path) -> Predict:
    """Calculon with its own A100."""
    sys.path.insert(0, str(folder))
    llm, System = import_module("calculon.llm.llm").Llm, import_module("calculon.system").System
    own = json.loads((folder / "systems" / "a100_80g.json").read_text(encoding="utf-8"))
    own["mem1"]["GiB"] = 1e9

    def predict(run: Prepared) -> float:
        try:
            execution = calculon.write(run.job, run.cluster, run.layout)
            application = calculon.write_application(run.job, run.cluster, run.layout)
        except NothingFeasible as error:
            raise Refused from error
        system = copy.deepcopy(own)
        for network, tier in zip(system["networks"], run.cluster.tiers, strict=False):
            network["bandwidth"] = tier.bandwidth_Bps / 1e9
        fields = json.loads(execution.text) | {"datatype": "float16"}
        try:
            one, machine = llm(llm.Application(json.loads(application.text)), logging.getLogger()), System(system)
            one.compile(machine, llm.Execution.from_json(fields))
            one.run(machine)
        except (llm.Error, AssertionError) as error:
            raise Refused from error
        return float(one.get_total_time())

    return predict


def simumax_tool(folder: Path) -> Predict:
    """SimuMax with its own A100 on NVLink."""
    sys.path.insert(0, str(folder))
    core, PerfLLM = import_module("simumax.core.config"), import_module("simumax.core.perf_llm").PerfLLM
    own = json.loads((folder / "configs" / "system" / "a100_pcie.json").read_text(encoding="utf-8"))
    outer = own["networks"]["inter_node"]

    def predict(run: Prepared) -> float:
        tiers = [tier.bandwidth_Bps / 1e9 for tier in run.cluster.tiers]
        inner = outer | {"bandwidth": NVLINK | {"gbps": tiers[0]}}
        beyond = outer | {"bandwidth": outer["bandwidth"] | {"gbps": tiers[-1]}}
        networks = {"intra_with_pcie": False, "low_intra_node": inner, "high_intra_node": inner, "inter_node": beyond}
        try:
            one = PerfLLM()
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
                one.configure(
                    strategy_config=core.StrategyConfig(**_strategy(run)),
                    model_config=core.ModelConfig(**_model(run)),
                    system_config=core.SystemConfig.init_from_dict(own | {"networks": networks}),
                )
                one.run_estimate()
                rate = one.analysis_cost().data["throughput_per_accelerator"]
        except (AssertionError, ValueError) as error:
            raise Refused from error
        return run.job.recipe.global_batch * run.job.recipe.sequence / float(rate) / run.layout.world

    return predict


def _model(run: Prepared) -> dict[str, Any]:
    """SimuMax's fields of a model."""
    model = run.job.model
    attention, feed = model.kinds[0].attention, model.kinds[0].feed_forward
    if len(model.kinds) > 1 or not isinstance(attention, Attention) or not isinstance(feed, FeedForward):
        raise Refused
    return {
        "model_name": model.name,
        "hidden_size": model.hidden,
        "head_num": attention.heads,
        "kv_head_num": attention.kv_heads,
        "head_size": attention.head_dim,
        "intermediate_size": feed.intermediate,
        "layer_num": model.layers,
        "vocab_size": model.vocab,
        "use_swiglu": feed.gated,
    }


def _strategy(run: Prepared) -> dict[str, Any]:
    """SimuMax's fields of a layout with tensor, pipeline and data parallelism."""
    layout, recipe = run.layout, run.job.recipe
    grid = layout.x * layout.pipeline * layout.data
    if grid != layout.world or layout.recompute == Recompute.SELECTIVE or layout.schedule != PipelineSchedule.PLAIN:
        raise Refused
    fused, full = recipe.attention != "unfused", layout.recompute == Recompute.FULL
    return {
        "seq_len": recipe.sequence,
        "micro_batch_size": layout.micro_batch,
        "micro_batch_num": recipe.global_batch // layout.data // layout.micro_batch,
        "world_size": layout.world,
        "tp_size": layout.x,
        "pp_size": layout.pipeline,
        "enable_sequence_parallel": layout.sequence_parallel and layout.x > 1,
        "zero_state": layout.zero,
        "enable_recompute": full,
        "recompute_granularity": "full_block" if full else None,
        "recompute_layer_num": run.job.model.layers if full else 0,
        "use_flash_sdp": fused,
        "use_math_sdp": not fused,
        "overlap_grad_reduce": layout.overlap_reduce,
    }


def scored(
    tools: dict[str, Predict], runs: Sequence[Prepared]
) -> tuple[dict[str, tuple[FamilyChoices, ...]], Counter[str]]:
    """The choices of each tool by family, on the layouts that all of them predict; and the refusals of each."""
    times: dict[str, dict[str, float]] = {tool: {} for tool in tools}
    refusals: Counter[str] = Counter()
    for tool, predict in tools.items():
        for run in runs:
            try:
                times[tool][run.run.name] = predict(run)
            except Refused:
                refusals[tool] += 1
    common = [run for run in runs if all(run.run.name in each for each in times.values())]
    return {tool: choices((run, each[run.run.name]) for run in common) for tool, each in times.items()}, refusals


def printed(found: dict[str, tuple[FamilyChoices, ...]]) -> dict[str, float | str]:
    """The table, a part a family; and its figures."""
    columns = ("layouts", "sweeps", "pred./meas.", "regret", "worst", "in order", "ratio off", "optimism")
    print(f"{'tool':16s}" + "".join(f"{name:>13s}" for name in columns))
    figures: dict[str, float | str] = {}
    for place, family in enumerate(one.family for one in found["weft"]):
        print(family)
        for tool, each in found.items():
            one, rule = each[place], tool in RULES
            level, *rest = (
                ("-",) * 3 if rule else (f"{one.level:.2f}", f"{one.ratio_error:.1%}", f"{one.optimism:+.1%}")
            )
            order = "-" if one.ordered is None else f"{one.ordered:.1%}"
            cells = (str(one.layouts), str(one.jobs), level, f"{one.regret:.1%}", f"{one.worst:.1%}", order, *rest)
            print(f"  {TITLES[tool]:14s}" + "".join(f"{cell:>13s}" for cell in cells))
            key = f"{family.replace('-', '_')}_{tool}"
            figures |= {f"{key}_regret": one.regret, f"{key}_worst": one.worst, f"{key}_ordered": one.ordered or 0.0}
            if not rule:
                figures |= {f"{key}_level": one.level, f"{key}_ratio_error": one.ratio_error}
                figures[f"{key}_optimism"] = one.optimism
        start = family.replace("-", "_")
        figures |= {f"{start}_layouts": one.layouts, f"{start}_sweeps": one.jobs, f"{start}_pairs": one.pairs}
    return figures


def _commit(folder: Path) -> str:
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "of unknown commit"


def main() -> None:
    """Predict, print and record."""
    parser = bench.parser(__doc__)
    parser.add_argument("--calculon", type=Path, help="checkout of calculon-ai/calculon")
    parser.add_argument("--simumax", type=Path, help="checkout of MooreThreads/SimuMax")
    options = parser.parse_args()
    runs = sweeps(options.tiny)
    weft, instead = weft_tool(runs)
    made = {"calculon": calculon_tool, "simumax": simumax_tool}
    folders = {name: folder for name in made if (folder := getattr(options, name)) is not None}
    tools: dict[str, Predict] = {"weft": weft} | {name: made[name](folder) for name, folder in folders.items()}
    tools |= {"fewest": lambda run: float(run.layout.x * run.layout.pipeline), "random": lambda run: 1.0}
    found, refusals = scored(tools, runs)
    figures = printed(found)
    for name in folders:
        print(f"{TITLES[name]} refuses {refusals[name]} of {len(runs)} layouts.")
        figures[f"{name}_refused"] = refusals[name]
    for family, count in instead.items():
        print(f"Weft: shipped constants for {count} runs of {family}, which the shipped errors lack.")
        figures[f"{family.replace('-', '_')}_shipped_constants"] = count
    given = (f"{TITLES[name]} {_commit(folder)}" for name, folder in folders.items())
    bench.record(options, figures, ", ".join(given))


if __name__ == "__main__":
    main()
