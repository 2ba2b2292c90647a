"""The recommender in MindSpore, with cells as its recommendation models have them.

Variant 'mint': functions of mint for linear layers and losses, lookups as products with ones in one
place, and the framework's own GRU cell.

Variant 'reductions': norms, pooling and losses from reductions; the cross network by einsum; input
and state of the GRU side by side in one product for reset and update gate.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.recsys.architecture import (
    BATCH,
    CLICK_WEIGHT,
    CROSS_LAYERS,
    DEEP,
    DICE_EPS,
    EMBED,
    FIELDS,
    HIDDEN,
    HISTORY,
    MASKED,
    MOMENTUM,
    NORM_EPS,
    PADDING,
    ROWS,
    TEMPERATURE,
    TOWERS_SHARE,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        not model.is_bias_crossed
        or not model.is_padding_filled
        or model.is_dice_reversed
        or not model.is_interest_stopped
        or model.is_gradient_by_frequency
        or model.is_mean_weighted
        or model.is_gradient_overwritten
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    return RecommenderLoss(model)


def build_parameter(values: np.ndarray, *, requires_grad: bool = True) -> Parameter:
    """Return a parameter with these values."""
    return Parameter(Tensor(values), requires_grad=requires_grad)


class MintDense(nn.Cell):
    """A linear layer by a function."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        super().__init__()
        self.weight = build_parameter(weight)
        self.bias = None if bias is None else build_parameter(bias)

    def construct(self, x):
        product = mint.matmul(x, ops.transpose(self.weight, (1, 0)))
        return product if self.bias is None else mint.add(product, self.bias)


def build_dense(model: Model, path: str) -> nn.Cell:
    """Return the linear layer at ``path``."""
    weight, bias = model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias")
    if model.variant == "mint":
        return MintDense(weight, bias)
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


class DenseFeatures(nn.Cell):
    """Standardized features in a linear layer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mean = build_parameter(model.weights["dense.mean"], requires_grad=False)
        self.variance = build_parameter(model.weights["dense.variance"], requires_grad=False)
        self.is_rooted = model.is_variance_rooted
        self.dense = build_dense(model, "dense")

    def construct(self, x):
        divisor = ops.sqrt(self.variance) if self.is_rooted else self.variance
        return self.dense((x - self.mean) / divisor)


class TagBag(nn.Cell):
    """The mean embedding of tags without padding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding_table = build_parameter(model.weights["tags.weight"])
        self.is_by_product = model.variant == "reductions"

    def construct(self, tags):
        is_tag = ops.not_equal(tags, PADDING).astype(ms.float32)
        embedded = ops.gather(self.embedding_table, tags, 0)
        if self.is_by_product:
            shares = is_tag / is_tag.sum(1, keepdims=True)
            return ops.bmm(shares.expand_dims(1), embedded).squeeze(1)
        total = (embedded * is_tag.expand_dims(-1)).sum(1)
        return total / is_tag.sum(1, keepdims=True)


class GRUCell(nn.Cell):
    """One step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight_ih = build_parameter(model.weights["gru.weight_ih"])
        self.weight_hh = build_parameter(model.weights["gru.weight_hh"])
        self.bias_ih = build_parameter(model.weights["gru.bias_ih"])
        self.bias_hh = build_parameter(model.weights["gru.bias_hh"])
        self.matmul = ops.MatMul(transpose_b=True)
        self.is_bias_reset = model.is_hidden_bias_reset

    def construct(self, x, hidden):
        from_input = self.matmul(x, self.weight_ih) + self.bias_ih
        from_hidden = self.matmul(hidden, self.weight_hh)
        if self.is_bias_reset:
            from_hidden = from_hidden + self.bias_hh
        else:
            from_input = from_input + self.bias_hh
        reset_x, update_x, new_x = ops.split(from_input, HIDDEN, 1)
        reset_h, update_h, new_h = ops.split(from_hidden, HIDDEN, 1)
        reset, update = ops.sigmoid(reset_x + reset_h), ops.sigmoid(update_x + update_h)
        new = ops.tanh(new_x + reset * new_h)
        return (1 - update) * new + update * hidden


class JoinedGRUCell(GRUCell):
    """One step with one product for both gates."""

    def construct(self, x, hidden):
        n_gates = 2 * HIDDEN
        weight = ops.concat((self.weight_ih[:n_gates], self.weight_hh[:n_gates]), 1)
        bias = self.bias_ih[:n_gates] + self.bias_hh[:n_gates]
        gates = ops.sigmoid(self.matmul(ops.concat((x, hidden), 1), weight) + bias)
        from_hidden = self.matmul(hidden, self.weight_hh[n_gates:]) + self.bias_hh[n_gates:]
        from_input = self.matmul(x, self.weight_ih[n_gates:]) + self.bias_ih[n_gates:]
        new = ops.tanh(from_input + gates[:, :HIDDEN] * from_hidden)
        return new + gates[:, HIDDEN:] * (hidden - new)


class GRU(nn.Cell):
    """All states (batch, HISTORY, HIDDEN) of a history."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        if model.variant == "mint":
            self.cell = nn.GRUCell(EMBED, HIDDEN)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(self.cell, name).set_data(Tensor(model.weights[f"gru.{name}"]))
        else:
            self.cell = JoinedGRUCell(model) if model.variant == "reductions" else GRUCell(model)

    def construct(self, x):
        hidden = ops.zeros((x.shape[0], HIDDEN), ms.float32)
        states = ()
        for step in range(HISTORY):
            hidden = self.cell(x[:, step], hidden)
            states = (*states, hidden)
        return ops.stack(states, 1)


