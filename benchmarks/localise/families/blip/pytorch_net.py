"""The querying transformer in PyTorch, with the modules of LAVIS.

Variant 'cached': queries and text have passes of their own, and the text of the language loss reads
cached keys and values of the queries. Variant 'fused': Hugging Face's names, joined projections,
fused attention, einsum, losses from log softmax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.naming import rename
from torch import Tensor, nn

from families.blip.architecture import (
    BATCH,
    DECODE,
    EPS,
    HEAD_DIM,
    HEADS,
    IGNORED,
    IMAGE_EPS,
    LAYERS,
    PAD,
    QUERIES,
    SMOOTHING,
    TEXT,
    Model,
    has_cross_attention,
)

HUGGING_FACE_NAMES: Mapping[str, str] = {
    "ln_vision": "vision_model.post_layernorm",
    "bert": "qformer",
    "layer": "encoder.layer",
    "self": "attention",
    "cls": "lm_head",
    "vision_proj": "vision_projection",
    "text_proj": "text_projection",
}
Cache = tuple[Tensor, Tensor]


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if model.variant == "cached":
        return CachedBlip2Qformer(model)
    if model.variant == "fused":
        net = FusedBlip2Qformer(model)
        rename(net, HUGGING_FACE_NAMES)
        return net
    return Blip2Qformer(model)


def read(model: Model, name: str) -> Tensor:
    """Return a copy of a weight."""
    return torch.from_numpy(np.array(model.weights[name]))


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return the linear layer at ``paths``, the rows of one behind those of the other."""
    weight, bias = (
        torch.cat([read(model, f"{path}.{name}") for path in paths]) for name in ("weight", "bias")
    )
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.load_state_dict({"weight": weight, "bias": bias})
    return linear


def load_norm(model: Model, path: str, eps: float = EPS) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    state = {name: read(model, f"{path}.{name}") for name in ("weight", "bias")}
    norm = nn.LayerNorm(len(state["weight"]), eps=eps)
    norm.load_state_dict(state)
    return norm


def load_embedding(model: Model, path: str) -> nn.Embedding:
    """Return the table at ``path``."""
    return nn.Embedding.from_pretrained(read(model, f"{path}.weight"), freeze=False)


def split_heads(x: Tensor) -> Tensor:
    """Return (batch, HEADS, length, HEAD_DIM)."""
    return x.view(*x.shape[:2], HEADS, HEAD_DIM).permute(0, 2, 1, 3)


class BertEmbeddings(nn.Module):
    """Queries and embedded tokens in one normed sequence; either may be missing."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word_embeddings = load_embedding(model, "embeddings.words")
        self.position_embeddings = load_embedding(model, "embeddings.positions")
        self.LayerNorm = load_norm(model, "embeddings.norm")
        self.register_buffer("position_ids", torch.arange(TEXT), persistent=False)
        self.are_queries_normed = model.are_queries_normed

    def forward(self, input_ids: Tensor | None, query_embeds: Tensor | None) -> Tensor:
        if input_ids is None:
            return self.LayerNorm(query_embeds)
        embeddings = self.word_embeddings(input_ids) + self.position_embeddings(self.position_ids)
        if query_embeds is None:
            return self.LayerNorm(embeddings)
        if not self.are_queries_normed:
            return torch.cat((query_embeds, self.LayerNorm(embeddings)), dim=1)
        return self.LayerNorm(torch.cat((query_embeds, embeddings), dim=1))


class BertSelfAttention(nn.Module):
    """Attention to a context, which may be the sequence itself."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (load_linear(model, f"{path}.{name}") for name in "qkv")

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        mask: Tensor | None,
        past: Cache | None = None,
    ) -> tuple[Tensor, Cache]:
        query = split_heads(self.query(x))
        key, value = split_heads(self.key(context)), split_heads(self.value(context))
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(HEAD_DIM)
        if mask is not None:
            scores = scores + mask
        y = torch.matmul(F.softmax(scores, dim=-1), value)
        return y.permute(0, 2, 1, 3).flatten(2), (key, value)


