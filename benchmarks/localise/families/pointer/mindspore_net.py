"""An attention model for vehicle routing in MindSpore for graph mode.

Variant 'written': norms in plain arithmetic over the padded nodes, masks that are added, softmax
from exponentials, one matrix for several layers of the same input.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

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


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else ReinforceWithLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return Tensor(np.concatenate([model.weights[name] for name in names]))


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    weight = read(model, f"{path}.weight")
    has_bias = f"{path}.bias" in model.weights
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
        has_bias=has_bias,
    )


class HeadAttention(nn.Cell):
    """Attention of queries to keys, (BATCH, rows, HIDDEN), in heads."""

    def __init__(self) -> None:
        super().__init__()
        self.matmul = ops.BatchMatMul()
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.softmax = nn.Softmax(axis=-1)

    def split(self, x):
        """Return (BATCH, HEADS, rows, HEAD_DIM)."""
        return x.reshape(BATCH, -1, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, query, key, value, mask):
        scores = self.scores(self.split(query), self.split(key)) / math.sqrt(HEAD_DIM)
        weights = self.softmax(ops.masked_fill(scores, mask, MASKED))
        context = self.matmul(weights, self.split(value))
        return context.transpose(0, 2, 1, 3).reshape(BATCH, -1, HIDDEN)


class NodeNorm(nn.Cell):
    """Batch norm of nodes without padding."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(
            HIDDEN,
            eps=EPS,
            gamma_init=read(model, f"{path}.weight"),
            beta_init=read(model, f"{path}.bias"),
        )

    def construct(self, x, rows):
        nodes = ops.gather(x.reshape(-1, HIDDEN), rows, 0)
        out = ops.scatter_nd(rows.expand_dims(1), self.bn(nodes), (BATCH * NODES, HIDDEN))
        return out.reshape(BATCH, NODES, HIDDEN)


class EncoderLayer(nn.Cell):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.combine = (
            build_dense(model, f"{path}.{name}") for name in ("q", "k", "v", "out")
        )
        self.attention = HeadAttention()
        self.norm1 = NodeNorm(model, f"{path}.attention_norm")
        self.ffn = nn.SequentialCell(
            build_dense(model, f"{path}.up"), nn.ReLU(), build_dense(model, f"{path}.down")
        )
        self.norm2 = NodeNorm(model, f"{path}.feed_forward_norm")

    def construct(self, x, mask, rows):
        context = self.attention(self.wq(x), self.wk(x), self.wv(x), mask)
        x = self.norm1(x + self.combine(context), rows)
        return self.norm2(x + self.ffn(x), rows)


class Encoder(nn.Cell):
    """Embeddings of nodes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.depot_embedding = build_dense(model, "embed.depot")
        self.customer_embedding = build_dense(model, "embed.customer")
        self.layers = nn.CellList([EncoderLayer(model, f"layers.{n}") for n in range(LAYERS)])

    def construct(self, depot, customers, demand, padding, rows):
        features = ops.concat((customers, demand.expand_dims(-1)), -1)
        depot = self.depot_embedding(depot).expand_dims(1)
        x = ops.concat((depot, self.customer_embedding(features)), 1)
        mask = padding.reshape(BATCH, 1, 1, NODES)
        for layer in self.layers:
            x = layer(x, mask, rows)
        return x


class Vehicles(nn.Cell):
    """State of the vehicles behind an action, and the nodes that cannot be next."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = Tensor(np.arange(NODES, dtype=np.int32))

    def construct(self, demand, visited, left, action):
        is_selected = ops.equal(action.expand_dims(-1), self.nodes)
        visited = ops.logical_or(visited, is_selected)
        loads = ops.gather_elements(demand, 2, action.expand_dims(-1)).squeeze(-1)
        left = ops.where(action == 0, ops.ones_like(left), left - loads)
        return visited, left

    def get_mask(self, demand, visited, left, action):
        """Return (BATCH, STARTS, NODES)."""
        is_served = visited[:, :, 1:]
        is_heavy = demand[:, :, 1:] > left.expand_dims(-1) + TOLERANCE
        is_depot_closed = ops.logical_and(action == 0, ops.logical_not(is_served.all(-1)))
        return ops.concat((is_depot_closed.expand_dims(-1), ops.logical_or(is_served, is_heavy)), 2)


