"""Trains the small model three steps with every rule that PyTorch has: ``python record_torch.py FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import small_model as model
import torch
from torch import nn, optim

Optimizers = tuple[optim.Optimizer, ...]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(model.INPUTS, model.HIDDEN)
        self.norm = nn.LayerNorm(model.HIDDEN)
        self.second = nn.Linear(model.HIDDEN, model.OUTPUTS)
        self.load_state_dict(
            {name: torch.from_numpy(array) for name, array in model.weights().items()}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.norm(self.first(x))))


@dataclass(frozen=True)
class Run:
    make: Callable[[Net], Optimizers]
    clip: float = 0.0
    dtype: torch.dtype = torch.float32
    master: bool = False  #: the optimizer moves float32 copies
    rates: tuple[float, ...] = ()
    before: int = 0  #: steps made before the first that is recorded
    scale: float = 1.0  #: of the loss; taken back from the gradients after they are recorded
    steps: int = model.STEPS


def split(net: Net, decay: float) -> list[dict[str, object]]:
    """Decay on matrices alone."""
    named = dict(net.named_parameters())
    others = [weight for name, weight in named.items() if name not in model.MATRICES]
    return [
        {"params": [named[name] for name in model.MATRICES], "weight_decay": decay},
        {"params": others, "weight_decay": 0.0},
    ]


def adamw(**settings: object) -> Callable[[Net], Optimizers]:
    return lambda net: (optim.AdamW(net.parameters(), **{"lr": 1e-3, **settings}),)


def muon(net: Net) -> Optimizers:
    named = dict(net.named_parameters())
    others = [weight for name, weight in named.items() if name not in model.MATRICES]
    return optim.Muon([named[name] for name in model.MATRICES], lr=0.02), optim.AdamW(
        others, lr=1e-3
    )


def sgd(**settings: object) -> Callable[[Net], Optimizers]:
    return lambda net: (optim.SGD(net.parameters(), **{"lr": 0.1, **settings}),)


RUNS = {
    "sgd": Run(sgd()),
    "sgd_momentum": Run(sgd(momentum=0.9)),
    "sgd_dampened": Run(sgd(momentum=0.9, dampening=0.3)),
    "sgd_nesterov": Run(sgd(momentum=0.8, nesterov=True, weight_decay=0.01)),
    "sgd_clipped": Run(sgd(momentum=0.9), clip=0.3),
    "sgd_scaled": Run(sgd(momentum=0.9), scale=1024.0),
    "adam": Run(lambda net: (optim.Adam(net.parameters(), lr=1e-3),)),
    "adam_l2": Run(lambda net: (optim.Adam(net.parameters(), lr=1e-3, weight_decay=0.02),)),
    "adamw": Run(adamw()),
    "adamw_fused": Run(adamw(fused=True, betas=(0.9, 0.95), weight_decay=0.1)),
    "adamw_groups": Run(lambda net: (optim.AdamW(split(net, 0.1), lr=3e-4),)),
    "adamw_odd": Run(adamw(betas=(0.87, 0.97), eps=3e-4, weight_decay=0.1)),
    "adamw_clipped": Run(adamw(betas=(0.9, 0.95)), clip=0.9),
    "adamw_warm_up": Run(adamw(), rates=(1e-4, 5e-4, 1e-3)),
    "adamw_resumed": Run(adamw(), before=5),
    "adamw_one_step": Run(adamw(), steps=1),
    "adamw_bfloat16": Run(adamw(), dtype=torch.bfloat16),
    "adamw_master": Run(adamw(), dtype=torch.bfloat16, master=True),
    "muon": Run(muon),
    "rprop": Run(lambda net: (optim.Rprop(net.parameters(), lr=1e-3),)),
}


def record(run: Run, folder: Path) -> None:
    net = Net()
    computing = Net().to(run.dtype) if run.master else net.to(run.dtype)
    kept = dict(net.named_parameters())  #: what the optimizer moves
    used = dict(computing.named_parameters())  #: what the loss is computed with
    optimizers = run.make(net)
    losses = []

    def arrays(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        return {name: tensor.detach().float().numpy().copy() for name, tensor in tensors.items()}

    for step in range(-run.before, run.steps):
        if step == 0:
            states = {
                f"{key}.{name}": optimizers[0].state[kept[name]][key]
                for name in kept
                for key in (("exp_avg", "exp_avg_sq") if run.before else ())
            }
            model.save(folder, "weights", 0, arrays({**used, **states}))
        inputs, wanted = (
            torch.from_numpy(array).to(run.dtype) for array in model.batch(step + run.before)
        )
        loss = ((computing(inputs) - wanted) ** 2).mean()
        losses.append(float(loss.detach()))
        for weight in used.values():
            weight.grad = None
        (loss * run.scale).backward()
        if step >= 0:
            model.save(
                folder, "gradients", step + 1, arrays({name: w.grad for name, w in used.items()})
            )
        for name, weight in used.items():
            kept[name].grad = weight.grad.to(kept[name].dtype) / run.scale
        if run.clip:
            nn.utils.clip_grad_norm_(kept.values(), run.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups if run.rates else ():
                group["lr"] = run.rates[step]
            optimizer.step()
        for name, weight in kept.items():
            used[name].data.copy_(weight.data)
        if step >= 0:
            model.save(folder, "weights", step + 1, arrays(used))
    np.save(folder / "losses.npy", np.array(losses))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, run in RUNS.items():
        record(run, Path(sys.argv[1]) / name)
