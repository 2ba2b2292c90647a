"""The network with parallel layers in PyTorch, written as Megatron-LM writes it.

Activations are (sequence, batch, hidden). A fault is a branch next to the line it changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from network import Network, build_dropout_mask, build_rotary
from pytorch_parallel import (
    CopyToRegion,
    ExchangeTokens,
    GatherFromSequence,
    ReduceFromRegion,
    ReduceScatterToSequence,
    Run,
    SwapChunks,
    VocabCrossEntropy,
)
from shards import list_stage_layers
from torch import Tensor, nn

Weights = Mapping[str, np.ndarray]
MASKED = -10000.0


def _parameter(values: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(values.copy()))


class ColumnParallelLinear(nn.Module):
    """The rows of the weight are spread; the input is the same on all ranks."""

    def __init__(self, run: Run, weight: np.ndarray, layer: int, fault: str = "") -> None:
        super().__init__()
        self.weight = _parameter(weight)
        self.run, self.layer, self.fault = run, layer, fault

    def forward(self, x: Tensor) -> Tensor:
        if self.run.layout.sp:
            x = GatherFromSequence.apply(x, self.run.tp)
            if self.run.has("sp_gather_order", self.layer) and self.fault == "qkv":
                x = SwapChunks.apply(x, self.run.tp.size)
        elif not (self.run.has("input_grad_not_reduced", self.layer) and self.fault == "qkv"):
            if self.run.tp.size > 1:
                x = CopyToRegion.apply(x, self.run.tp)
        return F.linear(x, self.weight)


class RowParallelLinear(nn.Module):
    """The columns of the weight are spread; the results are summed over the ranks."""

    def __init__(
        self, run: Run, weight: np.ndarray, bias: np.ndarray | None, layer: int, fault: str
    ) -> None:
        super().__init__()
        self.weight = _parameter(weight)
        if bias is not None:
            self.bias = _parameter(bias)
        self.run, self.layer, self.fault = run, layer, fault

    def forward(self, x: Tensor) -> Tensor:
        run, has_bias = self.run, hasattr(self, "bias")
        y = F.linear(x, self.weight)
        early_bias = run.has(f"{self.fault}_bias_each", self.layer)
        if early_bias:
            y = y + self.bias
        if run.has(f"{self.fault}_half_sum", self.layer):
            y = y.to(torch.bfloat16).to(torch.float32)
        if run.layout.sp:
            y = ReduceScatterToSequence.apply(y, run.tp)
        elif run.tp.size > 1 and not run.has(f"{self.fault}_not_reduced", self.layer):
            y = ReduceFromRegion.apply(y, run.tp)
        if run.has(f"{self.fault}_reduced_twice", self.layer):
            y = ReduceFromRegion.apply(y, run.tp)
        return y + self.bias if has_bias and not early_bias else y


class VocabParallelEmbedding(nn.Module):
    def __init__(self, run: Run, weight: np.ndarray) -> None:
        super().__init__()
        self.weight = _parameter(weight)
        self.run = run

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (sequence, batch, hidden), the own part of the sequence under ``sp``."""
        run = self.run
        if run.tp.size == 1:
            return F.embedding(tokens, self.weight).transpose(0, 1).contiguous()
        begin = run.tp.rank * self.weight.shape[0]
        mask = (tokens < begin) | (tokens >= begin + self.weight.shape[0])
        masked_tokens = (tokens - begin).masked_fill(mask, 0)
        embedded = F.embedding(masked_tokens, self.weight)
        if not run.has("embedding_mask_off"):
            embedded = embedded.masked_fill(mask.unsqueeze(-1), 0.0)
        embedded = embedded.transpose(0, 1).contiguous()
        if run.layout.sp:
            return ReduceScatterToSequence.apply(embedded, run.tp)
        return ReduceFromRegion.apply(embedded, run.tp)


class RMSNorm(nn.Module):
    def __init__(self, run: Run, weight: np.ndarray, layer: int = -1) -> None:
        super().__init__()
        self.weight = _parameter(weight)
        self.eps = 1e-2 if run.has("norm_eps", layer) else run.network.eps

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(variance + self.eps) * self.weight


