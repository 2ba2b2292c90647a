"""The Evoformer in MindSpore, with the cells of MindSPONGE.

Variant 'written': norms and softmax in plain arithmetic, triangles by sums of broadcast products.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.evoformer.architecture import (
    BINS,
    BLOCKS,
    DISTOGRAM_WEIGHT,
    EPS,
    HEAD_DIM,
    HEADS,
    LOSS_EPS,
    MASKED,
    MASKED_WEIGHT,
    MAX_OFFSET,
    OFFSETS,
    OUTER,
    OUTER_EPS,
    PAIR_HEAD_DIM,
    PAIR_HEADS,
    RESIDUES,
    ROWS,
    TOKENS,
    TYPES,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if not model.are_offsets_clipped:
        raise SystemExit("a fault of the PyTorch net")
    return MegaFoldLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, with the bias if there is one."""
    weight, bias = model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias")
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight), Parameter(bias)

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "written":
        return WrittenNorm(weight, bias)
    return nn.LayerNorm((len(weight),), gamma_init=weight, beta_init=bias, epsilon=EPS)


class FeatureEmbedding(nn.Cell):
    """Alignment (ROWS, RESIDUES, ALIGNMENT) and pairs (RESIDUES, RESIDUES, PAIR)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.preprocess_1d = build_dense(model, "embedding.target")
        self.preprocess_msa = build_dense(model, "embedding.alignment")
        self.left_single = build_dense(model, "embedding.left")
        self.right_single = build_dense(model, "embedding.right")
        self.pair_activations = build_dense(model, "embedding.offset")
        self.is_offset_reversed = model.is_offset_reversed

    def construct(self, msa, target, residue_index):
        target_feat = ops.one_hot(target, TYPES, 1.0, 0.0)
        msa_feat = ops.one_hot(msa, TOKENS, 1.0, 0.0)
        msa_act = self.preprocess_1d(target_feat).expand_dims(0) + self.preprocess_msa(msa_feat)
        left, right = self.left_single(target_feat), self.right_single(target_feat)
        pair_act = left.expand_dims(1) + right.expand_dims(0)
        rows, columns = residue_index.expand_dims(1), residue_index.expand_dims(0)
        offset = columns - rows if self.is_offset_reversed else rows - columns
        offset = ops.clamp(offset + MAX_OFFSET, 0, 2 * MAX_OFFSET)
        rel_pos = ops.one_hot(offset, OFFSETS, 1.0, 0.0)
        return msa_act, pair_act + self.pair_activations(rel_pos)


class Attention(nn.Cell):
    """Gated attention along the second axis of (rows, length, channels)."""

    def __init__(self, model: Model, path: str, heads: int, size: int) -> None:
        super().__init__()
        self.query = build_dense(model, f"{path}.q")
        self.key = build_dense(model, f"{path}.k")
        self.value = build_dense(model, f"{path}.v")
        self.gating = build_dense(model, f"{path}.gate")
        self.output = build_dense(model, f"{path}.o")
        self.heads, self.size, self.scale = heads, size, size**-0.5
        self.is_written_out = model.variant == "written"
        self.is_bias_scaled = model.is_bias_scaled

    def split(self, x):
        """Return (rows, heads, length, size)."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size).transpose(0, 2, 1, 3)

    def softmax(self, logits):
        """Return the weights of all keys."""
        if not self.is_written_out:
            return ops.softmax(logits, -1)
        exponentials = ops.exp(logits - ops.stop_gradient(logits.max(-1, keepdims=True)))
        return exponentials / exponentials.sum(-1, keepdims=True)

    def construct(self, x, mask, pair_bias=None):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        mask_bias = ((mask - 1.0) * MASKED).expand_dims(1).expand_dims(2)
        logits = ops.matmul(q, k.swapaxes(2, 3))
        if pair_bias is None:
            logits = logits * self.scale + mask_bias
        elif self.is_bias_scaled:
            logits = (logits + pair_bias) * self.scale + mask_bias
        else:
            logits = logits * self.scale + pair_bias + mask_bias
        weighted = ops.matmul(self.softmax(logits), v).transpose(0, 2, 1, 3)
        weighted = weighted.reshape(x.shape[0], x.shape[1], self.heads * self.size)
        return self.output(weighted * ops.sigmoid(self.gating(x)))


