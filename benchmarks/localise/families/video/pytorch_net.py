"""The video classifier in PyTorch, with the module names of TimeSformer.

Variant 'separate': Hugging Face's names; q, k and v apart, fused attention; patches stay (batch,
times, patches, HIDDEN) and the class token is apart; losses written out.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.video.architecture import (
    BLOCKS,
    CHANNELS,
    CLASSES,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    ORDER_WEIGHT,
    PATCHES,
    SMOOTHING,
    TIMES,
    TUBELET,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return VideoTrainer(model) if model.variant == "separate" else MixupLoss(model)


def read(model: Model, name: str) -> nn.Parameter:
    """Return a parameter with the values of a weight."""
    return nn.Parameter(torch.from_numpy(np.array(model.weights[name])))


def build_linear(model: Model, *paths: str) -> nn.Linear:
    """Return the linear layer at ``paths``, the rows of one behind those of the other."""
    weight = torch.cat([read(model, f"{path}.weight").data for path in paths])
    has_bias = f"{paths[0]}.bias" in model.weights
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias)
    linear.weight.data.copy_(weight)
    if has_bias:
        linear.bias.data.copy_(torch.cat([read(model, f"{path}.bias").data for path in paths]))
    return linear


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    norm = nn.LayerNorm(HIDDEN, eps=EPS)
    norm.weight, norm.bias = (read(model, f"{path}.{name}") for name in ("weight", "bias"))
    return norm


def build_tubelets(model: Model) -> nn.Conv3d:
    """Return the convolution that makes tokens of clips."""
    convolution = nn.Conv3d(CHANNELS, HIDDEN, kernel_size=TUBELET, stride=TUBELET)
    convolution.weight, convolution.bias = (
        read(model, "tubelet.weight"),
        read(model, "tubelet.bias"),
    )
    return convolution


class Attention(nn.Module):
    """Attention of all tokens of a row to each other."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.scale = model.scale_dim**-0.5
        self.qkv = build_linear(model, *(f"{path}.{name}" for name in "qkv"))
        self.proj = build_linear(model, f"{path}.o")

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(rows, tokens, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(rows, tokens, HIDDEN))


class Mlp(nn.Module):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1 = build_linear(model, f"{path}.up")
        self.act = nn.GELU()
        self.fc2 = build_linear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Attention over time, attention over space, and mlp, each after a norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.temporal_norm1 = build_norm(model, f"{path}.time_norm")
        self.temporal_attn = Attention(model, f"{path}.time")
        self.temporal_fc = build_linear(model, f"{path}.time_fc")
        self.norm1 = build_norm(model, f"{path}.space_norm")
        self.attn = Attention(model, f"{path}.space")
        self.norm2 = build_norm(model, f"{path}.mlp_norm")
        self.mlp = Mlp(model, f"{path}.mlp")
        self.is_first_copy_taken = model.is_first_copy_taken

    def forward(self, x: Tensor) -> Tensor:
        batch = len(x)
        # temporal
        xt = x[:, 1:, :]
        series = xt.reshape(batch * PATCHES, TIMES, HIDDEN)
        res_temporal = self.temporal_attn(self.temporal_norm1(series))
        xt = xt + self.temporal_fc(res_temporal.reshape(batch, PATCHES * TIMES, HIDDEN))
        # spatial
        init_cls_token = x[:, 0:1, :]
        cls_token = init_cls_token.repeat(1, TIMES, 1).reshape(batch * TIMES, 1, HIDDEN)
        xs = xt.reshape(batch, PATCHES, TIMES, HIDDEN).transpose(1, 2)
        xs = torch.cat((cls_token, xs.reshape(batch * TIMES, PATCHES, HIDDEN)), 1)
        res_spatial = self.attn(self.norm1(xs)).reshape(batch, TIMES, 1 + PATCHES, HIDDEN)
        # the class token gets the mean over the frames
        copies = res_spatial[:, :, 0]
        cls_token = copies[:, :1] if self.is_first_copy_taken else torch.mean(copies, 1, True)
        res = res_spatial[:, :, 1:].transpose(1, 2).reshape(batch, PATCHES * TIMES, HIDDEN)
        x = torch.cat((init_cls_token, xt), 1) + torch.cat((cls_token, res), 1)
        return x + self.mlp(self.norm2(x))


