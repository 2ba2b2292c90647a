"""The encoder and its pretraining in MindSpore, with the cells of its model zoo's BERT.

Variant 'one_hot': tables and masked tokens are read by products with ones, queries are scaled, norm
and softmax are written out, and the losses are the framework's.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.bert.architecture import (
    BATCH,
    EPS,
    GROUPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    SEQ,
    VOCAB,
    Model,
)

MASKED = -10000.0


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        model.is_feed_forward_half
        or model.is_gradient_of_last_call
        or model.is_softmax_gradient_plain
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    return BertNetworkWithLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "one_hot":
        return WrittenNorm(weight, bias)
    return nn.LayerNorm((len(weight),), gamma_init=weight, beta_init=bias, epsilon=EPS)


class WrittenNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight), Parameter(bias)

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


class EmbeddingLookup(nn.Cell):
    """Rows of a table, and the table."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.embedding_table = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.is_one_hot = model.variant == "one_hot"
        self.one_hot = nn.OneHot(depth=self.embedding_table.shape[0])

    def construct(self, ids):
        if self.is_one_hot:
            return ops.matmul(self.one_hot(ids), self.embedding_table), self.embedding_table
        return ops.gather(self.embedding_table, ids, 0), self.embedding_table


class EmbeddingPostprocessor(nn.Cell):
    """Words, segments and positions added up, and their norm."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.token_type_embedding = EmbeddingLookup(model, "embeddings.segments")
        self.full_position_embedding = EmbeddingLookup(model, "embeddings.positions")
        self.position_ids = Tensor(np.arange(SEQ, dtype=np.int32) + model.first_position)
        self.layernorm = build_norm(model, "embeddings.norm")
        self.are_segments_ignored = model.are_segments_ignored
        self.scaled_gradient = None
        if model.position_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.position_gradient)

    def construct(self, words, segments):
        if self.are_segments_ignored:
            segments = ops.zeros_like(segments)
        token_types, _ = self.token_type_embedding(segments)
        positions, _ = self.full_position_embedding(self.position_ids)
        if self.scaled_gradient is not None:
            positions = self.scaled_gradient(positions)
        return self.layernorm(words + token_types + positions.expand_dims(0))


class BertSelfAttention(nn.Cell):
    """Attention (batch * SEQ, HIDDEN) of all tokens to those that are no padding."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query_layer = build_dense(model, f"{path}.q")
        self.key_layer = build_dense(model, f"{path}.k")
        self.value_layer = build_dense(model, f"{path}.v")
        self.scores_mul = HEAD_DIM**-0.5
        self.matmul_trans_b = ops.BatchMatMul(transpose_b=True)
        self.matmul = ops.BatchMatMul()
        self.softmax = nn.Softmax()
        self.is_written_out = model.variant == "one_hot"

    def transpose_for_scores(self, x):
        """Return (batch, heads, SEQ, HEAD_DIM)."""
        return x.reshape(BATCH, SEQ, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x, mask_bias):
        query = self.transpose_for_scores(self.query_layer(x))
        key = self.transpose_for_scores(self.key_layer(x))
        value = self.transpose_for_scores(self.value_layer(x))
        if self.is_written_out:
            scores = self.matmul_trans_b(query * self.scores_mul, key) + mask_bias
            exponentials = ops.exp(scores - ops.amax(scores, -1, True))
            probabilities = exponentials / exponentials.sum(-1, keepdims=True)
        else:
            scores = self.matmul_trans_b(query, key) * self.scores_mul
            probabilities = self.softmax(scores + mask_bias)
        context = self.matmul(probabilities, value)
        return context.transpose(0, 2, 1, 3).reshape(BATCH * SEQ, HIDDEN)


class BertOutput(nn.Cell):
    """A linear layer, a residual sum and its norm."""

    def __init__(self, model: Model, linear_path: str, norm_path: str) -> None:
        super().__init__()
        self.dense = build_dense(model, linear_path)
        self.layernorm = build_norm(model, norm_path)
        self.is_norm_first = model.is_norm_first

    def construct(self, x, residual):
        if self.is_norm_first:
            return self.dense(x) + residual
        return self.layernorm(self.dense(x) + residual)


class BertEncoderCell(nn.Cell):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"groups.{n}"
        self.attention = BertSelfAttention(model, path)
        self.attention_output = BertOutput(model, f"{path}.o", f"{path}.norm1")
        self.intermediate = build_dense(model, f"{path}.up")
        self.activation = nn.GELU(approximate=model.activation == "gelu_tanh")
        self.output = BertOutput(model, f"{path}.down", f"{path}.norm2")
        self.is_norm_first = model.is_norm_first

    def construct(self, x, mask_bias):
        if self.is_norm_first:
            attended = self.attention(self.attention_output.layernorm(x), mask_bias)
            x = self.attention_output(attended, x)
            wide = self.activation(self.intermediate(self.output.layernorm(x)))
            return self.output(wide, x)
        x = self.attention_output(self.attention(x, mask_bias), x)
        return self.output(self.activation(self.intermediate(x)), x)


