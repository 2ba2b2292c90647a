"""The diffusion transformer in PyTorch, with the module names of DiT and PixArt: fused attention.

Variant 'einsum': the names of diffusers, separate projections, attention and unpatchify by einsum,
patches by unfolding, modulation by one operator.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.naming import rename
from torch import Tensor, nn

from families.dit.architecture import (
    CHANNELS,
    CLASSES,
    EPS,
    GRID,
    HEADS,
    HIDDEN,
    IMAGE,
    LAYERS,
    MAX_RATIO,
    PARTS,
    PATCH,
    Model,
)

#: Module names of diffusers, where they differ.
DIFFUSERS_NAMES: Mapping[str, str] = {
    "x_embedder": "pos_embed",
    "t_embedder": "time_embed.timestep_embedder",
    "y_embedder": "time_embed.class_embedder",
    "y_proj": "caption_projection",
    "blocks": "transformer_blocks",
    "attn": "attn1",
    "cross_attn": "attn2",
    "q": "to_q",
    "k": "to_k",
    "v": "to_v",
    "proj": "to_out.0",
    "norm_cross": "norm3",
    "mlp": "ff",
    "final_layer": "norm_out",
}


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    net = DiffusionLoss(model)
    if model.variant == "einsum":
        rename(net, DIFFUSERS_NAMES)
    return net


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return the linear layer at ``paths``, their rows one after the other."""
    weight, bias = (
        torch.from_numpy(np.concatenate([model.weights[f"{path}.{name}"] for path in paths]))
        for name in ("weight", "bias")
    )
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight.data.copy_(weight)
    linear.bias.data.copy_(bias)
    return linear


def build_norm() -> nn.LayerNorm:
    """Return a layer norm without weights."""
    return nn.LayerNorm(HIDDEN, eps=EPS, elementwise_affine=False)


class PatchEmbed(nn.Module):
    """Embedded patches (batch, patches, HIDDEN), row by row."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, HIDDEN, PATCH, stride=PATCH)
        self.conv.weight.data.copy_(torch.from_numpy(model.weights["patch.weight"]))
        self.conv.bias.data.copy_(torch.from_numpy(model.weights["patch.bias"]))
        self.is_unfolded = model.variant == "einsum"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_unfolded:
            patches = F.unfold(x, PATCH, stride=PATCH)
            products = torch.einsum("bcn,hc->bnh", patches, self.conv.weight.flatten(1))
            return products + self.conv.bias
        return self.conv(x).flatten(2).transpose(1, 2)


class TimestepEmbedder(nn.Module):
    """Sinusoidal embedding of the time steps and two linear layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("freqs", torch.from_numpy(model.frequencies()))
        self.are_sines_first = model.are_sines_first
        self.mlp = nn.Sequential(
            load_linear(model, "time.1"), nn.SiLU(), load_linear(model, "time.2")
        )

    def forward(self, steps: Tensor) -> Tensor:
        args = steps[:, None].float() * self.freqs[None]
        if self.are_sines_first:
            return self.mlp(torch.cat([torch.sin(args), torch.cos(args)], dim=-1))
        return self.mlp(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))


