"""The update of one training step: scale, clip by the global norm, then AdamW or SGD.

Constants are tensors, as in MindSpore Transformers' optimizers: a Python number makes operators
that belong nowhere.
"""

from __future__ import annotations

import architecture
import mindspore as ms
from mindspore import Tensor, nn, ops

BETA1, BETA2 = 0.9, 0.999
TINY = 1e-6  #: keeps the clipping factor finite, as in Megatron-LM and PyTorch


def constant(value: float) -> Tensor:
    return Tensor(value, ms.float32)


class ClipGradNorm(nn.Cell):
    """All gradients times the same factor, so that their joint norm is at most ``limit``."""

    def __init__(self, limit: float, norm_factor: float) -> None:
        super().__init__()
        self.norm_factor = constant(norm_factor) if norm_factor != 1 else None
        self.limit, self.one, self.tiny = constant(limit), constant(1), constant(TINY)
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
        for gradient in gradients:
            clipped += (gradient * factor,)
        return clipped


class AdamW(nn.Optimizer):
    """Decoupled weight decay (https://arxiv.org/abs/1711.05101, algorithm 2), with bias correction.

    ``nn.AdamWeightDecay`` has none, and ``nn.Adam`` adds the decay to the gradient.
    """

    def __init__(self, weights: list[ms.Parameter], rule: architecture.Optimizer) -> None:
        super().__init__(rule.learning_rate, weights)
        self.first = self._parameters.clone(prefix="exp_avg", init="zeros")
        self.second = self._parameters.clone(prefix="exp_avg_sq", init="zeros")
        self.kept = tuple(
            constant(1 - rule.learning_rate * decay(weight, rule)) for weight in weights
        )
        self.decayed = tuple(decay(weight, rule) > 0 for weight in weights)
        self.rate, self.eps, self.one = (
            constant(rule.learning_rate),
            constant(rule.eps),
            constant(1),
        )
        self.beta1, self.beta2 = constant(BETA1), constant(BETA2)
        self.rest1, self.rest2 = constant(1 - BETA1), constant(1 - BETA2)

    def construct(self, gradients):
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        step = ops.cast(self.global_step, ms.float32)
        short1, short2 = self.one - ops.pow(self.beta1, step), self.one - ops.pow(self.beta2, step)
        for n in range(len(self._parameters)):
            weight, gradient = self._parameters[n], gradients[n]
            first = self.first[n] * self.beta1 + gradient * self.rest1
            second = self.second[n] * self.beta2 + ops.square(gradient) * self.rest2
            update = (first / short1) / (ops.sqrt(second / short2) + self.eps)
            kept = weight * self.kept[n] if self.decayed[n] else weight
            ops.assign(self.first[n], first)
            ops.assign(self.second[n], second)
            ops.assign(weight, kept - self.rate * update)
        return True


class Update(nn.Cell):
    """The whole of what happens to the gradients."""

    def __init__(self, weights: list[ms.Parameter], rule: architecture.Optimizer) -> None:
        super().__init__(auto_prefix=False)
        self.factor = constant(rule.gradient_factor) if rule.gradient_factor != 1 else None
        self.clip_grad_norm = ClipGradNorm(rule.clip, rule.norm_factor) if rule.clip else None
        self.optimizer = optimizer(weights, rule)

    def construct(self, gradients):
        if self.factor is not None:
            scaled = ()
            for gradient in gradients:
                scaled += (gradient * self.factor,)
            gradients = scaled
        if self.clip_grad_norm is not None:
            gradients = self.clip_grad_norm(gradients)
        return self.optimizer(gradients)


def optimizer(weights: list[ms.Parameter], rule: architecture.Optimizer) -> nn.Optimizer:
    """The framework's own where its rule is ours."""
    if rule.kind == "adamw" and rule.bias_correction:
        return AdamW(weights, rule)
    groups = [
        {
            "params": [weight for weight in weights if decay(weight, rule) == amount],
            "weight_decay": amount,
        }
        for amount in sorted({decay(weight, rule) for weight in weights})
    ]
    groups.append({"order_params": weights})
    if rule.kind == "sgd":
        return nn.SGD(groups, learning_rate=rule.learning_rate)
    return nn.AdamWeightDecay(
        groups, learning_rate=rule.learning_rate, beta1=BETA1, beta2=BETA2, eps=rule.eps
    )


def decay(weight: ms.Parameter, rule: architecture.Optimizer) -> float:
    """The weight decay of one weight: of matrices, unless the rule says of all."""
    return rule.weight_decay if rule.decay_all or weight.ndim > 1 else 0.0
