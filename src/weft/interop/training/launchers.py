"""What every launcher module shares: the records that go out and come in, and the process grid.

A launcher module has ``launch_arguments(job, cluster, layout) -> LaunchArguments | NotExpressible``;
those whose configurations can be read back also have ``read(text, where=..., world=...)``, which gives a
``RunConfiguration``.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.cluster.spec import Cluster
from weft.layout.spec import Layout
from weft.model.job import AttentionKernel, Job, Precision
from weft.model.resolve import RecipeChanges
from weft.model.spec import Model

MASTER = '--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}"'
_LARGEST_HOST = 16
_RACK_SCALE_HOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArguments:
    """A configuration that a launcher can run.

    ``written_for`` names the version whose names of settings it uses; it also stands in the text, where the format
    has comments.  ``text`` is the content of ``file``; ``command`` starts it on every host.  ``notes`` say what the
    launcher does otherwise than planned, or leaves to the user.
    """

    tool: str
    written_for: str
    text: str
    file: str
    command: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotExpressible:
    """A layout that a launcher cannot run, with every reason."""

    tool: str
    reasons: tuple[str, ...]

    @property
    def reason(self) -> str:
        return f"{self.tool} cannot run this layout: {'; '.join(self.reasons)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfiguration:
    """A run as its configuration states it.

    ``model`` and the fields of the recipe (``global_batch`` in sequences, ``sequence`` in tokens, ``precision``,
    ``attention``, ``dropout``, ``gradient_bytes``) are None where it does not say; ``problem`` says why there is no
    model.  ``world`` counts accelerators.  ``ignored`` names settings that were not used, ``notes`` what was assumed.
    """

    tool: str
    layout: Layout
    world: int
    model: Model | None = None
    global_batch: int | None = None
    sequence: int | None = None
    precision: Precision | None = None
    attention: AttentionKernel | None = None
    dropout: bool | None = None
    gradient_bytes: int | None = None
    problem: str = "does not state the model"
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def changes(self) -> RecipeChanges:
        """What it says of the recipe."""
        names = ("global_batch", "sequence", "precision", "attention", "dropout", "gradient_bytes")
        return RecipeChanges(**{name: getattr(self, name) for name in names})


def micro_batches(job: Job, layout: Layout) -> int:
    """Micro-batches of a data-parallel rank in one iteration."""
    return job.recipe.global_batch // (layout.micro_batch * layout.data_parallel)


def placement(layout: Layout) -> tuple[str, ...]:
    """The axes that are cut at all, inner to outer."""
    return tuple(axis for axis in layout.order if getattr(layout, axis) > 1)


def placed_like(layout: Layout, *axes: str) -> bool:
    """Whether the placement is that of ``axes``, inner to outer, leaving out axes of degree 1."""
    return placement(layout) == tuple(axis for axis in axes if getattr(layout, axis) > 1)


def common_reasons(job: Job, cluster: Cluster, layout: Layout) -> list[str]:
    """Why no launcher can run a layout: too large, a broken batch, or an axis that only Weft has."""
    reasons = []
    if layout.y > 1:
        reasons.append(f"y is {layout.y}: no launcher splits the other side of a linear layer")
    if layout.world > cluster.count:
        reasons.append(f"it needs {layout.world} accelerators of {cluster.count}")
    share = layout.micro_batch * layout.data_parallel
    if job.recipe.global_batch % share:
        reasons.append(
            f"the global batch {job.recipe.global_batch} is no multiple of micro_batch {layout.micro_batch}"
            f" * z {layout.z} * data {layout.data} = {share}"
        )
    return reasons


def host_size(cluster: Cluster) -> int:
    """Accelerators of one host: the scale-up domain, or 4 where that spans a rack (GB200 NVL72)."""
    size = max(cluster.accelerator.scale_up_size, 1)
    return size if size <= _LARGEST_HOST else _RACK_SCALE_HOST


def process_grid(cluster: Cluster, layout: Layout) -> tuple[int, int]:
    """Hosts, and processes on each: as many as a host holds and the world allows in equal shares."""
    host = host_size(cluster)
    each = next(n for n in range(min(host, layout.world), 0, -1) if layout.world % n == 0)
    return layout.world // each, each


def torchrun(cluster: Cluster, layout: Layout) -> str:
    """The start of a torchrun command; every host runs it."""
    hosts, each = process_grid(cluster, layout)
    return f"torchrun --nnodes {hosts} --nproc-per-node {each}" + (f" {MASTER}" if hosts > 1 else "")
