"""The classifier in MindSpore, with cells as those of MindCV; tokens are (batch, tokens, channels).

Variant 'written': layer norm in plain arithmetic, one projection for q, k and v, biases by one-hot
vectors, the loss from log-probabilities.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.swin.architecture import (
    BATCH,
    BLOCKS,
    CELLS,
    CHANNELS,
    CLASSES,
    EPS,
    HEADS,
    KEEP,
    MIXED,
    PATCH,
    SHIFT,
    STAGES,
    TOKENS,
    WINDOW,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return MixupLoss(model)


def build_dense(weight: np.ndarray, bias: np.ndarray | None) -> nn.Dense:
    """Return a linear layer."""
    n_out, n_in = weight.shape
    return nn.Dense(
        n_in,
        n_out,
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def load_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    return build_dense(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


class WrittenNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight), Parameter(bias)

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


def load_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "written":
        return WrittenNorm(weight, bias)
    return nn.LayerNorm((len(weight),), gamma_init=weight, beta_init=bias, epsilon=EPS)


class RelativeBias(nn.Cell):
    """What is added to the scores of a window, (1, heads, TOKENS, TOKENS)."""

    def __init__(self, model: Model, path: str, heads: int) -> None:
        super().__init__()
        self.relative_position_bias_table = Parameter(Tensor(model.weights[f"{path}.table"]))
        index = model.relative_index().reshape(-1)
        self.index, self.heads = Tensor(index), heads
        self.is_one_hot = model.variant == "written"
        if self.is_one_hot:
            self.one_hot = Tensor(np.eye((2 * WINDOW - 1) ** 2, dtype=np.float32)[index])
        self.is_stopped = model.are_tables_stopped

    def construct(self):
        table = self.relative_position_bias_table.reshape(-1, self.heads)
        if self.is_one_hot:
            bias = ops.matmul(self.one_hot, table)
        else:
            bias = ops.gather(table, self.index, 0)
        bias = bias.reshape(TOKENS, TOKENS, self.heads).transpose(2, 0, 1).expand_dims(0)
        return ops.stop_gradient(bias) if self.is_stopped else bias


class WindowAttention(nn.Cell):
    """Attention of the tokens of a window to each other, (batch * windows, TOKENS, channels)."""

    def __init__(self, model: Model, path: str, stage: int, *, is_shifted: bool) -> None:
        super().__init__()
        self.channels, self.heads = CHANNELS[stage], HEADS[stage]
        self.head_dim = self.channels // self.heads
        self.scale = (self.channels if model.is_scale_of_channels else self.head_dim) ** -0.5
        self.is_joined = model.variant == "written"
        if self.is_joined:
            weight, bias = (
                np.concatenate([model.weights[f"{path}.{name}.{kind}"] for name in "qkv"])
                for kind in ("weight", "bias")
            )
            self.qkv = build_dense(weight, bias)
        else:
            self.q = load_dense(model, f"{path}.q")
            self.k = load_dense(model, f"{path}.k")
            self.v = load_dense(model, f"{path}.v")
        self.relative_bias = RelativeBias(model, path, self.heads)
        self.proj = load_dense(model, f"{path}.o")
        self.softmax = nn.Softmax(axis=-1)
        self.is_shifted = is_shifted
        self.n_windows = (CELLS[stage] // WINDOW) ** 2
        if is_shifted:
            self.mask = Tensor(model.mask(stage)[:, None])
        self.is_mask_of_images = model.is_mask_of_images
        self.is_bias_scaled = model.is_bias_scaled

    def split(self, x):
        """Return (batch * windows, heads, TOKENS, head_dim)."""
        return x.reshape(-1, TOKENS, self.heads, self.head_dim).transpose(0, 2, 1, 3)

    def add_mask(self, scores):
        """Return the scores of shifted windows."""
        if self.is_mask_of_images:
            return scores + ops.repeat_interleave(self.mask, BATCH, 0)
        scores = scores.reshape(-1, self.n_windows, self.heads, TOKENS, TOKENS)
        scores = scores + self.mask.expand_dims(0)
        return scores.reshape(-1, self.heads, TOKENS, TOKENS)

    def construct(self, x):
        if self.is_joined:
            q, k, v = ops.split(self.qkv(x), self.channels, axis=-1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = self.split(q), self.split(k), self.split(v)
        if self.is_bias_scaled:
            scores = (ops.matmul(q, k.swapaxes(-2, -1)) + self.relative_bias()) * self.scale
        else:
            scores = ops.matmul(q * self.scale, k.swapaxes(-2, -1)) + self.relative_bias()
        if self.is_shifted:
            scores = self.add_mask(scores)
        y = ops.matmul(self.softmax(scores), v)
        return self.proj(y.transpose(0, 2, 1, 3).reshape(-1, TOKENS, self.channels))


class Mlp(nn.Cell):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = load_dense(model, f"{path}.up"), load_dense(model, f"{path}.down")
        self.act = nn.GELU(approximate=model.is_gelu_approximate)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class DropPath(nn.Cell):
    """Branches of the images that are kept, zeros for the others."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_kept_scaled = model.is_kept_scaled
        self.scaled_gradient = None
        if model.drop_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.drop_gradient)

    def construct(self, x, is_kept):
        if self.scaled_gradient is not None:
            x = self.scaled_gradient(x)
        if self.is_kept_scaled:
            x = x / KEEP
        return x * is_kept.reshape(-1, 1, 1)


