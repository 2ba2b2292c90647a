"""The encoder and its pretraining in PyTorch, with the modules of Hugging Face's ALBERT.

Variant 'fused': one projection for queries, keys and values, fused attention with a boolean mask,
gelu in plain arithmetic, masked tokens by index, and a loss that ignores the labels of empty slots.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.bert.architecture import (
    EPS,
    GROUPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    SEQ,
    VOCAB,
    Model,
)

IGNORED = -100


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if model.are_queries_masked:
        raise SystemExit("a fault of the MindSpore net")
    return AlbertForPreTraining(model)


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
    return load(nn.Linear(n_in, n_out), model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(len(model.weights[f"{path}.weight"]), eps=EPS), model, path)


def load_table(model: Model, path: str) -> nn.Module:
    """Return the embedding at ``path``."""
    return load(nn.Embedding(*model.weights[f"{path}.weight"].shape), model, path)


class Gelu(nn.Module):
    """Gelu by the error function or the hyperbolic tangent."""

    def __init__(self, model: Model, activation: str) -> None:
        super().__init__()
        self.approximation = "tanh" if activation == "gelu_tanh" else "none"
        self.is_written_out = model.variant == "fused" and self.approximation == "none"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_written_out:
            return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
        return F.gelu(x, approximate=self.approximation)


def project_half(linear: nn.Linear, x: Tensor) -> Tensor:
    """Return what a linear layer computes in bfloat16."""
    return F.linear(x.bfloat16(), linear.weight.bfloat16(), linear.bias.bfloat16())


class AlbertEmbeddings(nn.Module):
    """Words, segments and positions added up, and their norm."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word_embeddings = load_table(model, "embeddings.words")
        self.position_embeddings = load_table(model, "embeddings.positions")
        self.token_type_embeddings = load_table(model, "embeddings.segments")
        self.LayerNorm = load_norm(model, "embeddings.norm")
        self.register_buffer("position_ids", torch.arange(SEQ)[None] + model.first_position)
        self.are_segments_ignored = model.are_segments_ignored
        self.position_gradient = model.position_gradient

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        if self.are_segments_ignored:
            segments = torch.zeros_like(segments)
        embeddings = self.word_embeddings(tokens) + self.token_type_embeddings(segments)
        positions = self.position_embeddings(self.position_ids)
        if self.position_gradient != 1:
            positions = scaled_gradient(positions, self.position_gradient)
        return self.LayerNorm(embeddings + positions)


class UncenteredSoftmax(torch.autograd.Function):
    """Softmax of the last axis; its backward pass does not subtract the sum over a row."""

    @staticmethod
    def forward(context, scores: Tensor) -> Tensor:
        probabilities = F.softmax(scores, dim=-1)
        context.save_for_backward(probabilities)
        return probabilities

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        (probabilities,) = context.saved_tensors
        return probabilities * gradient


class AlbertAttention(nn.Module):
    """Attention of all tokens to those that are no padding, residual sum and norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query = load_linear(model, f"{path}.q")
        self.key = load_linear(model, f"{path}.k")
        self.value = load_linear(model, f"{path}.v")
        self.dense = load_linear(model, f"{path}.o")
        self.LayerNorm = load_norm(model, f"{path}.norm1")
        self.is_norm_first = model.is_norm_first
        self.is_softmax_gradient_plain = model.is_softmax_gradient_plain

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        """Return (batch, heads, SEQ, HEAD_DIM)."""
        return x.view(*x.shape[:2], HEADS, HEAD_DIM).permute(0, 2, 1, 3)

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        query = self.transpose_for_scores(self.query(x))
        key = self.transpose_for_scores(self.key(x))
        value = self.transpose_for_scores(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(HEAD_DIM)
        if self.is_softmax_gradient_plain:
            probabilities = UncenteredSoftmax.apply(scores + mask)
        else:
            probabilities = F.softmax(scores + mask, dim=-1)
        return torch.matmul(probabilities, value).transpose(2, 1).flatten(2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.is_norm_first:
            return x + self.dense(self.attend(self.LayerNorm(x), mask))
        return self.LayerNorm(x + self.dense(self.attend(x, mask)))


class FusedAttention(nn.Module):
    """The same with one projection and the framework's attention."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.Wqkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        for kind in ("weight", "bias"):
            values = [model.weights[f"{path}.{name}.{kind}"] for name in "qkv"]
            setattr(self.Wqkv, kind, copy_parameter(np.concatenate(values)))
        self.out_proj = load_linear(model, f"{path}.o")
        self.norm = load_norm(model, f"{path}.norm1")
        self.is_norm_first = model.is_norm_first

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        qkv = self.Wqkv(x).unflatten(-1, (3, HEADS, HEAD_DIM))
        query, key, value = qkv.transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return y.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.is_norm_first:
            return x + self.out_proj(self.attend(self.norm(x), mask))
        return self.norm(x + self.out_proj(self.attend(x, mask)))


