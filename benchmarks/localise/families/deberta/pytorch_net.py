"""The masked language model in PyTorch, with the modules of Hugging Face's DeBERTa-v2.

Variant 'fused': one projection for queries, keys and values, fused attention with the scores of
positions as its bias, which einsum computes from a row of the table for each pair of tokens, gelu
in plain arithmetic, and losses weighted by masks.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.deberta.architecture import (
    DECODER_STEPS,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    LAYERS,
    REPLACED_WEIGHT,
    SPAN,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return DebertaForPreTraining(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, _ in list(module.named_parameters()):
        setattr(module, name, copy_parameter(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights), model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(HIDDEN, eps=EPS), model, path)


def load_table(model: Model, path: str) -> nn.Module:
    """Return the embedding at ``path``."""
    return load(nn.Embedding(*model.weights[f"{path}.weight"].shape), model, path)


class Gelu(nn.Module):
    """Gelu by the error function."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written_out = model.variant == "fused"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_written_out:
            return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))
        return F.gelu(x)


class DebertaEmbeddings(nn.Module):
    """Words, with or without absolute positions, normed; padding is 0."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word_embeddings = load_table(model, "words")
        self.LayerNorm = load_norm(model, "words.norm")

    def forward(self, tokens: Tensor, mask: Tensor, *positions: Tensor) -> Tensor:
        x = self.word_embeddings(tokens)
        for table in positions:
            x = x + table
        return self.LayerNorm(x) * mask.unsqueeze(2).to(x.dtype)


class DisentangledSelfAttention(nn.Module):
    """Attention by contents and relative positions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query_proj = load_linear(model, f"{path}.q")
        self.key_proj = load_linear(model, f"{path}.k")
        self.value_proj = load_linear(model, f"{path}.v")
        self.pos_key_proj = load_linear(model, f"{path}.position_k")
        self.pos_query_proj = load_linear(model, f"{path}.position_q")
        self.scale = math.sqrt(HEAD_DIM * model.score_terms)
        self.is_transposed = model.are_position_scores_transposed
        self.is_half = model.are_position_scores_half
        self.is_key_table_stopped = model.is_key_table_stopped

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        """Return (batch * HEADS, rows, HEAD_DIM)."""
        x = x.view(x.size(0), x.size(1), HEADS, HEAD_DIM)
        return x.permute(0, 2, 1, 3).contiguous().view(-1, x.size(1), HEAD_DIM)

    def multiply(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return the products of all rows of both."""
        if self.is_half:
            return torch.bmm(x.half(), positions.half().transpose(-1, -2)).float()
        return torch.bmm(x, positions.transpose(-1, -2))

    def disentangled_attention_bias(
        self, query: Tensor, key: Tensor, relative_pos: Tensor, rel_embeddings: Tensor
    ) -> Tensor:
        """Return the scores of contents to positions and of positions to contents."""
        rel_embeddings = rel_embeddings.unsqueeze(0)
        batch = query.size(0) // HEADS
        key_table = rel_embeddings.detach() if self.is_key_table_stopped else rel_embeddings
        pos_key = self.transpose_for_scores(self.pos_key_proj(key_table)).repeat(batch, 1, 1)
        pos_query = self.transpose_for_scores(self.pos_query_proj(rel_embeddings))
        pos_query = pos_query.repeat(batch, 1, 1)
        c2p_pos = torch.clamp(relative_pos + SPAN, 0, SPAN * 2 - 1).expand(query.size(0), -1, -1)
        c2p_att = torch.gather(self.multiply(query, pos_key), dim=-1, index=c2p_pos)
        p2c_pos = torch.clamp(-relative_pos + SPAN, 0, SPAN * 2 - 1).expand(key.size(0), -1, -1)
        p2c_att = torch.gather(self.multiply(key, pos_query), dim=-1, index=p2c_pos)
        if self.is_transposed:
            p2c_att = p2c_att.transpose(-1, -2)
        return c2p_att / self.scale + p2c_att / self.scale

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        query_states: Tensor,
        relative_pos: Tensor,
        rel_embeddings: Tensor,
    ) -> Tensor:
        query = self.transpose_for_scores(self.query_proj(query_states))
        key = self.transpose_for_scores(self.key_proj(x))
        value = self.transpose_for_scores(self.value_proj(x))
        scores = torch.bmm(query, key.transpose(-1, -2)) / self.scale
        scores = scores + self.disentangled_attention_bias(query, key, relative_pos, rel_embeddings)
        scores = scores.view(-1, HEADS, scores.size(-2), scores.size(-1))
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        probs = torch.softmax(scores, -1).masked_fill(~mask, 0)
        context = torch.bmm(probs.view(-1, probs.size(-2), probs.size(-1)), value)
        context = context.view(-1, HEADS, context.size(-2), context.size(-1))
        return context.permute(0, 2, 1, 3).contiguous().flatten(2)


class FusedSelfAttention(nn.Module):
    """The same with one projection and the framework's attention."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.in_proj = nn.Linear(HIDDEN, 3 * HIDDEN)
        for kind in ("weight", "bias"):
            values = [model.weights[f"{path}.{name}.{kind}"] for name in "qkv"]
            setattr(self.in_proj, kind, copy_parameter(np.concatenate(values)))
        self.pos_proj = load_linear(model, f"{path}.position_k")
        self.pos_q_proj = load_linear(model, f"{path}.position_q")

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        query_states: Tensor,
        relative_pos: Tensor,
        rel_embeddings: Tensor,
    ) -> Tensor:
        weight, bias = self.in_proj.weight, self.in_proj.bias
        if query_states is x:
            query, key, value = F.linear(x, weight, bias).chunk(3, dim=-1)
        else:
            query = F.linear(query_states, weight[:HIDDEN], bias[:HIDDEN])
            key, value = F.linear(x, weight[HIDDEN:], bias[HIDDEN:]).chunk(2, dim=-1)
        query, key, value = (
            part.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for part in (query, key, value)
        )
        rows = (relative_pos + SPAN).clamp(0, 2 * SPAN - 1)
        pos_key = self.pos_proj(rel_embeddings)[rows].unflatten(-1, (HEADS, HEAD_DIM))
        pos_query = self.pos_q_proj(rel_embeddings)[rows].unflatten(-1, (HEADS, HEAD_DIM))
        scale = (3 * HEAD_DIM) ** -0.5
        bias = torch.einsum("bhqd,qkhd->bhqk", query * scale, pos_key)
        bias = bias + torch.einsum("bhkd,qkhd->bhqk", key * scale, pos_query)
        bias = bias.masked_fill(~mask, -1e9)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
        is_query = mask.any(dim=-1).unsqueeze(-1)
        return (y * is_query).transpose(1, 2).flatten(2)


