"""The update of one training step: scale, clip by the global norm, then AdamW or SGD."""

from __future__ import annotations

import architecture
import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

BETA1, BETA2 = 0.9, 0.999


class AdamW(nn.Cell):
    """Decoupled weight decay (https://arxiv.org/abs/1711.05101, algorithm 2), with bias correction.

    ``nn.AdamWeightDecay`` has none, and ``nn.Adam`` adds the decay to the gradient.
    """

    def __init__(self, weights: list[ms.Parameter], rule: architecture.Optimizer) -> None:
        super().__init__()
        self.weights = ParameterTuple(weights)
        self.first = self.weights.clone(prefix="exp_avg", init="zeros")
        self.second = self.weights.clone(prefix="exp_avg_sq", init="zeros")
        self.step = ms.Parameter(Tensor(np.zeros((), np.float32)), name="step")
        self.decays = tuple(decay(weight, rule) for weight in weights)
        self.learning_rate, self.eps = rule.learning_rate, rule.eps

    def construct(self, gradients):
        step = self.step + 1.0
        ops.assign(self.step, step)
        short1, short2 = 1.0 - BETA1**step, 1.0 - BETA2**step
        for n in range(len(self.weights)):
            weight, gradient = self.weights[n], gradients[n]
            first = self.first[n] * BETA1 + gradient * (1 - BETA1)
            second = self.second[n] * BETA2 + ops.square(gradient) * (1 - BETA2)
            update = (first / short1) / (ops.sqrt(second / short2) + self.eps)
            kept = weight * (1 - self.learning_rate * self.decays[n]) if self.decays[n] else weight
            ops.assign(self.first[n], first)
            ops.assign(self.second[n], second)
            ops.assign(weight, kept - self.learning_rate * update)
        return True


def decay(weight: ms.Parameter, rule: architecture.Optimizer) -> float:
    """The weight decay of one weight: of matrices, unless the rule says of all."""
    return rule.weight_decay if rule.decay_all or weight.ndim > 1 else 0.0


class Update(nn.Cell):
    """The whole of what happens to the gradients."""

    def __init__(self, weights: list[ms.Parameter], rule: architecture.Optimizer) -> None:
        super().__init__()
        self.factor, self.clip = rule.gradient_factor, rule.clip
        self.optimizer = optimizer(weights, rule)

    def construct(self, gradients):
        if self.factor != 1:
            gradients = ops.hyper_map(ops.partial(ops.mul, self.factor), gradients)
        if self.clip:
            gradients = ops.clip_by_global_norm(gradients, self.clip)
        return self.optimizer(gradients)


def optimizer(weights: list[ms.Parameter], rule: architecture.Optimizer) -> nn.Cell:
    """The framework's own where its rule is ours."""
    if rule.kind == "adamw" and rule.bias_correction:
        return AdamW(weights, rule)
    groups = [
        {"params": [weight for weight in weights if decay(weight, rule) == amount], "weight_decay": amount}
        for amount in sorted({decay(weight, rule) for weight in weights})
    ]
    groups.append({"order_params": weights})
    if rule.kind == "sgd":
        return nn.SGD(groups, learning_rate=rule.learning_rate)
    return nn.AdamWeightDecay(groups, learning_rate=rule.learning_rate, beta1=BETA1, beta2=BETA2, eps=rule.eps)
