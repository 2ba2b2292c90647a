"""Two steps of one rank of a distributed run, once plain and once recorded; prints both losses.

torchrun --standalone --nproc-per-node 2 distributed_steps.py OUT
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import dumpdiff

WIDTH = 8


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def shard_parameters(model: nn.Sequential) -> None:
    """Distribute the parameters, which are gathered for each call (FSDP2)."""
    for layer in (*model, model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))


def split_layers(model: nn.Sequential) -> None:
    """Distribute the layers (tensor parallelism, DTensor)."""
    for layer in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, init_device_mesh("cpu", (2,)), plan)


def train(
    distribute: Callable[[nn.Sequential], None],
    make_recorder: Callable[[nn.Module], AbstractContextManager[object]],
) -> list[float]:
    """Return the losses of two steps."""
    torch.manual_seed(0)
    model = nn.Sequential(FeedForward(), FeedForward())
    distribute(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    with make_recorder(model):
        for _ in range(2):
            loss = model(torch.randn(4, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for way in (shard_parameters, split_layers):
        folder = Path(sys.argv[1]) / way.__name__
        plain = train(way, lambda _: nullcontext())
        recorded = train(way, lambda model, folder=folder: dumpdiff.record(model, folder))
        # In one write: torchrun starts Python unbuffered, where print() writes the line end apart
        # and the lines of two ranks run into each other.
        sys.stdout.write(f"{way.__name__} {dist.get_rank()} {plain == recorded}\n")
    dist.destroy_process_group()
