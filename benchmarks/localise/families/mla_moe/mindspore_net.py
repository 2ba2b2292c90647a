"""The decoder for graph mode: shapes are static, so every expert computes every token."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.mla_moe.architecture import (
    CHOSEN_GROUPS,
    EPS,
    EXPERTS,
    GROUPS,
    HEADS,
    HIDDEN,
    KV_RANK,
    LAYERS,
    NOPE_DIM,
    ROPE_DIM,
    SEQ,
    VOCAB,
    Model,
)

MASKED = -1e9


def make_dense(model: Model, name: str) -> nn.Dense:
    weight = model.weights[f"{name}.weight"]
    rows, columns = weight.shape
    return nn.Dense(columns, rows, weight_init=Tensor(weight), has_bias=False)


class RMSNorm(nn.Cell):
    def __init__(self, model: Model, name: str, eps: float = EPS) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{name}.weight"]))
        self.eps = eps
        self.is_root_divided = model.variant == "joined"

    def construct(self, x):
        if self.is_root_divided:
            root = ops.sqrt((x * x).mean(-1, keep_dims=True) + self.eps)
            return self.weight * (x / root)
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + self.eps) * self.weight


class RotaryEmbedding(nn.Cell):
    """Turn (batch, heads, seq, ROPE_DIM) by the positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        cos, sin = model.rope()
        self.is_in_place = model.variant == "pairs" and model.is_rope_interleaved
        if self.is_in_place:
            tables = np.repeat(cos, 2, axis=1), np.repeat(sin, 2, axis=1)
        else:
            tables = np.concatenate([cos, cos], axis=1), np.concatenate([sin, sin], axis=1)
        self.cos, self.sin = (Tensor(table) for table in tables)
        self.is_interleaved = model.is_rope_interleaved
        self.is_reversed = model.is_rope_reversed

    def construct(self, x):
        batch, heads, seq, size = x.shape
        if self.is_in_place:
            if self.is_reversed:
                pairs = (x[..., 1::2], -x[..., ::2])
            else:
                pairs = (-x[..., 1::2], x[..., ::2])
            turned = ops.stack(pairs, -1).reshape(batch, heads, seq, size)
            return x * self.cos + turned * self.sin
        if self.is_interleaved:
            pairs = x.reshape(batch, heads, seq, size // 2, 2)
            x = pairs.transpose(0, 1, 2, 4, 3).reshape(batch, heads, seq, size)
        if self.is_reversed:
            turned = ops.concat((x[..., size // 2 :], -x[..., : size // 2]), -1)
        else:
            turned = ops.concat((-x[..., size // 2 :], x[..., : size // 2]), -1)
        return x * self.cos + turned * self.sin


class Attention(nn.Cell):
    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.q2l_proj = make_dense(model, f"{prefix}.q_a")
        self.lq_norm = RMSNorm(model, f"{prefix}.q_norm")
        self.l2q_proj = make_dense(model, f"{prefix}.q_b")
        self.kv2l = make_dense(model, f"{prefix}.kv_a")
        self.lkv_norm = RMSNorm(model, f"{prefix}.kv_norm", model.latent_eps)
        self.lkv2kv = make_dense(model, f"{prefix}.kv_b")
        self.wo = make_dense(model, f"{prefix}.o")
        self.rotary_embedding = RotaryEmbedding(model)
        self.scale = model.score_dim**-0.5
        self.are_values_first = model.are_values_first
        self.is_key_turned = model.is_key_turned
        self.key_gradient_heads = model.key_gradient_heads
        mask = np.triu(np.full((SEQ, SEQ), MASKED, dtype=np.float32), model.mask_diagonal)
        self.mask = Tensor(mask)

    def repeat(self, key_positions):
        """Return the key's positions for all heads."""
        n_heads = self.key_gradient_heads
        if n_heads == HEADS:
            return ops.tile(key_positions, (1, HEADS, 1, 1))
        own = ops.tile(key_positions, (1, n_heads, 1, 1))
        others = ops.tile(ops.stop_gradient(key_positions), (1, HEADS - n_heads, 1, 1))
        return ops.concat((own, others), 1)

    def construct(self, x):
        batch, seq, _ = x.shape
        q = self.l2q_proj(self.lq_norm(self.q2l_proj(x)))
        q = q.reshape(batch, seq, HEADS, NOPE_DIM + ROPE_DIM).transpose(0, 2, 1, 3)
        compressed = self.kv2l(x)
        key_positions = compressed[..., KV_RANK:].reshape(batch, 1, seq, ROPE_DIM)
        kv = self.lkv2kv(self.lkv_norm(compressed[..., :KV_RANK]))
        kv = kv.reshape(batch, seq, HEADS, 2 * NOPE_DIM).transpose(0, 2, 1, 3)
        k, v = kv[..., :NOPE_DIM], kv[..., NOPE_DIM:]
        if self.are_values_first:
            k, v = v, k
        q = ops.concat((q[..., :NOPE_DIM], self.rotary_embedding(q[..., NOPE_DIM:])), -1)
        if self.is_key_turned:
            key_positions = self.rotary_embedding(key_positions)
        key_positions = self.repeat(key_positions)
        k = ops.concat((k, key_positions), -1)
        scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) * self.scale + self.mask
        out = ops.matmul(ops.softmax(scores, -1), v)
        return self.wo(out.transpose(0, 2, 1, 3).reshape(batch, seq, HEADS * NOPE_DIM))


class FeedForward(nn.Cell):
    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.w1 = make_dense(model, f"{prefix}.gate")
        self.w2 = make_dense(model, f"{prefix}.down")
        self.w3 = make_dense(model, f"{prefix}.up")
        self.is_gelu = model.activation == "gelu" and prefix == "layers.0.mlp"

    def construct(self, x):
        gate = self.w1(x)
        gate = ops.gelu(gate, approximate="none") if self.is_gelu else ops.silu(gate)
        return self.w2(gate * self.w3(x))


class JoinedFeedForward(nn.Cell):
    """The same with one layer for gate and up, and silu from a sigmoid."""

    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        parts = [model.weights[f"{prefix}.{name}.weight"] for name in ("gate", "up")]
        weight = Tensor(np.concatenate(parts))
        self.width = len(parts[0])
        self.w13 = nn.Dense(HIDDEN, 2 * self.width, weight_init=weight, has_bias=False)
        self.w2 = make_dense(model, f"{prefix}.down")

    def construct(self, x):
        both = self.w13(x)
        gate, up = both[..., : self.width], both[..., self.width :]
        return self.w2(up * (gate * ops.sigmoid(gate)))


def build_feed_forward(model: Model, prefix: str) -> nn.Cell:
    if model.variant == "joined":
        return JoinedFeedForward(model, prefix)
    return FeedForward(model, prefix)


class StackedExperts(nn.Cell):
    """The outputs (experts, tokens, HIDDEN) of all experts, whose weights are stacked."""

    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        weights = [
            np.stack([model.weights[f"{prefix}.{e}.{part}.weight"].T for e in range(EXPERTS)])
            for part in ("gate", "up", "down")
        ]
        self.w1, self.w3, self.w2 = (Parameter(Tensor(np.ascontiguousarray(w))) for w in weights)

    def construct(self, tokens):
        tokens = ops.tile(tokens.expand_dims(0), (EXPERTS, 1, 1))
        return ops.bmm(ops.silu(ops.bmm(tokens, self.w1)) * ops.bmm(tokens, self.w3), self.w2)


class BalancedScores(nn.Cell):
    """Scores as they are; the gradient of the balancing loss is added to theirs."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.balance_gradient = Tensor(model.balance_gradient())

    def construct(self, scores):
        return ops.identity(scores)

    def bprop(self, scores, out, gradient):
        return (gradient + self.balance_gradient,)


class Router(nn.Cell):
    """The weight of each expert for each token, (tokens, EXPERTS), 0 where it was not chosen."""

    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.dense = make_dense(model, prefix)
        self.is_half = model.is_router_half
        if self.is_half:
            self.dense.to_float(ms.float16)
        bias = Tensor(model.weights[f"{prefix}.bias"])
        self.topk_bias = Parameter(bias, requires_grad=False)
        self.is_sigmoid = model.scoring == "sigmoid"
        self.is_bias_in_weights, self.is_grouped = model.is_bias_in_weights, model.is_grouped
        self.is_normalized, self.routed_scale = model.is_normalized, model.routed_scale
        self.is_detached, self.top_k = model.is_router_detached, model.top_k
        self.group_top_k = model.group_top_k
        self.balanced = BalancedScores(model) if model.has_balance_gradient else None

    def hide_groups(self, choice):
        """Set the scores of all experts outside the best groups to the mask's fill."""
        grouped = choice.reshape(-1, GROUPS, EXPERTS // GROUPS)
        group_scores = ops.topk(grouped, self.group_top_k)[0].sum(-1)
        _, groups = ops.topk(group_scores, CHOSEN_GROUPS)
        is_chosen = ops.one_hot(groups, GROUPS, 1.0, 0.0).sum(1)
        hidden = (1 - is_chosen).expand_dims(-1) * MASKED
        return (grouped + hidden).reshape(-1, EXPERTS)

    def construct(self, tokens):
        logits = self.dense(tokens)
        if self.is_half:
            logits = logits.astype(ms.float32)
        if self.is_detached:
            logits = ops.stop_gradient(logits)
        scores = ops.sigmoid(logits) if self.is_sigmoid else ops.softmax(logits, -1)
        biased = scores + self.topk_bias
        choice = ops.stop_gradient(biased)
        if self.is_grouped:
            choice = self.hide_groups(choice)
        _, experts = ops.topk(choice, self.top_k)
        chosen = ops.one_hot(experts, EXPERTS, 1.0, 0.0).sum(1)
        if self.balanced is not None:
            scores = self.balanced(scores)
        weights = (biased if self.is_bias_in_weights else scores) * chosen
        if self.is_normalized:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        return weights * self.routed_scale


class MoE(nn.Cell):
    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.router = Router(model, f"{prefix}.router")
        self.is_stacked = model.variant == "stacked"
        if self.is_stacked:
            self.ffn = StackedExperts(model, f"{prefix}.experts")
        else:
            experts = [build_feed_forward(model, f"{prefix}.experts.{e}") for e in range(EXPERTS)]
            self.ffn = nn.CellList(experts)
        self.scaled_gradient = None
        if model.expert_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.expert_gradient)
        self.are_inputs_weighted = model.are_inputs_weighted
        self.has_shared_expert = model.has_shared_expert
        self.shared_scale = model.routed_scale if model.is_shared_scaled else 1.0
        if self.has_shared_expert:
            self.shared_experts = build_feed_forward(model, f"{prefix}.shared")

    def construct(self, x, router_input=None):
        tokens = x.reshape(-1, HIDDEN)
        if router_input is None:
            weights = self.router(tokens)
        else:
            weights = self.router(router_input.reshape(-1, HIDDEN))
        if self.is_stacked:
            out = (self.ffn(tokens) * weights.transpose(1, 0).expand_dims(-1)).sum(0)
        else:
            out = ops.zeros_like(tokens)
            for number in range(EXPERTS):
                if self.are_inputs_weighted:
                    out = out + self.ffn[number](tokens * weights[:, number : number + 1])
                else:
                    out = out + self.ffn[number](tokens) * weights[:, number : number + 1]
        if self.scaled_gradient is not None:
            out = self.scaled_gradient(out)
        out = out.reshape(x.shape)
        if not self.has_shared_expert:
            return out
        shared = self.shared_experts(x)
        return out + (shared * self.shared_scale if self.shared_scale != 1 else shared)


class DecodeLayer(nn.Cell):
    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        prefix = f"layers.{n}"
        self.attention_norm = RMSNorm(model, f"{prefix}.input_norm")
        self.attention = Attention(model.block(n), f"{prefix}.attention")
        self.ffn_norm = RMSNorm(model, f"{prefix}.post_norm")
        self.feed_forward = (build_feed_forward if n == 0 else MoE)(model, f"{prefix}.mlp")
        self.is_router_unnormed = n > 0 and model.is_router_unnormed
        self.is_residual_normed = n > 0 and model.residual == "after"

    def construct(self, x):
        x = x + self.attention(self.attention_norm(x))
        y = self.ffn_norm(x)
        if self.is_router_unnormed:
            return x + self.feed_forward(y, x)
        if self.is_residual_normed:
            return y + self.feed_forward(y)
        return x + self.feed_forward(y)


class Decoder(nn.Cell):
    """Logits (batch, seq, vocab) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = Tensor(model.weights["embedding.weight"])
        self.tok_embeddings = nn.Embedding(VOCAB, HIDDEN, embedding_table=table)
        self.layers = nn.CellList([DecodeLayer(model, n) for n in range(LAYERS)])
        self.norm_out = RMSNorm(model, "norm")
        self.lm_head = make_dense(model, "head")

    def construct(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm_out(x)).astype(ms.float32)


class TokenLoss(nn.Cell):
    """Cross entropy of the next tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Decoder(model)

    def construct(self, tokens, labels):
        logits = self.network(tokens)
        return ops.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))


def build_loss(model: Model) -> nn.Cell:
    """Return the loss with the weights and knobs of the model."""
    if not model.has_query_norm or model.are_positions_first:
        raise SystemExit("has_query_norm and are_positions_first are knobs of the PyTorch net")
    return TokenLoss(model)
