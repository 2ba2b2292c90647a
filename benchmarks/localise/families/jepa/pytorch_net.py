"""A joint-embedding predictive model of images in PyTorch, with the names of I-JEPA's code.

Variant 'transformers': modules of Hugging Face's IJepaModel, queries, keys and values apart, a
built-in attention, patches chosen by index, target blocks image by image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.jepa.architecture import (
    BATCH,
    BLOCKS,
    COLORS,
    EPS,
    HEADS,
    LAYERS,
    NARROW,
    PATCH,
    PREDICTOR_LAYERS,
    SIZE,
    SPREAD,
    SPREAD_EPS,
    SPREAD_WEIGHT,
    TARGET_EPS,
    WIDE,
    Model,
    build_positions,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return IJepaForPreTraining(model) if model.variant == "transformers" else JEPA(model)


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


def apply_masks(x: Tensor, masks: list[Tensor]) -> Tensor:
    """Return the patches of each mask (batch, patches), one mask after the other."""
    all_x = []
    for m in masks:
        mask_keep = m.unsqueeze(-1).repeat(1, 1, x.size(-1))
        all_x += [torch.gather(x, dim=1, index=mask_keep)]
    return torch.cat(all_x, dim=0)


class PatchEmbed(nn.Module):
    """Patches (batch, PATCHES, WIDE)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        conv = nn.Conv2d(COLORS, WIDE, kernel_size=PATCH, stride=PATCH)
        self.proj = load(conv, model, f"{path}.patch")

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Attention of all tokens to all tokens, and its map."""

    def __init__(self, model: Model, path: str, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = load_linear(model, f"{path}.qkv"), load_linear(model, f"{path}.out")
        self.scale = (self.proj.in_features // num_heads) ** -0.5
        self.is_map_detached = model.are_maps_detached and path.startswith("context")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        if self.is_map_detached:
            attn = attn.detach()
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x), attn


class MLP(nn.Module):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.act = load_linear(model, f"{path}.up"), nn.GELU()
        self.fc2 = load_linear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Attention and an mlp behind norms."""

    def __init__(self, model: Model, path: str, num_heads: int) -> None:
        super().__init__()
        self.norm1 = load_norm(model, f"{path}.norm1")
        self.attn = Attention(model, path, num_heads)
        self.norm2, self.mlp = load_norm(model, f"{path}.norm2"), MLP(model, path)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attn(self.norm1(x))
        x = x + y
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Features of all patches, or of those of masks."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(model, path)
        self.pos_embed = nn.Parameter(torch.from_numpy(model.positions()), requires_grad=False)
        self.blocks = nn.ModuleList(Block(model, f"{path}.{n}", HEADS) for n in range(LAYERS))
        self.norm = load_norm(model, f"{path}.norm")

    def forward(self, x: Tensor, masks: list[Tensor] | None = None) -> Tensor:
        x = self.patch_embed(x) + self.pos_embed
        if masks is not None:
            x = apply_masks(x, masks)
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)


