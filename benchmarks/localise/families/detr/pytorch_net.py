"""The detector in PyTorch, with the modules of Hugging Face's DETR.

Variant 'original': the modules of the original repository, tokens before the batch, the framework's
attention, frozen norms as its batch norm, GIoU pair by pair, and the losses of all layers at once.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.detr.architecture import (
    BATCH,
    BOX_LAYERS,
    CHANNELS,
    CLASSES,
    ENCODER_LAYERS,
    EPS,
    GIOU_WEIGHT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    L1_WEIGHT,
    LAYERS,
    OBJECTS,
    OWNERS,
    POSITION_EPS,
    QUERIES,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return OriginalLoss(model) if model.variant == "original" else DetrForObjectDetection(model)


def read(model: Model, name: str) -> Tensor:
    """Return a copy of a weight."""
    return torch.from_numpy(np.array(model.weights[name]))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(read(model, f"{path}.{name}"))
    return module


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(HIDDEN, eps=EPS), model, path)


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at ``path``; it has a bias if there is one."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    has_bias = f"{path}.bias" in model.weights
    conv = nn.Conv2d(n_in, n_out, kernel, stride, padding=kernel // 2, bias=has_bias)
    return load(conv, model, path)


class DetrFrozenBatchNorm2d(nn.Module):
    """A batch norm whose statistics and weights are fixed."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.register_buffer("weight", read(model, f"{path}.weight"))
        self.register_buffer("bias", read(model, f"{path}.bias"))
        self.register_buffer("running_mean", read(model, f"{path}.mean"))
        self.register_buffer("running_var", read(model, f"{path}.variance"))
        self.is_fused = model.variant == "original"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=EPS
            )
        scale = self.weight * (self.running_var + EPS).rsqrt()
        bias = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)


class Backbone(nn.Module):
    """Features (batch, channels, ROWS, COLUMNS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        n_stages = len(CHANNELS)
        self.convs = nn.ModuleList(load_conv(model, f"backbone.{n}", 2) for n in range(n_stages))
        self.convs.append(load_conv(model, f"backbone.{n_stages}"))
        self.norms = nn.ModuleList(
            DetrFrozenBatchNorm2d(model, f"backbone.{n}.norm") for n in range(n_stages + 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs[:-1], self.norms[:-1], strict=True):
            x = F.relu(norm(conv(x)))
        return F.relu(x + self.norms[-1](self.convs[-1](x)))


class DetrSinePositionEmbedding(nn.Module):
    """Waves of the rows and columns of what is no padding, (batch, HIDDEN, ROWS, COLUMNS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.scale = model.position_scale
        self.register_buffer("dim_t", torch.from_numpy(model.divisors()))

    def encode(self, embed: Tensor) -> Tensor:
        """Return sines and cosines in turn."""
        angles = embed[..., None] / self.dim_t
        return torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), dim=4).flatten(3)

    def forward(self, mask: Tensor) -> Tensor:
        not_mask = ~mask
        y_embed = not_mask.cumsum(1, dtype=torch.float32)
        x_embed = not_mask.cumsum(2, dtype=torch.float32)
        y_embed = y_embed / (y_embed[:, -1:, :] + POSITION_EPS) * self.scale
        x_embed = x_embed / (x_embed[:, :, -1:] + POSITION_EPS) * self.scale
        pos = torch.cat((self.encode(y_embed), self.encode(x_embed)), dim=3)
        return pos.permute(0, 3, 1, 2)


class DetrAttention(nn.Module):
    """Attention with positions in queries and keys."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            load_linear(model, f"{path}.{name}") for name in "qkvo"
        )

    def split_heads(self, x: Tensor) -> Tensor:
        """Return (batch, HEADS, length, HEAD_DIM)."""
        return x.view(BATCH, -1, HEADS, HEAD_DIM).transpose(1, 2)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        q = self.q_proj(queries) * HEAD_DIM**-0.5
        q, k, v = map(self.split_heads, (q, self.k_proj(keys), self.v_proj(values)))
        scores = torch.matmul(q, k.transpose(2, 3))
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :], float("-inf"))
        y = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.out_proj(y.transpose(1, 2).reshape(BATCH, -1, HIDDEN))


class DetrEncoderLayer(nn.Module):
    """Attention of tokens to each other, and feed-forward."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.self_attn = DetrAttention(model, f"{path}.attention")
        self.self_attn_layer_norm = load_norm(model, f"{path}.norm1")
        self.fc1 = load_linear(model, f"{path}.mlp.up")
        self.fc2 = load_linear(model, f"{path}.mlp.down")
        self.final_layer_norm = load_norm(model, f"{path}.norm2")

    def forward(self, x: Tensor, pos: Tensor, mask: Tensor) -> Tensor:
        positioned = x + pos
        x = self.self_attn_layer_norm(x + self.self_attn(positioned, positioned, x, mask))
        return self.final_layer_norm(x + self.fc2(F.relu(self.fc1(x))))


