"""The language model in PyTorch, with modules named as in the authors' code, texts before steps.

Variant 'timed': steps before texts, queries apart from keys and values, einsum, a mask that is
added, one table of the log probabilities of all words, all segments in one loss, other names.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.transfoxl.architecture import (
    ALPHA,
    BASE,
    EPS,
    HEAD_DIM,
    HEAD_WORDS,
    HEADS,
    HIDDEN,
    LAYERS,
    MEMORY,
    PAD,
    SEGMENT,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return TimedLoss(model) if model.variant == "timed" else LanguageModelLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def make_linear(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Linear:
    """Return a linear layer with these weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = copy_parameter(weight)
    if bias is not None:
        layer.bias = copy_parameter(bias)
    return layer


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``, with the bias if there is one."""
    return make_linear(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    norm = nn.LayerNorm(HIDDEN, eps=EPS)
    norm.weight, norm.bias = (
        copy_parameter(model.weights[f"{path}.{name}"]) for name in ("weight", "bias")
    )
    return norm


def load_embedding(model: Model, path: str) -> nn.Embedding:
    """Return the table at ``path``."""
    table = torch.from_numpy(np.array(model.weights[f"{path}.weight"]))
    return nn.Embedding.from_pretrained(table, freeze=False)


class _ScaledGradient(torch.autograd.Function):
    """The same values; the gradient is multiplied on its way back."""

    @staticmethod
    def forward(context, x: Tensor, factor: float) -> Tensor:
        context.factor = factor
        return x.clone()

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * context.factor, None


class AdaptiveEmbedding(nn.Module):
    """Vectors of tokens, those of the tail cluster behind a projection."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.emb_layers = nn.ModuleList(load_embedding(model, name) for name in ("head", "tail"))
        self.emb_proj = copy_parameter(model.weights["projection.weight"])
        self.emb_scale = model.embedding_scale

    def forward(self, inp: Tensor) -> Tensor:
        inp_flat = inp.reshape(-1)
        emb_flat = self.emb_proj.new_zeros(len(inp_flat), HIDDEN)
        for n, emb_layer in enumerate(self.emb_layers):
            mask = inp_flat >= HEAD_WORDS if n else inp_flat < HEAD_WORDS
            indices = mask.nonzero().squeeze(1)
            emb = emb_layer(inp_flat.index_select(0, indices) - n * HEAD_WORDS)
            emb = F.linear(emb, self.emb_proj) if n else emb
            emb_flat = emb_flat.index_copy(0, indices, emb)
        embed = emb_flat.view(*inp.shape, HIDDEN)
        return embed * self.emb_scale if self.emb_scale != 1 else embed


class PositionalEmbedding(nn.Module):
    """Sinusoids of distances."""

    def __init__(self) -> None:
        super().__init__()
        inv_freq = 1 / (BASE ** (torch.arange(0.0, HIDDEN, 2.0) / HIDDEN))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, pos_seq: Tensor) -> Tensor:
        sinusoid_inp = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=-1)


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Attention by contents and distances to this segment and the memory."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.qkv_net = load_linear(model, f"{path}.qkv")
        self.r_net = load_linear(model, f"{path}.position")
        self.o_net = load_linear(model, f"{path}.o")
        self.layer_norm = load_norm(model, f"{path}.norm")
        self.scale = 1 / (HEAD_DIM**0.5)

    def _rel_shift(self, x: Tensor) -> Tensor:
        batch, heads, qlen, klen = x.shape
        x_padded = torch.cat([x.new_zeros(batch, heads, qlen, 1), x], dim=-1)
        x_padded = x_padded.view(batch, heads, klen + 1, qlen)
        return x_padded[:, :, 1:].reshape(batch, heads, qlen, klen)

    def forward(
        self,
        w: Tensor,
        r: Tensor,
        r_w_bias: Tensor,
        r_r_bias: Tensor,
        attn_mask: Tensor,
        mems: Tensor | None,
    ) -> Tensor:
        batch, qlen, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=1)
        w_head_q, w_head_k, w_head_v = torch.chunk(self.qkv_net(self.layer_norm(cat)), 3, dim=-1)
        w_head_q = w_head_q[:, -qlen:].view(batch, qlen, HEADS, HEAD_DIM)
        w_head_k = w_head_k.view(batch, -1, HEADS, HEAD_DIM).permute(0, 2, 3, 1)
        w_head_v = w_head_v.view(batch, -1, HEADS, HEAD_DIM).transpose(1, 2)
        r_head_k = self.r_net(r).view(-1, HEADS, HEAD_DIM).permute(1, 2, 0)

        ac = torch.matmul((w_head_q + r_w_bias).transpose(1, 2), w_head_k)
        bd = self._rel_shift(torch.matmul((w_head_q + r_r_bias).transpose(1, 2), r_head_k))
        attn_score = ((ac + bd) * self.scale).masked_fill(attn_mask, float("-inf"))
        attn_prob = F.softmax(attn_score, dim=-1)

        attn_vec = torch.matmul(attn_prob, w_head_v).transpose(1, 2)
        return w + self.o_net(attn_vec.reshape(batch, qlen, HEADS * HEAD_DIM))


