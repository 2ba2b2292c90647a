"""The one step of the optimizer."""

from __future__ import annotations

import torch
from architecture import Optimizer
from torch import nn

BETA1 = 0.9
MOMENTUM = 0.9


def optimizer_of(net: nn.Module, rule: Optimizer) -> torch.optim.Optimizer:
    """The framework's own optimizer, with a group for each rule."""
    weights = list(net.parameters())
    groups = build_groups(weights, rule)
    if rule.kind in ("sgd", "momentum", "assign_sub"):
        momentum = MOMENTUM if rule.kind == "momentum" else 0.0
        return torch.optim.SGD(groups, momentum=momentum, foreach=False)
    framework_class = torch.optim.Adam if rule.kind == "adam" else torch.optim.AdamW
    adam = framework_class(groups, lr=rule.learning_rate, eps=rule.eps, foreach=False)
    if not rule.bias_correction or rule.kind == "adam_weight_decay":
        pretend_late(adam, weights)
    return adam


def build_groups(weights: list[nn.Parameter], rule: Optimizer) -> list[dict]:
    """Return the weights grouped by learning rate, weight decay and betas."""
    groups: dict[tuple[float, ...], dict] = {}
    for weight in weights:
        rate, decay = rule.get_rate(weight.ndim), rule.get_decay(weight.ndim)
        beta2 = rule.get_beta2(weight.ndim)
        group = {"params": [], "lr": rate, "weight_decay": decay}
        if rule.kind.startswith("adam"):
            group["betas"] = (BETA1, beta2)
        groups.setdefault((rate, decay, beta2), group)["params"].append(weight)
    return list(groups.values())


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
    if not rule.clip:
        return
    limit = rule.clip / rule.norm_factor
    if rule.group_clipped:
        nn.utils.clip_grad_norm_(weights, limit, foreach=False)
        return
    norm = nn.utils.get_total_norm([weight.grad for weight in weights], foreach=False)
    clipped = [weight for weight in weights if rule.is_clipped(weight.ndim)]
    nn.utils.clip_grads_with_norm_(clipped, limit, norm, foreach=False)
