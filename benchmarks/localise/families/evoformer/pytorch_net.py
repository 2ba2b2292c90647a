"""The Evoformer in PyTorch, with the modules of OpenFold.

Variant 'fused': the framework's attention, one projection for both sides of a triangle, products
by matmul.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.evoformer.architecture import (
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
    OUTER_EPS,
    PAIR_HEAD_DIM,
    PAIR_HEADS,
    ROWS,
    TOKENS,
    TRIANGLE,
    TYPES,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if model.is_outer_first:
        raise SystemExit("a fault of the MindSpore net")
    return AlphaFoldLoss(model)


def copy_tensor(values: np.ndarray) -> Tensor:
    """Return a tensor with its own memory."""
    return torch.from_numpy(np.array(values))


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return the linear layer at ``paths``, the rows of one behind those of the other."""
    weight = np.concatenate([model.weights[f"{path}.weight"] for path in paths])
    has_bias = f"{paths[0]}.bias" in model.weights
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias)
    linear.weight.data.copy_(copy_tensor(weight))
    if has_bias:
        bias = np.concatenate([model.weights[f"{path}.bias"] for path in paths])
        linear.bias.data.copy_(copy_tensor(bias))
    return linear


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    weight = model.weights[f"{path}.weight"]
    norm = nn.LayerNorm(len(weight), eps=EPS)
    norm.weight.data.copy_(copy_tensor(weight))
    norm.bias.data.copy_(copy_tensor(model.weights[f"{path}.bias"]))
    return norm


class ExchangedGradient(torch.autograd.Function):
    """Pairs as they are; the gradient of a pair is that of the pair in the other order."""

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return gradient.transpose(0, 1)


class InputEmbedder(nn.Module):
    """Alignment (ROWS, RESIDUES, ALIGNMENT) and pairs (RESIDUES, RESIDUES, PAIR)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.linear_tf_z_i = load_linear(model, "embedding.left")
        self.linear_tf_z_j = load_linear(model, "embedding.right")
        self.linear_tf_m = load_linear(model, "embedding.target")
        self.linear_msa_m = load_linear(model, "embedding.alignment")
        self.linear_relpos = load_linear(model, "embedding.offset")
        self.is_offset_reversed = model.is_offset_reversed
        self.are_offsets_clipped = model.are_offsets_clipped

    def relpos(self, ri: Tensor) -> Tensor:
        """Return the embedded offsets of all pairs."""
        d = ri[:, None] - ri[None, :]
        if self.is_offset_reversed:
            d = ri[None, :] - ri[:, None]
        d = d + MAX_OFFSET
        if not self.are_offsets_clipped:
            return self.linear_relpos((d[..., None] == torch.arange(OFFSETS)).float())
        d = torch.clamp(d, 0, 2 * MAX_OFFSET)
        return self.linear_relpos(F.one_hot(d, OFFSETS).float())

    def forward(self, tokens: Tensor, types: Tensor, ri: Tensor) -> tuple[Tensor, Tensor]:
        tf = F.one_hot(types, TYPES).float()
        pair_emb = self.linear_tf_z_i(tf)[:, None] + self.linear_tf_z_j(tf)[None, :]
        pair_emb = pair_emb + self.relpos(ri)
        msa_emb = self.linear_msa_m(F.one_hot(tokens, TOKENS).float()) + self.linear_tf_m(tf)
        return msa_emb, pair_emb


class Attention(nn.Module):
    """Gated attention along the second axis of (rows, length, channels)."""

    def __init__(self, model: Model, path: str, heads: int, size: int) -> None:
        super().__init__()
        self.linear_q, self.linear_k, self.linear_v, self.linear_g, self.linear_o = (
            load_linear(model, f"{path}.{name}") for name in ("q", "k", "v", "gate", "o")
        )
        self.heads, self.size = heads, size
        self.is_fused, self.is_bias_scaled = model.variant == "fused", model.is_bias_scaled

    def forward(self, x: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
        rows, length, _ = x.shape
        shape = (rows, length, self.heads, self.size)
        q = self.linear_q(x).view(shape).transpose(-2, -3)
        k = self.linear_k(x).view(shape).transpose(-2, -3)
        v = self.linear_v(x).view(shape).transpose(-2, -3)
        mask_bias = (MASKED * (mask - 1))[:, None, None, :]
        if self.is_fused:
            bias = mask_bias if bias is None else mask_bias + bias
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            if self.is_bias_scaled and bias is not None:
                a = (torch.matmul(q, k.transpose(-1, -2)) + bias) / self.size**0.5
                a = a + mask_bias
            else:
                a = torch.matmul(q / self.size**0.5, k.transpose(-1, -2)) + mask_bias
                if bias is not None:
                    a = a + bias
            o = torch.matmul(F.softmax(a, dim=-1), v)
        o = o.transpose(-2, -3)
        g = torch.sigmoid(self.linear_g(x)).view(shape)
        return self.linear_o((o * g).reshape(rows, length, -1))


class MSARowAttentionWithPairBias(nn.Module):
    """Attention along the rows of the alignment."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layer_norm_m = load_norm(model, f"{path}.norm")
        self.layer_norm_z = load_norm(model, f"{path}.pair_norm")
        self.linear_z = load_linear(model, f"{path}.bias")
        self.mha = Attention(model, path, HEADS, HEAD_DIM)
        self.is_bias_stopped = model.is_bias_stopped

    def forward(self, m: Tensor, z: Tensor, mask: Tensor) -> Tensor:
        bias = self.linear_z(self.layer_norm_z(z)).permute(2, 0, 1).unsqueeze(0)
        if self.is_bias_stopped:
            bias = bias.detach()
        return self.mha(self.layer_norm_m(m), mask, bias)


