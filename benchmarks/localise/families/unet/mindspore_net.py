"""The U-Net in MindSpore, with the cell names of MindONE's diffusers.

Variant 'decomposition': group norm and loss written out, scaled queries in the attention.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.unet.architecture import MAX_PERIOD, Model


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if not model.has_middle_skip or model.time_gradient != 1 or model.step_scale != 1:
        raise SystemExit("a fault of the PyTorch net")
    if model.first_padding != "zeros" or model.is_shortcut_activated:
        raise SystemExit("first_padding and is_shortcut_activated are knobs of the PyTorch net")
    return DiffusionLoss(model)


def build_convolution(model: Model, path: str, stride: int = 1, pad_mode: str = "pad") -> nn.Conv2d:
    """Return a convolution of the kernel's size."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    n_out, n_in, kernel, _ = weight.shape
    padding = kernel // 2 if pad_mode == "pad" else 0
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode=pad_mode,
        padding=padding,
        has_bias=True,
        weight_init=weight,
        bias_init=bias,
    )


def build_linear(model: Model, path: str) -> nn.Dense:
    """Return a linear layer."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


def build_norm(model: Model, path: str, groups: int, eps: float = 1e-5) -> nn.Cell:
    """Return a group norm."""
    is_unbiased = model.is_variance_unbiased and path.startswith("middle.1")
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.is_norm_mean_constant and path == "norm_out":
        return FusedGroupNorm(groups, weight, bias, eps)
    if model.variant == "decomposition" or is_unbiased:
        return GroupNorm(groups, weight, bias, eps, is_unbiased=is_unbiased)
    return nn.GroupNorm(groups, len(weight), eps=eps, gamma_init=weight, beta_init=bias)


class GroupNorm(nn.Cell):
    """Group norm from reductions."""

    def __init__(
        self, groups: int, weight: Tensor, bias: Tensor, eps: float, *, is_unbiased: bool
    ) -> None:
        super().__init__()
        self.groups, self.eps, self.is_unbiased = groups, eps, is_unbiased
        self.weight, self.bias = Parameter(weight), Parameter(bias)

    def construct(self, x):
        batch, channels, height, width = x.shape
        y = x.reshape(batch, self.groups, -1)
        centered = y - ops.mean(y, -1, True)
        if self.is_unbiased:
            variance = ops.square(centered).sum(-1, keepdims=True) / (y.shape[-1] - 1)
        else:
            variance = ops.mean(ops.square(centered), -1, True)
        y = (centered / ops.sqrt(variance + self.eps)).reshape(batch, channels, height, width)
        return y * self.weight.reshape(1, -1, 1, 1) + self.bias.reshape(1, -1, 1, 1)


class NormalizedGroups(nn.Cell):
    """Groups without mean and deviation, whose gradient is none of the mean."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def compute_deviation(self, centered):
        """Return the deviation of each group, with eps."""
        return ops.sqrt(ops.square(centered).mean(-1, keep_dims=True) + self.eps)

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        return centered / self.compute_deviation(centered)

    def bprop(self, x, out, gradient):
        deviation = self.compute_deviation(x - x.mean(-1, keep_dims=True))
        share = (gradient * out).mean(-1, keep_dims=True)
        return ((gradient - out * share) / deviation,)


class FusedGroupNorm(nn.Cell):
    """Group norm with its own backward pass."""

    def __init__(self, groups: int, weight: Tensor, bias: Tensor, eps: float) -> None:
        super().__init__()
        self.groups, self.normalize = groups, NormalizedGroups(eps)
        self.gamma, self.beta = Parameter(weight), Parameter(bias)

    def construct(self, x):
        y = self.normalize(x.reshape(x.shape[0], self.groups, -1)).reshape(x.shape)
        return y * self.gamma.reshape(1, -1, 1, 1) + self.beta.reshape(1, -1, 1, 1)


