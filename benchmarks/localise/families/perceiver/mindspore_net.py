"""The Perceiver in MindSpore.

Variant 'written': norms, softmax, gelu and losses in plain arithmetic. Variant 'joined': cells of
other names, one projection for keys and values and one for both halves of a GEGLU, mint, the shift
as a gather, cross entropy with one-hot labels.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.perceiver.architecture import (
    BATCH,
    BETA,
    CHANNELS,
    CLASSES,
    DISTANCES,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    LATENTS,
    REPEATS,
    SMOOTHING,
    TARGETS,
    TOKENS,
    VALUE_WEIGHT,
    VALUES,
    Model,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return JoinedLoss(model) if model.variant == "joined" else TrainingLoss(model)


def build_dense(model: Model, *paths: str) -> nn.Dense:
    """Return the linear layer at ``paths``, their rows one after the other."""
    weight = np.concatenate([model.weights[f"{path}.weight"] for path in paths])
    has_bias = f"{paths[0]}.bias" in model.weights
    bias = None
    if has_bias:
        bias = Tensor(np.concatenate([model.weights[f"{path}.bias"] for path in paths]))
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=bias,
        has_bias=has_bias,
    )


def build_positions(model: Model) -> np.ndarray:
    """Return the Fourier features of an array's positions, float32 (TOKENS, 2 * BANDS + 1)."""
    positions = np.linspace(-1, 1, TOKENS, dtype=np.float32)[:, None]
    angles = positions * model.frequencies() * np.float32(np.pi)
    if model.are_positions_first:
        return np.concatenate([positions, np.sin(angles), np.cos(angles)], axis=1)
    return np.concatenate([np.sin(angles), np.cos(angles), positions], axis=1)


def build_distances(model: Model) -> np.ndarray:
    """Return sines and cosines of the distances, float32 (DISTANCES, HIDDEN)."""
    angles = np.outer(model.distances(), model.inverse_frequencies())
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, model: Model, path: str, eps: float) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.eps = eps

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered * ops.rsqrt(variance + self.eps) * self.gamma + self.beta


def build_norm(model: Model, path: str, width: int = HIDDEN, eps: float = EPS) -> nn.Cell:
    """Return the layer norm at ``path``."""
    if model.variant == "written":
        return WrittenNorm(model, path, eps)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.LayerNorm((width,), gamma_init=weight, beta_init=bias, epsilon=eps)


class WrittenSoftmax(nn.Cell):
    """Softmax from exponentials."""

    def construct(self, x):
        exponentials = ops.exp(x - ops.stop_gradient(x.max(axis=-1, keepdims=True)))
        return exponentials / exponentials.sum(-1, keepdims=True)


class WrittenGelu(nn.Cell):
    """Gelu from the error function."""

    def construct(self, x):
        return x * (0.5 + 0.5 * ops.erf(x * 0.5**0.5))


class FeedForward(nn.Cell):
    """The gated feed-forward."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.value = build_dense(model, f"{path}.value")
        self.gate = build_dense(model, f"{path}.gate")
        self.down = build_dense(model, f"{path}.down")
        self.gelu = WrittenGelu() if model.variant == "written" else nn.GELU(approximate=False)

    def construct(self, x):
        return self.down(self.value(x) * self.gelu(self.gate(x)))


class CrossAttention(nn.Cell):
    """Attention of states to an array."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query = build_dense(model, f"{path}.q")
        self.key = build_dense(model, f"{path}.k")
        self.value = build_dense(model, f"{path}.v")
        self.output = build_dense(model, f"{path}.o")
        self.softmax = WrittenSoftmax() if model.variant == "written" else nn.Softmax(-1)
        self.scale = HEAD_DIM**-0.5
        self.is_mask_late = model.is_mask_late

    def split_heads(self, x):
        """Return (batch, HEADS, length, HEAD_DIM)."""
        return x.reshape(BATCH, -1, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x, array, is_valid):
        q = self.split_heads(self.query(x)) * self.scale
        k, v = self.split_heads(self.key(array)), self.split_heads(self.value(array))
        scores = ops.matmul(q, k.transpose(0, 1, 3, 2))
        if is_valid is not None:
            is_valid = is_valid.reshape(BATCH, 1, 1, TOKENS)
            if not self.is_mask_late:
                scores = scores + (1.0 - is_valid) * MASKED
        probabilities = self.softmax(scores)
        if is_valid is not None and self.is_mask_late:
            probabilities = probabilities * is_valid
        y = ops.matmul(probabilities, v).transpose(0, 2, 1, 3)
        return self.output(y.reshape(BATCH, -1, HIDDEN))


