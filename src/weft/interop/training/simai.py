"""SimAI (aliyun/SimAI): a layout as the workload text that AICB writes for it.

The form is that of ``dump_file`` of AICB's ``SimAI_training_workload_generator.py``, as ``Workload.cc`` of SimAI reads
it: a line of degrees, the number of rows, and a row for each layer of every micro-batch with the time and the
collective of its forward pass, its input gradient and its weight gradient.  Times are in ns, sizes in bytes of the
full buffer.  Collectives of the first two run over tensor parallelism (experts': ``_EP``) and hold the rank up, those
of the third over data parallelism (of experts: ``_DP_EP``) behind the computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import fsum

import numpy as np

from weft.cluster.spec import Cluster
from weft.estimation.costs import CostModel
from weft.estimation.iteration import Estimator
from weft.interop.training.launchers import LaunchArguments, NotExpressible, common_reasons, micro_batches
from weft.layout.mesh import degrees
from weft.layout.operations import Collective, Computation, Gemm, Operations, Pass
from weft.layout.spec import Layout, Recompute
from weft.layout.stages import HeldChunk, held_chunks
from weft.layout.step import Call, Step
from weft.layout.table import LayoutTable
from weft.model.job import Job

TOOL = "simai"
WRITTEN_FOR = "Written for SimAI with AICB of December 2025 (commit 23eec3c)."
FILE = "workload.txt"
POLICY = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
KINDS = {
    "all-reduce": "ALLREDUCE",
    "all-gather": "ALLGATHER",
    "reduce-scatter": "REDUCESCATTER",
    "all-to-all": "ALLTOALL",
}
NONE = "NONE", 0
UPDATE_NS = 100
"""What AICB writes for the update of every row."""
MOST_ROWS = 500_000

Communication = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class Row:
    """A layer: seconds and collectives forward, of its input gradient and of its weight gradient."""

    name: str
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    calls: list[Communication] = field(default_factory=lambda: [NONE, NONE, NONE])

    def text(self) -> str:
        """The row, without its end."""
        phases = zip(self.seconds, self.calls, strict=True)
        columns = [f"{round(seconds * 1e9)}\t{kind}\t{size}" for seconds, (kind, size) in phases]
        return "\t".join((self.name, "-1", *columns, str(UPDATE_NS)))


PHASES = {"forward": 0, "input-gradient": 1, "weight-gradient": 2}
FORWARD, BACKWARD, REDUCTION = 0, 1, 2


def launch_arguments(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments | NotExpressible:
    """The workload of the stage of a layout that computes longest."""
    reasons = common_reasons(job, cluster, layout) + _reasons(job, layout)
    if reasons:
        return NotExpressible(tool=TOOL, reasons=tuple(reasons))
    made = _Rows(job, cluster, layout)
    rows = made.rows()
    sends = sum(int(one.bytes[0]) for one in made.step.boundary if one.kind == "send") if layout.pipeline > 1 else 0
    degrees_ = {
        "model_parallel_NPU_group:": layout.x,
        "ep:": layout.expert,
        "pp:": layout.pipeline,
        "vpp:": layout.virtual_stages,
        "ga:": micro_batches(job, layout),
        "all_gpus:": layout.world,
        "checkpoints:": 0,
        "checkpoint_initiates:": 0,
        "pp_comm:": sends,
    }
    head = " ".join((POLICY, *(f"{name} {value}" for name, value in degrees_.items())))
    notes = ["computation is timed by Weft's estimate; what is recomputed counts as input gradient"]
    if layout.pipeline > 1:
        notes.append(f"rows are those of stage {made.stage.stage}, which computes longest")
        if job.model.tied_embeddings:
            notes.append("the sum of the tied embedding's gradient over both ends of the pipeline is left out")
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text="\n".join((head, str(len(rows)), *(row.text() for row in rows))) + "\n",
        file=FILE,
        command=f"SimAI_simulator -t 16 -w {FILE} -n TOPOLOGY -c SimAI.conf",
        notes=tuple(notes),
    )


def _reasons(job: Job, layout: Layout) -> list[str]:
    found = []
    if layout.z > 1:
        found.append(f"fsdp is {layout.z}: its layers gather no weights")
    if layout.context > 1:
        found.append(f"cp is {layout.context}: it has no groups of context parallelism")
    if layout.expert_tensor > 1:
        found.append(f"etp is {layout.expert_tensor}: its experts are not cut")
    if layout.recompute_layers:
        found.append("its layers recompute in all blocks or in none")
    if layout.offload_optimizer or layout.offload_activations:
        found.append("it does not offload")
    blocks = sum(sum(chunk.counts) for chunk in held_chunks(job.model, layout)) / layout.pipeline
    if blocks * 16 * (job.recipe.global_batch / (layout.micro_batch * layout.data_parallel)) > MOST_ROWS:
        found.append("it would have more than half a million rows: take a smaller batch or larger micro-batches")
    return found


class _Rows:
    """The rows of one rank of the stage that computes longest."""

    def __init__(self, job: Job, cluster: Cluster, layout: Layout) -> None:
        self.layout, self.recipe = layout, job.recipe
        estimator = Estimator(job, cluster)
        self.step = Step(job.model, job.recipe, LayoutTable.of([layout]), estimator.software)
        self.costs = CostModel(estimator.kernels, estimator.network, self.step)
        self.parts = [self._part(operations, i) for i, operations in enumerate(self.step.operations)]
        chunks = held_chunks(job.model, layout)
        stages = [[one for one in chunks if one.stage == stage] for stage in range(layout.pipeline)]
        every = [HeldChunk.together(own) for own in stages]
        self.stage = max(every, key=lambda one: (self._seconds(one), -one.stage))
        self.micro_batches = micro_batches(job, layout)

    def rows(self) -> list[Row]:
        """What happens once a step, which SimAI's backward pass comes to last, and all micro-batches."""
        counts = [int(count) for count in self.stage.counts]
        *blocks, embedding, head = zip(self.parts, counts, strict=True)
        order = (embedding, *blocks, head)
        every = [row for part, count in order for _ in range(count) for row in part]
        return [*self._once(), *(row for _ in range(self.micro_batches) for row in every)]

    def _seconds(self, stage: HeldChunk) -> float:
        whole = [fsum(s for row in part for s in row.seconds) for part in self.parts]
        return fsum(count * one for count, one in zip(stage.counts, whole, strict=True))

    def _part(self, operations: Operations, number: int) -> list[Row]:
        """Rows of a block, of the embedding or of the head: one for each layer of its list of operations."""
        block = number < len(self.step.operations) - 2
        rows: dict[str, Row] = {}
        for one in operations.computations:
            name = one.name if isinstance(one, Gemm | Pass) else "attention"
            row = rows.setdefault(name, Row(name=name))
            seconds = float(self.costs.seconds(one)[0])
            row.seconds[PHASES[one.phase]] += seconds
            if block and one.phase == "forward" and self._repeats(one):
                row.seconds[BACKWARD] += seconds
        made = list(rows.values())
        for collective in operations.collectives:
            call = self._call(collective, collective.axes)
            if call == NONE:
                continue
            phase = FORWARD if collective.phase == "forward" else BACKWARD
            _place(made, collective.name.rsplit(".", 1)[0], phase, call)
            if block and phase == FORWARD and self.layout.recompute == Recompute.FULL:
                _place(made, collective.name.rsplit(".", 1)[0], BACKWARD, call)
        return made

    def _repeats(self, one: Computation) -> bool:
        """Whether recomputation runs it again."""
        if self.layout.recompute == Recompute.FULL:
            return True
        if self.layout.recompute == Recompute.NONE:
            return False
        wanted = "core" if self.recipe.attention == "unfused" else "cheap"
        core = isinstance(one, Gemm) and one.role == "core" and wanted == "core"
        return core or (isinstance(one, Pass) and one.replay == wanted)

    def _once(self) -> Iterator[Row]:
        """Gradients summed over data parallelism, and updated weights gathered."""
        for one in self.step.once(self.stage):
            call = self._call(one, one.axes)
            if call == NONE or not one.times[0]:
                continue
            kind, size = call
            experts = one.axes[0].startswith("expert")
            calls = [NONE, NONE, (kind + ("_DP_EP" if experts else ""), round(size * float(one.times[0])))]
            if one.axes != ("tied",):  # SimAI has no group of the two ends of a pipeline
                yield Row(name=f"step.{one.name}", calls=calls)

    def _call(self, one: Collective | Call, axes: Iterable[str]) -> Communication:
        """Kind and bytes of a collective; nothing where one rank is alone or it moves nothing."""
        ranks = float(np.prod([degrees(self.step.table, axis)[0] for axis in axes]))
        size = round(float(one.bytes[0]))
        if ranks <= 1 or not size or one.kind not in KINDS:
            return NONE
        return KINDS[one.kind] + ("_EP" if tuple(axes) == ("expert",) else ""), size


def _place(rows: list[Row], name: str, phase: int, call: Communication) -> None:
    """Put a collective beside the computation of its name, or into a row of its own behind that."""
    places = [i for i, row in enumerate(rows) if row.name == name]
    if places and rows[places[0]].calls[phase] == NONE:
        rows[places[0]].calls[phase] = call
        return
    more = Row(name=f"{name}.more" if places else name)
    more.calls[phase] = call
    rows.insert(places[-1] + 1 if places else len(rows), more)
