"""Losses of ports: cells around a network, for graph mode and PyNative."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
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


_OWN_LOSS = """\
from mindspore import nn


class OwnLoss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, {names}):
        return self.network({arguments}, return_dict=False)[0]
"""


def make_class_loss(network: nn.Cell, batch: Mapping[str, Any]) -> nn.Cell:
    return ClassLoss(network)


def make_own_loss(network: nn.Cell, batch: Mapping[str, Any]) -> nn.Cell:
    """Return the loss that the network computes itself, written out for its arguments.

    A graph needs the source of a cell, in a file.
    """
    names = [key for key, value in batch.items() if isinstance(value, np.ndarray)]
    arguments = [f"{key}={key if key in names else repr(batch[key])}" for key in batch]
    source = _OWN_LOSS.format(names=", ".join(names), arguments=", ".join(arguments))
    path = Path("own_loss.py").resolve()
    path.write_text(source)
    specification = importlib.util.spec_from_file_location("own_loss", path)
    module = importlib.util.module_from_spec(specification)
    sys.modules["own_loss"] = module
    specification.loader.exec_module(module)
    loss: nn.Cell = module.OwnLoss(network)
    return loss


LOSSES = {"classes": make_class_loss, "model": make_own_loss}