class DetrDecoderLayer(nn.Module):
    """Attention of queries to each other and to tokens, and feed-forward."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.self_attn = DetrAttention(model, f"{path}.attention")
        self.self_attn_layer_norm = load_norm(model, f"{path}.norm1")
        self.encoder_attn = DetrAttention(model, f"{path}.cross")
        self.encoder_attn_layer_norm = load_norm(model, f"{path}.norm2")
        self.fc1 = load_linear(model, f"{path}.mlp.up")
        self.fc2 = load_linear(model, f"{path}.mlp.down")
        self.final_layer_norm = load_norm(model, f"{path}.norm3")

    def forward(
        self, x: Tensor, query_pos: Tensor, memory: Tensor, pos: Tensor, mask: Tensor | None
    ) -> Tensor:
        positioned = x + query_pos
        x = self.self_attn_layer_norm(x + self.self_attn(positioned, positioned, x))
        attended = self.encoder_attn(x + query_pos, memory + pos, memory, mask)
        x = self.encoder_attn_layer_norm(x + attended)
        return self.final_layer_norm(x + self.fc2(F.relu(self.fc1(x))))


class DetrMLPPredictionHead(nn.Module):
    """The MLP of the boxes, without the sigmoid."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = nn.ModuleList(load_linear(model, f"boxes.{n}") for n in range(BOX_LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class DetrModel(nn.Module):
    """States of the queries behind each layer of the decoder, (batch, QUERIES, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = Backbone(model)
        self.position_embedding = DetrSinePositionEmbedding(model)
        self.input_projection = load_conv(model, "project")
        self.query_position_embeddings = nn.Embedding(QUERIES, HIDDEN)
        load(self.query_position_embeddings, model, "queries")
        self.encoder = nn.ModuleList(
            DetrEncoderLayer(model, f"encoder.{n}") for n in range(ENCODER_LAYERS)
        )
        self.decoder = nn.ModuleList(DetrDecoderLayer(model, f"decoder.{n}") for n in range(LAYERS))
        self.layernorm = load_norm(model, "decoder.norm")
        self.has_cross_mask = model.has_cross_mask
        self.are_states_normed = model.are_states_normed
        self.are_states_stopped = model.are_states_stopped
        self.are_states_queries = model.are_states_queries

    def forward(self, images: Tensor, is_padding: Tensor) -> list[Tensor]:
        features = self.backbone(images)
        mask = F.interpolate(is_padding[:, None].float(), size=features.shape[-2:])[:, 0].bool()
        pos = self.position_embedding(mask).flatten(2).permute(0, 2, 1)
        memory = self.input_projection(features).flatten(2).permute(0, 2, 1)
        mask = mask.flatten(1)
        for layer in self.encoder:
            memory = layer(memory, pos, mask)
        query_pos = self.query_position_embeddings.weight.unsqueeze(0).repeat(BATCH, 1, 1)
        x = query_pos if self.are_states_queries else torch.zeros_like(query_pos)
        cross_mask = mask if self.has_cross_mask else None
        states = []
        for layer in self.decoder:
            if self.are_states_stopped:
                x = x.detach()
            x = layer(x, query_pos, memory, pos, cross_mask)
            states.append(self.layernorm(x) if self.are_states_normed else x)
        if not self.are_states_normed:
            states[-1] = self.layernorm(x)
        return states


def center_to_corners_format(boxes: Tensor) -> Tensor:
    """Return left, top, right and bottom of boxes."""
    x, y, width, height = boxes.unbind(-1)
    corners = (x - 0.5 * width, y - 0.5 * height, x + 0.5 * width, y + 0.5 * height)
    return torch.stack(corners, dim=-1)


def box_area(boxes: Tensor) -> Tensor:
    """Return the areas of boxes."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def generalized_box_iou(
    boxes1: Tensor, boxes2: Tensor, *, is_enclosing_detached: bool = False
) -> Tensor:
    """Return the GIoU of boxes that broadcast against each other."""
    left_top = torch.max(boxes1[..., :2], boxes2[..., :2])
    right_bottom = torch.min(boxes1[..., 2:], boxes2[..., 2:])
    sizes = (right_bottom - left_top).clamp(min=0)
    inter = sizes[..., 0] * sizes[..., 1]
    union = box_area(boxes1) + box_area(boxes2) - inter
    left_top = torch.min(boxes1[..., :2], boxes2[..., :2])
    right_bottom = torch.max(boxes1[..., 2:], boxes2[..., 2:])
    sizes = (right_bottom - left_top).clamp(min=0)
    area = sizes[..., 0] * sizes[..., 1]
    if is_enclosing_detached:
        area = area.detach()
    return inter / union - (area - union) / area


