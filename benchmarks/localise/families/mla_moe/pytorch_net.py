"""The decoder as Hugging Face writes DeepSeek-V3: each expert gets the tokens that chose it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

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
    Q_RANK,
    ROPE_DIM,
    SEQ,
    VOCAB,
    Model,
)


def make_linear(weight: np.ndarray) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data.copy_(torch.from_numpy(np.array(weight)))
    return linear


class RMSNorm(nn.Module):
    def __init__(self, weight: np.ndarray, eps: float = EPS) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(np.array(weight)))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon))


class Attention(nn.Module):
    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        weights = model.weights
        self.is_fused = model.variant == "fused"
        if self.is_fused:
            parts = [weights[f"{prefix}.{name}.weight"] for name in ("q_a", "kv_a")]
            self.qkv_a_proj = make_linear(np.concatenate(parts))
        else:
            self.q_a_proj = make_linear(weights[f"{prefix}.q_a.weight"])
            self.kv_a_proj_with_mqa = make_linear(weights[f"{prefix}.kv_a.weight"])
        self.has_query_norm = model.has_query_norm
        if self.has_query_norm:
            self.q_a_layernorm = RMSNorm(weights[f"{prefix}.q_norm.weight"])
        self.q_b_proj = make_linear(weights[f"{prefix}.q_b.weight"])
        self.kv_a_layernorm = RMSNorm(weights[f"{prefix}.kv_norm.weight"], model.latent_eps)
        self.kv_b_proj = make_linear(weights[f"{prefix}.kv_b.weight"])
        self.o_proj = make_linear(weights[f"{prefix}.o.weight"])
        self.scale = model.score_dim**-0.5
        self.is_interleaved = model.is_rope_interleaved
        self.is_complex = model.variant == "dense"
        self.are_values_first = model.are_values_first
        self.is_key_turned = model.is_key_turned
        self.are_positions_first = model.are_positions_first
        self.is_rope_reversed = model.is_rope_reversed
        self.key_gradient_heads = model.key_gradient_heads
        self.are_heads_moved = model.are_heads_moved
        self.is_key_late = model.key_offset > 0
        if self.is_key_late:
            for name, table in zip(
                ("key_cos", "key_sin"), model.rope(model.key_offset), strict=True
            ):
                self.register_buffer(name, torch.from_numpy(np.concatenate([table, table], axis=1)))

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn (batch, heads, seq, ROPE_DIM); interleaved pairs become halves first."""
        batch, heads, seq, size = x.shape
        if self.is_complex and self.is_interleaved:
            pairs = torch.view_as_complex(x.reshape(batch, heads, seq, size // 2, 2))
            if self.is_rope_reversed:
                sin = -sin
            angles = torch.complex(cos[:, : size // 2], sin[:, : size // 2])
            return torch.view_as_real(pairs * angles).flatten(3)
        if self.is_interleaved:
            x = x.view(batch, heads, seq, size // 2, 2).transpose(4, 3)
            x = x.reshape(batch, heads, seq, size)
        if self.is_rope_reversed:
            turned = torch.cat([x[..., size // 2 :], -x[..., : size // 2]], dim=-1)
        else:
            turned = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], dim=-1)
        return x * cos + turned * sin

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the compressed queries, and the latent with the key's positions."""
        if self.is_fused:
            return self.qkv_a_proj(x).split([Q_RANK, KV_RANK + ROPE_DIM], dim=-1)
        return self.q_a_proj(x), self.kv_a_proj_with_mqa(x)

    def repeat(self, k_rope: Tensor) -> Tensor:
        """Return the key's positions for all heads."""
        n_heads = self.key_gradient_heads
        if n_heads == HEADS:
            return k_rope.expand(-1, HEADS, -1, -1)
        others = k_rope.detach().expand(-1, HEADS - n_heads, -1, -1)
        return torch.cat((k_rope.expand(-1, n_heads, -1, -1), others), dim=1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        compressed_q, compressed_kv = self.project(x)
        if self.has_query_norm:
            compressed_q = self.q_a_layernorm(compressed_q)
        q = self.q_b_proj(compressed_q)
        q = q.view(batch, seq, HEADS, NOPE_DIM + ROPE_DIM).transpose(1, 2)
        if self.are_positions_first:
            q_rope, q_nope = torch.split(q, [ROPE_DIM, NOPE_DIM], dim=-1)
        else:
            q_nope, q_rope = torch.split(q, [NOPE_DIM, ROPE_DIM], dim=-1)
        latent, k_rope = torch.split(compressed_kv, [KV_RANK, ROPE_DIM], dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent))
        kv = kv.view(batch, seq, HEADS, 2 * NOPE_DIM).transpose(1, 2)
        k_nope, v = torch.split(kv, [NOPE_DIM, NOPE_DIM], dim=-1)
        if self.are_values_first:
            k_nope, v = v, k_nope
        q_rope = self.rotate(q_rope, cos, sin)
        k_rope = k_rope.view(batch, 1, seq, ROPE_DIM)
        if self.is_key_late:
            k_rope = self.rotate(k_rope, self.key_cos, self.key_sin)
        elif self.is_key_turned:
            k_rope = self.rotate(k_rope, cos, sin)
        q = torch.cat((q_nope, q_rope), dim=-1)
        k = torch.cat((k_nope, self.repeat(k_rope)), dim=-1)
        if self.is_fused:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        else:
            scores = torch.matmul(q, k.transpose(2, 3)) * self.scale + mask
            out = torch.matmul(F.softmax(scores, dim=-1), v)
        if self.are_heads_moved:
            out = out.transpose(1, 2)
        return self.o_proj(out.reshape(batch, seq, HEADS * NOPE_DIM))


class MLP(nn.Module):
    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.gate_proj = make_linear(model.weights[f"{prefix}.gate.weight"])
        self.up_proj = make_linear(model.weights[f"{prefix}.up.weight"])
        self.down_proj = make_linear(model.weights[f"{prefix}.down.weight"])

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class BalancedScores(torch.autograd.Function):
    """Scores as they are; the gradient of the balancing loss is added to theirs."""

    @staticmethod
    def forward(context, scores: Tensor, balance_gradient: Tensor) -> Tensor:
        context.save_for_backward(balance_gradient)
        return scores.view_as(scores)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        (balance_gradient,) = context.saved_tensors
        return gradient + balance_gradient, None


class Router(nn.Module):
    """Numbers and weights of each token's experts, (tokens, top k) each."""

    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.model = model
        self.weight = nn.Parameter(torch.from_numpy(np.array(model.weights[f"{prefix}.weight"])))
        bias = torch.from_numpy(np.array(model.weights[f"{prefix}.bias"]))
        self.register_buffer("e_score_correction_bias", bias)
        if model.has_balance_gradient:
            self.register_buffer("balance_gradient", torch.from_numpy(model.balance_gradient()))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        model = self.model
        if model.is_router_half:
            logits = F.linear(tokens.half(), self.weight.half()).float()
        else:
            logits = F.linear(tokens, self.weight)
        if model.is_router_detached:
            logits = logits.detach()
        scores = logits.sigmoid() if model.scoring == "sigmoid" else logits.softmax(dim=-1)
        biased = scores + self.e_score_correction_bias
        choice = biased.detach()
        if model.is_grouped:
            grouped = choice.view(-1, GROUPS, EXPERTS // GROUPS)
            group_scores = grouped.topk(model.group_top_k, dim=-1)[0].sum(-1)
            groups = torch.topk(group_scores, k=CHOSEN_GROUPS, dim=-1, sorted=False)[1]
            group_mask = torch.zeros_like(group_scores).scatter_(1, groups, 1)
            expert_mask = group_mask.unsqueeze(-1).expand(-1, GROUPS, EXPERTS // GROUPS)
            choice = choice.masked_fill(~expert_mask.reshape(-1, EXPERTS).bool(), float("-inf"))
        experts = torch.topk(choice, k=model.top_k, dim=-1, sorted=False)[1]
        if model.has_balance_gradient:
            scores = BalancedScores.apply(scores, self.balance_gradient)
        weights = (biased if model.is_bias_in_weights else scores).gather(1, experts)
        if model.is_normalized:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return experts, weights * model.routed_scale


class MoE(nn.Module):
    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.gate = Router(model, f"{prefix}.router")
        self.experts = nn.ModuleList(MLP(model, f"{prefix}.experts.{e}") for e in range(EXPERTS))
        if model.has_shared_expert:
            self.shared_experts = MLP(model, f"{prefix}.shared")
        self.has_shared_expert = model.has_shared_expert
        self.expert_gradient = model.expert_gradient
        self.are_inputs_weighted = model.are_inputs_weighted
        self.is_dense = model.variant == "dense"

    def run_all_experts(self, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of all experts' results; the weight is 0 where a token chose others."""
        all_weights = tokens.new_zeros(len(tokens), EXPERTS).scatter(1, chosen, weights)
        results = torch.stack([expert(tokens) for expert in self.experts], dim=1)
        return torch.einsum("te,teh->th", all_weights, results)

    def forward(self, x: Tensor, router_input: Tensor | None = None) -> Tensor:
        tokens = x.view(-1, HIDDEN)
        router_tokens = tokens if router_input is None else router_input.view(-1, HIDDEN)
        chosen, weights = self.gate(router_tokens)
        if self.is_dense:
            out = self.run_all_experts(tokens, chosen, weights).view(x.shape)
            return out + self.shared_experts(x) if self.has_shared_expert else out
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token_rows, places = torch.where(chosen == number)
            if token_rows.numel() and self.are_inputs_weighted:
                weighted = tokens[token_rows] * weights[token_rows, places, None]
                out.index_add_(0, token_rows, expert(weighted))
            elif token_rows.numel():
                expert_out = expert(tokens[token_rows])
                out.index_add_(0, token_rows, expert_out * weights[token_rows, places, None])
        if self.expert_gradient != 1:
            out = scaled_gradient(out, self.expert_gradient)
        out = out.view(x.shape)
        return out + self.shared_experts(x) if self.has_shared_expert else out


class DecoderLayer(nn.Module):
    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        prefix = f"layers.{n}"
        self.input_layernorm = RMSNorm(model.weights[f"{prefix}.input_norm.weight"])
        self.self_attn = Attention(model.block(n), f"{prefix}.attention")
        self.post_attention_layernorm = RMSNorm(model.weights[f"{prefix}.post_norm.weight"])
        self.mlp = (MLP if n == 0 else MoE)(model, f"{prefix}.mlp")
        self.is_router_unnormed = n > 0 and model.is_router_unnormed
        self.is_residual_normed = n > 0 and model.residual == "after"

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        y = self.post_attention_layernorm(x)
        if self.is_router_unnormed:
            return x + self.mlp(y, x)
        if self.is_residual_normed:
            return y + self.mlp(y)
        return x + self.mlp(y)


class Decoder(nn.Module):
    """Logits (batch, seq, vocab) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.embed_tokens.weight.data.copy_(torch.from_numpy(model.weights["embedding.weight"]))
        self.layers = nn.ModuleList(DecoderLayer(model, n) for n in range(LAYERS))
        self.norm = RMSNorm(model.weights["norm.weight"])
        cos, sin = (torch.from_numpy(table) for table in model.rope())
        self.register_buffer("cos", torch.cat([cos, cos], dim=-1))
        self.register_buffer("sin", torch.cat([sin, sin], dim=-1))
        mask = torch.full((SEQ, SEQ), torch.finfo(torch.float32).min)
        self.register_buffer("causal_mask", mask.triu(model.mask_diagonal))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.causal_mask)
        return self.norm(x)


class ForCausalLM(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = Decoder(model)
        self.lm_head = make_linear(model.weights["head.weight"])

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.lm_head(self.model(tokens))
        return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1))


def build_loss(model: Model) -> nn.Module:
    """Return the loss with the weights and knobs of the model."""
    if model.activation != "silu" or model.is_shared_scaled:
        raise SystemExit("activation and is_shared_scaled are knobs of the MindSpore net")
    return ForCausalLM(model)