class AttentionUnit(nn.Cell):
    """The states of a history, pooled by how they match a candidate."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense1 = build_dense(model, "attention.0")
        self.dense2 = build_dense(model, "attention.1")
        self.is_by_product = model.variant == "reductions"

    def construct(self, states, candidate, is_item):
        query = ops.broadcast_to(candidate.expand_dims(1), states.shape)
        joined = ops.concat((states, query, states - query, states * query), -1)
        scores = self.dense2(ops.sigmoid(self.dense1(joined))).squeeze(-1)
        scores = ops.masked_fill(scores, ops.logical_not(is_item), Tensor(MASKED, ms.float32))
        shares = ops.softmax(scores, -1)
        if self.is_by_product:
            return ops.bmm(shares.expand_dims(1), states).squeeze(1)
        return (shares.expand_dims(-1) * states).sum(1)


class CrossLayer(nn.Cell):
    """The first vector times a low-rank linear layer of the last one, added to the last one."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.v = build_dense(model, f"cross.{n}.v")
        self.u = build_dense(model, f"cross.{n}.u")
        self.is_by_product = model.variant == "reductions"

    def construct(self, first, x):
        if self.is_by_product:
            low = (x.expand_dims(1) * self.v.weight).sum(2)
            return x + first * (ops.matmul(low, self.u.weight.T) + self.u.bias)
        return first * self.u(self.v(x)) + x


class ReducedNorm(nn.Cell):
    """Batch norm of (batch, channels) from reductions."""

    def __init__(self, eps: float, weight: np.ndarray | None, bias: np.ndarray | None) -> None:
        super().__init__()
        self.eps = eps
        self.gamma = None if weight is None else build_parameter(weight)
        self.beta = None if bias is None else build_parameter(bias)

    def construct(self, x):
        centered = x - x.mean(0, keep_dims=True)
        normal = centered * ops.rsqrt(ops.square(centered).mean(0, keep_dims=True) + self.eps)
        return normal if self.gamma is None else normal * self.gamma + self.beta


def build_norm(model: Model, width: int, eps: float, path: str = "") -> nn.Cell:
    """Return the batch norm at ``path``, or one without weights."""
    weight, bias = (model.weights.get(f"{path}.{name}") for name in ("weight", "bias"))
    if model.variant == "reductions":
        return ReducedNorm(eps, weight, bias)
    return nn.BatchNorm1d(
        width,
        eps=eps,
        momentum=1 - MOMENTUM,
        affine=weight is not None,
        gamma_init="ones" if weight is None else Tensor(weight),
        beta_init="zeros" if bias is None else Tensor(bias),
    )


class Dice(nn.Cell):
    """A rectifier whose edge lies at the mean of the batch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = build_norm(model, DEEP[1], DICE_EPS)
        self.alpha = build_parameter(model.weights["deep.1.slopes"])

    def construct(self, x):
        gate = ops.sigmoid(self.norm(x))
        return self.alpha * (1 - gate) * x + gate * x


class DeepNetwork(nn.Cell):
    """Two layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fc1 = build_dense(model, "deep.0")
        self.bn1 = build_norm(model, DEEP[0], NORM_EPS, "deep.0.norm")
        self.prelu = nn.PReLU(DEEP[0], Tensor(model.weights["deep.0.slopes"]))
        self.fc2 = build_dense(model, "deep.1")
        self.dice = Dice(model)

    def construct(self, x):
        x = self.prelu(self.bn1(self.fc1(x)))
        return self.dice(self.fc2(x))