class DetrLoss(nn.Module):
    """The losses of a layer of the decoder."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("empty_weight", torch.from_numpy(model.class_weights()))
        self.is_enclosing_detached = model.is_enclosing_detached

    def forward(
        self,
        logits: Tensor,
        pred_boxes: Tensor,
        labels: Tensor,
        boxes: Tensor,
        queries: Tensor,
        objects: Tensor,
    ) -> Tensor:
        idx = (torch.tensor(OWNERS), queries)
        target_classes = torch.full(logits.shape[:2], CLASSES)
        target_classes[idx] = labels[objects]
        loss_ce = F.cross_entropy(logits.transpose(1, 2), target_classes, self.empty_weight)
        source_boxes, target_boxes = pred_boxes[idx], boxes[objects]
        loss_bbox = F.l1_loss(source_boxes, target_boxes, reduction="none").sum() / OBJECTS
        giou = generalized_box_iou(
            center_to_corners_format(source_boxes)[:, None],
            center_to_corners_format(target_boxes)[None, :],
            is_enclosing_detached=self.is_enclosing_detached,
        )
        loss_giou = (1 - torch.diag(giou)).sum() / OBJECTS
        return loss_ce + L1_WEIGHT * loss_bbox + GIOU_WEIGHT * loss_giou


class DetrForObjectDetection(nn.Module):
    """Heads and losses of all layers of the decoder."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = DetrModel(model)
        self.class_labels_classifier = load_linear(model, "classes")
        self.bbox_predictor = DetrMLPPredictionHead(model)
        self.loss = DetrLoss(model)

    def forward(
        self,
        images: Tensor,
        is_padding: Tensor,
        labels: Tensor,
        boxes: Tensor,
        queries: Tensor,
        objects: Tensor,
    ) -> Tensor:
        loss = 0.0
        for n, state in enumerate(self.model(images, is_padding)):
            logits = self.class_labels_classifier(state)
            pred_boxes = self.bbox_predictor(state).sigmoid()
            loss = loss + self.loss(logits, pred_boxes, labels, boxes, queries[n], objects[n])
        return loss


# Variant 'original'


def load_attention(model: Model, path: str) -> nn.MultiheadAttention:
    """Return the framework's attention with the weights at ``path``."""
    attention = nn.MultiheadAttention(HIDDEN, HEADS)
    for name in ("weight", "bias"):
        joined = torch.cat([read(model, f"{path}.{kind}.{name}") for kind in "qkv"])
        getattr(attention, f"in_proj_{name}").data.copy_(joined)
    load(attention.out_proj, model, f"{path}.o")
    return attention


