"""The classifier in PyTorch, with timm's modules; tokens stay (batch, height, width, channels).

Variant 'fused': the framework's fused attention, with bias and mask as one tensor, windows by
einsum, and its cross entropy of soft targets.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.swin.architecture import (
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


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return MixupLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, _ in list(module.named_parameters()):
        setattr(module, name, copy_parameter(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str, *, bias: bool = True) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=bias), model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(len(model.weights[f"{path}.weight"]), eps=EPS), model, path)


class WindowAttention(nn.Module):
    """Attention of the tokens of a window to each other, (batch * windows, TOKENS, channels)."""

    def __init__(self, model: Model, path: str, heads: int) -> None:
        super().__init__()
        self.model, self.num_heads = model, heads
        self.relative_position_bias_table = copy_parameter(model.weights[f"{path}.table"])
        index = torch.from_numpy(model.relative_index()).long()
        self.register_buffer("relative_position_index", index)
        channels = len(model.weights[f"{path}.q.bias"])
        self.head_dim = channels // heads
        self.scale = (channels if model.is_scale_of_channels else self.head_dim) ** -0.5
        self.qkv = nn.Linear(channels, 3 * channels)
        for kind in ("weight", "bias"):
            parts = [model.weights[f"{path}.{name}.{kind}"] for name in "qkv"]
            setattr(self.qkv, kind, copy_parameter(np.concatenate(parts)))
        self.proj = load_linear(model, f"{path}.o")

    def get_bias(self) -> Tensor:
        """Return what is added to the scores, (1, heads, TOKENS, TOKENS)."""
        table = self.relative_position_bias_table.view(-1, self.num_heads)
        bias = table[self.relative_position_index.view(-1)].view(TOKENS, TOKENS, -1)
        bias = bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        return bias.detach() if self.model.are_tables_stopped else bias

    def add_mask(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Return scores (batch * windows, heads, TOKENS, TOKENS) of shifted windows."""
        n_windows = len(mask)
        if self.model.is_mask_of_images:
            return scores + mask.repeat_interleave(len(scores) // n_windows, dim=0).unsqueeze(1)
        by_image = scores.view(-1, n_windows, self.num_heads, TOKENS, TOKENS)
        by_image = by_image + mask.unsqueeze(1).unsqueeze(0)
        return by_image.view(-1, self.num_heads, TOKENS, TOKENS)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        qkv = self.qkv(x).reshape(len(x), TOKENS, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.model.variant == "fused":
            bias = self.get_bias()
            if mask is not None:
                bias = (bias + mask[:, None]).repeat(len(x) // len(mask), 1, 1, 1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
            return self.proj(y.transpose(1, 2).flatten(2))
        if self.model.is_bias_scaled:
            scores = (q @ k.transpose(-2, -1) + self.get_bias()) * self.scale
        else:
            scores = (q * self.scale) @ k.transpose(-2, -1) + self.get_bias()
        if mask is not None:
            scores = self.add_mask(scores, mask)
        y = scores.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = load_linear(model, f"{path}.up"), load_linear(model, f"{path}.down")
        self.act = nn.GELU(approximate="tanh" if model.is_gelu_approximate else "none")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class DropPath(nn.Module):
    """Branches of the images that are kept, zeros for the others."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gradient = model.drop_gradient
        self.scale_by_keep = model.is_kept_scaled

    def forward(self, x: Tensor, is_kept: Tensor) -> Tensor:
        if self.gradient != 1:
            x = scaled_gradient(x, self.gradient)
        mask = is_kept.view(-1, 1, 1, 1)
        return x * (mask / KEEP if self.scale_by_keep else mask)


class _RepeatedRoll(torch.autograd.Function):
    @staticmethod
    def forward(context, x: Tensor, shift: int) -> Tensor:
        context.shift = shift
        return torch.roll(x, shifts=(shift, shift), dims=(1, 2))

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        # by index: no recorder sees inside a kernel
        cells = gradient.shape[1]
        sources = [(cell - context.shift) % cells for cell in range(cells)]
        return gradient[:, sources][:, :, sources], None


class RepeatedRoll(nn.Module):
    """Rows and columns moved; the gradient moves as they do."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return _RepeatedRoll.apply(x, self.shift)


class SwinTransformerBlock(nn.Module):
    """Attention in windows, and mlp, each after a norm."""

    def __init__(self, model: Model, stage: int, n: int) -> None:
        super().__init__()
        path, self.cells = f"stages.{stage}.blocks.{n}", CELLS[stage]
        self.shift = SHIFT if n % 2 else 0
        self.norm1 = load_norm(model, f"{path}.norm1")
        self.attn = WindowAttention(model, f"{path}.attention", HEADS[stage])
        self.gamma_1 = copy_parameter(model.weights[f"{path}.gamma1"])
        self.norm2 = load_norm(model, f"{path}.norm2")
        self.mlp = Mlp(model, f"{path}.mlp")
        self.gamma_2 = copy_parameter(model.weights[f"{path}.gamma2"])
        self.drop_path = DropPath(model)
        self.mlp_mask = 0 if model.is_mask_shared else 1
        mask = torch.from_numpy(model.mask(stage)) if self.shift else None
        self.register_buffer("attn_mask", mask)
        self.shift_back = -self.shift if model.is_shift_repeated else self.shift
        self.is_einsum = model.variant == "fused"
        self.are_windows_moved = model.are_windows_moved
        self.repeated_roll = None
        if self.shift and model.is_shift_gradient_repeated:
            self.repeated_roll = RepeatedRoll(-self.shift)

    def partition(self, x: Tensor) -> Tensor:
        """Return (batch * windows, TOKENS, channels)."""
        n, channels = self.cells // WINDOW, x.shape[-1]
        x = x.view(-1, n, WINDOW, n, WINDOW, channels)
        if self.are_windows_moved:
            x = torch.einsum("bhiwjc->bhwijc", x) if self.is_einsum else x.permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, TOKENS, channels)

    def reverse(self, windows: Tensor) -> Tensor:
        """Return (batch, height, width, channels)."""
        n, channels = self.cells // WINDOW, windows.shape[-1]
        x = windows.view(-1, n, n, WINDOW, WINDOW, channels)
        if self.are_windows_moved:
            x = torch.einsum("bhwijc->bhiwjc", x) if self.is_einsum else x.permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, self.cells, self.cells, channels)

    def attend(self, x: Tensor) -> Tensor:
        if self.repeated_roll is not None:
            x = self.repeated_roll(x)
        elif self.shift:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = self.reverse(self.attn(self.partition(x), self.attn_mask))
        if self.shift:
            x = torch.roll(x, shifts=(self.shift_back, self.shift_back), dims=(1, 2))
        return x

    def forward(self, x: Tensor, is_kept: Tensor) -> Tensor:
        x = x + self.drop_path(self.gamma_1 * self.attend(self.norm1(x)), is_kept[0])
        return x + self.drop_path(self.gamma_2 * self.mlp(self.norm2(x)), is_kept[self.mlp_mask])


class PatchMerging(nn.Module):
    """Four neighbors joined, normed and reduced."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load_norm(model, "merging.norm")
        self.reduction = load_linear(model, "merging.reduction", bias=False)
        self.is_by_row = model.is_merged_by_row

    def forward(self, x: Tensor) -> Tensor:
        lower, right = x[:, 1::2, 0::2, :], x[:, 0::2, 1::2, :]
        middle = [right, lower] if self.is_by_row else [lower, right]
        x = torch.cat([x[:, 0::2, 0::2, :], *middle, x[:, 1::2, 1::2, :]], dim=-1)
        return self.reduction(self.norm(x))


class PatchEmbed(nn.Module):
    """Patches (batch, height, width, channels) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        proj = nn.Conv2d(3, CHANNELS[0], kernel_size=PATCH, stride=PATCH)
        self.proj = load(proj, model, "patch")
        self.norm = load_norm(model, "patch.norm")

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.proj(images).permute(0, 2, 3, 1))


