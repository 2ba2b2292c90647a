"""An attention model for vehicle routing in PyTorch, with modules named as those of Kool's code.

Variant 'parallel': other names, all steps of the decoder at once with states from cumulative sums,
fused attention, norms as functions, likelihoods as cross entropies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.pointer.architecture import (
    BATCH,
    CLIP,
    ENTROPY_WEIGHT,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    MASKED,
    MIX,
    NODES,
    STARTS,
    STEPS,
    TINY,
    TOLERANCE,
    VALUE_WEIGHT,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return ParallelLoss(model) if model.variant == "parallel" else ReinforceLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return torch.cat([torch.from_numpy(model.weights[name]) for name in names]).clone()


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return a linear layer, or several ones of the same input as one."""
    weight = read(model, *(f"{path}.weight" for path in paths))
    has_bias = f"{paths[0]}.bias" in model.weights
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias)
    layer.weight.data.copy_(weight)
    if has_bias:
        layer.bias.data.copy_(read(model, *(f"{path}.bias" for path in paths)))
    return layer


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return the attention of heads to what is not hidden."""
    compatibility = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(HEAD_DIM)
    compatibility = compatibility.masked_fill(mask, -math.inf)
    return torch.matmul(torch.softmax(compatibility, dim=-1), v)


class RecomputedAttention(Function):
    """The same with its own backward pass, which computes weights again, without the mask."""

    @staticmethod
    def forward(context, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        context.save_for_backward(q, k, v)
        return attend(q, k, v, mask)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = context.saved_tensors
        attn = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(HEAD_DIM), dim=-1)
        attn_gradient = torch.matmul(gradient, v.transpose(-2, -1))
        centered = attn_gradient - (attn_gradient * attn).sum(dim=-1, keepdim=True)
        score_gradient = attn * centered / math.sqrt(HEAD_DIM)
        return (
            torch.matmul(score_gradient, k),
            torch.matmul(score_gradient.transpose(-2, -1), q),
            torch.matmul(attn.transpose(-2, -1), gradient),
            None,
        )


def split_heads(x: Tensor) -> Tensor:
    """Return (batch, HEADS, rows, HEAD_DIM)."""
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


class MultiHeadAttention(nn.Module):
    """Attention between nodes."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.W_query = load_linear(model, f"{path}.q")
        self.W_key = load_linear(model, f"{path}.k")
        self.W_val = load_linear(model, f"{path}.v")
        self.W_out = load_linear(model, f"{path}.out")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (split_heads(layer(x)) for layer in (self.W_query, self.W_key, self.W_val))
        heads = attend(q, k, v, mask[:, None, None, :])
        return self.W_out(heads.transpose(1, 2).flatten(2))


