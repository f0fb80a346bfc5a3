"""The options of ``weft train``, as its command and its ranks take them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from weft.commands.options import option, options_of
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
class TrainOptions(RankedOptions, RecipeOptions, CalibrationOptions):
    """What is trained on what, for how long, and what is kept of it."""

    group = "Options"
    arrangement: str | None = option(
        None, "JSON of weft arrange; takes a job's layout, hosts, settings and offset.", metavar="FILE"
    )
    job: str | None = option(None, "Job of --arrangement.", metavar="NAME")
    start_at: str | float | None = option(
        None, "When the jobs of --arrangement begin, the same for all: 2026-11-23T06:30:00Z, or seconds since 1970.",
        metavar="TIME",
    )  # fmt: skip
    weights: str | None = option(
        None, "Folder of the Hugging Face hub: its model, beginning with its weights.", "--from", metavar="DIR"
    )
    expert_balance: float | None = option(
        None, "Factor of the loss that balances experts (default: 0.01).", metavar="X", least=0, most=10
    )
    expert_capacity: float | None = option(
        None, "Copies of a sequence that an expert takes, times its even share (default: all).",
        metavar="X", least=0, above=True,
    )  # fmt: skip
    precision: str | None = option(None, "Of products: fp32, tf32 (GPUs) or bf16.", metavar="P")
    reduce_bf16: bool = option(False, "Accumulate and reduce gradients in 16 bits instead of 32.")
    data: tuple[str, ...] = option(
        (), "Text to learn, byte by byte, or tokens (.npy, .bin, folder); repeats, FILE=WEIGHT (default: synthetic).",
        metavar="FILE",
    )  # fmt: skip
    tokenizer: str | None = option(None, "tokenizer.json for texts of --data instead of bytes.", metavar="FILE")
    document_end: int | None = option(
        None, "Token that ends a document; attention does not cross it.", metavar="ID", least=0
    )
    eval_every: int | None = option(None, "Evaluate every N steps and at the end.", metavar="N", least=1)
    eval_data: tuple[str, ...] = option(
        (), "What is evaluated, as --data (default: its last twentieth, which is not trained on).", metavar="FILE"
    )
    eval_batches: int = option(4, "Global batches of an evaluation.", metavar="N", least=1)
    steps: int = option(20, "Steps in all.", metavar="N", least=1)
    rate: float = option(3e-4, "Learning rate.", metavar="X", least=0, most=10, above=True)
    warmup: int = option(10, "Steps to reach it.", metavar="N", least=0)
    clip: float = option(1.0, "Greatest gradient norm.", metavar="X", least=0, above=True)
    seed: int = option(0, "Seed of weights and data.", metavar="N")
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", "Where ranks compute; auto takes GPUs if there are enough."
    )
    out: str | None = option(None, "Checkpoints and metrics.jsonl go there.", metavar="DIR")
    resume_from: str | None = option(None, "Go on from this checkpoint instead, into --out.", metavar="DIR")
    save_every: int | None = option(None, "Also save every N steps.", metavar="N", least=1)
    resume: bool = option(False, "Go on from the last checkpoint of --out, on any grid.")
    background_save: bool = option(False, "Train on while checkpoints are written.")
    keep: int | None = option(None, "Keep the newest N checkpoints of --out.", metavar="N", least=1)
    check_replicas: int | None = option(
        None, "Compare copies of parameters every N steps too, not only before checkpoints.", metavar="N", least=1
    )
    timeout: float | None = option(
        None, "Give up on a collective that takes longer.", metavar="SECONDS", least=0, above=True
    )
    restart: Literal["never", "on-failure"] = option(
        "never", "on-failure: after a rank died or hung, go on from the last checkpoint of --out, if it has one."
    )
    restart_layout: tuple[str, ...] = option(
        (), "Layout to go on with after a failure (repeats); under torchrun, of as many ranks as it started.",
        metavar="LAYOUT",
    )  # fmt: skip
    tensorboard: str | None = option(None, "Metrics for TensorBoard too.", metavar="DIR")
    profile: str | None = option(None, "Trace of the last step for ui.perfetto.dev.", metavar="FILE.json")
    profile_steps: str | None = option(None, "Trace these steps instead, 100..102.", metavar="A..B")
    profile_ranks: str | None = option(
        None, "Trace these ranks instead, 0,3: FILE-rank0.json, FILE-rank3.json.", metavar="N,M"
    )
    no_overlap: bool = option(False, "Hide no communication behind computation.")
    weight_cache: bool = option(False, "Keep gathered weights for the whole step.")
    compile: bool = option(False, "Compile each block (torch.compile): slow first steps, faster ones behind.")
    deterministic: bool = option(False, "The same bits in every run on GPUs too (slower).")
    slow: tuple[str, ...] = option(
        (), "CPU ranks that compute longer: rank=3:1.3, host=0:1.1 or random=0.02 (repeats).", metavar="WHO"
    )
    compare: bool = option(False, "Print measured beside predicted communication and time.")
    dry_run: bool = option(False, "Trace one rank of each pipeline end, for any world; do not train.")
    cluster: str | Cluster | None = option(None, "This machine, of weft bench, for --compare and MFU.", metavar="FILE")

    def changes(self) -> RecipeChanges:
        return replace(super().changes(), gradient_bytes=2 if self.reduce_bf16 else None)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {one.name: one.flags[0] for one in options_of(type(self)) if getattr(self, one.name) != one.default}
        for name in sorted(given.keys() - _TRACED) if self.dry_run else ():
            raise BadInput(f"{given[name]} says nothing with --dry-run", where="train", remedy="drop one of them")
        for name, needed in _NEEDS:
            if name in given and needed not in given:
                raise BadInput(f"{given[name]} needs --{needed.replace('_', '-')}", where="train")
        if self.resume and self.resume_from:
            raise BadInput("--resume and --resume-from are both given", where="train", remedy="drop one of them")
        if self.compare and self.expert_capacity is not None:
            problem = "--compare predicts a step that sends all copies of tokens to experts"
            raise BadInput(problem, where="train", remedy="drop it, or --expert-capacity")
        if self.arrangement is not None:
            recipe = (one.name for one in options_of(RecipeOptions))
            own = {"layout", "restart_layout", "plan", "rank", "reduce_bf16", *recipe}
            for name in sorted(given.keys() & own):
                problem = f"{given[name]} is already in the arrangement"
                raise BadInput(problem, where="train --arrangement", remedy=USAGE)
        if self.calibration is not None and not (self.cluster or self.plan or self.arrangement):
            raise BadInput("--calibration needs --cluster or --plan, or --arrangement", where="train")


_NEEDS = (
    ("tokenizer", "data"),
    ("document_end", "data"),
    ("eval_data", "eval_every"),
    ("eval_batches", "eval_every"),
    ("job", "arrangement"),
    ("start_at", "arrangement"),
    ("save_every", "out"),
    ("resume", "out"),
    ("keep", "out"),
    ("profile_steps", "profile"),
    ("profile_ranks", "profile"),
    ("background_save", "out"),
    ("restart", "out"),
    ("restart_layout", "restart"),
    ("calibration", "compare"),
)
_TRACED = frozenset(
    {
        *("layout", "plan", "rank", "arrangement", "job"),
        *("batch", "sequence", "precision", "reduce_bf16"),
        *("no_overlap", "weight_cache", "dry_run"),
    }
)
"""What a dry run takes."""
