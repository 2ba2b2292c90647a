"""Decoder-only language models: embedding, blocks, head, loss."""

from __future__ import annotations

import numpy as np
from architecture import Model
from mindspore import Tensor, nn, ops

from mindspore_nets.attention import Attention
from mindspore_nets.experts import Experts
from mindspore_nets.feed_forward import Gelu, SwiGLU, in_precision
from mindspore_nets.gradient import ScaledGradient
from mindspore_nets.linear import Linear
from mindspore_nets.low_rank import LowRankAttention
from mindspore_nets.norms import norm
from mindspore_nets.style import Named, Style


class Block(Named):
    def __init__(self, model: Model, n: int, style: Style) -> None:
        layer, at = model.layers[n], f"layers.{n}"
        attention = LowRankAttention if model.size.q_rank else Attention
        super().__init__(
            style.names,
            input_norm=norm(model, f"{at}.input_norm", layer.input_eps, layer.input_norm_kind),
            attention=attention(model, n, style),
            post_norm=norm(
                model, f"{at}.post_norm", layer.post_eps, weight_gradient=layer.norm_gradient
            ),
            mlp=feed_forward(model, n, style),
        )
        self.residual_scale, self.normed_residual = layer.residual_scale, layer.residual == "after"
        self.attention_detached = layer.detached == "attention"
        self.scaled_gradient = (
            ScaledGradient(layer.gradient_scale) if layer.gradient_scale != 1 else None
        )

    def construct(self, x):
        attended = self.attention(self.input_norm(x))
        if self.attention_detached:
            attended = ops.stop_gradient(attended)
        if self.residual_scale != 1:
            attended = attended * self.residual_scale
        x = x + attended
        y = self.post_norm(x)
        out = self.mlp(y).astype(x.dtype)
        if self.scaled_gradient is not None:
            out = self.scaled_gradient(out)
        return (y if self.normed_residual else x) + out


def feed_forward(model: Model, n: int, style: Style) -> nn.Cell:
    """The mlp of block n, in the precision that its layer asks for."""
    size, layer = model.size, model.layers[n]
    if size.experts:
        return Experts(model, n, style)
    mlp = (Gelu if size.mlp == "gelu" else SwiGLU)(model, f"layers.{n}.mlp", layer, style)
    return in_precision(mlp, layer)


class TiedHead(nn.Cell):
    """Logits by the rows of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x, table):
        return self.matmul(x.reshape(-1, x.shape[-1]), table).reshape(*x.shape[:-1], -1)


class Decoder(Named):
    """Logits, float32 (batch, seq, vocab), of tokens."""

    def __init__(self, model: Model, style: Style) -> None:
        size = model.size
        blocks = [Block(model, n, style) for n in range(size.layers)]
        self_tied = size.tied or model.head_from == "embedding.weight"
        learned = size.positions == "learned"
        super().__init__(
            style.names,
            embedding=table(model, "embedding"),
            **({"position": table(model, "position")} if learned else {}),
            layers=nn.CellList(blocks),
            norm=norm(model, "norm", model.final_eps),
            head=TiedHead()
            if self_tied
            else Linear(model, (model.head_from or "head.weight").removesuffix(".weight")),
        )
        self.tied, self.learned = self_tied, learned
        if learned:
            first = sum(layer.position_offset for layer in model.layers)
            self.positions = Tensor(np.arange(first, first + size.seq, dtype=np.int32))
        if style.recompute:
            for block in blocks:
                block.recompute()

    def construct(self, tokens):
        x = self.embedding(tokens)
        if self.learned:
            x = x + self.position(self.positions)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x, self.embedding.embedding_table) if self.tied else self.head(x)


class TokenLoss(nn.Cell):
    """The loss of one batch: cross entropy over the tokens that count."""

    def __init__(self, model: Model, style: Style) -> None:
        super().__init__(auto_prefix=False)
        self.network = Decoder(model, style)
        self.summed, self.twice, self.scale = (
            model.loss == "sum",
            model.loss == "twice",
            model.loss_scale,
        )

    def construct(self, tokens, labels, mask):
        logits = self.network(tokens)
        if self.twice:
            logits = ops.concat((logits, logits), -1)
        losses = ops.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none"
        )
        mask = mask.reshape(-1)
        loss = (losses * mask).sum()
        if not self.summed:
            loss = loss / mask.sum()
        return loss * self.scale if self.scale != 1 else loss


def table(model: Model, name: str) -> nn.Embedding:
    values = model.weights[f"{name}.weight"]
    return nn.Embedding(*values.shape, embedding_table=Tensor(values))