class TransformerEncoderLayer(nn.Module):
    """A layer of the encoder; tokens (TOKENS, batch, HIDDEN)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.self_attn = load_attention(model, f"{path}.attention")
        self.linear1 = load_linear(model, f"{path}.mlp.up")
        self.linear2 = load_linear(model, f"{path}.mlp.down")
        self.norm1, self.norm2 = (load_norm(model, f"{path}.norm{n}") for n in (1, 2))

    def forward(self, src: Tensor, pos: Tensor, mask: Tensor) -> Tensor:
        q = k = src + pos
        src2, _ = self.self_attn(q, k, value=src, key_padding_mask=mask, need_weights=False)
        src = self.norm1(src + src2)
        return self.norm2(src + self.linear2(self.linear1(src).relu()))


class TransformerDecoderLayer(nn.Module):
    """A layer of the decoder; queries (QUERIES, batch, HIDDEN)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.self_attn = load_attention(model, f"{path}.attention")
        self.multihead_attn = load_attention(model, f"{path}.cross")
        self.linear1 = load_linear(model, f"{path}.mlp.up")
        self.linear2 = load_linear(model, f"{path}.mlp.down")
        self.norm1, self.norm2, self.norm3 = (
            load_norm(model, f"{path}.norm{n}") for n in (1, 2, 3)
        )

    def forward(
        self, tgt: Tensor, query_pos: Tensor, memory: Tensor, pos: Tensor, mask: Tensor
    ) -> Tensor:
        q = k = tgt + query_pos
        tgt2, _ = self.self_attn(q, k, value=tgt, need_weights=False)
        tgt = self.norm1(tgt + tgt2)
        tgt2, _ = self.multihead_attn(
            query=tgt + query_pos,
            key=memory + pos,
            value=memory,
            key_padding_mask=mask,
            need_weights=False,
        )
        tgt = self.norm2(tgt + tgt2)
        return self.norm3(tgt + self.linear2(self.linear1(tgt).relu()))


class OriginalDETR(nn.Module):
    """Logits and boxes of all layers, (LAYERS, batch, QUERIES, width) each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.body = Backbone(model)
        self.position_embedding = DetrSinePositionEmbedding(model)
        self.input_proj = load_conv(model, "project")
        self.query_embed = load(nn.Embedding(QUERIES, HIDDEN), model, "queries")
        self.encoder = nn.ModuleList(
            TransformerEncoderLayer(model, f"encoder.{n}") for n in range(ENCODER_LAYERS)
        )
        self.decoder = nn.ModuleList(
            TransformerDecoderLayer(model, f"decoder.{n}") for n in range(LAYERS)
        )
        self.norm = load_norm(model, "decoder.norm")
        self.class_embed = load_linear(model, "classes")
        self.bbox_embed = nn.Sequential(
            load_linear(model, "boxes.0"),
            nn.ReLU(),
            load_linear(model, "boxes.1"),
            nn.ReLU(),
            load_linear(model, "boxes.2"),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor, is_padding: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        mask = F.interpolate(is_padding[None].float(), size=features.shape[-2:]).bool()[0]
        pos = self.position_embedding(mask).flatten(2).permute(2, 0, 1)
        memory = self.input_proj(features).flatten(2).permute(2, 0, 1)
        mask = mask.flatten(1)
        for layer in self.encoder:
            memory = layer(memory, pos, mask)
        query_pos = self.query_embed.weight.unsqueeze(1).repeat(1, BATCH, 1)
        tgt = torch.zeros_like(query_pos)
        states = []
        for layer in self.decoder:
            tgt = layer(tgt, query_pos, memory, pos, mask)
            states.append(tgt)
        hs = self.norm(torch.stack(states)).transpose(1, 2)
        return self.class_embed(hs), self.bbox_embed(hs)


class OriginalLoss(nn.Module):
    """The losses of all layers at once."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.detr = OriginalDETR(model)
        self.register_buffer("empty_weight", torch.from_numpy(model.class_weights()))
        self.register_buffer("owners", torch.tensor(OWNERS).expand(LAYERS, -1))
        self.register_buffer("layers", torch.arange(LAYERS)[:, None].expand(-1, OBJECTS))

    def forward(
        self,
        images: Tensor,
        is_padding: Tensor,
        labels: Tensor,
        boxes: Tensor,
        queries: Tensor,
        objects: Tensor,
    ) -> Tensor:
        logits, pred_boxes = self.detr(images, is_padding)
        idx = (self.layers, self.owners, queries)
        targets = torch.full(logits.shape[:-1], CLASSES).index_put(idx, labels[objects])
        log_probs = logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
        weights = self.empty_weight[targets]
        loss_ce = -((log_probs * weights).sum((1, 2)) / weights.sum((1, 2))).sum()
        source_boxes, target_boxes = pred_boxes[idx], boxes[objects]
        loss_bbox = (source_boxes - target_boxes).abs().sum()
        giou = generalized_box_iou(
            center_to_corners_format(source_boxes), center_to_corners_format(target_boxes)
        )
        loss_giou = (1 - giou).sum()
        return loss_ce + (L1_WEIGHT * loss_bbox + GIOU_WEIGHT * loss_giou) / OBJECTS
