"""The Perceiver in PyTorch, with the modules of lucidrains' perceiver-pytorch.

Variant 'fused': one projection for keys and values, fused attention, the value loss of the known
rows only. Variant 'named': modules named as in Transformers, two layers before a GEGLU, einsum,
the shift as a gather, cross entropy from logarithms, Huber loss.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.perceiver.architecture import (
    BETA,
    CHANNELS,
    CLASSES,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    LATENTS,
    REPEATS,
    SMOOTHING,
    TOKENS,
    VALUE_WEIGHT,
    VALUES,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return PerceiverForTraining(model) if model.variant == "named" else PerceiverLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return the linear layer at ``paths``, their rows one after the other."""
    weight = np.concatenate([model.weights[f"{path}.weight"] for path in paths])
    has_bias = f"{paths[0]}.bias" in model.weights
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias)
    linear.weight = copy_parameter(weight)
    if has_bias:
        linear.bias = copy_parameter(
            np.concatenate([model.weights[f"{path}.bias"] for path in paths])
        )
    return linear


def load_norm(model: Model, path: str, width: int = HIDDEN, eps: float = EPS) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    norm = nn.LayerNorm(width, eps=eps)
    norm.weight = copy_parameter(model.weights[f"{path}.weight"])
    norm.bias = copy_parameter(model.weights[f"{path}.bias"])
    return norm


def fourier_encode(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Return sines and cosines of the positions, and the positions themselves."""
    positions = positions.unsqueeze(-1)
    angles = positions * frequencies * math.pi
    return torch.cat([angles.sin(), angles.cos(), positions], dim=-1)


def split_heads(x: Tensor) -> Tensor:
    """Return (batch, HEADS, length, HEAD_DIM)."""
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


def relative_shift(scores: Tensor) -> Tensor:
    """Return scores of distances (..., LATENTS, DISTANCES) as those of latents."""
    batch, heads, rows, columns = scores.shape
    padded = F.pad(scores, (1, 0)).view(batch, heads, columns + 1, rows)
    return padded[:, :, 1:].reshape(batch, heads, rows, columns)[..., :rows]


class DistanceEmbedding(nn.Module):
    """Sines, then cosines of all distances of two latents."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.from_numpy(model.inverse_frequencies()))
        self.register_buffer("distances", torch.from_numpy(model.distances()))

    def forward(self) -> Tensor:
        angles = torch.outer(self.distances, self.inv_freq)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class GEGLU(nn.Module):
    """Half of the numbers, multiplied by the gelu of the other half."""

    def forward(self, x: Tensor) -> Tensor:
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)


class FeedForward(nn.Module):
    """The gated feed-forward."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.net = nn.Sequential(
            load_linear(model, f"{path}.value", f"{path}.gate"),
            GEGLU(),
            load_linear(model, f"{path}.down"),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Attention(nn.Module):
    """Attention of states to a context."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_fused = model.variant == "fused"
        self.is_mask_late = model.is_mask_late
        self.are_heads_outside = model.are_heads_outside
        self.scale = HEAD_DIM**-0.5
        self.to_q = load_linear(model, f"{path}.q")
        if self.is_fused:
            self.to_kv = load_linear(model, f"{path}.k", f"{path}.v")
        else:
            self.to_k, self.to_v = (load_linear(model, f"{path}.{name}") for name in "kv")
        self.to_out = load_linear(model, f"{path}.o")

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.to_q(x)
        if self.is_fused:
            k, v = self.to_kv(context).chunk(2, dim=-1)
        else:
            k, v = self.to_k(context), self.to_v(context)
        q, k, v = (split_heads(part) for part in (q, k, v))
        if mask is not None and self.are_heads_outside:
            mask = mask.repeat(HEADS, 1).view(len(mask), HEADS, 1, TOKENS)
        elif mask is not None:
            mask = mask[:, None, None, :]
        if self.is_fused:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            sim = q @ k.transpose(-1, -2) * self.scale
            if mask is not None and not self.is_mask_late:
                sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
            attn = sim.softmax(dim=-1)
            if mask is not None and self.is_mask_late:
                attn = attn * mask
            out = attn @ v
        return self.to_out(out.transpose(1, 2).flatten(2))


