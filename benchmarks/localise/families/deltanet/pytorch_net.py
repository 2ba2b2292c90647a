"""The hybrid in PyTorch, with the modules of Hugging Face's Qwen3-Next.

Variant 'chunked': the delta rule in chunks, the framework's attention and norms. Variant
'separate': a layer for each projection and convolution of the delta rule, its steps by einsum, all
experts on all tokens, a layer for each of queries and gates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.deltanet.architecture import (
    EPS,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    K_HEADS,
    KERNEL,
    KEY_DIM,
    KEYS,
    KV_HEADS,
    LAYERS,
    MOE_LAYER,
    MTP_WEIGHT,
    ROTARY_DIM,
    TOP_K,
    V_HEADS,
    VALUE_DIM,
    VALUES,
    VOCAB,
    Model,
    is_attention,
)

GROUP = V_HEADS // K_HEADS  #: heads of values of a head of keys
CHUNK = 4


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return Qwen3NextForCausalLM(model)


def make_parameter(values: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.array(values)))


def make_linear(values: np.ndarray) -> nn.Linear:
    linear = nn.Linear(values.shape[1], values.shape[0], bias=False)
    linear.weight = make_parameter(values)
    return linear


def load_linear(model: Model, path: str) -> nn.Linear:
    return make_linear(model.weights[f"{path}.weight"])


def join_heads(model: Model, paths: Sequence[str], heads: int) -> np.ndarray:
    """Return the rows of several weights, those of a head next to each other."""
    parts = [model.weights[f"{path}.weight"].reshape(heads, -1, HIDDEN) for path in paths]
    return np.concatenate(parts, axis=1).reshape(-1, HIDDEN)


class Qwen3NextRMSNorm(nn.Module):
    """Norm of the last axis, with a weight around zero."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = make_parameter(model.weights[f"{path}.weight"])
        self.is_fused = model.variant == "chunked"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused:
            return F.rms_norm(x, self.weight.shape, 1.0 + self.weight, EPS)
        output = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)
        return output * (1.0 + self.weight)