class Decoder(nn.Cell):
    """Logarithms of actions' probabilities, and entropies, (BATCH, STARTS, STEPS - 1)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fixed_context, self.step_context, self.wk, self.wv, self.wlogit, self.combine = (
            build_dense(model, f"decoder.{name}")
            for name in (
                "fixed_context",
                "step_context",
                "glimpse_key",
                "glimpse_value",
                "logit_key",
                "out",
            )
        )
        self.attention = HeadAttention()
        self.vehicles = Vehicles()
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.log_softmax = nn.LogSoftmax(axis=-1)
        self.is_load_given = model.is_load_given
        self.is_clipped_late = model.is_clipped_late
        self.are_nodes_stopped = model.are_nodes_stopped

    def point(self, glimpse, logit_key, mask):
        """Return logarithms of the probabilities of nodes."""
        logits = self.scores(glimpse, logit_key) / math.sqrt(HIDDEN)
        if self.is_clipped_late:
            logits = CLIP * ops.tanh(ops.masked_fill(logits, mask, MASKED))
        else:
            logits = ops.masked_fill(CLIP * ops.tanh(logits), mask, MASKED)
        return self.log_softmax(logits)

    def construct(self, x, graph, demand, padding, tours):
        nodes = ops.stop_gradient(x) if self.are_nodes_stopped else x
        key, value, logit_key = self.wk(nodes), self.wv(nodes), self.wlogit(nodes)
        fixed = self.fixed_context(graph).expand_dims(1)
        shape = (BATCH, STARTS, NODES)
        demand = ops.concat((ops.zeros_like(demand[:, :1]), demand), 1)
        demand = ops.broadcast_to(demand.expand_dims(1), shape)
        visited = ops.broadcast_to(padding.expand_dims(1), shape)
        left = ops.ones((BATCH, STARTS), ms.float32)

        action = tours[:, :, 0]
        log_probabilities, entropies = (), ()
        for step in range(1, STEPS):
            visited, left = self.vehicles(demand, visited, left, action)
            mask = self.vehicles.get_mask(demand, visited, left, action)
            index = ops.broadcast_to(action.expand_dims(-1), (BATCH, STARTS, HIDDEN))
            last = ops.gather_elements(x, 1, index)
            load = 1 - left if self.is_load_given else left
            query = fixed + self.step_context(ops.concat((last, load.expand_dims(-1)), -1))
            glimpse = self.combine(self.attention(query, key, value, mask.expand_dims(1)))
            log_p = self.point(glimpse, logit_key, mask)

            action = tours[:, :, step]
            chosen = ops.gather_elements(log_p, 2, action.expand_dims(-1)).squeeze(-1)
            log_probabilities += (chosen,)
            entropies += (-(ops.exp(log_p) * log_p).sum(-1),)
        return ops.stack(log_probabilities, 2), ops.stack(entropies, 2)


class Critic(nn.Cell):
    """Lengths of tours, (BATCH, 1)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.hidden = build_dense(model, "critic.hidden")
        self.relu = nn.ReLU()
        self.out = build_dense(model, "critic.out")

    def construct(self, graph):
        return self.out(self.relu(self.hidden(graph)))


class TourLength(nn.Cell):
    """Lengths of tours, (BATCH, STARTS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_coordinates_tiled = model.are_coordinates_tiled

    def construct(self, depot, customers, tours):
        nodes = ops.concat((depot.expand_dims(1), customers), 1)
        if self.are_coordinates_tiled:
            nodes = ops.tile(nodes, (STARTS, 1, 1))
        else:
            nodes = ops.repeat_interleave(nodes, STARTS, 0)
        index = ops.tile(tours.reshape(BATCH * STARTS, STEPS, 1), (1, 1, 2))
        stops = ops.gather_elements(nodes, 1, index)
        home = nodes[:, :1]
        path = ops.concat((home, stops, home), 1)
        legs = ops.sqrt(ops.square(path[:, 1:] - path[:, :-1]).sum(-1))
        return legs.sum(-1).reshape(BATCH, STARTS)


class ReinforceWithLoss(nn.Cell):
    """Policy, critic and entropy."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = Encoder(model)
        self.decoder = Decoder(model)
        self.critic = Critic(model)
        self.tour_length = TourLength(model)
        self.mse = nn.MSELoss()
        self.nodes = Tensor(np.arange(NODES, dtype=np.int32))
        self.steps = Tensor(np.arange(1, STEPS, dtype=np.int32))
        self.is_entropy_of_padding = model.is_entropy_of_padding

    def construct(self, depot, customers, demand, sizes, rows, tours, lengths):
        padding = self.nodes > sizes.expand_dims(1)
        x = self.encoder(depot, customers, demand, padding, rows)
        is_node = ops.logical_not(padding).astype(ms.float32).expand_dims(-1)
        graph = (x * is_node).sum(1) / is_node.sum(1)
        log_p, entropy = self.decoder(x, graph, demand, padding, tours)
        live = (self.steps < lengths.expand_dims(-1)).astype(ms.float32)
        likelihood = (log_p * live).sum(-1)
        entropy = entropy * live
        entropy = entropy.mean() if self.is_entropy_of_padding else entropy.sum() / live.sum()

        cost = self.tour_length(depot, customers, tours)
        value = ops.broadcast_to(self.critic(graph), cost.shape)
        shared = cost.mean(1, keep_dims=True)
        advantage = cost - (MIX * ops.stop_gradient(value) + (1 - MIX) * shared)
        advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + TINY)
        policy_loss = (advantage * likelihood).mean()
        return policy_loss + VALUE_WEIGHT * self.mse(value, cost) - ENTROPY_WEIGHT * entropy