class RelativeAttention(nn.Module):
    """Attention of latents to each other, with the biases of Transformer-XL."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_fused = model.variant == "fused"
        self.are_biases_scaled = model.are_biases_scaled
        self.scale = HEAD_DIM**-0.5
        self.to_q = load_linear(model, f"{path}.q")
        if self.is_fused:
            self.to_kv = load_linear(model, f"{path}.k", f"{path}.v")
        else:
            self.to_k, self.to_v = (load_linear(model, f"{path}.{name}") for name in "kv")
        self.to_r = load_linear(model, f"{path}.r")
        self.r_w_bias = copy_parameter(model.weights[f"{path}.content_bias.weight"])
        self.r_r_bias = copy_parameter(model.weights[f"{path}.position_bias.weight"])
        self.to_out = load_linear(model, f"{path}.o")

    def forward(self, x: Tensor, distances: Tensor, *, is_cached: bool = False) -> Tensor:
        q = self.to_q(x)
        if self.is_fused:
            k, v = self.to_kv(x).chunk(2, dim=-1)
        else:
            k, v = self.to_k(x), self.to_v(x)
        q, k, v = (split_heads(part) for part in (q, k, v))
        r = self.to_r(distances).view(-1, HEADS, HEAD_DIM).transpose(0, 1)
        if is_cached:
            r = r.detach()
        if not self.are_biases_scaled:
            q = q * self.scale
        rw_q, rr_q = q + self.r_w_bias[:, None], q + self.r_r_bias[:, None]
        bd = relative_shift(rr_q @ r.transpose(-1, -2))
        if self.is_fused:
            out = F.scaled_dot_product_attention(rw_q, k, v, attn_mask=bd * self.scale)
        else:
            sim = rw_q @ k.transpose(-1, -2) + bd
            if self.are_biases_scaled:
                sim = sim * self.scale
            out = sim.softmax(dim=-1) @ v
        return self.to_out(out.transpose(1, 2).flatten(2))


class CrossBlock(nn.Module):
    """Attention to a context and feed-forward, a norm before each."""

    def __init__(self, model: Model, path: str, width: int, eps: float = EPS) -> None:
        super().__init__()
        self.norm = load_norm(model, f"{path}.norm")
        self.norm_context = load_norm(model, f"{path}.input_norm", width, eps)
        self.attn = Attention(model, f"{path}.attention")
        self.ff_norm = load_norm(model, f"{path}.mlp_norm")
        self.ff = FeedForward(model, f"{path}.mlp")

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.attn(self.norm(x), self.norm_context(context), mask) + x
        return self.ff(self.ff_norm(x)) + x


class LatentBlock(nn.Module):
    """Attention of latents to each other and feed-forward, a norm before each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load_norm(model, "block.norm")
        self.attn = RelativeAttention(model, "block.attention")
        self.ff_norm = load_norm(model, "block.mlp_norm")
        self.ff = FeedForward(model, "block.mlp")

    def forward(self, x: Tensor, distances: Tensor, *, is_cached: bool = False) -> Tensor:
        x = self.attn(self.norm(x), distances, is_cached=is_cached) + x
        return self.ff(self.ff_norm(x)) + x