class MSARowAttention(nn.Cell):
    """Attention along the rows of the alignment."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query_norm = build_norm(model, f"{path}.norm")
        self.feat_2d_norm = build_norm(model, f"{path}.pair_norm")
        self.feat_2d = build_dense(model, f"{path}.bias")
        self.attn_mod = Attention(model, path, HEADS, HEAD_DIM)
        self.is_bias_stopped = model.is_bias_stopped

    def construct(self, msa_act, pair_act, mask):
        bias = self.feat_2d(self.feat_2d_norm(pair_act)).transpose(2, 0, 1)
        if self.is_bias_stopped:
            bias = ops.stop_gradient(bias)
        return self.attn_mod(self.query_norm(msa_act), mask, bias)


class MSAColumnAttention(nn.Cell):
    """Attention along the columns of the alignment."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query_norm = build_norm(model, f"{path}.norm")
        self.attn_mod = Attention(model, path, HEADS, HEAD_DIM)

    def construct(self, msa_act, mask):
        msa_act = self.query_norm(msa_act.transpose(1, 0, 2))
        return self.attn_mod(msa_act, mask.transpose(1, 0)).transpose(1, 0, 2)


class Transition(nn.Cell):
    """Two linear layers behind a norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.input_layer_norm = build_norm(model, f"{path}.norm")
        self.transition1 = build_dense(model, f"{path}.up")
        self.transition2 = build_dense(model, f"{path}.down")
        self.relu = nn.ReLU()

    def construct(self, act):
        return self.transition2(self.relu(self.transition1(self.input_layer_norm(act))))


class OuterProductMean(nn.Cell):
    """What the alignment says of each pair."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layer_norm_input = build_norm(model, f"{path}.norm")
        self.left_projection = build_dense(model, f"{path}.left")
        self.right_projection = build_dense(model, f"{path}.right")
        self.output = build_dense(model, f"{path}.out")
        self.is_plain = model.is_outer_mean_plain
        self.scaled_gradient = None
        if model.outer_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.outer_gradient)

    def construct(self, act, mask):
        act = self.layer_norm_input(act)
        left = self.left_projection(act) * mask.expand_dims(-1)
        right = self.right_projection(act) * mask.expand_dims(-1)
        left = left.reshape(ROWS, RESIDUES * OUTER)
        right = right.reshape(ROWS, RESIDUES * OUTER)
        outer = ops.matmul(left.transpose(1, 0), right)
        outer = outer.reshape(RESIDUES, OUTER, RESIDUES, OUTER).transpose(0, 2, 1, 3)
        outer = self.output(outer.reshape(RESIDUES, RESIDUES, OUTER * OUTER))
        if self.is_plain:
            outer = outer / ROWS
        else:
            norm = ops.matmul(mask.transpose(1, 0), mask)
            outer = outer / (norm.expand_dims(-1) + OUTER_EPS)
        return outer if self.scaled_gradient is None else self.scaled_gradient(outer)


class ExchangedGradient(nn.Cell):
    """Pairs as they are; the gradient of a pair is that of the pair in the other order."""

    def construct(self, pair_act):
        return ops.identity(pair_act)

    def bprop(self, pair_act, out, gradient):
        return (gradient.transpose(1, 0, 2),)


