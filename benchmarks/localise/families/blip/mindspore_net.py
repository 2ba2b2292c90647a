"""The querying transformer in MindSpore for graph mode, with cells named as in MindNLP.

Variant 'written': other names, norms, softmax, gelu and losses in plain arithmetic, sums of masked
parts where parts are joined.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.blip.architecture import (
    BATCH,
    DECODE,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    IMAGE_EPS,
    LAYERS,
    PAD,
    QUERIES,
    SEQ,
    SMOOTHING,
    TEXT,
    VOCAB,
    Model,
    has_cross_attention,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if model.variant == "written":
        return QueryingTransformer(model)
    return Blip2Qformer(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = (read(model, f"{path}.{name}") for name in ("weight", "bias"))
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


def build_norm(model: Model, path: str, eps: float = EPS) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    weight, bias = (read(model, f"{path}.{name}") for name in ("weight", "bias"))
    return nn.LayerNorm((len(weight),), gamma_init=weight, beta_init=bias, epsilon=eps)


class Embeddings(nn.Cell):
    """Queries and embedded tokens in one normed sequence."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word_embeddings = Parameter(read(model, "embeddings.words.weight"))
        self.position_embeddings = Parameter(read(model, "embeddings.positions.weight"))
        self.layernorm = build_norm(model, "embeddings.norm")
        positions = np.arange(TEXT, dtype=np.int32)
        self.position_ids = Tensor(positions)
        self.language_position_ids = Tensor(positions + np.int32(model.first_position))

    def construct(self, tokens, queries, is_language):
        words = ops.gather(self.word_embeddings, tokens, 0)
        positions = self.language_position_ids if is_language else self.position_ids
        text = words + ops.gather(self.position_embeddings, positions, 0)
        return self.layernorm(mint.cat((queries, text), 1))


class MultiHeadAttention(nn.Cell):
    """Attention to a context, which may be the sequence itself."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (build_dense(model, f"{path}.{name}") for name in "qkv")
        self.are_cached_keys_detached = model.are_cached_keys_detached

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x, context, mask, is_language):
        query = self.split(self.query(x))
        key, value = self.split(self.key(context)), self.split(self.value(context))
        if is_language and self.are_cached_keys_detached:
            cached = ops.stop_gradient(key[:, :, :QUERIES])
            key = mint.cat((cached, key[:, :, QUERIES:]), 2)
        scores = mint.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(HEAD_DIM)
        if mask is not None:
            scores = ops.masked_fill(scores, mask, MASKED)
        probs = ops.softmax(scores, -1)
        y = mint.matmul(probs, value)
        return y.transpose(0, 2, 1, 3).reshape(x.shape)


class Output(nn.Cell):
    """A linear layer whose result is added to the residual, and a norm."""

    def __init__(self, model: Model, path: str, norm_path: str) -> None:
        super().__init__()
        self.dense = build_dense(model, path)
        self.layernorm = build_norm(model, norm_path)

    def construct(self, x, residual):
        return self.layernorm(self.dense(x) + residual)


class Attention(nn.Cell):
    """Attention, its output projection, residual and norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(model, path)
        self.output = Output(model, f"{path}.o", f"{path}.norm")

    def construct(self, x, context, mask=None, is_language=False):
        return self.output(self.attention(x, context, mask, is_language), x)


class FeedForward(nn.Cell):
    """Two linear layers around gelu, residual and norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.intermediate = build_dense(model, f"{path}.up")
        self.activation = nn.GELU(approximate=False)
        self.output = Output(model, f"{path}.down", f"{path}.norm")

    def construct(self, x):
        return self.output(self.activation(self.intermediate(x)), x)


class QFormerLayer(nn.Cell):
    """Attention of all, that of the queries to the image, feed-forward layers of both."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.attention = Attention(model, f"layers.{n}.attention")
        self.crossattention = None
        if has_cross_attention(n):
            self.crossattention = Attention(model, f"layers.{n}.cross")
        self.feed_forward_query = FeedForward(model, f"layers.{n}.query")
        self.feed_forward = FeedForward(model, f"layers.{n}.text")
        self.is_cross_for_all = model.is_cross_for_all

    def construct(self, x, image, mask, is_language):
        x = self.attention(x, x, mask, is_language)
        if self.crossattention is not None and self.is_cross_for_all:
            x = self.crossattention(x, image)
        queries, text = x[:, :QUERIES], x[:, QUERIES:]
        if self.crossattention is not None and not self.is_cross_for_all:
            queries = self.crossattention(queries, image)
        return mint.cat((self.feed_forward_query(queries), self.feed_forward(text)), 1)


