"""A joint-embedding predictive model of images in MindSpore for graph mode.

Cells have the names of mindone's port of Hugging Face's IJepaModel. Variant 'written': norms,
softmax and loss in plain arithmetic, one matrix for queries, keys and values, patches by reshape
and one product, patches chosen by products with ones.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.jepa.architecture import (
    BATCH,
    BLOCKS,
    COLORS,
    COLUMNS,
    EPS,
    HEADS,
    KEEP,
    LAYERS,
    NARROW,
    PATCH,
    PATCHES,
    PREDICTOR_LAYERS,
    ROWS,
    SIZE,
    SPREAD,
    SPREAD_EPS,
    SPREAD_WEIGHT,
    TARGET_EPS,
    WIDE,
    Model,
    build_positions,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else JepaLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


def build_dense(weight: np.ndarray, bias: np.ndarray) -> nn.Dense:
    """Return a linear layer."""
    n_out, n_in = weight.shape
    return nn.Dense(n_in, n_out, weight_init=Tensor(weight), bias_init=Tensor(bias))


def load_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    return build_dense(model.weights[f"{path}.weight"], model.weights[f"{path}.bias"])


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    weight, bias = (read(model, f"{path}.{name}") for name in ("weight", "bias"))
    return nn.LayerNorm(weight.shape, gamma_init=weight, beta_init=bias, epsilon=EPS)


def apply_mask(x, ids):
    """Return patches (batch, patches, channels) of numbers (batch, patches)."""
    index = ops.tile(ids.expand_dims(-1), (1, 1, x.shape[-1]))
    return ops.gather_elements(x, 1, index)


class IJepaEmbeddings(nn.Cell):
    """Patches (batch, PATCHES, WIDE) with their positions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            COLORS,
            WIDE,
            PATCH,
            PATCH,
            pad_mode="valid",
            has_bias=True,
            weight_init=read(model, f"{path}.patch.weight"),
            bias_init=read(model, f"{path}.patch.bias"),
        )
        self.position_embeddings = Tensor(model.positions())

    def construct(self, images):
        embeddings = self.projection(images).reshape(-1, WIDE, PATCHES).swapaxes(1, 2)
        return embeddings + self.position_embeddings


class IJepaSelfAttention(nn.Cell):
    """Attention of all tokens to all tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weights, biases = (
            np.split(model.weights[f"{path}.qkv.{name}"], 3) for name in ("weight", "bias")
        )
        self.query, self.key, self.value = map(build_dense, weights, biases)
        self.output = load_dense(model, f"{path}.out")
        self.head_dim = weights[0].shape[0] // HEADS
        self.scale = self.head_dim**-0.5

    def split_heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, HEADS, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, hidden_states):
        query = self.split_heads(self.query(hidden_states))
        key = self.split_heads(self.key(hidden_states))
        value = self.split_heads(self.value(hidden_states))
        scores = ops.matmul(query, key.swapaxes(-1, -2)) * self.scale
        context = ops.matmul(ops.softmax(scores, -1), value).transpose(0, 2, 1, 3)
        return self.output(context.reshape(hidden_states.shape))


class IJepaMlp(nn.Cell):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense1 = load_dense(model, f"{path}.up")
        self.dense2 = load_dense(model, f"{path}.down")
        self.act = nn.GELU(approximate=False)

    def construct(self, hidden_states):
        return self.dense2(self.act(self.dense1(hidden_states)))


class IJepaLayer(nn.Cell):
    """Attention and an mlp behind norms."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layernorm_before = load_norm(model, f"{path}.norm1")
        self.attention = IJepaSelfAttention(model, path)
        self.layernorm_after = load_norm(model, f"{path}.norm2")
        self.mlp = IJepaMlp(model, path)

    def construct(self, hidden_states):
        hidden_states = hidden_states + self.attention(self.layernorm_before(hidden_states))
        return hidden_states + self.mlp(self.layernorm_after(hidden_states))