class RelativeAttention(nn.Cell):
    """Attention of latents to each other, with the biases of Transformer-XL."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query = build_dense(model, f"{path}.q")
        self.key = build_dense(model, f"{path}.k")
        self.value = build_dense(model, f"{path}.v")
        self.position = build_dense(model, f"{path}.r")
        self.output = build_dense(model, f"{path}.o")
        self.content_bias = Parameter(Tensor(model.weights[f"{path}.content_bias.weight"]))
        self.position_bias = Parameter(Tensor(model.weights[f"{path}.position_bias.weight"]))
        self.softmax = WrittenSoftmax() if model.variant == "written" else nn.Softmax(-1)
        self.scale = HEAD_DIM**-0.5
        self.are_biases_scaled = model.are_biases_scaled
        self.zeros = Tensor(np.zeros((BATCH, HEADS, LATENTS, 1), dtype=np.float32))

    def split_heads(self, x, length):
        """Return (batch, length, HEADS, HEAD_DIM)."""
        return x.reshape(-1, length, HEADS, HEAD_DIM)

    def shift(self, scores):
        """Return scores of distances as those of latents."""
        padded = ops.concat((self.zeros, scores), -1)
        padded = padded.reshape(BATCH, HEADS, DISTANCES + 1, LATENTS)
        shifted = padded[:, :, 1:].reshape(BATCH, HEADS, LATENTS, DISTANCES)
        return shifted[:, :, :, :LATENTS]

    def construct(self, x, distances, is_cached):
        q = self.split_heads(self.query(x), LATENTS)
        if not self.are_biases_scaled:
            q = q * self.scale
        k = self.split_heads(self.key(x), LATENTS).transpose(0, 2, 3, 1)
        v = self.split_heads(self.value(x), LATENTS).transpose(0, 2, 1, 3)
        r = self.split_heads(self.position(distances), DISTANCES).transpose(0, 2, 3, 1)
        if is_cached:
            r = ops.stop_gradient(r)
        of_contents = ops.matmul((q + self.content_bias).transpose(0, 2, 1, 3), k)
        of_positions = ops.matmul((q + self.position_bias).transpose(0, 2, 1, 3), r)
        scores = of_contents + self.shift(of_positions)
        if self.are_biases_scaled:
            scores = scores * self.scale
        y = ops.matmul(self.softmax(scores), v).transpose(0, 2, 1, 3)
        return self.output(y.reshape(BATCH, LATENTS, HIDDEN))


class CrossLayer(nn.Cell):
    """Attention to an array and feed-forward, a norm before each."""

    def __init__(self, model: Model, path: str, width: int, eps: float = EPS) -> None:
        super().__init__()
        self.query_norm = build_norm(model, f"{path}.norm")
        self.array_norm = build_norm(model, f"{path}.input_norm", width, eps)
        self.attention = CrossAttention(model, f"{path}.attention")
        self.mlp_norm = build_norm(model, f"{path}.mlp_norm")
        self.mlp = FeedForward(model, f"{path}.mlp")

    def construct(self, x, array, is_valid=None):
        x = x + self.attention(self.query_norm(x), self.array_norm(array), is_valid)
        return x + self.mlp(self.mlp_norm(x))


class ReadingLayer(CrossLayer):
    """The same without adding the states to what they read."""

    def construct(self, x, array, is_valid=None):
        x = self.attention(self.query_norm(x), self.array_norm(array), is_valid)
        return x + self.mlp(self.mlp_norm(x))


class SelfLayer(nn.Cell):
    """Attention of latents to each other and feed-forward, a norm before each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.attention_norm = build_norm(model, "block.norm")
        self.attention = RelativeAttention(model, "block.attention")
        self.mlp_norm = build_norm(model, "block.mlp_norm")
        self.mlp = FeedForward(model, "block.mlp")

    def construct(self, x, distances, is_cached):
        x = x + self.attention(self.attention_norm(x), distances, is_cached)
        return x + self.mlp(self.mlp_norm(x))


