"""The model of own_model.py with PyTorch's parallelize_module and fully_shard, for comparison: the same losses.

torchrun --nproc-per-node 4 examples/own_model_torch.py
"""

import torch
import torch.distributed as dist
from own_model import Block, batch, decoder
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy

if __name__ == "__main__":
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = decoder()
    columns, rows = ("query", "key", "value", "up"), ("out", "down")
    plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    for block in model:
        if isinstance(block, Block):
            parallelize_module(block, mesh["tp"], plan)
            fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    for number in range(10):
        inputs, targets = (part.chunk(2)[mesh["dp"].get_local_rank()] for part in batch())
        loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total, group=mesh["dp"].get_group())
        if dist.get_rank() == 0:
            print(f"step {number + 1}: loss {total.item() / 2:.4f}", flush=True)
    dist.destroy_process_group()