class PerceiverIO(nn.Module):
    """What the queries read (batch, TARGETS, HIDDEN) of the arrays."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.latents = copy_parameter(model.weights["latents.weight"])
        self.queries = copy_parameter(model.weights["queries.weight"])
        self.register_buffer("frequencies", torch.from_numpy(model.frequencies()))
        self.distance_emb = DistanceEmbedding(model)
        self.cross_attend = CrossBlock(model, "encoder", CHANNELS, model.input_eps)
        self.latent_block = LatentBlock(model)
        self.decoder = CrossBlock(model, "decoder", HIDDEN)
        self.norm = load_norm(model, "norm")
        self.are_keys_cached = model.are_keys_cached
        self.latent_gradient = model.latent_gradient

    def forward(self, data: Tensor, mask: Tensor) -> Tensor:
        batch = data.shape[0]
        positions = torch.linspace(-1.0, 1.0, TOKENS, device=data.device)
        encoded = fourier_encode(positions, self.frequencies)
        data = torch.cat([data, encoded.expand(batch, -1, -1)], dim=-1)
        x = self.latents
        if self.latent_gradient != 1:
            x = scaled_gradient(x, self.latent_gradient)
        x = self.cross_attend(x.repeat(batch, 1, 1), data, mask)
        distances = self.distance_emb()
        for n in range(REPEATS):
            x = self.latent_block(x, distances, is_cached=n > 0 and self.are_keys_cached)
        return self.norm(self.decoder(self.queries.repeat(batch, 1, 1), x))


class PerceiverLoss(nn.Module):
    """Cross entropy of the classes and smooth L1 loss of the known values."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.perceiver = PerceiverIO(model)
        self.to_logits = load_linear(model, "classes")
        self.to_values = load_linear(model, "values")
        self.is_fused = model.variant == "fused"
        self.are_rows_counted = model.are_rows_counted
        self.is_huber = model.value_loss == "huber"

    def compute_value_loss(self, predicted: Tensor, values: Tensor, known: Tensor) -> Tensor:
        if self.is_fused:
            is_known = known.bool()
            return F.smooth_l1_loss(predicted[is_known], values[is_known], beta=BETA)
        if self.is_huber:
            losses = F.huber_loss(predicted, values, reduction="none", delta=BETA)
        else:
            losses = F.smooth_l1_loss(predicted, values, reduction="none", beta=BETA)
        mask = known.unsqueeze(-1)
        if not self.are_rows_counted:
            mask = mask.expand_as(losses)
        return (losses * mask).sum() / mask.sum()

    def forward(
        self, data: Tensor, mask: Tensor, labels: Tensor, values: Tensor, known: Tensor
    ) -> Tensor:
        x = self.perceiver(data, mask.bool())
        class_loss = F.cross_entropy(
            self.to_logits(x).view(-1, CLASSES),
            labels.view(-1),
            ignore_index=IGNORED,
            label_smoothing=SMOOTHING,
        )
        value_loss = self.compute_value_loss(self.to_values(x), values, known)
        return class_loss + VALUE_WEIGHT * value_loss


# Variant 'named'


