"""The document encoder in MindSpore for graph mode, with cells named as in MindNLP's Longformer.

Variant 'blocks': a block of queries is multiplied with the three blocks of keys around it, global
tokens are read and written by products with ones, and norm, gelu and losses are plain arithmetic.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.longformer.architecture import (
    BAND,
    BATCH,
    BLOCKS,
    CHUNK,
    EPS,
    GLOBAL_TOKEN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    HIDDEN_TOKEN,
    IGNORED,
    KINDS,
    LAYERS,
    LENGTH,
    LOCAL_TOKEN,
    PAD,
    SEQ,
    SLOTS,
    VOCAB,
    WINDOW,
    Model,
    find_neighbors,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return LongformerWithLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "blocks":
        return WrittenNorm(weight, bias)
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


def build_gelu(model: Model) -> nn.Cell:
    """Return the exact gelu."""
    return WrittenGelu() if model.variant == "blocks" else nn.GELU(approximate=False)


class WrittenNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight), Parameter(bias)

    def construct(self, x):
        centered = x - mint.mean(x, dim=-1, keepdim=True)
        variance = mint.mean(centered * centered, dim=-1, keepdim=True)
        return centered / mint.sqrt(variance + EPS) * self.gamma + self.beta


class WrittenGelu(nn.Cell):
    """Gelu from the error function."""

    def construct(self, x):
        return x * (0.5 * (1.0 + mint.erf(x * math.sqrt(0.5))))


class GlobalTokens(nn.Cell):
    """The positions of the global tokens, (BATCH, SLOTS), and which slots are not empty."""

    def __init__(self) -> None:
        super().__init__()
        self.countdown = Tensor(np.arange(SEQ, 0, -1, dtype=np.float32))
        self.topk = ops.TopK(sorted=True)

    def construct(self, mask):
        ranks = (mask == GLOBAL_TOKEN).astype(ms.float32) * self.countdown
        values, positions = self.topk(ranks, SLOTS)
        return positions, values > 0


class LongformerEmbeddings(nn.Cell):
    """Words, positions and types added up, and their norm."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word_embeddings, self.position_embeddings, self.token_type_embeddings = (
            Parameter(Tensor(model.weights[f"embeddings.{name}.weight"]))
            for name in ("words", "positions", "types")
        )
        self.LayerNorm = build_norm(model, "embeddings.norm")

    def construct(self, tokens, types):
        is_token = (tokens != PAD).astype(ms.int32)
        positions = ops.cumsum(is_token, 1) * is_token + PAD
        x = ops.gather(self.word_embeddings, tokens, 0)
        x = x + ops.gather(self.position_embeddings, positions, 0)
        x = x + ops.gather(self.token_type_embeddings, types, 0)
        return self.LayerNorm(x), self.word_embeddings


class Chunks(nn.Cell):
    """Overlapping chunks (BATCH, HEADS, chunks, CHUNK, HEAD_DIM)."""

    def __init__(self, *, is_next_stopped: bool = False) -> None:
        super().__init__()
        self.is_next_stopped = is_next_stopped

    def construct(self, x):
        blocks = x.reshape(BATCH, HEADS, BLOCKS, WINDOW, HEAD_DIM)
        following = blocks[:, :, 1:]
        if self.is_next_stopped:
            following = ops.stop_gradient(following)
        return ops.concat((blocks[:, :, :-1], following), 3)


