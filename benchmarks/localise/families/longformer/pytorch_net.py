"""The document encoder in PyTorch, with the modules of Hugging Face's Longformer.

Variant 'dense': fused attention of all tokens to all tokens, those outside the window masked, with
joined projections and the names of the authors' first code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.longformer.architecture import (
    BAND,
    BLOCKS,
    CHUNK,
    EPS,
    GLOBAL_TOKEN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    HIDDEN_TOKEN,
    LAYERS,
    LENGTH,
    LOCAL_TOKEN,
    PAD,
    SEQ,
    VOCAB,
    WINDOW,
    Model,
    find_distances,
    find_neighbors,
)

MASKED = torch.finfo(torch.float32).min


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return DocumentModel(model) if model.variant == "dense" else LongformerForPreTraining(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, *paths: str) -> nn.Module:
    """Copy weights and biases into a module, those of one path behind those of the other."""
    for name, _ in list(module.named_parameters()):
        values = np.concatenate([model.weights[f"{path}.{name}"] for path in paths])
        setattr(module, name, copy_parameter(values))
    return module


def load_linear(model: Model, *paths: str) -> nn.Module:
    """Return the linear layer at ``paths``."""
    n_out, n_in = model.weights[f"{paths[0]}.weight"].shape
    return load(nn.Linear(n_in, n_out * len(paths)), model, *paths)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(HIDDEN, eps=EPS), model, path)


def load_table(model: Model, path: str) -> nn.Module:
    """Return the embedding at ``path``."""
    return load(nn.Embedding(*model.weights[f"{path}.weight"].shape), model, path)


@dataclass(frozen=True)
class GlobalTokens:
    """Where the global tokens are: in the sequences, and in the slots of each sequence."""

    where: tuple[Tensor, ...]  #: sequence and position of each
    where_slot: tuple[Tensor, ...]  #: sequence and slot of each
    is_slot: Tensor  #: (batch, slots), False where a slot is empty

    def read(self, x: Tensor) -> Tensor:
        """Return what x has in the slots, 0 in empty ones: (batch, slots, ...)."""
        slots = x.new_zeros(*self.is_slot.shape, *x.shape[2:])
        return slots.index_put(self.where_slot, x[self.where])


def find_global_tokens(mask: Tensor) -> GlobalTokens:
    """Return the global tokens of a mask (batch, SEQ)."""
    is_global = mask == GLOBAL_TOKEN
    counts = is_global.long().sum(dim=1)
    is_slot = torch.arange(int(counts.max())) < counts.unsqueeze(dim=-1)
    return GlobalTokens(is_global.nonzero(as_tuple=True), is_slot.nonzero(as_tuple=True), is_slot)


class LongformerEmbeddings(nn.Module):
    """Words, positions and types added up, and their norm."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word_embeddings = load_table(model, "embeddings.words")
        self.token_type_embeddings = load_table(model, "embeddings.types")
        self.position_embeddings = load_table(model, "embeddings.positions")
        self.LayerNorm = load_norm(model, "embeddings.norm")
        self.is_padding_counted = model.is_padding_counted

    def create_position_ids(self, input_ids: Tensor) -> Tensor:
        """Return the rows of the table of positions."""
        if self.is_padding_counted:
            return torch.arange(PAD + 1, PAD + 1 + SEQ).expand(input_ids.shape)
        mask = input_ids.ne(PAD).int()
        return (torch.cumsum(mask, dim=1).type_as(mask) * mask).long() + PAD

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        positions = self.position_embeddings(self.create_position_ids(input_ids))
        embeddings = self.word_embeddings(input_ids) + positions
        return self.LayerNorm(embeddings + self.token_type_embeddings(token_type_ids))


def chunk(x: Tensor) -> Tensor:
    """Return overlapping chunks of (rows, SEQ, dim): (rows, chunks, CHUNK, dim)."""
    return x.unfold(1, CHUNK, WINDOW).transpose(2, 3)