class IJepaEncoder(nn.Cell):
    """Features of all patches, or of those that are given."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.embeddings = IJepaEmbeddings(model, path)
        self.layer = nn.CellList([IJepaLayer(model, f"{path}.{n}") for n in range(LAYERS)])
        self.layernorm = load_norm(model, f"{path}.norm")

    def construct(self, images, ids=None):
        hidden_states = self.embeddings(images)
        if ids is not None:
            hidden_states = apply_mask(hidden_states, ids)
        for layer in self.layer:
            hidden_states = layer(hidden_states)
        return self.layernorm(hidden_states)


class IJepaPredictor(nn.Cell):
    """Predictions of target blocks, (BLOCKS * BATCH, SIZE, WIDE)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed = load_dense(model, "predictor.embed")
        self.mask_token = Parameter(read(model, "mask_token"), name="mask_token")
        self.position_embeddings = Tensor(build_positions(NARROW))
        self.layer = nn.CellList(
            [IJepaLayer(model, f"predictor.{n}") for n in range(PREDICTOR_LAYERS)]
        )
        self.layernorm = load_norm(model, "predictor.norm")
        self.proj = load_dense(model, "predictor.proj")
        self.is_context_interleaved = model.is_context_interleaved
        self.first = 0 if model.are_outputs_first else KEEP

    def construct(self, context, context_ids, target_ids):
        positions = ops.tile(self.position_embeddings, (BATCH, 1, 1))
        context = self.embed(context) + apply_mask(positions, context_ids)
        if self.is_context_interleaved:
            context = ops.repeat_interleave(context, BLOCKS, 0)
        else:
            context = ops.tile(context, (BLOCKS, 1, 1))
        positions = ops.tile(positions, (BLOCKS, 1, 1))
        tokens = self.mask_token + apply_mask(positions, target_ids.reshape(-1, SIZE))
        hidden_states = ops.concat((context, tokens), 1)
        for layer in self.layer:
            hidden_states = layer(hidden_states)
        hidden_states = self.layernorm(hidden_states)
        return self.proj(hidden_states[:, self.first : self.first + SIZE])


class FeatureNorm(nn.Cell):
    """Layer norm of features (BATCH, PATCHES, WIDE) without weights."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        axis, shape = 2, (WIDE,)
        if model.are_targets_normed_jointly:
            axis, shape = 1, (PATCHES, WIDE)
        self.layer_norm = ops.LayerNorm(axis, axis, TARGET_EPS)
        self.gamma = Tensor(np.ones(shape, np.float32))
        self.beta = Tensor(np.zeros(shape, np.float32))

    def construct(self, features):
        return self.layer_norm(features, self.gamma, self.beta)[0]


class Deviation(nn.Cell):
    """The deviation over the patches of blocks, (blocks, SIZE, WIDE)."""

    def construct(self, x):
        return ops.sqrt(x.var(1, ddof=1) + SPREAD_EPS)


class BiasedGradientDeviation(Deviation):
    """The same with the gradient of a deviation from the number of patches."""

    def bprop(self, x, out, gradient):
        centered = x - x.mean(1, keep_dims=True)
        return ((gradient / out).expand_dims(1) * centered / SIZE,)


class JepaLoss(nn.Cell):
    """Predictions of the target encoder's features, and their spread."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.context_encoder = IJepaEncoder(model, "context")
        self.target_encoder = IJepaEncoder(model, "target")
        for parameter in self.target_encoder.get_parameters():
            parameter.requires_grad = False
        self.feature_norm = FeatureNorm(model)
        self.predictor = IJepaPredictor(model)
        self.smooth_l1 = nn.SmoothL1Loss(reduction="mean")
        has_own_gradient = model.is_deviation_gradient_biased
        self.deviation = BiasedGradientDeviation() if has_own_gradient else Deviation()

    def embed_targets(self, images, target_ids):
        """Return targets (BLOCKS * BATCH, SIZE, WIDE)."""
        features = self.feature_norm(self.target_encoder(images))
        targets = ()
        for n in range(BLOCKS):
            targets += (apply_mask(features, target_ids[n]),)
        return ops.stop_gradient(ops.concat(targets, 0))

    def construct(self, images, context_ids, target_ids):
        targets = self.embed_targets(images, target_ids)
        context = self.context_encoder(images, context_ids)
        predictions = self.predictor(context, context_ids, target_ids)
        deviations = self.deviation(predictions).reshape(BLOCKS, BATCH, WIDE).mean(0)
        spread_loss = ops.relu(SPREAD - deviations).mean()
        return self.smooth_l1(predictions, targets) + SPREAD_WEIGHT * spread_loss


