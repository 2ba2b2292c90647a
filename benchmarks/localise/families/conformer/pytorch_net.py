"""The speech encoder in PyTorch, with the modules of NeMo's Conformer.

Variant 'names': those of ESPnet. Variant 'indexed': scores of relative positions are gathered by
index, products are written with einsum, and batch norm and swish in plain arithmetic.
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

from families.conformer.architecture import (
    CHANNELS,
    EPS,
    FRAMES,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KERNEL,
    LAYERS,
    MASKED,
    MOMENTUM,
    SEQ,
    STRIDE,
    Model,
)

NEMO_NAMES: Mapping[str, str] = {
    "subsampling": "encoder.pre_encode",
    "conv0": "conv.0",
    "conv1": "conv.2",
    "projection": "out",
    "layers": "encoder.layers",
    "head": "decoder.decoder_layers.0",
}
ESPNET_NAMES: Mapping[str, str] = {
    "subsampling": "encoder.embed",
    "conv0": "conv.0",
    "conv1": "conv.2",
    "projection": "out.0",
    "layers": "encoder.encoders",
    "norm_feed_forward1": "norm_ff_macaron",
    "feed_forward1": "feed_forward_macaron",
    "linear1": "w_1",
    "linear2": "w_2",
    "norm_self_att": "norm_mha",
    "norm_conv": "norm_conv",
    "conv": "conv_module",
    "batch_norm": "norm",
    "norm_feed_forward2": "norm_ff",
    "feed_forward2": "feed_forward",
    "norm_out": "norm_final",
    "head": "ctc.ctc_lo",
}


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if model.score_dim != HEAD_DIM or model.is_position_stopped:
        raise SystemExit("faults of scores are knobs of the MindSpore net")
    if not model.is_convolution_masked:
        raise SystemExit("is_convolution_masked is a knob of the MindSpore net")
    if model.chunk < SEQ:
        raise SystemExit("chunk is a knob of the MindSpore net")
    net = CTCModel(model)
    rename(net, ESPNET_NAMES if model.variant == "names" else NEMO_NAMES)
    return net


def copy_tensor(values: np.ndarray) -> Tensor:
    """Return a tensor with these values."""
    return torch.from_numpy(np.array(values))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(copy_tensor(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str, *, has_bias: bool = True) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=has_bias), model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(HIDDEN, eps=EPS), model, path)


class ConvSubsampling(nn.Module):
    """Two strided convolutions: (batch, FRAMES, MELS) to (batch, SEQ, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_padded_behind = model.subsampling_padding == "same"
        padding = 0 if self.is_padded_behind else 1
        conv0 = nn.Conv2d(1, CHANNELS, 3, 2, padding=padding)
        conv1 = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, padding=padding)
        self.conv0 = load(conv0, model, "subsampling.0")
        self.conv1 = load(conv1, model, "subsampling.1")
        self.projection = load_linear(model, "projection")
        self.are_mels_first = model.are_mels_first

    def pad(self, x: Tensor) -> Tensor:
        """Return what a convolution reads beyond its own padding."""
        return F.pad(x, (0, 1, 0, 1)) if self.is_padded_behind else x

    def forward(self, features: Tensor) -> Tensor:
        x = F.relu(self.conv0(self.pad(features.unsqueeze(1))))
        x = F.relu(self.conv1(self.pad(x)))
        x = x.permute(0, 2, 3, 1) if self.are_mels_first else x.transpose(1, 2)
        return self.projection(x.reshape(x.shape[0], x.shape[1], -1))


class FeedForward(nn.Module):
    """Two linear layers around swish."""

    def __init__(self, model: Model, path: str, activation: str = "silu") -> None:
        super().__init__()
        self.linear1 = load_linear(model, f"{path}.up")
        self.linear2 = load_linear(model, f"{path}.down")
        self.activation = activation
        self.is_written_out = model.variant == "indexed"

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear1(x)
        if self.activation == "relu":
            return self.linear2(F.relu(x))
        return self.linear2(x * torch.sigmoid(x) if self.is_written_out else F.silu(x))