class Perceiver(nn.Cell):
    """Logits (batch * TARGETS, CLASSES) and values (batch, TARGETS, VALUES) of the arrays."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.latents = Parameter(Tensor(model.weights["latents.weight"]))
        self.queries = Parameter(Tensor(model.weights["queries.weight"]))
        positions = np.tile(build_positions(model), (BATCH, 1, 1))
        self.positions, self.distances = Tensor(positions), Tensor(build_distances(model))
        self.encoder = CrossLayer(model, "encoder", CHANNELS, model.input_eps)
        self.process = SelfLayer(model)
        build_decoder = CrossLayer if model.are_queries_added else ReadingLayer
        self.decoder = build_decoder(model, "decoder", HIDDEN)
        self.final_norm = build_norm(model, "norm")
        self.class_head = build_dense(model, "classes")
        self.value_head = build_dense(model, "values")
        self.are_keys_cached = model.are_keys_cached
        self.scaled_gradient = None
        if model.latent_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.latent_gradient)

    def construct(self, array, is_valid):
        array = ops.concat((array, self.positions), -1)
        latents = self.latents
        if self.scaled_gradient is not None:
            latents = self.scaled_gradient(latents)
        x = ops.tile(latents.expand_dims(0), (BATCH, 1, 1))
        x = self.encoder(x, array, is_valid.astype(ms.float32))
        for n in range(REPEATS):
            x = self.process(x, self.distances, n > 0 and self.are_keys_cached)
        y = self.decoder(ops.tile(self.queries.expand_dims(0), (BATCH, 1, 1)), x)
        y = self.final_norm(y)
        return self.class_head(y.reshape(-1, HIDDEN)), self.value_head(y)


class TrainingLoss(nn.Cell):
    """Cross entropy of the classes and smooth L1 loss of the known values."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Perceiver(model)
        self.is_written = model.variant == "written"
        self.is_huber = model.value_loss == "huber"
        self.are_rows_counted = model.are_rows_counted

    def compute_class_loss(self, logits, labels):
        if not self.is_written:
            return ops.cross_entropy(
                logits, labels, ignore_index=IGNORED, label_smoothing=SMOOTHING
            )
        mask = ops.not_equal(labels, IGNORED).astype(ms.float32)
        of_label = ops.gather_elements(logits, 1, ops.maximum(labels, 0).expand_dims(1))
        expected = (1 - SMOOTHING) * of_label.squeeze(1) + SMOOTHING * logits.mean(-1)
        losses = ops.logsumexp(logits, -1) - expected
        return (losses * mask).sum() / mask.sum()

    def compute_value_losses(self, predicted, values):
        if self.is_huber:
            return ops.huber_loss(predicted, values, "none", BETA)
        if not self.is_written:
            return ops.smooth_l1_loss(predicted, values, BETA, "none")
        errors = ops.abs(predicted - values)
        squares = errors * errors * (0.5 / BETA)
        return ops.select(errors < BETA, squares, errors - 0.5 * BETA)

    def construct(self, array, is_valid, labels, values, is_known):
        logits, predicted = self.network(array, is_valid)
        class_loss = self.compute_class_loss(logits, labels.reshape(-1))
        losses = self.compute_value_losses(predicted, values) * is_known.expand_dims(-1)
        count = is_known.sum() if self.are_rows_counted else is_known.sum() * VALUES
        return class_loss + VALUE_WEIGHT * (losses.sum() / count)


# Variant 'joined'