class Normalization(nn.Module):
    """Batch norm of nodes."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.normalizer = nn.BatchNorm1d(HIDDEN, eps=EPS)
        state = {name: read(model, f"{path}.{name}") for name in ("weight", "bias")}
        self.normalizer.load_state_dict(state, strict=False)
        self.is_padding_normed = model.is_padding_normed

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        flat = x.view(-1, x.size(-1))
        if self.is_padding_normed:
            return self.normalizer(flat).view(x.size())
        out = torch.zeros_like(flat)
        return out.index_copy(0, rows, self.normalizer(flat[rows])).view(x.size())


class MultiHeadAttentionLayer(nn.Module):
    """A layer of the encoder."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.mha = MultiHeadAttention(model, path)
        self.norm1 = Normalization(model, f"{path}.attention_norm")
        up, down = load_linear(model, f"{path}.up"), load_linear(model, f"{path}.down")
        self.ff = nn.Sequential(up, nn.ReLU(), down)
        self.norm2 = Normalization(model, f"{path}.feed_forward_norm")

    def forward(self, h: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        h = self.norm1(h + self.mha(h, mask), rows)
        return self.norm2(h + self.ff(h), rows)


class GraphAttentionEncoder(nn.Module):
    """Embeddings of nodes, and their mean."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.init_embed_depot = load_linear(model, "embed.depot")
        self.init_embed = load_linear(model, "embed.customer")
        self.layers = nn.ModuleList(
            MultiHeadAttentionLayer(model, f"layers.{n}") for n in range(LAYERS)
        )
        self.node_gradient = model.node_gradient

    def forward(
        self, depot: Tensor, loc: Tensor, demand: Tensor, padding: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        customers = self.init_embed(torch.cat((loc, demand[:, :, None]), -1))
        h = torch.cat((self.init_embed_depot(depot)[:, None, :], customers), 1)
        for layer in self.layers:
            h = layer(h, padding, rows)
        if self.node_gradient != 1:
            h.register_hook(lambda gradient: gradient * self.node_gradient)
        count = (~padding).sum(dim=1, keepdim=True)
        return h, h.masked_fill(padding[:, :, None], 0).sum(dim=1) / count


@dataclass
class StateCVRP:
    """Where vehicles are, what they have left, and which nodes were visited or are padding."""

    demand: Tensor  #: (batch, STARTS, NODES), 0 of the depot
    visited: Tensor
    prev_a: Tensor
    capacity: Tensor

    @staticmethod
    def initialize(demand: Tensor, padding: Tensor) -> StateCVRP:
        demand = F.pad(demand, (1, 0))[:, None, :].expand(-1, STARTS, -1)
        visited = padding[:, None, :].expand(-1, STARTS, -1)
        full = torch.ones_like(demand[:, :, 0])
        return StateCVRP(demand, visited, torch.zeros_like(full, dtype=torch.long), full)

    def update(self, selected: Tensor) -> StateCVRP:
        """Return the state behind an action."""
        index = selected[:, :, None]
        left = self.capacity - self.demand.gather(2, index).squeeze(2)
        left = torch.where(selected == 0, torch.ones_like(left), left)
        visited = self.visited.scatter(2, index, True)
        return StateCVRP(self.demand, visited, selected, left)

    def get_mask(self) -> Tensor:
        """Return which nodes cannot be next."""
        visited = self.visited[:, :, 1:]
        mask_loc = visited | (self.demand[:, :, 1:] > self.capacity[:, :, None] + TOLERANCE)
        mask_depot = (self.prev_a == 0) & ~visited.all(dim=-1)
        return torch.cat((mask_depot[:, :, None], mask_loc), -1)


class Decoder(nn.Module):
    """Logarithms of the probabilities of nodes for a state."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        names = ("glimpse_key", "glimpse_value", "logit_key")
        self.project_node_embeddings = load_linear(model, *(f"decoder.{name}" for name in names))
        self.project_fixed_context = load_linear(model, "decoder.fixed_context")
        self.project_step_context = load_linear(model, "decoder.step_context")
        self.project_out = load_linear(model, "decoder.out")
        self.attend = attend if model.is_mask_recomputed else RecomputedAttention.apply

    def precompute(self, embeddings: Tensor, graph: Tensor) -> tuple[Tensor, ...]:
        """Return what is the same at all steps."""
        keys = self.project_node_embeddings(embeddings).chunk(3, dim=-1)
        glimpse_key, glimpse_value, logit_key = keys
        fixed_context = self.project_fixed_context(graph)[:, None, :]
        return fixed_context, split_heads(glimpse_key), split_heads(glimpse_value), logit_key

    def forward(self, embeddings: Tensor, fixed: tuple[Tensor, ...], state: StateCVRP) -> Tensor:
        fixed_context, glimpse_key, glimpse_value, logit_key = fixed
        index = state.prev_a[:, :, None].expand(-1, -1, HIDDEN)
        last = embeddings.gather(1, index)
        step_context = torch.cat((last, state.capacity[:, :, None]), -1)
        query = fixed_context + self.project_step_context(step_context)

        mask = state.get_mask()
        heads = self.attend(split_heads(query), glimpse_key, glimpse_value, mask[:, None])
        glimpse = self.project_out(heads.transpose(1, 2).flatten(2))
        logits = torch.matmul(glimpse, logit_key.transpose(-2, -1)) / math.sqrt(HIDDEN)
        logits = torch.tanh(logits) * CLIP
        return torch.log_softmax(logits.masked_fill(mask, MASKED), dim=-1)


class CriticNetwork(nn.Module):
    """Lengths of tours, (batch,)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        hidden, out = load_linear(model, "critic.hidden"), load_linear(model, "critic.out")
        self.value_head = nn.Sequential(hidden, nn.ReLU(), out)

    def forward(self, graph: Tensor) -> Tensor:
        return self.value_head(graph).squeeze(-1)


def get_costs(depot: Tensor, loc: Tensor, pi: Tensor) -> Tensor:
    """Return lengths of tours (batch, STARTS)."""
    nodes = torch.cat((depot[:, None, :], loc), 1)[:, None].expand(-1, STARTS, -1, -1)
    d = nodes.gather(2, pi[..., None].expand(-1, -1, -1, 2))
    first, last = d[:, :, 0], d[:, :, -1]
    legs = (d[:, :, 1:] - d[:, :, :-1]).norm(p=2, dim=-1).sum(-1)
    depot = depot[:, None, :]
    return legs + (first - depot).norm(p=2, dim=-1) + (last - depot).norm(p=2, dim=-1)


class ReinforceLoss(nn.Module):
    """Policy, critic and entropy."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedder = GraphAttentionEncoder(model)
        self.decoder = Decoder(model)
        self.critic = CriticNetwork(model)
        self.baseline_axis = model.baseline_axis

    def evaluate(
        self, embeddings: Tensor, graph: Tensor, demand: Tensor, padding: Tensor, pi: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return logarithms of actions' probabilities, and entropies, (batch, STARTS, steps)."""
        fixed = self.decoder.precompute(embeddings, graph)
        state = StateCVRP.initialize(demand, padding).update(pi[:, :, 0])
        log_ps, entropies = [], []
        for i in range(1, STEPS):
            log_p = self.decoder(embeddings, fixed, state)
            selected = pi[:, :, i]
            log_ps.append(log_p.gather(2, selected[:, :, None]).squeeze(-1))
            entropies.append(-(log_p.exp() * log_p).sum(dim=-1))
            state = state.update(selected)
        return torch.stack(log_ps, 2), torch.stack(entropies, 2)

    def forward(
        self,
        depot: Tensor,
        loc: Tensor,
        demand: Tensor,
        sizes: Tensor,
        rows: Tensor,
        pi: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        padding = torch.arange(NODES, device=sizes.device) > sizes[:, None]
        embeddings, graph = self.embedder(depot, loc, demand, padding, rows)
        log_p, entropy = self.evaluate(embeddings, graph, demand, padding, pi)
        live = (torch.arange(1, STEPS, device=pi.device) < lengths[:, :, None]).float()
        ll = (log_p * live).sum(dim=-1)
        entropy = (entropy * live).sum() / live.sum()

        cost = get_costs(depot, loc, pi)
        value = self.critic(graph)[:, None].expand_as(cost)
        shared = cost.mean(dim=self.baseline_axis, keepdim=True)
        advantage = cost - (MIX * value.detach() + (1 - MIX) * shared)
        advantage = (advantage - advantage.mean()) / (advantage.std() + TINY)
        reinforce_loss = (advantage * ll).mean()
        return reinforce_loss + VALUE_WEIGHT * F.mse_loss(value, cost) - ENTROPY_WEIGHT * entropy


class EncoderBlock(nn.Module):
    """A layer of the encoder with one matrix for queries, keys and values."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.qkv = load_linear(model, *(f"{path}.{name}" for name in "qkv"))
        self.combine = load_linear(model, f"{path}.out")
        self.fc1, self.fc2 = load_linear(model, f"{path}.up"), load_linear(model, f"{path}.down")
        self.gamma1, self.beta1, self.gamma2, self.beta2 = (
            nn.Parameter(read(model, f"{path}.{norm}.{name}"))
            for norm in ("attention_norm", "feed_forward_norm")
            for name in ("weight", "bias")
        )

    def normalize(self, x: Tensor, is_node: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        """Return the batch norm of nodes, and zeros of padding."""
        nodes = F.batch_norm(x[is_node], None, None, gamma, beta, training=True, eps=EPS)
        return torch.zeros_like(x).masked_scatter(is_node[:, :, None], nodes)

    def forward(self, x: Tensor, is_node: Tensor) -> Tensor:
        qkv = self.qkv(x).view(BATCH, NODES, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(*qkv, attn_mask=is_node[:, None, None, :])
        x = x + self.combine(context.transpose(1, 2).reshape(BATCH, NODES, HIDDEN))
        x = self.normalize(x, is_node, self.gamma1, self.beta1)
        x = x + self.fc2(F.relu(self.fc1(x)))
        return self.normalize(x, is_node, self.gamma2, self.beta2)


class ParallelPointer(nn.Module):
    """Logits of nodes at all steps of all tours, (batch, STARTS, steps, NODES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.key, self.value, self.pointer_key = (
            load_linear(model, f"decoder.{name}")
            for name in ("glimpse_key", "glimpse_value", "logit_key")
        )
        self.graph_query = load_linear(model, "decoder.fixed_context")
        step_context = read(model, "decoder.step_context.weight")
        self.node_query = nn.Parameter(step_context[:, :HIDDEN].contiguous())
        self.load_query = nn.Parameter(step_context[:, HIDDEN].contiguous())
        self.combine = load_linear(model, "decoder.out")

    def forward(
        self, nodes: Tensor, graph: Tensor, last: Tensor, left: Tensor, is_open: Tensor
    ) -> Tensor:
        queries = F.linear(nodes, self.node_query) + self.graph_query(graph)[:, None]
        n_queries = STARTS * (STEPS - 1)
        picked = torch.take_along_dim(queries, last.reshape(BATCH, n_queries, 1), dim=1)
        query = torch.addcmul(picked, left.reshape(BATCH, n_queries, 1), self.load_query)
        context = F.scaled_dot_product_attention(
            split_heads(query),
            split_heads(self.key(nodes)),
            split_heads(self.value(nodes)),
            attn_mask=is_open.reshape(BATCH, 1, n_queries, NODES),
        )
        glimpse = self.combine(context.transpose(1, 2).reshape(BATCH, n_queries, HIDDEN))
        scores = torch.einsum("bqd,bnd->bqn", glimpse * HIDDEN**-0.5, self.pointer_key(nodes))
        logits = CLIP * scores.tanh().view_as(is_open)
        return torch.where(is_open, logits, MASKED)


class ParallelLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.depot_embedding = load_linear(model, "embed.depot")
        self.node_embedding = load_linear(model, "embed.customer")
        self.blocks = nn.ModuleList(EncoderBlock(model, f"layers.{n}") for n in range(LAYERS))
        self.pointer = ParallelPointer(model)
        self.value1 = load_linear(model, "critic.hidden")
        self.value2 = load_linear(model, "critic.out")

    def follow(self, demand: Tensor, is_node: Tensor, tours: Tensor) -> tuple[Tensor, Tensor]:
        """Return what vehicles have left behind each step, and which nodes are open then."""
        demand = F.pad(demand, (1, 0))[:, None, None, :]
        chosen = F.one_hot(tours, NODES)
        total = (chosen * demand).sum(dim=-1).cumsum(dim=2)
        returned = torch.where(tours == 0, total, 0.0).cummax(dim=2).values
        left = (1 + returned - total)[:, :, :-1]
        is_unserved = (chosen.cumsum(dim=2)[:, :, :-1] == 0) & is_node[:, None, None, :]
        is_open = is_unserved & (demand <= left[..., None] + TOLERANCE)
        is_unfinished = is_unserved[..., 1:].any(dim=-1)
        is_depot_open = (tours[:, :, :-1] > 0) | ~is_unfinished
        return left, torch.cat((is_depot_open[..., None], is_open[..., 1:]), dim=-1)

    def forward(
        self,
        depot: Tensor,
        customers: Tensor,
        demand: Tensor,
        sizes: Tensor,
        rows: Tensor,
        tours: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        is_node = torch.zeros(BATCH * NODES, dtype=torch.bool).index_fill(0, rows, True)
        is_node = is_node.view(BATCH, NODES)
        features = torch.cat((customers, demand.unsqueeze(-1)), dim=-1)
        x = torch.cat((self.depot_embedding(depot).unsqueeze(1), self.node_embedding(features)), 1)
        for block in self.blocks:
            x = block(x, is_node)
        graph = x.sum(dim=1) / (sizes.unsqueeze(1) + 1)

        left, is_open = self.follow(demand, is_node, tours)
        logits = self.pointer(x, graph, tours[:, :, :-1], left, is_open)
        is_live = torch.arange(1, STEPS) < lengths.unsqueeze(-1)
        nll = F.cross_entropy(logits.flatten(0, 2), tours[:, :, 1:].flatten(), reduction="none")
        nll = (nll.view_as(is_live) * is_live).sum(dim=-1)
        probs = logits.softmax(dim=-1)
        entropy = (logits.logsumexp(dim=-1) - (probs * logits).sum(dim=-1))[is_live].mean()

        nodes = torch.cat((depot.unsqueeze(1), customers), dim=1)
        path = F.pad(tours, (1, 1)).view(BATCH, -1, 1)
        path = torch.take_along_dim(nodes, path, dim=1).view(BATCH, STARTS, STEPS + 2, 2)
        length = torch.hypot(*path.diff(dim=2).unbind(dim=-1)).sum(dim=-1)
        value = self.value2(F.relu(self.value1(graph)))
        baseline = torch.lerp(length.mean(dim=1, keepdim=True), value.detach(), MIX)
        deviation, mean = torch.std_mean(length - baseline)
        advantage = (length - baseline - mean) / (deviation + TINY)
        loss = VALUE_WEIGHT * (value - length).square().mean() - (advantage * nll).mean()
        return loss - ENTROPY_WEIGHT * entropy