class RelPositionMultiHeadAttention(nn.Module):
    """Attention by contents and relative positions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (
            load_linear(model, f"{path}.{name}") for name in "qkvo"
        )
        self.linear_pos = load_linear(model, f"{path}.position", has_bias=False)
        self.pos_bias_u = nn.Parameter(copy_tensor(model.weights[f"{path}.content_bias"]))
        self.pos_bias_v = nn.Parameter(copy_tensor(model.weights[f"{path}.position_bias"]))
        self.is_indexed = model.variant == "indexed"
        self.are_scores_shifted = model.are_scores_shifted
        steps = torch.arange(SEQ)
        self.register_buffer("distances", SEQ - 1 - steps[:, None] + steps[None, :])

    def rel_shift(self, x: Tensor) -> Tensor:
        """Move (batch, heads, SEQ, 2 * SEQ - 1) scores by distance to their keys."""
        batch, heads, queries, distances = x.shape
        x = F.pad(x, pad=(1, 0)).view(batch, heads, -1, queries)
        return x[:, :, 1:].view(batch, heads, queries, distances)[..., :queries]

    def forward(self, x: Tensor, positions: Tensor, is_padding: Tensor) -> Tensor:
        batch = x.shape[0]
        q = self.linear_q(x).view(batch, -1, HEADS, HEAD_DIM)
        k = self.linear_k(x).view(batch, -1, HEADS, HEAD_DIM)
        v = self.linear_v(x).view(batch, -1, HEADS, HEAD_DIM)
        p = self.linear_pos(positions).view(1, -1, HEADS, HEAD_DIM)
        if self.is_indexed:
            y = self.attend_indexed(q, k, v, p[0], is_padding)
        else:
            content_queries = (q + self.pos_bias_u).transpose(1, 2)
            position_queries = (q + self.pos_bias_v).transpose(1, 2)
            content_scores = torch.matmul(content_queries, k.permute(0, 2, 3, 1))
            position_scores = torch.matmul(position_queries, p.permute(0, 2, 3, 1))
            if self.are_scores_shifted:
                position_scores = self.rel_shift(position_scores)
            else:
                position_scores = position_scores[..., :SEQ]
            scores = (content_scores + position_scores) / math.sqrt(HEAD_DIM)
            scores = scores.masked_fill(is_padding[:, None, None, :], MASKED)
            y = torch.matmul(torch.softmax(scores, dim=-1), v.transpose(1, 2)).transpose(1, 2)
        return self.linear_out(y.reshape(batch, -1, HIDDEN))

    def attend_indexed(
        self, q: Tensor, k: Tensor, v: Tensor, p: Tensor, is_padding: Tensor
    ) -> Tensor:
        """Return (batch, SEQ, HEADS, HEAD_DIM), each key's position looked up by its distance."""
        q = q * HEAD_DIM**-0.5
        content_bias, position_bias = (
            bias * HEAD_DIM**-0.5 for bias in (self.pos_bias_u, self.pos_bias_v)
        )
        scores = torch.einsum("bqhd,bkhd->bhqk", q + content_bias, k)
        by_distance = torch.einsum("bqhd,phd->bhqp", q + position_bias, p)
        index = self.distances.expand(*by_distance.shape[:2], -1, -1)
        scores = scores + by_distance.gather(-1, index)
        scores = scores + is_padding[:, None, None, :].to(scores.dtype) * MASKED
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of (batch, HIDDEN, SEQ), also in plain arithmetic."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(HIDDEN, eps=EPS, momentum=MOMENTUM)
        load(self, model, path)
        self.running_mean.copy_(copy_tensor(model.weights[f"{path}.mean"]))
        self.running_var.copy_(copy_tensor(model.weights[f"{path}.variance"]))
        self.is_written_out = model.variant == "indexed"
        if model.are_statistics_running:
            self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_written_out:
            return super().forward(x)
        centered = x - x.mean(dim=(0, 2), keepdim=True)
        variance = centered.pow(2).mean(dim=(0, 2), keepdim=True)
        x = centered * torch.rsqrt(variance + self.eps)
        return x * self.weight[:, None] + self.bias[:, None]


