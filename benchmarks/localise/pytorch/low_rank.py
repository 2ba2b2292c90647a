"""Low-rank attention, as DeepSeek's: queries, and keys with values, through a narrow latent;
positions beside them.
"""

from __future__ import annotations

import torch
from architecture import Model
from torch import Tensor

from pytorch.attention import Attention
from pytorch.linear import linear
from pytorch.norms import norm
from pytorch.style import Style

LATENT_EPS = 1e-5


class LowRankAttention(Attention):
    """A head's query and key are head_dim dimensions without positions, then rope_dim with them."""

    def __init__(self, model: Model, n: int, style: Style) -> None:
        super().__init__(model, n, style, model.size.head_dim + model.size.rope_dim)
        at = f"layers.{n}.attention."
        self.q_a, self.q_b, self.kv_a, self.kv_b, self.o = (
            linear(model, at + part, self.layer) for part in ("q_a", "q_b", "kv_a", "kv_b", "o")
        )
        self.q_norm, self.kv_norm = (
            norm(model, at + part, LATENT_EPS) for part in ("q_norm", "kv_norm")
        )

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.style.order == "vkq":
            k, v = self.keys_and_values(x)
            return self.queries(x), k, v
        return self.queries(x), *self.keys_and_values(x)

    def queries(self, x: Tensor) -> Tensor:
        q = (
            self.q_b(self.q_norm(self.q_a(x)))
            .view(*x.shape[:2], self.size.heads, -1)
            .transpose(1, 2)
        )
        plain, placed = torch.split(q, [self.size.head_dim, self.size.rope_dim], dim=-1)
        return torch.cat([plain, self.rotated(placed)], dim=-1)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        latent, placed = torch.split(self.kv_a(x), [self.size.kv_rank, self.size.rope_dim], dim=-1)
        both = (
            self.kv_b(self.kv_norm(latent)).view(*x.shape[:2], self.size.heads, -1).transpose(1, 2)
        )
        plain, v = torch.split(both, self.size.head_dim, dim=-1)
        placed = self.rotated(placed[:, None]).expand(-1, self.size.heads, -1, -1)
        return torch.cat([plain, placed], dim=-1), v
