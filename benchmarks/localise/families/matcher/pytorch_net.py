"""The matcher of key points in PyTorch, with modules named as in LightGlue.

Variant 'convolved': names of SuperGlue, whose linear layers are convolutions of one point, channels
first; attention by einsum, rotations of pairs, SuperGlue's functions of Sinkhorn.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.matcher.architecture import (
    CONFIDENCE_WEIGHT,
    ENCODER,
    EPS,
    HEAD_WIDTH,
    HEADS,
    ITERATIONS,
    LAYERS,
    MASKED_SCORE,
    MATCH_WEIGHT,
    POSITION_SCALE,
    SIZE,
    UNMATCHED_WEIGHT,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return ConvolvedLoss(model) if model.variant == "convolved" else MatcherLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def read(model: Model, *names: str) -> np.ndarray:
    """Return a weight, or several ones row by row."""
    return np.concatenate([model.weights[name] for name in names])


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return the linear layer at a path, with the bias if there is one, or several as one."""
    weight = read(model, *(f"{path}.weight" for path in paths))
    has_bias = f"{paths[0]}.bias" in model.weights
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias)
    layer.weight = copy_parameter(weight)
    if has_bias:
        layer.bias = copy_parameter(read(model, *(f"{path}.bias" for path in paths)))
    return layer


def load_norm(model: Model, path: str, norm: nn.Module) -> nn.Module:
    """Give a norm the weights at a path."""
    norm.weight, norm.bias = (
        copy_parameter(model.weights[f"{path}.{name}"]) for name in ("weight", "bias")
    )
    return norm


def normalize_keypoints(kpts: Tensor) -> Tensor:
    """Return positions of points that are given in pixels."""
    return (kpts - kpts.new_tensor(SIZE) / 2) / POSITION_SCALE


class _ColumnSums(torch.autograd.Function):
    """Logarithms of columns' sums of exponentials, whose gradient is shared as those of rows."""

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return torch.logsumexp(x, 1)

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return gradient.unsqueeze(1) * F.softmax(x, 2)