class AttentionPool(nn.Module):
    """A weighted mean over time, weights by a learned query."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.key = build_linear(model, "pool.keys")
        self.query = build_linear(model, "pool.query")
        self.is_detached = model.is_pooling_detached

    def forward(self, frames: Tensor) -> Tensor:
        weights = self.query(torch.tanh(self.key(frames))).softmax(dim=1)
        if self.is_detached:
            weights = weights.detach()
        return (weights * frames).sum(dim=1)


class TimeSformer(nn.Module):
    """Logits (batch, CLASSES) of clips, and scores of the order of times (batch, TIMES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = build_tubelets(model)
        self.cls_token = read(model, "class_token.weight")
        self.pos_embed = read(model, "space.weight")
        self.time_embed = read(model, "time.weight")
        self.blocks = nn.ModuleList(Block(model, n) for n in range(BLOCKS))
        self.norm = build_norm(model, "norm")
        self.pool = AttentionPool(model)
        self.head = nn.Sequential(
            build_linear(model, "head.reduce"), build_linear(model, "head.classes")
        )
        self.order_head = build_linear(model, "order")
        self.is_time_interleaved = model.is_time_interleaved
        self.is_token_position_read = model.is_token_position_read

    def embed(self, clips: Tensor) -> Tensor:
        """Return the tokens with their positions, the times of a patch next to each other."""
        x = self.patch_embed(clips).flatten(3)  # batch, HIDDEN, time, space
        x = x.permute(0, 3, 2, 1).flatten(1, 2)
        rows = slice(None, -1) if self.is_token_position_read else slice(1, None)
        x = x + self.pos_embed[:, rows].repeat_interleave(TIMES, dim=1)
        if self.is_time_interleaved:
            x = x + self.time_embed.repeat_interleave(PATCHES, dim=1)
        else:
            x = x + self.time_embed.repeat(1, PATCHES, 1)
        cls_token = (self.cls_token + self.pos_embed[:, :1]).expand(len(clips), -1, -1)
        return torch.cat((cls_token, x), dim=1)

    def forward(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(clips)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        frames = x[:, 1:].unflatten(1, (PATCHES, TIMES)).mean(dim=1)
        logits = self.head(torch.cat((x[:, 0], self.pool(frames)), dim=1))
        return logits, self.order_head(frames).squeeze(-1)


class MixupLoss(nn.Module):
    """The loss of mixed clips, and that of the order of times."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = TimeSformer(model)
        self.label_smoothing = SMOOTHING if model.is_smoothed_again else 0.0
        self.are_shares_exchanged = model.are_shares_exchanged
        self.pairs = torch.triu_indices(TIMES, TIMES, offset=0 if model.has_diagonal else 1)

    def forward(self, clips: Tensor, labels: Tensor, lam: Tensor) -> Tensor:
        weight = lam.view(-1, 1, 1, 1, 1)
        logits, scores = self.model(clips * weight + clips.flip(0) * (1.0 - weight))
        off_value = SMOOTHING / CLASSES
        target = torch.full((len(labels), CLASSES), off_value)
        target = target.scatter(1, labels[:, None], 1.0 - SMOOTHING + off_value)
        if self.are_shares_exchanged:
            lam = 1.0 - lam
        target = target * lam[:, None] + target.flip(0) * (1.0 - lam[:, None])
        earlier, later = self.pairs
        order_loss = F.softplus(scores[:, earlier] - scores[:, later]).mean()
        loss = F.cross_entropy(logits, target, label_smoothing=self.label_smoothing)
        return loss + ORDER_WEIGHT * order_loss


class SelfAttention(nn.Module):
    """Fused attention along the last but one axis."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (build_linear(model, f"{path}.{n}") for n in "qkv")
        self.output = build_linear(model, f"{path}.o")

    def forward(self, hidden_states: Tensor) -> Tensor:
        q, k, v = (
            project(hidden_states).unflatten(-1, (HEADS, HEAD_DIM)).transpose(-2, -3)
            for project in (self.query, self.key, self.value)
        )
        context = F.scaled_dot_product_attention(q, k, v)
        return self.output(context.transpose(-2, -3).flatten(-2))


class SpaceTimeLayer(nn.Module):
    """A block on a class token (batch, HIDDEN) and patches (batch, times, patches, HIDDEN)."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.temporal_layernorm = build_norm(model, f"{path}.time_norm")
        self.temporal_attention = SelfAttention(model, f"{path}.time")
        self.temporal_dense = build_linear(model, f"{path}.time_fc")
        self.layernorm_before = build_norm(model, f"{path}.space_norm")
        self.attention = SelfAttention(model, f"{path}.space")
        self.layernorm_after = build_norm(model, f"{path}.mlp_norm")
        self.intermediate = build_linear(model, f"{path}.mlp.up")
        self.output = build_linear(model, f"{path}.mlp.down")

    def feed_forward(self, x: Tensor) -> Tensor:
        return x + self.output(F.gelu(self.intermediate(self.layernorm_after(x))))

    def forward(self, token: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        series = self.temporal_attention(self.temporal_layernorm(patches.transpose(1, 2)))
        patches = patches + self.temporal_dense(series).transpose(1, 2)
        tokens = token[:, None, None].expand(-1, TIMES, -1, -1)
        frames = torch.cat((tokens, patches), dim=2)
        spatial = self.attention(self.layernorm_before(frames))
        token = token + spatial[:, :, 0].mean(dim=1)
        return self.feed_forward(token), self.feed_forward(patches + spatial[:, :, 1:])


class VideoEncoder(nn.Module):
    """The normed class token, and the feature of each time."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.projection = build_tubelets(model)
        self.class_embedding = read(model, "class_token.weight")
        self.space_positions = read(model, "space.weight")
        self.time_positions = read(model, "time.weight")
        self.layer = nn.ModuleList(SpaceTimeLayer(model, n) for n in range(BLOCKS))
        self.layernorm = build_norm(model, "norm")

    def forward(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        patches = self.projection(clips).flatten(3).movedim(1, 3)
        patches = patches + (self.space_positions[:, None, 1:] + self.time_positions[:, :, None])
        token = (self.class_embedding[:, 0] + self.space_positions[:, 0]).expand(len(clips), -1)
        for layer in self.layer:
            token, patches = layer(token, patches)
        return self.layernorm(token), self.layernorm(patches).mean(dim=2)


class VideoTrainer(nn.Module):
    """The classifier and its losses in one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = VideoEncoder(model)
        self.pooler_keys = build_linear(model, "pool.keys")
        self.pooler_query = build_linear(model, "pool.query")
        self.reduction = build_linear(model, "head.reduce")
        self.classifier = build_linear(model, "head.classes")
        self.ranker = build_linear(model, "order")
        self.register_buffer("is_earlier", torch.ones(TIMES, TIMES).triu(1), persistent=False)

    def mix(self, values: Tensor, shares: Tensor) -> Tensor:
        """Return a mix of each row with the row of the flipped batch."""
        shares = shares.reshape(-1, *(1 for _ in values.shape[1:]))
        return torch.lerp(values.flip(0), values, shares)

    def forward(self, clips: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        token, frames = self.encoder(self.mix(clips, shares))
        scores = self.pooler_query(self.pooler_keys(frames).tanh()).squeeze(-1)
        pooled = torch.einsum("bt,btd->bd", scores.softmax(dim=1), frames)
        logits = self.classifier(self.reduction(torch.cat((token, pooled), dim=-1)))

        mixed = self.mix(F.one_hot(labels, CLASSES).float(), shares)
        targets = (1 - SMOOTHING) * mixed + SMOOTHING / CLASSES
        loss = -(targets * F.log_softmax(logits, dim=-1)).sum(dim=-1).mean()

        ranks = self.ranker(frames)
        losses = torch.log1p(torch.exp(ranks - ranks.transpose(1, 2))) * self.is_earlier
        order_loss = losses.sum() / (len(clips) * self.is_earlier.sum())
        return loss + ORDER_WEIGHT * order_loss
