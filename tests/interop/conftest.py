"""A large cluster, two models, jobs whose batch fits a layout, and planned routes."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from weft.cluster.spec import Accelerator, Cluster, Tier
from weft.errors import NothingFeasible
from weft.fabric.families import clos
from weft.fabric.paths import routes
from weft.layout.spec import Layout
from weft.model import catalogue
from weft.model.job import Job, Recipe
from weft.routing.traffic import job_traffic


def make_cluster(count=2**40, scale_up=8):
    accelerator = Accelerator(
        name="test",
        vendor="test",
        fp32_flops=1e12,
        fp16_flops=1e12,
        bf16_flops=1e12,
        fp8_flops=1e12,
        fp4_flops=1e12,
        memory_bytes=1e11,
        memory_Bps=1e12,
        scale_up_size=scale_up,
        scale_up_Bps=1e11,
        nic_Bps=1e10,
        host_Bps=1e10,
        multiprocessors=100,
        power_w=700.0,
    )
    tier = Tier(name="all", size=count, kind="switch", bandwidth_Bps=1e10, latency_s=1e-6)
    return Cluster(name="test", accelerator=accelerator, count=count, tiers=(tier,))


@pytest.fixture(scope="session")
def cluster():
    return make_cluster()


@pytest.fixture(scope="session")
def small_cluster():
    return make_cluster


@pytest.fixture(scope="session")
def expressed():
    """What a writer gives for a layout, or None where its tool cannot run it."""

    def written(write, job, cluster, layout):
        with suppress(NothingFeasible):
            return write(job, cluster, layout)

    return written


@pytest.fixture(scope="session")
def job_for():
    """A job of a catalogue model whose global batch is four micro-batches of the layout."""
    models = {name: catalogue.load(name).model for name in ("llama-3.1-8b", "deepseek-v2-lite", "llama-3.1-405b")}

    def make(layout=None, model="llama-3.1-8b", precision="bf16"):
        layout = layout or Layout()
        batch = 4 * layout.micro_batch * layout.dp
        recipe = Recipe(global_batch=batch, sequence=8192, precision=precision)
        return Job(model=replace(models[model]), recipe=recipe)

    return make


@pytest.fixture(scope="session")
def planned():
    """A Clos, flows of one job between random accelerators, and a path for each of them."""

    def make(accelerators=8, *, radix=4, flows=6, parts=1, seed=0, mode="ecmp", down=(), **clos_options):
        fabric = clos.build(accelerators, radix=radix, bandwidth_Bps=50e9, **clos_options)
        fabric = fabric.failed(links=np.array(down, dtype=np.int64)) if len(down) else fabric
        rng = np.random.default_rng(seed)
        ends = {tuple(rng.choice(accelerators, 2, replace=False).tolist()) for _ in range(flows)}
        source, target = np.array(sorted(ends)).T
        traffic = job_traffic(source, target, np.full(len(source), 1e6), names=["ring"]).split(parts)
        routed = routes(fabric, traffic.source, traffic.target, mode=mode, seed=seed, key=traffic.queue_pair)
        return fabric, traffic, routed

    return make
