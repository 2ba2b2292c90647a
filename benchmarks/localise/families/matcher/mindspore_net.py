"""The matcher of key points in MindSpore for graph mode, with cells named as SuperGlue's modules.

Variant 'written': both images in one batch, the projections of self-attention in one, norms,
activations and logarithms of sums in plain arithmetic, Sinkhorn on the matrix and not on its
potentials, losses of matches by a matrix of weights.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

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
    PAIRS,
    POINTS,
    POSITION_SCALE,
    SIZE,
    UNMATCHED_WEIGHT,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else MatcherLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones row by row."""
    return Tensor(np.concatenate([model.weights[name] for name in names]))


def build_dense(model: Model, *paths: str) -> nn.Dense:
    """Return the linear layer at a path, with the bias if there is one, or several as one."""
    weight = read(model, *(f"{path}.weight" for path in paths))
    has_bias = f"{paths[0]}.bias" in model.weights
    bias = read(model, *(f"{path}.bias" for path in paths)) if has_bias else None
    return nn.Dense(
        weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias, has_bias=has_bias
    )


def normalize_points(points, scale):
    """Return positions of points that are given in pixels."""
    return (points - Tensor(SIZE, ms.float32) / 2) / scale


class KeypointEncoder(nn.Cell):
    """Vectors of positions and scores."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = nn.SequentialCell(
            build_dense(model, "encoder.first"),
            nn.BatchNorm1d(
                ENCODER,
                eps=EPS,
                gamma_init=read(model, "encoder.norm.weight"),
                beta_init=read(model, "encoder.norm.bias"),
            ),
            nn.ReLU(),
            build_dense(model, "encoder.second"),
        )

    def construct(self, positions, scores):
        inputs = ops.concat((positions, scores.expand_dims(-1)), -1)
        return self.encoder(inputs.reshape(-1, 3)).reshape(PAIRS, POINTS, WIDTH)


class RotaryEncoding(nn.Cell):
    """Cosines and sines of learned angles, (PAIRS, 1, POINTS, HEAD_WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.proj = build_dense(model, "rotary")
        self.are_halves_rotated = model.are_halves_rotated

    def construct(self, positions):
        angles = self.proj(positions)
        if self.are_halves_rotated:
            angles = ops.concat((angles, angles), -1)
        else:
            angles = ops.stack((angles, angles), -1).reshape(PAIRS, POINTS, HEAD_WIDTH)
        angles = angles.expand_dims(1)
        return ops.cos(angles), ops.sin(angles)


class MultiHeadedAttention(nn.Cell):
    """Attention to the valid points of a context; queries and keys of one image are rotated."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.merge = (
            build_dense(model, f"{path}.{name}") for name in ("query", "key", "value", "out")
        )
        self.is_rotated = path.endswith("self")
        self.are_halves_rotated = model.are_halves_rotated

    def split_heads(self, x):
        """Return (PAIRS, HEADS, POINTS, HEAD_WIDTH)."""
        return x.reshape(PAIRS, POINTS, HEADS, HEAD_WIDTH).transpose(0, 2, 1, 3)

    def rotate(self, x, cos, sin):
        """Return vectors with their pairs rotated."""
        if self.are_halves_rotated:
            x1, x2 = x[..., : HEAD_WIDTH // 2], x[..., HEAD_WIDTH // 2 :]
            turned = ops.concat((-x2, x1), -1)
        else:
            turned = ops.stack((-x[..., 1::2], x[..., 0::2]), -1).reshape(x.shape)
        return x * cos + turned * sin

    def construct(self, x, context, valid, cos, sin):
        query = self.split_heads(self.q_proj(x))
        key = self.split_heads(self.k_proj(context))
        value = self.split_heads(self.v_proj(context))
        if self.is_rotated:
            query, key = self.rotate(query, cos, sin), self.rotate(key, cos, sin)
        scores = ops.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(HEAD_WIDTH)
        scores = ops.masked_fill(scores, valid.reshape(PAIRS, 1, 1, POINTS) == 0, MASKED_SCORE)
        message = ops.matmul(ops.softmax(scores, -1), value)
        return self.merge(message.transpose(0, 2, 1, 3).reshape(PAIRS, POINTS, WIDTH))


class AttentionalPropagation(nn.Cell):
    """What points add to their descriptors from a context."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attn = MultiHeadedAttention(model, path)
        self.mlp = nn.SequentialCell(
            build_dense(model, f"{path}.first"),
            nn.LayerNorm(
                (2 * WIDTH,),
                gamma_init=read(model, f"{path}.norm.weight"),
                beta_init=read(model, f"{path}.norm.bias"),
                epsilon=EPS,
            ),
            nn.GELU(approximate=False),
            build_dense(model, f"{path}.second"),
        )

    def construct(self, x, context, valid, cos, sin):
        message = self.attn(x, context, valid, cos, sin)
        return self.mlp(ops.concat((x, message), -1))


class GNNLayer(nn.Cell):
    """Self-attention, then cross-attention, of both images."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.self_layer = AttentionalPropagation(model, f"layers.{n}.self")
        self.cross_layer = AttentionalPropagation(model, f"layers.{n}.cross")
        self.is_cross_mask_own = model.is_cross_mask_own

    def construct(self, desc0, desc1, valid0, valid1, rotary0, rotary1):
        cos0, sin0 = rotary0
        cos1, sin1 = rotary1
        desc0 = desc0 + self.self_layer(desc0, desc0, valid0, cos0, sin0)
        desc1 = desc1 + self.self_layer(desc1, desc1, valid1, cos1, sin1)
        context_valid0, context_valid1 = valid0, valid1
        if self.is_cross_mask_own:
            context_valid0, context_valid1 = valid1, valid0
        delta0 = self.cross_layer(desc0, desc1, context_valid1, cos0, sin0)
        delta1 = self.cross_layer(desc1, desc0, context_valid0, cos1, sin1)
        return desc0 + delta0, desc1 + delta1


class OptimalTransport(nn.Cell):
    """Logarithms of Sinkhorn's result with an added row and column, times m + n."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bin_score = Parameter(read(model, "dustbin"), name="bin_score")
        self.are_counts_exchanged = model.are_counts_exchanged

    def construct(self, scores, valid0, valid1, n_points0, n_points1):
        column = ops.broadcast_to(self.bin_score, (PAIRS, POINTS, 1))
        row = ops.broadcast_to(self.bin_score, (PAIRS, 1, POINTS + 1))
        couplings = ops.concat((ops.concat((scores, column), 2), row), 1)
        one = ops.ones((PAIRS, 1), ms.float32)
        mask0, mask1 = ops.concat((valid0, one), 1), ops.concat((valid1, one), 1)
        mask = mask0.expand_dims(2) * mask1.expand_dims(1)
        couplings = ops.masked_fill(couplings, mask == 0, MASKED_SCORE)

        count0, count1 = n_points0.astype(ms.float32), n_points1.astype(ms.float32)
        norm = -ops.log(count0 + count1).expand_dims(1)
        bin0, bin1 = ops.log(count1).expand_dims(1), ops.log(count0).expand_dims(1)
        if self.are_counts_exchanged:
            bin0, bin1 = bin1, bin0
        log_mass = ops.broadcast_to(norm, (PAIRS, POINTS))
        log_mu = ops.concat((log_mass, norm + bin0), 1)
        log_nu = ops.concat((log_mass, norm + bin1), 1)

        zero = ops.zeros_like(log_mu)
        u, v = zero, zero
        for _ in range(ITERATIONS):
            sums = ops.logsumexp(couplings + v.expand_dims(1), 2)
            u = ops.select(mask0 > 0, log_mu - sums, zero)
            sums = ops.logsumexp(couplings + u.expand_dims(2), 1)
            v = ops.select(mask1 > 0, log_nu - sums, zero)
        return couplings + u.expand_dims(2) + v.expand_dims(1) - norm.expand_dims(2)


class Matcher(nn.Cell):
    """Logarithms of assignments, and logits of confidences behind each layer but the last one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.normalize = ops.L2Normalize(axis=-1, epsilon=1e-12)
        self.input_proj = build_dense(model, "input")
        self.kenc = KeypointEncoder(model)
        self.rotary = RotaryEncoding(model)
        self.gnn = nn.CellList([GNNLayer(model, n) for n in range(LAYERS)])
        self.confidence = nn.CellList(
            [build_dense(model, f"layers.{n}.confidence") for n in range(LAYERS - 1)]
        )
        self.final_proj = build_dense(model, "final")
        self.optimal_transport = OptimalTransport(model)
        self.is_confidence_stopped = model.is_confidence_stopped
        self.position_scale = model.position_scale

    def construct(
        self, points0, points1, scores0, scores1, desc0, desc1, valid0, valid1, count0, count1
    ):
        positions0 = normalize_points(points0, self.position_scale)
        positions1 = normalize_points(points1, self.position_scale)
        desc0 = self.input_proj(self.normalize(desc0)) + self.kenc(positions0, scores0)
        desc1 = self.input_proj(self.normalize(desc1)) + self.kenc(positions1, scores1)
        rotary0, rotary1 = self.rotary(positions0), self.rotary(positions1)
        confidences = ()
        for n in range(LAYERS):
            desc0, desc1 = self.gnn[n](desc0, desc1, valid0, valid1, rotary0, rotary1)
            if n < LAYERS - 1:
                tokens = ops.concat((desc0, desc1), 1)
                if self.is_confidence_stopped:
                    tokens = ops.stop_gradient(tokens)
                confidences += (self.confidence[n](tokens).squeeze(-1),)
        mdesc0, mdesc1 = self.final_proj(desc0), self.final_proj(desc1)
        scores = ops.bmm(mdesc0, mdesc1.swapaxes(1, 2)) / math.sqrt(WIDTH)
        return self.optimal_transport(scores, valid0, valid1, count0, count1), confidences


class MatcherLoss(nn.Cell):
    """The weighted sum of the losses of matches, unmatched points and confidences."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Matcher(model)
        self.bce = nn.BCEWithLogitsLoss(reduction="none")
        self.range = Tensor(np.arange(POINTS, dtype=np.int32)[None])
        self.are_matches_pooled = model.are_matches_pooled

    def compute_match_loss(self, log_scores, matches, is_match):
        """Return the mean of the pairs' means over their matches."""
        index = ops.clamp(matches, 0).expand_dims(2)
        picked = ops.gather_elements(log_scores[:, :-1, :-1], 2, index).squeeze(2)
        if self.are_matches_pooled:
            return -(picked * is_match).sum() / is_match.sum()
        return -((picked * is_match).sum(1) / is_match.sum(1)).mean()

    def compute_unmatched_loss(self, log_scores, is_unmatched0, is_unmatched1):
        """Return the mean of the pairs' means over points without a match."""
        sums = (log_scores[:, :-1, -1] * is_unmatched0).sum(1)
        sums = sums + (log_scores[:, -1, :-1] * is_unmatched1).sum(1)
        return -(sums / (is_unmatched0.sum(1) + is_unmatched1.sum(1))).mean()

    def construct(
        self,
        points0,
        points1,
        scores0,
        scores1,
        desc0,
        desc1,
        count0,
        count1,
        matches0,
        matches1,
    ):
        valid0 = ops.less(self.range, count0.expand_dims(1)).astype(ms.float32)
        valid1 = ops.less(self.range, count1.expand_dims(1)).astype(ms.float32)
        log_scores, confidences = self.network(
            points0, points1, scores0, scores1, desc0, desc1, valid0, valid1, count0, count1
        )
        is_match0 = ops.greater_equal(matches0, 0).astype(ms.float32)
        is_match1 = ops.greater_equal(matches1, 0).astype(ms.float32)
        match_loss = self.compute_match_loss(log_scores, matches0, is_match0)
        unmatched_loss = self.compute_unmatched_loss(
            log_scores, valid0 * (1 - is_match0), valid1 * (1 - is_match1)
        )
        loss = MATCH_WEIGHT * match_loss + UNMATCHED_WEIGHT * unmatched_loss

        labels = ops.concat((is_match0, is_match1), 1)
        valid = ops.concat((valid0, valid1), 1)
        for logits in confidences:
            entropy = (self.bce(logits, labels) * valid).sum() / valid.sum()
            loss = loss + CONFIDENCE_WEIGHT / (LAYERS - 1) * entropy
        return loss


class WrittenNorm(nn.Cell):
    """Layer norm of rows, or batch norm of columns, from means."""

    def __init__(self, model: Model, path: str, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = Parameter(read(model, f"{path}.weight"), name="scale")
        self.shift = Parameter(read(model, f"{path}.bias"), name="shift")
        self.axes = axes

    def construct(self, x):
        centered = x - mint.mean(x, self.axes, True)
        variance = mint.mean(mint.square(centered), self.axes, True)
        return centered * mint.rsqrt(variance + EPS) * self.scale + self.shift


def compute_logsumexp(x, axis):
    """Return the logarithm of the sum of exponentials, with the axis kept."""
    top = ops.stop_gradient(x.max(axis=axis, keepdims=True))
    return mint.log(mint.sum(mint.exp(x - top), axis, True)) + top


class WrittenEncoder(nn.Cell):
    """Vectors of positions and scores (2, PAIRS, POINTS, 3), with two batch norms."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.linear1 = build_dense(model, "encoder.first")
        self.norm = WrittenNorm(model, "encoder.norm", (1, 2))
        self.linear2 = build_dense(model, "encoder.second")

    def construct(self, x):
        return self.linear2(ops.maximum(self.norm(self.linear1(x)), 0.0))


def repeat_for_heads(x):
    """Return each item of the batch HEADS times in turn."""
    return ops.stack((x,) * HEADS, 1).reshape(x.shape[0] * HEADS, *x.shape[1:])


class WrittenBlock(nn.Cell):
    """A layer of one kind for both images, which are the halves of the batch."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_self = path.endswith("self")
        names = [f"{path}.{name}" for name in ("query", "key", "value")]
        if self.is_self:
            self.qkv = build_dense(model, *names)
        else:
            self.to_q, self.to_kv = build_dense(model, names[0]), build_dense(model, *names[1:])
        self.to_out = build_dense(model, f"{path}.out")
        self.linear1 = build_dense(model, f"{path}.first")
        self.norm = WrittenNorm(model, f"{path}.norm", (-1,))
        self.linear2 = build_dense(model, f"{path}.second")

    def project(self, x):
        """Return query, key and value, (2 PAIRS, POINTS, WIDTH)."""
        if self.is_self:
            return mint.chunk(self.qkv(x), 3, -1)
        key, value = mint.chunk(self.to_kv(self.exchange(x)), 2, -1)
        return self.to_q(x), key, value

    def exchange(self, x):
        """Return the other images."""
        return mint.cat((x[PAIRS:], x[:PAIRS]), 0)

    def fold(self, x):
        """Return each head as an item of the batch."""
        x = mint.permute(x.reshape(2 * PAIRS, POINTS, HEADS, HEAD_WIDTH), (0, 2, 1, 3))
        return x.reshape(2 * PAIRS * HEADS, POINTS, HEAD_WIDTH)

    def rotate(self, x, cos, sin):
        """Return vectors with their pairs rotated by angles (2 PAIRS HEADS, POINTS, pairs)."""
        pairs = x.reshape(2 * PAIRS * HEADS, POINTS, HEAD_WIDTH // 2, 2)
        x1, x2 = pairs[..., 0], pairs[..., 1]
        return ops.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1).reshape(x.shape)

    def construct(self, x, valid, angles):
        query, key, value = self.project(x)
        query, key, value = self.fold(query), self.fold(key), self.fold(value)
        if self.is_self:
            cos, sin = mint.cos(angles), mint.sin(angles)
            query, key = self.rotate(query, cos, sin), self.rotate(key, cos, sin)
        else:
            valid = self.exchange(valid)
        scores = mint.bmm(query * HEAD_WIDTH**-0.5, mint.transpose(key, 1, 2))
        top = ops.stop_gradient(scores.max(axis=-1, keepdims=True))
        keep = repeat_for_heads(valid).expand_dims(1)
        weights = mint.exp(scores - top) * keep
        weights = weights / mint.sum(weights, -1, True)
        message = mint.bmm(weights, value).reshape(2 * PAIRS, HEADS, POINTS, HEAD_WIDTH)
        message = mint.permute(message, (0, 2, 1, 3)).reshape(2 * PAIRS, POINTS, WIDTH)
        hidden = self.norm(self.linear1(mint.cat((x, self.to_out(message)), -1)))
        hidden = 0.5 * hidden * (1 + mint.erf(hidden / math.sqrt(2)))
        return x + self.linear2(hidden)


class WrittenLoss(nn.Cell):
    """The same losses with both images in one batch, and Sinkhorn on the matrix."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.input_linear, self.final_linear = (
            build_dense(model, name) for name in ("input", "final")
        )
        self.encoder = WrittenEncoder(model)
        self.frequencies = Parameter(read(model, "rotary.weight"), name="frequencies")
        self.blocks = nn.CellList(
            [
                WrittenBlock(model, f"layers.{n}.{kind}")
                for n in range(LAYERS)
                for kind in ("self", "cross")
            ]
        )
        self.token_confidence = nn.CellList(
            [build_dense(model, f"layers.{n}.confidence") for n in range(LAYERS - 1)]
        )
        self.dustbin = Parameter(read(model, "dustbin"), name="dustbin")
        self.range = Tensor(np.arange(POINTS, dtype=np.int32)[None])

    def describe(self, points, scores, desc, valid):
        """Return the last layer's descriptors, and confidences' logits."""
        positions = normalize_points(points, POSITION_SCALE)
        inputs = mint.cat((positions, scores.expand_dims(-1)), -1)
        encoded = self.encoder(inputs.reshape(2, PAIRS, POINTS, 3))
        lengths = mint.sqrt(mint.sum(mint.square(desc), -1, True))
        x = self.input_linear(desc / ops.maximum(lengths, 1e-12))
        x = x + encoded.reshape(2 * PAIRS, POINTS, WIDTH)
        angles = mint.matmul(positions, mint.transpose(self.frequencies, 0, 1))
        angles = repeat_for_heads(angles)
        confidences = ()
        for n in range(LAYERS):
            x = self.blocks[2 * n + 1](self.blocks[2 * n](x, valid, angles), valid, angles)
            if n < LAYERS - 1:
                confidences += (self.token_confidence[n](ops.stop_gradient(x)).squeeze(-1),)
        return x, confidences

    def transport(self, scores, valid, counts):
        """Return logarithms of Sinkhorn's result, times m + n."""
        shape = (PAIRS, POINTS + 1, POINTS + 1)
        is_point = mint.nn.functional.pad(mint.ones_like(scores), (0, 1, 0, 1))
        z = mint.nn.functional.pad(scores, (0, 1, 0, 1)) + self.dustbin * (1 - is_point)
        mask0 = mint.nn.functional.pad(valid[:PAIRS], (0, 1), "constant", 1.0).expand_dims(2)
        mask1 = mint.nn.functional.pad(valid[PAIRS:], (0, 1), "constant", 1.0).expand_dims(1)
        z = mint.where(mask0 * mask1 > 0, z, MASKED_SCORE * mint.ones(shape))
        count0, count1 = counts[:PAIRS].reshape(-1, 1, 1), counts[PAIRS:].reshape(-1, 1, 1)
        one = mint.ones((PAIRS, POINTS, 1))
        mass0 = mint.log(mint.cat((one, count1), 1))
        mass1 = mint.log(mint.transpose(mint.cat((one, count0), 1), 1, 2))
        norm = mint.log(count0 + count1)
        for _ in range(ITERATIONS):
            z = z + mask0 * (mass0 - norm - compute_logsumexp(z, 2))
            z = z + mask1 * (mass1 - norm - compute_logsumexp(z, 1))
        return z + norm

    def construct(
        self,
        points0,
        points1,
        scores0,
        scores1,
        desc0,
        desc1,
        count0,
        count1,
        matches0,
        matches1,
    ):
        points, scores = mint.cat((points0, points1), 0), mint.cat((scores0, scores1), 0)
        counts = mint.cat((count0, count1), 0)
        valid = (self.range < counts.expand_dims(1)).astype(ms.float32)
        x, confidences = self.describe(points, scores, mint.cat((desc0, desc1), 0), valid)
        final = self.final_linear(x) * WIDTH**-0.25
        similarities = mint.bmm(final[:PAIRS], mint.transpose(final[PAIRS:], 1, 2))
        z = self.transport(similarities, valid, counts.astype(ms.float32))

        is_match = mint.cat((matches0, matches1), 0) >= 0
        labels = is_match.astype(ms.float32)
        others = valid * (1 - labels)
        n_others = (others[:PAIRS].sum(1) + others[PAIRS:].sum(1)).reshape(-1, 1, 1)
        shares = (matches0.expand_dims(2) == self.range).astype(ms.float32)
        shares = MATCH_WEIGHT * shares / shares.sum((1, 2), keepdims=True)
        column = UNMATCHED_WEIGHT * others[:PAIRS].expand_dims(2) / n_others
        row = UNMATCHED_WEIGHT * others[PAIRS:].expand_dims(1) / n_others
        row = mint.nn.functional.pad(row, (0, 1))
        weights = mint.cat((mint.cat((shares, column), 2), row), 1)
        loss = -mint.sum(weights * z) / PAIRS

        for logits in confidences:
            joined = logits.reshape(2 * PAIRS, POINTS)
            entropy = mint.log(1 + mint.exp(joined)) - labels * joined
            mean = mint.sum(entropy * valid) / mint.sum(valid)
            loss = loss + CONFIDENCE_WEIGHT / (LAYERS - 1) * mean
        return loss
