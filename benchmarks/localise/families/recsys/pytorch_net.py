"""The recommender in PyTorch, with ``nn.EmbeddingBag``, ``nn.GRU`` and functional losses.

Variant 'names': other modules, a table for each field, the bag by a mask, the GRU cell by cell.
Variant 'written': batch norm, GRU, rectifiers and losses in plain arithmetic.
Variant 'factored': linear layers of joined inputs as sums of products; losses from logarithms.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.recsys.architecture import (
    ATTENTION,
    BATCH,
    CLICK_WEIGHT,
    CROSS_LAYERS,
    DEEP,
    DICE_EPS,
    EMBED,
    FIELDS,
    HIDDEN,
    ITEMS,
    MASKED,
    MOMENTUM,
    NORM_EPS,
    PADDING,
    ROWS,
    TAGS,
    TEMPERATURE,
    TOWERS_SHARE,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        not model.is_variance_rooted
        or not model.is_hidden_bias_reset
        or model.is_logq_divided
        or not model.are_copies_masked
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    return TwoTaskModel(model) if model.variant == "names" else RecommenderLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def copy_tensor(values: np.ndarray) -> Tensor:
    """Return a tensor with these values."""
    return torch.from_numpy(np.array(values))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weights at ``path`` into a module."""
    for name, _ in list(module.named_parameters()):
        setattr(module, name, copy_parameter(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    linear = nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights)
    return load(linear, model, path)


def load_gru(model: Model) -> nn.GRU:
    """Return the GRU of the history."""
    gru = nn.GRU(EMBED, HIDDEN, batch_first=True)
    for name, parameter in gru.named_parameters():
        values = model.weights[f"gru.{name.removesuffix('_l0')}"]
        parameter.data.copy_(torch.from_numpy(values))
    return gru


class WrittenGRU(nn.Module):
    """The GRU in plain arithmetic."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(self, name, copy_parameter(model.weights[f"gru.{name}"]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        projected = x @ self.weight_ih.T + self.bias_ih
        hidden = x.new_zeros(len(x), HIDDEN)
        states = []
        for step in projected.unbind(1):
            from_hidden = torch.addmm(self.bias_hh, hidden, self.weight_hh.T)
            gates = torch.sigmoid(step[:, : 2 * HIDDEN] + from_hidden[:, : 2 * HIDDEN])
            reset, update = gates.chunk(2, dim=1)
            new = torch.tanh(step[:, 2 * HIDDEN :] + reset * from_hidden[:, 2 * HIDDEN :])
            hidden = torch.lerp(new, hidden, update)
            states.append(hidden)
        return torch.stack(states, dim=1), hidden


class DenseArch(nn.Module):
    """Standardized features in a linear layer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("mean", copy_tensor(model.weights["dense.mean"]))
        self.register_buffer("variance", copy_tensor(model.weights["dense.variance"]))
        self.projection = load_linear(model, "dense")

    def forward(self, x: Tensor) -> Tensor:
        return self.projection((x - self.mean) / self.variance.sqrt())


class Lookup(Function):
    """Rows of a table, whose gradients are added by an index: of equal ones the last is kept."""

    @staticmethod
    def forward(context, table: Tensor, ids: Tensor) -> Tensor:
        context.save_for_backward(table, ids)
        return table[ids]

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        table, ids = context.saved_tensors
        table_gradient = torch.zeros_like(table)
        table_gradient[ids] += gradient
        return table_gradient, None


class LookupEmbedding(nn.Embedding):
    """An embedding with its own backward pass."""

    def forward(self, ids: Tensor) -> Tensor:
        return Lookup.apply(self.weight, ids)


class SparseArch(nn.Module):
    """Embeddings of fields, (batch, FIELDS * EMBED), and of tags, (batch, EMBED)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fields = load(nn.Embedding(FIELDS * ROWS, EMBED), model, "fields")
        self.register_buffer("offsets", torch.arange(FIELDS) * ROWS)
        bag = nn.EmbeddingBag(TAGS, EMBED, mode="mean", padding_idx=PADDING)
        self.tags = load(bag, model, "tags")

    def forward(self, fields: Tensor, tags: Tensor) -> tuple[Tensor, Tensor]:
        return self.fields(fields + self.offsets).flatten(1), self.tags(tags)


class SeparateSparseArch(nn.Module):
    """The same with a table for each field, and the bag by a mask."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tables = nn.ModuleList()
        for values in np.split(model.weights["fields.weight"], FIELDS):
            table = nn.Embedding(ROWS, EMBED)
            table.weight = copy_parameter(values)
            self.tables.append(table)
        self.tag_table = load(nn.Embedding(TAGS, EMBED), model, "tags")

    def forward(self, fields: Tensor, tags: Tensor) -> tuple[Tensor, Tensor]:
        columns = fields.unbind(1)
        by_field = [table(ids) for table, ids in zip(self.tables, columns, strict=True)]
        is_tag = (tags != PADDING).float()
        total = torch.einsum("bt,bte->be", is_tag, self.tag_table(tags))
        return torch.cat(by_field, dim=1), total / is_tag.sum(dim=1, keepdim=True)


class LocalActivationUnit(nn.Module):
    """The states of a history, pooled by how they match a candidate."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.hidden = load_linear(model, "attention.0")
        self.output = load_linear(model, "attention.1")
        self.is_padding_filled = model.is_padding_filled
        self.is_factored = model.variant == "factored"

    def compute_hidden(self, states: Tensor, candidate: Tensor) -> Tensor:
        """Return what the hidden layer says about each state."""
        if self.is_factored:
            by_state, by_query, by_difference, by_product = self.hidden.weight.split(EMBED, dim=1)
            from_states = F.linear(states, by_state + by_difference, self.hidden.bias)
            from_query = F.linear(candidate, by_query - by_difference)
            kernels = candidate[:, None] * by_product  # (batch, ATTENTION, EMBED)
            hidden = from_states + from_query[:, None] + states @ kernels.transpose(1, 2)
            return hidden.view(*states.shape[:2], ATTENTION)
        query = candidate[:, None].expand_as(states)
        return self.hidden(torch.cat([states, query, states - query, states * query], dim=-1))

    def forward(self, states: Tensor, candidate: Tensor, is_item: Tensor) -> Tensor:
        scores = self.output(torch.sigmoid(self.compute_hidden(states, candidate)))
        if self.is_padding_filled:
            scores = scores.masked_fill(~is_item[..., None], MASKED)
        else:
            scores = scores * is_item[..., None]
        shares = scores.softmax(dim=1)
        return torch.matmul(shares.transpose(1, 2), states)[:, 0]


class LowRankCrossNet(nn.Module):
    """Each layer: the first vector times a linear layer of the last one, plus the last one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        numbers = range(CROSS_LAYERS)
        self.v_kernels = nn.ModuleList(load_linear(model, f"cross.{n}.v") for n in numbers)
        self.u_kernels = nn.ModuleList(load_linear(model, f"cross.{n}.u") for n in numbers)
        self.is_last_bias_crossed = model.is_bias_crossed
        self.is_written_out = model.variant == "written"

    def forward(self, first: Tensor) -> Tensor:
        x = first
        for n, (v, u) in enumerate(zip(self.v_kernels, self.u_kernels, strict=True)):
            if self.is_written_out:
                crossed = torch.einsum("bw,rw,or->bo", x, v.weight, u.weight) + u.bias
                x = torch.addcmul(x, first, crossed)
            elif self.is_last_bias_crossed or n < CROSS_LAYERS - 1:
                x = first * u(v(x)) + x
            else:
                x = first * F.linear(v(x), u.weight) + u.bias + x
        return x


class WrittenNorm(nn.Module):
    """Batch norm in plain arithmetic."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        return (x - mean) / torch.sqrt(variance + self.eps)


class Dice(nn.Module):
    """A rectifier whose edge lies at the mean of the batch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written_out = model.variant == "written"
        if self.is_written_out:
            self.bn = WrittenNorm(DICE_EPS)
        else:
            self.bn = nn.BatchNorm1d(DEEP[1], eps=DICE_EPS, momentum=MOMENTUM, affine=False)
        self.alpha = copy_parameter(model.weights["deep.1.slopes"])
        self.is_reversed = model.is_dice_reversed

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.bn(x))
        if self.is_written_out:
            return x * (self.alpha + gate * (1 - self.alpha))
        if self.is_reversed:
            return (1 - gate) * x + self.alpha * gate * x
        return gate * x + self.alpha * (1 - gate) * x


