"""What the runtime takes of PyTorch 2.11 to 2.13 beneath its public API, and names that differ between these."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Their names from PyTorch 2.13 on, and before."""
assert_on_device = torch._assert_async
"""Raises on the device where a condition is false, without waiting for it."""
foreach_norm = torch._foreach_norm


def in_backward() -> bool:
    """Whether a backward pass runs, in which checkpoints compute again."""
    return torch._C._current_graph_task_id() != -1


def default_store() -> Any:
    """The store in which ranks of the process group met."""
    return dist.distributed_c10d._get_default_store()


def start_fake_ranks(backend: str, rank: int, world: int) -> None:
    """Make this process a rank beside others that are not there, also for tensors on the meta device."""
    from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg

    dist.Backend.register_backend(backend, _create_fake_pg, extended_api=True, devices=["cpu", "cuda", "meta"])
    dist.init_process_group(backend, rank=rank, world_size=world, store=FakeStore())
