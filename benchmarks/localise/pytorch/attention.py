"""Attention: what all kinds share, and heads of one's own or shared by groups of queries."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from architecture import Layer, Model
from torch import Tensor, nn

from pytorch.linear import Linear, linear
from pytorch.style import Style

MASKED = -1e9


class Attention(nn.Module):
    """Queries, keys and values of (batch, seq, hidden), softmax of masked scores, projection.

    A subclass has ``heads(x)``: queries, keys and values, each (batch, heads, seq, dim), rotated.
    """

    def __init__(self, model: Model, n: int, style: Style, scored: int) -> None:
        super().__init__()
        layer = model.layers[n]
        self.size, self.layer, self.style = model.size, layer, style
        self.scale = scored**-0.5 * layer.score_scale
        self.table("mask", np.where(model.mask(layer), np.float32(MASKED), np.float32(0)))
        self.table("seen", ~model.mask(layer))
        if self.size.positions == "rope":
            cos, sin = rotary_tables(model, layer)
            self.table("cos", cos)
            self.table("sin", sin)
        if layer.dropout:
            self.table("dropout", model.dropout_mask(layer))
        if style.attention == "sdpa" and (layer.softmax_half or layer.softmax_axis != -1):
            raise SystemExit(
                "--attention sdpa shows no probabilities: no fault can be put into its softmax"
            )

    def table(self, name: str, values: np.ndarray) -> None:
        """A constant that follows the model's dtype and is no weight."""
        self.register_buffer(name, torch.from_numpy(values), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        if self.layer.detached == "k":
            k = k.detach()
        out = self.attended(q, k, v).transpose(1, 2).reshape(x.shape)
        if self.layer.dropout:
            out = out * self.dropout
        return self.o(out)

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.style.attention == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.seen, scale=self.scale)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale + self.mask
        if self.layer.softmax_half:
            probabilities = F.softmax(scores.to(torch.float16), dim=self.layer.softmax_axis).to(
                scores.dtype
            )
        else:
            probabilities = F.softmax(scores, dim=self.layer.softmax_axis)
        return torch.matmul(probabilities, v)

    def rotated(self, x: Tensor) -> Tensor:
        """(batch, heads, seq, dim) turned by the positions, in halves or in interleaved pairs."""
        if self.layer.rope_interleaved:
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        else:
            half = x.shape[-1] // 2
            turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos + turned * self.sin


class GroupedAttention(Attention):
    """Keys and values shared by as many queries as there are to a group, one included."""

    def __init__(self, model: Model, n: int, style: Style) -> None:
        super().__init__(model, n, style, model.size.head_dim)
        at = f"layers.{n}.attention."
        if style.fused == "blocks":
            self.qkv = fused_qkv(model, n)
        else:
            self.q, self.k, self.v = (linear(model, at + part, self.layer) for part in "qkv")
        self.o = linear(model, at + "o", self.layer)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (part.transpose(1, 2) for part in self.projected(x))
        if self.size.positions == "rope":
            q, k = self.rotated(q), self.rotated(k)
        return q, self.repeated(k), self.repeated(v)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, seq, heads, dim), keys and values (batch, seq, groups, dim)."""
        dim = self.size.head_dim
        if self.style.fused == "none":
            parts = {
                part: getattr(self, part)(x).view(*x.shape[:2], -1, dim)
                for part in self.style.order
            }
            return parts["q"], parts["k"], parts["v"]
        groups = self.qkv(x).view(*x.shape[:2], self.size.kv_heads, -1)
        q, k, v = torch.split(groups, [groups.shape[-1] - 2 * dim, dim, dim], dim=-1)
        return q.reshape(*x.shape[:2], -1, dim), k, v

    def repeated(self, x: Tensor) -> Tensor:
        """(batch, groups, seq, dim) to (batch, heads, seq, dim): each group once for each of its
        queries.
        """
        batch, groups, seq, dim = x.shape
        if groups == self.size.heads:
            return x
        x = x[:, :, None].expand(batch, groups, self.size.heads // groups, seq, dim)
        return x.reshape(batch, self.size.heads, seq, dim)


def fused_qkv(model: Model, n: int) -> Linear:
    """One linear layer for q, k and v; a bias knob of one of them cannot be told apart here:
    SystemExit.
    """
    layer = model.layers[n]
    if {layer.no_bias, layer.double_bias} & {*"qkv"}:
        raise SystemExit(
            "--fused blocks adds one bias: use --fused none for a fault in that of q, k or v"
        )
    return Linear(model.fused(n, "qkv"), model.fused(n, "qkv", "bias") if model.size.bias else None)


def rotary_tables(model: Model, layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine (seq, dim) in the layer's pairing."""
    cos, sin = model.rope(layer)
    if layer.rope_interleaved:
        cos, sin = (np.repeat(table[:, : table.shape[1] // 2], 2, axis=1) for table in (cos, sin))
    return cos, sin