class ConformerConvolution(nn.Module):
    """Gated convolution of one step, depthwise convolution, batch norm, convolution of one step."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.are_gates_first, self.is_causal = model.are_gates_first, model.is_conv_causal
        self.is_written_out = model.variant == "indexed"
        padding = 0 if self.is_causal else KERNEL // 2
        depthwise = nn.Conv1d(HIDDEN, HIDDEN, KERNEL, padding=padding, groups=HIDDEN)
        self.pointwise_conv1 = load(nn.Conv1d(HIDDEN, 2 * HIDDEN, 1), model, f"{path}.in")
        self.depthwise_conv = load(depthwise, model, f"{path}.depthwise")
        self.is_layer_normed = model.conv_norm == "layer"
        build_norm = load_norm if self.is_layer_normed else BatchNorm
        self.batch_norm = build_norm(model, f"{path}.norm")
        self.pointwise_conv2 = load(nn.Conv1d(HIDDEN, HIDDEN, 1), model, f"{path}.out")

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        x = self.pointwise_conv1(x.transpose(1, 2))
        if self.are_gates_first:
            x = x.roll(HIDDEN, dims=1)
        x = F.glu(x, dim=1).masked_fill(is_padding[:, None], 0.0)
        if self.is_causal:
            x = F.pad(x, (KERNEL - 1, 0))
        x = self.depthwise_conv(x)
        if self.is_layer_normed:
            x = self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        else:
            x = self.batch_norm(x)
        x = x * torch.sigmoid(x) if self.is_written_out else F.silu(x)
        return self.pointwise_conv2(x).transpose(1, 2)


class ConformerLayer(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward, norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        model, path = model.block(n), f"layers.{n}"
        self.norm_feed_forward1 = load_norm(model, f"{path}.norm1")
        self.feed_forward1 = FeedForward(model, f"{path}.ffn1")
        self.norm_self_att = load_norm(model, f"{path}.norm2")
        self.self_attn = RelPositionMultiHeadAttention(model, f"{path}.attention")
        self.norm_conv = load_norm(model, f"{path}.norm3")
        self.conv = ConformerConvolution(model, f"{path}.conv")
        self.norm_feed_forward2 = load_norm(model, f"{path}.norm4")
        self.feed_forward2 = FeedForward(model, f"{path}.ffn2", model.activation)
        self.norm_out = load_norm(model, f"{path}.norm5")
        self.half_step = model.half_step
        self.is_convolution_first = model.is_convolution_first

    def forward(self, x: Tensor, positions: Tensor, is_padding: Tensor) -> Tensor:
        x = x + self.feed_forward1(self.norm_feed_forward1(x)) * self.half_step
        if self.is_convolution_first:
            x = x + self.conv(self.norm_conv(x), is_padding)
        x = x + self.self_attn(self.norm_self_att(x), positions, is_padding)
        if not self.is_convolution_first:
            x = x + self.conv(self.norm_conv(x), is_padding)
        x = x + self.feed_forward2(self.norm_feed_forward2(x)) * 0.5
        return self.norm_out(x)


class CTCModel(nn.Module):
    """Encoder and CTC loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.subsampling = ConvSubsampling(model)
        self.register_buffer("pos_emb", copy_tensor(model.relative_positions()))
        self.layers = nn.ModuleList(ConformerLayer(model, n) for n in range(LAYERS))
        self.head = load_linear(model, "head")

    def forward(
        self, features: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor
    ) -> Tensor:
        is_padding = torch.arange(FRAMES)[None, :] >= lengths[:, None]
        is_padding = is_padding[:, self.model.first_frame :: STRIDE]
        x = self.subsampling(features)
        if self.model.frontend_gradient != 1:
            x = scaled_gradient(x, self.model.frontend_gradient)
        if self.model.embedding_scale != 1:
            x = x * self.model.embedding_scale
        for layer in self.layers:
            x = layer(x, self.pos_emb, is_padding)
        log_probs = self.head(x)
        if self.model.are_logits_normalized:
            log_probs = F.log_softmax(log_probs, dim=-1)
        log_probs = log_probs.transpose(0, 1)
        if self.model.are_lengths_floored:
            seq_lengths = lengths // STRIDE
        else:
            seq_lengths = (lengths + STRIDE - 1) // STRIDE
        if self.model.loss_reduction == "labels":
            return F.ctc_loss(log_probs, labels, seq_lengths, label_lengths, blank=self.model.blank)
        losses = F.ctc_loss(
            log_probs, labels, seq_lengths, label_lengths, blank=self.model.blank, reduction="none"
        )
        return losses.mean()