class BertTransformer(nn.Cell):
    """All layers; those of a group are one cell."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = nn.CellList([BertEncoderCell(model, n) for n in range(GROUPS)])
        self.layer_groups = model.layer_groups()

    def construct(self, x, mask_bias):
        x = x.reshape(BATCH * SEQ, HIDDEN)
        for group in self.layer_groups:
            x = self.layers[group](x, mask_bias)
        return x.reshape(BATCH, SEQ, HIDDEN)


class BertModel(nn.Cell):
    """States of all tokens, the pooled state of the first one, and the table of words."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bert_embedding_lookup = EmbeddingLookup(model, "embeddings.words")
        self.bert_embedding_postprocessor = EmbeddingPostprocessor(model)
        self.embedding_mapping = build_dense(model, "embeddings.mapping")
        self.bert_encoder = BertTransformer(model)
        self.dense = build_dense(model, "pooler")
        self.is_mask_added = model.is_mask_added
        self.is_mean_pooled = model.pooled_tokens == "mean"
        self.mask_shape = (BATCH, 1, SEQ, 1) if model.are_queries_masked else (BATCH, 1, 1, SEQ)

    def construct(self, tokens, segments, mask):
        words, table = self.bert_embedding_lookup(tokens)
        x = self.embedding_mapping(self.bert_embedding_postprocessor(words, segments))
        mask = mask.astype(ms.float32).reshape(self.mask_shape)
        mask_bias = mask if self.is_mask_added else (1.0 - mask) * MASKED
        x = self.bert_encoder(x, mask_bias)
        pooled = x.mean(1) if self.is_mean_pooled else x[:, 0]
        return x, ops.tanh(self.dense(pooled)), table


class GetMaskedLMOutput(nn.Cell):
    """Logits (batch * SLOTS, VOCAB) of the masked tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = build_dense(model, "transform")
        self.layernorm = build_norm(model, "transform.norm")
        self.output_bias = Parameter(Tensor(model.weights["decoder.bias"]))
        self.decoder_weight = None
        if not model.is_decoder_tied:
            self.decoder_weight = Parameter(Tensor(model.weights["embeddings.words.weight"]))
        self.flat_offsets = Tensor(np.arange(BATCH, dtype=np.int32)[:, None] * SEQ)
        self.matmul = ops.MatMul(transpose_b=True)
        self.one_hot = nn.OneHot(depth=SEQ)
        self.has_offsets, self.is_one_hot = model.has_slot_offsets, model.variant == "one_hot"

    def read_slots(self, x, positions):
        """Return the states of the slots, (batch * SLOTS, HIDDEN)."""
        if self.is_one_hot:
            return ops.matmul(self.one_hot(positions), x).reshape(-1, HIDDEN)
        if self.has_offsets:
            positions = positions + self.flat_offsets
        return ops.gather(x.reshape(-1, HIDDEN), positions.reshape(-1), 0)

    def construct(self, x, table, positions):
        x = self.dense(self.read_slots(x, positions))
        x = self.layernorm(ops.gelu(x, approximate="none"))
        weight = table if self.decoder_weight is None else self.decoder_weight
        return self.matmul(x, weight) + self.output_bias


class BertPreTraining(nn.Cell):
    """Logits (batch * SLOTS, VOCAB) of the masked tokens, and (batch, 2) of the order."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bert = BertModel(model)
        self.cls1 = GetMaskedLMOutput(model)
        self.cls2 = build_dense(model, "order")

    def construct(self, tokens, segments, mask, positions):
        x, pooled, table = self.bert(tokens, segments, mask)
        return self.cls1(x, table, positions), self.cls2(pooled)


class BertNetworkWithLoss(nn.Cell):
    """The loss of the masked tokens plus that of the order."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = BertPreTraining(model)
        self.is_order_reversed = model.is_order_reversed
        self.are_empty_slots_counted = model.are_empty_slots_counted
        self.is_framework_loss = model.variant == "one_hot"
        self.one_hot_words, self.one_hot_order = nn.OneHot(depth=VOCAB), nn.OneHot(depth=2)

    def compute_losses(self, logits, labels, one_hot):
        """Return the cross entropy of each row."""
        if self.is_framework_loss:
            return ops.cross_entropy(logits, labels, reduction="none")
        log_probs = ops.log_softmax(logits, -1)
        return -(log_probs * one_hot(labels)).sum(-1)

    def construct(self, tokens, segments, mask, positions, labels, weights, order):
        word_logits, order_logits = self.network(tokens, segments, mask, positions)
        losses = self.compute_losses(word_logits, labels.reshape(-1), self.one_hot_words)
        if self.are_empty_slots_counted:
            masked_loss = losses.mean()
        else:
            weights = weights.reshape(-1)
            masked_loss = (losses * weights).sum() / weights.sum()
        if self.is_order_reversed:
            order = 1 - order
        order_losses = self.compute_losses(order_logits, order, self.one_hot_order)
        return masked_loss + order_losses.mean()