class FusedSelfAttention(nn.Module):
    """The same with joined projections and fused attention; masks are of what is seen."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.has_context = path.endswith("cross")
        if self.has_context:
            self.query, self.kv = (
                load_linear(model, *(f"{path}.{name}" for name in names)) for names in ("q", "kv")
            )
        else:
            self.qkv = load_linear(model, *(f"{path}.{name}" for name in "qkv"))

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        mask: Tensor | None,
        past: Cache | None = None,
    ) -> tuple[Tensor, None]:
        if self.has_context:
            parts = (self.query(x), *self.kv(context).chunk(2, dim=-1))
        else:
            parts = self.qkv(x).chunk(3, dim=-1)
        query, key, value = (split_heads(part) for part in parts)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return y.transpose(1, 2).reshape(x.shape), None


class BertOutput(nn.Module):
    """A linear layer whose result is added to the residual, and a norm."""

    def __init__(self, model: Model, path: str, norm_path: str) -> None:
        super().__init__()
        self.dense = load_linear(model, path)
        self.LayerNorm = load_norm(model, norm_path)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class BertAttention(nn.Module):
    """Attention, its output projection, residual and norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        is_fused = model.variant == "fused"
        self.self = (FusedSelfAttention if is_fused else BertSelfAttention)(model, path)
        self.output = BertOutput(model, f"{path}.o", f"{path}.norm")

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        mask: Tensor | None = None,
        past: Cache | None = None,
    ) -> tuple[Tensor, Cache | None]:
        y, present = self.self(x, context, mask, past)
        return self.output(y, x), present


class BertIntermediate(nn.Module):
    """The first half of a feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense = load_linear(model, path)
        self.intermediate_act_fn = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.intermediate_act_fn(self.dense(x))


class BertLayer(nn.Module):
    """Attention of all, that of the queries to the image, feed-forward layers of both."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.attention = BertAttention(model, f"{path}.attention")
        self.crossattention = None
        if has_cross_attention(n):
            self.crossattention = BertAttention(model, f"{path}.cross")
        self.intermediate = BertIntermediate(model, f"{path}.text.up")
        self.output = BertOutput(model, f"{path}.text.down", f"{path}.text.norm")
        self.intermediate_query = BertIntermediate(model, f"{path}.query.up")
        self.output_query = BertOutput(model, f"{path}.query.down", f"{path}.query.norm")
        self.has_query_feed_forward = model.has_query_feed_forward or n < LAYERS - 1

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return what the text's layer makes of it."""
        return self.output(self.intermediate(x), x)

    def feed_forward_query(self, x: Tensor) -> Tensor:
        """Return what the queries' layer makes of it."""
        if not self.has_query_feed_forward:
            return self.feed_forward(x)
        return self.output_query(self.intermediate_query(x), x)

    def forward(
        self,
        x: Tensor,
        image: Tensor | None,
        mask: Tensor | None,
        past: Cache | None,
        n_queries: int,
    ) -> tuple[Tensor, Cache | None]:
        x, present = self.attention(x, x, mask, past)
        if not n_queries:
            return self.feed_forward(x), present
        queries = x[:, :n_queries]
        if self.crossattention is not None:
            queries, _ = self.crossattention(queries, image)
        queries = self.feed_forward_query(queries)
        if x.shape[1] == n_queries:
            return queries, present
        return torch.cat((queries, self.feed_forward(x[:, n_queries:])), dim=1), present