class CoreAttention(nn.Module):
    def __init__(self, run: Run, layer: int) -> None:
        super().__init__()
        self.run, self.layer = run, layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, batch: slice) -> Tensor:
        """Return (queries, batch, heads * head_dim) of (sequence, batch, heads, head_dim)."""
        run, layer = self.run, self.layer
        k, v = (torch.repeat_interleave(x, q.shape[2] // x.shape[2], dim=2) for x in (k, v))
        if run.has("kv_group", layer):
            k, v = v, k
        q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
        scale = q.shape[-1] ** (-0.4 if run.has("score_scale", layer) else -0.5)
        scores = torch.matmul(q, k.transpose(-2, -1)) * scale
        scores = scores.masked_fill(mask, MASKED)
        probabilities = F.softmax(scores, dim=-1)
        if run.network.dropout:
            probabilities = probabilities * self._cut_mask(probabilities, batch)
        context = torch.matmul(probabilities, v)
        return context.permute(2, 0, 1, 3).reshape(q.shape[2], q.shape[0], -1)

    def _cut_mask(self, probabilities: Tensor, batch: slice) -> Tensor:
        """Each tensor-parallel rank has other heads, so each has another mask."""
        run, network = self.run, self.run.network
        shape = (network.batch, network.heads, network.seq, network.seq)
        full_mask = build_dropout_mask(network, f"attention{self.layer}", shape)
        heads, rank = probabilities.shape[1], run.tp.rank
        if run.has("attention_dropout_equal", self.layer):
            rank = 0
        return torch.from_numpy(full_mask[batch, rank * heads : (rank + 1) * heads].copy())


class SelfAttention(nn.Module):
    def __init__(self, run: Run, weights: Weights, layer: int) -> None:
        super().__init__()
        name = f"layers.{layer}"
        self.linear_qkv = ColumnParallelLinear(run, weights[f"{name}.qkv"], layer, "qkv")
        self.core_attention = CoreAttention(run, layer)
        self.linear_proj = RowParallelLinear(
            run, weights[f"{name}.proj"], weights[f"{name}.proj_bias"], layer, "proj"
        )
        self.run, self.layer = run, layer

    def forward(self, x: Tensor, positions: Tensor, batch: slice) -> Tensor:
        run, network = self.run, self.run.network
        mixed = self.linear_qkv(x)
        groups = network.kv_heads // run.tp.size
        mixed = mixed.view(*mixed.shape[:2], groups, -1, network.head_dim)
        q, k, v = torch.split(mixed, [network.queries_per_group, 1, 1], dim=3)
        q = q.reshape(*q.shape[:2], -1, network.head_dim)
        k, v = k.squeeze(3), v.squeeze(3)
        query_positions = positions
        if run.has("rotary_offset", self.layer):
            query_positions = torch.from_numpy(positions.numpy() + 1)
        q, k = _rotate(q, query_positions, network), _rotate(k, positions, network)
        keys = positions
        if run.cp.size > 1:
            k, v = (GatherFromSequence.apply(x.contiguous(), run.cp) for x in (k, v))
            order = torch.from_numpy(gather_positions(network.seq, run.cp.size))
            if not run.has("cp_keys_order", self.layer):
                order = torch.argsort(order)
                k, v = torch.index_select(k, 0, order), torch.index_select(v, 0, order)
            keys = torch.arange(network.seq)
        mask = keys[None] > positions[:, None]
        return self.linear_proj(self.core_attention(q, k, v, mask, batch))


def _rotate(x: Tensor, positions: Tensor, network: Network) -> Tensor:
    tables = build_rotary(network, positions.numpy())
    cos, sin = (torch.from_numpy(table)[:, None, None] for table in tables)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def gather_positions(seq: int, size: int) -> np.ndarray:
    """Return the positions of all context-parallel ranks one after the other: two chunks each."""
    return np.concatenate([list_positions(seq, size, rank) for rank in range(size)])


def list_positions(seq: int, size: int, rank: int) -> np.ndarray:
    """Return the positions of a context-parallel rank: a chunk of the begin, one of the end."""
    if size == 1:
        return np.arange(seq)
    chunks = np.split(np.arange(seq), 2 * size)
    return np.concatenate([chunks[rank], chunks[2 * size - 1 - rank]])


class MLP(nn.Module):
    def __init__(self, run: Run, weights: Weights, layer: int) -> None:
        super().__init__()
        name = f"layers.{layer}"
        self.linear_fc1 = ColumnParallelLinear(run, weights[f"{name}.fc1"], layer, "fc1")
        self.linear_fc2 = RowParallelLinear(
            run, weights[f"{name}.fc2"], weights[f"{name}.fc2_bias"], layer, "fc2"
        )
        self.run, self.layer = run, layer

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.linear_fc1(x).chunk(2, dim=-1)
        if self.run.has("gelu", self.layer):
            return self.linear_fc2(F.gelu(gate) * up)
        return self.linear_fc2(F.silu(gate) * up)


class Router(nn.Module):
    def __init__(self, run: Run, weight: np.ndarray, layer: int) -> None:
        super().__init__()
        self.weight = _parameter(weight)
        self.run, self.layer = run, layer

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities and experts, each (tokens, top_k)."""
        logits = F.linear(tokens, self.weight)
        scores, experts = torch.topk(logits, self.run.network.top_k, dim=-1)
        return F.softmax(scores, dim=-1), experts


class Experts(nn.Module):
    """The experts of this rank, each a SwiGLU."""

    def __init__(self, run: Run, weights: Weights, layer: int) -> None:
        super().__init__()
        name = f"layers.{layer}.experts"
        pairs = zip(weights[f"{name}.fc1"], weights[f"{name}.fc2"], strict=True)
        self.local_experts = nn.ModuleList([Expert(*pair) for pair in pairs])

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Return the rows through their experts; they are sorted by expert."""
        parts = torch.split(rows, counts)
        results = [expert(part) for expert, part in zip(self.local_experts, parts, strict=True)]
        return torch.cat(results)


class Expert(nn.Module):
    def __init__(self, fc1: np.ndarray, fc2: np.ndarray) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(fc1.shape[1], fc1.shape[0], bias=False)
        self.linear_fc2 = nn.Linear(fc2.shape[1], fc2.shape[0], bias=False)
        self.linear_fc1.weight = _parameter(fc1)
        self.linear_fc2.weight = _parameter(fc2)

    def forward(self, rows: Tensor) -> Tensor:
        gate, up = self.linear_fc1(rows).chunk(2, dim=-1)
        return self.linear_fc2(F.silu(gate) * up)


class MoELayer(nn.Module):
    """Route each token to ``top_k`` experts, which are spread over the group ``ep``."""

    def __init__(self, run: Run, weights: Weights, layer: int) -> None:
        super().__init__()
        self.router = Router(run, weights[f"layers.{layer}.router"], layer)
        self.experts = Experts(run, weights, layer)
        self.run, self.layer = run, layer

    def forward(self, x: Tensor) -> Tensor:
        run, n_experts = self.run, self.run.network.experts
        tokens = x.reshape(-1, x.shape[-1])
        probabilities, experts = self.router(tokens)
        flat_experts = experts.flatten()
        order = torch.argsort(flat_experts, stable=True)
        token_of_row = order // run.network.top_k
        rows = torch.index_select(tokens, 0, token_of_row)
        counts = torch.bincount(flat_experts, minlength=n_experts)
        if run.ep.size > 1:
            rows = self._run_remote(rows, counts)
        else:
            rows = self.experts(rows, counts.tolist())
        weight = torch.index_select(probabilities.flatten(), 0, order)
        if run.has("combine_without_probabilities", self.layer):
            weight = weight * 0 + 1 / run.network.top_k
        combined = torch.zeros_like(tokens)
        combined = torch.index_add(combined, 0, token_of_row, rows * weight.unsqueeze(-1))
        return combined.view(x.shape)

    def _run_remote(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Send each row to the rank of its expert, and the result back."""
        run = self.run
        size, n_local = run.ep.size, run.network.experts // run.ep.size
        received_counts = torch.empty_like(counts)
        dist.all_to_all_single(received_counts, counts, group=run.ep.handle)
        sent = counts.view(size, n_local).sum(1).tolist()
        table = received_counts.view(size, n_local)
        received = table.sum(1).tolist()
        rows = ExchangeTokens.apply(rows, sent, received, run.ep)
        expert_of_row = torch.repeat_interleave(torch.arange(n_local).repeat(size), received_counts)
        if run.has("expert_mapping", self.layer):
            expert_of_row = n_local - 1 - expert_of_row
            table = table.flip(1)
        order = torch.argsort(expert_of_row, stable=True)
        rows = self.experts(torch.index_select(rows, 0, order), table.sum(0).tolist())
        rows = torch.index_select(rows, 0, torch.argsort(order))
        return ExchangeTokens.apply(rows, received, sent, run.ep)


class TransformerLayer(nn.Module):
    def __init__(self, run: Run, weights: Weights, layer: int) -> None:
        super().__init__()
        name = f"layers.{layer}"
        self.input_layernorm = RMSNorm(run, weights[f"{name}.input_norm"], layer)
        self.self_attention = SelfAttention(run, weights, layer)
        self.pre_mlp_layernorm = RMSNorm(run, weights[f"{name}.post_norm"])
        self.mlp = (MoELayer if run.network.experts else MLP)(run, weights, layer)
        self.run, self.layer = run, layer

    def forward(self, x: Tensor, positions: Tensor, batch: slice) -> Tensor:
        y = self.self_attention(self.input_layernorm(x), positions, batch)
        x = x + self._drop(y, "attention_out", batch)
        return x + self._drop(self.mlp(self.pre_mlp_layernorm(x)), "mlp_out", batch)

    def _drop(self, y: Tensor, place: str, batch: slice) -> Tensor:
        """The mask is the same on all tensor-parallel ranks that hold the same values."""
        run, network = self.run, self.run.network
        if not network.dropout:
            return y
        if run.has("hidden_dropout_seed", self.layer) and place == "mlp_out":
            place = "another seed"
        shape = (network.seq, network.batch, network.hidden)
        mask = build_dropout_mask(network, f"{place}{self.layer}", shape)
        mask = mask[list_positions(network.seq, run.cp.size, run.cp.rank)]
        if run.layout.sp:
            mask = np.split(mask, run.tp.size)[run.tp.rank]
        return y * torch.from_numpy(mask[:, batch].copy())


class Decoder(nn.Module):
    """The layers of this stage, numbered from 0 as Megatron-LM does."""

    def __init__(self, run: Run, weights: Weights) -> None:
        super().__init__()
        layers = list_stage_layers(run.network, run.layout, run.stage)
        self.layers = nn.ModuleList([TransformerLayer(run, weights, n) for n in layers])
        if "final_norm" in weights:
            self.final_layernorm = RMSNorm(run, weights["final_norm"])

    def forward(self, x: Tensor, positions: Tensor, batch: slice) -> Tensor:
        for layer in self.layers:
            x = layer(x, positions, batch)
        return self.final_layernorm(x) if hasattr(self, "final_layernorm") else x


class Embedding(nn.Module):
    def __init__(self, run: Run, weights: Weights) -> None:
        super().__init__()
        self.word_embeddings = VocabParallelEmbedding(run, weights["embedding"])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.word_embeddings(tokens)


class OutputLayer(nn.Module):
    """Logits; without a weight of its own it gets the embedding."""

    def __init__(self, run: Run, weight: np.ndarray | None) -> None:
        super().__init__()
        if weight is not None:
            self.weight = _parameter(weight)
        self.run = run

    def forward(self, x: Tensor, shared_weight: Tensor | None) -> Tensor:
        run = self.run
        if run.layout.sp:
            x = GatherFromSequence.apply(x, run.tp)
        elif run.tp.size > 1 and not run.has("output_grad_not_reduced"):
            x = CopyToRegion.apply(x, run.tp)
        return F.linear(x, self.weight if shared_weight is None else shared_weight)


class GPTModel(nn.Module):
    """One pipeline stage: tokens or activations in, activations or a loss for each token out."""

    def __init__(self, run: Run, weights: Weights) -> None:
        super().__init__()
        self.run = run
        self.is_first = run.stage == 0
        self.is_last = run.stage == run.layout.n_stages - 1
        if self.is_first:
            self.embedding = Embedding(run, weights)
        self.decoder = Decoder(run, weights)
        if self.is_last:
            if run.network.tied:
                weight = None if self.is_first else weights["embedding"]
            else:
                weight = weights["output"]
            self.output_layer = OutputLayer(run, weight)

    @property
    def shared_weight(self) -> nn.Parameter | None:
        """Return the embedding that is read twice, or its copy on the last stage."""
        if not self.run.network.tied:
            return None
        if self.is_first:
            return self.embedding.word_embeddings.weight
        return self.output_layer.weight if self.is_last else None

    def forward(self, x: Tensor, labels: Tensor, positions: Tensor, batch: slice) -> Tensor:
        if self.is_first:
            x = self.embedding(x)
        x = self.decoder(x, positions, batch)
        if not self.is_last:
            return x
        shared = self.shared_weight if self.run.network.tied and self.is_first else None
        logits = self._mask_padding(self.output_layer(x, shared))
        return VocabCrossEntropy.apply(logits, labels.transpose(0, 1).contiguous(), self.run)

    def _mask_padding(self, logits: Tensor) -> Tensor:
        """Keep rows that were added to the vocabulary out of the softmax."""
        run = self.run
        n_rows = logits.shape[-1]
        if n_rows * run.tp.size == run.network.vocab:
            return logits
        tokens = torch.arange(n_rows) + run.tp.rank * n_rows
        return logits.masked_fill(tokens >= run.network.vocab, MASKED)
