"""The diffusion transformer in MindSpore, with the cell names of MindONE's DiT and PixArt.

Variant 'written': one projection for q, k and v, keys and values of the caption together, norms,
silu, softmax and loss in plain arithmetic, patches by reshaping and a linear layer.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.dit.architecture import (
    CHANNELS,
    CLASSES,
    EPS,
    GRID,
    HEADS,
    HIDDEN,
    IMAGE,
    LAYERS,
    MASKED,
    MAX_RATIO,
    PARTS,
    PATCH,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return DiffusionLoss(model)


def build_linear(model: Model, *paths: str) -> nn.Dense:
    """Return the linear layer at ``paths``, their rows one after the other."""
    weight, bias = (
        np.concatenate([model.weights[f"{path}.{name}"] for path in paths])
        for name in ("weight", "bias")
    )
    return nn.Dense(
        weight.shape[1], weight.shape[0], weight_init=Tensor(weight), bias_init=Tensor(bias)
    )


def build_silu(model: Model) -> nn.Cell:
    """Return the activation of embeddings and modulations."""
    return WrittenSiLU() if model.variant == "written" else nn.SiLU()


def build_norm(model: Model) -> nn.Cell:
    """Return a layer norm without weights."""
    return WrittenLayerNorm() if model.variant == "written" else LayerNorm()


class WrittenSiLU(nn.Cell):
    """Silu from a sigmoid."""

    def construct(self, x):
        return x * ops.sigmoid(x)


class LayerNorm(nn.Cell):
    """Layer norm whose weight and bias are constants, since the operator wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.beta = ops.ones(HIDDEN, ms.float32), ops.zeros(HIDDEN, ms.float32)
        self.layer_norm = ops.LayerNorm(-1, -1, epsilon=EPS)

    def construct(self, x):
        return self.layer_norm(x, self.gamma, self.beta)[0]


class WrittenLayerNorm(nn.Cell):
    """Layer norm from reductions."""

    def construct(self, x):
        centered = x - ops.mean(x, -1, True)
        return centered / ops.sqrt(ops.mean(ops.square(centered), -1, True) + EPS)


class PatchEmbed(nn.Cell):
    """Embedded patches (batch, patches, HIDDEN), row by row."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight, bias = (Tensor(model.weights[f"patch.{name}"]) for name in ("weight", "bias"))
        self.is_reshaped = model.variant == "written"
        if self.is_reshaped:
            n_values = CHANNELS * PATCH * PATCH
            weight = weight.reshape(HIDDEN, n_values)
            self.proj = nn.Dense(n_values, HIDDEN, weight_init=weight, bias_init=bias)
        else:
            self.proj = nn.Conv2d(
                CHANNELS,
                HIDDEN,
                PATCH,
                PATCH,
                pad_mode="valid",
                has_bias=True,
                weight_init=weight,
                bias_init=bias,
            )

    def construct(self, x):
        batch = x.shape[0]
        if self.is_reshaped:
            x = x.reshape(batch, CHANNELS, GRID, PATCH, GRID, PATCH).transpose(0, 2, 4, 1, 3, 5)
            return self.proj(x.reshape(batch, GRID * GRID, -1))
        return self.proj(x).reshape(batch, HIDDEN, -1).transpose(0, 2, 1)


class TimestepEmbedder(nn.Cell):
    """Sinusoidal embedding of the time steps and two linear layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.freqs = Tensor(model.frequencies())
        self.are_sines_first = model.are_sines_first
        self.mlp = nn.SequentialCell(
            build_linear(model, "time.1"), build_silu(model), build_linear(model, "time.2")
        )

    def construct(self, steps):
        angles = steps.astype(ms.float32).expand_dims(-1) * self.freqs
        if self.are_sines_first:
            return self.mlp(ops.concat((ops.sin(angles), ops.cos(angles)), -1))
        return self.mlp(ops.concat((ops.cos(angles), ops.sin(angles)), -1))


class AveragedGradient(nn.Cell):
    """The rows of a table; each row's gradient is divided by the number of its occurrences."""

    def construct(self, embedded, classes):
        return ops.identity(embedded)

    def bprop(self, embedded, classes, out, gradient):
        is_same = ops.equal(classes.expand_dims(0), classes.expand_dims(1)).astype(ms.float32)
        return gradient / is_same.sum(1).expand_dims(-1), ops.zeros_like(classes)


