"""The ranking model in PyTorch, with the modules of TorchRec's examples.

Variant 'tables': a table for each field, the history by a mask, the factorization machine pair by
pair. Variant 'written': batch norm, cross network, factorization machine and loss in plain
arithmetic.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.ranker.architecture import (
    CROSS_LAYERS,
    DEEP,
    EMBED,
    FIELDS,
    ITEMS,
    MOMENTUM,
    PADDING,
    ROWS,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        model.history_pooling != "mean"
        or not model.are_counts_logarithmic
        or model.machine_factor != 0.5
        or model.is_embedding_first
        or model.field_gradient != 1
        or model.click_weight != 1
        or model.is_crossed_with_itself
        or model.slope
        or model.are_clicks_first
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    return RankingLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, _ in list(module.named_parameters()):
        setattr(module, name, copy_parameter(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


class SparseArch(nn.Module):
    """Embeddings of fields and of a history, (batch, FIELDS + 1, EMBED)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        is_averaged = model.are_row_gradients_averaged
        table = nn.Embedding(FIELDS * ROWS, EMBED, scale_grad_by_freq=is_averaged)
        self.table = load(table, model, "fields")
        padding = PADDING if model.is_padding_skipped else None
        bag = nn.EmbeddingBag(ITEMS, EMBED, mode="mean", padding_idx=padding)
        self.history_bag = load(bag, model, "items")
        self.has_offsets = model.has_offsets
        self.register_buffer("offsets", torch.arange(FIELDS) * ROWS)

    def forward(self, fields: Tensor, history: Tensor) -> Tensor:
        by_field = self.table(fields + self.offsets if self.has_offsets else fields)
        return torch.cat([by_field, self.history_bag(history)[:, None]], dim=1)


class SeparateSparseArch(nn.Module):
    """The same with a table for each field."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.field_tables = nn.ModuleList()
        for values in np.split(model.weights["fields.weight"], FIELDS):
            table = nn.Embedding(ROWS, EMBED)
            table.weight = copy_parameter(values)
            self.field_tables.append(table)
        self.item_table = load(nn.Embedding(ITEMS, EMBED), model, "items")

    def forward(self, fields: Tensor, history: Tensor) -> Tensor:
        columns = fields.unbind(1)
        embeddings = [table(ids) for table, ids in zip(self.field_tables, columns, strict=True)]
        is_item = (history != PADDING).float()
        shares = is_item / is_item.sum(dim=1, keepdim=True)
        embeddings.append(torch.einsum("bh,bhe->be", shares, self.item_table(history)))
        return torch.stack(embeddings, dim=1)


class CrossNet(nn.Module):
    """Each layer: the first vector times a linear layer of the last one, plus the last one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.kernels = nn.ModuleList(load_linear(model, f"cross.{n}") for n in range(CROSS_LAYERS))
        self.has_last_skip, self.is_last_half = model.has_cross_skip, model.is_cross_half
        self.is_written_out = model.variant == "written"

    def forward(self, first: Tensor) -> Tensor:
        x = first
        for n, kernel in enumerate(self.kernels):
            is_last = n == CROSS_LAYERS - 1
            if self.is_written_out:
                x = torch.addcmul(x, x @ kernel.weight.T + kernel.bias, first)
                continue
            if is_last and self.is_last_half:
                half = (values.bfloat16() for values in (x, kernel.weight, kernel.bias))
                y = first * F.linear(*half).float()
            else:
                y = first * kernel(x)
            x = y + x if self.has_last_skip or not is_last else y
        return x


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of (batch, channels), also in plain arithmetic."""

    def __init__(self, model: Model, path: str) -> None:
        channels = len(model.weights[f"{path}.weight"])
        super().__init__(channels, eps=model.norm_eps, momentum=MOMENTUM)
        load(self, model, path)
        self.is_written_out = model.variant == "written" or model.is_variance_unbiased
        self.correction = 1 if model.is_variance_unbiased else 0
        is_last = path == f"deep.{len(DEEP) - 1}.norm"
        self.is_layer_norm = is_last and model.last_norm == "layer"
        if is_last and model.has_running_statistics:
            self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if self.is_layer_norm:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        if not self.is_written_out:
            return super().forward(x)
        variance, mean = torch.var_mean(x, dim=0, correction=self.correction)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return x * scale + (self.bias - mean * scale)


class MLP(nn.Module):
    """Linear layers, each with batch norm and relu."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.linears = nn.ModuleList(load_linear(model, f"deep.{n}") for n in range(len(DEEP)))
        self.norms = nn.ModuleList(BatchNorm(model, f"deep.{n}.norm") for n in range(len(DEEP)))
        self.is_norm_last = model.is_norm_last

    def forward(self, x: Tensor) -> Tensor:
        for n, (linear, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            x = linear(x)
            is_norm_last = self.is_norm_last and n == len(DEEP) - 1
            x = norm(F.relu(x)) if is_norm_last else F.relu(norm(x))
        return x


class FactorizationMachine(nn.Module):
    """The sum of the products of all pairs of embeddings, (batch, 1)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.variant, self.is_stopped = model.variant, model.is_machine_stopped

    def forward(self, embeddings: Tensor) -> Tensor:
        if self.is_stopped:
            embeddings = embeddings.detach()
        if self.variant == "tables":
            pairs = combinations(embeddings.unbind(1), 2)
            products = [(a * b).sum(dim=-1, keepdim=True) for a, b in pairs]
            return torch.stack(products).sum(dim=0)
        if self.variant == "written":
            total = embeddings.sum(dim=1)
            squares = torch.einsum("bfe,bfe->b", embeddings, embeddings)
            return (0.5 * (torch.einsum("be,be->b", total, total) - squares))[:, None]
        square_of_sum = embeddings.sum(dim=1).pow(2)
        sum_of_squares = embeddings.pow(2).sum(dim=1)
        return 0.5 * (square_of_sum - sum_of_squares).sum(dim=1, keepdim=True)


class RankingLoss(nn.Module):
    """Binary cross entropy of clicks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        is_separate = model.variant == "tables"
        self.sparse_arch = SeparateSparseArch(model) if is_separate else SparseArch(model)
        self.crossnet, self.deep_arch = CrossNet(model), MLP(model)
        self.fm = FactorizationMachine(model)
        self.over_arch = load_linear(model, "head")

    def forward(self, counts: Tensor, fields: Tensor, history: Tensor, clicks: Tensor) -> Tensor:
        embeddings = self.sparse_arch(fields, history)
        first = torch.cat([torch.log1p(counts), embeddings.flatten(1)], dim=1)
        joined = torch.cat([self.crossnet(first), self.deep_arch(first)], dim=1)
        logits = (self.over_arch(joined) + self.fm(embeddings))[:, 0]
        if self.model.is_sigmoid_doubled:
            logits = torch.sigmoid(logits)
        if self.model.variant == "tables":
            return (F.softplus(logits) - clicks * logits).mean()
        if self.model.variant == "written":
            return F.binary_cross_entropy(torch.sigmoid(logits), clicks)
        reduction = self.model.loss_reduction
        return F.binary_cross_entropy_with_logits(logits, clicks, reduction=reduction)
