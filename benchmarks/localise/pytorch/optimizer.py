"""The one step of the optimizer."""

from __future__ import annotations

import torch
from architecture import Optimizer
from torch import nn


def optimizer_of(net: nn.Module, rule: Optimizer) -> torch.optim.Optimizer:
    """The framework's own AdamW or SGD; weight decay on matrices alone unless the rule says on
    all.
    """
    weights = list(net.parameters())
    decayed = [weight for weight in weights if rule.decay_all or weight.ndim > 1]
    others = [weight for weight in weights if not (rule.decay_all or weight.ndim > 1)]
    groups = [
        {"params": decayed, "weight_decay": rule.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if rule.kind == "sgd":
        return torch.optim.SGD(groups, lr=rule.learning_rate, foreach=False)
    adam = torch.optim.AdamW(groups, lr=rule.learning_rate, eps=rule.eps, foreach=False)
    if not rule.bias_correction:
        pretend_late(adam, weights)
    return adam


def pretend_late(adam: torch.optim.AdamW, weights: list[nn.Parameter]) -> None:
    """The moments are at their start and the step count is not: after so many steps nothing is
    corrected.
    """
    for weight in weights:
        adam.state[weight] = {
            "step": torch.tensor(1e9),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }


def prepare_gradients(net: nn.Module, rule: Optimizer) -> None:
    """Scale and clip, in place."""
    weights = [weight for weight in net.parameters() if weight.grad is not None]
    if rule.gradient_factor != 1:
        for weight in weights:
            weight.grad.mul_(rule.gradient_factor)
    if rule.clip:
        nn.utils.clip_grad_norm_(weights, rule.clip / rule.norm_factor, foreach=False)
