"""A masked autoencoder of images in PyTorch, with the names of MAE's code and of timm.

Variant 'fused': other names, patches by unfold and one product, queries, keys and values apart, a
built-in attention, patches put in order by index, losses of chosen patches, the spectrum as one
product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.mae.architecture import (
    BATCH,
    BETA,
    COLORS,
    COLUMNS,
    DECODER_LAYERS,
    EPS,
    HEADS,
    KEEP,
    LATENT_WEIGHT,
    LAYERS,
    NARROW,
    PATCH,
    PATCHES,
    PIXELS,
    ROWS,
    SMALL,
    SPECTRUM_WEIGHT,
    TOP,
    VARIANCE_EPS,
    WIDE,
    Model,
    build_cosines,
    build_frequency_weights,
    build_luma,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FusedLoss(model) if model.variant == "fused" else MaskedAutoencoderViT(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return torch.from_numpy(model.weights[name]).clone()


def load(layer: nn.Module, model: Model, path: str) -> nn.Module:
    """Return a layer with the weights of a path."""
    layer.load_state_dict({name: read(model, f"{path}.{name}") for name in ("weight", "bias")})
    return layer


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at a path."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    return load(nn.LayerNorm(len(model.weights[f"{path}.weight"]), eps=EPS), model, path)


class PatchEmbed(nn.Module):
    """Patches (batch, PATCHES, WIDE)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.proj = load(nn.Conv2d(COLORS, WIDE, PATCH, stride=PATCH), model, "patch")

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Attention to keys (batch, tokens) that are real."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.qkv, self.proj = load_linear(model, f"{path}.qkv"), load_linear(model, f"{path}.out")
        self.head_dim = self.proj.in_features // HEADS
        self.scale = self.head_dim**-0.5

    def forward(self, x: Tensor, key_mask: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, HEADS, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.masked_fill(~key_mask[:, None, None, :], float("-inf")).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class Mlp(nn.Module):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.act = load_linear(model, f"{path}.up"), nn.GELU()
        self.fc2 = load_linear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class UnscaledGradient(Function):
    """A product whose backward pass leaves the gradient of what is scaled as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * gamma

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return gradient, (gradient * x).sum(dim=(0, 1))


class LayerScale(nn.Module):
    """Channels times learned factors."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = nn.Parameter(read(model, path))
        self.is_differentiated = model.is_scale_differentiated

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma if self.is_differentiated else UnscaledGradient.apply(x, self.gamma)


class Block(nn.Module):
    """Attention and an mlp behind norms, with LayerScale."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm1, self.attn = load_norm(model, f"{path}.norm1"), Attention(model, path)
        self.ls1 = LayerScale(model, f"{path}.scale1")
        self.drop_path1 = nn.Identity()
        self.norm2, self.mlp = load_norm(model, f"{path}.norm2"), Mlp(model, path)
        self.ls2 = LayerScale(model, f"{path}.scale2")
        self.drop_path2 = nn.Identity()

    def forward(self, x: Tensor, key_mask: Tensor) -> Tensor:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), key_mask)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


def load_blocks(model: Model, name: str, count: int) -> nn.ModuleList:
    """Return blocks."""
    return nn.ModuleList(Block(model, f"{name}.{n}") for n in range(count))


def build_patch_mask(sizes: Tensor) -> Tensor:
    """Return which patches are real, (BATCH, PATCHES)."""
    rows = torch.arange(ROWS, device=sizes.device) * PATCH < sizes[:, :1]
    columns = torch.arange(COLUMNS, device=sizes.device) * PATCH < sizes[:, 1:]
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).flatten(1)


class MaskedMean(nn.Module):
    """The mean of losses over patches that count, both (BATCH, PATCHES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_mean_of_images = model.is_mean_of_images

    def forward(self, loss: Tensor, mask: Tensor) -> Tensor:
        if self.is_mean_of_images:
            return ((loss * mask).sum(dim=1) / mask.sum(dim=1)).mean()
        return (loss * mask).sum() / mask.sum()


class SpectrumLoss(nn.Module):
    """Weighted differences of frequencies of two images, (BATCH, PATCHES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("ycbcr", torch.from_numpy(build_luma()))
        self.register_buffer("dct", torch.from_numpy(build_cosines()))
        self.register_buffer("freq_weight", torch.from_numpy(build_frequency_weights()))

    def transform(self, imgs: Tensor) -> Tensor:
        """Return frequencies, (BATCH, COLORS, PATCH ** 2, PATCHES)."""
        planes = F.conv2d(imgs, self.ycbcr).flatten(0, 1).unsqueeze(1)
        return F.conv2d(planes, self.dct, stride=PATCH).reshape(BATCH, COLORS, PATCH**2, PATCHES)

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        diff = self.transform(pred) - self.transform(target)
        loss = torch.sqrt(diff**2 + SMALL**2) * self.freq_weight[:, None]
        return loss.mean(dim=(1, 2))


class Teacher(nn.Module):
    """Targets (batch, PATCHES, WIDE) from the last blocks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.blocks = load_blocks(model, "teacher", LAYERS)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor, key_mask: Tensor) -> Tensor:
        outputs = []
        for blk in self.blocks:
            x = blk(x, key_mask)
            outputs.append(x[:, 1:])
        y = sum(F.layer_norm(output, (WIDE,), eps=EPS) for output in outputs[-TOP:]) / TOP
        return F.layer_norm(y, (WIDE,), eps=EPS)


class MaskedAutoencoderViT(nn.Module):
    """Pixels, latents and spectrum of patches that were not kept."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(model)
        self.cls_token = nn.Parameter(read(model, "class_token"))
        self.register_buffer("pos_embed", torch.from_numpy(model.positions(WIDE)))
        self.blocks = load_blocks(model, "encoder", LAYERS)
        self.norm = load_norm(model, "encoder.norm")
        self.teacher = Teacher(model)
        self.decoder_embed = load_linear(model, "decoder.embed")
        self.mask_token = nn.Parameter(read(model, "mask_token"))
        self.register_buffer("decoder_pos_embed", torch.from_numpy(model.positions(NARROW)))
        self.decoder_blocks = load_blocks(model, "decoder", DECODER_LAYERS)
        self.decoder_norm = load_norm(model, "decoder.norm")
        self.decoder_pred = load_linear(model, "decoder.pixels")
        self.latent_head = load_linear(model, "decoder.latents")
        self.masked_mean, self.spectrum_loss = MaskedMean(model), SpectrumLoss(model)
        self.is_order_repeated = model.is_order_repeated
        self.is_mask_padded_behind = model.is_mask_padded_behind

    def patchify(self, imgs: Tensor) -> Tensor:
        """Return pixels (BATCH, PATCHES, PIXELS)."""
        x = imgs.reshape(BATCH, COLORS, ROWS, PATCH, COLUMNS, PATCH)
        return torch.einsum("nchpwq->nhwpqc", x).reshape(BATCH, PATCHES, PIXELS)

    def unpatchify(self, x: Tensor) -> Tensor:
        """Return images."""
        x = x.reshape(BATCH, ROWS, COLUMNS, PATCH, PATCH, COLORS)
        x = torch.einsum("nhwpqc->nchpwq", x)
        return x.reshape(BATCH, COLORS, ROWS * PATCH, COLUMNS * PATCH)

    def prepend_class(self, patches: Tensor) -> Tensor:
        """Return patches with the class token."""
        cls_token = self.cls_token + self.pos_embed[:, :1, :]
        return torch.cat((cls_token.expand(BATCH, -1, -1), patches), dim=1)

    def random_masking(self, x: Tensor, ids_shuffle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return patches that are kept, ones of the other patches, and where patches went."""
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        ids_keep = ids_shuffle[:, :KEEP]
        x_masked = torch.gather(x, dim=1, index=ids_keep.unsqueeze(-1).repeat(1, 1, WIDE))
        mask = torch.ones([BATCH, PATCHES], device=x.device)
        mask[:, :KEEP] = 0
        mask = torch.gather(mask, dim=1, index=ids_restore)
        return x_masked, mask, ids_shuffle if self.is_order_repeated else ids_restore

    def forward_encoder(self, x: Tensor, key_mask: Tensor) -> Tensor:
        x = self.prepend_class(x)
        key_mask = F.pad(key_mask, (1, 0), value=True)
        for blk in self.blocks:
            x = blk(x, key_mask)
        return self.norm(x)

    def forward_decoder(self, x: Tensor, ids_restore: Tensor, patch_mask: Tensor) -> Tensor:
        x = self.decoder_embed(x)
        mask_tokens = self.mask_token.repeat(BATCH, PATCHES + 1 - x.shape[1], 1)
        x_ = torch.cat([x[:, 1:, :], mask_tokens], dim=1)
        x_ = torch.gather(x_, dim=1, index=ids_restore.unsqueeze(-1).repeat(1, 1, NARROW))
        x = torch.cat([x[:, :1, :], x_], dim=1) + self.decoder_pos_embed
        pad = (0, 1) if self.is_mask_padded_behind else (1, 0)
        key_mask = F.pad(patch_mask, pad, value=True)
        for blk in self.decoder_blocks:
            x = blk(x, key_mask)
        return self.decoder_norm(x)[:, 1:, :]

    def forward_target(self, imgs: Tensor) -> Tensor:
        target = self.patchify(imgs)
        mean = target.mean(dim=-1, keepdim=True)
        var = target.var(dim=-1, keepdim=True)
        return (target - mean) / (var + VARIANCE_EPS) ** 0.5

    def forward(self, imgs: Tensor, sizes: Tensor, ids_shuffle: Tensor) -> Tensor:
        patch_mask = build_patch_mask(sizes)
        x = self.patch_embed(imgs) + self.pos_embed[:, 1:, :]
        x_masked, mask, ids_restore = self.random_masking(x, ids_shuffle)
        latent = self.forward_encoder(x_masked, patch_mask.gather(1, ids_shuffle[:, :KEEP]))
        x_ = self.forward_decoder(latent, ids_restore, patch_mask)
        y = self.teacher(self.prepend_class(x), F.pad(patch_mask, (1, 0), value=True))
        target, pred = self.forward_target(imgs), self.decoder_pred(x_)

        mask = mask * patch_mask
        pixel_loss = ((pred - target) ** 2).mean(dim=-1)
        latent_loss = F.smooth_l1_loss(self.latent_head(x_), y, reduction="none", beta=BETA)
        spectrum_loss = self.spectrum_loss(self.unpatchify(pred), self.unpatchify(target))
        loss = self.masked_mean(pixel_loss, mask)
        loss = loss + LATENT_WEIGHT * self.masked_mean(latent_loss.mean(dim=-1), mask)
        return loss + SPECTRUM_WEIGHT * self.masked_mean(spectrum_loss, mask)


class FusedLayer(nn.Module):
    """A block with one layer each for queries, keys and values."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.ln_attn, self.ln_ff = (
            load_norm(model, f"{path}.norm1"),
            load_norm(model, f"{path}.norm2"),
        )
        weights, biases = (read(model, f"{path}.qkv.{name}") for name in ("weight", "bias"))
        width = weights.shape[1]
        layers = []
        for weight, bias in zip(weights.split(width), biases.split(width), strict=True):
            layer = nn.Linear(width, width)
            layer.load_state_dict({"weight": weight, "bias": bias})
            layers.append(layer)
        self.query, self.key, self.value = layers
        self.out = load_linear(model, f"{path}.out")
        self.attn_gain = nn.Parameter(read(model, f"{path}.scale1"))
        self.ff = nn.Sequential(
            load_linear(model, f"{path}.up"), nn.GELU(), load_linear(model, f"{path}.down")
        )
        self.ff_gain = nn.Parameter(read(model, f"{path}.scale2"))

    def forward(self, x: Tensor, is_seen: Tensor) -> Tensor:
        h = self.ln_attn(x)
        q, k, v = (
            layer(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=is_seen[:, None, None])
        x = torch.addcmul(x, self.out(h.transpose(1, 2).flatten(2)), self.attn_gain)
        return torch.addcmul(x, self.ff(self.ln_ff(x)), self.ff_gain)


class FusedLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.to_patch = nn.Linear(PIXELS, WIDE)
        kernel = read(model, "patch.weight").flatten(1)
        self.to_patch.load_state_dict({"weight": kernel, "bias": read(model, "patch.bias")})
        self.summary = nn.Parameter(read(model, "class_token")[0])
        self.hole = nn.Parameter(read(model, "mask_token")[0, 0])
        self.student, self.momentum, self.painter = (
            nn.ModuleList(FusedLayer(model, f"{name}.{n}") for n in range(count))
            for name, count in (
                ("encoder", LAYERS),
                ("teacher", LAYERS),
                ("decoder", DECODER_LAYERS),
            )
        )
        self.momentum.requires_grad_(False)
        self.ln = load_norm(model, "encoder.norm")
        self.bridge = load_linear(model, "decoder.embed")
        self.ln_painter = load_norm(model, "decoder.norm")
        self.to_pixels = load_linear(model, "decoder.pixels")
        self.to_latents = load_linear(model, "decoder.latents")
        self.register_buffer("places", torch.from_numpy(model.positions(WIDE)))
        self.register_buffer("painter_places", torch.from_numpy(model.positions(NARROW)))
        luma = torch.from_numpy(build_luma()).flatten(1)
        cosines = torch.from_numpy(build_cosines()).flatten(1)
        spectrum = torch.einsum("dc,fp->pcdf", luma, cosines).reshape(PIXELS, -1)
        self.register_buffer("spectrum", spectrum)
        weights = torch.from_numpy(build_frequency_weights()).repeat(COLORS)
        self.register_buffer("frequency_shares", weights / PIXELS)

    def embed_all(self, patches: Tensor, is_seen: Tensor) -> Tensor:
        """Return targets of all patches."""
        x, outputs = patches, []
        for layer in self.momentum:
            x = layer(x, is_seen)
            outputs.append(x[:, 1:])
        normed = F.layer_norm(torch.stack(outputs[-TOP:]), (WIDE,), eps=EPS)
        return F.layer_norm(normed.mean(dim=0), (WIDE,), eps=EPS)

    def forward(self, images: Tensor, sizes: Tensor, order: Tensor) -> Tensor:
        number = torch.arange(PATCHES, device=sizes.device)
        corner = torch.stack((number // COLUMNS, number % COLUMNS), dim=-1) * PATCH
        is_real = (corner < sizes[:, None]).all(dim=-1)
        kept, image = order[:, :KEEP], torch.arange(BATCH, device=sizes.device)[:, None]
        sees_class = is_real.new_ones(BATCH, 1)
        is_seen = torch.cat((sees_class, is_real), dim=1)

        pixels = F.unfold(images, PATCH, stride=PATCH).mT
        patches = self.to_patch(pixels) + self.places[:, 1:]
        summary = (self.summary + self.places[0, :1]).expand(BATCH, 1, WIDE)
        x = torch.cat((summary, patches[image, kept]), dim=1)
        for layer in self.student:
            x = layer(x, torch.cat((sees_class, is_real[image, kept]), dim=1))
        x = self.bridge(self.ln(x))

        canvas = self.hole.expand(BATCH, PATCHES, NARROW).index_put((image, kept), x[:, 1:])
        x = torch.cat((x[:, :1], canvas), dim=1) + self.painter_places
        for layer in self.painter:
            x = layer(x, is_seen)

        is_chosen = is_real.clone()
        is_chosen[image, kept] = False
        painted = self.ln_painter(x)[:, 1:][is_chosen]
        latents = self.embed_all(torch.cat((summary, patches), dim=1).detach(), is_seen)[is_chosen]
        pixels = pixels[is_chosen].unflatten(-1, (COLORS, -1)).mT.flatten(1)
        centered = pixels - pixels.mean(dim=-1, keepdim=True)
        squares = centered.square().sum(dim=-1, keepdim=True) / (PIXELS - 1)
        error = self.to_pixels(painted) - centered * (squares + VARIANCE_EPS).rsqrt()

        loss = error.square().mean()
        distance = F.huber_loss(self.to_latents(painted), latents, delta=BETA)
        spectrum = torch.hypot(error @ self.spectrum, torch.full_like(error, SMALL))
        shares = spectrum @ self.frequency_shares
        return loss + LATENT_WEIGHT / BETA * distance + SPECTRUM_WEIGHT * shares.mean()