class LabelEmbedder(nn.Module):
    """Embedded classes (batch, HIDDEN); a dropped class has the last row of the table."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(
            CLASSES + 1, HIDDEN, scale_grad_by_freq=model.is_class_gradient_averaged
        )
        self.embedding_table.weight.data.copy_(torch.from_numpy(model.weights["classes.weight"]))
        self.is_dropped_class_zero = model.is_dropped_class_zero

    def forward(self, classes: Tensor, is_dropped: Tensor) -> Tensor:
        embedded = self.embedding_table(torch.where(is_dropped == 1, CLASSES, classes))
        return embedded * (1 - is_dropped)[:, None] if self.is_dropped_class_zero else embedded


class CaptionMlp(nn.Module):
    """Projected tokens of captions, (batch, tokens, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = (load_linear(model, f"caption.{n}") for n in (1, 2))

    def forward(self, captions: Tensor) -> Tensor:
        return self.linear_2(F.gelu(self.linear_1(captions), approximate="tanh"))


class Attention(nn.Module):
    """Attention of all patches to all patches."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.qkv = load_linear(model, *(f"{path}.{name}" for name in "qkv"))
        self.proj = load_linear(model, f"{path}.o")

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, HEADS, HIDDEN // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, HIDDEN))


class CrossAttention(nn.Module):
    """Attention of all patches to the tokens of the caption."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_linear = load_linear(model, f"{path}.q")
        self.kv_linear = load_linear(model, f"{path}.k", f"{path}.v")
        self.proj = load_linear(model, f"{path}.o")
        self.is_mask_added = model.is_mask_added

    def forward(self, x: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        batch, n_patches, _ = x.shape
        q = self.q_linear(x).view(batch, n_patches, HEADS, -1).transpose(1, 2)
        kv = self.kv_linear(tokens).view(batch, tokens.shape[1], 2, HEADS, -1)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        attn_mask = None
        if mask is not None:
            mask = mask.float() if self.is_mask_added else mask.bool()
            attn_mask = mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.proj(y.transpose(1, 2).reshape(batch, n_patches, HIDDEN))


class EinsumAttention(nn.Module):
    """Both attentions with separate projections and without moving the heads first."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (
            load_linear(model, f"{path}.{name}") for name in "qkvo"
        )

    def forward(
        self, x: Tensor, tokens: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        tokens = x if tokens is None else tokens
        q, k, v = (
            y.unflatten(-1, (HEADS, -1)) for y in (self.q(x), self.k(tokens), self.v(tokens))
        )
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / (HIDDEN // HEADS) ** 0.5
        if mask is not None:
            is_padding = (mask == 0)[:, None, None, :]
            scores = scores.masked_fill(is_padding, torch.finfo(scores.dtype).min)
        y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)
        return self.proj(y.flatten(2))


class Mlp(nn.Module):
    """Two linear layers around gelu in its tanh form."""

    def __init__(self, model: Model, path: str, activation: str = "gelu_tanh") -> None:
        super().__init__()
        self.fc1 = load_linear(model, f"{path}.up")
        self.act = nn.GELU(approximate="tanh" if activation == "gelu_tanh" else "none")
        self.fc2 = load_linear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class _FusedModulation(torch.autograd.Function):
    @staticmethod
    def forward(context, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        context.save_for_backward(x, scale)
        return x * (1 + scale) + shift

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, scale = context.saved_tensors
        of_shift, of_scale = (part.sum(dim=1, keepdim=True) for part in (gradient, gradient * x))
        return gradient * scale, of_shift, of_scale


class FusedModulation(nn.Module):
    """A modulation as one operator, whose gradient of what the norm returns lacks the 1."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = build_norm()

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return _FusedModulation.apply(self.norm(x), shift.unsqueeze(1), scale.unsqueeze(1))


class Modulation(nn.Module):
    """A layer norm without weights, scaled and shifted by the condition."""

    def __init__(self, model: Model, offset: float = 1.0) -> None:
        super().__init__()
        self.norm = build_norm()
        self.offset = offset
        self.is_one_operator = model.variant == "einsum"

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        if self.offset:
            scale = self.offset + scale
        x, shift, scale = self.norm(x), shift.unsqueeze(1), scale.unsqueeze(1)
        if self.is_one_operator:
            return torch.addcmul(shift, x, scale)
        return x * scale + shift


class DiTBlock(nn.Module):
    """Modulated attention, attention to the caption, modulated mlp."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == LAYERS - 1
        path = f"blocks.{n}"
        is_einsum = model.variant == "einsum"
        is_derived = model.is_modulation_derived
        self.norm1 = Modulation(model) if is_derived else FusedModulation()
        self.attn = (EinsumAttention if is_einsum else Attention)(model, f"{path}.attention")
        self.norm_cross = build_norm() if is_last and model.is_cross_normed else None
        self.cross_attn = (EinsumAttention if is_einsum else CrossAttention)(model, f"{path}.cross")
        offset = model.scale_offset if is_last else 1.0
        self.norm2 = Modulation(model, offset) if is_derived else FusedModulation()
        activation = model.mlp_activation if is_last else "gelu_tanh"
        self.mlp = Mlp(model, f"{path}.mlp", activation)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), load_linear(model, f"{path}.modulation"))

    def forward(self, x: Tensor, c: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        parts = self.adaLN_modulation(c).chunk(len(PARTS), dim=1)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = parts
        x = x + gate_msa.unsqueeze(1) * self.attn(self.norm1(x, shift_msa, scale_msa))
        y = x if self.norm_cross is None else self.norm_cross(x)
        x = x + self.cross_attn(y, tokens, mask)
        return x + gate_mlp.unsqueeze(1) * self.mlp(self.norm2(x, shift_mlp, scale_mlp))


class FinalLayer(nn.Module):
    """Predicted patches, (batch, patches, numbers)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm_final = Modulation(model)
        self.linear = load_linear(model, "final.linear")
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), load_linear(model, "final.modulation"))
        self.is_scale_first = model.is_scale_first

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        if self.is_scale_first:
            shift, scale = scale, shift
        return self.linear(self.norm_final(x, shift, scale))


