"""A large cluster, two models, and jobs whose batch fits a layout."""

from dataclasses import replace

import pytest

from weft.cluster.spec import Accelerator, Cluster, Tier
from weft.layout.spec import Layout
from weft.model import catalogue
from weft.model.job import Job, Recipe


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
def job_for():
    """A job of a catalogue model whose global batch is four micro-batches of the layout."""
    models = {
        name: catalogue.load(name).model for name in ("llama-3.1-8b", "deepseek-v2-lite", "llama-3.1-405b")
    }

    def make(layout=None, model="llama-3.1-8b", precision="bf16"):
        layout = layout or Layout()
        batch = 4 * layout.micro_batch * layout.data_parallel
        recipe = Recipe(global_batch=batch, sequence=8192, precision=precision)
        return Job(model=replace(models[model]), recipe=recipe)

    return make