class KeypointEncoder(nn.Module):
    """Vectors of positions and scores."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.linear1 = load_linear(model, "encoder.first")
        self.bn = load_norm(model, "encoder.norm", nn.BatchNorm1d(ENCODER, eps=EPS))
        self.relu = nn.ReLU()
        self.linear2 = load_linear(model, "encoder.second")

    def forward(self, kpts: Tensor, scores: Tensor) -> Tensor:
        x = self.linear1(torch.cat([kpts, scores.unsqueeze(-1)], dim=-1))
        x = self.bn(x.flatten(0, 1)).unflatten(0, scores.shape)
        return self.linear2(self.relu(x))


def rotate_half(x: Tensor) -> Tensor:
    """Return vectors with each of their pairs turned by a right angle."""
    x1, x2 = x.unflatten(-1, (-1, 2)).unbind(dim=-1)
    return torch.stack((-x2, x1), dim=-1).flatten(start_dim=-2)


def apply_cached_rotary_emb(freqs: Tensor, t: Tensor) -> Tensor:
    """Return vectors with each of their pairs turned by its angle."""
    return (t * freqs[0]) + (rotate_half(t) * freqs[1])


class LearnableFourierPositionalEncoding(nn.Module):
    """Cosines and sines of learned angles, (2, batch, 1, points, HEAD_WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.Wr = load_linear(model, "rotary")

    def forward(self, x: Tensor) -> Tensor:
        projected = self.Wr(x)
        emb = torch.stack([torch.cos(projected), torch.sin(projected)], 0).unsqueeze(-3)
        return emb.repeat_interleave(2, dim=-1)


def load_ffn(model: Model, path: str) -> nn.Sequential:
    """Return the layers that read descriptors and messages."""
    return nn.Sequential(
        load_linear(model, f"{path}.first"),
        load_norm(model, f"{path}.norm", nn.LayerNorm(2 * WIDTH, eps=EPS)),
        nn.GELU(),
        load_linear(model, f"{path}.second"),
    )


def split_heads(x: Tensor) -> Tensor:
    """Return (batch, HEADS, points, HEAD_WIDTH)."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class SelfBlock(nn.Module):
    """Attention to the valid points of the same image."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.Wqkv = load_linear(model, *(f"{path}.{name}" for name in ("query", "key", "value")))
        self.out_proj = load_linear(model, f"{path}.out")
        self.ffn = load_ffn(model, path)
        self.are_projections_interleaved = model.are_projections_interleaved

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values (batch, HEADS, points, HEAD_WIDTH)."""
        qkv = self.Wqkv(x)
        if self.are_projections_interleaved:
            return qkv.unflatten(-1, (HEADS, -1, 3)).transpose(1, 2).unbind(dim=-1)
        return tuple(split_heads(part) for part in qkv.chunk(3, dim=-1))

    def forward(self, x: Tensor, encoding: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.project(x)
        q = apply_cached_rotary_emb(encoding, q)
        k = apply_cached_rotary_emb(encoding, k)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        message = self.out_proj(context.transpose(1, 2).flatten(start_dim=-2))
        return x + self.ffn(torch.cat([x, message], -1))


class CrossBlock(nn.Module):
    """Attention to the valid points of the other image, of both images."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (
            load_linear(model, f"{path}.{name}") for name in ("query", "key", "value", "out")
        )
        self.ffn = load_ffn(model, path)

    def attend(self, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        """Return the messages of one image's points to the other's."""
        q, k, v = (
            split_heads(part) for part in (self.to_q(x), self.to_k(source), self.to_v(source))
        )
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        return self.to_out(context.transpose(1, 2).flatten(start_dim=-2))

    def forward(
        self, x0: Tensor, x1: Tensor, mask0: Tensor, mask1: Tensor
    ) -> tuple[Tensor, Tensor]:
        m0, m1 = self.attend(x0, x1, mask1), self.attend(x1, x0, mask0)
        x0 = x0 + self.ffn(torch.cat([x0, m0], -1))
        x1 = x1 + self.ffn(torch.cat([x1, m1], -1))
        return x0, x1


class TransformerLayer(nn.Module):
    """Self-attention, then cross-attention, of both images."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.self_attn = SelfBlock(model, f"layers.{n}.self")
        self.cross_attn = CrossBlock(model, f"layers.{n}.cross")

    def forward(
        self,
        desc0: Tensor,
        desc1: Tensor,
        encoding0: Tensor,
        encoding1: Tensor,
        mask0: Tensor,
        mask1: Tensor,
    ) -> tuple[Tensor, Tensor]:
        desc0 = self.self_attn(desc0, encoding0, mask0)
        desc1 = self.self_attn(desc1, encoding1, mask1)
        return self.cross_attn(desc0, desc1, mask0, mask1)


class TokenConfidence(nn.Module):
    """Logits of whether points have a match; descriptors get no gradient."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.token = load_linear(model, f"layers.{n}.confidence")

    def forward(self, desc0: Tensor, desc1: Tensor) -> tuple[Tensor, Tensor]:
        return (
            self.token(desc0.detach()).squeeze(-1),
            self.token(desc1.detach()).squeeze(-1),
        )


class OptimalTransport(nn.Module):
    """Logarithms of Sinkhorn's result with an added row and column, times m + n."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bin_score = copy_parameter(model.weights["dustbin"])
        self.is_column_gradient_of_rows = model.is_column_gradient_of_rows

    def sum_columns(self, x: Tensor) -> Tensor:
        """Return logarithms of columns' sums of exponentials."""
        if self.is_column_gradient_of_rows:
            return _ColumnSums.apply(x)
        return torch.logsumexp(x, 1)

    def forward(self, scores: Tensor, mask0: Tensor, mask1: Tensor) -> Tensor:
        b, m, n = scores.shape
        bins0 = self.bin_score.expand(b, m, 1)
        bins1 = self.bin_score.expand(b, 1, n + 1)
        couplings = torch.cat([torch.cat([scores, bins0], -1), bins1], 1)
        valid0, valid1 = F.pad(mask0, (0, 1), value=True), F.pad(mask1, (0, 1), value=True)
        is_valid = valid0.unsqueeze(2) & valid1.unsqueeze(1)
        couplings = couplings.masked_fill(~is_valid, MASKED_SCORE)

        ms, ns = mask0.sum(1, keepdim=True).float(), mask1.sum(1, keepdim=True).float()
        norm = -(ms + ns).log()
        log_mu = torch.cat([norm.expand(b, m), ns.log() + norm], dim=1)
        log_nu = torch.cat([norm.expand(b, n), ms.log() + norm], dim=1)

        u, v = torch.zeros_like(log_mu), torch.zeros_like(log_nu)
        for _ in range(ITERATIONS):
            u = (log_mu - torch.logsumexp(couplings + v.unsqueeze(1), dim=2)) * valid0
            v = (log_nu - self.sum_columns(couplings + u.unsqueeze(2))) * valid1
        return couplings + u.unsqueeze(2) + v.unsqueeze(1) - norm.unsqueeze(2)


class LightGlue(nn.Module):
    """Logarithms of assignments, and logits of confidences behind each layer but the last one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.input_proj = load_linear(model, "input")
        self.kenc = KeypointEncoder(model)
        self.posenc = LearnableFourierPositionalEncoding(model)
        self.transformers = nn.ModuleList(TransformerLayer(model, n) for n in range(LAYERS))
        self.token_confidence = nn.ModuleList(TokenConfidence(model, n) for n in range(LAYERS - 1))
        self.final_proj = load_linear(model, "final")
        self.optimal_transport = OptimalTransport(model)
        self.normalized_axis = model.normalized_axis
        self.encoding_gradient = model.encoding_gradient

    def embed(self, kpts: Tensor, scores: Tensor, desc: Tensor) -> Tensor:
        """Return what points begin with."""
        encoded = self.kenc(kpts, scores)
        if self.encoding_gradient != 1:
            alpha = self.encoding_gradient
            encoded = encoded * alpha + encoded.detach() * (1 - alpha)
        return self.input_proj(F.normalize(desc, dim=self.normalized_axis)) + encoded

    def forward(
        self,
        kpts0: Tensor,
        kpts1: Tensor,
        scores0: Tensor,
        scores1: Tensor,
        desc0: Tensor,
        desc1: Tensor,
        mask0: Tensor,
        mask1: Tensor,
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        kpts0, kpts1 = normalize_keypoints(kpts0), normalize_keypoints(kpts1)
        desc0, desc1 = self.embed(kpts0, scores0, desc0), self.embed(kpts1, scores1, desc1)
        encoding0, encoding1 = self.posenc(kpts0), self.posenc(kpts1)
        confidences = []
        for n in range(LAYERS):
            desc0, desc1 = self.transformers[n](desc0, desc1, encoding0, encoding1, mask0, mask1)
            if n < LAYERS - 1:
                confidences.append(self.token_confidence[n](desc0, desc1))
        mdesc0, mdesc1 = self.final_proj(desc0), self.final_proj(desc1)
        scale = WIDTH**0.25
        sim = torch.einsum("bmd,bnd->bmn", mdesc0 / scale, mdesc1 / scale)
        return self.optimal_transport(sim, mask0, mask1), confidences


class MatcherLoss(nn.Module):
    """The weighted sum of the losses of matches, unmatched points and confidences."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.matcher = LightGlue(model)
        self.is_added_column_reused = model.is_added_column_reused

    def compute_nll(
        self, log_assignment: Tensor, matches0: Tensor, negative0: Tensor, negative1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean losses of matches and of other points."""
        positive = (matches0 > -1).float()
        index = matches0.clamp(min=0).unsqueeze(-1)
        picked = log_assignment[:, :-1, :-1].gather(2, index).squeeze(-1)
        nll_pos = -(picked * positive).sum(1) / positive.sum(1)

        unmatched0 = log_assignment[:, :-1, -1]
        unmatched1 = unmatched0 if self.is_added_column_reused else log_assignment[:, -1, :-1]
        sums = (unmatched0 * negative0).sum(1) + (unmatched1 * negative1).sum(1)
        nll_neg = -sums / (negative0.sum(1) + negative1.sum(1))
        return nll_pos.mean(), nll_neg.mean()

    def forward(
        self,
        kpts0: Tensor,
        kpts1: Tensor,
        scores0: Tensor,
        scores1: Tensor,
        desc0: Tensor,
        desc1: Tensor,
        counts0: Tensor,
        counts1: Tensor,
        matches0: Tensor,
        matches1: Tensor,
    ) -> Tensor:
        mask0 = torch.arange(kpts0.shape[1]) < counts0.unsqueeze(1)
        mask1 = torch.arange(kpts1.shape[1]) < counts1.unsqueeze(1)
        log_assignment, confidences = self.matcher(
            kpts0, kpts1, scores0, scores1, desc0, desc1, mask0, mask1
        )
        negative0 = ((matches0 == -1) & mask0).float()
        negative1 = ((matches1 == -1) & mask1).float()
        nll_pos, nll_neg = self.compute_nll(log_assignment, matches0, negative0, negative1)
        loss = MATCH_WEIGHT * nll_pos + UNMATCHED_WEIGHT * nll_neg

        mask = torch.cat([mask0, mask1], 1).float()
        labels = (torch.cat([matches0, matches1], 1) > -1).float()
        for confidence in confidences:
            logits = torch.cat(confidence, 1)
            bce = F.binary_cross_entropy_with_logits(logits, labels, weight=mask, reduction="sum")
            loss = loss + CONFIDENCE_WEIGHT / len(confidences) * bce / mask.sum()
        return loss


def load_conv(model: Model, path: str) -> nn.Conv1d:
    """Return the linear layer at a path as a convolution of one point."""
    weight, bias = model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias")
    conv = nn.Conv1d(weight.shape[1], weight.shape[0], kernel_size=1, bias=bias is not None)
    conv.weight = copy_parameter(weight[:, :, None])
    if bias is not None:
        conv.bias = copy_parameter(bias)
    return conv


class ChannelNorm(nn.Module):
    """Layer norm of channels, which come first."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        load_norm(model, path, self)

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
        x = (x - mean) / torch.sqrt(variance + EPS)
        return x * self.weight[:, None] + self.bias[:, None]


class MultiHeadedAttention(nn.Module):
    """Attention of descriptors (batch, WIDTH, points)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.merge = load_conv(model, f"{path}.out")
        self.proj = nn.ModuleList(
            load_conv(model, f"{path}.{name}") for name in ("query", "key", "value")
        )

    def turn(self, x: Tensor, angles: Tensor) -> Tensor:
        """Return vectors with each of their pairs turned by its angle (batch, pairs, points)."""
        even, odd = x[:, :, 0::2], x[:, :, 1::2]
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=3).flatten(2, 3)

    def forward(self, x: Tensor, source: Tensor, valid: Tensor, angles: Tensor | None) -> Tensor:
        query, key, value = (
            layer(y).view(len(y), HEADS, HEAD_WIDTH, -1)
            for layer, y in zip(self.proj, (x, source, source), strict=True)
        )
        if angles is not None:
            query, key = self.turn(query, angles), self.turn(key, angles)
        scores = torch.einsum("bhdn,bhdm->bhnm", query, key) / math.sqrt(HEAD_WIDTH)
        prob = scores.masked_fill(~valid[:, None, None], float("-inf")).softmax(dim=-1)
        message = torch.einsum("bhnm,bhdm->bhdn", prob, value)
        return self.merge(message.flatten(1, 2))


class AttentionalPropagation(nn.Module):
    """What points add to their descriptors from a context."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attn = MultiHeadedAttention(model, path)
        self.mlp = nn.Sequential(
            load_conv(model, f"{path}.first"),
            ChannelNorm(model, f"{path}.norm"),
            nn.GELU(),
            load_conv(model, f"{path}.second"),
        )

    def forward(self, x: Tensor, source: Tensor, valid: Tensor, angles: Tensor | None) -> Tensor:
        return self.mlp(torch.cat([x, self.attn(x, source, valid, angles)], dim=1))


def log_sinkhorn_iterations(
    z: Tensor, log_mu: Tensor, log_nu: Tensor, rows: Tensor, columns: Tensor
) -> Tensor:
    """Return the sum of scores and potentials; those of padding stay zero."""
    u, v = torch.zeros_like(log_mu), torch.zeros_like(log_nu)
    for _ in range(ITERATIONS):
        u = torch.where(rows, log_mu - torch.logsumexp(z + v.unsqueeze(1), dim=2), 0.0)
        v = torch.where(columns, log_nu - torch.logsumexp(z + u.unsqueeze(2), dim=1), 0.0)
    return z + u.unsqueeze(2) + v.unsqueeze(1)


def log_optimal_transport(
    scores: Tensor, alpha: Tensor, counts0: Tensor, counts1: Tensor, valid: tuple[Tensor, Tensor]
) -> Tensor:
    """Return logarithms of Sinkhorn's result with an added row and column, times m + n."""
    couplings = alpha.view(1, 1, 1).repeat(len(scores), scores.shape[1] + 1, scores.shape[2] + 1)
    couplings = torch.cat([scores, couplings[:, :-1, -1:]], 2).contiguous()
    couplings = torch.cat([couplings, alpha.repeat(len(scores), 1, scores.shape[2] + 1)], 1)
    one = torch.ones(len(scores), 1, dtype=torch.bool)
    rows, columns = torch.cat([valid[0], one], 1), torch.cat([valid[1], one], 1)
    mask = rows[:, :, None].logical_and(columns[:, None])
    couplings = torch.where(mask, couplings, MASKED_SCORE)
    total = (counts0 + counts1).unsqueeze(1)
    mass0 = torch.cat([torch.ones_like(valid[0], dtype=torch.float), counts1[:, None]], 1) / total
    mass1 = torch.cat([torch.ones_like(valid[1], dtype=torch.float), counts0[:, None]], 1) / total
    z = log_sinkhorn_iterations(couplings, mass0.log(), mass1.log(), rows, columns)
    return z + total.log().unsqueeze(2)


class ConvolvedLoss(nn.Module):
    """The same losses, as SuperGlue is written."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.project = load_conv(model, "input")
        self.kenc = nn.Sequential(
            load_conv(model, "encoder.first"),
            load_norm(model, "encoder.norm", nn.BatchNorm1d(ENCODER, eps=EPS)),
            nn.ReLU(),
            load_conv(model, "encoder.second"),
        )
        self.frequencies = load_conv(model, "rotary")
        self.names = ["self", "cross"] * LAYERS
        self.gnn = nn.ModuleList(
            AttentionalPropagation(model, f"layers.{n // 2}.{name}")
            for n, name in enumerate(self.names)
        )
        self.confidences = nn.ModuleList(
            load_conv(model, f"layers.{n}.confidence") for n in range(LAYERS - 1)
        )
        self.final_proj = load_conv(model, "final")
        self.bin_score = copy_parameter(model.weights["dustbin"])

    def begin(self, kpts: Tensor, scores: Tensor, desc: Tensor) -> tuple[Tensor, Tensor]:
        """Return what points begin with, and the angles of their pairs, channels first."""
        size = kpts.new_tensor(SIZE)
        places = ((kpts - size / 2) / POSITION_SCALE).transpose(1, 2)
        lengths = desc.pow(2).sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        x = self.project((desc / lengths).transpose(1, 2))
        inputs = torch.cat([places, scores.unsqueeze(1)], dim=1)
        return x + self.kenc(inputs), self.frequencies(places)

    def propagate(
        self, begins: tuple[tuple[Tensor, Tensor], ...], valid: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return both images' descriptors, and confidences' logits."""
        (x0, angles0), (x1, angles1) = begins
        logits = []
        for n, (layer, name) in enumerate(zip(self.gnn, self.names, strict=True)):
            if name == "cross":
                delta0, delta1 = layer(x0, x1, valid[1], None), layer(x1, x0, valid[0], None)
            else:
                delta0, delta1 = layer(x0, x0, valid[0], angles0), layer(x1, x1, valid[1], angles1)
            x0, x1 = x0 + delta0, x1 + delta1
            if name == "cross" and n < 2 * LAYERS - 1:
                joined = torch.cat([x0, x1], dim=2)
                logits.append(self.confidences[n // 2](joined.detach()).squeeze(1))
        return x0, x1, logits

    def forward(self, *batch: Tensor) -> Tensor:
        kpts0, kpts1, scores0, scores1, desc0, desc1, counts0, counts1, matches0, matches1 = batch
        steps = torch.arange(kpts0.shape[1])
        valid = (steps < counts0[:, None], steps < counts1[:, None])
        begins = (self.begin(kpts0, scores0, desc0), self.begin(kpts1, scores1, desc1))
        x0, x1, logits = self.propagate(begins, valid)
        mdesc0, mdesc1 = self.final_proj(x0), self.final_proj(x1)
        scores = torch.einsum("bdn,bdm->bnm", mdesc0, mdesc1) / WIDTH**0.5
        z = log_optimal_transport(scores, self.bin_score, counts0.float(), counts1.float(), valid)

        targets0 = torch.where(matches0 >= 0, matches0, z.shape[2] - 1)
        rows = z[:, :-1].gather(2, targets0.unsqueeze(2)).squeeze(2)
        loss = 0.0
        for pair in range(len(z)):
            is_match = matches0[pair] >= 0
            alone0, alone1 = valid[0][pair] & ~is_match, valid[1][pair] & (matches1[pair] < 0)
            alone = torch.cat([rows[pair][alone0], z[pair, -1, :-1][alone1]])
            loss = loss - MATCH_WEIGHT * rows[pair][is_match].mean()
            loss = loss - UNMATCHED_WEIGHT * alone.mean()
        loss = loss / len(z)

        is_valid = torch.cat(valid, dim=1)
        labels = torch.cat([matches0, matches1], dim=1).ge(0).float()
        for logit in logits:
            entropy = F.softplus(logit) - labels * logit
            loss = loss + CONFIDENCE_WEIGHT / len(logits) * entropy[is_valid].mean()
        return loss