class ResnetBlock(nn.Cell):
    """Two convolutions with the time embedding between them, next to a shortcut."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        groups = model.middle_groups if path == "middle.0" else model.groups
        eps = model.down_eps if path == "down.1" else 1e-5
        self.norm1 = build_norm(model, f"{path}.norm1", groups, eps)
        self.conv1 = build_convolution(model, f"{path}.conv1")
        self.time_emb_proj = build_linear(model, f"{path}.time")
        self.norm2 = build_norm(model, f"{path}.norm2", groups, eps)
        self.conv2 = build_convolution(model, f"{path}.conv2")
        self.conv_shortcut = None
        if f"{path}.shortcut.weight" in model.weights:
            self.conv_shortcut = build_convolution(model, f"{path}.shortcut")
        self.output_scale = model.output_scale if path == "middle.1" else 1.0
        self.has_gelu = path == "up.1" and model.up_activation == "gelu"
        self.is_time_added_late = path == "up.1" and model.is_time_added_late
        self.is_time_activated = model.is_time_activated

    def activate(self, x):
        return ops.gelu(x, approximate="none") if self.has_gelu else ops.silu(x)

    def construct(self, x, time):
        y = self.conv1(self.activate(self.norm1(x)))
        projected_time = self.time_emb_proj(ops.silu(time) if self.is_time_activated else time)
        projected_time = projected_time.expand_dims(-1).expand_dims(-1)
        if self.is_time_added_late:
            y = self.norm2(y) + projected_time
        else:
            y = self.norm2(y + projected_time)
        y = self.conv2(self.activate(y))
        if self.conv_shortcut is not None:
            x = self.conv_shortcut(x)
        return (x + y) * self.output_scale if self.output_scale != 1 else x + y


class PartialSoftmax(nn.Cell):
    """A softmax of the last axis whose gradient is none of the sum of exponentials."""

    def construct(self, scores):
        return ops.softmax(scores, -1)

    def bprop(self, scores, out, gradient):
        return (gradient * out,)


class Attention(nn.Cell):
    """Attention of all pixels to all pixels, added to its input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.heads = model.heads
        head_dim = 2 * model.width // model.heads
        factor = model.attention_scale if path == "middle.attention" else 1.0
        self.scale = factor * head_dim**-0.5
        self.softmax_axis = model.softmax_axis if path == "middle.attention" else -1
        self.partial_softmax = None
        if model.is_softmax_gradient_partial and path == "middle.attention":
            self.partial_softmax = PartialSoftmax()
        self.is_query_scaled = model.variant == "decomposition"
        self.are_heads_last = model.are_heads_interleaved and path == "middle.attention"
        self.are_pixels_unmoved = model.are_pixels_unmoved and path == "middle.attention"
        self.is_input_normed = model.is_attention_input_normed and path == "middle.attention"
        self.group_norm = build_norm(model, f"{path}.norm", model.groups)
        self.to_q = build_linear(model, f"{path}.q")
        self.to_k = build_linear(model, f"{path}.k")
        self.to_v = build_linear(model, f"{path}.v")
        self.to_out = build_linear(model, f"{path}.o")

    def split_heads(self, x):
        batch, pixels, channels = x.shape
        if self.are_heads_last:
            x = x.reshape(batch, pixels, channels // self.heads, self.heads)
            return x.transpose(0, 3, 1, 2)
        x = x.reshape(batch, pixels, self.heads, channels // self.heads)
        return x.transpose(0, 2, 1, 3)

    def construct(self, x):
        batch, channels = x.shape[:2]
        normed = self.group_norm(x)
        if self.are_pixels_unmoved:
            y = normed.reshape(batch, -1, channels)
        else:
            y = normed.reshape(batch, channels, -1).transpose(0, 2, 1)
        q = self.split_heads(self.to_q(y))
        k = self.split_heads(self.to_k(y))
        v = self.split_heads(self.to_v(y))
        if self.is_query_scaled:
            scores = ops.matmul(q * self.scale, k.swapaxes(-1, -2))
        else:
            scores = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        if self.partial_softmax is not None:
            y = ops.matmul(self.partial_softmax(scores), v)
        else:
            y = ops.matmul(ops.softmax(scores, self.softmax_axis), v)
        y = y.transpose(0, 2, 3, 1) if self.are_heads_last else y.transpose(0, 2, 1, 3)
        y = self.to_out(y.reshape(batch, -1, channels))
        y = y if self.are_pixels_unmoved else y.transpose(0, 2, 1)
        return (normed if self.is_input_normed else x) + y.reshape(x.shape)


class TimestepEmbedding(nn.Cell):
    """Sinusoidal embedding of the time steps and two linear layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        half = model.width // 2
        exponent = -np.log(MAX_PERIOD) * np.arange(half, dtype=np.float32)
        exponent = exponent / (half - model.frequency_shift)
        self.frequencies = Tensor(np.exp(exponent).astype(np.float32))
        self.is_sine_first = model.time_order == "sin_cos"
        self.are_angles_half = model.are_angles_half
        self.linear_1 = build_linear(model, "time.1")
        self.linear_2 = build_linear(model, "time.2")

    def construct(self, steps):
        if self.are_angles_half:
            angles = steps.astype(ms.float16).expand_dims(-1) * self.frequencies.astype(ms.float16)
            angles = angles.astype(ms.float32)
        else:
            angles = steps.astype(ms.float32).expand_dims(-1) * self.frequencies
        cosine, sine = ops.cos(angles), ops.sin(angles)
        if self.is_sine_first:
            embedding = ops.concat((sine, cosine), -1)
        else:
            embedding = ops.concat((cosine, sine), -1)
        return self.linear_2(ops.silu(self.linear_1(embedding)))


class DownBlock(nn.Cell):
    """The higher resolution on the way down."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        pad_mode = "same" if model.downsample_padding == "same" else "pad"
        self.resnets = nn.CellList([ResnetBlock(model, "down.0")])
        self.downsamplers = nn.CellList([build_convolution(model, "downsample", 2, pad_mode)])

    def construct(self, x, time):
        skip = self.resnets[0](x, time)
        return self.downsamplers[0](skip), skip


class AttentionDownBlock(nn.Cell):
    """The lower resolution on the way down."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.resnets = nn.CellList([ResnetBlock(model, "down.1")])
        self.attentions = nn.CellList([Attention(model, "down.1.attention")])

    def construct(self, x, time):
        return self.attentions[0](self.resnets[0](x, time))


class MiddleBlock(nn.Cell):
    """Two residual blocks around attention."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.resnets = nn.CellList([ResnetBlock(model, f"middle.{n}") for n in range(2)])
        self.attentions = nn.CellList([Attention(model, "middle.attention")])

    def construct(self, x, time):
        x = self.attentions[0](self.resnets[0](x, time))
        return self.resnets[1](x, time)


class UpBlock(nn.Cell):
    """A residual block that reads a skip connection, and upsampling."""

    def __init__(self, model: Model, path: str, *, has_upsampler: bool) -> None:
        super().__init__()
        self.resnets = nn.CellList([ResnetBlock(model, path)])
        self.upsamplers = None
        if has_upsampler:
            self.upsamplers = nn.CellList([build_convolution(model, "upsample")])
        self.resize_mode = model.resize_mode

    def construct(self, x, time):
        x = self.resnets[0](x, time)
        if self.upsamplers is None:
            return x
        size = (2 * x.shape[2], 2 * x.shape[3])
        if self.resize_mode == "bilinear":
            x = ops.interpolate(x, size=size, mode="bilinear", align_corners=False)
        else:
            x = ops.interpolate(x, size=size, mode="nearest")
        return self.upsamplers[0](x)


class UNet(nn.Cell):
    """Predicts the noise of noisy images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_in = build_convolution(model, "conv_in")
        self.time_embedding = TimestepEmbedding(model)
        self.down_blocks = nn.CellList([DownBlock(model), AttentionDownBlock(model)])
        self.mid_block = MiddleBlock(model)
        self.up_blocks = nn.CellList([
            UpBlock(model, "up.1", has_upsampler=True),
            UpBlock(model, "up.0", has_upsampler=False),
        ])  # fmt: skip
        self.conv_norm_out = build_norm(model, "norm_out", model.groups)
        self.conv_out = build_convolution(model, "conv_out")
        self.is_first_skipped = model.skip_source == "conv_in"
        self.is_skip_first = model.skip_order == "skip_first"
        self.is_skip_detached = model.is_skip_detached

    def construct(self, x, steps):
        time = self.time_embedding(steps)
        first = self.conv_in(x)
        x, skip_0 = self.down_blocks[0](first, time)
        skip_1 = self.down_blocks[1](x, time)
        x = self.mid_block(skip_1, time)
        parts = (skip_1, x) if self.is_skip_first else (x, skip_1)
        x = self.up_blocks[0](ops.concat(parts, 1), time)
        if self.is_first_skipped:
            skip_0 = first
        if self.is_skip_detached:
            skip_0 = ops.stop_gradient(skip_0)
        x = self.up_blocks[1](ops.concat((x, skip_0), 1), time)
        return self.conv_out(ops.silu(self.conv_norm_out(x)))


class DiffusionLoss(nn.Cell):
    """Mean squared error of the predicted noise."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.unet = UNet(model)
        self.image_share, self.noise_share = (Tensor(values) for values in model.schedule())
        self.is_loss_absolute = model.loss_kind == "l1"
        self.is_target_images = model.loss_target == "images"
        self.is_written_out = model.variant == "decomposition"
        self.schedule_offset = model.schedule_offset
        self.snr_limit = model.snr_limit

    def construct(self, images, noise, steps):
        rows = steps + self.schedule_offset if self.schedule_offset else steps
        image_share = self.image_share[rows].reshape(-1, 1, 1, 1)
        noise_share = self.noise_share[rows].reshape(-1, 1, 1, 1)
        predicted = self.unet(image_share * images + noise_share * noise, steps)
        target = images if self.is_target_images else noise
        if self.snr_limit:
            ratio = ops.square(image_share / noise_share)
            weights = ops.clamp(ratio, max=self.snr_limit) / ratio
            return ops.mean(weights * ops.square(predicted - target))
        if self.is_loss_absolute:
            return ops.l1_loss(predicted, target)
        if self.is_written_out:
            return ops.mean(ops.square(predicted - target))
        return ops.mse_loss(predicted, target)
