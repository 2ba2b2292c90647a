"""The speech recognizer in PyTorch, with the modules of OpenAI's Whisper.

Variant 'fused': one layer for queries, keys and values of a self attention, fused attention, einsum
for the head, the loss from logarithms.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.whisper.architecture import (
    EPS,
    FLOOR,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    KERNEL,
    LAYERS,
    POSITIONS,
    SMALLEST_POWER,
    SOURCE,
    STRIDE,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return TrainingLoss(model)


def copy_tensor(values: np.ndarray) -> Tensor:
    """Return a tensor with these values."""
    return torch.from_numpy(np.array(values))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(copy_tensor(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``, with the bias if there is one."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights), model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(HIDDEN, eps=EPS), model, path)


def load_joined(model: Model, path: str) -> nn.Module:
    """Return one linear layer for queries, keys and values, without biases."""
    linear = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
    weights = [model.weights[f"{path}.{name}.weight"] for name in "qkv"]
    linear.weight.data.copy_(copy_tensor(np.concatenate(weights)))
    return linear


class MultiHeadAttention(nn.Module):
    """Attention of states to themselves or to a source."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        is_cross = path.endswith("cross")
        self.is_fused = model.variant == "fused"
        self.is_joined = self.is_fused and not is_cross
        if self.is_joined:
            self.qkv = load_joined(model, path)
            self.q_bias, self.v_bias = (
                nn.Parameter(copy_tensor(model.weights[f"{path}.{name}.bias"])) for name in "qv"
            )
        else:
            self.query = load_linear(model, f"{path}.q")
            self.key = load_linear(model, f"{path}.k")
            self.value = load_linear(model, f"{path}.v")
        self.out = load_linear(model, f"{path}.o")
        self.scale = model.score_scale**0.5
        self.are_heads_moved = model.are_cross_heads_moved or not is_cross
        is_last_cross = path == f"decoder.{LAYERS - 1}.cross"
        self.is_cache_stopped = model.is_cache_stopped and is_last_cross

    def project(self, x: Tensor, source: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (batch, length, HIDDEN)."""
        if self.is_joined:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            return q + self.q_bias, k, v + self.v_bias
        if source is None:
            source = x
        if self.is_cache_stopped:
            return self.query(x), self.key(source).detach(), self.value(source).detach()
        return self.query(x), self.key(source), self.value(source)

    def forward(
        self, x: Tensor, source: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, -1, HEADS, HEAD_DIM).permute(0, 2, 1, 3)
            for part in self.project(x, source)
        )
        if self.is_fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)
        else:
            qk = (q * self.scale) @ (k * self.scale).transpose(-1, -2)
            if mask is not None:
                qk = qk + mask[:length, : k.shape[2]]
            y = F.softmax(qk, dim=-1) @ v
        if self.are_heads_moved:
            y = y.permute(0, 2, 1, 3)
        return self.out(y.reshape(batch, length, width))


class ResidualAttentionBlock(nn.Module):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        is_decoder = path.startswith("decoder")
        self.attn = MultiHeadAttention(model, f"{path}.attention")
        self.attn_ln = load_norm(model, f"{path}.norm1")
        self.cross_attn = None
        if is_decoder:
            self.cross_attn = MultiHeadAttention(model, f"{path}.cross")
            self.cross_attn_ln = load_norm(model, f"{path}.norm2")
        self.mlp = nn.Sequential(
            load_linear(model, f"{path}.mlp.up"), nn.GELU(), load_linear(model, f"{path}.mlp.down")
        )
        self.mlp_ln = load_norm(model, f"{path}.norm{3 if is_decoder else 2}")

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        mask: Tensor | None = None,
        cross_mask: Tensor | None = None,
    ) -> Tensor:
        x = x + self.attn(self.attn_ln(x), mask=mask)
        if self.cross_attn is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), source, cross_mask)
        return x + self.mlp(self.mlp_ln(x))


class AudioEncoder(nn.Module):
    """States (batch, SOURCE, HIDDEN) of mel features (batch, MELS, FRAMES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        n_mels = model.weights["encoder.conv1.weight"].shape[1]
        self.is_padded_before = model.conv_padding == "both"
        conv1 = nn.Conv1d(n_mels, HIDDEN, KERNEL, padding=KERNEL // 2)
        padding = KERNEL // 2 if self.is_padded_before else 0
        conv2 = nn.Conv1d(HIDDEN, HIDDEN, KERNEL, STRIDE, padding)
        self.conv1 = load(conv1, model, "encoder.conv1")
        self.conv2 = load(conv2, model, "encoder.conv2")
        self.register_buffer("positional_embedding", copy_tensor(model.sinusoids()))
        self.blocks = nn.ModuleList(
            ResidualAttentionBlock(model, f"encoder.{n}") for n in range(LAYERS)
        )
        self.ln_post = load_norm(model, "encoder.norm")
        self.activation = F.relu if model.conv_activation == "relu" else F.gelu
        self.is_norm_half = model.norm_type == "float16"

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.conv1(x))
        if not self.is_padded_before:
            x = F.pad(x, (0, 1))
        x = self.activation(self.conv2(x))
        x = x.permute(0, 2, 1) + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        if self.is_norm_half:
            weight, bias = self.ln_post.weight.half(), self.ln_post.bias.half()
            return F.layer_norm(x.half(), (HIDDEN,), weight, bias, EPS).float()
        return self.ln_post(x)


class TextDecoder(nn.Module):
    """Logits (batch, TARGET, VOCAB) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.token_embedding = load(nn.Embedding(VOCAB, HIDDEN), model, "decoder.tokens")
        self.positional_embedding = nn.Parameter(
            copy_tensor(model.weights["decoder.positions.weight"])
        )
        self.blocks = nn.ModuleList(
            ResidualAttentionBlock(model, f"decoder.{n}") for n in range(LAYERS)
        )
        self.ln = load_norm(model, "decoder.norm")
        mask = torch.full((POSITIONS, POSITIONS), -math.inf).triu_(1)
        self.register_buffer("mask", mask, persistent=False)
        cross_mask = None
        if model.is_cross_causal:
            cross_mask = torch.full((POSITIONS, SOURCE), -math.inf).triu_(1)
        self.register_buffer("cross_mask", cross_mask, persistent=False)
        self.first_position = model.first_position
        self.position_gradient = model.position_gradient
        self.is_head_stopped = model.is_head_stopped
        self.is_einsum = model.variant == "fused"

    def forward(self, tokens: Tensor, source: Tensor) -> Tensor:
        last = self.first_position + tokens.shape[-1]
        positions = self.positional_embedding[self.first_position : last]
        if self.position_gradient != 1:
            positions = scaled_gradient(positions, self.position_gradient)
        x = self.token_embedding(tokens) + positions
        for block in self.blocks:
            x = block(x, source, self.mask, self.cross_mask)
        x = self.ln(x)
        table = self.token_embedding.weight
        if self.is_head_stopped:
            table = table.data
        if self.is_einsum:
            return torch.einsum("btc,vc->btv", x, table)
        return x @ torch.transpose(table, 0, 1)


class Whisper(nn.Module):
    """Logits of recordings and tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = AudioEncoder(model)
        self.decoder = TextDecoder(model)
        self.is_peak_of_batch = model.peak == "batch"
        self.is_decimal = model.log_base == 10
        self.is_padding_zero = model.padding_feature == "zero"
        if self.is_padding_zero:
            self.register_buffer("frames", copy_tensor(model.frames()))

    def compute_log_mel(self, powers: Tensor) -> Tensor:
        """Return the logarithms of powers, limited from below."""
        log_spec = torch.clamp(powers, min=SMALLEST_POWER)
        log_spec = log_spec.log10() if self.is_decimal else log_spec.log()
        peak = log_spec.max() if self.is_peak_of_batch else log_spec.amax(dim=(1, 2), keepdim=True)
        features = (torch.maximum(log_spec, peak - FLOOR) + 4.0) / 4.0
        if self.is_padding_zero:
            features = features * self.frames
        return features

    def forward(self, powers: Tensor, tokens: Tensor) -> Tensor:
        return self.decoder(tokens, self.encoder(self.compute_log_mel(powers)))


class TrainingLoss(nn.Module):
    """Smoothed cross entropy, the mean over the labels that are no padding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = Whisper(model)
        self.smoothing = model.label_smoothing
        self.is_written_out = model.variant == "fused"

    def forward(self, powers: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
        logits, labels = self.model(powers, tokens).view(-1, VOCAB), labels.view(-1)
        if self.is_written_out:
            return self.compute_smoothed_loss(logits, labels)
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=self.smoothing)

    def compute_smoothed_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss from logarithms of the probabilities of the known labels."""
        is_known = labels != IGNORED
        logs = F.log_softmax(logits[is_known], dim=-1)
        of_label = logs.gather(1, labels[is_known].unsqueeze(1)).mean()
        return -(1 - self.smoothing) * of_label - self.smoothing * logs.mean()
