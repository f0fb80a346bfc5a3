"""NCCL's settings for a plan, and what their check finds."""

import numpy as np
import pytest

from weft.errors import Unsupported
from weft.fabric.dimension import Dimension
from weft.fabric.families import rail
from weft.fabric.paths import routes
from weft.interop import nccl
from weft.routing.traffic import job_traffic


def settings_of(text):
    return dict(line.split("=") for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("parts", [1, 4])
def test_queue_pairs(planned, parts):
    text = nccl.write_environment(*planned(8, parts=parts))
    assert nccl.lint_environment(text) == ()
    assert settings_of(text) == {
        "NCCL_IB_QPS_PER_CONNECTION": str(parts),
        "NCCL_IB_SPLIT_DATA_ON_QPS": str(int(parts > 1)),
        "NCCL_CROSS_NIC": "0",
    }
    assert "flow label 0" in text


def test_pairs_of_several_collectives_are_not_split():
    fabric = rail.only(8, radix=8, bandwidth_Bps=50e9, scale_up=Dimension(kind="switch", size=4, bandwidth_Bps=1e9))
    source, target = np.array([0, 0]), np.array([4, 4])
    traffic = job_traffic(source, target, np.ones(2), collective=np.array([0, 1]))
    text = nccl.write_environment(fabric, traffic, routes(fabric, source, target))
    assert settings_of(text)["NCCL_IB_QPS_PER_CONNECTION"] == "1"


def test_flows_across_rails():
    domain = Dimension(kind="switch", size=4, bandwidth_Bps=450e9)
    fabric = rail.only(8, radix=8, bandwidth_Bps=50e9, scale_up=domain)
    for target, crosses in ((1, "0"), (4, "0"), (5, "1")):
        ends = np.array([0]), np.array([target])
        text = nccl.write_environment(fabric, job_traffic(*ends, np.ones(1)), routes(fabric, *ends))
        assert settings_of(text)["NCCL_CROSS_NIC"] == crosses


def test_spread_plans_route_adaptively(planned):
    text = nccl.write_environment(*planned(8, mode="spray"))
    assert settings_of(text)["NCCL_IB_ADAPTIVE_ROUTING"] == "1"
    assert nccl.lint_environment(text) == ()


def test_too_many_queue_pairs(planned):
    with pytest.raises(Unsupported, match="129 queue pairs"):
        nccl.write_environment(*planned(8, flows=1, parts=129))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NCCL_CROSS_NIC 1", "not KEY=NUMBER"),
        ("NCCL_CROSS_NIC=3", "not in 0 to 2"),
        ("NCCL_IB_QPS_PER_CONNECTION=0", "not in 1 to 128"),
        ("NCCL_MAGIC=1", "not known"),
        ("NCCL_CROSS_NIC=1\nNCCL_CROSS_NIC=1", "given twice"),
        ("# a=b", "comment with ="),
    ],
)
def test_what_the_check_finds(text, words):
    assert words in " ".join(nccl.lint_environment(text))
