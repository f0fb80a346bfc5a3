"""What every fabric that is built must be, so that traffic can be simulated on it."""

import numpy as np

from weft.fabric import Fabric
from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP


def check(fabric: Fabric) -> None:
    """Names are unique, links can carry and have a reverse, domains are equal and closed, and all is connected."""
    source, target, count = fabric.source, fabric.target, fabric.accelerators
    assert len(fabric.names) == len(set(fabric.names)) == fabric.nodes, "a name for each node"
    ends = np.concatenate([source, target])
    assert ((ends >= 0) & (ends < fabric.nodes)).all(), "links join nodes that exist"
    assert (source != target).all(), "links leave their node"
    carries = np.isfinite(fabric.capacity_Bps) & (fabric.capacity_Bps > 0)
    assert (carries | ~fabric.up).all(), "links that are up have a capacity"
    assert (np.isfinite(fabric.latency_s) & (fabric.latency_s >= 0)).all(), "latencies are finite"
    backward = target * fabric.nodes + source
    assert np.isin(source * fabric.nodes + target, backward).all(), "links have a reverse"
    assert len(fabric.domain) == len(fabric.rail) == count, "every accelerator has a domain and a rail"
    assert len(set(np.unique(fabric.domain, return_counts=True)[1].tolist())) == 1, "domains are of one size"
    inside = (fabric.tier == SCALE_UP) & (np.maximum(source, target) < count)
    assert (fabric.domain[source[inside]] == fabric.domain[target[inside]]).all(), "scale-up links stay in a domain"
    label = components(fabric.nodes, source[fabric.up], target[fabric.up])[:count]
    assert (label == label[0]).all(), "accelerators reach each other"