class MSAColumnAttention(nn.Module):
    """Attention along the columns of the alignment."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layer_norm_m = load_norm(model, f"{path}.norm")
        self.mha = Attention(model, path, HEADS, HEAD_DIM)

    def forward(self, m: Tensor, mask: Tensor) -> Tensor:
        m = self.layer_norm_m(m.transpose(-2, -3))
        return self.mha(m, mask.transpose(-1, -2)).transpose(-2, -3)


class Transition(nn.Module):
    """Two linear layers behind a norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layer_norm = load_norm(model, f"{path}.norm")
        self.linear_1 = load_linear(model, f"{path}.up")
        self.linear_2 = load_linear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.relu(self.linear_1(self.layer_norm(x))))


class OuterProductMean(nn.Module):
    """What the alignment says of each pair."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layer_norm = load_norm(model, f"{path}.norm")
        self.linear_1 = load_linear(model, f"{path}.left")
        self.linear_2 = load_linear(model, f"{path}.right")
        self.linear_out = load_linear(model, f"{path}.out")
        self.is_plain, self.gradient = model.is_outer_mean_plain, model.outer_gradient

    def forward(self, m: Tensor, mask: Tensor) -> Tensor:
        ln = self.layer_norm(m)
        a = self.linear_1(ln) * mask[..., None]
        b = self.linear_2(ln) * mask[..., None]
        outer = self.linear_out(torch.einsum("sic,sjd->ijcd", a, b).flatten(-2))
        if self.is_plain:
            outer = outer / ROWS
        else:
            norm = torch.einsum("si,sj->ij", mask, mask)
            outer = outer / (norm[..., None] + OUTER_EPS)
        return outer if self.gradient == 1 else scaled_gradient(outer, self.gradient)


class TriangleMultiplicativeUpdate(nn.Module):
    """Sums over the third residue of products of the other two edges."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_fused = model.variant == "fused"
        self.layer_norm_in = load_norm(model, f"{path}.norm")
        if self.is_fused:
            self.linear_ab_p = load_linear(model, f"{path}.left", f"{path}.right")
            self.linear_ab_g = load_linear(model, f"{path}.left_gate", f"{path}.right_gate")
        else:
            self.linear_a_p = load_linear(model, f"{path}.left")
            self.linear_a_g = load_linear(model, f"{path}.left_gate")
            self.linear_b_p = load_linear(model, f"{path}.right")
            self.linear_b_g = load_linear(model, f"{path}.right_gate")
        self.linear_g = load_linear(model, f"{path}.gate")
        self.layer_norm_out = load_norm(model, f"{path}.norm_out")
        self.linear_z = load_linear(model, f"{path}.out")
        self.is_outgoing = path.endswith("outgoing") or model.is_incoming_outgoing
        self.is_gate_swapped = model.is_triangle_gate_swapped
        self.is_gate_raw = model.is_triangle_gate_raw
        self.is_gradient_exchanged = model.is_incoming_gradient_exchanged and not self.is_outgoing

    def gate(self, projected: Tensor, gate: Tensor) -> Tensor:
        """Return the gated projection."""
        if self.is_gate_swapped:
            projected, gate = gate, projected
        return projected * torch.sigmoid(gate)

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        gated = z
        z = self.layer_norm_in(z)
        if not self.is_gate_raw:
            gated = z
        mask = mask[..., None]
        if self.is_fused:
            ab = mask * torch.sigmoid(self.linear_ab_g(z)) * self.linear_ab_p(z)
            a, b = (part.permute(2, 0, 1) for part in ab.split(TRIANGLE, dim=-1))
            x = a @ b.mT if self.is_outgoing else a.mT @ b
            x = x.permute(1, 2, 0)
        else:
            a = self.gate(self.linear_a_p(z), self.linear_a_g(z)) * mask
            b = self.gate(self.linear_b_p(z), self.linear_b_g(z)) * mask
            equation = "ikc,jkc->ijc" if self.is_outgoing else "kic,kjc->ijc"
            x = torch.einsum(equation, a, b)
        if self.is_gradient_exchanged:
            x = ExchangedGradient.apply(x)
        x = self.linear_z(self.layer_norm_out(x))
        return x * torch.sigmoid(self.linear_g(gated))


