"""Weights of a usual size for any PyTorch model, the same in every call."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def fill(model: nn.Module) -> None:
    """Draw matrices as large as their inputs are many, and biases and norms of some size."""
    generator = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() > 1:
            is_table = "embed" in name
            weight.copy_(noise * (0.25 if is_table else weight.shape[1:].numel() ** -0.5))
        elif "bias" in name:
            weight.add_(0.1 * noise)
        elif name.endswith("weight"):
            weight.mul_(1 + 0.2 * noise)