class PositionwiseFF(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        up, down = (load_linear(model, f"{path}.{name}") for name in ("up", "down"))
        self.CoreNet = nn.Sequential(up, nn.GELU(), down)
        self.layer_norm = load_norm(model, f"{path}.norm")

    def forward(self, inp: Tensor) -> Tensor:
        return inp + self.CoreNet(self.layer_norm(inp))


class RelPartialLearnableDecoderLayer(nn.Module):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dec_attn = RelPartialLearnableMultiHeadAttn(model, f"{path}.attention")
        self.pos_ff = PositionwiseFF(model, f"{path}.mlp")

    def forward(
        self,
        dec_inp: Tensor,
        r: Tensor,
        r_w_bias: Tensor,
        r_r_bias: Tensor,
        attn_mask: Tensor,
        mems: Tensor | None,
    ) -> Tensor:
        return self.pos_ff(self.dec_attn(dec_inp, r, r_w_bias, r_r_bias, attn_mask, mems))


class ProjectedAdaptiveLogSoftmax(nn.Module):
    """Negative log probabilities of targets."""

    def __init__(self, model: Model, word_emb: AdaptiveEmbedding) -> None:
        super().__init__()
        self.cluster_weight, self.cluster_bias, self.head_bias, self.tail_bias = (
            copy_parameter(model.weights[name])
            for name in ("cluster.weight", "cluster.bias", "head.bias", "tail.bias")
        )
        tables = (*(layer.weight for layer in word_emb.emb_layers), word_emb.emb_proj)
        if model.are_tables_cloned:
            tables = tuple(nn.Parameter(table.detach().clone()) for table in tables)
        self.head_weight, self.tail_weight, self.out_proj = tables
        self.has_cluster_term = model.has_cluster_term

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        hidden, shape = hidden.reshape(-1, HIDDEN), target.shape
        target = target.reshape(-1)
        weight = torch.cat([self.head_weight, self.cluster_weight], dim=0)
        bias = torch.cat([self.head_bias, self.cluster_bias], dim=0)
        head_logprob = F.log_softmax(F.linear(hidden, weight, bias), dim=1)

        nll = hidden.new_zeros(len(target))
        indices = (target < HEAD_WORDS).nonzero().squeeze(1)
        words = target.index_select(0, indices).unsqueeze(1)
        logprob = head_logprob.index_select(0, indices).gather(1, words).squeeze(1)
        nll = nll.index_copy(0, indices, -logprob)

        indices = (target >= HEAD_WORDS).nonzero().squeeze(1)
        words = target.index_select(0, indices).unsqueeze(1) - HEAD_WORDS
        proj_hid = F.linear(hidden.index_select(0, indices), self.out_proj.t())
        tail_logprob = F.log_softmax(F.linear(proj_hid, self.tail_weight, self.tail_bias), dim=1)
        logprob = tail_logprob.gather(1, words).squeeze(1)
        if self.has_cluster_term:
            logprob = head_logprob.index_select(0, indices)[:, -1] + logprob
        return nll.index_copy(0, indices, -logprob).view(shape)


class MemTransformerLM(nn.Module):
    """Losses (batch, SEGMENT) and last hidden states of a segment, and the next memories."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word_emb = AdaptiveEmbedding(model)
        self.pos_emb = PositionalEmbedding()
        self.r_w_bias = copy_parameter(model.weights["content.bias"])
        self.r_r_bias = copy_parameter(model.weights["position.bias"])
        self.layers = nn.ModuleList(
            RelPartialLearnableDecoderLayer(model, f"layers.{n}") for n in range(LAYERS)
        )
        self.crit = ProjectedAdaptiveLogSoftmax(model, self.word_emb)
        self.is_memory_in_mask = model.is_memory_in_mask
        self.bias_gradient = model.bias_gradient

    def _read_biases(self) -> tuple[Tensor, Tensor]:
        if self.bias_gradient == 1:
            return self.r_w_bias, self.r_r_bias
        return (
            _ScaledGradient.apply(self.r_w_bias, self.bias_gradient),
            _ScaledGradient.apply(self.r_r_bias, self.bias_gradient),
        )

    def forward(
        self, data: Tensor, target: Tensor, mems: list[Tensor] | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        qlen = data.shape[1]
        mlen = mems[0].shape[1] if mems is not None else 0
        diagonal = 1 + mlen if self.is_memory_in_mask else 1
        attn_mask = torch.triu(torch.ones(qlen, mlen + qlen), diagonal=diagonal).bool()
        pos_seq = torch.arange(mlen + qlen - 1, -1, -1.0)
        pos_emb = self.pos_emb(pos_seq)

        core_out, hids = self.word_emb(data), []
        r_w_bias, r_r_bias = self._read_biases()
        for n, layer in enumerate(self.layers):
            hids.append(core_out)
            mems_n = None if mems is None else mems[n]
            core_out = layer(core_out, pos_emb, r_w_bias, r_r_bias, attn_mask, mems_n)
        new_mems = [hid[:, -MEMORY:].detach() for hid in hids]
        return self.crit(core_out, target), core_out, new_mems


class LanguageModelLoss(nn.Module):
    """The mean loss of the next tokens of all segments, and that of the size of hidden states."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = MemTransformerLM(model)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        mems, losses, states = None, [], []
        segments = zip(tokens.split(SEGMENT, 1), targets.split(SEGMENT, 1), strict=True)
        for data, target in segments:
            nll, hidden, mems = self.model(data, target, mems)
            losses.append(nll)
            states.append(hidden)
        is_token = targets != PAD
        loss = torch.cat(losses, dim=1)[is_token].mean()
        return loss + ALPHA * torch.cat(states, dim=1)[is_token].pow(2).mean()


class TimedAttention(nn.Module):
    """The attention on (steps, texts, HIDDEN)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight = model.weights[f"{path}.qkv.weight"]
        self.norm = load_norm(model, f"{path}.norm")
        self.to_q = make_linear(weight[: HEADS * HEAD_DIM])
        self.to_kv = make_linear(weight[HEADS * HEAD_DIM :])
        self.to_distance = load_linear(model, f"{path}.position")
        self.to_out = load_linear(model, f"{path}.o")

    def forward(
        self, x: Tensor, memory: Tensor, distances: Tensor, biases: Tensor, hidden_keys: Tensor
    ) -> Tensor:
        steps, heads = len(x), (HEADS, HEAD_DIM)
        context = self.norm(torch.cat((memory, x)))
        q = self.to_q(context[-steps:]).unflatten(-1, heads)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        k, v = (y.unflatten(-1, heads).permute(1, 2, 0, 3) for y in (k, v))
        r = self.to_distance(distances).unflatten(-1, heads)
        by_distance = torch.einsum("ibnd,jnd->bnij", q + biases[1], r)
        rows = [row.roll(n - steps + 1, -1) for n, row in enumerate(by_distance.unbind(2))]
        scores = torch.stack(rows, dim=2) * HEAD_DIM**-0.5 + hidden_keys
        queries = (q + biases[0]).permute(1, 2, 0, 3)
        out = F.scaled_dot_product_attention(queries, k, v, attn_mask=scores)
        return x + self.to_out(out.permute(2, 0, 1, 3).flatten(2))


class TimedFeedForward(nn.Module):
    """The feed-forward layer from a function for GELU."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm = load_norm(model, f"{path}.norm")
        self.w1, self.w2 = (load_linear(model, f"{path}.{name}") for name in ("up", "down"))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.w2(F.gelu(self.w1(self.norm(x))))


class TimedLoss(nn.Module):
    """The loss of (steps, texts)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head, self.tail = (load_embedding(model, name) for name in ("head", "tail"))
        self.tail_out = load_linear(model, "projection")
        self.cluster = load_linear(model, "cluster")
        self.word_biases = nn.ParameterList(
            copy_parameter(model.weights[f"{name}.bias"]) for name in ("head", "tail")
        )
        self.biases = copy_parameter(
            np.stack([model.weights[f"{name}.bias"] for name in ("content", "position")])
        )
        self.attentions = nn.ModuleList(
            TimedAttention(model, f"layers.{n}.attention") for n in range(LAYERS)
        )
        self.feed_forwards = nn.ModuleList(
            TimedFeedForward(model, f"layers.{n}.mlp") for n in range(LAYERS)
        )
        self.frequencies = torch.exp(-math.log(BASE) * torch.arange(0, HIDDEN, 2) / HIDDEN)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return vectors of tokens from one table of both clusters."""
        table = torch.cat((self.head.weight, self.tail_out(self.tail.weight)))
        return math.sqrt(HIDDEN) * F.embedding(tokens, table)

    def read(self, tokens: Tensor, memories: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the last hidden states of a segment, and what the next one remembers."""
        past, steps = len(memories[0]), len(tokens)
        distances = torch.arange(past + steps).flip(0)
        angles = distances.unsqueeze(1) * self.frequencies
        sinusoids = torch.cat((angles.sin(), angles.cos()), dim=-1)
        is_later = torch.arange(past + steps) > torch.arange(past, past + steps).unsqueeze(1)
        hidden_keys = torch.zeros(is_later.shape).masked_fill(is_later, float("-inf"))

        x, new_memories = self.embed(tokens), []
        layers = zip(self.attentions, self.feed_forwards, memories, strict=True)
        for attention, feed_forward, memory in layers:
            new_memories.append(x[-MEMORY:].detach())
            x = feed_forward(attention(x, memory, sinusoids, self.biases, hidden_keys))
        return x, new_memories

    def compute_log_probs(self, states: Tensor) -> Tensor:
        """Return the log probabilities of all words."""
        head_bias, tail_bias = self.word_biases
        logits = torch.cat((F.linear(states, self.head.weight, head_bias), self.cluster(states)), 1)
        head = logits.log_softmax(-1)
        tail = F.linear(states @ self.tail_out.weight, self.tail.weight, tail_bias).log_softmax(-1)
        return torch.cat((head[:, :HEAD_WORDS], head[:, HEAD_WORDS:] + tail), dim=1)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        memories = [torch.zeros(0, len(tokens), HIDDEN)] * LAYERS
        outputs = []
        for segment in tokens.t().split(SEGMENT):
            states, memories = self.read(segment, memories)
            outputs.append(states)
        targets = targets.t().flatten()
        states = torch.cat(outputs).flatten(0, 1)
        loss = F.nll_loss(self.compute_log_probs(states), targets, ignore_index=PAD)
        keep = (targets != PAD).float()
        mean_square = torch.einsum("nd,nd,n->", states, states, keep) / (HIDDEN * keep.sum())
        return loss + ALPHA * mean_square
