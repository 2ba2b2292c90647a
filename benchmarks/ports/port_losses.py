"""Losses of ports: cells around a network, for graph mode and PyNative."""

from __future__ import annotations

from mindspore import nn, ops


class ClassLoss(nn.Cell):
    """Cross-entropy of the logits; of several results, the first are the logits."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, images, labels):
        logits = self.network(images)
        if isinstance(logits, tuple):
            logits = logits[0]
        return ops.cross_entropy(logits, labels)


class OwnLoss(nn.Cell):
    """The loss that a model of tokens computes itself."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, input_ids, labels):
        return self.network(input_ids=input_ids, labels=labels)[0]


LOSSES = {"classes": ClassLoss, "model": OwnLoss}
