"""The decoders: embedding, blocks, head, loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from architecture import Model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytorch.attention import GroupedAttention
from pytorch.experts import Experts
from pytorch.feed_forward import FeedForward, GatedFeedForward
from pytorch.gradient import scaled_gradient
from pytorch.linear import Linear, parameter
from pytorch.low_rank import LowRankAttention
from pytorch.norms import norm
from pytorch.style import Style


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, model: Model, n: int, style: Style) -> None:
        super().__init__()
        self.layer = layer = model.layers[n]
        at = f"layers.{n}."
        self.input_norm = norm(model, at + "input_norm", layer.input_eps, layer.input_norm_kind)
        self.attention = (LowRankAttention if model.size.q_rank else GroupedAttention)(
            model, n, style
        )
        self.post_norm = norm(model, at + "post_norm", layer.post_eps)
        if layer.norm_gradient != 1:
            self.post_norm.weight.register_hook(lambda gradient: gradient * layer.norm_gradient)
        self.mlp = feed_forward(model, n, style)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.input_norm(x))
        if self.layer.detached == "attention":
            attended = attended.detach()
        if self.layer.residual_scale != 1:
            attended = attended * self.layer.residual_scale
        x = x + attended
        y = self.post_norm(x)
        return (x if self.layer.residual == "before" else y) + self.fed(y)

    def fed(self, y: Tensor) -> Tensor:
        """The mlp, in the layer's precision."""
        precision = self.layer.compute
        out = self.mlp(y.to(getattr(torch, precision))).to(y.dtype) if precision else self.mlp(y)
        return (
            out
            if self.layer.gradient_scale == 1
            else scaled_gradient(out, self.layer.gradient_scale)
        )


def feed_forward(model: Model, n: int, style: Style) -> nn.Module:
    """The mlp of layer n, of the model's kind."""
    path = f"layers.{n}.mlp"
    if model.size.mlp == "experts":
        return Experts(model, n, path, style)
    return (
        FeedForward(model, n, path)
        if model.size.mlp == "gelu"
        else GatedFeedForward(model, n, path, style)
    )


class Embedding(nn.Module):
    """Rows of a table."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = parameter(model.weights[f"{path}.weight"])

    def forward(self, rows: Tensor) -> Tensor:
        return F.embedding(rows, self.weight)


class Decoder(nn.Module):
    """Tokens, labels (batch, seq) and the loss mask to the loss."""

    def __init__(self, model: Model, style: Style) -> None:
        super().__init__()
        self.model, self.style, size = model, style, model.size
        self.embedding = Embedding(model, "embedding")
        if size.positions == "learned":
            self.position = Embedding(model, "position")
        self.layers = nn.ModuleList(Block(model, n, style) for n in range(size.layers))
        self.norm = norm(model, "norm", model.final_eps)
        source = model.head_from or ("embedding.weight" if size.tied else "head.weight")
        self.head = Linear(model.weights[source])
        if source != "head.weight":
            self.head.weight = self.get_parameter(source)

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.model.size.positions == "learned":
            offset = max(layer.position_offset for layer in self.model.layers)
            x = x + self.position(torch.arange(offset, offset + tokens.shape[1]))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.style.recompute else layer(x)
        return self.loss(self.head(self.norm(x)), labels, mask)

    def loss(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Cross entropy of the tokens that count, their mean unless the spec says otherwise."""
        logits = logits.float().view(-1, logits.shape[-1])
        if self.model.loss == "twice":
            logits = torch.cat([logits, logits], -1)
        each = F.cross_entropy(logits, labels.view(-1), reduction="none")
        loss = (each * mask.view(-1)).sum()
        if self.model.loss != "sum":
            loss = loss / mask.sum()
        return loss if self.model.loss_scale == 1 else loss * self.model.loss_scale
