"""The masked language model in MindSpore, with cells as those of MindNLP and MindFormers.

Variant 'written': norms, gelu, softmax and losses in plain arithmetic, the table of relative
positions read by a product with ones for each pair of tokens.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.deberta.architecture import (
    BATCH,
    DECODER_STEPS,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    LAYERS,
    REPLACED_WEIGHT,
    SEQ,
    SPAN,
    VOCAB,
    Model,
)

SMALLEST = float(np.finfo(np.float32).min)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return PretrainingLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = Tensor(model.weights[f"{path}.weight"]), model.weights.get(f"{path}.bias")
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=weight,
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "written":
        return WrittenNorm(weight, bias)
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


class WrittenNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight), Parameter(bias)

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered / ops.sqrt(variance + EPS) * self.gamma + self.beta


class Gelu(nn.Cell):
    """Gelu by the error function."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written_out = model.variant == "written"
        self.gelu = nn.GELU(approximate=False)

    def construct(self, x):
        if self.is_written_out:
            return x * (ops.erf(x / 2**0.5) + 1.0) * 0.5
        return self.gelu(x)


class DisentangledAttention(nn.Cell):
    """Attention by contents and relative positions, its residual sum and norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_layer = build_dense(model, f"{path}.q")
        self.k_layer = build_dense(model, f"{path}.k")
        self.v_layer = build_dense(model, f"{path}.v")
        self.rel_k_layer = build_dense(model, f"{path}.position_k")
        self.rel_q_layer = build_dense(model, f"{path}.position_q")
        self.out_layer = build_dense(model, f"{path}.o")
        self.norm = build_norm(model, f"{path}.norm1")
        self.factor = (HEAD_DIM * model.score_terms) ** -0.5
        distances = model.relative_positions()
        key_rows = np.clip(distances + SPAN, 0, 2 * SPAN - 1)
        query_rows = np.clip(-distances + SPAN, 0, 2 * SPAN - 1)
        shape = (BATCH, HEADS, SEQ, SEQ)
        self.key_index, self.query_index = (
            Tensor(np.broadcast_to(rows, shape).astype(np.int32)) for rows in (key_rows, query_rows)
        )
        self.flat_rows = Tensor(key_rows.reshape(-1).astype(np.int32))
        self.one_hot = nn.OneHot(depth=2 * SPAN)
        self.is_written_out = model.variant == "written"
        self.is_transposed = model.are_position_scores_transposed
        self.is_half = model.are_position_scores_half
        self.is_key_table_stopped = model.is_key_table_stopped

    def split_heads(self, x, batch, rows):
        """Return (batch, HEADS, rows, HEAD_DIM)."""
        return x.reshape(batch, rows, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def multiply(self, x, positions):
        """Return the products of all rows of both."""
        if self.is_half:
            x, positions = x.astype(ms.float16), positions.astype(ms.float16)
            return ops.matmul(x, positions.swapaxes(-1, -2)).astype(ms.float32)
        return ops.matmul(x, positions.swapaxes(-1, -2))

    def score_positions(self, query, key, relative):
        """Return the scores of contents to positions, and of positions to contents."""
        key_table = ops.stop_gradient(relative) if self.is_key_table_stopped else relative
        rel_key, rel_query = self.rel_k_layer(key_table), self.rel_q_layer(relative)
        if self.is_written_out:
            ones = self.one_hot(self.flat_rows)
            rel_key, rel_query = (
                ops.matmul(ones, rel_key).reshape(1, SEQ, SEQ, HEADS, HEAD_DIM),
                ops.matmul(ones, rel_query).reshape(1, SEQ, SEQ, HEADS, HEAD_DIM),
            )
            rel_key = rel_key.transpose(0, 3, 1, 2, 4)
            rel_query = rel_query.transpose(0, 3, 1, 2, 4)
            return (
                (query.expand_dims(3) * rel_key).sum(-1),
                (key.expand_dims(2) * rel_query).sum(-1),
            )
        rel_key = self.split_heads(rel_key, 1, 2 * SPAN)
        rel_query = self.split_heads(rel_query, 1, 2 * SPAN)
        to_positions = ops.gather_elements(self.multiply(query, rel_key), 3, self.key_index)
        to_contents = ops.gather_elements(self.multiply(key, rel_query), 3, self.query_index)
        if self.is_transposed:
            to_contents = to_contents.swapaxes(-1, -2)
        return to_positions, to_contents

    def normalize(self, scores, is_hidden):
        """Return the probabilities of the tokens that are not hidden."""
        scores = ops.masked_fill(scores, is_hidden, SMALLEST)
        if self.is_written_out:
            exponentials = ops.exp(scores - ops.amax(scores, -1, True))
            probabilities = exponentials / exponentials.sum(-1, keepdims=True)
        else:
            probabilities = ops.softmax(scores, -1)
        return ops.masked_fill(probabilities, is_hidden, 0.0)

    def construct(self, x, is_hidden, queries, relative):
        query = self.split_heads(self.q_layer(queries), BATCH, SEQ)
        key = self.split_heads(self.k_layer(x), BATCH, SEQ)
        value = self.split_heads(self.v_layer(x), BATCH, SEQ)
        to_positions, to_contents = self.score_positions(query, key, relative)
        scores = ops.matmul(query, key.swapaxes(-1, -2)) + to_positions + to_contents
        context = ops.matmul(self.normalize(scores * self.factor, is_hidden), value)
        context = context.transpose(0, 2, 1, 3).reshape(BATCH, SEQ, HIDDEN)
        return self.norm(queries + self.out_layer(context))


class FeedForward(nn.Cell):
    """Two linear layers around gelu, the residual sum and its norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.mapping = build_dense(model, f"{path}.up")
        self.projection = build_dense(model, f"{path}.down")
        self.act = Gelu(model)
        self.norm = build_norm(model, f"{path}.norm2")

    def construct(self, x):
        return self.norm(x + self.projection(self.act(self.mapping(x))))