def multiply_in_windows(query: Tensor, key: Tensor) -> Tensor:
    """Return products with the keys in the window, (batch, SEQ, heads, BAND)."""
    batch, _, heads, dim = query.shape
    query = chunk(query.transpose(1, 2).reshape(batch * heads, SEQ, dim))
    key = chunk(key.transpose(1, 2).reshape(batch * heads, SEQ, dim))
    chunked = torch.einsum("bcxd,bcyd->bcxy", query, key)
    # one row more: what was a diagonal is a column then
    skewed = F.pad(chunked, (0, 0, 0, 1)).view(batch * heads, -1, CHUNK, BAND)
    upper = torch.cat(
        (skewed[:, :, :WINDOW, : WINDOW + 1], skewed[:, -1:, WINDOW:, : WINDOW + 1]), dim=1
    )
    first = F.pad(skewed[:, :1, : WINDOW - 1, 1 - WINDOW :], (1, 0, 1, 0))
    lower = torch.cat((first, skewed[:, :, -(WINDOW + 1) : -1, WINDOW + 1 :]), dim=1)
    band = torch.cat((lower, upper), dim=-1)
    return band.view(batch, heads, SEQ, BAND).transpose(1, 2)


def multiply_with_values(probs: Tensor, value: Tensor) -> Tensor:
    """Return the values in the window, weighted: (batch, SEQ, HEADS, HEAD_DIM)."""
    batch = len(value)
    probs = probs.transpose(1, 2).reshape(batch * HEADS, BLOCKS, WINDOW, BAND)
    value = value.transpose(1, 2).reshape(batch * HEADS, SEQ, HEAD_DIM)
    padded = F.pad(value, (0, 0, WINDOW, WINDOW), value=-1.0)
    chunked = padded.unfold(1, 3 * WINDOW, WINDOW).transpose(2, 3)
    flat = F.pad(probs, (0, WINDOW + 1)).flatten(2)[:, :, :-WINDOW]
    diagonal = flat.view(batch * HEADS, BLOCKS, WINDOW, 3 * WINDOW + 1)[..., :-1]
    context = torch.einsum("bcwd,bcdh->bcwh", diagonal, chunked)
    return context.reshape(batch, HEADS, SEQ, HEAD_DIM).transpose(1, 2)


