"""The U-Net in PyTorch, with the module names of diffusers.

Variant 'names': those of the first latent diffusion code. Variant 'decomposition': attention in
1x1 convolutions and written out, upsampling by repetition. Variant 'unfolded': convolutions as
matrix products of patches, group norms written out. Variant 'expanded': one projection for q, k
and v, upsampling by expansion, silu and loss written out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from pytorch.naming import rename
from torch import Tensor, nn

from families.unet.architecture import MAX_PERIOD, Model

#: Module names of the other code, where they differ.
NAMES: Mapping[str, str] = {
    "conv_in": "input_blocks.0.0",
    "linear_1": "0",
    "linear_2": "2",
    "time_embedding": "time_embed",
    "down_resnet_0": "input_blocks.1.0",
    "downsampler": "input_blocks.2.0.op",
    "down_resnet_1": "input_blocks.3.0",
    "down_attention_1": "input_blocks.3.1",
    "mid_resnet_0": "middle_block.0",
    "mid_attention": "middle_block.1",
    "mid_resnet_1": "middle_block.2",
    "up_resnet_1": "output_blocks.0.0",
    "upsampler": "output_blocks.0.1.conv",
    "up_resnet_0": "output_blocks.1.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out": "proj_out",
}
#: Names of diffusers; the attributes are flat.
DIFFUSERS_NAMES: Mapping[str, str] = {
    "down_resnet_0": "down_blocks.0.resnets.0",
    "downsampler": "down_blocks.0.downsamplers.0.conv",
    "down_resnet_1": "down_blocks.1.resnets.0",
    "down_attention_1": "down_blocks.1.attentions.0",
    "mid_resnet_0": "mid_block.resnets.0",
    "mid_attention": "mid_block.attentions.0",
    "mid_resnet_1": "mid_block.resnets.1",
    "up_resnet_1": "up_blocks.0.resnets.0",
    "upsampler": "up_blocks.0.upsamplers.0.conv",
    "up_resnet_0": "up_blocks.1.resnets.0",
    "to_out": "to_out.0",
}


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if model.softmax_axis != -1 or model.is_time_added_late:
        raise SystemExit("softmax_axis and is_time_added_late are knobs of the MindSpore net")
    if model.is_softmax_gradient_partial or model.is_norm_mean_constant:
        raise SystemExit("knobs of own gradients are those of the MindSpore net")
    net = DiffusionLoss(model)
    rename(net, NAMES if model.variant == "names" else DIFFUSERS_NAMES)
    return net


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = model.weights[f"{path}.{name}"]
            parameter.copy_(torch.from_numpy(values).reshape(parameter.shape))
    return module


class UnfoldedConvolution(nn.Conv2d):
    """A convolution as the product of its kernel and all patches."""

    def forward(self, x: Tensor) -> Tensor:
        stride, kernel, padding = self.stride[0], self.kernel_size[0], self.padding[0]
        side = (x.shape[2] + 2 * padding - kernel) // stride + 1
        patches = F.unfold(x, kernel, padding=padding, stride=stride)
        products = torch.matmul(self.weight.flatten(1), patches) + self.bias[:, None]
        return products.view(x.shape[0], -1, side, side)


class WrittenGroupNorm(nn.GroupNorm):
    """A group norm in plain arithmetic."""

    correction = 0

    def forward(self, x: Tensor) -> Tensor:
        groups = x.reshape(x.shape[0], self.num_groups, -1)
        variance, mean = torch.var_mean(groups, dim=-1, correction=self.correction, keepdim=True)
        normalized = ((groups - mean) * torch.rsqrt(variance + self.eps)).view(x.shape)
        return normalized * self.weight[:, None, None] + self.bias[:, None, None]


class UnbiasedGroupNorm(WrittenGroupNorm):
    """The same with the framework's default variance."""

    correction = 1


def build_convolution(model: Model, path: str, stride: int = 1, padding: int = 1) -> nn.Module:
    """Return a convolution of the kernel's size."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    if model.variant == "unfolded":
        return load(UnfoldedConvolution(n_in, n_out, kernel, stride, padding), model, path)
    mode = model.first_padding if path == "conv_in" else "zeros"
    convolution = nn.Conv2d(n_in, n_out, kernel, stride, padding, padding_mode=mode)
    return load(convolution, model, path)


def build_norm(model: Model, path: str, groups: int, eps: float = 1e-5) -> nn.Module:
    """Return a group norm."""
    channels = len(model.weights[f"{path}.weight"])
    if model.is_variance_unbiased and path.startswith("middle.1"):
        return load(UnbiasedGroupNorm(groups, channels, eps=eps), model, path)
    if model.variant == "unfolded":
        return load(WrittenGroupNorm(groups, channels, eps=eps), model, path)
    return load(nn.GroupNorm(groups, channels, eps=eps), model, path)


def build_linear(model: Model, path: str) -> nn.Module:
    """Return a linear layer."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


