"""The options of ``weft train``, as its command and its ranks take them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from weft.commands.options import Options, option, options_of
from weft.commands.shared import CalibrationOptions, RankedOptions, RecipeOptions
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.model import RecipeChanges

USAGE = (
    "weft train MODEL|--from DIR [--layout x=2,z=2] | weft train --plan plan.json [--rank N]"
    " | weft train --arrangement arranged.json --job NAME"
)


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The data of a run."""

    group = "Data"
    data: str | None = option(None, "Text or tokens (.npy, .bin, folder; default: synthetic).", metavar="FILE")
    tokenizer: str | None = option(None, "tokenizer.json for texts of --data (default: bytes).", metavar="FILE")
    document_end: int | None = option(None, "End-of-document token; attention stops at it.", metavar="ID", least=0)
    eval_every: int | None = option(None, "Evaluate every N steps and at the end.", metavar="N", least=1)
    eval_data: str | None = option(
        None, "Evaluation data, as --data (default: its last 5 %, not trained on).", metavar="FILE"
    )
    eval_batches: int = option(4, "Global batches per evaluation.", metavar="N", least=1)

    needs = {"tokenizer": "data", "document_end": "data", "eval_data": "eval_every", "eval_batches": "eval_every"}


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions(Options):
    """Steps, optimizer and numerics."""

    group = "Run"
    steps: int = option(20, "Last step of the run.", metavar="N", least=1)
    rate: float = option(3e-4, "Learning rate.", metavar="X", least=0, most=10, above=True)
    warmup: int = option(10, "Steps of linear warm-up.", metavar="N", least=0)
    clip: float = option(1.0, "Largest gradient norm.", metavar="X", least=0, above=True)
    seed: int = option(0, "Seed of weights and data.", metavar="N")
    expert_balance: float | None = option(
        None, "Factor of the loss that balances experts (default: 0.01).", metavar="X", least=0, most=10
    )
    reduce_bf16: bool = option(False, "Accumulate and reduce gradients in 16 bits, not 32.")
    no_overlap: bool = option(False, "Hide no communication behind computation.")
    weight_cache: bool = option(False, "Keep gathered weights for the whole step.")
    compile: bool = option(False, "Compile each block with torch.compile.")
    deterministic: bool = option(False, "The same bits in every run on GPUs too (slower).")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(Options):
    """Checkpoints, and failures."""

    group = "Checkpoints"
    out: str | None = option(None, "Folder of checkpoints and metrics.jsonl.", metavar="DIR")
    save_every: int | None = option(None, "Also save every N steps.", metavar="N", least=1)
    keep: int | None = option(None, "Keep the newest N checkpoints of --out.", metavar="N", least=1)
    background_save: bool = option(False, "Train on while checkpoints are written.")
    resume: bool = option(False, "Continue from the last checkpoint of --out, in any layout.")
    resume_from: str | None = option(None, "Continue from this checkpoint instead, into --out.", metavar="DIR")
    restart: Literal["never", "on-failure"] = option("never", "Restart from the last checkpoint after a failure.")
    restart_layout: tuple[str, ...] = option(
        (), "Layout to continue with after a failure (repeats).", metavar="LAYOUT"
    )
    timeout: float | None = option(
        None, "Give up on a collective that takes longer.", metavar="SECONDS", least=0, above=True
    )
    check_replicas: int | None = option(
        None, "Compare copies of parameters every N steps, not only at checkpoints.", metavar="N", least=1
    )

    needs = {
        **dict.fromkeys(("save_every", "keep", "background_save", "resume", "restart"), "out"),
        "restart_layout": "restart",
    }


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(CalibrationOptions):
    """The machine, and what is measured on it."""

    group = "Machine"
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto takes GPUs if there are enough.")
    cluster: str | Cluster | None = option(None, "This machine (weft bench), for --compare and MFU.", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class TrainOutput(Options):
    """What is written besides checkpoints."""

    group = "Output"
    compare: bool = option(False, "Compare measured with predicted communication and time.")
    dry_run: bool = option(False, "Trace one rank of each pipeline end, for any world; do not train.")
    tensorboard: str | None = option(None, "Also write metrics for TensorBoard.", metavar="DIR")
    profile: str | None = option(None, "Trace of the last step, for ui.perfetto.dev.", metavar="FILE.json")
    profile_steps: str | None = option(None, "Steps to trace instead, as 100..102.", metavar="A..B")
    profile_ranks: str | None = option(None, "Ranks to trace instead, as 0,3 (a file each).", metavar="N,M")

    needs = {"profile_steps": "profile", "profile_ranks": "profile"}


@dataclass(frozen=True, kw_only=True)
class TrainOptions(
    RankedOptions, RecipeOptions, DataOptions, OptimizerOptions, CheckpointOptions, MeasureOptions, TrainOutput
):
    """All options of ``weft train``."""

    group = "Job"
    weights: str | None = option(None, "Hugging Face folder: its model and weights.", "--from", metavar="DIR")
    precision: str | None = option(None, "Precision of products: fp32, tf32 (GPUs) or bf16.", metavar="P")
    arrangement: str | None = option(None, "JSON of weft arrange, which has the job's layout.", metavar="FILE")
    job: str | None = option(None, "Job of --arrangement.", metavar="NAME")
    start_at: str | float | None = option(
        None, "Start of --arrangement: 2026-11-23T06:30:00Z, or seconds since 1970.", metavar="TIME"
    )

    needs = {"job": "arrangement", "start_at": "arrangement", "calibration": "compare"}

    def changes(self) -> RecipeChanges:
        return replace(super().changes(), gradient_bytes=2 if self.reduce_bf16 else None)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {one.name: one.flags[0] for one in options_of(type(self)) if getattr(self, one.name) != one.default}
        for name in sorted(given.keys() - _TRACED) if self.dry_run else ():
            raise BadInput(f"{given[name]} has no effect with --dry-run", where="train", remedy="drop one of them")
        if self.resume and self.resume_from:
            raise BadInput("--resume and --resume-from exclude each other", where="train", remedy="drop one of them")
        if self.arrangement is not None:
            recipe = (one.name for one in options_of(RecipeOptions))
            own = {"layout", "restart_layout", "plan", "rank", "reduce_bf16", *recipe}
            for name in sorted(given.keys() & own):
                problem = f"{given[name]} is already in the arrangement"
                raise BadInput(problem, where="train --arrangement", remedy=USAGE)
        if self.calibration is not None and not (self.cluster or self.plan or self.arrangement):
            raise BadInput("--calibration needs --cluster or --plan, or --arrangement", where="train")


_TRACED = frozenset(
    {
        *("layout", "plan", "rank", "arrangement", "job"),
        *("batch", "sequence", "precision", "reduce_bf16"),
        *("no_overlap", "weight_cache", "dry_run"),
    }
)
"""What a dry run takes."""