class TriangleAttention(nn.Module):
    """Attention of the pairs of one residue, with a bias of the third edge."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_starting = path.endswith("starting")
        self.layer_norm = load_norm(model, f"{path}.norm")
        self.linear = load_linear(model, f"{path}.bias")
        self.mha = Attention(model, path, PAIR_HEADS, PAIR_HEAD_DIM)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not self.is_starting:
            x, mask = x.transpose(-2, -3), mask.transpose(-1, -2)
        x = self.layer_norm(x)
        x = self.mha(x, mask, self.linear(x).permute(2, 0, 1).unsqueeze(0))
        return x if self.is_starting else x.transpose(-2, -3)


class EvoformerBlock(nn.Module):
    """Alignment, its outer products, pairs."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.msa_att_row = MSARowAttentionWithPairBias(model, f"{path}.row")
        self.msa_att_col = MSAColumnAttention(model, f"{path}.column")
        self.msa_transition = Transition(model, f"{path}.alignment_transition")
        self.outer_product_mean = OuterProductMean(model, f"{path}.outer")
        self.tri_mul_out = TriangleMultiplicativeUpdate(model, f"{path}.outgoing")
        self.tri_mul_in = TriangleMultiplicativeUpdate(model, f"{path}.incoming")
        self.tri_att_start = TriangleAttention(model, f"{path}.starting")
        self.tri_att_end = TriangleAttention(model, f"{path}.ending")
        self.pair_transition = Transition(model, f"{path}.pair_transition")

    def forward(
        self, m: Tensor, z: Tensor, msa_mask: Tensor, column_mask: Tensor, pair_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        m = m + self.msa_att_row(m, z, msa_mask)
        m = m + self.msa_att_col(m, column_mask)
        m = m + self.msa_transition(m)
        z = z + self.outer_product_mean(m, msa_mask)
        z = z + self.tri_mul_out(z, pair_mask)
        z = z + self.tri_mul_in(z, pair_mask)
        z = z + self.tri_att_start(z, pair_mask)
        z = z + self.tri_att_end(z, pair_mask)
        return m, z + self.pair_transition(z)


class DistogramHead(nn.Module):
    """Logits of the distances, the same for both orders of a pair."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.linear = load_linear(model, "distogram")
        self.is_symmetric = model.is_distogram_symmetric

    def forward(self, z: Tensor) -> Tensor:
        logits = self.linear(z)
        return logits + logits.transpose(-2, -3) if self.is_symmetric else logits


class AlphaFoldLoss(nn.Module):
    """Distogram and masked residues."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.input_embedder = InputEmbedder(model)
        self.evoformer = nn.ModuleList(EvoformerBlock(model, n) for n in range(BLOCKS))
        self.distogram = DistogramHead(model)
        self.masked_msa = load_linear(model, "masked")
        self.register_buffer("boundaries", copy_tensor(model.breaks()))
        self.are_gaps_masked = model.are_gaps_masked
        self.are_all_tokens_predicted = model.are_all_tokens_predicted

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor,
        types: Tensor,
        residue_index: Tensor,
        pseudo_beta: Tensor,
        seq_mask: Tensor,
        msa_mask: Tensor,
        bert_mask: Tensor,
    ) -> Tensor:
        pair_mask = seq_mask[:, None] * seq_mask[None, :]
        column_mask = msa_mask if self.are_gaps_masked else seq_mask.expand(ROWS, -1)
        m, z = self.input_embedder(tokens, types, residue_index)
        for block in self.evoformer:
            m, z = block(m, z, msa_mask, column_mask, pair_mask)
        differences = pseudo_beta[:, None, :] - pseudo_beta[None, :, :]
        dists = torch.sum(differences**2, dim=-1, keepdim=True)
        true_bins = torch.sum(dists > self.boundaries, dim=-1)
        distogram_loss = self.average(self.distogram(z), true_bins, pair_mask)
        predicted_mask = msa_mask if self.are_all_tokens_predicted else bert_mask
        masked_loss = self.average(self.masked_msa(m), labels, predicted_mask)
        return DISTOGRAM_WEIGHT * distogram_loss + MASKED_WEIGHT * masked_loss

    def average(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Return the mean cross entropy where the mask is one."""
        errors = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return torch.sum(errors * mask.flatten()) / (torch.sum(mask) + LOSS_EPS)