class SwinTransformer(nn.Module):
    """Logits of images, (batch, CLASSES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(model)
        self.downsample = PatchMerging(model)
        blocks = [SwinTransformerBlock(model, s, n) for s in range(STAGES) for n in range(BLOCKS)]
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = load_norm(model, "norm"), load_linear(model, "head")
        self.is_pooled_first = model.is_pooled_first

    def forward(self, images: Tensor, is_kept: Tensor) -> Tensor:
        x = self.patch_embed(images)
        for n, block in enumerate(self.blocks):
            if n == BLOCKS:
                x = self.downsample(x)
            x = block(x, is_kept[n])
        if self.is_pooled_first:
            return self.head(self.norm(x.mean(dim=(1, 2))))
        return self.head(self.norm(x).mean(dim=(1, 2)))


class MixupLoss(nn.Module):
    """Cross entropy of images and labels that are mixed with those of the reversed batch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = SwinTransformer(model)
        self.on_value, self.off_value = model.smoothed_values()
        self.is_fused = model.variant == "fused"
        self.are_labels_rolled = model.are_labels_rolled

    def mix_targets(self, labels: Tensor) -> Tensor:
        """Return the probabilities of the classes, (batch, CLASSES)."""
        targets = torch.full((len(labels), CLASSES), self.off_value)
        targets = targets.scatter(1, labels[:, None], self.on_value)
        own = targets * MIXED
        others = targets.roll(1, 0) if self.are_labels_rolled else targets.flip(0)
        return own + others * (1 - MIXED)

    def forward(self, images: Tensor, labels: Tensor, is_kept: Tensor) -> Tensor:
        images = images * MIXED + images.flip(0) * (1 - MIXED)
        targets, logits = self.mix_targets(labels), self.backbone(images, is_kept)
        if self.is_fused:
            return F.cross_entropy(logits, targets)
        return torch.sum(-targets * F.log_softmax(logits, dim=-1), dim=-1).mean()