class PerceiverMLP(nn.Module):
    """The gated feed-forward with a layer for each half."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense1 = load_linear(model, f"{path}.value")
        self.gate = load_linear(model, f"{path}.gate")
        self.intermediate_act_fn = nn.GELU()
        self.dense2 = load_linear(model, f"{path}.down")

    def forward(self, hidden_states: Tensor) -> Tensor:
        gate = self.intermediate_act_fn(self.gate(hidden_states))
        return self.dense2(gate * self.dense1(hidden_states))


class PerceiverSelfAttention(nn.Module):
    """Attention by einsum, with relative positions or to other inputs."""

    def __init__(self, model: Model, path: str, width: int, eps: float) -> None:
        super().__init__()
        self.is_cross_attention = not path.startswith("block")
        attention = f"{path}.attention"
        self.layernorm1 = load_norm(model, f"{path}.norm")
        if self.is_cross_attention:
            self.layernorm2 = load_norm(model, f"{path}.input_norm", width, eps)
        self.query, self.key, self.value = (
            load_linear(model, f"{attention}.{name}") for name in "qkv"
        )
        if not self.is_cross_attention:
            self.position = load_linear(model, f"{attention}.r")
            self.bias_u = copy_parameter(model.weights[f"{attention}.content_bias.weight"])
            self.bias_v = copy_parameter(model.weights[f"{attention}.position_bias.weight"])
            steps = torch.arange(LATENTS)
            index = steps[None, :] - steps[:, None] + LATENTS - 1
            self.register_buffer("index", index, persistent=False)

    def compute_relative_scores(self, q: Tensor, k: Tensor, table: Tensor) -> Tensor:
        r = self.position(table).unflatten(-1, (HEADS, HEAD_DIM))
        content = torch.einsum("bihd,bjhd->bhij", q + self.bias_u, k)
        position = torch.einsum("bihd,rhd->bhir", q + self.bias_v, r)
        return content + position.gather(-1, self.index.expand(*content.shape))

    def forward(
        self,
        hidden_states: Tensor,
        inputs: Tensor | None = None,
        attention_mask: Tensor | None = None,
        table: Tensor | None = None,
    ) -> Tensor:
        hidden_states = self.layernorm1(hidden_states)
        inputs = self.layernorm2(inputs) if self.is_cross_attention else hidden_states
        q = self.query(hidden_states).unflatten(-1, (HEADS, HEAD_DIM))
        k = self.key(inputs).unflatten(-1, (HEADS, HEAD_DIM))
        v = self.value(inputs).unflatten(-1, (HEADS, HEAD_DIM))
        if self.is_cross_attention:
            scores = torch.einsum("bihd,bjhd->bhij", q, k)
        else:
            scores = self.compute_relative_scores(q, k, table)
        scores = scores / math.sqrt(HEAD_DIM)
        if attention_mask is not None:
            scores = scores + attention_mask
        return torch.einsum("bhij,bjhd->bihd", F.softmax(scores, dim=-1), v).flatten(2)


class PerceiverLayer(nn.Module):
    """Attention and feed-forward."""

    def __init__(self, model: Model, path: str, width: int = HIDDEN, eps: float = EPS) -> None:
        super().__init__()
        self.self = PerceiverSelfAttention(model, path, width, eps)
        self.output = load_linear(model, f"{path}.attention.o")
        self.layernorm = load_norm(model, f"{path}.mlp_norm")
        self.mlp = PerceiverMLP(model, f"{path}.mlp")

    def forward(self, hidden_states: Tensor, **context: Tensor) -> Tensor:
        hidden_states = hidden_states + self.output(self.self(hidden_states, **context))
        return hidden_states + self.mlp(self.layernorm(hidden_states))


class PerceiverForTraining(nn.Module):
    """Both losses, the first one from logarithms, the second one a Huber loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings = copy_parameter(model.weights["latents.weight"])
        self.output_position_encodings = copy_parameter(model.weights["queries.weight"])
        positions = torch.linspace(-1.0, 1.0, TOKENS)
        table = fourier_encode(positions, torch.from_numpy(model.frequencies()))
        self.register_buffer("position_table", table)
        self.register_buffer("distance_table", DistanceEmbedding(model)())
        self.encoder_layer = PerceiverLayer(model, "encoder", CHANNELS)
        self.self_attends = PerceiverLayer(model, "block")
        self.decoding_layer = PerceiverLayer(model, "decoder")
        self.final_layer = nn.ModuleDict(
            {
                "layernorm": load_norm(model, "norm"),
                "classifier": load_linear(model, "classes"),
                "regressor": load_linear(model, "values"),
            }
        )

    def decode(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        """Return what the queries read."""
        batch = inputs.shape[0]
        table = self.position_table.unsqueeze(0).expand(batch, -1, -1)
        inputs = torch.cat((inputs, table), dim=-1)
        mask = (1.0 - attention_mask[:, None, None, :].to(inputs.dtype)) * -1e9
        hidden_states = self.embeddings.expand(batch, -1, -1)
        hidden_states = self.encoder_layer(hidden_states, inputs=inputs, attention_mask=mask)
        for _ in range(REPEATS):
            hidden_states = self.self_attends(hidden_states, table=self.distance_table)
        query = self.output_position_encodings.expand(batch, -1, -1)
        query = self.decoding_layer(query, inputs=hidden_states)
        return self.final_layer["layernorm"](query)

    def forward(
        self,
        inputs: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        values: Tensor,
        known: Tensor,
    ) -> Tensor:
        query = self.decode(inputs, attention_mask)
        logs = F.log_softmax(self.final_layer["classifier"](query), dim=-1)
        has_label = (labels != IGNORED).to(logs.dtype)
        of_label = logs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        losses = (SMOOTHING - 1) * of_label - SMOOTHING * logs.mean(dim=-1)
        class_loss = (losses * has_label).sum() / has_label.sum()
        predicted = self.final_layer["regressor"](query)
        losses = F.huber_loss(predicted, values, reduction="none", delta=BETA).sum(dim=-1)
        value_loss = (losses * known).sum() / (BETA * VALUES * known.sum())
        return class_loss + VALUE_WEIGHT * value_loss
