"""Promptable segmentation in PyTorch.

Variant 'fused': other names, built-in attention with the relative terms as its bias, norms of
channels as layer norms of the last axis, hypernetworks in one product, losses by logsigmoid.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.promptseg.architecture import (
    ALPHA,
    BACKGROUND,
    BATCH,
    DECODER_EPS,
    DECODER_HEADS,
    DECODER_LAYERS,
    DIM,
    EMBED,
    EPS,
    FOCAL_WEIGHT,
    FOREGROUND,
    GAMMA,
    GRID,
    HEAD_DIM,
    HEADS,
    HEIGHT,
    MASKS,
    PADDED_ROWS,
    PADDING,
    PATCH,
    PROMPTS,
    SCORE_WEIGHT,
    SMOOTHING,
    WIDTH,
    WINDOW,
    WINDOWS,
    Model,
    relative_index,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FusedLoss(model) if model.variant == "fused" else SamLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return torch.cat([torch.from_numpy(model.weights[name]) for name in names]).clone()


def read_parameter(model: Model, *names: str) -> nn.Parameter:
    """Return a weight, or several ones behind each other, to be trained."""
    return nn.Parameter(read(model, *names))


def load(layer: nn.Module, model: Model, *paths: str) -> nn.Module:
    """Return a layer with the weights of a path, or of several ones of the same input."""
    for name, parameter in layer.named_parameters():
        parameter.data.copy_(read(model, *(f"{path}.{name}" for path in paths)))
    return layer


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return a linear layer, or several ones of the same input as one."""
    n_out, n_in = read(model, *(f"{path}.weight" for path in paths)).shape
    return load(nn.Linear(n_in, n_out), model, *paths)