class SlidingChunks(nn.Cell):
    """Attention in windows as products of chunks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.query_chunks = Chunks()
        self.key_chunks = Chunks(is_next_stopped=model.are_next_keys_stopped)
        self.matmul = ops.BatchMatMul()
        self.matmul_trans_b = ops.BatchMatMul(transpose_b=True)
        self.row = Tensor(np.zeros((BATCH, HEADS, BLOCKS - 1, 1, CHUNK), np.float32))
        self.corner = nn.ConstantPad2d((1, 0, 1, 0), 0.0)
        self.outside = Tensor(np.zeros((BATCH, WINDOW), np.bool_))
        before = model.value_padding
        self.before = Tensor(np.zeros((BATCH, HEADS, before, HEAD_DIM), np.float32))
        self.behind = Tensor(np.zeros((BATCH, HEADS, CHUNK - before, HEAD_DIM), np.float32))
        self.right = Tensor(np.zeros((BATCH, HEADS, BLOCKS, WINDOW, WINDOW + 1), np.float32))
        self.neighbors = Tensor(find_neighbors() + WINDOW)

    def multiply(self, query, key):
        """Return scores (BATCH, HEADS, SEQ, BAND)."""
        scores = self.matmul_trans_b(self.query_chunks(query), self.key_chunks(key))
        skewed = ops.concat((scores, self.row), 3)
        skewed = skewed.reshape(BATCH, HEADS, BLOCKS - 1, CHUNK, BAND)
        last = skewed[:, :, -1:, WINDOW:, : WINDOW + 1]
        upper = ops.concat((skewed[:, :, :, :WINDOW, : WINDOW + 1], last), 2)
        first = self.corner(skewed[:, :, 0, : WINDOW - 1, WINDOW + 2 :]).expand_dims(2)
        lower = ops.concat((first, skewed[:, :, :, WINDOW - 1 : CHUNK - 1, WINDOW + 1 :]), 2)
        return ops.concat((lower, upper), 4).reshape(BATCH, HEADS, SEQ, BAND)

    def find_seen(self, is_local):
        """Return which tokens of the window are seen, (BATCH, 1, SEQ, BAND)."""
        padded = ops.concat((self.outside, is_local, self.outside), 1)
        return ops.gather(padded.astype(ms.int32), self.neighbors, 1).expand_dims(1) > 0

    def apply(self, probs, value):
        """Return the weighted values of the window, (BATCH, HEADS, SEQ, HEAD_DIM)."""
        padded = ops.concat((self.before, value, self.behind), 2)
        blocks = padded.reshape(BATCH, HEADS, BLOCKS + 2, WINDOW, HEAD_DIM)
        values = ops.concat((blocks[:, :, :-2], blocks[:, :, 1:-1], blocks[:, :, 2:]), 3)
        probs = probs.reshape(BATCH, HEADS, BLOCKS, WINDOW, BAND)
        flat = ops.concat((probs, self.right), 4).reshape(BATCH, HEADS, BLOCKS, -1)
        skewed = flat[:, :, :, :-WINDOW].reshape(BATCH, HEADS, BLOCKS, WINDOW, 3 * WINDOW + 1)
        context = self.matmul(skewed[:, :, :, :, :-1], values)
        return context.reshape(BATCH, HEADS, SEQ, HEAD_DIM)


class ThreeBlocks(nn.Cell):
    """Attention in windows as products of a block with the three blocks around it."""

    def __init__(self) -> None:
        super().__init__()
        distances = np.arange(3 * WINDOW) - WINDOW - np.arange(WINDOW)[:, None]
        self.is_near = Tensor(np.tile(np.abs(distances) <= WINDOW, (BLOCKS, 1)))
        self.outside = Tensor(np.zeros((BATCH, HEADS, 1, WINDOW, HEAD_DIM), np.float32))
        self.outside_mask = Tensor(np.zeros((BATCH, 1, WINDOW), np.int32))

    def surround(self, x):
        """Return each block with its neighbors, (BATCH, HEADS, BLOCKS, 3 * WINDOW, HEAD_DIM)."""
        blocks = x.reshape(BATCH, HEADS, BLOCKS, WINDOW, HEAD_DIM)
        before = mint.cat((self.outside, blocks[:, :, :-1]), 2)
        behind = mint.cat((blocks[:, :, 1:], self.outside), 2)
        return mint.cat((before, blocks, behind), 3)

    def multiply(self, query, key):
        """Return scores (BATCH, HEADS, SEQ, 3 * WINDOW)."""
        query = query.reshape(BATCH, HEADS, BLOCKS, WINDOW, HEAD_DIM)
        scores = mint.matmul(query, mint.transpose(self.surround(key), -1, -2))
        return scores.reshape(BATCH, HEADS, SEQ, 3 * WINDOW)

    def find_seen(self, is_local):
        """Return which tokens of the blocks are seen, (BATCH, 1, SEQ, 3 * WINDOW)."""
        blocks = is_local.astype(ms.int32).reshape(BATCH, BLOCKS, WINDOW)
        before = mint.cat((self.outside_mask, blocks[:, :-1]), 1)
        behind = mint.cat((blocks[:, 1:], self.outside_mask), 1)
        rows = mint.cat((before, blocks, behind), 2).expand_dims(2)
        rows = ops.tile(rows, (1, 1, WINDOW, 1)).reshape(BATCH, 1, SEQ, 3 * WINDOW)
        return ops.logical_and(rows > 0, self.is_near)

    def apply(self, probs, value):
        """Return the weighted values of the blocks, (BATCH, HEADS, SEQ, HEAD_DIM)."""
        probs = probs.reshape(BATCH, HEADS, BLOCKS, WINDOW, 3 * WINDOW)
        context = mint.matmul(probs, self.surround(value))
        return context.reshape(BATCH, HEADS, SEQ, HEAD_DIM)


class LongformerSelfAttention(nn.Cell):
    """Attention in windows and of global tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query = build_dense(model, f"{path}.q")
        self.key = build_dense(model, f"{path}.k")
        self.value = build_dense(model, f"{path}.v")
        self.query_global = build_dense(model, f"{path}.global_q")
        self.key_global = build_dense(model, f"{path}.global_k")
        self.value_global = build_dense(model, f"{path}.global_v")
        self.is_blocked = model.variant == "blocks"
        self.windows = ThreeBlocks() if self.is_blocked else SlidingChunks(model)
        self.matmul = ops.BatchMatMul()
        self.matmul_trans_b = ops.BatchMatMul(transpose_b=True)
        self.softmax = nn.Softmax(axis=-1)
        self.scale = HEAD_DIM**-0.5
        self.is_global_query_scaled = model.is_global_query_scaled
        self.are_global_values_local = model.are_global_values_local
        self.scaled_gradient = None
        if model.global_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.global_gradient)

    def split_heads(self, x):
        """Return (BATCH, HEADS, tokens, HEAD_DIM)."""
        return x.reshape(BATCH, -1, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def merge_heads(self, x):
        """Return (BATCH, tokens, HIDDEN)."""
        return x.transpose(0, 2, 1, 3).reshape(BATCH, -1, HIDDEN)

    def read(self, x, positions, is_slot):
        """Return the rows of the slots, (BATCH, SLOTS, HIDDEN)."""
        if self.is_blocked:
            return ops.matmul(self.select(positions, is_slot), x)
        return ops.gather(x, positions, 1, 1)

    def select(self, positions, is_slot):
        """Return ones where a token is in a slot, (BATCH, SLOTS, SEQ)."""
        on, off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        selection = ops.one_hot(positions, SEQ, on, off)
        return selection * is_slot.astype(ms.float32).expand_dims(-1)

    def attend_locally(self, x, mask, positions, is_slot):
        """Return what a token reads from its window and the global tokens."""
        query = self.split_heads(self.query(x) * self.scale)
        key, value = self.key(x), self.value(x)
        slot_key = self.split_heads(self.read(key, positions, is_slot))
        slot_value = self.split_heads(self.read(value, positions, is_slot))

        is_empty = ops.logical_not(is_slot).reshape(BATCH, 1, 1, SLOTS)
        slot_scores = ops.masked_fill(self.matmul_trans_b(query, slot_key), is_empty, MASKED)
        is_hidden = ops.logical_not(self.windows.find_seen(mask == LOCAL_TOKEN))
        scores = self.windows.multiply(query, self.split_heads(key))
        scores = ops.masked_fill(scores, is_hidden, MASKED)
        probs = self.softmax(ops.concat((slot_scores, scores), 3))
        probs = ops.masked_fill(probs, (mask == HIDDEN_TOKEN).reshape(BATCH, 1, SEQ, 1), 0.0)

        context = self.windows.apply(probs[:, :, :, SLOTS:], self.split_heads(value))
        context = context + self.matmul(probs[:, :, :, :SLOTS], slot_value)
        return self.merge_heads(context)

    def attend_globally(self, x, mask, positions, is_slot):
        """Return what the global tokens read from all tokens, (BATCH, SLOTS, HIDDEN)."""
        query = self.query_global(self.read(x, positions, is_slot))
        if self.is_global_query_scaled:
            query = query * self.scale
        key = self.split_heads(self.key_global(x))
        value = self.value(x) if self.are_global_values_local else self.value_global(x)
        scores = self.matmul_trans_b(self.split_heads(query), key)
        is_hidden = (mask == HIDDEN_TOKEN).reshape(BATCH, 1, 1, SEQ)
        probs = self.softmax(ops.masked_fill(scores, is_hidden, MASKED))
        return self.merge_heads(self.matmul(probs, self.split_heads(value)))

    def construct(self, x, mask, positions, is_slot):
        local = self.attend_locally(x, mask, positions, is_slot)
        output = self.attend_globally(x, mask, positions, is_slot)
        if self.scaled_gradient is not None:
            output = self.scaled_gradient(output)
        written = self.matmul(self.select(positions, is_slot).swapaxes(1, 2), output)
        is_global = (mask == GLOBAL_TOKEN).expand_dims(-1)
        if self.is_blocked:
            return local * (1.0 - is_global.astype(ms.float32)) + written
        return ops.where(is_global, written, local)


class LongformerOutput(nn.Cell):
    """A linear layer, a residual sum and its norm."""

    def __init__(self, model: Model, linear_path: str, norm_path: str) -> None:
        super().__init__()
        self.dense = build_dense(model, linear_path)
        self.LayerNorm = build_norm(model, norm_path)

    def construct(self, x, residual):
        return self.LayerNorm(self.dense(x) + residual)


class LongformerLayer(nn.Cell):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attention = LongformerSelfAttention(model, path)
        self.attention_output = LongformerOutput(model, f"{path}.o", f"{path}.norm1")
        self.intermediate = build_dense(model, f"{path}.up")
        self.activation = build_gelu(model)
        self.output = LongformerOutput(model, f"{path}.down", f"{path}.norm2")

    def construct(self, x, mask, positions, is_slot):
        x = self.attention_output(self.attention(x, mask, positions, is_slot), x)
        return self.output(self.activation(self.intermediate(x)), x)


class LongformerModel(nn.Cell):
    """States of all tokens, what the global tokens are pooled to, and the table of words."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings = LongformerEmbeddings(model)
        self.layers = nn.CellList([LongformerLayer(model, f"layers.{n}") for n in range(LAYERS)])
        self.pooler = build_dense(model, "pooler")
        self.global_tokens = GlobalTokens()
        shape = (BATCH, SEQ - LENGTH)
        self.padding = Tensor(np.full(shape, PAD, np.int32))
        self.zeros = Tensor(np.zeros(shape, np.int32))

    def construct(self, tokens, types, mask):
        tokens = ops.concat((tokens, self.padding), 1)
        types = ops.concat((types, self.zeros), 1)
        mask = ops.concat((mask, self.zeros), 1)
        positions, is_slot = self.global_tokens(mask)
        x, table = self.embeddings(tokens, types)
        for layer in self.layers:
            x = layer(x, mask, positions, is_slot)
        is_global = (mask == GLOBAL_TOKEN).astype(ms.float32).expand_dims(-1)
        pooled = (x * is_global).sum(1) / is_global.sum(1)
        return x[:, :LENGTH], ops.tanh(self.pooler(pooled)), table


class LongformerLMHead(nn.Cell):
    """Logits of words, (BATCH * LENGTH, VOCAB); the decoder has the table of words."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = build_dense(model, "transform")
        self.activation = build_gelu(model)
        self.layer_norm = build_norm(model, "transform.norm")
        self.bias = Parameter(Tensor(model.weights["decoder.bias"]))
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x, table):
        x = self.layer_norm(self.activation(self.dense(x.reshape(-1, HIDDEN))))
        return self.matmul(x, table) + self.bias