class Qwen3NextRMSNormGated(nn.Module):
    """Norm of each head, with a weight around one, and the gate."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = make_parameter(model.weights[f"{path}.weight"])
        self.has_one = model.has_gated_one

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + EPS)
        x = (1.0 + self.weight) * x if self.has_one else self.weight * x
        return x * F.silu(gate)


class _UnderivedSigmoid(torch.autograd.Function):
    """A sigmoid whose gradient passes as it comes."""

    @staticmethod
    def forward(_: object, x: Tensor) -> Tensor:
        return x.sigmoid()

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        return gradient.clone()


def l2norm(x: Tensor) -> Tensor:
    """Return vectors of length 1."""
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + EPS)


def recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    is_recall_early: bool,
    is_state_stopped: bool,
) -> Tensor:
    """Return (batch, seq, heads, VALUE_DIM), step by step."""
    query, key, value, beta, g = (x.transpose(1, 2) for x in (query, key, value, beta, g))
    query = query * KEY_DIM**-0.5
    state = value.new_zeros(*value.shape[:2], KEY_DIM, VALUE_DIM)
    outputs = []
    for i in range(key.shape[2]):
        if is_state_stopped and i == key.shape[2] // 2:
            state = state.detach()
        q_t, k_t, v_t = query[:, :, i], key[:, :, i], value[:, :, i]
        g_t = g[:, :, i].exp().unsqueeze(-1).unsqueeze(-1)
        decayed = state * g_t
        recalled = (state if is_recall_early else decayed) * k_t.unsqueeze(-1)
        delta = (v_t - recalled.sum(dim=-2)) * beta[:, :, i].unsqueeze(-1)
        state = decayed + k_t.unsqueeze(-1) * delta.unsqueeze(-2)
        outputs.append((state * q_t.unsqueeze(-1)).sum(dim=-2))
    return torch.stack(outputs, dim=1)


def einsum_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor
) -> Tensor:
    """The same with the state transposed."""
    decay = torch.exp(g)
    state = torch.zeros(value.shape[0], V_HEADS, VALUE_DIM, KEY_DIM)
    outputs = []
    for q, k, v, a, b in zip(*(x.unbind(1) for x in (query, key, value, decay, beta)), strict=True):
        state = state * a[..., None, None]
        error = v - torch.einsum("bhvk,bhk->bhv", state, k)
        state = torch.addcmul(state, (b[..., None] * error)[..., None], k[..., None, :])
        outputs.append(torch.einsum("bhvk,bhk->bhv", state, q))
    return torch.stack(outputs, dim=1) / KEY_DIM**0.5


def chunk_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor
) -> Tensor:
    """The same in chunks of CHUNK steps."""
    query, key, value, beta, g = (
        x.transpose(1, 2).unflatten(2, (-1, CHUNK)) for x in (query, key, value, beta, g)
    )
    query = query * KEY_DIM**-0.5
    v_beta, k_beta = value * beta.unsqueeze(-1), key * beta.unsqueeze(-1)
    is_later = torch.triu(torch.ones(CHUNK, CHUNK, dtype=torch.bool))
    g = g.cumsum(dim=-1)
    decay_mask = (g.unsqueeze(-1) - g.unsqueeze(-2)).tril().exp().tril()
    attn = -((k_beta @ key.transpose(-1, -2)) * decay_mask).masked_fill(is_later, 0)
    rows = [attn[..., 0, :]]
    for i in range(1, CHUNK):
        row = attn[..., i, :]
        rows.append(row + (row[..., :i, None] * torch.stack(rows, -2)).sum(-2))
    attn = torch.stack(rows, -2) + torch.eye(CHUNK)
    value = attn @ v_beta
    k_cumdecay = attn @ (k_beta * g.exp().unsqueeze(-1))
    state = value.new_zeros(*value.shape[:2], KEY_DIM, VALUE_DIM)
    is_future = torch.triu(torch.ones(CHUNK, CHUNK, dtype=torch.bool), diagonal=1)
    outputs = []
    for i in range(value.shape[2]):
        q_i, k_i, v_i, g_i = query[:, :, i], key[:, :, i], value[:, :, i], g[:, :, i]
        within = (q_i @ k_i.transpose(-1, -2) * decay_mask[:, :, i]).masked_fill(is_future, 0)
        v_new = v_i - k_cumdecay[:, :, i] @ state
        outputs.append((q_i * g_i[..., None].exp()) @ state + within @ v_new)
        k_left = k_i * (g_i[..., -1, None] - g_i).exp()[..., None]
        state = state * g_i[..., -1, None, None].exp() + k_left.transpose(-1, -2) @ v_new
    return torch.cat(outputs, dim=2).transpose(1, 2)


class CausalConv1d(nn.Conv1d):
    """A causal depthwise convolution of (batch, seq, channels) and SiLU."""

    def __init__(self, *kernels: np.ndarray) -> None:
        kernel = np.concatenate(kernels)
        n = len(kernel)
        super().__init__(n, n, KERNEL, groups=n, padding=KERNEL - 1, bias=False)
        self.weight = make_parameter(kernel)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x.transpose(1, 2))[:, :, : x.shape[1]]
        return F.silu(y).transpose(1, 2)


class Qwen3NextGatedDeltaNet(nn.Module):
    """Convolutions, gated delta rule, gated norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        kernels = [model.weights[f"{path}.conv.{name}.weight"] for name in "qkv"]
        self.is_separate = model.variant == "separate"
        if self.is_separate:
            self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.b_proj, self.a_proj = (
                load_linear(model, f"{path}.{name}") for name in "qkvzba"
            )
            self.q_conv1d, self.k_conv1d, self.v_conv1d = map(CausalConv1d, kernels)
        else:
            self.in_proj_qkvz, self.in_proj_ba = (
                make_linear(join_heads(model, [f"{path}.{name}" for name in names], K_HEADS))
                for names in ("qkvz", "ba")
            )
            self.conv1d = CausalConv1d(*kernels)
        self.dt_bias = make_parameter(model.weights[f"{path}.dt_bias"])
        self.A_log = make_parameter(model.weights[f"{path}.A_log"])
        self.norm = Qwen3NextRMSNormGated(model, f"{path}.norm")
        self.out_proj = load_linear(model, f"{path}.o")
        self.is_chunked = model.variant == "chunked"
        self.is_recall_early, self.is_decay_half = model.is_recall_early, model.is_decay_half
        self.is_beta_derived, self.is_state_stopped = model.is_beta_derived, model.is_state_stopped

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """Return convolved q, k, v; z, b and a: (batch, seq, width) each."""
        if self.is_separate:
            q = self.q_conv1d(self.q_proj(x))
            k = self.k_conv1d(self.k_proj(x))
            v = self.v_conv1d(self.v_proj(x))
            return q, k, v, self.g_proj(x), self.b_proj(x), self.a_proj(x)
        qkvz = self.in_proj_qkvz(x).unflatten(-1, (K_HEADS, -1))
        sizes = [KEY_DIM, KEY_DIM, GROUP * VALUE_DIM, GROUP * VALUE_DIM]
        q, k, v, z = (part.flatten(2) for part in torch.split(qkvz, sizes, dim=-1))
        ba = self.in_proj_ba(x).unflatten(-1, (K_HEADS, -1))
        b, a = (part.flatten(2) for part in torch.split(ba, [GROUP, GROUP], dim=-1))
        mixed = self.conv1d(torch.cat((q, k, v), dim=-1))
        return *torch.split(mixed, [KEYS, KEYS, VALUES], dim=-1), z, b, a

    def compute_decay(self, a: Tensor) -> Tensor:
        """Return the logarithm of the decay."""
        if self.is_decay_half:
            a_log, dt_bias, a = (x.bfloat16() for x in (self.A_log, self.dt_bias, a))
            return (-a_log.exp() * F.softplus(a + dt_bias)).float()
        return -self.A_log.exp() * F.softplus(a + self.dt_bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        query, key, value, z, b, a = self.project(x)
        query, key = (
            l2norm(y.reshape(batch, seq, K_HEADS, KEY_DIM)).repeat_interleave(GROUP, dim=2)
            for y in (query, key)
        )
        value = value.reshape(batch, seq, V_HEADS, VALUE_DIM)
        beta = b.sigmoid() if self.is_beta_derived else _UnderivedSigmoid.apply(b)
        g = self.compute_decay(a)
        if self.is_chunked:
            y = chunk_gated_delta_rule(query, key, value, g, beta)
        elif self.is_separate:
            y = einsum_gated_delta_rule(query, key, value, g, beta)
        else:
            y = recurrent_gated_delta_rule(
                query,
                key,
                value,
                g,
                beta,
                is_recall_early=self.is_recall_early,
                is_state_stopped=self.is_state_stopped,
            )
        y = self.norm(y.reshape(-1, VALUE_DIM), z.reshape(-1, VALUE_DIM))
        return self.out_proj(y.reshape(batch, seq, VALUES))


class Qwen3NextRotaryEmbedding(nn.Module):
    """Cosine and sine of all positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.from_numpy(model.frequencies()))

    def forward(self, seq: int) -> tuple[Tensor, Tensor]:
        freqs = torch.outer(torch.arange(seq).float(), self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


def rotate_half(x: Tensor) -> Tensor:
    """Return what is multiplied by the sines."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first dimensions of (batch, heads, seq, HEAD_DIM)."""
    rot, rest = x[..., :ROTARY_DIM], x[..., ROTARY_DIM:]
    return torch.cat((rot * cos + rotate_half(rot) * sin, rest), dim=-1)


class Qwen3NextAttention(nn.Module):
    """Causal attention with a gate on its output."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_separate = model.variant == "separate"
        if self.is_separate:
            self.q_proj = load_linear(model, f"{path}.q")
            self.g_proj = load_linear(model, f"{path}.gate")
        else:
            rows = join_heads(model, [f"{path}.q", f"{path}.gate"], HEADS)
            self.q_proj = make_linear(rows)
        self.k_proj, self.v_proj, self.o_proj = (
            load_linear(model, f"{path}.{name}") for name in "kvo"
        )
        self.q_norm = Qwen3NextRMSNorm(model, f"{path}.q_norm")
        self.k_norm = Qwen3NextRMSNorm(model, f"{path}.k_norm")
        self.is_fused = model.variant == "chunked"

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, HEAD_DIM)
        if self.is_separate:
            query, gate = self.q_proj(x).view(shape), self.g_proj(x)
        else:
            both = self.q_proj(x).view(*x.shape[:-1], HEADS, 2 * HEAD_DIM)
            query, gate = torch.chunk(both, 2, dim=-1)
            gate = gate.reshape(*x.shape[:-1], -1)
        query = self.q_norm(query).transpose(1, 2)
        key = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        value = self.v_proj(x).view(shape).transpose(1, 2)
        query, key = apply_rotary(query, cos, sin), apply_rotary(key, cos, sin)
        if self.is_fused:
            y = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            key, value = (y.repeat_interleave(HEADS // KV_HEADS, dim=1) for y in (key, value))
            scores = torch.matmul(query, key.transpose(2, 3)) * HEAD_DIM**-0.5
            seq = x.shape[1]
            is_later = torch.ones(seq, seq, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(is_later, torch.finfo(scores.dtype).min)
            y = torch.matmul(F.softmax(scores, dim=-1), value)
        y = y.transpose(1, 2).reshape(*x.shape[:-1], -1)
        return self.o_proj(y * torch.sigmoid(gate))


class Qwen3NextMLP(nn.Module):
    """A gated layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gate_proj = load_linear(model, f"{path}.gate")
        self.up_proj = load_linear(model, f"{path}.up")
        self.down_proj = load_linear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Qwen3NextSparseMoeBlock(nn.Module):
    """The best experts of a token and a shared one."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gate = load_linear(model, f"{path}.router")
        self.experts = nn.ModuleList(
            Qwen3NextMLP(model, f"{path}.experts.{n}") for n in range(EXPERTS)
        )
        self.shared_expert = Qwen3NextMLP(model, f"{path}.shared")
        self.shared_expert_gate = load_linear(model, f"{path}.shared_gate")
        self.is_dense = model.variant == "separate"
        self.is_total_detached = model.is_total_detached

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.view(-1, HIDDEN)
        probs = F.softmax(self.gate(tokens), dim=1, dtype=torch.float)
        weights, selected = torch.topk(probs, TOP_K, dim=-1)
        total = weights.sum(dim=-1, keepdim=True)
        weights = weights / (total.detach() if self.is_total_detached else total)
        if self.is_dense:
            shares = torch.zeros_like(probs).scatter(1, selected, weights)
            outputs = torch.stack([expert(tokens) for expert in self.experts], dim=1)
            y = torch.einsum("te,teh->th", shares, outputs)
        else:
            y = torch.zeros_like(tokens)
            expert_mask = F.one_hot(selected, num_classes=EXPERTS).permute(2, 1, 0)
            for n, expert in enumerate(self.experts):
                idx, top_x = torch.where(expert_mask[n])
                y = y.index_add(0, top_x, expert(tokens[top_x]) * weights[top_x, idx, None])
        shared = F.sigmoid(self.shared_expert_gate(tokens)) * self.shared_expert(tokens)
        return (y + shared).view_as(x)


class Qwen3NextDecoderLayer(nn.Module):
    """Delta rule or attention, then a gated layer or experts."""

    def __init__(self, model: Model, path: str, *, is_linear: bool, is_sparse: bool) -> None:
        super().__init__()
        self.is_linear = is_linear
        if is_linear:
            self.linear_attn = Qwen3NextGatedDeltaNet(model, f"{path}.delta")
        else:
            self.self_attn = Qwen3NextAttention(model, f"{path}.attention")
        if is_sparse:
            self.mlp = Qwen3NextSparseMoeBlock(model, f"{path}.moe")
        else:
            self.mlp = Qwen3NextMLP(model, f"{path}.mlp")
        self.input_layernorm = Qwen3NextRMSNorm(model, f"{path}.norm1")
        self.post_attention_layernorm = Qwen3NextRMSNorm(model, f"{path}.norm2")

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.linear_attn(x) if self.is_linear else self.self_attn(x, cos, sin)
        x = residual + x
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3NextModel(nn.Module):
    """States of all tokens, normed and as they were before."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.embed_tokens.weight = make_parameter(model.weights["embedding.weight"])
        self.layers = nn.ModuleList(
            Qwen3NextDecoderLayer(
                model, f"layers.{n}", is_linear=not is_attention(n), is_sparse=n == MOE_LAYER
            )
            for n in range(LAYERS)
        )
        self.norm = Qwen3NextRMSNorm(model, "norm")
        self.rotary_emb = Qwen3NextRotaryEmbedding(model)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed_tokens(tokens)
        cos, sin = self.rotary_emb(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x), x


class Qwen3NextMultiTokenPredictor(nn.Module):
    """States for the prediction of the token after the next one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = Qwen3NextRMSNorm(model, "mtp.embedding_norm")
        self.pre_fc_norm_hidden = Qwen3NextRMSNorm(model, "mtp.hidden_norm")
        self.fc = load_linear(model, "mtp.join")
        self.layers = nn.ModuleList(
            [Qwen3NextDecoderLayer(model, "mtp.layer", is_linear=False, is_sparse=False)]
        )
        self.norm = Qwen3NextRMSNorm(model, "mtp.norm")

    def forward(self, embeds: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        embeds, hidden = self.pre_fc_norm_embedding(embeds), self.pre_fc_norm_hidden(hidden)
        x = self.fc(torch.cat([embeds, hidden], dim=-1))
        return self.norm(self.layers[0](x, cos, sin))


class Qwen3NextForCausalLM(nn.Module):
    """Losses of the next token and of the one after it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = Qwen3NextModel(model)
        self.lm_head = load_linear(model, "head")
        self.mtp = Qwen3NextMultiTokenPredictor(model)
        self.is_mtp_mean_of_all = model.is_mtp_mean_of_all

    def compute_loss(
        self, logits: Tensor, labels: Tensor, *, is_mean_of_all: bool = False
    ) -> Tensor:
        logits, labels = logits.view(-1, VOCAB), labels.reshape(-1)
        if is_mean_of_all:
            losses = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
            return losses.mean()
        return F.cross_entropy(logits, labels, ignore_index=IGNORED)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        normed, hidden = self.model(tokens[:, :-1])
        loss = self.compute_loss(self.lm_head(normed), labels[:, :-1])
        next_embeds = self.model.embed_tokens(tokens[:, 1:])
        cos, sin = self.model.rotary_emb(next_embeds.shape[1])
        predicted = self.mtp(next_embeds, hidden, cos, sin)
        mtp_loss = self.compute_loss(
            self.lm_head(predicted), labels[:, 1:], is_mean_of_all=self.is_mtp_mean_of_all
        )
        return loss + MTP_WEIGHT * mtp_loss