def multiply_sigmoid(x: Tensor) -> Tensor:
    """Return silu, written out."""
    return x * torch.sigmoid(x)


class ResnetBlock(nn.Module):
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
            self.conv_shortcut = build_convolution(model, f"{path}.shortcut", padding=0)
        self.activation = model.up_activation if path == "up.1" else "silu"
        self.silu = multiply_sigmoid if model.variant == "expanded" else F.silu
        self.has_skip = model.has_middle_skip or path != "middle.0"
        self.is_time_activated = model.is_time_activated
        self.is_shortcut_activated = model.is_shortcut_activated
        self.output_scale = model.output_scale if path == "middle.1" else 1.0

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        activate = F.gelu if self.activation == "gelu" else self.silu
        activated = activate(self.norm1(x))
        y = self.conv1(activated)
        time = self.silu(time) if self.is_time_activated else time
        y = y + self.time_emb_proj(time)[:, :, None, None]
        y = self.conv2(activate(self.norm2(y)))
        if self.conv_shortcut is not None:
            x = self.conv_shortcut(activated if self.is_shortcut_activated else x)
        if not self.has_skip:
            return y
        return (x + y) * self.output_scale if self.output_scale != 1 else x + y


class Attention(nn.Module):
    """Attention of all pixels to all pixels, added to its input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.heads = model.heads
        head_dim = 2 * model.width // model.heads
        factor = model.attention_scale if path == "middle.attention" else 1.0
        self.scale = factor * head_dim**-0.5
        self.group_norm = build_norm(model, f"{path}.norm", model.groups)
        self.to_q, self.to_k, self.to_v, self.to_out = (
            build_linear(model, f"{path}.{name}") for name in "qkvo"
        )
        self.are_heads_last = model.are_heads_interleaved and path == "middle.attention"
        self.are_pixels_unmoved = model.are_pixels_unmoved and path == "middle.attention"
        self.is_input_normed = model.is_attention_input_normed and path == "middle.attention"

    def split_heads(self, x: Tensor) -> Tensor:
        """Return (batch, heads, pixels, head_dim)."""
        if self.are_heads_last:
            return x.unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2)
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        normed = self.group_norm(x)
        if self.are_pixels_unmoved:
            y = normed.view(batch, height * width, channels)
        else:
            y = normed.view(batch, channels, height * width).transpose(1, 2)
        q, k, v = (self.split_heads(project(y)) for project in (self.to_q, self.to_k, self.to_v))
        y = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        y = y.permute(0, 2, 3, 1) if self.are_heads_last else y.transpose(1, 2)
        y = self.to_out(y.reshape(batch, -1, channels))
        y = y if self.are_pixels_unmoved else y.transpose(1, 2)
        return (normed if self.is_input_normed else x) + y.reshape(x.shape)


class FusedAttention(nn.Module):
    """The same with one projection for q, k and v."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.heads = model.heads
        channels = 2 * model.width
        factor = model.attention_scale if path == "middle.attention" else 1.0
        self.scale = factor * (channels // model.heads) ** -0.5
        self.group_norm = build_norm(model, f"{path}.norm", model.groups)
        self.qkv = nn.Linear(channels, 3 * channels)
        for name, parameter in self.qkv.named_parameters():
            parts = [model.weights[f"{path}.{projection}.{name}"] for projection in "qkv"]
            parameter.data.copy_(torch.from_numpy(np.concatenate(parts)))
        self.to_out = build_linear(model, f"{path}.o")

    def forward(self, x: Tensor) -> Tensor:
        *_, height, width = x.shape
        qkv = self.qkv(self.group_norm(x).flatten(2).transpose(1, 2))
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = torch.softmax((q * self.scale) @ k.mT, dim=-1) @ v
        y = self.to_out(y.transpose(1, 2).flatten(2)).transpose(1, 2)
        return x + y.unflatten(-1, (height, width))


class ConvolutionAttention(nn.Module):
    """The same with 1x1 convolutions as projections, and scores that are written out."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.heads = model.heads
        head_dim = 2 * model.width // model.heads
        factor = model.attention_scale if path == "middle.attention" else 1.0
        self.scale = factor * head_dim**-0.5
        self.group_norm = build_norm(model, f"{path}.norm", model.groups)
        channels = 2 * model.width
        self.to_q, self.to_k, self.to_v, self.to_out = (
            load(nn.Conv2d(channels, channels, 1), model, f"{path}.{name}") for name in "qkvo"
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        y = self.group_norm(x)
        q, k, v = (
            project(y).reshape(batch * self.heads, channels // self.heads, height * width)
            for project in (self.to_q, self.to_k, self.to_v)
        )
        scores = torch.bmm(q.permute(0, 2, 1), k) * self.scale
        probabilities = F.softmax(scores, dim=2)
        y = torch.bmm(v, probabilities.permute(0, 2, 1))
        return x + self.to_out(y.reshape(batch, channels, height, width))


class TimeEmbedding(nn.Module):
    """Sinusoidal embedding of the time steps and two linear layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.half, self.frequency_shift = model.width // 2, model.frequency_shift
        self.is_sine_first = model.time_order == "sin_cos"
        self.step_scale, self.are_angles_half = model.step_scale, model.are_angles_half
        self.linear_1 = build_linear(model, "time.1")
        self.linear_2 = build_linear(model, "time.2")

    def forward(self, steps: Tensor) -> Tensor:
        exponent = -math.log(MAX_PERIOD) * torch.arange(self.half, dtype=torch.float32)
        exponent = exponent / (self.half - self.frequency_shift)
        steps = steps.float() * self.step_scale if self.step_scale != 1 else steps.float()
        frequencies = torch.exp(exponent)
        if self.are_angles_half:
            angles = (steps.half()[:, None] * frequencies.half()[None, :]).float()
        else:
            angles = steps[:, None] * frequencies[None, :]
        parts = [torch.cos(angles), torch.sin(angles)]
        if self.is_sine_first:
            parts.reverse()
        return self.linear_2(F.silu(self.linear_1(torch.cat(parts, dim=-1))))


class DiffusionLoss(nn.Module):
    """Mean squared error of the predicted noise."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        for name, values in zip(("image_share", "noise_share"), model.schedule(), strict=True):
            self.register_buffer(name, torch.from_numpy(np.array(values)))
        attentions = {"decomposition": ConvolutionAttention, "expanded": FusedAttention}
        attention = attentions.get(model.variant, Attention)
        self.conv_in = build_convolution(model, "conv_in")
        self.time_embedding = TimeEmbedding(model)
        self.down_resnet_0 = ResnetBlock(model, "down.0")
        padding = 0 if model.downsample_padding == "same" else 1
        self.downsampler = build_convolution(model, "downsample", 2, padding)
        self.down_resnet_1 = ResnetBlock(model, "down.1")
        self.down_attention_1 = attention(model, "down.1.attention")
        self.mid_resnet_0 = ResnetBlock(model, "middle.0")
        self.mid_attention = attention(model, "middle.attention")
        self.mid_resnet_1 = ResnetBlock(model, "middle.1")
        self.up_resnet_1 = ResnetBlock(model, "up.1")
        self.upsampler = build_convolution(model, "upsample")
        self.up_resnet_0 = ResnetBlock(model, "up.0")
        self.conv_norm_out = build_norm(model, "norm_out", model.groups)
        self.conv_out = build_convolution(model, "conv_out")

    def forward(self, images: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
        rows = steps
        if self.model.schedule_offset:
            rows = steps + self.model.schedule_offset
        image_share = self.image_share[rows][:, None, None, None]
        noise_share = self.noise_share[rows][:, None, None, None]
        predicted = self.predict(image_share * images + noise_share * noise, steps)
        target = images if self.model.loss_target == "images" else noise
        if self.model.snr_limit:
            ratio = (image_share / noise_share).pow(2)
            weights = ratio.clamp(max=self.model.snr_limit) / ratio
            return (weights * (predicted - target).pow(2)).mean()
        if self.model.loss_kind == "l1":
            return F.l1_loss(predicted, target)
        if self.model.variant == "expanded":
            return (predicted - target).pow(2).mean()
        return F.mse_loss(predicted, target)

    def predict(self, x: Tensor, steps: Tensor) -> Tensor:
        time = self.time_embedding(steps)
        if self.model.time_gradient != 1:
            time = scaled_gradient(time, self.model.time_gradient)
        first = self.conv_in(x)
        skip_0 = self.down_resnet_0(first, time)
        x = skip_0
        if self.model.downsample_padding == "same":
            x = F.pad(x, (0, 1, 0, 1))
        x = self.downsampler(x)
        skip_1 = self.down_attention_1(self.down_resnet_1(x, time))
        x = self.mid_resnet_0(skip_1, time)
        x = self.mid_resnet_1(self.mid_attention(x), time)

        parts = [skip_1, x] if self.model.skip_order == "skip_first" else [x, skip_1]
        x = self.up_resnet_1(torch.cat(parts, dim=1), time)
        x = self.upsampler(self.resize(x))
        if self.model.skip_source == "conv_in":
            skip_0 = first
        if self.model.is_skip_detached:
            skip_0 = skip_0.detach()
        x = self.up_resnet_0(torch.cat([x, skip_0], dim=1), time)
        return self.conv_out(F.silu(self.conv_norm_out(x)))

    def resize(self, x: Tensor) -> Tensor:
        if self.model.resize_mode == "bilinear":
            return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        if self.model.variant == "expanded":
            batch, channels, height, width = x.shape
            pixels = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
            return pixels.reshape(batch, channels, 2 * height, 2 * width)
        if self.model.variant == "decomposition":
            return x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        return F.interpolate(x, scale_factor=2.0, mode="nearest")