class QFormer(nn.Cell):
    """States of queries and text."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings = Embeddings(model)
        self.layers = nn.CellList([QFormerLayer(model, n) for n in range(LAYERS)])

    def construct(self, tokens, queries, image, mask, is_language):
        x = self.embeddings(tokens, queries, is_language)
        for layer in self.layers:
            x = layer(x, image, mask, is_language)
        return x


class LanguageHead(nn.Cell):
    """Logits of the vocabulary; the output weight is that of the embeddings."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.transform = build_dense(model, "language.transform")
        self.activation = nn.GELU(approximate=False)
        self.layernorm = build_norm(model, "language.norm")
        self.bias = Parameter(read(model, "language.bias"), name="bias")

    def construct(self, x, table):
        x = self.layernorm(self.activation(self.transform(x)))
        return mint.matmul(x, table.T) + self.bias


class Blip2Qformer(nn.Cell):
    """Sum of the losses of contrast, matching and language."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ln_vision = build_norm(model, "image_norm", IMAGE_EPS)
        self.query_tokens = Parameter(read(model, "queries.weight").expand_dims(0))
        self.qformer = QFormer(model)
        self.lm_head = LanguageHead(model)
        self.vision_proj = build_dense(model, "image_projection")
        self.text_proj = build_dense(model, "text_projection")
        self.itm_head = build_dense(model, "matching")
        self.temp = Parameter(read(model, "temperature"))
        self.separate, self.both, self.causal = (
            Tensor(model.list_visible(mask)) for mask in ("separate", "both", "causal")
        )
        self.seen = Tensor(np.ones((3 * BATCH, QUERIES), np.bool_))
        self.decode = Tensor(np.full((BATCH, 1), DECODE, np.int32))
        self.targets = Tensor(np.arange(BATCH, dtype=np.int32))
        self.matches = Tensor((np.arange(3 * BATCH) < BATCH).astype(np.int32))
        self.normalize = ops.L2Normalize(axis=-1)
        self.is_temperature_factor = model.is_temperature_factor
        self.is_other_mask_own = model.is_other_mask_own
        self.are_padding_labels_counted = model.are_padding_labels_counted

    def run(self, tokens, image, visible, is_language=False, masked_tokens=None):
        """Return the states of queries and text; the padding may be that of other tokens."""
        n = tokens.shape[0]
        is_text = (tokens if masked_tokens is None else masked_tokens) != PAD
        is_token = mint.cat((self.seen[:n], is_text), 1)
        hidden = ops.logical_not(ops.logical_and(visible, is_token.expand_dims(1)))
        queries = ops.broadcast_to(self.query_tokens, (n, QUERIES, HIDDEN))
        return self.qformer(tokens, queries, image, hidden.expand_dims(1), is_language)

    def scale(self, similarities):
        """Return logits of similarities."""
        if self.is_temperature_factor:
            return similarities * self.temp
        return similarities / self.temp

    def compute_contrast(self, queries, first_token):
        """Return the mean of both contrastive losses."""
        image_feats = self.normalize(self.vision_proj(queries))
        text_feat = self.normalize(self.text_proj(first_token))
        sim_q2t = mint.matmul(image_feats.expand_dims(1), text_feat.expand_dims(-1)).squeeze(-1)
        sim_t2q = mint.matmul(
            text_feat.expand_dims(1).expand_dims(1), image_feats.transpose(0, 2, 1)
        ).squeeze(-2)
        sim_i2t, sim_t2i = self.scale(sim_q2t.max(axis=-1)), self.scale(sim_t2q.max(axis=-1))
        loss_i2t = ops.cross_entropy(sim_i2t, self.targets, label_smoothing=SMOOTHING)
        loss_t2i = ops.cross_entropy(sim_t2i, self.targets, label_smoothing=SMOOTHING)
        return (loss_i2t + loss_t2i) / 2

    def compute_matching(self, image, tokens, other_images, other_texts):
        """Return the loss of matching."""
        masked_tokens = mint.cat((tokens, tokens, tokens), 0) if self.is_other_mask_own else None
        tokens = mint.cat((tokens, tokens, ops.gather(tokens, other_texts, 0)), 0)
        image = mint.cat((image, ops.gather(image, other_images, 0), image), 0)
        queries = self.run(tokens, image, self.both, False, masked_tokens)[:, :QUERIES]
        return ops.cross_entropy(self.itm_head(queries).mean(1), self.matches)

    def compute_language(self, image, tokens):
        """Return the loss of each next token."""
        inputs = mint.cat((self.decode, tokens[:, 1:]), 1)
        states = self.run(inputs, image, self.causal, True)[:, QUERIES:-1]
        logits = self.lm_head(states, self.qformer.embeddings.word_embeddings)
        labels = tokens
        if not self.are_padding_labels_counted:
            labels = ops.masked_fill(tokens, tokens == PAD, IGNORED)
        labels = labels[:, 1:]
        return ops.cross_entropy(
            logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=IGNORED
        )

    def construct(self, features, tokens, other_images, other_texts):
        image = self.ln_vision(features)
        states = self.run(tokens, image, self.separate)
        loss_itc = self.compute_contrast(states[:, :QUERIES], states[:, QUERIES])
        loss_itm = self.compute_matching(image, tokens, other_images, other_texts)
        return loss_itc + loss_itm + self.compute_language(image, tokens)


class WrittenNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, model: Model, path: str, eps: float = EPS) -> None:
        super().__init__()
        self.gain = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))
        self.eps = eps

    def construct(self, x):
        centered = x - mint.mean(x, dim=-1, keepdim=True)
        variance = mint.mean(centered * centered, dim=-1, keepdim=True)
        return centered / mint.sqrt(variance + self.eps) * self.gain + self.shift


def apply_gelu(x):
    """Return the exact gelu, from the error function."""
    return x * (0.5 * (1.0 + mint.erf(x * math.sqrt(0.5))))


class WrittenAttention(nn.Cell):
    """Attention with its residual and norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (
            build_dense(model, f"{path}.{name}") for name in "qkvo"
        )
        self.norm = WrittenNorm(model, f"{path}.norm")

    def split(self, x):
        x = mint.permute(x.reshape(x.shape[0], -1, HEADS, HEAD_DIM), (0, 2, 1, 3))
        return x.reshape(-1, x.shape[2], HEAD_DIM)

    def construct(self, x, context, added):
        query, key, value = self.to_q(x) * HEAD_DIM**-0.5, self.to_k(context), self.to_v(context)
        scores = mint.bmm(self.split(query), mint.transpose(self.split(key), 1, 2))
        scores = scores.reshape(x.shape[0], HEADS, x.shape[1], -1) + added
        weights = mint.exp(scores - ops.stop_gradient(scores.max(axis=-1, keepdims=True)))
        weights = weights / mint.sum(weights, dim=-1, keepdim=True)
        y = mint.bmm(weights.reshape(-1, x.shape[1], context.shape[1]), self.split(value))
        y = mint.permute(y.reshape(x.shape[0], HEADS, -1, HEAD_DIM), (0, 2, 1, 3))
        return self.norm(x + self.to_out(y.reshape(x.shape)))


