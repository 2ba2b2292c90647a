"""Train the small model on two ranks with sharded weights, gradients and states (ZeRO 3).

``python record_zero.py FOLDER``. Each rank saves its shards in one torch distributed checkpoint.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import small_model
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from record_torch import Net
from torch import optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2
RUNS = {
    "zero": {"lr": 1e-3},
    "zero_odd": {"lr": 3e-4, "betas": (0.8, 0.95), "weight_decay": 0.1},
}


def train(rank: int, folder: str, settings: dict[str, object]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}.ranks", rank=rank, world_size=RANKS
    )
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = optim.AdamW(net.parameters(), **settings)

    def save(kind: str, number: int, tensors: dict[str, torch.Tensor]) -> None:
        dcp.save(tensors, checkpoint_id=f"{folder}/{kind}_{number}")

    save("weights", 0, net.state_dict())
    for step in range(small_model.STEPS):
        batch = small_model.draw_batch(step)
        inputs, targets = (torch.from_numpy(array[rank::RANKS]) for array in batch)
        optimizer.zero_grad()
        ((net(inputs) - targets) ** 2).mean().backward()
        gradients = {name: weight.grad for name, weight in net.named_parameters()}
        save("gradients", step + 1, gradients)
        optimizer.step()
        save("weights", step + 1, net.state_dict())
    dist.barrier()  # neither rank leaves while the other one still talks to it
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo that are still running abort an ordinary end, now and then


if __name__ == "__main__":
    for name, settings in RUNS.items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True)
        mp.spawn(train, (str(folder), settings), nprocs=RANKS)
