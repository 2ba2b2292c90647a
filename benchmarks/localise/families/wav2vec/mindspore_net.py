"""The speech encoder in MindSpore, with cells as in MindAudio.

Variant 'written': norms, gelu and cross entropy in plain arithmetic, positions tap by tap with the
channels last, batched products over the heads, codewords by a product, similarities by a product
of normed vectors.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.wav2vec.architecture import (
    BOOKS,
    CHANNELS,
    CODE_DIM,
    CODES,
    DIVERSITY_WEIGHT,
    EPS,
    FRAMES,
    GUMBEL_TEMPERATURE,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KERNELS,
    LAYERS,
    NEGATIVES,
    POSITION_GROUPS,
    POSITION_KERNEL,
    SMALLEST_PROBABILITY,
    STRIDES,
    TARGET_DIM,
    TEMPERATURE,
    Model,
)

HIDDEN_SCORE = -1e9  #: of padding, and of negatives that are left out
GROUP_DIM = HIDDEN // POSITION_GROUPS


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        model.position_padding != "before"
        or model.is_norm_behind_layers
        or not model.is_straight_through
        or model.temperature != TEMPERATURE
        or model.feature_gradient != 1
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    return PretrainingLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


class PlainNorm(nn.Cell):
    """Layer norm of (batch, frames, width), or group norm of (batch, width, frames) that has one
    group per channel, from means over the last axis.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(Tensor(weight)), Parameter(Tensor(bias))

    def construct(self, x):
        mean = ops.mean(x, -1, True)
        variance = ops.mean(ops.square(x - mean), -1, True)
        return (x - mean) * ops.rsqrt(variance + EPS) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (model.weights[f"{path}.{name}"] for name in ("weight", "bias"))
    if model.variant == "written":
        return PlainNorm(weight, bias)
    return nn.LayerNorm(
        (len(weight),), gamma_init=Tensor(weight), beta_init=Tensor(bias), epsilon=EPS
    )


def build_group_norm(model: Model) -> nn.Cell:
    """Return the norm behind the first convolution."""
    weight, bias = (model.weights[f"conv.norm.{name}"] for name in ("weight", "bias"))
    if model.variant == "written":
        return PlainNorm(weight.reshape(-1, 1), bias.reshape(-1, 1))
    return nn.GroupNorm(
        model.norm_groups,
        CHANNELS,
        eps=EPS,
        gamma_init=Tensor(weight),
        beta_init=Tensor(bias),
    )


class PlainGelu(nn.Cell):
    """Gelu from the error function."""

    def construct(self, x):
        return x * (0.5 + 0.5 * ops.erf(x * 0.5**0.5))


def build_gelu(model: Model, form: str = "erf") -> nn.Cell:
    """Return gelu."""
    if model.variant == "written":
        return PlainGelu()
    return nn.GELU(approximate=form == "tanh")


class ConvBlock(nn.Cell):
    """Convolution, norm if there is one, gelu."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        weight = model.weights[f"conv.{n}.weight"]
        self.conv = nn.Conv1d(
            weight.shape[1],
            CHANNELS,
            KERNELS[n],
            STRIDES[n],
            pad_mode="valid",
            has_bias=False,
            weight_init=Tensor(weight),
        )
        self.norm = build_group_norm(model) if n == 0 else None
        self.act = build_gelu(model, model.gelu)

    def construct(self, x):
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        return self.act(x)


class ConvFeatureEncoder(nn.Cell):
    """Normed features (batch, FRAMES, CHANNELS) of waveforms."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.blocks = nn.SequentialCell([ConvBlock(model, n) for n in range(len(KERNELS))])
        self.norm = build_norm(model, "projection.norm")

    def construct(self, waveforms):
        x = self.blocks(waveforms.expand_dims(1))
        return self.norm(x.transpose(0, 2, 1))