class BertModel(nn.Module):
    """States of queries and text, and keys and values of each layer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(model)
        self.layer = nn.ModuleList(BertLayer(model, n) for n in range(LAYERS))

    def forward(
        self,
        input_ids: Tensor | None,
        query_embeds: Tensor | None = None,
        image: Tensor | None = None,
        mask: Tensor | None = None,
        past: Sequence[Cache | None] = (None,) * LAYERS,
    ) -> tuple[Tensor, list[Cache | None]]:
        x = self.embeddings(input_ids, query_embeds)
        n_queries = 0 if query_embeds is None else query_embeds.shape[1]
        presents = []
        for layer, past_of_layer in zip(self.layer, past, strict=True):
            x, present = layer(x, image, mask, past_of_layer, n_queries)
            presents.append(present)
        return x, presents


class BertLMPredictionHead(nn.Module):
    """Logits of the vocabulary; the output weight is that of the embeddings."""

    def __init__(self, model: Model, decoder_weight: nn.Parameter) -> None:
        super().__init__()
        self.dense = load_linear(model, "language.transform")
        self.LayerNorm = load_norm(model, "language.norm")
        self.decoder_weight = decoder_weight
        self.bias = nn.Parameter(read(model, "language.bias"))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.LayerNorm(F.gelu(self.dense(x))), self.decoder_weight, self.bias)


class _MaxOfAllGradients(torch.autograd.Function):
    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        context.shape = x.shape
        return x.amax(-1)

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return gradient.unsqueeze(-1).expand(context.shape)


class BestQuery(nn.Module):
    """Similarity of the best query of each pair."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_mean, self.is_gradient_of_all = model.are_queries_averaged, model.is_gradient_of_all

    def forward(self, similarities: Tensor) -> Tensor:
        if self.is_mean:
            return similarities.mean(-1)
        if self.is_gradient_of_all:
            return _MaxOfAllGradients.apply(similarities)
        return similarities.max(-1).values