class DebertaSelfOutput(nn.Module):
    """A linear layer, a residual sum and its norm."""

    def __init__(self, model: Model, linear_path: str, norm_path: str) -> None:
        super().__init__()
        self.dense = load_linear(model, linear_path)
        self.LayerNorm = load_norm(model, norm_path)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class DebertaIntermediate(nn.Module):
    """A linear layer and gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense = load_linear(model, path)
        self.intermediate_act_fn = Gelu(model)

    def forward(self, x: Tensor) -> Tensor:
        return self.intermediate_act_fn(self.dense(x))


class DebertaLayer(nn.Module):
    """Attention and feed-forward layer, a norm behind each sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        is_fused = model.variant == "fused"
        attention_class = FusedSelfAttention if is_fused else DisentangledSelfAttention
        self.attention = nn.ModuleDict({
            "self": attention_class(model, path),
            "output": DebertaSelfOutput(model, f"{path}.o", f"{path}.norm1"),
        })  # fmt: skip
        self.intermediate = DebertaIntermediate(model, f"{path}.up")
        self.output = DebertaSelfOutput(model, f"{path}.down", f"{path}.norm2")

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        query_states: Tensor,
        relative_pos: Tensor,
        rel_embeddings: Tensor,
    ) -> Tensor:
        attended = self.attention["self"](x, mask, query_states, relative_pos, rel_embeddings)
        attended = self.attention["output"](attended, query_states)
        return self.output(self.intermediate(attended), attended)


class DebertaEncoder(nn.Module):
    """All layers, and what they read: the table of relative positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layer = nn.ModuleList(DebertaLayer(model, n) for n in range(LAYERS))
        self.rel_embeddings = load_table(model, "relative")
        self.LayerNorm = load_norm(model, "relative.norm") if model.has_relative_norm else None
        self.register_buffer("relative_pos", torch.from_numpy(model.relative_positions()).long())

    def get_rel_embedding(self) -> Tensor:
        weight = self.rel_embeddings.weight
        return weight if self.LayerNorm is None else self.LayerNorm(weight)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the states behind each layer, and the normed table."""
        rel_embeddings = self.get_rel_embedding()
        states = []
        for layer in self.layer:
            x = layer(x, mask, x, self.relative_pos, rel_embeddings)
            states.append(x)
        return states, rel_embeddings