class JointSoftmax(nn.Module):
    """Softmax over slots and window together, without joining them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_slot_sum_detached = model.is_slot_sum_detached

    def forward(self, slot_scores: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        top = torch.maximum(slot_scores.amax(-1, keepdim=True), scores.amax(-1, keepdim=True))
        slot_weights = torch.exp(slot_scores - top.detach())
        weights = torch.exp(scores - top.detach())
        slot_sum = slot_weights.sum(dim=-1, keepdim=True)
        if self.is_slot_sum_detached:
            slot_sum = slot_sum.detach()
        total = slot_sum + weights.sum(dim=-1, keepdim=True)
        return slot_weights / total, weights / total


class LongformerSelfAttention(nn.Module):
    """Attention in windows and of global tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (load_linear(model, f"{path}.{name}") for name in "qkv")
        self.query_global, self.key_global, self.value_global = (
            load_linear(model, f"{path}.global_{name}") for name in "qkv"
        )
        self.softmax = JointSoftmax(model)
        neighbors = torch.from_numpy(find_neighbors())
        is_outside = (neighbors < 0) | (neighbors >= SEQ)
        self.register_buffer("is_outside", is_outside[:, None], persistent=False)
        self.are_globals_in_windows = model.are_globals_in_windows
        self.is_global_output_added = model.is_global_output_added

    def compute_window_scores(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        """Return scores (batch, SEQ, HEADS, BAND), very low ones for what is hidden."""
        is_kept = mask != HIDDEN_TOKEN if self.are_globals_in_windows else mask == LOCAL_TOKEN
        is_removed = ~is_kept[:, :, None, None]
        float_mask = is_removed.type_as(query).masked_fill(is_removed, MASKED)
        diagonal_mask = multiply_in_windows(torch.ones_like(float_mask), float_mask)
        scores = multiply_in_windows(query, key) + diagonal_mask
        return scores.masked_fill(self.is_outside, MASKED)

    def attend_globally(self, hidden: Tensor, mask: Tensor, tokens: GlobalTokens) -> Tensor:
        """Return what global tokens read from all tokens, (batch, slots, HIDDEN)."""
        batch, slots = tokens.is_slot.shape
        query = self.query_global(tokens.read(hidden)) / math.sqrt(HEAD_DIM)
        query = query.view(batch, slots, HEADS, HEAD_DIM).transpose(1, 2)
        key = self.key_global(hidden).view(batch, SEQ, HEADS, HEAD_DIM).transpose(1, 2)
        value = self.value_global(hidden).view(batch, SEQ, HEADS, HEAD_DIM).transpose(1, 2)
        scores = torch.matmul(query, key.transpose(2, 3))
        scores = scores.masked_fill((mask == HIDDEN_TOKEN)[:, None, None, :], MASKED)
        output = torch.matmul(F.softmax(scores, dim=-1), value)
        return output.transpose(1, 2).reshape(batch, slots, HIDDEN)

    def forward(self, hidden: Tensor, mask: Tensor, tokens: GlobalTokens) -> Tensor:
        batch = len(hidden)
        query = self.query(hidden) / math.sqrt(HEAD_DIM)
        query = query.view(batch, SEQ, HEADS, HEAD_DIM)
        key = self.key(hidden).view(batch, SEQ, HEADS, HEAD_DIM)
        value = self.value(hidden).view(batch, SEQ, HEADS, HEAD_DIM)

        scores = self.compute_window_scores(query, key, mask)
        slot_scores = torch.einsum("blhd,bshd->blhs", query, tokens.read(key))
        slot_scores = slot_scores.masked_fill(~tokens.is_slot[:, None, None, :], MASKED)
        slot_probs, probs = self.softmax(slot_scores, scores)

        output = torch.matmul(slot_probs.transpose(1, 2), tokens.read(value).transpose(1, 2))
        output = output.transpose(1, 2) + multiply_with_values(probs, value)
        output = output.masked_fill((mask == HIDDEN_TOKEN)[:, :, None, None], 0.0)
        output = output.reshape(batch, SEQ, HIDDEN)
        global_output = self.attend_globally(hidden, mask, tokens)
        return output.index_put(
            tokens.where, global_output[tokens.where_slot], accumulate=self.is_global_output_added
        )


class LongformerSelfOutput(nn.Module):
    """A linear layer, a residual sum and its norm."""

    def __init__(self, model: Model, linear_path: str, norm_path: str) -> None:
        super().__init__()
        self.dense = load_linear(model, linear_path)
        self.LayerNorm = load_norm(model, norm_path)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class LongformerLayer(nn.Module):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attention = LongformerSelfAttention(model, path)
        self.attention_output = LongformerSelfOutput(model, f"{path}.o", f"{path}.norm1")
        self.intermediate = load_linear(model, f"{path}.up")
        self.output = LongformerSelfOutput(model, f"{path}.down", f"{path}.norm2")

    def forward(self, x: Tensor, mask: Tensor, tokens: GlobalTokens) -> Tensor:
        x = self.attention_output(self.attention(x, mask, tokens), x)
        return self.output(F.gelu(self.intermediate(x)), x)


class LongformerModel(nn.Module):
    """States of all tokens, and what the global tokens are pooled to."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings = LongformerEmbeddings(model)
        self.layer = nn.ModuleList(LongformerLayer(model, f"layers.{n}") for n in range(LAYERS))
        self.pooler = load_linear(model, "pooler")
        self.are_slots_averaged = model.are_slots_averaged

    def pool(self, x: Tensor, tokens: GlobalTokens) -> Tensor:
        """Return the mean of the states of global tokens."""
        states = tokens.read(x)
        if self.are_slots_averaged:
            return states.mean(dim=1)
        return states.sum(dim=1) / tokens.is_slot.sum(dim=1, keepdim=True)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        padding = (0, SEQ - LENGTH)
        input_ids = F.pad(input_ids, padding, value=PAD)
        token_type_ids, mask = F.pad(token_type_ids, padding), F.pad(mask, padding)
        tokens = find_global_tokens(mask)
        x = self.embeddings(input_ids, token_type_ids)
        for layer in self.layer:
            x = layer(x, mask, tokens)
        pooled = torch.tanh(self.pooler(self.pool(x, tokens)))
        return x[:, :LENGTH], pooled


class LongformerLMHead(nn.Module):
    """Logits of words; the decoder has the matrix of the embeddings."""

    def __init__(self, model: Model, words: nn.Parameter) -> None:
        super().__init__()
        self.dense = load_linear(model, "transform")
        self.layer_norm = load_norm(model, "transform.norm")
        self.decoder = nn.Linear(HIDDEN, VOCAB)
        self.decoder.weight = words
        self.decoder.bias = copy_parameter(model.weights["decoder.bias"])

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.layer_norm(F.gelu(self.dense(x))))


class LongformerForPreTraining(nn.Module):
    """The losses of masked words, answer and kind."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.longformer = LongformerModel(model)
        self.lm_head = LongformerLMHead(model, self.longformer.embeddings.word_embeddings.weight)
        self.qa_outputs = load_linear(model, "answer")
        self.classifier = load_linear(model, "kind")
        self.are_words_averaged = model.are_words_averaged

    def compute_word_loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of masked words."""
        logits, labels = self.lm_head(x).view(-1, VOCAB), labels.view(-1)
        if self.are_words_averaged:
            return F.cross_entropy(logits, labels, reduction="none").mean()
        return F.cross_entropy(logits, labels)

    def compute_answer_loss(self, x: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """Return the mean of the losses of start and end."""
        start_logits, end_logits = self.qa_outputs(x).split(1, dim=-1)
        start_logits, end_logits = start_logits.squeeze(-1), end_logits.squeeze(-1)
        ignored_index = start_logits.size(1)
        starts, ends = starts.clamp(0, ignored_index), ends.clamp(0, ignored_index)
        start_loss = F.cross_entropy(start_logits, starts, ignore_index=ignored_index)
        end_loss = F.cross_entropy(end_logits, ends, ignore_index=ignored_index)
        return (start_loss + end_loss) / 2

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        mask: Tensor,
        labels: Tensor,
        starts: Tensor,
        ends: Tensor,
        kinds: Tensor,
    ) -> Tensor:
        x, pooled = self.longformer(input_ids, token_type_ids, mask)
        word_loss = self.compute_word_loss(x, labels)
        answer_loss = self.compute_answer_loss(x, starts, ends)
        return word_loss + answer_loss + F.cross_entropy(self.classifier(pooled), kinds)


class DenseAttention(nn.Module):
    """Attention of all tokens to all tokens by masks; global tokens have weights of their own."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.in_proj = load_linear(model, *(f"{path}.{name}" for name in "qkv"))
        self.global_in_proj = load_linear(model, *(f"{path}.global_{name}" for name in "qkv"))
        self.out_proj = load_linear(model, f"{path}.o")

    def attend(self, qkv: Tensor, is_seen: Tensor) -> Tensor:
        query, key, value = qkv.unflatten(-1, (3, HEADS, HEAD_DIM)).transpose(1, 3).unbind(2)
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=is_seen)
        return output.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, is_seen: Tensor, mask: Tensor) -> Tensor:
        is_token = (mask != HIDDEN_TOKEN).unsqueeze(-1)
        local = self.attend(self.in_proj(x), is_seen) * is_token
        everything = is_token.transpose(1, 2).unsqueeze(1)
        output = self.attend(self.global_in_proj(x), everything)
        is_global = (mask == GLOBAL_TOKEN).unsqueeze(-1)
        return self.out_proj(torch.where(is_global, output, local))