class GatedUnit(nn.Cell):
    """The gated feed-forward with one layer for both halves, behind its norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.ln = build_norm(model, f"{path}.mlp_norm")
        self.fc_in = build_dense(model, f"{path}.mlp.value", f"{path}.mlp.gate")
        self.fc_out = build_dense(model, f"{path}.mlp.down")

    def construct(self, x):
        value, gate = mint.chunk(self.fc_in(self.ln(x)), 2, dim=-1)
        return x + self.fc_out(value * ops.gelu(gate))


class JoinedCross(nn.Cell):
    """Attention with one projection for keys and values, behind its norms."""

    def __init__(self, model: Model, path: str, width: int) -> None:
        super().__init__()
        self.ln_q = build_norm(model, f"{path}.norm")
        self.ln_kv = build_norm(model, f"{path}.input_norm", width)
        self.wq = build_dense(model, f"{path}.attention.q")
        self.wkv = build_dense(model, f"{path}.attention.k", f"{path}.attention.v")
        self.wo = build_dense(model, f"{path}.attention.o")

    def construct(self, x, source, is_hidden=None):
        q = self.wq(self.ln_q(x)).reshape(BATCH, -1, HEADS, HEAD_DIM)
        kv = self.wkv(self.ln_kv(source)).reshape(BATCH, -1, 2, HEADS, HEAD_DIM)
        kv = mint.permute(kv, (2, 0, 3, 1, 4))
        scores = mint.matmul(mint.permute(q, (0, 2, 1, 3)), mint.transpose(kv[0], -1, -2))
        scores = scores / HEAD_DIM**0.5
        if is_hidden is not None:
            scores = ops.masked_fill(scores, is_hidden, MASKED)
        y = mint.matmul(mint.nn.functional.softmax(scores, dim=-1), kv[1])
        return x + self.wo(mint.permute(y, (0, 2, 1, 3)).reshape(BATCH, -1, HIDDEN))


class JoinedRelative(nn.Cell):
    """The same among latents, with scores of distances gathered."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.ln = build_norm(model, f"{path}.norm")
        self.wq = build_dense(model, f"{path}.attention.q")
        self.wkv = build_dense(model, f"{path}.attention.k", f"{path}.attention.v")
        self.wr = build_dense(model, f"{path}.attention.r")
        self.wo = build_dense(model, f"{path}.attention.o")
        u, v = (
            Tensor(model.weights[f"{path}.attention.{name}_bias.weight"])
            for name in ("content", "position")
        )
        self.u, self.v = Parameter(u), Parameter(v)
        steps = np.arange(LATENTS)
        index = steps[None, :] - steps[:, None] + LATENTS - 1
        self.index = Tensor(np.tile(index, (BATCH, HEADS, 1, 1)).astype(np.int32))

    def construct(self, x, distances):
        normed = self.ln(x)
        q = mint.permute(self.wq(normed).reshape(BATCH, LATENTS, HEADS, HEAD_DIM), (0, 2, 1, 3))
        kv = self.wkv(normed).reshape(BATCH, LATENTS, 2, HEADS, HEAD_DIM)
        kv = mint.permute(kv, (2, 0, 3, 1, 4))
        r = mint.permute(self.wr(distances).reshape(DISTANCES, HEADS, HEAD_DIM), (1, 2, 0))
        scores = mint.matmul(q + self.u.expand_dims(1), mint.transpose(kv[0], -1, -2))
        of_distances = mint.matmul(q + self.v.expand_dims(1), r)
        scores = (scores + ops.gather_elements(of_distances, 3, self.index)) / HEAD_DIM**0.5
        y = mint.matmul(mint.nn.functional.softmax(scores, dim=-1), kv[1])
        return x + self.wo(mint.permute(y, (0, 2, 1, 3)).reshape(BATCH, LATENTS, HIDDEN))


class JoinedPerceiver(nn.Cell):
    """What the queries read of the arrays, (batch * TARGETS, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.z = Parameter(Tensor(model.weights["latents.weight"]))
        self.output_query = Parameter(Tensor(model.weights["queries.weight"]))
        self.fourier = Tensor(build_positions(model))
        self.sinusoids = Tensor(build_distances(model))
        self.read = JoinedCross(model, "encoder", CHANNELS)
        self.read_ffn = GatedUnit(model, "encoder")
        self.mix = JoinedRelative(model, "block")
        self.mix_ffn = GatedUnit(model, "block")
        self.write = JoinedCross(model, "decoder", HIDDEN)
        self.write_ffn = GatedUnit(model, "decoder")
        self.ln_f = build_norm(model, "norm")

    def construct(self, array, is_valid):
        fourier = mint.broadcast_to(self.fourier, (BATCH, *self.fourier.shape))
        array = mint.cat((array, fourier), dim=-1)
        is_hidden = ops.equal(is_valid, 0).reshape(BATCH, 1, 1, TOKENS)
        z = mint.broadcast_to(self.z, (BATCH, LATENTS, HIDDEN))
        z = self.read_ffn(self.read(z, array, is_hidden))
        for _ in range(REPEATS):
            z = self.mix_ffn(self.mix(z, self.sinusoids))
        queries = mint.broadcast_to(self.output_query, (BATCH, TARGETS, HIDDEN))
        return self.ln_f(self.write_ffn(self.write(queries, z))).reshape(-1, HIDDEN)


class JoinedLoss(nn.Cell):
    """Both losses of all queries at once."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = JoinedPerceiver(model)
        self.classifier = build_dense(model, "classes")
        self.regressor = build_dense(model, "values")
        rest = SMOOTHING / CLASSES
        self.one_hot = nn.OneHot(depth=CLASSES, on_value=1 - SMOOTHING + rest, off_value=rest)

    def construct(self, array, is_valid, labels, values, is_known):
        y, labels = self.backbone(array, is_valid), labels.reshape(-1)
        targets = self.one_hot(ops.maximum(labels, 0))
        logs = mint.nn.functional.log_softmax(self.classifier(y), dim=-1)
        mask = ops.not_equal(labels, IGNORED).astype(ms.float32)
        class_loss = -(mint.sum(logs * targets, dim=-1) * mask).sum() / mask.sum()
        losses = ops.huber_loss(self.regressor(y), values.reshape(-1, VALUES), "none", BETA)
        losses = mint.mean(losses / BETA, dim=-1) * is_known.reshape(-1)
        return class_loss + VALUE_WEIGHT * losses.sum() / is_known.sum()