class LongformerWithLoss(nn.Cell):
    """The losses of masked words, answer and kind."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.longformer = LongformerModel(model)
        self.lm_head = LongformerLMHead(model)
        self.qa_outputs = build_dense(model, "answer")
        self.classifier = build_dense(model, "kind")
        self.last_label = model.last_label
        self.is_written_out = model.variant == "blocks"

    def average(self, logits, labels, is_counted, classes):
        """Return the mean cross entropy of the rows that count."""
        on, off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        one_hot = ops.one_hot(labels, classes, on, off)
        if self.is_written_out:
            shifted = logits - ops.stop_gradient(logits.max(axis=-1, keepdims=True))
            losses = ops.log(ops.exp(shifted).sum(-1)) - (shifted * one_hot).sum(-1)
        else:
            losses = -(ops.log_softmax(logits, -1) * one_hot).sum(-1)
        weights = is_counted.astype(ms.float32)
        return (losses * weights).sum() / weights.sum()

    def compute_word_loss(self, logits, labels):
        labels = labels.reshape(-1)
        if self.is_written_out:
            return self.average(logits, ops.relu(labels), labels >= 0, VOCAB)
        return ops.cross_entropy(logits, labels, ignore_index=IGNORED)

    def compute_position_loss(self, logits, labels):
        """Return the loss of starts or ends; a label beyond the text is ignored."""
        labels = ops.clamp(labels, 0, self.last_label)
        return self.average(logits, labels, labels < LENGTH, LENGTH)

    def compute_kind_loss(self, logits, labels):
        if self.is_written_out:
            return self.average(logits, labels, labels >= 0, KINDS)
        return ops.cross_entropy(logits, labels)

    def construct(self, tokens, types, mask, labels, starts, ends, kinds):
        x, pooled, table = self.longformer(tokens, types, mask)
        loss = self.compute_word_loss(self.lm_head(x, table), labels)
        answer = self.qa_outputs(x)
        start_loss = self.compute_position_loss(answer[:, :, 0], starts)
        end_loss = self.compute_position_loss(answer[:, :, 1], ends)
        loss = loss + (start_loss + end_loss) / 2
        return loss + self.compute_kind_loss(self.classifier(pooled), kinds)