class Roll(nn.Cell):
    """Rows and columns moved down and right by ``shift``; ``ops.roll`` has no kernel for CPU."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift

    def construct(self, x):
        x = ops.concat((x[:, -self.shift :], x[:, : -self.shift]), 1)
        return ops.concat((x[:, :, -self.shift :], x[:, :, : -self.shift]), 2)


class RepeatedRoll(Roll):
    """The same with a gradient that moves as the tokens do."""

    def bprop(self, x, out, gradient):
        gradient = ops.concat((gradient[:, -self.shift :], gradient[:, : -self.shift]), 1)
        return (ops.concat((gradient[:, :, -self.shift :], gradient[:, :, : -self.shift]), 2),)


class SwinBlock(nn.Cell):
    """Attention in windows, and mlp, each after a norm."""

    def __init__(self, model: Model, stage: int, n: int) -> None:
        super().__init__()
        path, is_shifted = f"stages.{stage}.blocks.{n}", n % 2 == 1
        self.n_cells, self.channels = CELLS[stage], CHANNELS[stage]
        self.norm1 = load_norm(model, f"{path}.norm1")
        self.attn = WindowAttention(model, f"{path}.attention", stage, is_shifted=is_shifted)
        self.norm2 = load_norm(model, f"{path}.norm2")
        self.mlp = Mlp(model, f"{path}.mlp")
        self.layer_scale1 = Parameter(Tensor(model.weights[f"{path}.gamma1"]))
        self.layer_scale2 = Parameter(Tensor(model.weights[f"{path}.gamma2"]))
        self.drop_path = DropPath(model)
        self.is_shifted = is_shifted
        self.roll = (RepeatedRoll if model.is_shift_gradient_repeated else Roll)(-SHIFT)
        self.roll_back = Roll(-SHIFT if model.is_shift_repeated else SHIFT)

    def partition(self, x):
        """Return (batch * windows, TOKENS, channels)."""
        n = self.n_cells // WINDOW
        x = x.reshape(-1, n, WINDOW, n, WINDOW, self.channels).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, TOKENS, self.channels)

    def reverse(self, windows):
        """Return (batch, height, width, channels)."""
        n = self.n_cells // WINDOW
        x = windows.reshape(-1, n, n, WINDOW, WINDOW, self.channels).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, self.n_cells, self.n_cells, self.channels)

    def attend(self, x):
        """Return the attention's output, (batch, tokens, channels)."""
        x = x.reshape(-1, self.n_cells, self.n_cells, self.channels)
        if self.is_shifted:
            x = self.roll(x)
        x = self.reverse(self.attn(self.partition(x)))
        if self.is_shifted:
            x = self.roll_back(x)
        return x.reshape(-1, self.n_cells * self.n_cells, self.channels)

    def construct(self, x, attention_kept, mlp_kept):
        x = x + self.drop_path(self.attend(self.norm1(x)) * self.layer_scale1, attention_kept)
        return x + self.drop_path(self.mlp(self.norm2(x)) * self.layer_scale2, mlp_kept)