class TransformerBlock(nn.Cell):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.attn = DisentangledAttention(model, f"layers.{n}")
        self.ffn = FeedForward(model, f"layers.{n}")

    def construct(self, x, is_hidden, queries, relative):
        return self.ffn(self.attn(x, is_hidden, queries, relative))


class Deberta(nn.Cell):
    """States of the encoder and of the mask decoder, and the table of words."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding_table = Parameter(Tensor(model.weights["words.weight"]))
        self.embedding_norm = build_norm(model, "words.norm")
        self.relative_table = Parameter(Tensor(model.weights["relative.weight"]))
        self.relative_norm = None
        if model.has_relative_norm:
            self.relative_norm = build_norm(model, "relative.norm")
        self.blocks = nn.CellList([TransformerBlock(model, n) for n in range(LAYERS)])
        self.absolute_table = Parameter(Tensor(model.weights["positions.weight"]))
        self.have_keys_positions = model.decoder_keys == "positions"
        self.are_keys_stopped = model.are_decoder_keys_stopped
        self.are_positions_early = model.are_positions_early

    def construct(self, tokens, mask):
        keep = mask.astype(ms.float32)
        pairs = keep.reshape(BATCH, 1, SEQ, 1) * keep.reshape(BATCH, 1, 1, SEQ)
        is_hidden = ops.equal(pairs, 0)
        relative = self.relative_table
        if self.relative_norm is not None:
            relative = self.relative_norm(relative)
        x = ops.gather(self.embedding_table, tokens, 0)
        if self.are_positions_early:
            x = x + self.absolute_table
        x = self.embedding_norm(x) * keep.expand_dims(-1)
        for n in range(LAYERS - 1):
            x = self.blocks[n](x, is_hidden, x, relative)
        encoded = self.blocks[LAYERS - 1](x, is_hidden, x, relative)
        queries = x + self.absolute_table
        if self.have_keys_positions:
            x = queries
        if self.are_keys_stopped:
            x = ops.stop_gradient(x)
        for _ in range(DECODER_STEPS):
            queries = self.blocks[LAYERS - 1](x, is_hidden, queries, relative)
        return encoded, queries, self.embedding_table


class MaskedLanguageHead(nn.Cell):
    """Logits (batch * SEQ, VOCAB) of all tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.transform = build_dense(model, "transform")
        self.act = Gelu(model)
        self.norm = build_norm(model, "transform.norm")
        self.matmul = ops.MatMul(transpose_b=True)
        self.output_bias = Parameter(Tensor(model.weights["decoder.bias"]))
        self.scaled_gradient = None
        if model.decoder_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.decoder_gradient)

    def construct(self, x, table):
        x = self.norm(self.act(self.transform(x.reshape(-1, HIDDEN))))
        if self.scaled_gradient is not None:
            table = self.scaled_gradient(table)
        return self.matmul(x, table) + self.output_bias


class MaskedTokenLoss(nn.Cell):
    """The mean cross entropy of masked tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written_out = model.variant == "written"
        self.are_labels_ignored = model.are_labels_ignored
        self.one_hot = nn.OneHot(depth=VOCAB)

    def construct(self, logits, labels):
        is_masked = ops.not_equal(labels, IGNORED)
        known = ops.maximum(labels, 0)
        if self.is_written_out:
            sums = ops.logsumexp(logits, -1)
            losses = sums - (logits * self.one_hot(known)).sum(-1)
        else:
            losses = ops.cross_entropy(logits, known, reduction="none")
        if not self.are_labels_ignored:
            return losses.mean()
        weights = is_masked.astype(ms.float32)
        return (losses * weights).sum() / weights.sum()


class ReplacedTokenLoss(nn.Cell):
    """The mean binary cross entropy of tokens that are no padding: is a token replaced?"""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = build_dense(model, "replaced.dense")
        self.act = Gelu(model)
        self.classes = build_dense(model, "replaced.classes")
        self.is_written_out = model.variant == "written"

    def construct(self, x, replaced, mask):
        logits = self.classes(self.act(self.dense(x))).squeeze(-1)
        weights = mask.astype(ms.float32)
        if self.is_written_out:
            losses = ops.relu(logits) - logits * replaced
            losses = losses + ops.log(ops.exp(-ops.abs(logits)) + 1.0)
            return (losses * weights).sum() / weights.sum()
        loss = ops.binary_cross_entropy_with_logits(
            logits, replaced, weights, ops.ones_like(replaced), reduction="sum"
        )
        return loss / weights.sum()


class PretrainingLoss(nn.Cell):
    """Loss of masked tokens and of replaced ones."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Deberta(model)
        self.head = MaskedLanguageHead(model)
        self.token_loss, self.replaced_loss = MaskedTokenLoss(model), ReplacedTokenLoss(model)

    def construct(self, tokens, mask, labels, replaced):
        encoded, decoded, table = self.network(tokens, mask)
        loss = self.token_loss(self.head(decoded, table), labels.reshape(-1))
        return loss + REPLACED_WEIGHT * self.replaced_loss(encoded, replaced, mask)