class ConvPositions(nn.Cell):
    """Positions (batch, FRAMES, HIDDEN) of states: grouped convolution with weight norm, gelu."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight_g = Parameter(Tensor(model.weights["position.magnitude"]))
        self.weight_v = Parameter(Tensor(model.weights["position.direction"]))
        self.bias = None
        if model.has_position_bias:
            self.bias = Parameter(Tensor(model.weights["position.bias"]))
        self.axes = model.magnitude_axes
        self.act = build_gelu(model, model.gelu)
        self.is_written = model.variant == "written"

    def get_weight(self):
        """Return the weight (HIDDEN, GROUP_DIM, POSITION_KERNEL)."""
        norm = ops.sqrt(ops.square(self.weight_v).sum(self.axes, keepdims=True))
        return self.weight_v * (self.weight_g / norm)

    def convolve_taps(self, x, weight):
        """Return the convolution (batch, FRAMES, HIDDEN) as a sum of products, one per tap."""
        batch = x.shape[0]
        zeros = ops.zeros((batch, POSITION_KERNEL // 2, HIDDEN), x.dtype)
        x = ops.concat((zeros, x, zeros), 1)
        weight = weight.reshape(POSITION_GROUPS, GROUP_DIM, GROUP_DIM, POSITION_KERNEL)
        y = self.bias.reshape(POSITION_GROUPS, 1, GROUP_DIM)
        for tap in range(POSITION_KERNEL):
            part = x[:, tap : tap + FRAMES].reshape(batch, FRAMES, POSITION_GROUPS, GROUP_DIM)
            products = ops.matmul(part.transpose(0, 2, 1, 3), weight[..., tap].transpose(0, 2, 1))
            y = y + products
        return y.transpose(0, 2, 1, 3).reshape(batch, FRAMES, HIDDEN)

    def construct(self, x):
        weight = self.get_weight()
        if self.is_written:
            return self.act(self.convolve_taps(x, weight))
        x = ops.conv1d(
            x.transpose(0, 2, 1),
            weight,
            self.bias,
            pad_mode="pad",
            padding=POSITION_KERNEL // 2,
            groups=POSITION_GROUPS,
        )
        return self.act(x[:, :, :FRAMES]).transpose(0, 2, 1)


class SelfAttention(nn.Cell):
    """Attention of frames to all frames but padding."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q = build_dense(model, f"{path}.q")
        self.k = build_dense(model, f"{path}.k")
        self.v = build_dense(model, f"{path}.v")
        self.out = build_dense(model, f"{path}.o")
        self.is_written = model.variant == "written"

    def split(self, x):
        """Return (batch, HEADS, FRAMES, HEAD_DIM)."""
        return x.reshape(-1, FRAMES, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def attend_batched(self, q, k, v, mask):
        """Return the same with batch and heads on one axis."""
        shape = q.shape
        q, k, v = (part.reshape(-1, FRAMES, HEAD_DIM) for part in (q, k, v))
        scores = ops.bmm(q * HEAD_DIM**-0.5, k.swapaxes(1, 2)).reshape(-1, HEADS, FRAMES, FRAMES)
        exponentials = ops.exp(scores - ops.amax(scores, -1, True)) * (mask == 0)
        shares = exponentials / exponentials.sum(-1, keepdims=True)
        return ops.bmm(shares.reshape(-1, FRAMES, FRAMES), v).reshape(shape)

    def construct(self, x, mask):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if self.is_written:
            y = self.attend_batched(q, k, v, mask)
        else:
            scores = ops.matmul(q, k.swapaxes(2, 3)) / HEAD_DIM**0.5
            if mask is not None:
                scores = scores + mask
            y = ops.matmul(ops.softmax(scores, -1), v)
        return self.out(y.transpose(0, 2, 1, 3).reshape(x.shape))


class EncoderLayer(nn.Cell):
    """Attention and feed-forward, each with a norm behind its sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.attention = SelfAttention(model, f"{path}.attention")
        self.attention_norm = build_norm(model, f"{path}.norm1")
        self.up = build_dense(model, f"{path}.ffn.up")
        self.act = build_gelu(model)
        self.down = build_dense(model, f"{path}.ffn.down")
        self.output_norm = build_norm(model, f"{path}.norm2")

    def construct(self, x, mask):
        x = self.attention_norm(x + self.attention(x, mask))
        return self.output_norm(x + self.down(self.act(self.up(x))))


class ContextEncoder(nn.Cell):
    """Context (batch, FRAMES, HIDDEN) of projected features."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.positions = ConvPositions(model)
        self.norm = build_norm(model, "norm")
        self.layers = nn.CellList([EncoderLayer(model, n) for n in range(LAYERS)])
        self.is_padding_hidden = model.is_padding_hidden

    def construct(self, x, keep):
        mask = None
        if self.is_padding_hidden:
            x = x * keep.expand_dims(2)
            mask = (1 - keep).reshape(-1, 1, 1, FRAMES) * HIDDEN_SCORE
        x = self.norm(x + self.positions(x))
        for layer in self.layers:
            x = layer(x, mask)
        return x


class GumbelQuantizer(nn.Cell):
    """Codewords of features, and how many of them the masked frames use."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.scores = build_dense(model, "quantizer")
        self.codebooks = Parameter(Tensor(model.weights["codewords"]))
        self.is_written = model.variant == "written"

    def look_up(self, choice):
        """Return the codewords (batch, FRAMES, CODE_DIM) of (batch, FRAMES, BOOKS, CODES)."""
        batch = choice.shape[0]
        if self.is_written:
            choice = choice.reshape(-1, BOOKS, CODES).transpose(1, 0, 2)
            words = ops.bmm(choice, self.codebooks).transpose(1, 0, 2)
        else:
            words = (choice.expand_dims(-1) * self.codebooks).sum(-2)
        return words.reshape(batch, FRAMES, CODE_DIM)

    def compute_perplexity(self, logits, is_masked):
        """Return the sum of the perplexities of the books."""
        weights = is_masked.reshape(-1, FRAMES, 1, 1)
        shares = (ops.softmax(logits, -1) * weights).sum((0, 1)) / weights.sum()
        entropy = -(shares * ops.log(shares + SMALLEST_PROBABILITY)).sum(-1)
        return ops.exp(entropy).sum()

    def construct(self, features, is_masked, noise):
        logits = self.scores(features).reshape(noise.shape)
        soft = ops.softmax((logits + noise) / GUMBEL_TEMPERATURE, -1)
        codes = ops.argmax(soft, -1)
        hard = ops.one_hot(codes, CODES, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        choice = soft + ops.stop_gradient(hard - soft)
        return self.look_up(choice), codes, self.compute_perplexity(logits, is_masked)


class Wav2Vec(nn.Cell):
    """Projected context and codewords, codes, and the perplexity."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_encoder = ConvFeatureEncoder(model)
        self.feature_projection = build_dense(model, "projection")
        self.mask_vector = Parameter(Tensor(model.weights["masked"]))
        self.encoder = ContextEncoder(model)
        self.quantizer = GumbelQuantizer(model)
        self.context_projection = build_dense(model, "project_hidden")
        self.target_projection = build_dense(model, "project_codes")
        self.frames = Tensor(np.arange(FRAMES), ms.int32)
        self.convolutions = tuple(zip(KERNELS, STRIDES, strict=True))

    def construct(self, waveforms, lengths, is_masked, noise):
        for kernel, stride in self.convolutions:
            lengths = (lengths - kernel) // stride + 1
        keep = ops.less(self.frames, lengths.expand_dims(1)).astype(ms.float32)
        features = self.feature_encoder(waveforms)
        x = self.feature_projection(features)
        x = ops.where(is_masked.expand_dims(2) > 0, self.mask_vector, x)
        context = self.context_projection(self.encoder(x, keep))
        words, codes, perplexity = self.quantizer(features, is_masked, noise)
        return context, self.target_projection(words), codes, perplexity


class PretrainingLoss(nn.Cell):
    """Contrastive loss of masked frames, and the diversity of their codewords."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Wav2Vec(model)
        self.are_equal_masked = model.are_equal_negatives_masked
        self.are_all_counted = model.are_all_frames_counted
        self.is_written = model.variant == "written"

    def compute_similarities(self, context, candidates):
        """Return the cosines (batch, FRAMES, 1 + NEGATIVES)."""
        if self.is_written:
            context = context * ops.rsqrt(ops.square(context).sum(-1, keepdims=True))
            candidates = candidates * ops.rsqrt(ops.square(candidates).sum(-1, keepdims=True))
            context = context.reshape(-1, TARGET_DIM, 1)
            products = ops.bmm(candidates.reshape(-1, 1 + NEGATIVES, TARGET_DIM), context)
            return products.reshape(-1, FRAMES, 1 + NEGATIVES)
        return ops.cosine_similarity(context.expand_dims(2), candidates, dim=-1)

    def compute_losses(self, logits):
        """Return the cross entropy of the own frame, which comes first, for each frame."""
        if self.is_written:
            peak = ops.stop_gradient(ops.amax(logits, -1, True))
            sums = ops.exp(logits - peak).sum(-1)
            return ops.log(sums) + peak.squeeze(-1) - logits[..., 0]
        return -ops.log_softmax(logits, -1)[:, :, 0]

    def construct(self, waveforms, lengths, mask, negatives, noise):
        is_masked = mask.astype(ms.float32)
        context, targets, codes, perplexity = self.network(waveforms, lengths, is_masked, noise)
        negative_targets = ops.gather(targets.reshape(-1, TARGET_DIM), negatives, 0)
        candidates = ops.concat((targets.expand_dims(2), negative_targets), 2)
        logits = self.compute_similarities(context, candidates) / TEMPERATURE
        if self.are_equal_masked:
            negative_codes = ops.gather(codes.reshape(-1, BOOKS), negatives, 0)
            is_equal = ops.equal(negative_codes, codes.expand_dims(2)).all(-1)
            own, others = logits[:, :, :1], logits[:, :, 1:]
            logits = ops.concat((own, ops.masked_fill(others, is_equal, HIDDEN_SCORE)), 2)
        losses = self.compute_losses(logits) * is_masked
        contrastive = losses.mean() if self.are_all_counted else losses.sum() / is_masked.sum()
        diversity = 1 - perplexity / (BOOKS * CODES)
        return contrastive + DIVERSITY_WEIGHT * diversity