class Recommender(nn.Cell):
    """Logits (batch,) of clicks, and the vectors of both towers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense_features = DenseFeatures(model)
        self.field_table = build_parameter(model.weights["fields.weight"])
        self.offsets = Tensor(np.arange(FIELDS, dtype=np.int32) * ROWS)
        self.tag_bag = TagBag(model)
        self.item_table = build_parameter(model.weights["items.weight"])
        self.gru = GRU(model)
        self.attention = AttentionUnit(model)
        self.cross = nn.CellList([CrossLayer(model, n) for n in range(CROSS_LAYERS)])
        self.deep = DeepNetwork(model)
        self.head = build_dense(model, "head")
        self.user_tower = build_dense(model, "towers.user")
        self.item_tower = build_dense(model, "towers.item")
        self.normalize = ops.L2Normalize(axis=1, epsilon=1e-12)
        self.is_mint, self.is_reduced = model.variant == "mint", model.variant == "reductions"

    def look_up(self, table, ids):
        if self.is_mint:
            return mint.matmul(ops.one_hot(ids, table.shape[0]).astype(ms.float32), table)
        return ops.gather(table, ids, 0)

    def scale(self, x):
        if self.is_reduced:
            return x * ops.rsqrt(ops.square(x).sum(1, keepdims=True))
        return self.normalize(x)

    def construct(self, dense, fields, tags, history, candidates):
        by_field = self.look_up(self.field_table, fields + self.offsets)
        by_field = by_field.reshape(-1, FIELDS * EMBED)
        bag = self.tag_bag(tags)
        candidate = self.look_up(self.item_table, candidates)
        states = self.gru(self.look_up(self.item_table, history))
        interest = self.attention(states, candidate, ops.not_equal(history, PADDING))
        first = ops.concat((self.dense_features(dense), by_field, bag, candidate, interest), 1)
        crossed = first
        for layer in self.cross:
            crossed = layer(first, crossed)
        logits = self.head(ops.concat((crossed, self.deep(first)), 1)).squeeze(1)
        user = self.user_tower(ops.concat((by_field, ops.stop_gradient(interest)), 1))
        item = self.item_tower(ops.concat((candidate, bag), 1))
        return logits, self.scale(user), self.scale(item)


class ClickLoss(nn.Cell):
    """Weighted binary cross entropy."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.variant = model.variant
        self.pos_weight = Tensor(np.array([CLICK_WEIGHT], dtype=np.float32))

    def construct(self, logits, clicks, weights):
        if self.variant == "reductions":
            probabilities = ops.sigmoid(logits)
            losses = CLICK_WEIGHT * clicks * ops.log(probabilities)
            losses = losses + (1 - clicks) * ops.log(1 - probabilities)
            return -(losses * weights).sum() / BATCH
        if self.variant == "mint":
            click_losses = CLICK_WEIGHT * clicks * ops.softplus(-logits)
            other_losses = (1 - clicks) * ops.softplus(logits)
            return mint.mean(weights * (click_losses + other_losses))
        return ops.binary_cross_entropy_with_logits(logits, clicks, weights, self.pos_weight)


class TowersLoss(nn.Cell):
    """Softmax over the items of the batch, corrected by how popular they are."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.variant = model.variant
        self.popularity = build_parameter(model.weights["popularity"], requires_grad=False)
        self.is_logq_divided = model.is_logq_divided
        self.are_copies_masked = model.are_copies_masked
        self.is_other = Tensor(~np.eye(BATCH, dtype=bool))
        self.labels = Tensor(np.arange(BATCH, dtype=np.int32))

    def construct(self, user, item, candidates):
        scores = ops.matmul(user, item.T)
        logq = ops.log(ops.gather(self.popularity, candidates, 0))
        if self.is_logq_divided:
            scores = (scores - logq) / TEMPERATURE
        else:
            scores = scores / TEMPERATURE - logq
        if self.are_copies_masked:
            is_same = ops.equal(candidates.expand_dims(1), candidates.expand_dims(0))
            is_copy = ops.logical_and(is_same, self.is_other)
            scores = ops.masked_fill(scores, is_copy, Tensor(MASKED, ms.float32))
        if self.variant == "reductions":
            shifted = scores - ops.stop_gradient(scores.max(1, keepdims=True))
            own = shifted * ops.eye(BATCH, BATCH, ms.float32)
            return (ops.log(ops.exp(shifted).sum(1)) - own.sum(1)).sum() / BATCH
        if self.variant == "mint":
            own = mint.gather(scores, 1, self.labels.expand_dims(1)).squeeze(1)
            return mint.mean(ops.logsumexp(scores, 1) - own)
        return ops.cross_entropy(scores, self.labels)


class RecommenderLoss(nn.Cell):
    """The sum of both losses."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Recommender(model)
        self.click_loss, self.towers_loss = ClickLoss(model), TowersLoss(model)

    def construct(self, dense, fields, tags, history, candidates, weights, clicks):
        logits, user, item = self.network(dense, fields, tags, history, candidates)
        click_loss = self.click_loss(logits, clicks, weights)
        return click_loss + TOWERS_SHARE * self.towers_loss(user, item, candidates)