class PatchMerging(nn.Cell):
    """Four neighbors joined, normed and reduced."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load_norm(model, "merging.norm")
        self.reduction = load_dense(model, "merging.reduction")
        # axes: batch, rows, lower or upper, columns, left or right, channels
        self.order = (0, 1, 3, 2, 4, 5) if model.is_merged_by_row else (0, 1, 3, 4, 2, 5)

    def construct(self, x):
        cells, channels = CELLS[0], CHANNELS[0]
        x = x.reshape(-1, cells // 2, 2, cells // 2, 2, channels).transpose(self.order)
        x = x.reshape(-1, cells * cells // 4, 4 * channels)
        return self.reduction(self.norm(x))


class PatchEmbed(nn.Cell):
    """Patches (batch, tokens, channels) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.proj = nn.Conv2d(
            3,
            CHANNELS[0],
            PATCH,
            PATCH,
            pad_mode="valid",
            has_bias=True,
            weight_init=Tensor(model.weights["patch.weight"]),
            bias_init=Tensor(model.weights["patch.bias"]),
        )
        self.norm = load_norm(model, "patch.norm")

    def construct(self, images):
        x = self.proj(images)
        return self.norm(x.reshape(-1, CHANNELS[0], CELLS[0] * CELLS[0]).transpose(0, 2, 1))


class SwinTransformer(nn.Cell):
    """Logits of images, (batch, CLASSES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(model)
        blocks = [SwinBlock(model, stage, n) for stage in range(STAGES) for n in range(BLOCKS)]
        self.layers = nn.CellList(blocks)
        self.merging = PatchMerging(model)
        self.norm = load_norm(model, "norm")
        self.classifier = load_dense(model, "head")
        self.is_pooled_first = model.is_pooled_first
        self.mlp_mask = 0 if model.is_mask_shared else 1

    def construct(self, images, is_kept):
        x = self.patch_embed(images)
        for n in range(STAGES * BLOCKS):
            if n == BLOCKS:
                x = self.merging(x)
            x = self.layers[n](x, is_kept[n, 0], is_kept[n, self.mlp_mask])
        pooled = self.norm(ops.mean(x, 1)) if self.is_pooled_first else ops.mean(self.norm(x), 1)
        return self.classifier(pooled)


class MixupLoss(nn.Cell):
    """Cross entropy of images and labels that are mixed with those of the reversed batch."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = SwinTransformer(model)
        on_value, off_value = model.smoothed_values()
        self.on_value, self.off_value = Tensor(on_value, ms.float32), Tensor(off_value, ms.float32)
        self.reverse = ops.ReverseV2(axis=[0])
        self.is_written_out = model.variant == "written"
        self.are_labels_rolled = model.are_labels_rolled

    def mix(self, x):
        """Return x mixed with its reversed batch."""
        return MIXED * x + (1 - MIXED) * self.reverse(x)

    def construct(self, images, labels, is_kept):
        targets = ops.one_hot(labels, CLASSES, self.on_value, self.off_value)
        if self.are_labels_rolled:
            targets = MIXED * targets + (1 - MIXED) * ops.concat((targets[-1:], targets[:-1]), 0)
        else:
            targets = self.mix(targets)
        logits = self.network(self.mix(images), is_kept)
        if self.is_written_out:
            return -(targets * ops.log_softmax(logits, -1)).sum() / BATCH
        return ops.cross_entropy(logits, targets)