class AlbertLayer(nn.Module):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"groups.{n}"
        attention_class = FusedAttention if model.variant == "fused" else AlbertAttention
        self.attention = attention_class(model, path)
        self.ffn = load_linear(model, f"{path}.up")
        self.activation = Gelu(model, model.activation)
        self.ffn_output = load_linear(model, f"{path}.down")
        self.full_layer_layer_norm = load_norm(model, f"{path}.norm2")
        self.is_norm_first, self.is_half = model.is_norm_first, model.is_feed_forward_half

    def feed_forward(self, x: Tensor) -> Tensor:
        if self.is_half:
            return project_half(self.ffn_output, self.activation(project_half(self.ffn, x))).float()
        return self.ffn_output(self.activation(self.ffn(x)))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        if self.is_norm_first:
            return x + self.feed_forward(self.full_layer_layer_norm(x))
        return self.full_layer_layer_norm(self.feed_forward(x) + x)


class AlbertTransformer(nn.Module):
    """All layers; those of a group are one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = load_linear(model, "embeddings.mapping")
        self.albert_layer_groups = nn.ModuleList(AlbertLayer(model, n) for n in range(GROUPS))
        self.layer_groups = model.layer_groups()
        self.is_gradient_of_last_call = model.is_gradient_of_last_call

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding_hidden_mapping_in(x)
        for n, group in enumerate(self.layer_groups):
            layer = self.albert_layer_groups[group]
            if self.is_gradient_of_last_call:
                layer.requires_grad_(group not in self.layer_groups[n + 1 :])
            x = layer(x, mask)
        return x


class AlbertModel(nn.Module):
    """States of all tokens, and the pooled state of the first one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings = AlbertEmbeddings(model)
        self.encoder = AlbertTransformer(model)
        self.pooler = load_linear(model, "pooler")
        self.pooler_activation = nn.Tanh()
        self.is_mask_added, self.is_fused = model.is_mask_added, model.variant == "fused"
        self.is_mean_pooled = model.pooled_tokens == "mean"

    def extend_mask(self, mask: Tensor) -> Tensor:
        """Return what attention takes for the mask: (batch, 1, 1, SEQ)."""
        mask = mask[:, None, None, :]
        if self.is_mask_added:
            return mask.float()
        if self.is_fused:
            return mask.bool()
        return (1.0 - mask.float()) * torch.finfo(torch.float32).min

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encoder(self.embeddings(tokens, segments), self.extend_mask(mask))
        pooled = x.mean(dim=1) if self.is_mean_pooled else x[:, 0]
        return x, self.pooler_activation(self.pooler(pooled))


class AlbertMLMHead(nn.Module):
    """Logits (batch, SLOTS, VOCAB) of the states of masked tokens."""

    def __init__(self, model: Model, words: nn.Parameter) -> None:
        super().__init__()
        self.dense = load_linear(model, "transform")
        self.activation = Gelu(model, "gelu_erf")
        self.LayerNorm = load_norm(model, "transform.norm")
        self.decoder = nn.Linear(words.shape[1], words.shape[0])
        if model.is_decoder_tied:
            self.decoder.weight = words
        else:
            self.decoder.weight = copy_parameter(model.weights["embeddings.words.weight"])
        self.decoder.bias = copy_parameter(model.weights["decoder.bias"])

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.LayerNorm(self.activation(self.dense(x))))


class AlbertForPreTraining(nn.Module):
    """The loss of the masked tokens plus that of the order."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.albert = AlbertModel(model)
        self.predictions = AlbertMLMHead(model, self.albert.embeddings.word_embeddings.weight)
        self.sop_classifier = load_linear(model, "order")

    def read_slots(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return the states of the slots, (batch, SLOTS, HIDDEN)."""
        if not self.model.has_slot_offsets:
            return x.flatten(0, 1)[positions]
        if self.model.variant == "fused":
            return x[torch.arange(len(x))[:, None], positions]
        return x.gather(1, positions.unsqueeze(-1).expand(-1, -1, HIDDEN))

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        mask: Tensor,
        positions: Tensor,
        labels: Tensor,
        weights: Tensor,
        order: Tensor,
    ) -> Tensor:
        x, pooled = self.albert(tokens, segments, mask)
        logits = self.predictions(self.read_slots(x, positions)).view(-1, VOCAB)
        if self.model.variant == "fused":
            labels = labels.masked_fill(weights == 0, IGNORED)
            masked_loss = F.cross_entropy(logits, labels.view(-1), ignore_index=IGNORED)
        elif self.model.are_empty_slots_counted:
            masked_loss = F.cross_entropy(logits, labels.view(-1))
        else:
            losses = F.cross_entropy(logits, labels.view(-1), reduction="none")
            masked_loss = torch.sum(losses * weights.view(-1)) / weights.sum()
        if self.model.is_order_reversed:
            order = 1 - order
        return masked_loss + F.cross_entropy(self.sop_classifier(pooled), order)