class TriangleMultiplication(nn.Cell):
    """Sums over the third residue of products of the other two edges."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layer_norm_input = build_norm(model, f"{path}.norm")
        self.left_projection = build_dense(model, f"{path}.left")
        self.right_projection = build_dense(model, f"{path}.right")
        self.left_gate = build_dense(model, f"{path}.left_gate")
        self.right_gate = build_dense(model, f"{path}.right_gate")
        self.center_layer_norm = build_norm(model, f"{path}.norm_out")
        self.output_projection = build_dense(model, f"{path}.out")
        self.gating_linear = build_dense(model, f"{path}.gate")
        self.is_outgoing = path.endswith("outgoing") or model.is_incoming_outgoing
        self.is_gate_swapped = model.is_triangle_gate_swapped
        self.is_gate_raw = model.is_triangle_gate_raw
        self.exchanged_gradient = None
        if model.is_incoming_gradient_exchanged and not self.is_outgoing:
            self.exchanged_gradient = ExchangedGradient()
        self.is_written_out = model.variant == "written"

    def multiply(self, left, right):
        """Return (RESIDUES, RESIDUES, TRIANGLE)."""
        if self.is_written_out:
            if self.is_outgoing:
                return (left.expand_dims(1) * right.expand_dims(0)).sum(2)
            return (left.expand_dims(2) * right.expand_dims(1)).sum(0)
        left, right = left.transpose(2, 0, 1), right.transpose(2, 0, 1)
        if self.is_outgoing:
            product = ops.matmul(left, right.transpose(0, 2, 1))
        else:
            product = ops.matmul(left.transpose(0, 2, 1), right)
        return product.transpose(1, 2, 0)

    def construct(self, pair_act, mask):
        gated = pair_act
        pair_act, mask = self.layer_norm_input(pair_act), mask.expand_dims(-1)
        if not self.is_gate_raw:
            gated = pair_act
        left, left_gate = self.left_projection(pair_act), self.left_gate(pair_act)
        right, right_gate = self.right_projection(pair_act), self.right_gate(pair_act)
        if self.is_gate_swapped:
            left, left_gate, right, right_gate = left_gate, left, right_gate, right
        left = left * mask * ops.sigmoid(left_gate)
        right = right * mask * ops.sigmoid(right_gate)
        product = self.multiply(left, right)
        if self.exchanged_gradient is not None:
            product = self.exchanged_gradient(product)
        act = self.output_projection(self.center_layer_norm(product))
        return act * ops.sigmoid(self.gating_linear(gated))


class TriangleAttention(nn.Cell):
    """Attention of the pairs of one residue, with a bias of the third edge."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query_norm = build_norm(model, f"{path}.norm")
        self.feat_2d = build_dense(model, f"{path}.bias")
        self.attn_mod = Attention(model, path, PAIR_HEADS, PAIR_HEAD_DIM)
        self.is_per_row = path.endswith("starting")
        self.is_bias_kept = model.is_ending_bias_kept and not self.is_per_row

    def construct(self, pair_act, mask):
        if not self.is_per_row:
            pair_act, mask = pair_act.transpose(1, 0, 2), mask.transpose(1, 0)
        pair_act = self.query_norm(pair_act)
        bias = self.feat_2d(pair_act)
        bias = bias.transpose(2, 1, 0) if self.is_bias_kept else bias.transpose(2, 0, 1)
        pair_act = self.attn_mod(pair_act, mask, bias)
        return pair_act if self.is_per_row else pair_act.transpose(1, 0, 2)


