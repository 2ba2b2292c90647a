"""A mixture of experts: each takes the tokens that chose it, as Hugging Face's Mixtral dispatches
them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from architecture import Model
from torch import Tensor, nn

from pytorch.feed_forward import GatedFeedForward
from pytorch.linear import linear
from pytorch.style import Style


class Experts(nn.Module):
    """The sum over a token's top_k experts of weight * expert(token)."""

    def __init__(self, model: Model, n: int, path: str, style: Style) -> None:
        super().__init__()
        self.layer, self.top_k = model.layers[n], model.size.top_k
        self.router = linear(model, f"{path}.router", self.layer)
        held = self.layer.expert_order or range(model.size.experts)
        self.experts = nn.ModuleList(
            GatedFeedForward(model, n, f"{path}.experts.{e}", style) for e in held
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.routed(tokens)
        out = torch.zeros_like(tokens)
        for e, expert in enumerate(self.experts):
            token, place = torch.where(chosen == e)
            if self.layer.capacity:
                token, place = token[: self.layer.capacity], place[: self.layer.capacity]
            if e == self.layer.missing_expert or not len(token):
                continue
            computed = expert(tokens[token]) * weights[token, place, None].to(x.dtype)
            out.index_add_(0, token, computed)
        return out.view(x.shape)

    def routed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Weights, float32, and numbers of the chosen experts, (tokens, top_k) each."""
        logits = self.router(tokens).float()
        if self.layer.detached == "router":
            logits = logits.detach()
        probabilities = (
            torch.sigmoid(logits) if self.layer.router_sigmoid else F.softmax(logits, dim=-1)
        )
        weights, chosen = torch.topk(probabilities, self.top_k, dim=-1)
        if self.layer.normalise_router:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen
