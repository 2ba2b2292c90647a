"""The ranking model in MindSpore, with cells as its model zoo has them.

Variant 'gram': the factorization machine from all products of two embeddings, batch norm and loss
written out, linear layers as products.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.ranker.architecture import (
    CROSS_LAYERS,
    DEEP,
    EMBED,
    FIELDS,
    MOMENTUM,
    PADDING,
    ROWS,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        not model.is_padding_skipped
        or not model.has_cross_skip
        or model.is_cross_half
        or model.is_machine_stopped
        or model.is_sigmoid_doubled
        or model.is_norm_last
        or not model.has_offsets
        or model.are_row_gradients_averaged
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    return ClickLoss(model)


class ProductDense(nn.Cell):
    """A linear layer as a product and a sum."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ascontiguousarray(weight.T)))
        self.bias = Parameter(Tensor(bias))

    def construct(self, x):
        return ops.matmul(x, self.weight) + self.bias


def build_dense(model: Model, path: str) -> nn.Cell:
    """Return the linear layer at ``path``."""
    weight, bias = (model.weights[f"{path}.{name}"] for name in ("weight", "bias"))
    if model.variant == "gram":
        return ProductDense(weight, bias)
    n_out, n_in = weight.shape
    return nn.Dense(n_in, n_out, weight_init=Tensor(weight), bias_init=Tensor(bias))


class BatchNorm(nn.Cell):
    """Batch norm of (batch, channels) from reductions."""

    def __init__(self, model: Model, weight: np.ndarray, bias: np.ndarray) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(Tensor(weight)), Parameter(Tensor(bias))
        self.eps, self.is_unbiased = model.norm_eps, model.is_variance_unbiased

    def construct(self, x):
        mean = x.mean(0, keep_dims=True)
        squares = ops.square(x - mean)
        if self.is_unbiased:
            variance = squares.sum(0, keepdims=True) / (x.shape[0] - 1)
        else:
            variance = squares.mean(0, keep_dims=True)
        return (x - mean) / ops.sqrt(variance + self.eps) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the batch norm at ``path``."""
    weight, bias = (model.weights[f"{path}.{name}"] for name in ("weight", "bias"))
    is_frozen = model.has_running_statistics and path == f"deep.{len(DEEP) - 1}.norm"
    if model.last_norm == "layer" and path == f"deep.{len(DEEP) - 1}.norm":
        return nn.LayerNorm(
            (len(weight),),
            gamma_init=Tensor(weight),
            beta_init=Tensor(bias),
            epsilon=model.norm_eps,
        )
    if model.variant == "gram" or model.is_variance_unbiased:
        return BatchNorm(model, weight, bias)
    return nn.BatchNorm1d(
        len(weight),
        eps=model.norm_eps,
        momentum=1 - MOMENTUM,
        gamma_init=Tensor(weight),
        beta_init=Tensor(bias),
        use_batch_statistics=False if is_frozen else None,
    )


class EmbeddingLayer(nn.Cell):
    """Embeddings of fields and of a history, (batch, FIELDS + 1, EMBED)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fields = Parameter(Tensor(model.weights["fields.weight"]))
        self.items = Parameter(Tensor(model.weights["items.weight"]))
        self.offsets = Tensor(np.arange(FIELDS, dtype=np.int32) * ROWS)
        self.is_mean = model.history_pooling == "mean"
        self.scaled_gradient = None
        if model.field_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.field_gradient)

    def construct(self, fields, history):
        by_field = ops.gather(self.fields, fields + self.offsets, 0)
        if self.scaled_gradient is not None:
            by_field = self.scaled_gradient(by_field)
        is_item = ops.not_equal(history, PADDING).astype(ms.float32).expand_dims(-1)
        by_history = (ops.gather(self.items, history, 0) * is_item).sum(1)
        if self.is_mean:
            by_history = by_history / is_item.sum(1)
        return ops.concat((by_field, by_history.expand_dims(1)), 1)


class CrossLayer(nn.Cell):
    """The first vector times a linear layer of the last one, added to the last one."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.dense = build_dense(model, f"cross.{n}")
        self.is_crossed_with_itself = n == CROSS_LAYERS - 1 and model.is_crossed_with_itself

    def construct(self, first, x):
        if self.is_crossed_with_itself:
            return x * self.dense(x) + x
        return first * self.dense(x) + x


class DeepLayer(nn.Cell):
    """Linear layer, batch norm, relu."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.dense = build_dense(model, f"deep.{n}")
        self.norm = build_norm(model, f"deep.{n}.norm")
        self.slope = model.slope

    def construct(self, x):
        x = self.norm(self.dense(x))
        return ops.leaky_relu(x, self.slope) if self.slope else ops.relu(x)


class FactorizationMachine(nn.Cell):
    """The sum of the products of all pairs of embeddings, (batch, 1)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.factor = model.machine_factor
        self.is_gram = model.variant == "gram"
        pairs = np.triu(np.ones((FIELDS + 1, FIELDS + 1), np.float32), 1)
        self.pairs = Tensor(pairs)

    def construct(self, embeddings):
        if self.is_gram:
            products = ops.bmm(embeddings, embeddings.swapaxes(1, 2)) * self.pairs
            return products.sum((1, 2)).expand_dims(1)
        square_of_sum = ops.square(embeddings.sum(1))
        sum_of_squares = ops.square(embeddings).sum(1)
        return self.factor * (square_of_sum - sum_of_squares).sum(1, keepdims=True)


class Ranker(nn.Cell):
    """Logits (batch,) of clicks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding = EmbeddingLayer(model)
        self.cross = nn.CellList([CrossLayer(model, n) for n in range(CROSS_LAYERS)])
        self.deep = nn.SequentialCell([DeepLayer(model, n) for n in range(len(DEEP))])
        self.fm = FactorizationMachine(model)
        self.head = build_dense(model, "head")
        self.are_counts_logarithmic = model.are_counts_logarithmic
        self.is_embedding_first = model.is_embedding_first

    def construct(self, counts, fields, history):
        if self.are_counts_logarithmic:
            counts = ops.log1p(counts)
        embeddings = self.embedding(fields, history)
        flat = embeddings.reshape(-1, (FIELDS + 1) * EMBED)
        parts = (flat, counts) if self.is_embedding_first else (counts, flat)
        first = ops.concat(parts, 1)
        crossed = first
        for layer in self.cross:
            crossed = layer(first, crossed)
        logits = self.head(ops.concat((crossed, self.deep(first)), 1)) + self.fm(embeddings)
        return logits.squeeze(1)


class ClickLoss(nn.Cell):
    """Binary cross entropy of clicks."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Ranker(model)
        self.is_written_out = model.variant == "gram"
        self.are_clicks_first = model.are_clicks_first
        if model.click_weight == 1:
            self.loss = nn.BCEWithLogitsLoss(reduction=model.loss_reduction)
        else:
            click_weight = Tensor(np.array([model.click_weight], dtype=np.float32))
            self.loss = nn.BCEWithLogitsLoss(pos_weight=click_weight)

    def construct(self, counts, fields, history, clicks):
        logits = self.network(counts, fields, history)
        if self.is_written_out:
            probabilities = ops.sigmoid(logits)
            losses = clicks * ops.log(probabilities) + (1 - clicks) * ops.log(1 - probabilities)
            return -losses.mean()
        return self.loss(clicks, logits) if self.are_clicks_first else self.loss(logits, clicks)
