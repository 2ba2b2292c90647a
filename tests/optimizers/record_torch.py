"""Train the small model with every rule of PyTorch: ``python record_torch.py FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import small_model
import torch
from torch import nn, optim

Optimizers = tuple[optim.Optimizer, ...]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(small_model.INPUTS, small_model.HIDDEN)
        self.norm = nn.LayerNorm(small_model.HIDDEN)
        self.second = nn.Linear(small_model.HIDDEN, small_model.OUTPUTS)
        self.load_state_dict(
            {name: torch.from_numpy(array) for name, array in small_model.draw_weights().items()}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.norm(self.first(x))))


class Lion(optim.Optimizer):
    """Chen et al., arXiv:2302.06675, program 1: PyTorch has none."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                direction = (0.9 * momentum + 0.1 * weight.grad).sign()
                weight.add_(direction, alpha=-group["lr"])
                momentum.mul_(0.99).add_(weight.grad, alpha=0.01)


@dataclass(frozen=True)
class Run:
    make: Callable[[Net], Optimizers]
    clip: float = 0.0
    dtype: torch.dtype = torch.float32
    master: bool = False  #: the optimizer updates float32 copies
    rates: tuple[float, ...] = ()
    previous_steps: int = 0  #: before the first recorded step
    scale: float = 1.0  #: of the loss; removed from the gradients after they are recorded
    steps: int = small_model.STEPS