class LabelEmbedder(nn.Cell):
    """Embedded classes (batch, HIDDEN); a dropped class has the last row of the table."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = Tensor(model.weights["classes.weight"])
        self.embedding_table = nn.Embedding(CLASSES + 1, HIDDEN, embedding_table=table)
        self.averaged = AveragedGradient() if model.is_class_gradient_averaged else None
        self.is_dropped_class_zero = model.is_dropped_class_zero

    def construct(self, classes, is_dropped):
        classes = ops.where(ops.equal(is_dropped, 1), CLASSES, classes)
        embedded = self.embedding_table(classes)
        if self.is_dropped_class_zero:
            embedded = embedded * (1 - is_dropped).astype(ms.float32).expand_dims(-1)
        return embedded if self.averaged is None else self.averaged(embedded, classes)


class CaptionEmbedder(nn.Cell):
    """Projected tokens of captions, (batch, tokens, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fc1, self.fc2 = build_linear(model, "caption.1"), build_linear(model, "caption.2")

    def construct(self, captions):
        return self.fc2(ops.gelu(self.fc1(captions), approximate="tanh"))


class Attention(nn.Cell):
    """Attention of queries (batch, heads, n, size) to keys and values."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.scale = (HIDDEN // HEADS) ** -0.5
        self.is_written = model.variant == "written"

    def construct(self, q, k, v, bias=None):
        if self.is_written:
            scores = ops.matmul(q * self.scale, k.swapaxes(-1, -2))
        else:
            scores = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        if bias is not None:
            scores = scores + bias
        if self.is_written:
            exponentials = ops.exp(scores - ops.amax(scores, -1, True))
            probabilities = exponentials / exponentials.sum(-1, keepdims=True)
        else:
            probabilities = ops.softmax(scores, -1)
        return ops.matmul(probabilities, v)


def split_heads(x):
    """Return (batch, heads, tokens, size of a head)."""
    return x.reshape(x.shape[0], x.shape[1], HEADS, HIDDEN // HEADS).transpose(0, 2, 1, 3)


def join_heads(x):
    """Return (batch, tokens, HIDDEN)."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], HIDDEN)


class SelfAttention(nn.Cell):
    """Attention of all patches to all patches."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_fused = model.variant == "written"
        if self.is_fused:
            self.qkv = build_linear(model, f"{path}.q", f"{path}.k", f"{path}.v")
        else:
            self.to_q = build_linear(model, f"{path}.q")
            self.to_k = build_linear(model, f"{path}.k")
            self.to_v = build_linear(model, f"{path}.v")
        self.to_out = build_linear(model, f"{path}.o")
        self.attention = Attention(model)

    def construct(self, x):
        if self.is_fused:
            q, k, v = ops.chunk(self.qkv(x), 3, axis=-1)
        else:
            q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        y = self.attention(split_heads(q), split_heads(k), split_heads(v))
        return self.to_out(join_heads(y))


class MultiHeadCrossAttention(nn.Cell):
    """Attention of all patches to the tokens of the caption."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_fused = model.variant == "written"
        self.q_linear = build_linear(model, f"{path}.q")
        if self.is_fused:
            self.kv_linear = build_linear(model, f"{path}.k", f"{path}.v")
        else:
            self.k_linear = build_linear(model, f"{path}.k")
            self.v_linear = build_linear(model, f"{path}.v")
        self.proj = build_linear(model, f"{path}.o")
        self.attention = Attention(model)

    def construct(self, x, tokens, bias):
        if self.is_fused:
            k, v = ops.chunk(self.kv_linear(tokens), 2, axis=-1)
        else:
            k, v = self.k_linear(tokens), self.v_linear(tokens)
        y = self.attention(split_heads(self.q_linear(x)), split_heads(k), split_heads(v), bias)
        return self.proj(join_heads(y))


class Mlp(nn.Cell):
    """Two linear layers around gelu in its tanh form."""

    def __init__(self, model: Model, path: str, activation: str = "gelu_tanh") -> None:
        super().__init__()
        self.fc1, self.fc2 = build_linear(model, f"{path}.up"), build_linear(model, f"{path}.down")
        self.act = nn.GELU(approximate=activation == "gelu_tanh")

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class DiTBlock(nn.Cell):
    """Modulated attention, attention to the caption, modulated mlp."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == LAYERS - 1
        path = f"blocks.{n}"
        self.norm1, self.norm2 = build_norm(model), build_norm(model)
        self.attn = SelfAttention(model, f"{path}.attention")
        self.norm_cross = build_norm(model) if is_last and model.is_cross_normed else None
        self.cross_attn = MultiHeadCrossAttention(model, f"{path}.cross")
        activation = model.mlp_activation if is_last else "gelu_tanh"
        self.mlp = Mlp(model, f"{path}.mlp", activation)
        self.adaLN_modulation = nn.SequentialCell(
            build_silu(model), build_linear(model, f"{path}.modulation")
        )
        self.scale_offset = model.scale_offset if is_last else 1.0

    def modulate(self, x, shift, scale, offset):
        if offset != 0:
            scale = offset + scale
        return x * scale.expand_dims(1) + shift.expand_dims(1)

    def construct(self, x, c, tokens, bias):
        parts = ops.chunk(self.adaLN_modulation(c), len(PARTS), axis=1)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = parts
        attended = self.attn(self.modulate(self.norm1(x), shift_msa, scale_msa, 1))
        x = x + gate_msa.expand_dims(1) * attended
        y = x if self.norm_cross is None else self.norm_cross(x)
        x = x + self.cross_attn(y, tokens, bias)
        y = self.modulate(self.norm2(x), shift_mlp, scale_mlp, self.scale_offset)
        return x + gate_mlp.expand_dims(1) * self.mlp(y)


class FinalLayer(nn.Cell):
    """Predicted patches, (batch, patches, numbers)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm_final = build_norm(model)
        self.linear = build_linear(model, "final.linear")
        self.adaLN_modulation = nn.SequentialCell(
            build_silu(model), build_linear(model, "final.modulation")
        )
        self.is_scale_first = model.is_scale_first

    def construct(self, x, c):
        shift, scale = ops.chunk(self.adaLN_modulation(c), 2, axis=1)
        if self.is_scale_first:
            shift, scale = scale, shift
        x = self.norm_final(x) * (1 + scale.expand_dims(1)) + shift.expand_dims(1)
        return self.linear(x)


class DiT(nn.Cell):
    """Predicts the velocity of noisy latents."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.x_embedder = PatchEmbed(model)
        self.t_embedder = TimestepEmbedder(model)
        self.y_embedder = LabelEmbedder(model)
        self.caption_embedder = CaptionEmbedder(model)
        self.pos_embed = Parameter(Tensor(model.positions()), requires_grad=False)
        self.blocks = nn.CellList([DiTBlock(model, n) for n in range(LAYERS)])
        if model.is_modulation_shared:
            for block in self.blocks:
                block.adaLN_modulation = self.blocks[0].adaLN_modulation
        self.final_layer = FinalLayer(model)
        self.are_channels_first = model.are_channels_first
        self.is_caption_masked = model.is_caption_masked
        self.is_caption_stopped = model.is_caption_stopped
        self.activation = build_silu(model) if model.is_condition_activated else None
        self.is_mask_added = model.is_mask_added
        self.is_final_timed = model.is_final_timed

    def unpatchify(self, x):
        """Return images (batch, CHANNELS, IMAGE, IMAGE)."""
        batch = x.shape[0]
        if self.are_channels_first:
            x = x.reshape(batch, GRID, GRID, CHANNELS, PATCH, PATCH).transpose(0, 3, 1, 4, 2, 5)
        else:
            x = x.reshape(batch, GRID, GRID, PATCH, PATCH, CHANNELS).transpose(0, 5, 1, 3, 2, 4)
        return x.reshape(batch, CHANNELS, IMAGE, IMAGE)

    def construct(self, x, steps, classes, is_dropped, captions, mask):
        x = self.x_embedder(x) + self.pos_embed
        t = self.t_embedder(steps)
        c = t + self.y_embedder(classes, is_dropped)
        if self.activation is not None:
            c = self.activation(c)
        tokens = self.caption_embedder(captions)
        if self.is_caption_stopped:
            tokens = ops.stop_gradient(tokens)
        bias = None
        if self.is_caption_masked:
            bias = mask.astype(ms.float32)
            if not self.is_mask_added:
                bias = (1 - bias) * MASKED
            bias = bias.expand_dims(1).expand_dims(1)
        for block in self.blocks:
            x = block(x, c, tokens, bias)
        return self.unpatchify(self.final_layer(x, t if self.is_final_timed else c))


class DiffusionLoss(nn.Cell):
    """Squared error of the predicted velocity, weighted by the ratio of signal to noise."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = DiT(model)
        self.sqrt_alphas_cumprod, self.sqrt_one_minus_alphas_cumprod = (
            Tensor(values) for values in model.schedule()
        )
        self.latent_scale = model.latent_scale
        self.ratio_offset = model.ratio_offset
        self.is_target_noise = model.loss_target == "noise"
        self.are_weights_broadcast = model.are_weights_broadcast
        self.is_written = model.variant == "written"

    def construct(self, latents, noise, steps, classes, is_dropped, captions, mask):
        latents = latents * self.latent_scale
        alpha = self.sqrt_alphas_cumprod[steps]
        sigma = self.sqrt_one_minus_alphas_cumprod[steps]
        image_share, noise_share = alpha.reshape(-1, 1, 1, 1), sigma.reshape(-1, 1, 1, 1)
        noisy = image_share * latents + noise_share * noise
        target = noise
        if not self.is_target_noise:
            target = image_share * noise - noise_share * latents
        predicted = self.network(noisy, steps, classes, is_dropped, captions, mask)
        snr = ops.square(alpha / sigma)
        divisor = snr + self.ratio_offset if self.ratio_offset != 0 else snr
        weights = ops.minimum(snr, MAX_RATIO) / divisor
        if self.is_written:
            errors = ops.square(predicted - target) * weights.reshape(-1, 1, 1, 1)
            return errors.mean()
        errors = ops.mse_loss(predicted, target, reduction="none").mean((1, 2, 3))
        if self.are_weights_broadcast:
            weights = weights.expand_dims(1)
        return (errors * weights).mean()