class VisionTransformerPredictor(nn.Module):
    """Predictions of target blocks, (BLOCKS * BATCH, SIZE, WIDE)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.predictor_embed = load_linear(model, "predictor.embed")
        self.mask_token = nn.Parameter(read(model, "mask_token"))
        positions = torch.from_numpy(build_positions(NARROW))
        self.predictor_pos_embed = nn.Parameter(positions, requires_grad=False)
        self.predictor_blocks = nn.ModuleList(
            Block(model, f"predictor.{n}", model.predictor_heads) for n in range(PREDICTOR_LAYERS)
        )
        self.predictor_norm = load_norm(model, "predictor.norm")
        self.predictor_proj = load_linear(model, "predictor.proj")

    def forward(self, x: Tensor, masks_x: list[Tensor], masks: list[Tensor]) -> Tensor:
        B = len(x) // len(masks_x)
        x = self.predictor_embed(x)
        pos_embed = self.predictor_pos_embed.repeat(B, 1, 1)
        x = x + apply_masks(pos_embed, masks_x)
        _, N_ctxt, _ = x.shape

        pos_embs = apply_masks(pos_embed, masks)
        pred_tokens = self.mask_token.repeat(pos_embs.size(0), pos_embs.size(1), 1)
        pred_tokens = pred_tokens + pos_embs
        x = x.repeat(len(masks), 1, 1)
        x = torch.cat([x, pred_tokens], dim=1)
        for blk in self.predictor_blocks:
            x = blk(x)
        x = self.predictor_norm(x)
        return self.predictor_proj(x[:, N_ctxt:])


class JEPA(nn.Module):
    """Predictions of the target encoder's features, and their spread."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = VisionTransformer(model, "context")
        self.predictor = VisionTransformerPredictor(model)
        self.target_encoder = VisionTransformer(model, "target")
        for p in self.target_encoder.parameters():
            p.requires_grad = False
        self.is_hinge_first = model.is_hinge_first
        self.use_bfloat16 = model.is_target_half

    def forward_target(self, imgs: Tensor, masks_pred: list[Tensor]) -> Tensor:
        with torch.no_grad():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.use_bfloat16):
                h = self.target_encoder(imgs)
            h = F.layer_norm(h, (h.size(-1),), eps=TARGET_EPS)
            return apply_masks(h, masks_pred)

    def reg_fn(self, z: Tensor) -> Tensor:
        """Return what the deviations of predictions in their blocks lack to SPREAD."""
        stds = [torch.sqrt(zi.var(dim=1) + SPREAD_EPS) for zi in z.chunk(BLOCKS)]
        if self.is_hinge_first:
            return sum(F.relu(SPREAD - std).mean() for std in stds) / len(stds)
        pstd_z = sum(stds) / len(stds)
        return F.relu(SPREAD - pstd_z).mean()

    def forward(self, imgs: Tensor, mask_enc: Tensor, mask_pred: Tensor) -> Tensor:
        masks_enc, masks_pred = [mask_enc], list(mask_pred.unbind(0))
        h = self.forward_target(imgs, masks_pred)
        z = self.encoder(imgs, masks_enc)
        z = self.predictor(z, masks_enc, masks_pred)
        return F.smooth_l1_loss(z, h) + SPREAD_WEIGHT * self.reg_fn(z)


class IJepaEmbeddings(nn.Module):
    """Patches with their positions, or some of them."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        projection = nn.Conv2d(COLORS, WIDE, kernel_size=PATCH, stride=PATCH)
        self.projection = load(projection, model, f"{path}.patch")
        self.register_buffer("position_embeddings", torch.from_numpy(model.positions())[0])

    def forward(self, pixel_values: Tensor, patch_ids: Tensor | None = None) -> Tensor:
        embeddings = self.projection(pixel_values).flatten(2).transpose(1, 2)
        if patch_ids is None:
            return embeddings + self.position_embeddings
        images = torch.arange(BATCH, device=patch_ids.device).unsqueeze(1)
        return embeddings[images, patch_ids] + self.position_embeddings[patch_ids]


class IJepaSelfAttention(nn.Module):
    """Attention with a layer each for queries, keys and values."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weights, biases = (read(model, f"{path}.qkv.{name}") for name in ("weight", "bias"))
        width = weights.shape[1]
        layers = []
        for weight, bias in zip(weights.split(width), biases.split(width), strict=True):
            layer = nn.Linear(width, width)
            layer.load_state_dict({"weight": weight, "bias": bias})
            layers.append(layer)
        self.query, self.key, self.value = layers
        self.dense = load_linear(model, f"{path}.out")

    def forward(self, hidden_states: Tensor) -> Tensor:
        shape = (*hidden_states.shape[:-1], HEADS, -1)
        key = self.key(hidden_states).view(shape).transpose(1, 2)
        value = self.value(hidden_states).view(shape).transpose(1, 2)
        query = self.query(hidden_states).view(shape).transpose(1, 2)
        context = F.scaled_dot_product_attention(query, key, value)
        return self.dense(context.transpose(1, 2).reshape(hidden_states.shape))