class WrittenFeedForward(nn.Cell):
    """A feed-forward layer with its residual and norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = build_dense(model, f"{path}.up"), build_dense(model, f"{path}.down")
        self.norm = WrittenNorm(model, f"{path}.norm")

    def construct(self, x):
        return self.norm(x + self.fc2(apply_gelu(self.fc1(x))))


class Block(nn.Cell):
    """A layer; all rows go through both feed-forward layers, one of the results counts."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.mixer = WrittenAttention(model, f"layers.{n}.attention")
        self.reader = None
        if has_cross_attention(n):
            self.reader = WrittenAttention(model, f"layers.{n}.cross")
        self.query_mlp = WrittenFeedForward(model, f"layers.{n}.query")
        self.text_mlp = WrittenFeedForward(model, f"layers.{n}.text")
        is_query = (np.arange(SEQ) < QUERIES).astype(np.float32)[:, None]
        self.is_query, self.is_text = Tensor(is_query), Tensor(1 - is_query)

    def construct(self, x, image, added):
        x = self.mixer(x, x, added)
        if self.reader is not None:
            x = self.is_query * self.reader(x, image, 0.0) + self.is_text * x
        return self.is_query * self.query_mlp(x) + self.is_text * self.text_mlp(x)


class QueryingTransformer(nn.Cell):
    """The net and its losses in one cell."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_norm = WrittenNorm(model, "image_norm", IMAGE_EPS)
        self.learned = Parameter(read(model, "queries.weight"))
        self.words = Parameter(read(model, "embeddings.words.weight"))
        self.positions = Parameter(read(model, "embeddings.positions.weight"))
        self.norm = WrittenNorm(model, "embeddings.norm")
        self.blocks = nn.CellList([Block(model, n) for n in range(LAYERS)])
        self.image_head = build_dense(model, "image_projection")
        self.text_head = build_dense(model, "text_projection")
        self.match_head = build_dense(model, "matching")
        self.temperature = Parameter(read(model, "temperature"))
        self.transform = build_dense(model, "language.transform")
        self.transform_norm = WrittenNorm(model, "language.norm")
        self.vocabulary_bias = Parameter(read(model, "language.bias"))
        self.build_constants(model)

    def build_constants(self, model: Model) -> None:
        """Make the tables that do not depend on the batch."""
        self.separate, self.both, self.causal = (
            Tensor(model.list_visible(mask).astype(np.float32))
            for mask in ("separate", "both", "causal")
        )
        pairs = np.eye(BATCH, dtype=np.float32)
        self.shares = Tensor((1 - SMOOTHING) * pairs + np.float32(SMOOTHING / BATCH))
        matches = np.zeros((3 * BATCH, 2), np.float32)
        matches[:BATCH, 1] = matches[BATCH:, 0] = 1 / len(matches)
        self.matches = Tensor(matches)
        is_first = (np.arange(TEXT) == 0).astype(np.int32)
        self.is_first, self.is_later = Tensor(is_first), Tensor(1 - is_first)

    def log_softmax(self, x, dim: int):
        """Return logarithms of shares."""
        x = x - ops.stop_gradient(x.max(axis=dim, keepdims=True))
        return x - mint.log(mint.sum(mint.exp(x), dim=dim, keepdim=True))

    def run(self, tokens, image, visible):
        """Return the states of queries and text."""
        text = ops.gather(self.words, tokens, 0) + self.positions[:TEXT]
        learned = ops.pad(self.learned, (0, 0, 0, TEXT))
        x = self.norm(learned + ops.pad(text, (0, 0, QUERIES, 0)))
        seen = ops.pad((tokens != PAD).astype(ms.float32), (QUERIES, 0), value=1.0)
        added = (1.0 - visible * seen.reshape(-1, 1, 1, SEQ)) * MASKED
        for block in self.blocks:
            x = block(x, image, added)
        return x

    def compute_contrast(self, states):
        """Return the mean of both contrastive losses."""
        image = self.image_head(states[:, :QUERIES])
        text = self.text_head(states[:, QUERIES])
        image = image / mint.sqrt(mint.sum(image * image, dim=-1, keepdim=True))
        text = text / mint.sqrt(mint.sum(text * text, dim=-1, keepdim=True))
        similarities = mint.matmul(image.reshape(BATCH * QUERIES, -1), mint.transpose(text, 0, 1))
        best = similarities.reshape(BATCH, QUERIES, BATCH).max(axis=1)
        logits = best / self.temperature
        log_shares = self.log_softmax(logits, 1) + self.log_softmax(logits, 0)
        return -mint.sum(self.shares * log_shares) / (2 * BATCH)

    def compute_language(self, states, tokens):
        """Return the loss of each next token."""
        x = self.transform_norm(apply_gelu(self.transform(states[:, QUERIES:-1])))
        logits = mint.matmul(x, mint.transpose(self.words, 0, 1)) + self.vocabulary_bias
        labels = tokens[:, 1:]
        one_hot = ops.one_hot(labels, VOCAB, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        losses = -mint.sum(one_hot * self.log_softmax(logits, 2), dim=-1)
        is_label = (labels != PAD).astype(ms.float32)
        return mint.sum(losses * is_label) / mint.sum(is_label)

    def construct(self, features, tokens, other_images, other_texts):
        image = self.feature_norm(features)
        loss = self.compute_contrast(self.run(tokens, image, self.separate))
        all_tokens = mint.cat((tokens, tokens, ops.gather(tokens, other_texts, 0)), 0)
        all_images = mint.cat((image, ops.gather(image, other_images, 0), image), 0)
        states = self.run(all_tokens, all_images, self.both)
        scores = self.match_head(mint.mean(states[:, :QUERIES], dim=1))
        loss = loss - mint.sum(self.matches * self.log_softmax(scores, 1))
        inputs = tokens * self.is_later + DECODE * self.is_first
        states = self.run(inputs, image, self.causal)
        return loss + self.compute_language(states, tokens)