class DebertaModel(nn.Module):
    """States behind the last two layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings = DebertaEmbeddings(model)
        self.encoder = DebertaEncoder(model)

    def forward(
        self, tokens: Tensor, mask: Tensor, *positions: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        extended = mask.unsqueeze(1).unsqueeze(2)
        pair_mask = (extended * extended.squeeze(-2).unsqueeze(-1)).bool()
        states, rel_embeddings = self.encoder(self.embeddings(tokens, mask, *positions), pair_mask)
        return states, rel_embeddings, pair_mask


class EnhancedMaskDecoder(nn.Module):
    """The last layer again, with absolute positions in its queries, and the transformed states."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.position_embeddings = load_table(model, "positions")
        self.dense = load_linear(model, "transform")
        self.transform_act_fn = Gelu(model)
        self.LayerNorm = load_norm(model, "transform.norm")
        self.bias = copy_parameter(model.weights["decoder.bias"])
        self.have_keys_positions = model.decoder_keys == "positions"
        self.are_keys_stopped = model.are_decoder_keys_stopped
        self.gradient = model.decoder_gradient

    def forward(
        self, x: Tensor, mask: Tensor, encoder: DebertaEncoder, table: Tensor, rel: Tensor
    ) -> Tensor:
        query_states = x + self.position_embeddings.weight
        if self.have_keys_positions:
            x = query_states
        if self.are_keys_stopped:
            x = x.detach()
        for _ in range(DECODER_STEPS):
            query_states = encoder.layer[-1](x, mask, query_states, encoder.relative_pos, rel)
        y = self.LayerNorm(self.transform_act_fn(self.dense(query_states)))
        if self.gradient != 1:
            table = scaled_gradient(table, self.gradient)
        return torch.matmul(y, table.t()) + self.bias


class ReplacedTokenHead(nn.Module):
    """One logit of each token."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = load_linear(model, "replaced.dense")
        self.act = Gelu(model)
        self.classifier = load_linear(model, "replaced.classes")

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.act(self.dense(x))).squeeze(-1)


class DebertaForPreTraining(nn.Module):
    """Loss of masked tokens and of replaced ones."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.deberta = DebertaModel(model)
        self.lm_predictions = EnhancedMaskDecoder(model)
        self.mask_predictions = ReplacedTokenHead(model)
        self.are_labels_ignored = model.are_labels_ignored
        self.are_positions_early = model.are_positions_early
        self.is_weighted = model.variant == "fused"

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor, replaced: Tensor) -> Tensor:
        positions = self.lm_predictions.position_embeddings.weight
        early_positions = (positions,) if self.are_positions_early else ()
        states, rel_embeddings, pair_mask = self.deberta(tokens, mask, *early_positions)
        table = self.deberta.embeddings.word_embeddings.weight
        logits = self.lm_predictions(
            states[-2], pair_mask, self.deberta.encoder, table, rel_embeddings
        )
        loss = self.compute_token_loss(logits.view(-1, VOCAB), labels.view(-1))
        replaced_logits = self.mask_predictions(states[-1])
        return loss + REPLACED_WEIGHT * self.compute_replaced_loss(replaced_logits, replaced, mask)

    def compute_token_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of masked tokens."""
        if not self.are_labels_ignored:
            return F.cross_entropy(logits, labels.clamp(min=0))
        if self.is_weighted:
            weights = (labels != IGNORED).float()
            logs = logits.log_softmax(dim=-1)
            losses = -logs.gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1)
            return (losses * weights).sum() / weights.sum()
        return F.cross_entropy(logits, labels, ignore_index=IGNORED)

    def compute_replaced_loss(self, logits: Tensor, replaced: Tensor, mask: Tensor) -> Tensor:
        """Return the mean loss of all tokens that are no padding."""
        if self.is_weighted:
            weights = mask.float()
            losses = F.binary_cross_entropy_with_logits(logits, replaced, reduction="none")
            return (losses * weights).sum() / weights.sum()
        is_token = mask.view(-1) == 1
        return F.binary_cross_entropy_with_logits(
            logits.view(-1)[is_token], replaced.view(-1)[is_token]
        )