def load_conv(model: Model, path: str, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """Return the convolution at a path."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    has_bias = f"{path}.bias" in model.weights
    return load(nn.Conv2d(n_in, n_out, kernel, stride, padding, bias=has_bias), model, path)


def load_deconv(model: Model, path: str) -> nn.ConvTranspose2d:
    """Return the transposed convolution at a path, which doubles a grid."""
    n_in, n_out, kernel, stride = model.weights[f"{path}.weight"].shape
    return load(nn.ConvTranspose2d(n_in, n_out, kernel, stride), model, path)


def load_norm(model: Model, path: str, eps: float) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    return load(nn.LayerNorm(len(model.weights[f"{path}.weight"]), eps=eps), model, path)


class LayerNorm2d(nn.Module):
    """Layer norm of the channels of (batch, channels, rows, columns)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = read_parameter(model, f"{path}.weight")
        self.bias = read_parameter(model, f"{path}.bias")
        self.is_variance_constant = model.is_variance_constant

    def forward(self, x: Tensor) -> Tensor:
        if self.is_variance_constant:
            x = NormalizedChannels.apply(x)
        else:
            u = x.mean(1, keepdim=True)
            s = (x - u).pow(2).mean(1, keepdim=True)
            x = (x - u) / torch.sqrt(s + EPS)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class NormalizedChannels(torch.autograd.Function):
    """Channels of mean 0 and deviation 1, with a backward pass for which the latter is constant."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        deviation = torch.sqrt(s + EPS)
        ctx.save_for_backward(deviation)
        return (x - u) / deviation

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        (deviation,) = ctx.saved_tensors
        return (gradient - gradient.mean(1, keepdim=True)) / deviation


def window_partition(x: Tensor) -> Tensor:
    """Return (windows, WINDOW, WINDOW, DIM) of (batch, rows, columns, DIM)."""
    x = F.pad(x, (0, 0, 0, 0, 0, PADDED_ROWS - GRID[0]))
    x = x.view(BATCH, PADDED_ROWS // WINDOW, WINDOW, GRID[1] // WINDOW, WINDOW, DIM)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, WINDOW, WINDOW, DIM)


def window_unpartition(windows: Tensor) -> Tensor:
    """Return (batch, rows, columns, DIM) without the rows that were added."""
    shape = (BATCH, PADDED_ROWS // WINDOW, GRID[1] // WINDOW, WINDOW, WINDOW, DIM)
    x = windows.view(shape).permute(0, 1, 3, 2, 4, 5).contiguous()
    return x.view(BATCH, PADDED_ROWS, GRID[1], DIM)[:, : GRID[0]].contiguous()


def get_rel_pos(size: int, rel_pos: Tensor) -> Tensor:
    """Return rows of a table for queries and keys, (size, size, HEAD_DIM)."""
    return rel_pos[torch.from_numpy(relative_index(size)).long()]


class Attention(nn.Module):
    """Attention with decomposed relative positions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.scale = HEAD_DIM**-0.5
        self.qkv = load_linear(model, f"{path}.qkv")
        self.proj = load_linear(model, f"{path}.proj")
        self.rel_pos_h = read_parameter(model, f"{path}.rows")
        self.rel_pos_w = read_parameter(model, f"{path}.columns")

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, _ = x.shape
        qkv = self.qkv(x).reshape(B, H * W, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, B * HEADS, H * W, -1).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        r_q = q.reshape(B * HEADS, H, W, HEAD_DIM)
        rel_h = torch.einsum("bhwc,hkc->bhwk", r_q, get_rel_pos(H, self.rel_pos_h))
        rel_w = torch.einsum("bhwc,wkc->bhwk", r_q, get_rel_pos(W, self.rel_pos_w))
        attn = attn.view(B * HEADS, H, W, H, W)
        attn = attn + rel_h[:, :, :, :, None] + rel_w[:, :, :, None, :]
        attn = attn.view(B * HEADS, H * W, H * W).softmax(dim=-1)
        x = (attn @ v).view(B, HEADS, H, W, -1).permute(0, 2, 3, 1, 4).reshape(B, H, W, -1)
        return self.proj(x)


class MLPBlock(nn.Module):
    """Two linear layers around an activation."""

    def __init__(self, model: Model, path: str, act: type[nn.Module]) -> None:
        super().__init__()
        self.lin1, self.lin2 = load_linear(model, f"{path}.up"), load_linear(model, f"{path}.down")
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        return self.lin2(self.act(self.lin1(x)))


class Block(nn.Module):
    """Attention, in windows or not, and mlp, each after a norm."""

    def __init__(self, model: Model, path: str, window_size: int) -> None:
        super().__init__()
        self.norm1 = load_norm(model, f"{path}.norm1", EPS)
        self.attn = Attention(model, path)
        self.norm2 = load_norm(model, f"{path}.norm2", EPS)
        self.mlp = MLPBlock(model, path, nn.GELU)
        self.window_size = window_size

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.norm1(x)
        if self.window_size > 0:
            x = window_unpartition(self.attn(window_partition(x)))
        else:
            x = self.attn(x)
        x = shortcut + x
        return x + self.mlp(self.norm2(x))


class ImageEncoderViT(nn.Module):
    """Image embeddings (batch, EMBED, *GRID)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = load_conv(model, "encoder.patch", PATCH)
        self.pos_embed = read_parameter(model, "encoder.position")
        self.blocks = nn.ModuleList(
            Block(model, f"encoder.{n}", window) for n, window in enumerate(WINDOWS)
        )
        self.neck = nn.Sequential(
            load_conv(model, "neck.conv1"),
            LayerNorm2d(model, "neck.norm1"),
            load_conv(model, "neck.conv2", padding=1),
            LayerNorm2d(model, "neck.norm2"),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).permute(0, 2, 3, 1) + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        return self.neck(x.permute(0, 3, 1, 2))


class PositionEmbeddingRandom(nn.Module):
    """Fourier features of coordinates."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        gaussian = read(model, "prompts.gaussian")
        self.register_buffer("positional_encoding_gaussian_matrix", gaussian)

    def _pe_encoding(self, coords: Tensor) -> Tensor:
        coords = (2 * coords - 1) @ self.positional_encoding_gaussian_matrix
        coords = 2 * math.pi * coords
        return torch.cat([torch.sin(coords), torch.cos(coords)], dim=-1)

    def forward(self) -> Tensor:
        """Return features of all cells, (1, EMBED, *GRID)."""
        grid = torch.ones(GRID)
        y_embed = (grid.cumsum(dim=0) - 0.5) / GRID[0]
        x_embed = (grid.cumsum(dim=1) - 0.5) / GRID[1]
        pe = self._pe_encoding(torch.stack([x_embed, y_embed], dim=-1))
        return pe.permute(2, 0, 1).unsqueeze(0)

    def forward_with_coords(self, coords: Tensor) -> Tensor:
        """Return features of points in pixels."""
        return self._pe_encoding(coords / torch.tensor([float(WIDTH), float(HEIGHT)]))


class PromptEncoder(nn.Module):
    """Tokens (prompts, POINTS + 2, EMBED) and what is added to images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pe_layer = PositionEmbeddingRandom(model)
        self.point_embeddings = read_parameter(model, "prompts.points")
        self.not_a_point_embed = read_parameter(model, "prompts.not_a_point")
        self.no_mask_embed = read_parameter(model, "prompts.no_mask")
        self.mask_downscaling = nn.Sequential(
            load_conv(model, "prompts.mask1", 2),
            LayerNorm2d(model, "prompts.mask_norm1"),
            nn.GELU(),
            load_conv(model, "prompts.mask2", 2),
            LayerNorm2d(model, "prompts.mask_norm2"),
            nn.GELU(),
            load_conv(model, "prompts.mask3"),
        )
        self.is_padding_located = model.is_padding_located

    def _embed_points(self, points: Tensor, labels: Tensor) -> Tensor:
        embedding = self.pe_layer.forward_with_coords(points + 0.5)
        labels = labels[:, :, None]
        padding = self.not_a_point_embed.expand_as(embedding)
        if self.is_padding_located:
            padding = embedding + padding
        background, foreground = self.point_embeddings[0], self.point_embeddings[1]
        embedding = torch.where(labels == BACKGROUND, embedding + background, embedding)
        embedding = torch.where(labels == FOREGROUND, embedding + foreground, embedding)
        return torch.where(labels == PADDING, padding, embedding)

    def _embed_boxes(self, boxes: Tensor, has_box: Tensor) -> Tensor:
        corners = self.pe_layer.forward_with_coords((boxes + 0.5).reshape(-1, 2, 2))
        corners = corners + self.point_embeddings[2:]
        return torch.where(has_box[:, None, None] > 0, corners, self.not_a_point_embed)

    def forward(
        self,
        points: Tensor,
        labels: Tensor,
        boxes: Tensor,
        has_box: Tensor,
        masks: Tensor,
        has_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        point_embeddings = self._embed_points(points, labels)
        box_embeddings = self._embed_boxes(boxes, has_box)
        dense = self.mask_downscaling(masks.unsqueeze(1))
        no_mask = self.no_mask_embed.reshape(1, -1, 1, 1)
        dense = torch.where(has_mask[:, None, None, None] > 0, dense, no_mask)
        return torch.cat([point_embeddings, box_embeddings], dim=1), dense


class DownscaledAttention(nn.Module):
    """Attention whose inner width is smaller."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            load_linear(model, f"{path}.{name}") for name in ("q", "k", "v", "out")
        )
        width = EMBED if model.is_scale_of_width else self.q_proj.out_features
        self.divisor = math.sqrt(width // DECODER_HEADS)

    def _separate_heads(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        return x.reshape(b, n, DECODER_HEADS, c // DECODER_HEADS).transpose(1, 2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = self._separate_heads(self.q_proj(q))
        k = self._separate_heads(self.k_proj(k))
        v = self._separate_heads(self.v_proj(v))
        attn = torch.softmax(q @ k.permute(0, 1, 3, 2) / self.divisor, dim=-1)
        return self.out_proj((attn @ v).transpose(1, 2).flatten(2))


class TwoWayAttentionBlock(nn.Module):
    """Tokens attend to themselves and the image, the image to tokens."""

    def __init__(self, model: Model, path: str, skip_first_layer_pe: bool) -> None:
        super().__init__()
        self.self_attn = DownscaledAttention(model, f"{path}.self")
        self.norm1 = load_norm(model, f"{path}.norm1", DECODER_EPS)
        self.cross_attn_token_to_image = DownscaledAttention(model, f"{path}.to_image")
        self.norm2 = load_norm(model, f"{path}.norm2", DECODER_EPS)
        self.mlp = MLPBlock(model, path, nn.ReLU)
        self.norm3 = load_norm(model, f"{path}.norm3", DECODER_EPS)
        self.cross_attn_image_to_token = DownscaledAttention(model, f"{path}.to_tokens")
        self.norm4 = load_norm(model, f"{path}.norm4", DECODER_EPS)
        self.skip_first_layer_pe = skip_first_layer_pe

    def forward(
        self, queries: Tensor, keys: Tensor, query_pe: Tensor, key_pe: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.skip_first_layer_pe:
            queries = self.self_attn(q=queries, k=queries, v=queries)
        else:
            q = queries + query_pe
            queries = queries + self.self_attn(q=q, k=q, v=queries)
        queries = self.norm1(queries)

        q, k = queries + query_pe, keys + key_pe
        queries = self.norm2(queries + self.cross_attn_token_to_image(q=q, k=k, v=keys))
        queries = self.norm3(queries + self.mlp(queries))

        q, k = queries + query_pe, keys + key_pe
        keys = self.norm4(keys + self.cross_attn_image_to_token(q=k, k=q, v=queries))
        return queries, keys


class TwoWayTransformer(nn.Module):
    """Layers, and the last attention of tokens to the image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TwoWayAttentionBlock(model, f"decoder.{n}", skip_first_layer_pe=n == 0)
            for n in range(DECODER_LAYERS)
        )
        self.final_attn_token_to_image = DownscaledAttention(model, "decoder.final")
        self.norm_final_attn = load_norm(model, "decoder.final_norm", DECODER_EPS)

    def forward(
        self, image_embedding: Tensor, image_pe: Tensor, point_embedding: Tensor
    ) -> tuple[Tensor, Tensor]:
        keys = image_embedding.flatten(2).permute(0, 2, 1)
        key_pe = image_pe.flatten(2).permute(0, 2, 1)
        queries = point_embedding
        for layer in self.layers:
            queries, keys = layer(queries, keys, point_embedding, key_pe)
        q, k = queries + point_embedding, keys + key_pe
        queries = queries + self.final_attn_token_to_image(q=q, k=k, v=keys)
        return self.norm_final_attn(queries), keys


class MLP(nn.Module):
    """Three linear layers with ReLU between them."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(load_linear(model, f"{path}.{n}") for n in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < 2 else layer(x)
        return x


class MaskDecoder(nn.Module):
    """Logits (prompts, MASKS, rows, columns) and predicted IoU (prompts, MASKS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.transformer = TwoWayTransformer(model)
        self.iou_token = read_parameter(model, "decoder.score_token")
        self.mask_tokens = read_parameter(model, "decoder.mask_tokens")
        self.output_upscaling = nn.Sequential(
            load_deconv(model, "decoder.up1"),
            LayerNorm2d(model, "decoder.up_norm"),
            nn.GELU(),
            load_deconv(model, "decoder.up2"),
            nn.GELU(),
        )
        self.output_hypernetworks_mlps = nn.ModuleList(
            MLP(model, f"decoder.hyper.{mask}") for mask in range(MASKS)
        )
        self.iou_prediction_head = MLP(model, "decoder.score")
        self.are_images_tiled = model.are_images_tiled

    def forward(
        self, image_embeddings: Tensor, image_pe: Tensor, sparse: Tensor, dense: Tensor
    ) -> tuple[Tensor, Tensor]:
        output_tokens = torch.cat([self.iou_token, self.mask_tokens], dim=0)
        output_tokens = output_tokens.unsqueeze(0).expand(sparse.size(0), -1, -1)
        tokens = torch.cat((output_tokens, sparse), dim=1)
        if self.are_images_tiled:
            src = image_embeddings.repeat(PROMPTS, 1, 1, 1)
        else:
            src = torch.repeat_interleave(image_embeddings, PROMPTS, dim=0)
        src = src + dense
        pos_src = torch.repeat_interleave(image_pe, tokens.shape[0], dim=0)
        b, c, h, w = src.shape

        hs, src = self.transformer(src, pos_src, tokens)
        iou_token_out, mask_tokens_out = hs[:, 0, :], hs[:, 1 : 1 + MASKS, :]
        upscaled = self.output_upscaling(src.transpose(1, 2).view(b, c, h, w))
        hyper_in = torch.stack(
            [mlp(mask_tokens_out[:, i, :]) for i, mlp in enumerate(self.output_hypernetworks_mlps)],
            dim=1,
        )
        b, c, h, w = upscaled.shape
        masks = (hyper_in @ upscaled.view(b, c, h * w)).view(b, -1, h, w)
        return masks, self.iou_prediction_head(iou_token_out)


def sigmoid_focal_loss(inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over pixels, (prompts, MASKS)."""
    prob = inputs.sigmoid()
    ce_loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = prob * targets + (1 - prob) * (1 - targets)
    loss = ce_loss * ((1 - p_t) ** GAMMA)
    alpha_t = ALPHA * targets + (1 - ALPHA) * (1 - targets)
    return (alpha_t * loss).flatten(2).mean(-1)


def dice_loss(inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each mask, (prompts, MASKS)."""
    inputs, targets = inputs.sigmoid().flatten(2), targets.flatten(2)
    numerator = 2 * (inputs * targets).sum(-1)
    denominator = inputs.sum(-1) + targets.sum(-1)
    return 1 - (numerator + SMOOTHING) / (denominator + SMOOTHING)


@torch.no_grad()
def calculate_iou(inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the IoU of probabilities, (prompts, MASKS)."""
    prob, targets = inputs.sigmoid().flatten(2), targets.flatten(2)
    intersection = (prob * targets).sum(-1)
    union = prob.sum(-1) + targets.sum(-1) - intersection
    return intersection / union


class SamLoss(nn.Module):
    """Focal, dice and IoU losses of the masks of prompts."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.image_encoder = ImageEncoderViT(model)
        self.prompt_encoder = PromptEncoder(model)
        self.mask_decoder = MaskDecoder(model)
        self.is_best_by_score = model.is_best_by_score

    def select(self, losses: Tensor, ious: Tensor, labels: Tensor, has_box: Tensor) -> Tensor:
        """Return which mask of each prompt counts, (prompts, 1)."""
        costs = -ious if self.is_best_by_score else losses
        best = costs[:, 1:].argmin(dim=-1)
        is_ambiguous = ((labels != PADDING).sum(dim=-1) <= 1) & (has_box == 0)
        return torch.where(is_ambiguous, best + 1, 0).unsqueeze(-1)

    def forward(
        self,
        images: Tensor,
        points: Tensor,
        labels: Tensor,
        boxes: Tensor,
        has_box: Tensor,
        masks: Tensor,
        has_mask: Tensor,
        targets: Tensor,
        is_prompt: Tensor,
    ) -> Tensor:
        points, labels, boxes, has_box, masks, has_mask, targets, is_prompt = (
            values.flatten(0, 1)
            for values in (points, labels, boxes, has_box, masks, has_mask, targets, is_prompt)
        )
        image_embeddings = self.image_encoder(images)
        sparse, dense = self.prompt_encoder(points, labels, boxes, has_box, masks, has_mask)
        image_pe = self.prompt_encoder.pe_layer()
        logits, ious = self.mask_decoder(image_embeddings, image_pe, sparse, dense)

        targets = targets.unsqueeze(1).expand_as(logits)
        losses = FOCAL_WEIGHT * sigmoid_focal_loss(logits, targets) + dice_loss(logits, targets)
        errors = F.mse_loss(ious, calculate_iou(logits, targets), reduction="none")
        index = self.select(losses, ious, labels, has_box)
        losses = losses.gather(1, index) + SCORE_WEIGHT * errors.gather(1, index)
        return (losses.squeeze(-1) * is_prompt).sum() / is_prompt.sum()


class ChannelNorm(nn.Module):
    """Layer norm of channels as one of the last axis."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.ln = load_norm(model, path, EPS)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(x.movedim(1, -1)).movedim(-1, 1)


class VitLayer(nn.Module):
    """A block of the image encoder, with relative terms as a bias of built-in attention."""

    def __init__(self, model: Model, path: str, window: int) -> None:
        super().__init__()
        self.layer_norm1, self.layer_norm2 = (
            load_norm(model, f"{path}.{name}", EPS) for name in ("norm1", "norm2")
        )
        self.in_proj = load_linear(model, f"{path}.qkv")
        self.out_proj = load_linear(model, f"{path}.proj")
        self.row_table = read_parameter(model, f"{path}.rows")
        self.column_table = read_parameter(model, f"{path}.columns")
        self.feed_forward = nn.Sequential(
            load_linear(model, f"{path}.up"), nn.GELU(), load_linear(model, f"{path}.down")
        )
        self.window = window

    def attend(self, x: Tensor) -> Tensor:
        """Return the result of attention within (batch, rows, columns, DIM)."""
        n_rows, n_columns = x.shape[1:3]
        query, key, value = (
            part.unflatten(-1, (HEADS, HEAD_DIM)).permute(0, 3, 1, 2, 4)
            for part in self.in_proj(x).chunk(3, -1)
        )
        row_table = F.embedding(torch.from_numpy(relative_index(n_rows)), self.row_table)
        column_table = F.embedding(torch.from_numpy(relative_index(n_columns)), self.column_table)
        by_row = (query.unsqueeze(-2) * row_table[:, None]).sum(-1)
        by_column = (query.unsqueeze(-2) * column_table).sum(-1)
        bias = by_row.unsqueeze(-1) + by_column.unsqueeze(-2)
        out = F.scaled_dot_product_attention(
            query.flatten(2, 3),
            key.flatten(2, 3),
            value.flatten(2, 3),
            attn_mask=bias.flatten(-2).flatten(2, 3),
        )
        return self.out_proj(out.transpose(1, 2).flatten(2)).view(x.shape)

    def attend_in_windows(self, x: Tensor) -> Tensor:
        """Return the result of attention within windows."""
        x = torch.cat((x, x.new_zeros(BATCH, PADDED_ROWS - GRID[0], GRID[1], DIM)), dim=1)
        x = x.unflatten(2, (-1, WINDOW)).unflatten(1, (-1, WINDOW)).transpose(2, 3)
        out = self.attend(x.flatten(0, 2)).view(x.shape)
        return out.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, : GRID[0]]

    def forward(self, x: Tensor) -> Tensor:
        attend = self.attend_in_windows if self.window else self.attend
        x = x + attend(self.layer_norm1(x))
        return x + self.feed_forward(self.layer_norm2(x))


class CrossAttention(nn.Module):
    """Built-in attention from linear functions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (
            load_linear(model, f"{path}.{name}") for name in ("q", "k", "v", "out")
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (
            x.unflatten(-1, (DECODER_HEADS, -1)).transpose(1, 2)
            for x in (self.to_q(q), self.to_k(k), self.to_v(v))
        )
        out = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    """A layer of the decoder behind its first attention."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.tokens = CrossAttention(model, f"{path}.self")
        self.image = CrossAttention(model, f"{path}.to_image")
        self.back = CrossAttention(model, f"{path}.to_tokens")
        self.ln1, self.ln2, self.ln3, self.ln4 = (
            load_norm(model, f"{path}.norm{n}", DECODER_EPS) for n in range(1, 5)
        )
        self.feed_forward = nn.Sequential(
            load_linear(model, f"{path}.up"), nn.ReLU(), load_linear(model, f"{path}.down")
        )

    def forward(
        self, tokens: Tensor, image: Tensor, starts: Tensor, places: Tensor, is_first: bool
    ) -> tuple[Tensor, Tensor]:
        if is_first:
            tokens = self.ln1(self.tokens(tokens, tokens, tokens))
        else:
            located = starts + tokens
            tokens = self.ln1(self.tokens(located, located, tokens) + tokens)
        located_image = places + image
        tokens = self.ln2(self.image(starts + tokens, located_image, image) + tokens)
        tokens = self.ln3(self.feed_forward(tokens) + tokens)
        return tokens, self.ln4(self.back(located_image, starts + tokens, tokens) + image)


class FusedLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patches = load_conv(model, "encoder.patch", PATCH)
        self.places = read_parameter(model, "encoder.position")
        self.vit = nn.ModuleList(
            VitLayer(model, f"encoder.{n}", window) for n, window in enumerate(WINDOWS)
        )
        self.neck_in = nn.Parameter(read(model, "neck.conv1.weight")[:, :, 0, 0])
        self.neck_norm1 = load_norm(model, "neck.norm1", EPS)
        self.neck_out = load_conv(model, "neck.conv2", padding=1)
        self.neck_norm2 = ChannelNorm(model, "neck.norm2")
        self.register_buffer("gaussian", read(model, "prompts.gaussian"))
        self.kinds = read_parameter(model, "prompts.not_a_point", "prompts.points")
        self.maskless = read_parameter(model, "prompts.no_mask")
        self.mask_stem = nn.Sequential(
            load_conv(model, "prompts.mask1", 2),
            ChannelNorm(model, "prompts.mask_norm1"),
            nn.GELU(),
            load_conv(model, "prompts.mask2", 2),
            ChannelNorm(model, "prompts.mask_norm2"),
            nn.GELU(),
            load_conv(model, "prompts.mask3"),
        )
        self.outputs = read_parameter(model, "decoder.score_token", "decoder.mask_tokens")
        self.layers = nn.ModuleList(
            DecoderLayer(model, f"decoder.{n}") for n in range(DECODER_LAYERS)
        )
        self.last = CrossAttention(model, "decoder.final")
        self.last_norm = load_norm(model, "decoder.final_norm", DECODER_EPS)
        self.up = nn.Sequential(
            load_deconv(model, "decoder.up1"),
            ChannelNorm(model, "decoder.up_norm"),
            nn.GELU(),
            load_deconv(model, "decoder.up2"),
            nn.GELU(),
        )
        self.hyper_weights, self.hyper_biases = (
            nn.ParameterList(
                torch.stack([read(model, f"decoder.hyper.{m}.{n}.{kind}") for m in range(MASKS)])
                for n in range(3)
            )
            for kind in ("weight", "bias")
        )
        self.quality = nn.Sequential(
            load_linear(model, "decoder.score.0"),
            nn.ReLU(),
            load_linear(model, "decoder.score.1"),
            nn.ReLU(),
            load_linear(model, "decoder.score.2"),
        )

    def encode(self, images: Tensor) -> Tensor:
        """Return image embeddings (BATCH, EMBED, *GRID)."""
        x = self.patches(images).movedim(1, -1) + self.places
        for layer in self.vit:
            x = layer(x)
        x = self.neck_norm1(F.linear(x, self.neck_in))
        return self.neck_norm2(self.neck_out(x.movedim(-1, 1)))

    def locate(self, coordinates: Tensor) -> Tensor:
        """Return Fourier features of coordinates from -1 to 1."""
        phase = F.linear(coordinates, 2 * math.pi * self.gaussian.T)
        return torch.stack((phase.sin(), phase.cos()), dim=-2).flatten(-2)

    def encode_prompts(self, points: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
        """Return tokens; labels are those of points and corners."""
        pixels = torch.cat((points, boxes.unflatten(-1, (2, 2))), dim=1)
        size = torch.tensor((WIDTH, HEIGHT), dtype=torch.float32)
        features = self.locate((2 * pixels + 1) / size - 1)
        features = features.masked_fill((labels == PADDING).unsqueeze(-1), 0.0)
        return features + F.embedding(labels + 1, self.kinds)

    def decode(self, images: Tensor, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (prompts, MASKS, pixels) and predicted IoU."""
        rows, columns = ((2 * torch.arange(n) + 1) / n - 1 for n in GRID)
        x, y = torch.meshgrid(columns, rows, indexing="xy")
        places = self.locate(torch.stack((x, y), dim=-1)).flatten(0, 1)
        starts = torch.cat((self.outputs.expand(len(prompts), -1, -1), prompts), dim=1)
        tokens, images = starts, images.flatten(2).mT
        for n, layer in enumerate(self.layers):
            tokens, images = layer(tokens, images, starts, places, is_first=n == 0)
        read_out = self.last(tokens + starts, images + places, images)
        tokens = self.last_norm(read_out + tokens)

        hyper = tokens[:, 1 : 1 + MASKS]
        for n, (weight, bias) in enumerate(zip(self.hyper_weights, self.hyper_biases, strict=True)):
            hyper = torch.einsum("bmi,moi->bmo", hyper, weight) + bias
            if n < 2:
                hyper = hyper.relu()
        pixels = self.up(images.mT.unflatten(-1, GRID)).flatten(2)
        return torch.bmm(hyper, pixels), self.quality(tokens[:, 0])

    def forward(
        self,
        images: Tensor,
        points: Tensor,
        labels: Tensor,
        boxes: Tensor,
        has_box: Tensor,
        masks: Tensor,
        has_mask: Tensor,
        targets: Tensor,
        is_prompt: Tensor,
    ) -> Tensor:
        is_ambiguous = ((labels >= 0).sum(dim=-1) + 2 * has_box < 2).flatten()
        corners = torch.tensor((2, 3)).expand(BATCH, PROMPTS, 2)
        corners = corners.masked_fill(has_box.unsqueeze(-1) == 0, PADDING)
        labels = torch.cat((labels, corners), dim=-1).flatten(0, 1)
        prompts = self.encode_prompts(points.flatten(0, 1), labels, boxes.flatten(0, 1))

        dense = self.mask_stem(masks.flatten(0, 1).unsqueeze(1))
        dense = torch.lerp(self.maskless.view(1, -1, 1, 1), dense, has_mask.view(-1, 1, 1, 1))
        embedded = self.encode(images).unsqueeze(1) + dense.unflatten(0, (BATCH, PROMPTS))
        logits, quality = self.decode(embedded.flatten(0, 1), prompts)

        targets = targets.flatten(0, 1).flatten(1).unsqueeze(1)
        signed = torch.where(targets > 0, logits, -logits)
        shares = torch.where(targets > 0, ALPHA, 1 - ALPHA)
        focal = -(shares * torch.sigmoid(-signed).square() * F.logsigmoid(signed)).mean(dim=-1)
        probabilities = torch.sigmoid(logits)
        hits = torch.bmm(probabilities, targets.mT).squeeze(-1)
        total = probabilities.sum(dim=-1) + targets.sum(dim=-1)
        losses = FOCAL_WEIGHT * focal + (total - 2 * hits) / (total + SMOOTHING)
        measured = (hits / (total - hits)).detach()
        errors = losses + SCORE_WEIGHT * (quality - measured).square()

        best = losses[:, 1:].min(dim=-1).indices + 1
        counted = F.one_hot(best * is_ambiguous, MASKS) * is_prompt.view(-1, 1)
        return (errors * counted).sum() / counted.sum()
