"""The update of one training step: scale, clip by the global norm, then one of OPTIMIZERS.

Constants are tensors, as in MindSpore Transformers' optimizers: a Python number makes operators
that belong nowhere.
"""

from __future__ import annotations

from dataclasses import replace

import architecture
import mindspore as ms
from mindspore import Tensor, nn, ops

BETA1 = 0.9
MOMENTUM = 0.9
TINY = 1e-6  #: keeps the clipping factor finite, as in Megatron-LM and PyTorch


def constant(value: float) -> Tensor:
    return Tensor(value, ms.float32)


class ClipGradNorm(nn.Cell):
    """All gradients times the same factor, so that their joint norm is at most ``limit``."""

    def __init__(self, weights: list[ms.Parameter], rule: architecture.Optimizer) -> None:
        super().__init__()
        self.norm_factor = constant(rule.norm_factor) if rule.norm_factor != 1 else None
        self.limit, self.one, self.tiny = constant(rule.clip), constant(1), constant(TINY)
        self.clipped = tuple(rule.is_clipped(weight.ndim) for weight in weights)
        self.sum = ops.ReduceSum()

    def construct(self, gradients):
        squares = ()
        for gradient in gradients:
            squares += (self.sum(ops.square(gradient)),)
        norm = ops.sqrt(ops.addn(squares))
        if self.norm_factor is not None:
            norm = norm * self.norm_factor
        factor = ops.minimum(self.limit / (norm + self.tiny), self.one)
        clipped = ()
        for n in range(len(gradients)):
            clipped += (gradients[n] * factor if self.clipped[n] else gradients[n],)
        return clipped


class AdamW(nn.Optimizer):
    """Decoupled weight decay (https://arxiv.org/abs/1711.05101, algorithm 2), with bias correction.

    ``nn.AdamWeightDecay`` has none, and ``nn.Adam`` adds the decay to the gradient.
    """

    def __init__(self, weights: list[ms.Parameter], rule: architecture.Optimizer) -> None:
        super().__init__(rule.learning_rate, weights)
        self.first = self._parameters.clone(prefix="exp_avg", init="zeros")
        self.second = self._parameters.clone(prefix="exp_avg_sq", init="zeros")
        dimensions = [weight.ndim for weight in weights]
        self.kept = tuple(constant(1 - rule.get_rate(n) * rule.get_decay(n)) for n in dimensions)
        self.decayed = tuple(rule.get_decay(n) > 0 for n in dimensions)
        self.rates = tuple(constant(rule.get_rate(n)) for n in dimensions)
        self.eps, self.one = constant(rule.eps), constant(1)
        self.beta1, self.rest1 = constant(BETA1), constant(1 - BETA1)
        betas = sorted({rule.get_beta2(n) for n in dimensions})
        self.beta2 = tuple(constant(beta) for beta in betas)
        self.rest2 = tuple(constant(1 - beta) for beta in betas)
        self.index_of_beta = tuple(betas.index(rule.get_beta2(n)) for n in dimensions)

    def construct(self, gradients):
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        step = ops.cast(self.global_step, ms.float32)
        short1 = self.one - ops.pow(self.beta1, step)
        corrections = ()
        for beta in self.beta2:
            corrections += (self.one - ops.pow(beta, step),)
        for n in range(len(self._parameters)):
            short2, beta2 = corrections[self.index_of_beta[n]], self.beta2[self.index_of_beta[n]]
            rest2 = self.rest2[self.index_of_beta[n]]
            weight, gradient = self._parameters[n], gradients[n]
            first = self.first[n] * self.beta1 + gradient * self.rest1
            second = self.second[n] * beta2 + ops.square(gradient) * rest2
            update = (first / short1) / (ops.sqrt(second / short2) + self.eps)
            kept = weight * self.kept[n] if self.decayed[n] else weight
            ops.assign(self.first[n], first)
            ops.assign(self.second[n], second)
            ops.assign(weight, kept - self.rates[n] * update)
        return True


class AssignSub(nn.Optimizer):
    """The plain gradient step without an operator of the framework: w -= rate * (g + decay * w)."""

    def __init__(self, weights: list[ms.Parameter], rule: architecture.Optimizer) -> None:
        super().__init__(rule.learning_rate, weights)
        self.rates = tuple(constant(rule.get_rate(weight.ndim)) for weight in weights)
        self.decays = tuple(constant(rule.get_decay(weight.ndim)) for weight in weights)
        self.decayed = tuple(rule.get_decay(weight.ndim) > 0 for weight in weights)

    def construct(self, gradients):
        for n in range(len(self._parameters)):
            weight, gradient = self._parameters[n], gradients[n]
            if self.decayed[n]:
                gradient = gradient + weight * self.decays[n]
            ops.assign_sub(weight, gradient * self.rates[n])
        return True


class Update(nn.Cell):
    """The whole of what happens to the gradients."""

    def __init__(self, weights: list[ms.Parameter], rule: architecture.Optimizer) -> None:
        super().__init__(auto_prefix=False)
        self.factor = constant(rule.gradient_factor) if rule.gradient_factor != 1 else None
        self.clip_grad_norm = ClipGradNorm(weights, rule) if rule.clip else None
        self.optimizer = build_optimizer(weights, rule)

    def construct(self, gradients):
        if self.factor is not None:
            scaled = ()
            for gradient in gradients:
                scaled += (gradient * self.factor,)
            gradients = scaled
        if self.clip_grad_norm is not None:
            gradients = self.clip_grad_norm(gradients)
        return self.optimizer(gradients)


def build_optimizer(weights: list[ms.Parameter], rule: architecture.Optimizer) -> nn.Optimizer:
    """Return the framework's own optimizer where its rule is ours. Those have one beta2 for all."""
    if rule.kind == "adamw" and rule.bias_correction:
        return AdamW(weights, rule)
    if rule.kind == "assign_sub":
        return AssignSub(weights, rule)
    groups = build_groups(weights, rule)
    match rule.kind:
        case "sgd":
            return nn.SGD(groups, learning_rate=get_base_rate(rule))
        case "momentum":
            return nn.Momentum(groups, learning_rate=get_base_rate(rule), momentum=MOMENTUM)
        case "adam":
            framework_class = nn.Adam
        case _:
            framework_class = nn.AdamWeightDecay
    return framework_class(
        groups, learning_rate=rule.learning_rate, beta1=BETA1, beta2=rule.beta2, eps=rule.eps
    )


def get_base_rate(rule: architecture.Optimizer) -> float:
    """Return the learning rate of weights that are in no group."""
    return replace(rule, group="").get_rate(1)


def build_groups(weights: list[ms.Parameter], rule: architecture.Optimizer) -> list[dict]:
    """Return the weights grouped by learning rate and weight decay."""
    members: dict[tuple[float, float], list[ms.Parameter]] = {}
    for weight in weights:
        key = (rule.get_rate(weight.ndim), rule.get_decay(weight.ndim))
        members.setdefault(key, []).append(weight)
    groups = []
    for (rate, decay), group_weights in sorted(members.items(), key=lambda item: item[0][1]):
        group = {"params": group_weights, "weight_decay": decay}
        if rate != get_base_rate(rule):
            group["lr"] = rate
        groups.append(group)
    return [*groups, {"order_params": weights}]