class WrittenLinear(nn.Cell):
    """A linear layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.matrix = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        return mint.matmul(x, self.matrix.swapaxes(0, 1)) + self.shift


def normalize(x, eps):
    """Return layer norm without weights from means."""
    centered = x - mint.mean(x, -1, True)
    return centered * mint.rsqrt(mint.mean(mint.square(centered), -1, True) + eps)


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gain = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        return normalize(x, EPS) * self.gain + self.shift


class WrittenBlock(nn.Cell):
    """A block with one matrix for queries, keys and values."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm_a, self.norm_b = (WrittenNorm(model, f"{path}.norm{n}") for n in (1, 2))
        self.qkv, self.mix = (WrittenLinear(model, f"{path}.{name}") for name in ("qkv", "out"))
        self.widen = WrittenLinear(model, f"{path}.up")
        self.narrow = WrittenLinear(model, f"{path}.down")
        self.head_dim = model.weights[f"{path}.out.weight"].shape[0] // HEADS

    def construct(self, x):
        qkv = self.qkv(self.norm_a(x)).reshape(x.shape[0], -1, 3, HEADS, self.head_dim)
        query = qkv[:, :, 0].permute(0, 2, 1, 3) / math.sqrt(self.head_dim)
        scores = mint.matmul(query, qkv[:, :, 1].permute(0, 2, 3, 1))
        shares = mint.exp(scores - ops.stop_gradient(scores.max(-1, keepdims=True)))
        shares = shares / mint.sum(shares, -1, True)
        mixed = mint.matmul(shares, qkv[:, :, 2].permute(0, 2, 1, 3)).permute(0, 2, 1, 3)
        x = self.mix(mixed.reshape(x.shape)) + x
        hidden = self.widen(self.norm_b(x))
        hidden = hidden * (0.5 * mint.erf(hidden / math.sqrt(2)) + 0.5)
        return self.narrow(hidden) + x


class WrittenEncoder(nn.Cell):
    """Features of patches, which are given with their positions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        kernel = model.weights[f"{path}.patch.weight"].reshape(WIDE, -1)
        self.kernel = Parameter(Tensor(np.ascontiguousarray(kernel.T)))
        self.kernel_shift = Parameter(read(model, f"{path}.patch.bias"))
        self.blocks = nn.CellList([WrittenBlock(model, f"{path}.{n}") for n in range(LAYERS)])
        self.norm = WrittenNorm(model, f"{path}.norm")

    def construct(self, pixels, places):
        x = mint.matmul(pixels, self.kernel) + self.kernel_shift + places
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.student = WrittenEncoder(model, "context")
        self.average = WrittenEncoder(model, "target")
        for parameter in self.average.get_parameters():
            parameter.requires_grad = False
        self.squeeze = WrittenLinear(model, "predictor.embed")
        self.blank = Parameter(read(model, "mask_token"), name="blank")
        self.guess = nn.CellList(
            [WrittenBlock(model, f"predictor.{n}") for n in range(PREDICTOR_LAYERS)]
        )
        self.guess_norm = WrittenNorm(model, "predictor.norm")
        self.expand = WrittenLinear(model, "predictor.proj")
        self.places = Tensor(model.positions()[0])
        self.guess_places = Tensor(build_positions(NARROW)[0])
        self.numbers = Tensor(np.arange(PATCHES, dtype=np.int32))

    def predict(self, known, hidden):
        """Return predictions (BLOCKS, BATCH, SIZE, WIDE)."""
        known = mint.broadcast_to(known, (BLOCKS, BATCH, KEEP, NARROW))
        x = mint.cat((known, self.blank + mint.matmul(hidden, self.guess_places)), 2)
        x = x.reshape(BLOCKS * BATCH, KEEP + SIZE, NARROW)
        for block in self.guess:
            x = block(x)
        x = self.expand(self.guess_norm(x[:, KEEP:]))
        return x.reshape(BLOCKS, BATCH, SIZE, WIDE)

    def construct(self, images, context_ids, target_ids):
        pixels = images.reshape(BATCH, COLORS, ROWS, PATCH, COLUMNS, PATCH)
        pixels = pixels.permute(0, 2, 4, 1, 3, 5).reshape(BATCH, PATCHES, -1)
        described = normalize(self.average(pixels, self.places), TARGET_EPS)
        # one of the patch with a number, (BATCH, KEEP, PATCHES) and (BLOCKS, BATCH, SIZE, PATCHES)
        kept = (context_ids.expand_dims(-1) == self.numbers).astype(ms.float32)
        hidden = (target_ids.expand_dims(-1) == self.numbers).astype(ms.float32)

        known = self.student(mint.matmul(kept, pixels), mint.matmul(kept, self.places))
        known = self.squeeze(known) + mint.matmul(kept, self.guess_places)
        predicted = self.predict(known, hidden)
        target = ops.stop_gradient(mint.matmul(hidden, described))
        distance = mint.abs(predicted - target)
        inner = mint.clamp(distance, max=1.0)
        error = mint.mean(inner * (distance - 0.5 * inner))

        centered = predicted - mint.mean(predicted, 2, True)
        variance = mint.sum(mint.square(centered), 2) / (SIZE - 1)
        deviation = mint.mean(mint.sqrt(variance + SPREAD_EPS), 0)
        lack = mint.nn.functional.relu(SPREAD - deviation)
        return error + SPREAD_WEIGHT * mint.mean(lack)