class Evoformer(nn.Cell):
    """Alignment, its outer products, pairs."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.msa_row_attention = MSARowAttention(model, f"{path}.row")
        self.msa_column_attention = MSAColumnAttention(model, f"{path}.column")
        self.msa_trans = Transition(model, f"{path}.alignment_transition")
        self.outer_product = OuterProductMean(model, f"{path}.outer")
        self.triangle_multi_outgoing = TriangleMultiplication(model, f"{path}.outgoing")
        self.triangle_multi_ingoing = TriangleMultiplication(model, f"{path}.incoming")
        self.triangle_attention_start = TriangleAttention(model, f"{path}.starting")
        self.triangle_attention_end = TriangleAttention(model, f"{path}.ending")
        self.pair_trans = Transition(model, f"{path}.pair_transition")

    def construct(self, msa_act, pair_act, msa_mask, column_mask, pair_mask):
        msa_act = msa_act + self.msa_row_attention(msa_act, pair_act, msa_mask)
        msa_act = msa_act + self.msa_column_attention(msa_act, column_mask)
        msa_act = msa_act + self.msa_trans(msa_act)
        pair_act = pair_act + self.outer_product(msa_act, msa_mask)
        pair_act = pair_act + self.triangle_multi_outgoing(pair_act, pair_mask)
        pair_act = pair_act + self.triangle_multi_ingoing(pair_act, pair_mask)
        pair_act = pair_act + self.triangle_attention_start(pair_act, pair_mask)
        pair_act = pair_act + self.triangle_attention_end(pair_act, pair_mask)
        return msa_act, pair_act + self.pair_trans(pair_act)


class MultimerEvoformer(Evoformer):
    """The same with the outer product mean at the beginning."""

    def construct(self, msa_act, pair_act, msa_mask, column_mask, pair_mask):
        pair_act = pair_act + self.outer_product(msa_act, msa_mask)
        msa_act = msa_act + self.msa_row_attention(msa_act, pair_act, msa_mask)
        msa_act = msa_act + self.msa_column_attention(msa_act, column_mask)
        msa_act = msa_act + self.msa_trans(msa_act)
        pair_act = pair_act + self.triangle_multi_outgoing(pair_act, pair_mask)
        pair_act = pair_act + self.triangle_multi_ingoing(pair_act, pair_mask)
        pair_act = pair_act + self.triangle_attention_start(pair_act, pair_mask)
        pair_act = pair_act + self.triangle_attention_end(pair_act, pair_mask)
        return msa_act, pair_act + self.pair_trans(pair_act)


class DistogramHead(nn.Cell):
    """Logits of the distances, the same for both orders of a pair."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.half_logits = build_dense(model, "distogram")
        self.is_symmetric = model.is_distogram_symmetric

    def construct(self, pair_act):
        half_logits = self.half_logits(pair_act)
        if not self.is_symmetric:
            return half_logits
        return half_logits + half_logits.transpose(1, 0, 2)


class MegaFoldLoss(nn.Cell):
    """Distogram and masked residues."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.embedding = FeatureEmbedding(model)
        block_class = MultimerEvoformer if model.is_outer_first else Evoformer
        self.msa_stack = nn.CellList([block_class(model, n) for n in range(BLOCKS)])
        self.module_distogram = DistogramHead(model)
        self.module_mask = build_dense(model, "masked")
        self.sq_breaks = Tensor(model.breaks())
        self.are_gaps_masked = model.are_gaps_masked

    def softmax_cross_entropy(self, logits, labels, depth, mask):
        """Return the mean where the mask is one."""
        targets = ops.one_hot(labels, depth, 1.0, 0.0)
        errors = -(targets * ops.log_softmax(logits, -1)).sum(-1)
        return (errors * mask).sum() / (LOSS_EPS + mask.sum())

    def construct(
        self, msa, true_msa, target, residue_index, pseudo_beta, seq_mask, msa_mask, bert_mask
    ):
        pair_mask = seq_mask.expand_dims(1) * seq_mask.expand_dims(0)
        column_mask = msa_mask
        if not self.are_gaps_masked:
            column_mask = ops.tile(seq_mask.expand_dims(0), (ROWS, 1))
        msa_act, pair_act = self.embedding(msa, target, residue_index)
        for block in self.msa_stack:
            msa_act, pair_act = block(msa_act, pair_act, msa_mask, column_mask, pair_mask)
        differences = pseudo_beta.expand_dims(1) - pseudo_beta.expand_dims(0)
        dist2 = ops.square(differences).sum(-1, keepdims=True)
        true_bins = ops.greater(dist2, self.sq_breaks).astype(ms.int32).sum(-1)
        distogram_loss = self.softmax_cross_entropy(
            self.module_distogram(pair_act), true_bins, BINS, pair_mask
        )
        masked_loss = self.softmax_cross_entropy(
            self.module_mask(msa_act), true_msa, TOKENS, bert_mask
        )
        return distogram_loss * DISTOGRAM_WEIGHT + masked_loss * MASKED_WEIGHT