class IJepaLayer(nn.Module):
    """A block with the names of Hugging Face's."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attention = IJepaSelfAttention(model, path)
        self.intermediate = load_linear(model, f"{path}.up")
        self.output = load_linear(model, f"{path}.down")
        self.layernorm_before = load_norm(model, f"{path}.norm1")
        self.layernorm_after = load_norm(model, f"{path}.norm2")

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.attention(self.layernorm_before(hidden_states)) + hidden_states
        layer_output = F.gelu(self.intermediate(self.layernorm_after(hidden_states)))
        return self.output(layer_output) + hidden_states


class IJepaModel(nn.Module):
    """Features of all patches, or of some."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.embeddings = IJepaEmbeddings(model, path)
        self.layer = nn.ModuleList(IJepaLayer(model, f"{path}.{n}") for n in range(LAYERS))
        self.layernorm = load_norm(model, f"{path}.norm")

    def forward(self, pixel_values: Tensor, patch_ids: Tensor | None = None) -> Tensor:
        hidden_states = self.embeddings(pixel_values, patch_ids)
        for layer in self.layer:
            hidden_states = layer(hidden_states)
        return self.layernorm(hidden_states)


class IJepaPredictor(nn.Module):
    """Predictions of target blocks, (BATCH, BLOCKS, SIZE, WIDE)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.proj_in = load_linear(model, "predictor.embed")
        self.mask_token = nn.Parameter(read(model, "mask_token")[0, 0])
        self.register_buffer("position_embeddings", torch.from_numpy(build_positions(NARROW))[0])
        self.layer = nn.ModuleList(
            IJepaLayer(model, f"predictor.{n}") for n in range(PREDICTOR_LAYERS)
        )
        self.layernorm = load_norm(model, "predictor.norm")
        self.proj_out = load_linear(model, "predictor.proj")

    def forward(self, context: Tensor, context_ids: Tensor, target_ids: Tensor) -> Tensor:
        context = self.proj_in(context) + self.position_embeddings[context_ids]
        queries = self.mask_token + self.position_embeddings[target_ids]
        context = context.unsqueeze(1).expand(-1, BLOCKS, -1, -1)
        hidden_states = torch.cat((context, queries), dim=2).flatten(0, 1)
        for layer in self.layer:
            hidden_states = layer(hidden_states)
        prediction = self.proj_out(self.layernorm(hidden_states[:, -SIZE:]))
        return prediction.unflatten(0, (BATCH, BLOCKS))


class IJepaForPreTraining(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ijepa = IJepaModel(model, "context")
        self.ema_ijepa = IJepaModel(model, "target").requires_grad_(False)
        self.predictor = IJepaPredictor(model)

    @torch.no_grad()
    def embed_targets(self, pixel_values: Tensor, target_ids: Tensor) -> Tensor:
        """Return targets (BATCH, BLOCKS, SIZE, WIDE)."""
        images = torch.arange(BATCH, device=target_ids.device)[:, None, None]
        features = self.ema_ijepa(pixel_values)[images, target_ids]
        return F.layer_norm(features, (WIDE,), eps=TARGET_EPS)

    def forward(self, pixel_values: Tensor, context_ids: Tensor, target_ids: Tensor) -> Tensor:
        target_ids = target_ids.transpose(0, 1)
        context = self.ijepa(pixel_values, context_ids)
        prediction = self.predictor(context, context_ids, target_ids)
        target = self.embed_targets(pixel_values, target_ids)
        deviation = (prediction.var(dim=2) + SPREAD_EPS).sqrt().mean(dim=1)
        lack = (SPREAD - deviation).clamp(min=0)
        return F.huber_loss(prediction, target) + SPREAD_WEIGHT * lack.mean()