def build_weight(model: Model, *paths: str) -> Parameter:
    """Return the weight of a layer, or of several ones of the same input."""
    return Parameter(read(model, *(f"{path}.weight" for path in paths)))


def build_bias(model: Model, path: str) -> Parameter:
    """Return the bias of a layer."""
    return Parameter(read(model, f"{path}.bias"))


def apply_linear(x, weight):
    """Return the product with a weight (out, in)."""
    return mint.matmul(x, weight.swapaxes(0, 1))


def attend(query, key, value, hidden):
    """Return the attention of heads (BATCH, rows, HEADS, HEAD_DIM) to what is not hidden."""
    query = query * HEAD_DIM**-0.5
    scores = mint.matmul(query.permute(0, 2, 1, 3), key.permute(0, 2, 3, 1)) + MASKED * hidden
    shares = mint.exp(scores - ops.stop_gradient(scores.max(-1, keepdims=True)))
    context = mint.matmul(shares, value.permute(0, 2, 1, 3)) / mint.sum(shares, -1, True)
    return context.permute(0, 2, 1, 3).reshape(BATCH, -1, HIDDEN)


class WrittenNorm(nn.Cell):
    """Batch norm of padded nodes with a mask of those that count."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.scale, self.shift = build_weight(model, path), build_bias(model, path)

    def construct(self, x, is_node):
        n_nodes = mint.sum(is_node)
        centered = (x - mint.sum(x * is_node, (0, 1)) / n_nodes) * is_node
        variance = mint.sum(mint.square(centered), (0, 1)) / n_nodes
        return (centered * mint.rsqrt(variance + EPS) * self.scale + self.shift) * is_node


class WrittenLayer(nn.Cell):
    """A layer of the encoder with one matrix for queries, keys and values."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.qkv = build_weight(model, *(f"{path}.{name}" for name in "qkv"))
        self.mix = build_weight(model, f"{path}.out")
        self.expand, self.expand_bias = (
            build_weight(model, f"{path}.up"),
            build_bias(model, f"{path}.up"),
        )
        self.reduce = build_weight(model, f"{path}.down")
        self.attention_norm = WrittenNorm(model, f"{path}.attention_norm")
        self.ffn_norm = WrittenNorm(model, f"{path}.feed_forward_norm")

    def construct(self, x, is_node):
        qkv = apply_linear(x, self.qkv).reshape(BATCH, NODES, 3, HEADS, HEAD_DIM)
        hidden = (1 - is_node).reshape(BATCH, 1, 1, NODES)
        context = attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], hidden)
        x = self.attention_norm(apply_linear(context, self.mix) + x, is_node)
        y = mint.nn.functional.relu(apply_linear(x, self.expand) + self.expand_bias)
        return self.ffn_norm(apply_linear(y, self.reduce) + x, is_node)


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.depot_weight = build_weight(model, "embed.depot")
        self.depot_bias = build_bias(model, "embed.depot")
        self.customer_weight = build_weight(model, "embed.customer")
        self.customer_bias = build_bias(model, "embed.customer")
        self.stack = nn.CellList([WrittenLayer(model, f"layers.{n}") for n in range(LAYERS)])
        names = ("glimpse_key", "glimpse_value", "logit_key")
        self.node_weight = build_weight(model, *(f"decoder.{name}" for name in names))
        self.graph_weight = build_weight(model, "decoder.fixed_context")
        self.state_weight = build_weight(model, "decoder.step_context")
        self.mix = build_weight(model, "decoder.out")
        self.value_weight = build_weight(model, "critic.hidden")
        self.value_bias = build_bias(model, "critic.hidden")
        self.value_out = build_weight(model, "critic.out")
        self.value_out_bias = build_bias(model, "critic.out")
        self.nodes = Tensor(np.arange(NODES, dtype=np.int32))
        self.steps = Tensor(np.arange(1, STEPS, dtype=np.int32))
        self.depot_only = Tensor(np.eye(1, NODES, dtype=np.float32)[0])

    def encode(self, depot, customers, demand, is_node):
        """Return embeddings of nodes."""
        weight = self.customer_weight
        x = apply_linear(customers, weight[:, :2]) + demand.expand_dims(-1) * weight[:, 2]
        depot = apply_linear(depot, self.depot_weight) + self.depot_bias
        x = mint.cat((depot.expand_dims(1), x + self.customer_bias), 1)
        for layer in self.stack:
            x = layer(x, is_node)
        return x

    def hide(self, demand, done, left, place):
        """Return ones where a node cannot be next, (BATCH, STARTS, NODES)."""
        heavy = (demand > left.expand_dims(-1) + TOLERANCE).astype(ms.float32)
        customers = mint.maximum(done, heavy) * (1 - self.depot_only)
        unfinished = 1 - mint.maximum(done, self.depot_only).min(-1, keepdims=True)
        return customers + self.depot_only * place[:, :, :1] * unfinished

    def construct(self, depot, customers, demand, sizes, rows, tours, lengths):
        is_node = (self.nodes <= sizes.expand_dims(1)).astype(ms.float32).expand_dims(-1)
        x = self.encode(depot, customers, demand, is_node)
        graph = mint.sum(x, 1) / (sizes + 1).astype(ms.float32).expand_dims(1)
        keys = apply_linear(x, self.node_weight).reshape(BATCH, NODES, 3, HIDDEN)
        heads = keys.reshape(BATCH, NODES, 3, HEADS, HEAD_DIM)
        pointers = keys[:, :, 2].permute(0, 2, 1)
        base = apply_linear(graph, self.graph_weight).expand_dims(1)

        demand = mint.cat((mint.zeros((BATCH, 1)), demand), 1).expand_dims(1)
        places = (tours.expand_dims(-1) == self.nodes).astype(ms.float32)
        live = (self.steps < lengths.expand_dims(-1)).astype(ms.float32)
        done = (1 - is_node).reshape(BATCH, 1, NODES)
        left = mint.ones((BATCH, STARTS))
        likelihood, entropy = 0.0, 0.0
        for step in range(1, STEPS):
            place = places[:, :, step - 1]
            done = mint.maximum(done, place)
            is_home = place[:, :, 0]
            left = is_home + (1 - is_home) * (left - mint.sum(place * demand, -1))
            hidden = self.hide(demand, done, left, place)

            query = apply_linear(mint.matmul(place, x), self.state_weight[:, :HIDDEN])
            query = query + left.expand_dims(-1) * self.state_weight[:, HIDDEN] + base
            query = query.reshape(BATCH, STARTS, HEADS, HEAD_DIM)
            glimpse = attend(query, heads[:, :, 0], heads[:, :, 1], hidden.expand_dims(1))
            glimpse = apply_linear(glimpse, self.mix) * HIDDEN**-0.5
            logits = CLIP * mint.tanh(mint.matmul(glimpse, pointers)) + MASKED * hidden
            logits = logits - ops.stop_gradient(logits.max(-1, keepdims=True))
            shares = mint.exp(logits)
            total = mint.sum(shares, -1)
            chosen = mint.sum(logits * places[:, :, step], -1)
            log_total = mint.log(total)
            likelihood = likelihood + (chosen - log_total) * live[:, :, step - 1]
            surprise = log_total - mint.sum(shares * logits, -1) / total
            entropy = entropy + mint.sum(surprise * live[:, :, step - 1])

        nodes = mint.cat((depot.expand_dims(1), customers), 1).expand_dims(1)
        stops = mint.matmul(places, nodes)
        first, last = stops[:, :, 0] - nodes[:, :, 0], stops[:, :, -1] - nodes[:, :, 0]
        legs = stops[:, :, 1:] - stops[:, :, :-1]
        legs = mint.cat((legs, first.expand_dims(2), last.expand_dims(2)), 2)
        cost = mint.sum(mint.sqrt(mint.sum(mint.square(legs), -1)), -1)

        value = mint.nn.functional.relu(apply_linear(graph, self.value_weight) + self.value_bias)
        value = apply_linear(value, self.value_out) + self.value_out_bias
        excess = cost - mint.mean(cost, 1, True)
        excess = (1 - MIX) * excess + MIX * (cost - ops.stop_gradient(value))
        excess = excess - mint.mean(excess)
        variance = mint.sum(mint.square(excess)) / (BATCH * STARTS - 1)
        advantage = excess / (mint.sqrt(variance) + TINY)
        loss = mint.mean(advantage * likelihood) - ENTROPY_WEIGHT * entropy / mint.sum(live)
        return loss + VALUE_WEIGHT * mint.mean(mint.square(cost - value))