def split_parameters(net: Net, decay: float) -> list[dict[str, object]]:
    """Return parameter groups with a decay of matrices only."""
    named = dict(net.named_parameters())
    vectors = [weight for name, weight in named.items() if name not in small_model.MATRICES]
    return [
        {"params": [named[name] for name in small_model.MATRICES], "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def make_adamw(**settings: object) -> Callable[[Net], Optimizers]:
    return lambda net: (optim.AdamW(net.parameters(), **{"lr": 1e-3, **settings}),)


def make_muon(net: Net, **settings: object) -> Optimizers:
    named = dict(net.named_parameters())
    vectors = [weight for name, weight in named.items() if name not in small_model.MATRICES]
    matrices = [named[name] for name in small_model.MATRICES]
    return optim.Muon(matrices, **{"lr": 0.02, **settings}), optim.AdamW(vectors, lr=1e-3)


def make_sgd(**settings: object) -> Callable[[Net], Optimizers]:
    return lambda net: (optim.SGD(net.parameters(), **{"lr": 0.1, **settings}),)


def make_transformers_adafactor(**settings: object) -> Callable[[Net], Optimizers]:
    from transformers.optimization import Adafactor

    return lambda net: (Adafactor(net.parameters(), **settings),)


RUNS = {
    "sgd": Run(make_sgd()),
    "sgd_momentum": Run(make_sgd(momentum=0.9)),
    "sgd_dampened": Run(make_sgd(momentum=0.9, dampening=0.3)),
    "sgd_nesterov": Run(make_sgd(momentum=0.8, nesterov=True, weight_decay=0.01)),
    "sgd_clipped": Run(make_sgd(momentum=0.9), clip=0.3),
    "sgd_scaled": Run(make_sgd(momentum=0.9), scale=1024.0),
    "adam": Run(lambda net: (optim.Adam(net.parameters(), lr=1e-3),)),
    "adam_l2": Run(lambda net: (optim.Adam(net.parameters(), lr=1e-3, weight_decay=0.02),)),
    "adamw": Run(make_adamw()),
    "adamw_fused": Run(make_adamw(fused=True, betas=(0.9, 0.95), weight_decay=0.1)),
    "adamw_groups": Run(lambda net: (optim.AdamW(split_parameters(net, 0.1), lr=3e-4),)),
    "adamw_odd": Run(make_adamw(betas=(0.87, 0.97), eps=3e-4, weight_decay=0.1)),
    "adamw_clipped": Run(make_adamw(betas=(0.9, 0.95)), clip=0.9),
    "adamw_warm_up": Run(make_adamw(), rates=(1e-4, 5e-4, 1e-3)),
    "adamw_resumed": Run(make_adamw(), previous_steps=5),
    "adamw_one_step": Run(make_adamw(), steps=1),
    "adamw_bfloat16": Run(make_adamw(), dtype=torch.bfloat16),
    "adamw_bfloat16_fast": Run(make_adamw(lr=1e-2, weight_decay=0.1), dtype=torch.bfloat16),
    "adamw_master": Run(make_adamw(), dtype=torch.bfloat16, master=True),
    "adamw_master_decay": Run(
        make_adamw(lr=1e-2, weight_decay=0.1), dtype=torch.bfloat16, master=True
    ),
    "adamw_master_clipped": Run(
        make_adamw(lr=3e-3, betas=(0.9, 0.95)), clip=0.1, dtype=torch.bfloat16, master=True
    ),
    "adamw_master_undecayed": Run(
        make_adamw(lr=1e-2, weight_decay=0.0), dtype=torch.bfloat16, master=True
    ),
    "amsgrad": Run(lambda net: (optim.Adam(net.parameters(), lr=1e-3, amsgrad=True),)),
    "amsgrad_decay": Run(make_adamw(amsgrad=True, weight_decay=0.1, betas=(0.9, 0.95))),
    "nadam": Run(lambda net: (optim.NAdam(net.parameters(), lr=2e-3),)),
    "nadam_odd": Run(lambda net: (optim.NAdam(net.parameters(), lr=2e-3, betas=(0.5, 0.95)),)),
    "radam": Run(lambda net: (optim.RAdam(net.parameters(), lr=1e-3),), steps=8),
    "radam_odd": Run(
        lambda net: (optim.RAdam(net.parameters(), lr=1e-3, betas=(0.8, 0.99)),), steps=8
    ),
    "adamax": Run(lambda net: (optim.Adamax(net.parameters(), lr=2e-3),)),
    "adamax_odd": Run(lambda net: (optim.Adamax(net.parameters(), lr=2e-3, betas=(0.8, 0.9)),)),
    "rmsprop": Run(lambda net: (optim.RMSprop(net.parameters(), lr=1e-3),)),
    "rmsprop_odd": Run(
        lambda net: (optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.9, eps=1e-6),)
    ),
    "adagrad": Run(lambda net: (optim.Adagrad(net.parameters(), lr=1e-2),)),
    "adagrad_odd": Run(
        lambda net: (optim.Adagrad(net.parameters(), lr=1e-2, initial_accumulator_value=0.1),)
    ),
    "lion": Run(lambda net: (Lion(net.parameters(), lr=1e-4),)),
    "lion_decay": Run(lambda net: (Lion(net.parameters(), lr=1e-4, weight_decay=0.1),)),
    "adafactor": Run(lambda net: (optim.Adafactor(net.parameters(), lr=1e-2),)),
    "adafactor_odd": Run(
        lambda net: (
            optim.Adafactor(net.parameters(), lr=5e-3, beta2_decay=-0.6, d=1.5, weight_decay=0.1),
        )
    ),
    "adafactor_transformers": Run(make_transformers_adafactor()),
    "adafactor_transformers_odd": Run(
        make_transformers_adafactor(
            lr=1e-3, scale_parameter=False, relative_step=False, beta1=0.9, weight_decay=0.1
        )
    ),
    "muon": Run(make_muon),
    "muon_odd": Run(lambda net: make_muon(net, lr=5e-3, momentum=0.9, nesterov=False)),
    "rprop": Run(lambda net: (optim.Rprop(net.parameters(), lr=1e-3),)),
}


def record_run(run: Run, folder: Path) -> None:
    net = Net()
    computing = Net().to(run.dtype) if run.master else net.to(run.dtype)
    updated = dict(net.named_parameters())  # weights that the optimizer updates
    computed = dict(computing.named_parameters())  # weights for the loss
    optimizers = run.make(net)
    losses = []

    def to_arrays(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        return {name: tensor.detach().float().numpy().copy() for name, tensor in tensors.items()}

    for step in range(-run.previous_steps, run.steps):
        if step == 0:
            states = {
                f"{key}.{name}": optimizers[0].state[updated[name]][key]
                for name in updated
                for key in (("exp_avg", "exp_avg_sq") if run.previous_steps else ())
            }
            small_model.save_arrays(folder, "weights", 0, to_arrays({**computed, **states}))
        inputs, targets = (
            torch.from_numpy(array).to(run.dtype)
            for array in small_model.draw_batch(step + run.previous_steps)
        )
        loss = ((computing(inputs) - targets) ** 2).mean()
        losses.append(float(loss.detach()))
        for weight in computed.values():
            weight.grad = None
        (loss * run.scale).backward()
        if step >= 0:
            small_model.save_arrays(
                folder,
                "gradients",
                step + 1,
                to_arrays({name: w.grad for name, w in computed.items()}),
            )
        for name, weight in computed.items():
            updated[name].grad = weight.grad.to(updated[name].dtype) / run.scale
        if run.clip:
            nn.utils.clip_grad_norm_(updated.values(), run.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups if run.rates else ():
                group["lr"] = run.rates[step]
            optimizer.step()
        for name, weight in updated.items():
            computed[name].data.copy_(weight.data)
        if step >= 0:
            small_model.save_arrays(folder, "weights", step + 1, to_arrays(computed))
    np.save(folder / "losses.npy", np.array(losses))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, run in RUNS.items():
        record_run(run, Path(sys.argv[1]) / name)