class DenseLayer(nn.Module):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.self_attn = DenseAttention(model, path)
        self.self_attn_layer_norm = load_norm(model, f"{path}.norm1")
        self.fc1, self.fc2 = load_linear(model, f"{path}.up"), load_linear(model, f"{path}.down")
        self.final_layer_norm = load_norm(model, f"{path}.norm2")

    def forward(self, x: Tensor, is_seen: Tensor, mask: Tensor) -> Tensor:
        x = self.self_attn_layer_norm(x + self.self_attn(x, is_seen, mask))
        wide = self.fc1(x)
        wide = 0.5 * wide * (1.0 + torch.erf(wide / math.sqrt(2.0)))
        return self.final_layer_norm(x + self.fc2(wide))


class DenseEncoder(nn.Module):
    """States of all tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = load_table(model, "embeddings.words")
        self.embed_positions = load_table(model, "embeddings.positions")
        self.embed_segments = load_table(model, "embeddings.types")
        self.emb_layer_norm = load_norm(model, "embeddings.norm")
        self.layers = nn.ModuleList(DenseLayer(model, f"layers.{n}") for n in range(LAYERS))
        is_near = torch.from_numpy(np.abs(find_distances()) <= WINDOW)
        self.register_buffer("is_near", is_near, persistent=False)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        is_token = mask != HIDDEN_TOKEN
        positions = torch.where(is_token, is_token.long().cumsum(dim=1), 0) + PAD
        x = self.embed_tokens(tokens) + self.embed_segments(segments)
        x = self.emb_layer_norm(x + self.embed_positions(positions))
        is_global = (mask == GLOBAL_TOKEN)[:, None, None, :]
        is_seen = is_global | (self.is_near & is_token[:, None, None, :])
        for layer in self.layers:
            x = layer(x, is_seen, mask)
        return x


class DocumentModel(nn.Module):
    """The losses of masked words, answer and kind, in one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = DenseEncoder(model)
        self.dense = load_linear(model, "transform")
        self.layer_norm = load_norm(model, "transform.norm")
        self.bias = copy_parameter(model.weights["decoder.bias"])
        self.span_head = load_linear(model, "answer")
        self.pooled_projection = load_linear(model, "pooler")
        self.kind_head = load_linear(model, "kind")

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        mask: Tensor,
        labels: Tensor,
        starts: Tensor,
        ends: Tensor,
        kinds: Tensor,
    ) -> Tensor:
        n_more = SEQ - LENGTH
        tokens = torch.cat((tokens, tokens.new_full((len(tokens), n_more), PAD)), dim=1)
        segments = torch.cat((segments, segments.new_zeros(len(tokens), n_more)), dim=1)
        mask = torch.cat((mask, mask.new_zeros(len(tokens), n_more)), dim=1)
        states = self.encoder(tokens, segments, mask)
        x = states[:, :LENGTH]

        is_masked = labels >= 0
        words = self.layer_norm(F.gelu(self.dense(x[is_masked])))
        log_probs = F.log_softmax(words @ self.encoder.embed_tokens.weight.t() + self.bias, dim=-1)
        loss = -log_probs.gather(1, labels[is_masked].unsqueeze(1)).mean()

        log_probs = F.log_softmax(self.span_head(x), dim=1)
        for column, positions in enumerate((starts, ends)):
            rows = (positions < LENGTH).nonzero().squeeze(1)
            loss = loss - 0.5 * log_probs[rows, positions[rows], column].mean()

        shares = (mask == GLOBAL_TOKEN).float()
        shares = shares / shares.sum(dim=1, keepdim=True)
        pooled = torch.tanh(self.pooled_projection(torch.einsum("bs,bsh->bh", shares, states)))
        return loss + F.nll_loss(F.log_softmax(self.kind_head(pooled), dim=-1), kinds)