class Blip2Qformer(nn.Module):
    """Sum of the losses of contrast, matching and language."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.ln_vision = load_norm(model, "image_norm", IMAGE_EPS)
        self.query_tokens = nn.Parameter(read(model, "queries.weight")[None])
        self.bert = BertModel(model)
        self.cls = BertLMPredictionHead(model, self.bert.embeddings.word_embeddings.weight)
        self.vision_proj = load_linear(model, "image_projection")
        self.text_proj = load_linear(model, "text_projection")
        self.itm_head = load_linear(model, "matching")
        self.best_query = BestQuery(model)
        self.temp = nn.Parameter(read(model, "temperature"))
        for mask in ("separate", "both", "causal"):
            self.register_buffer(mask, torch.from_numpy(model.list_visible(mask)), persistent=False)

    def build_mask(self, visible: Tensor, tokens: Tensor) -> Tensor:
        """Return what is added to scores, for (rows, SEQ) or the last columns of those."""
        is_token = F.pad(tokens != PAD, (visible.shape[-1] - TEXT, 0), value=True)
        return (1.0 - (visible & is_token[:, None])[:, None].float()) * -10000.0

    def run(self, tokens: Tensor, image: Tensor, mask: str) -> Tensor:
        """Return the states of queries and text."""
        queries = self.query_tokens.expand(len(tokens), -1, -1)
        built_mask = self.build_mask(self.get_buffer(mask), tokens)
        return self.bert(tokens, queries, image, built_mask)[0]

    def compute_contrast(self, queries: Tensor, first_token: Tensor) -> Tensor:
        """Return the mean of both contrastive losses."""
        image_feats = F.normalize(self.vision_proj(queries), dim=-1)
        text_feat = F.normalize(self.text_proj(first_token), dim=-1)
        image_feats_all, text_feat_all = image_feats, text_feat
        if self.model.are_gathered_stopped:
            image_feats_all, text_feat_all = image_feats.detach(), text_feat.detach()
        sim_q2t = torch.matmul(image_feats.unsqueeze(1), text_feat_all.unsqueeze(-1)).squeeze(-1)
        sim_i2t = self.best_query(sim_q2t) / self.temp
        sim_t2q = torch.matmul(text_feat[:, None, None], image_feats_all.permute(0, 2, 1))
        sim_t2i = self.best_query(sim_t2q.squeeze(-2)) / self.temp
        targets = torch.arange(BATCH)
        loss_i2t = F.cross_entropy(sim_i2t, targets, label_smoothing=SMOOTHING)
        return (loss_i2t + F.cross_entropy(sim_t2i, targets, label_smoothing=SMOOTHING)) / 2

    def compute_matching(
        self, image: Tensor, tokens: Tensor, other_images: Tensor, other_texts: Tensor
    ) -> Tensor:
        """Return the loss of matching."""
        tokens_all = torch.cat((tokens, tokens, tokens[other_texts]), dim=0)
        negatives = image[other_images]
        if self.model.are_negatives_detached:
            negatives = negatives.detach()
        image_all = torch.cat((image, negatives, image), dim=0)
        queries = self.run(tokens_all, image_all, "both")[:, :QUERIES]
        logits = self.itm_head(queries).mean(dim=1)
        labels = [torch.ones(BATCH, dtype=torch.long), torch.zeros(2 * BATCH, dtype=torch.long)]
        return F.cross_entropy(
            logits, torch.cat(labels[:: -1 if self.model.are_matches_last else 1])
        )

    def start_decoding(self, tokens: Tensor) -> Tensor:
        """Return tokens whose first one is DECODE."""
        tokens = tokens.clone()
        tokens[:, 0] = DECODE
        return tokens

    def compute_language(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss of each next token."""
        logits = self.cls(states)[:, :-1]
        labels = tokens.masked_fill(tokens == PAD, IGNORED)[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    def forward(
        self, features: Tensor, tokens: Tensor, other_images: Tensor, other_texts: Tensor
    ) -> Tensor:
        image = self.ln_vision(features)
        states = self.run(tokens, image, "separate")
        loss_itc = self.compute_contrast(states[:, :QUERIES], states[:, QUERIES])
        loss_itm = self.compute_matching(image, tokens, other_images, other_texts)
        states = self.run(self.start_decoding(tokens), image, "causal")[:, QUERIES:]
        return loss_itc + loss_itm + self.compute_language(states, tokens)


class CachedBlip2Qformer(Blip2Qformer):
    """Queries and text have passes of their own; the language loss uses a cache of the queries."""

    def forward(
        self, features: Tensor, tokens: Tensor, other_images: Tensor, other_texts: Tensor
    ) -> Tensor:
        image = self.ln_vision(features)
        queries, cache = self.bert(None, self.query_tokens.expand(BATCH, -1, -1), image)
        mask = self.build_mask(self.separate[QUERIES:, QUERIES:], tokens)
        text, _ = self.bert(tokens, mask=mask)
        loss_itc = self.compute_contrast(queries, text[:, 0])
        loss_itm = self.compute_matching(image, tokens, other_images, other_texts)
        mask = self.build_mask(self.causal[QUERIES:], tokens)
        text, _ = self.bert(self.start_decoding(tokens), mask=mask, past=cache)
        return loss_itc + loss_itm + self.compute_language(text, tokens)


class FusedBlip2Qformer(Blip2Qformer):
    """The same losses from other operators."""

    def build_mask(self, visible: Tensor, tokens: Tensor) -> Tensor:
        is_token = torch.cat((torch.ones(len(tokens), QUERIES, dtype=torch.bool), tokens > 0), 1)
        return visible & is_token[:, None, None]

    def compute_contrast(self, queries: Tensor, first_token: Tensor) -> Tensor:
        image_embeds, text_embeds = self.vision_proj(queries), self.text_proj(first_token)
        image_embeds = image_embeds / image_embeds.norm(dim=-1, keepdim=True)
        text_embeds = text_embeds / text_embeds.norm(dim=-1, keepdim=True)
        logits = torch.einsum("iqe,te->itq", image_embeds, text_embeds).amax(-1) / self.temp
        shares = torch.full_like(logits, SMOOTHING / BATCH)
        shares = shares + (1 - SMOOTHING) * torch.eye(BATCH)
        log_probs = F.log_softmax(logits, dim=1) + F.log_softmax(logits, dim=0)
        return -(shares * log_probs).sum() / (2 * BATCH)

    def compute_matching(
        self, image: Tensor, tokens: Tensor, other_images: Tensor, other_texts: Tensor
    ) -> Tensor:
        numbers = torch.arange(BATCH)
        tokens = tokens[torch.cat((numbers, numbers, other_texts))]
        image = image[torch.cat((numbers, other_images, numbers))]
        queries = self.run(tokens, image, "both")[:, :QUERIES]
        log_probs = F.log_softmax(self.itm_head(queries.mean(dim=1)), dim=-1)
        return -(log_probs[:BATCH, 1].sum() + log_probs[BATCH:, 0].sum()) / len(log_probs)

    def compute_language(self, states: Tensor, tokens: Tensor) -> Tensor:
        log_probs = F.log_softmax(self.cls(states[:, :-1]), dim=-1)
        labels = tokens[:, 1:]
        losses = -log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        is_label = (labels != PAD).float()
        return (losses * is_label).sum() / is_label.sum()