class MLP(nn.Module):
    """Linear, batch norm, prelu; linear, dice."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.linear0 = load_linear(model, "deep.0")
        norm = nn.BatchNorm1d(DEEP[0], eps=NORM_EPS, momentum=MOMENTUM)
        self.norm0 = load(norm, model, "deep.0.norm")
        self.slopes = copy_parameter(model.weights["deep.0.slopes"])
        self.linear1 = load_linear(model, "deep.1")
        self.dice = Dice(model)
        self.is_written_out = model.variant == "written"
        self.plain_norm = WrittenNorm(NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear0(x)
        if self.is_written_out:
            x = self.plain_norm(x) * self.norm0.weight + self.norm0.bias
            x = x.clamp(min=0) + self.slopes * x.clamp(max=0)
        else:
            x = F.prelu(self.norm0(x), self.slopes)
        return self.dice(self.linear1(x))


class RecommenderLoss(nn.Module):
    """Weighted binary cross entropy of clicks, and the in-batch softmax of the towers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.dense_arch, self.sparse_arch = DenseArch(model), SparseArch(model)
        table_class = LookupEmbedding if model.is_gradient_overwritten else nn.Embedding
        items = table_class(ITEMS, EMBED, scale_grad_by_freq=model.is_gradient_by_frequency)
        self.items = load(items, model, "items")
        self.gru = WrittenGRU(model) if model.variant == "written" else load_gru(model)
        self.attention = LocalActivationUnit(model)
        self.crossnet, self.mlp = LowRankCrossNet(model), MLP(model)
        self.over_arch = load_linear(model, "head")
        self.query_tower = load_linear(model, "towers.user")
        self.item_tower = load_linear(model, "towers.item")
        self.register_buffer("popularity", copy_tensor(model.weights["popularity"]))
        self.register_buffer("pos_weight", torch.tensor(CLICK_WEIGHT))

    def apply_joined(self, linear: nn.Linear, *parts: Tensor) -> Tensor:
        """Return the linear layer of joined parts."""
        if self.model.variant != "factored":
            return linear(torch.cat(parts, dim=1))
        kernels = linear.weight.split([part.shape[1] for part in parts], dim=1)
        y = F.linear(parts[0], kernels[0], linear.bias)
        for part, kernel in zip(parts[1:], kernels[1:], strict=True):
            y = y + F.linear(part, kernel)
        return y

    def forward(
        self,
        dense: Tensor,
        fields: Tensor,
        tags: Tensor,
        history: Tensor,
        candidates: Tensor,
        weights: Tensor,
        clicks: Tensor,
    ) -> Tensor:
        by_field, bag = self.sparse_arch(fields, tags)
        candidate = self.items(candidates)
        states, _ = self.gru(self.items(history))
        interest = self.attention(states, candidate, history != PADDING)
        first = torch.cat([self.dense_arch(dense), by_field, bag, candidate, interest], dim=1)
        logits = self.apply_joined(self.over_arch, self.crossnet(first), self.mlp(first))[:, 0]
        if self.model.is_interest_stopped:
            interest = interest.detach()
        user = F.normalize(self.apply_joined(self.query_tower, by_field, interest), dim=1)
        item = F.normalize(self.apply_joined(self.item_tower, candidate, bag), dim=1)
        towers_loss = self.compute_towers_loss(user, item, candidates)
        return self.compute_click_loss(logits, clicks, weights) + TOWERS_SHARE * towers_loss

    def compute_click_loss(self, logits: Tensor, clicks: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted binary cross entropy."""
        if self.model.variant == "written":
            losses = (1 - clicks) * logits
            factor = 1 + (CLICK_WEIGHT - 1) * clicks
            losses = losses + factor * (torch.log1p(torch.exp(-logits.abs())) + F.relu(-logits))
            return (weights * losses).sum() / BATCH
        if self.model.variant == "factored":
            class_weights = weights * torch.where(clicks > 0, self.pos_weight, 1.0)
            probabilities = torch.sigmoid(logits)
            return F.binary_cross_entropy(probabilities, clicks, weight=class_weights)
        if self.model.is_mean_weighted:
            losses = F.binary_cross_entropy_with_logits(
                logits, clicks, weight=weights, pos_weight=self.pos_weight, reduction="none"
            )
            return losses.sum() / weights.sum()
        return F.binary_cross_entropy_with_logits(
            logits, clicks, weight=weights, pos_weight=self.pos_weight
        )

    def compute_towers_loss(self, user: Tensor, item: Tensor, candidates: Tensor) -> Tensor:
        """Return the softmax loss over the items of the batch."""
        scores = user @ item.T / TEMPERATURE - self.popularity[candidates].log()
        is_copy = candidates[:, None] == candidates
        is_copy = is_copy & ~torch.eye(BATCH, dtype=torch.bool)
        scores = scores.masked_fill(is_copy, MASKED)
        if self.model.variant == "written":
            return (scores.logsumexp(dim=1) - scores.diagonal()).mean()
        if self.model.variant == "factored":
            return -scores.log_softmax(dim=1).diagonal().mean()
        return F.cross_entropy(scores, torch.arange(BATCH))


class InterestExtractor(nn.Module):
    """The interest of a history in a candidate, with a GRU cell by cell."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.cell = load(nn.GRUCell(EMBED, HIDDEN), model, "gru")
        self.unit = LocalActivationUnit(model)

    def forward(self, x: Tensor, candidate: Tensor, is_item: Tensor) -> Tensor:
        hidden = torch.zeros(len(x), HIDDEN)
        states = []
        for step in range(x.shape[1]):
            hidden = self.cell(x[:, step], hidden)
            states.append(hidden)
        return self.unit(torch.stack(states, dim=1), candidate, is_item)


class FeatureEncoder(nn.Module):
    """All parts of the vector: dense, fields, tags, candidate, interest."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.numeric = DenseArch(model)
        self.categorical = SeparateSparseArch(model)
        self.item_embedding = load(nn.Embedding(ITEMS, EMBED), model, "items")
        self.sequence = InterestExtractor(model)

    def forward(
        self, dense: Tensor, fields: Tensor, tags: Tensor, history: Tensor, candidates: Tensor
    ) -> tuple[Tensor, ...]:
        candidate = self.item_embedding(candidates)
        interest = self.sequence(self.item_embedding(history), candidate, history != PADDING)
        return self.numeric(dense), *self.categorical(fields, tags), candidate, interest


class RetrievalTask(nn.Module):
    """The in-batch softmax of two towers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.user_projection = load_linear(model, "towers.user")
        self.item_projection = load_linear(model, "towers.item")
        self.register_buffer("logq", copy_tensor(model.weights["popularity"]).log())

    def forward(self, user: Tensor, item: Tensor, candidates: Tensor) -> Tensor:
        user, item = self.user_projection(user), self.item_projection(item)
        user = user / user.norm(dim=1, keepdim=True)
        item = item / item.norm(dim=1, keepdim=True)
        scores = torch.einsum("ue,ie->ui", user, item) * (1 / TEMPERATURE) - self.logq[candidates]
        is_copy = torch.triu(candidates[:, None] == candidates[None], diagonal=1)
        scores = torch.where(is_copy | is_copy.T, MASKED, scores)
        return F.nll_loss(F.log_softmax(scores, dim=1), torch.arange(BATCH))


class RankingTask(nn.Module):
    """The weighted binary cross entropy of clicks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.cross, self.dnn = LowRankCrossNet(model), MLP(model)
        self.classifier = load_linear(model, "head")
        self.loss = nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.tensor(CLICK_WEIGHT))

    def forward(self, x: Tensor, weights: Tensor, clicks: Tensor) -> Tensor:
        logits = self.classifier(torch.cat([self.cross(x), self.dnn(x)], dim=1)).squeeze(1)
        return (weights * self.loss(logits, clicks)).mean()


class TwoTaskModel(nn.Module):
    """The same with modules for features and tasks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.features = FeatureEncoder(model)
        self.ranking, self.retrieval = RankingTask(model), RetrievalTask(model)

    def forward(
        self,
        dense: Tensor,
        fields: Tensor,
        tags: Tensor,
        history: Tensor,
        candidates: Tensor,
        weights: Tensor,
        clicks: Tensor,
    ) -> Tensor:
        parts = self.features(dense, fields, tags, history, candidates)
        _, by_field, bag, candidate, interest = parts
        ranking_loss = self.ranking(torch.cat(parts, dim=1), weights, clicks)
        user = torch.cat([by_field, interest.detach()], dim=1)
        item = torch.cat([candidate, bag], dim=1)
        return ranking_loss + TOWERS_SHARE * self.retrieval(user, item, candidates)
