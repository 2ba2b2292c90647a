"""The network for tables in MindSpore for graph mode.

Variant 'written': norms, softmax and losses in plain arithmetic, a table for each category, a layer
for each wave of a number and for each half of a gated unit, all virtual batches at once, sparsemax
by trying all sizes of its support and with the framework's gradient.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.tabular.architecture import (
    ATTENTION,
    BATCH,
    BLOCKS,
    CATEGORIES,
    CLASS_WEIGHTS,
    CLASSES,
    CODES,
    COUNT_WEIGHT,
    DECISION,
    EPS,
    FEATURES,
    FREQUENCIES,
    GHOST,
    HEAD_WIDTH,
    HEADS,
    LOG_EPS,
    MASK_WEIGHT,
    MOMENTUM,
    NO_CLASS,
    NO_COUNT,
    NUMBERS,
    OFFSETS,
    PERIODIC,
    PLAIN,
    QUANTILE_WEIGHT,
    QUANTILES,
    RELAXATION,
    STEPS,
    WIDTH,
    Model,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else TabularWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def read_parameter(model: Model, name: str) -> Parameter:
    """Return a weight as a parameter."""
    return Parameter(read(model, name), name=name.rpartition(".")[2])


def make_dense(weight: np.ndarray, bias: np.ndarray | None) -> nn.Dense:
    """Return a linear layer with these weights."""
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(np.ascontiguousarray(weight)),
        bias_init=None if bias is None else Tensor(np.ascontiguousarray(bias)),
        has_bias=bias is not None,
    )


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, with the bias if there is one."""
    return make_dense(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


def build_halves(model: Model, path: str) -> list[nn.Dense]:
    """Return a layer for each half of the outputs at ``path``."""
    weights = np.split(model.weights[f"{path}.weight"], 2)
    biases = [None, None]
    if f"{path}.bias" in model.weights:
        biases = np.split(model.weights[f"{path}.bias"], 2)
    return [make_dense(weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    gamma, beta = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    return nn.LayerNorm((WIDTH,), gamma_init=gamma, beta_init=beta, epsilon=EPS)


class NumericalTokenizer(nn.Cell):
    """Tokens of plain numbers, (rows, PLAIN, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = read_parameter(model, "plain.weight")
        self.bias = read_parameter(model, "plain.bias")
        self.missing = read_parameter(model, "plain.missing")

    def construct(self, x, missing):
        tokens = x.expand_dims(-1) * self.weight + self.bias
        return tokens + missing.expand_dims(-1) * self.missing


class PeriodicTokenizer(nn.Cell):
    """Tokens of numbers from waves, (rows, PERIODIC, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.frequencies = read_parameter(model, "periodic.frequencies")
        self.weight = read_parameter(model, "periodic.weight")
        self.bias = read_parameter(model, "periodic.bias")
        self.missing = read_parameter(model, "periodic.missing")

    def construct(self, x, missing):
        angles = 2 * math.pi * self.frequencies * x.expand_dims(-1)
        waves = ops.concat((ops.cos(angles), ops.sin(angles)), -1)
        tokens = ops.bmm(waves.transpose(1, 0, 2), self.weight).transpose(1, 0, 2)
        tokens = ops.relu(tokens + self.bias)
        return tokens + missing.expand_dims(-1) * self.missing


class CategoricalTokenizer(nn.Cell):
    """Tokens of categories, (rows, CATEGORIES, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = read(model, "categories.weight")
        self.embedding = nn.Embedding(len(table), WIDTH, embedding_table=table)
        self.bias = read_parameter(model, "categories.bias")
        offsets = np.array(OFFSETS, np.int32)
        if not model.are_missing_codes_counted:
            offsets -= np.arange(CATEGORIES, dtype=np.int32)
        self.offsets = Tensor(offsets)

    def construct(self, codes):
        return self.embedding(codes + self.offsets) + self.bias


class FeatureTokenizer(nn.Cell):
    """Tokens of a row, [CLS] first, (rows, 1 + FEATURES, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.cls_token = Parameter(read(model, "cls"), name="cls_token")
        self.num_tokenizer = NumericalTokenizer(model)
        self.periodic_tokenizer = PeriodicTokenizer(model)
        self.cat_tokenizer = CategoricalTokenizer(model)

    def construct(self, numbers, missing, codes):
        cls_token = ops.broadcast_to(self.cls_token, (BATCH, 1, WIDTH))
        plain = self.num_tokenizer(numbers[:, :PLAIN], missing[:, :PLAIN])
        periodic = self.periodic_tokenizer(numbers[:, PLAIN:], missing[:, PLAIN:])
        return ops.concat((cls_token, plain, periodic, self.cat_tokenizer(codes)), 1)


class MultiHeadAttention(nn.Cell):
    """Attention among tokens that a row has."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj, self.k_proj = build_dense(model, f"{path}.q"), build_dense(model, f"{path}.k")
        self.v_proj = build_dense(model, f"{path}.v")
        self.out_proj = build_dense(model, f"{path}.o")
        self.softmax = nn.Softmax(axis=-1)

    def split_heads(self, x):
        """Return (rows, HEADS, tokens, HEAD_WIDTH)."""
        return x.reshape(BATCH, -1, HEADS, HEAD_WIDTH).transpose(0, 2, 1, 3)

    def construct(self, x, hidden):
        query = self.split_heads(self.q_proj(x))
        key = self.split_heads(self.k_proj(x))
        value = self.split_heads(self.v_proj(x))
        scores = ops.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(HEAD_WIDTH)
        scores = scores.masked_fill(hidden.reshape(BATCH, 1, 1, -1), MASKED)
        context = ops.matmul(self.softmax(scores), value)
        return self.out_proj(context.transpose(0, 2, 1, 3).reshape(BATCH, -1, WIDTH))


class FeedForward(nn.Cell):
    """Two linear layers around ReGLU."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = build_dense(model, f"{path}.in"), build_dense(model, f"{path}.out")

    def construct(self, x):
        value, gate = ops.chunk(self.fc1(x), 2, axis=-1)
        return self.fc2(value * ops.relu(gate))


class TransformerBlock(nn.Cell):
    """Attention and ReGLU, each behind a norm; the first block has none before its attention."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.norm1 = None
        if n:
            self.norm1 = build_norm(model, f"{path}.attention_norm")
        elif model.is_first_norm_kept:
            self.norm1 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.attention = MultiHeadAttention(model, path)
        self.norm2 = build_norm(model, f"{path}.mlp_norm")
        self.ffn = FeedForward(model, path)

    def construct(self, x, hidden):
        y = x if self.norm1 is None else self.norm1(x)
        x = x + self.attention(y, hidden)
        return x + self.ffn(self.norm2(x))


class GhostBatchNorm(nn.Cell):
    """Batch norm of virtual batches."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        gamma, beta = read(model, f"{path}.weight"), read(model, f"{path}.bias")
        self.bn = nn.BatchNorm1d(
            len(gamma), eps=EPS, momentum=1 - MOMENTUM, gamma_init=gamma, beta_init=beta
        )

    def construct(self, x):
        outputs = ()
        for chunk in ops.split(x, GHOST, axis=0):
            outputs += (self.bn(chunk),)
        return ops.concat(outputs, 0)


class GLULayer(nn.Cell):
    """A linear layer, its norm and a gated unit."""

    def __init__(self, model: Model, dense: nn.Dense, path: str) -> None:
        super().__init__()
        self.fc, self.bn = dense, GhostBatchNorm(model, path)

    def construct(self, x):
        value, gate = ops.chunk(self.bn(self.fc(x)), 2, axis=-1)
        return value * ops.sigmoid(gate)


class FeatureTransformer(nn.Cell):
    """A shared and an own layer, as decision and attention."""

    def __init__(self, model: Model, n: int, shared: nn.Dense) -> None:
        super().__init__()
        path = f"transforms.{n}"
        self.shared = GLULayer(model, shared, f"{path}.shared_norm")
        self.independent = GLULayer(model, build_dense(model, f"{path}.own"), f"{path}.own_norm")
        self.scale = math.sqrt(0.5)

    def construct(self, x):
        x = self.shared(x.reshape(BATCH, -1))
        x = (x + self.independent(x)) * self.scale
        return x[:, :DECISION], x[:, DECISION:]


class Sparsemax(nn.Cell):
    """The Euclidean projection to probabilities, with its own gradient."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ranks = Tensor(np.arange(1, FEATURES + 1, dtype=np.float32))
        self.is_support_averaged = model.is_support_averaged

    def construct(self, x):
        ordered, _ = ops.sort(x, axis=-1, descending=True)
        sums = ops.cumsum(ordered, -1) - 1.0
        supported = ops.greater(self.ranks * ordered, sums).astype(ms.float32)
        size = supported.sum(-1, keepdims=True)
        threshold = ((ordered * supported).sum(-1, keepdims=True) - 1.0) / size
        return ops.relu(x - threshold)

    def bprop(self, x, out, gradient):
        support = ops.greater(out, 0.0).astype(ms.float32)
        size = support.sum(-1, keepdims=True) if self.is_support_averaged else FEATURES
        mean = (gradient * support).sum(-1, keepdims=True) / size
        return (support * (gradient - mean),)


class AttentiveTransformer(nn.Cell):
    """The mask of a step."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.fc = build_dense(model, f"attentive.{n}")
        self.bn = GhostBatchNorm(model, f"attentive.{n}.norm")
        self.sparsemax = Sparsemax(model)

    def construct(self, a, prior):
        return self.sparsemax(self.bn(self.fc(a)) * prior)


class TabNet(nn.Cell):
    """The sum of the decisions, (rows, DECISION), and the entropy of the masks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        shared = build_dense(model, "shared")
        self.initial_transformer = FeatureTransformer(model, 0, shared)
        self.feature_transformers = nn.CellList(
            [FeatureTransformer(model, n + 1, shared) for n in range(STEPS)]
        )
        self.attentive_transformers = nn.CellList(
            [AttentiveTransformer(model, n) for n in range(STEPS)]
        )

    def construct(self, tokens):
        _, a = self.initial_transformer(tokens)
        prior = ops.ones((BATCH, FEATURES), ms.float32)
        output, entropy = 0.0, 0.0
        for n in range(STEPS):
            mask = self.attentive_transformers[n](a, prior)
            entropy = entropy + (-mask * ops.log(mask + LOG_EPS)).sum(-1).mean() / STEPS
            prior = prior * (RELAXATION - mask)
            d, a = self.feature_transformers[n](mask.expand_dims(-1) * tokens)
            output = output + ops.relu(d)
        return output, entropy


class PinballLoss(nn.Cell):
    """The pinball loss of each row, mean of QUANTILES."""

    def __init__(self) -> None:
        super().__init__()
        self.quantiles = Tensor(QUANTILES, ms.float32)

    def construct(self, predictions, targets):
        errors = targets.expand_dims(-1) - predictions
        losses = ops.maximum(self.quantiles * errors, (self.quantiles - 1.0) * errors)
        return losses.mean(-1)


class TabularNet(nn.Cell):
    """What heads read, (rows, WIDTH + DECISION), and the entropy of the masks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tokenizer = FeatureTokenizer(model)
        self.blocks = nn.CellList([TransformerBlock(model, n) for n in range(BLOCKS)])
        self.norm = build_norm(model, "norm")
        self.tabnet = TabNet(model)
        self.is_mask_shifted = model.is_mask_shifted

    def construct(self, numbers, missing, codes):
        x = self.tokenizer(numbers, missing, codes)
        known = ops.zeros((BATCH, NUMBERS), ms.bool_)
        hidden = ops.concat((known, ops.equal(codes, 0)), 1)
        own = ops.zeros((BATCH, 1), ms.bool_)
        hidden = ops.concat((hidden, own) if self.is_mask_shifted else (own, hidden), 1)
        for block in self.blocks:
            x = block(x, hidden)
        output, entropy = self.tabnet(x[:, 1:])
        return ops.concat((ops.relu(self.norm(x[:, 0])), output), -1), entropy


class TabularWithLoss(nn.Cell):
    """The sum of the four losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = TabularNet(model)
        self.cls_head = build_dense(model, "heads.classes")
        self.quantile_head = build_dense(model, "heads.quantiles")
        self.count_head = build_dense(model, "heads.counts")
        self.pinball_loss = PinballLoss()
        self.class_weights = Tensor(CLASS_WEIGHTS, ms.float32)
        self.are_class_weights_summed = model.are_class_weights_summed

    def compute_class_loss(self, logits, labels):
        """Return the weighted mean of rows that have a class."""
        if self.are_class_weights_summed:
            return ops.cross_entropy(logits, labels, self.class_weights, ignore_index=NO_CLASS)
        losses = ops.cross_entropy(
            logits, labels, self.class_weights, ignore_index=NO_CLASS, reduction="none"
        )
        return losses.sum() / ops.not_equal(labels, NO_CLASS).astype(ms.float32).sum()

    def construct(self, numbers, missing, codes, labels, targets, has_target, counts, exposures):
        x, entropy = self.backbone(numbers, missing, codes)
        class_loss = self.compute_class_loss(self.cls_head(x), labels)
        losses = self.pinball_loss(self.quantile_head(x), targets)
        quantile_loss = (losses * has_target).sum() / has_target.sum()
        log_rates = self.count_head(x).squeeze(-1) + ops.log(exposures)
        has_count = ops.not_equal(counts, NO_COUNT).astype(ms.float32)
        losses = (ops.exp(log_rates) - counts * log_rates) * has_count
        count_loss = losses.sum() / has_count.sum()
        loss = class_loss + QUANTILE_WEIGHT * quantile_loss + COUNT_WEIGHT * count_loss
        return loss + MASK_WEIGHT * entropy


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = read_parameter(model, f"{path}.weight")
        self.beta = read_parameter(model, f"{path}.bias")

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        deviation = ops.sqrt(ops.square(centered).mean(-1, keep_dims=True) + EPS)
        return self.gamma * (centered / deviation) + self.beta


class WrittenGhostNorm(nn.Cell):
    """Batch norm of all virtual batches at once, from means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = read_parameter(model, f"{path}.weight")
        self.beta = read_parameter(model, f"{path}.bias")

    def construct(self, x):
        groups = x.reshape(BATCH // GHOST, GHOST, -1)
        centered = groups - groups.mean(1, keep_dims=True)
        variance = ops.square(centered).mean(1, keep_dims=True)
        normed = centered * ops.rsqrt(variance + EPS)
        return normed.reshape(x.shape) * self.gamma + self.beta


class WrittenTokenizer(nn.Cell):
    """The same as FeatureTokenizer, with a table for each category."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.direction = read_parameter(model, "plain.weight")
        self.plain_bias = Parameter(read(model, "plain.bias"), name="plain_bias")
        self.frequency = read_parameter(model, "periodic.frequencies")
        cosine, sine = np.split(model.weights["periodic.weight"], 2, axis=1)
        self.cosine = Parameter(Tensor(np.ascontiguousarray(cosine)), name="cosine")
        self.sine = Parameter(Tensor(np.ascontiguousarray(sine)), name="sine")
        self.periodic_bias = Parameter(read(model, "periodic.bias"), name="periodic_bias")
        names = ("plain.missing", "periodic.missing")
        missing = np.concatenate([model.weights[name] for name in names])
        self.absence = Parameter(Tensor(missing), name="absence")
        tables = np.split(model.weights["categories.weight"], OFFSETS[1:])
        self.tables = nn.CellList(
            [
                nn.Embedding(n_codes, WIDTH, embedding_table=Tensor(np.ascontiguousarray(table)))
                for n_codes, table in zip(CODES, tables, strict=True)
            ]
        )
        self.category_bias = Parameter(read(model, "categories.bias"), name="category_bias")
        self.class_token = Parameter(read(model, "cls"), name="class_token")

    def project(self, waves, weight):
        """Return a product for each number, (rows, PERIODIC, WIDTH)."""
        return (waves.reshape(BATCH, PERIODIC, FREQUENCIES, 1) * weight).sum(2)

    def construct(self, numbers, missing, codes):
        plain = mint.mul(numbers[:, :PLAIN].expand_dims(2), self.direction)
        angles = numbers[:, PLAIN:].expand_dims(2) * self.frequency * (2 * math.pi)
        periodic = self.project(mint.cos(angles), self.cosine)
        periodic = periodic + self.project(mint.sin(angles), self.sine) + self.periodic_bias
        tokens = mint.cat((plain + self.plain_bias, ops.maximum(periodic, 0.0)), 1)
        tokens = tokens + mint.mul(missing.expand_dims(2), self.absence)
        rows = ()
        for n in range(CATEGORIES):
            rows += (self.tables[n](codes[:, n]) + self.category_bias[n],)
        class_token = mint.tile(self.class_token, (BATCH, 1, 1))
        return mint.cat((class_token, tokens, ops.stack(rows, 1)), 1)


class WrittenBlock(nn.Cell):
    """The same as TransformerBlock, with softmax in plain arithmetic."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.attention_norm = WrittenNorm(model, f"{path}.attention_norm") if n else None
        self.query, self.key, self.value, self.output = (
            build_dense(model, f"{path}.{name}") for name in "qkvo"
        )
        self.mlp_norm = WrittenNorm(model, f"{path}.mlp_norm")
        self.value_layer, self.gate_layer = build_halves(model, f"{path}.in")
        self.down = build_dense(model, f"{path}.out")

    def attend(self, x, seen):
        """Return what tokens get of others, seen (rows, 1, 1, tokens)."""
        heads = (BATCH, -1, HEADS, HEAD_WIDTH)
        query = self.query(x).reshape(heads).transpose(0, 2, 1, 3) * HEAD_WIDTH**-0.5
        key = self.key(x).reshape(heads).transpose(0, 2, 3, 1)
        value = self.value(x).reshape(heads).transpose(0, 2, 1, 3)
        scores = mint.matmul(query, key)
        exponentials = mint.exp(scores - scores.max(-1, keepdims=True)) * seen
        shares = exponentials / exponentials.sum(-1, keepdims=True)
        return self.output(mint.matmul(shares, value).transpose(0, 2, 1, 3).reshape(x.shape))

    def construct(self, x, seen):
        y = x
        if self.attention_norm is not None:
            y = self.attention_norm(x)
        x = self.attend(y, seen) + x
        y = self.mlp_norm(x)
        return self.down(ops.maximum(self.gate_layer(y), 0.0) * self.value_layer(y)) + x


class WrittenGLU(nn.Cell):
    """A layer, a norm of both halves and a gated unit."""

    def __init__(self, model: Model, dense: nn.Dense, path: str) -> None:
        super().__init__()
        self.dense, self.norm = dense, WrittenGhostNorm(model, path)

    def construct(self, x):
        x = self.norm(self.dense(x))
        half = DECISION + ATTENTION
        return x[:, :half] / (1 + mint.exp(-x[:, half:]))


class WrittenSparsemax(nn.Cell):
    """Sparsemax: the largest threshold of all sizes of a support."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = Tensor(np.arange(1, FEATURES + 1, dtype=np.float32))

    def construct(self, x):
        ordered, _ = ops.topk(x, FEATURES)
        thresholds = (ops.cumsum(ordered, 1) - 1.0) / self.sizes
        return ops.maximum(x - thresholds.max(1, keepdims=True), 0.0)


class WrittenLoss(nn.Cell):
    """The same loss in plain arithmetic."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed = WrittenTokenizer(model)
        self.layers = nn.CellList([WrittenBlock(model, n) for n in range(BLOCKS)])
        self.last_norm = WrittenNorm(model, "norm")
        shared = build_dense(model, "shared")
        self.common = nn.CellList(
            [WrittenGLU(model, shared, f"transforms.{n}.shared_norm") for n in range(STEPS + 1)]
        )
        self.own = nn.CellList(
            [
                WrittenGLU(
                    model, build_dense(model, f"transforms.{n}.own"), f"transforms.{n}.own_norm"
                )
                for n in range(STEPS + 1)
            ]
        )
        self.scores = nn.CellList([build_dense(model, f"attentive.{n}") for n in range(STEPS)])
        self.score_norms = nn.CellList(
            [WrittenGhostNorm(model, f"attentive.{n}.norm") for n in range(STEPS)]
        )
        self.sparsemax = WrittenSparsemax()
        self.classes = build_dense(model, "heads.classes")
        self.quantiles = build_dense(model, "heads.quantiles")
        self.counts = build_dense(model, "heads.counts")
        self.class_weights = Tensor(CLASS_WEIGHTS, ms.float32)
        self.levels = Tensor(QUANTILES, ms.float32)

    def transform(self, x, n):
        """Return decision and attention of a step next to each other."""
        x = self.common[n](mint.reshape(x, (BATCH, FEATURES * WIDTH)))
        return (x + self.own[n](x)) / math.sqrt(2)

    def select(self, tokens):
        """Return the sum of the decisions, and the mean entropy of the masks."""
        state = self.transform(tokens, 0)
        prior, decisions, entropies = 1.0, 0.0, 0.0
        for n in range(STEPS):
            scores = self.score_norms[n](self.scores[n](state[:, DECISION:]))
            mask = self.sparsemax(scores * prior)
            entropies = entropies - mask * mint.log(mask + LOG_EPS)
            prior = (RELAXATION - mask) * prior
            state = self.transform(tokens * mask.reshape(BATCH, FEATURES, 1), n + 1)
            decisions = decisions + ops.maximum(state[:, :DECISION], 0.0)
        return decisions, entropies.sum() / (BATCH * STEPS)

    def compute_class_loss(self, logits, labels):
        """Return the weighted mean of rows that have a class."""
        chosen = ops.one_hot(labels, CLASSES, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        chosen = chosen * self.class_weights
        logits = logits - logits.max(-1, keepdims=True)
        log_probs = logits - mint.log(mint.exp(logits).sum(-1, keepdims=True))
        return -(chosen * log_probs).sum() / chosen.sum()

    def construct(self, numbers, missing, codes, labels, targets, has_target, counts, exposures):
        x = self.embed(numbers, missing, codes)
        known = mint.ones((BATCH, 1 + NUMBERS), dtype=ms.float32)
        seen = mint.cat((known, ops.greater(codes, 0).astype(ms.float32)), 1)
        seen = seen.reshape(BATCH, 1, 1, 1 + FEATURES)
        for layer in self.layers:
            x = layer(x, seen)
        decisions, entropy = self.select(x[:, 1:])
        x = mint.cat((ops.maximum(self.last_norm(x[:, 0]), 0.0), decisions), 1)

        errors = self.quantiles(x) - targets.reshape(BATCH, 1)
        losses = ops.where(errors > 0, (1 - self.levels) * errors, -self.levels * errors)
        quantile_loss = (losses.sum(1) * has_target).sum() / (len(QUANTILES) * has_target.sum())
        log_rates = self.counts(x).reshape(BATCH)
        losses = exposures * mint.exp(log_rates) - counts * (log_rates + mint.log(exposures))
        has_count = ops.greater_equal(counts, 0.0).astype(ms.float32)
        count_loss = (losses * has_count).sum() / has_count.sum()
        loss = self.compute_class_loss(self.classes(x), labels)
        loss = loss + QUANTILE_WEIGHT * quantile_loss
        return loss + COUNT_WEIGHT * count_loss + MASK_WEIGHT * entropy