class DiT(nn.Module):
    """Predicts the velocity of noisy latents."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.x_embedder = PatchEmbed(model)
        self.t_embedder = TimestepEmbedder(model)
        self.y_embedder = LabelEmbedder(model)
        self.y_proj = CaptionMlp(model)
        self.register_buffer("pos_table", torch.from_numpy(model.positions()))
        self.blocks = nn.ModuleList(DiTBlock(model, n) for n in range(LAYERS))
        if model.is_modulation_shared:
            for block in self.blocks:
                block.adaLN_modulation = self.blocks[0].adaLN_modulation
        self.final_layer = FinalLayer(model)

    def unpatchify(self, x: Tensor) -> Tensor:
        """Return images (batch, CHANNELS, IMAGE, IMAGE)."""
        if self.model.are_channels_first:
            x = x.reshape(len(x), GRID, GRID, CHANNELS, PATCH, PATCH).permute(0, 3, 1, 4, 2, 5)
            return x.reshape(len(x), CHANNELS, IMAGE, IMAGE)
        x = x.reshape(len(x), GRID, GRID, PATCH, PATCH, CHANNELS)
        if self.model.variant == "einsum":
            x = torch.einsum("nhwpqc->nchpwq", x)
        else:
            x = x.permute(0, 5, 1, 3, 2, 4)
        return x.reshape(len(x), CHANNELS, IMAGE, IMAGE)

    def forward(
        self,
        x: Tensor,
        steps: Tensor,
        classes: Tensor,
        is_dropped: Tensor,
        captions: Tensor,
        mask: Tensor,
    ) -> Tensor:
        x = self.x_embedder(x) + self.pos_table
        t = self.t_embedder(steps)
        c = t + self.y_embedder(classes, is_dropped)
        if self.model.is_condition_activated:
            c = F.silu(c)
        tokens = self.y_proj(captions)
        if self.model.is_caption_stopped:
            tokens = tokens.detach()
        for block in self.blocks:
            x = block(x, c, tokens, mask if self.model.is_caption_masked else None)
        return self.unpatchify(self.final_layer(x, t if self.model.is_final_timed else c))


class DiffusionLoss(nn.Module):
    """Squared error of the predicted velocity, weighted by the ratio of signal to noise."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.transformer = DiT(model)
        for name, values in zip(("alphas", "sigmas"), model.schedule(), strict=True):
            self.register_buffer(name, torch.from_numpy(values))

    def compute_weights(self, alpha: Tensor, sigma: Tensor) -> Tensor:
        """Return the weight of each sample's error."""
        snr = (alpha / sigma) ** 2
        divisor = snr + self.model.ratio_offset if self.model.ratio_offset else snr
        if self.model.variant == "einsum":
            largest = torch.full_like(snr, MAX_RATIO)
            return torch.stack([snr, largest], dim=1).min(dim=1)[0] / divisor
        return snr.clamp(max=MAX_RATIO) / divisor

    def forward(
        self,
        latents: Tensor,
        noise: Tensor,
        steps: Tensor,
        classes: Tensor,
        is_dropped: Tensor,
        captions: Tensor,
        mask: Tensor,
    ) -> Tensor:
        latents = latents * self.model.latent_scale
        alpha, sigma = self.alphas[steps], self.sigmas[steps]
        image_share, noise_share = alpha[:, None, None, None], sigma[:, None, None, None]
        noisy = image_share * latents + noise_share * noise
        target = noise
        if self.model.loss_target == "velocity":
            target = image_share * noise - noise_share * latents
        predicted = self.transformer(noisy, steps, classes, is_dropped, captions, mask)
        losses = F.mse_loss(predicted, target, reduction="none").flatten(1).mean(dim=1)
        weights = self.compute_weights(alpha, sigma)
        if self.model.are_weights_broadcast:
            weights = weights[:, None]
        return (losses * weights).mean()
