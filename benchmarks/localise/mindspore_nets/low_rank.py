"""Self-attention through low-rank latents, as DeepSeek-V2 (https://arxiv.org/abs/2405.04434, 2.1),
simplified.
"""

from __future__ import annotations

from architecture import Model
from mindspore import Tensor, ops

from mindspore_nets.core import CoreAttention
from mindspore_nets.linear import Linear
from mindspore_nets.norms import norm
from mindspore_nets.rotary import Rotary
from mindspore_nets.style import Named, Style


class LowRankAttention(Named):
    def __init__(self, model: Model, n: int, style: Style) -> None:
        size, layer, at = model.size, model.layers[n], f"layers.{n}.attention"
        super().__init__(
            style.names,
            **{
                part: Linear(model, f"{at}.{part}", layer)
                for part in ("q_a", "q_b", "kv_a", "kv_b", "o")
            },
            q_norm=norm(model, f"{at}.q_norm", 1e-5),
            kv_norm=norm(model, f"{at}.kv_norm", 1e-5),
            core=CoreAttention(model, layer, style),
            rotary_emb=Rotary(model, layer),
        )
        self.head_dim, self.rope_dim, self.kv_rank, self.count = (
            size.head_dim,
            size.rope_dim,
            size.kv_rank,
            size.heads,
        )
        self.keys_first = style.order == "vkq"
        self.keys_detached, self.dropped = layer.detached == "k", layer.dropout > 0
        if self.dropped:
            self.dropout_mask = Tensor(model.dropout_mask(layer))

    def heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.count, -1).transpose(0, 2, 1, 3)

    def queries(self, x):
        q = self.heads(self.q_b(self.q_norm(self.q_a(x))))
        return ops.concat((q[..., : self.head_dim], self.rotary_emb(q[..., self.head_dim :])), -1)

    def keys_and_values(self, x):
        batch, seq, _ = x.shape
        compressed = self.kv_a(x)
        latent, shared = compressed[..., : self.kv_rank], compressed[..., self.kv_rank :]
        together = self.heads(self.kv_b(self.kv_norm(latent)))
        turned = self.rotary_emb(shared.reshape(batch, 1, seq, self.rope_dim))
        keys = ops.concat(
            (together[..., : self.head_dim], ops.tile(turned, (1, self.count, 1, 1))), -1
        )
        return keys, together[..., self.head_dim :]

    def construct(self, x):
        if self.keys_first:
            k, v = self.keys_and_values(x)
            q = self.queries(x)
        else:
            q = self.queries(x)
            k, v = self.keys_and_values(x)
        if self.keys_detached:
            k = ops.stop_gradient(k)
        out = self.core(q, k, v)
        if self.dropped:
            out = out * self.dropout_mask
        return self.o(out)
