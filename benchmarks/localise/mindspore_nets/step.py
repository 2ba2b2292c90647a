"""One training step in one graph: forward, backward and, if asked for, the update."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
from mindspore import Tensor, nn, ops


class TrainStep(nn.Cell):
    """The loss, the gradients of all weights, and the update."""

    def __init__(self, loss: nn.Cell, optimizer: nn.Cell | None) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = loss, optimizer
        self.weights = ms.ParameterTuple(loss.trainable_params())
        self.grad = ops.GradOperation(get_by_list=True)

    def construct(self, *batch):
        loss = self.network(*batch)
        gradients = self.grad(self.network, self.weights)(*batch)
        if self.optimizer is not None:
            loss = ops.depend(loss, self.optimizer(gradients))
        return loss, gradients


def as_function(
    loss: nn.Cell, optimizer: nn.Cell | None
) -> Callable[..., tuple[Tensor, tuple[Tensor, ...]]]:
    """The same step as a jitted function on top: what it calls has no scope."""

    def forward(*batch):
        return loss(*batch)

    loss_and_gradients = ms.value_and_grad(forward, None, loss.trainable_params())

    @ms.jit
    def jitted(*batch):
        value, gradients = loss_and_gradients(*batch)
        if optimizer is not None:
            value = ops.depend(value, optimizer(gradients))
        return value, gradients

    return jitted
