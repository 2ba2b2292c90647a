"""The vision transformer in PyTorch, with the module names of timm and its fused projection.

Variant 'names': Hugging Face's modules, which have q, k and v apart. Variant 'decomposition':
patches by unfolding, attention written out. Variant 'einsum': separate projections, scaled queries
and keys, layer norm written out, classes summed from log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.naming import rename
from torch import Tensor, nn

from families.vit.architecture import EPS, Model

TIMM_NAMES: Mapping[str, str] = {"projection": "patch_embed.proj", "o": "proj"}
EINSUM_NAMES: Mapping[str, str] = {
    "projection": "to_patch_embedding.1",
    "blocks": "transformer.layers",
    "q": "to_q",
    "k": "to_k",
    "v": "to_v",
    "o": "to_out",
    "fc1": "net.0",
    "fc2": "net.3",
    "head": "mlp_head",
}
HUGGING_FACE_NAMES: Mapping[str, str] = {
    "projection": "vit.embeddings.patch_embeddings.projection",
    "blocks": "vit.encoder.layer",
    "norm1": "layernorm_before",
    "attn": "attention",
    "q": "attention.query",
    "k": "attention.key",
    "v": "attention.value",
    "o": "output.dense",
    "norm2": "layernorm_after",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "norm": "vit.layernorm",
    "head": "classifier",
}


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if model.n_output_biases != 1 or model.are_patches_by_column:
        raise SystemExit("n_output_biases and are_patches_by_column are knobs of the MindSpore net")
    net = ViT(model)
    names = {"names": HUGGING_FACE_NAMES, "einsum": EINSUM_NAMES}
    rename(net, names.get(model.variant, TIMM_NAMES))
    return net


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def build_linear(weight: np.ndarray, bias: np.ndarray | None) -> nn.Linear:
    """Return a linear layer."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = copy_parameter(weight)
    if bias is not None:
        linear.bias = copy_parameter(bias)
    return linear


def load_linear(model: Model, path: str, *, has_bias: bool = True) -> nn.Linear:
    """Return the linear layer at ``path``."""
    bias = model.weights[f"{path}.bias"] if has_bias else None
    return build_linear(model.weights[f"{path}.weight"], bias)


class WrittenLayerNorm(nn.LayerNorm):
    """Layer norm in plain arithmetic."""

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


def load_norm(model: Model, path: str, eps: float = EPS) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    norm_class = WrittenLayerNorm if model.variant == "einsum" else nn.LayerNorm
    norm = norm_class(model.hidden, eps=eps)
    norm.weight = copy_parameter(model.weights[f"{path}.weight"])
    norm.bias = copy_parameter(model.weights[f"{path}.bias"])
    return norm


class Attention(nn.Module):
    """Attention of all tokens to all tokens."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == model.n_layers - 1
        path = f"layers.{n}.attention"
        self.heads, self.head_dim = model.heads, model.head_dim
        self.scale = model.head_dim**-0.5 * (model.attention_scale if is_last else 1.0)
        self.is_softmax_half = is_last and model.is_softmax_half
        self.softmax_axis = model.softmax_axis if is_last else -1
        is_softmax_wrong = self.is_softmax_half or self.softmax_axis != -1
        self.is_written_out = model.variant == "decomposition" or is_softmax_wrong
        self.is_fused = model.variant not in ("names", "einsum")
        self.is_einsum = model.variant == "einsum"
        self.is_split_by_head = is_last and model.is_split_by_head
        has_value_bias = not is_last or model.has_value_bias
        if self.is_fused:
            weight, bias = (
                np.concatenate([model.weights[f"{path}.{name}.{kind}"] for name in "qkv"])
                for kind in ("weight", "bias")
            )
            if not has_value_bias:
                bias[2 * model.hidden :] = 0
            self.qkv = build_linear(weight, bias)
        else:
            self.q = load_linear(model, f"{path}.q")
            self.k = load_linear(model, f"{path}.k")
            self.v = load_linear(model, f"{path}.v", has_bias=has_value_bias)
        self.o = load_linear(model, f"{path}.o")

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        if self.is_einsum:
            return self.attend_by_einsum(x)
        if self.is_fused:
            if self.is_split_by_head:
                qkv = self.qkv(x).reshape(batch, tokens, self.heads, 3, self.head_dim)
                q, k, v = qkv.permute(3, 0, 2, 1, 4).unbind(0)
            else:
                qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, self.head_dim)
                q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (
                project(x).view(batch, tokens, self.heads, self.head_dim).transpose(1, 2)
                for project in (self.q, self.k, self.v)
            )
        return self.o(self.attend(q, k, v).transpose(1, 2).reshape(batch, tokens, hidden))

    def attend_by_einsum(self, x: Tensor) -> Tensor:
        """Return the attention's output; queries and keys have the root of the scale each."""
        q, k, v = (
            project(x).unflatten(-1, (self.heads, self.head_dim))
            for project in (self.q, self.k, self.v)
        )
        root = self.scale**0.5
        scores = torch.einsum("bqhd,bkhd->bhqk", q * root, k * root)
        y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)
        return self.o(y.flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.is_written_out:
            return F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        scores = q @ k.transpose(-2, -1) * self.scale
        if self.is_softmax_half:
            return scores.half().softmax(dim=-1).float() @ v
        return scores.softmax(dim=self.softmax_axis) @ v


class Mlp(nn.Module):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == model.n_layers - 1
        self.fc1 = load_linear(model, f"layers.{n}.mlp.up")
        self.fc2 = load_linear(model, f"layers.{n}.mlp.down")
        is_tanh = is_last and model.activation == "gelu_tanh"
        self.approximation = "tanh" if is_tanh else "none"
        self.is_quick = is_last and model.activation == "quick_gelu"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_quick:
            x = self.fc1(x)
            return self.fc2(x * torch.sigmoid(1.702 * x))
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximation))


class Block(nn.Module):
    """Attention and mlp, each after a norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == model.n_layers - 1
        self.norm1 = load_norm(model, f"layers.{n}.norm1")
        self.attn = Attention(model, n)
        self.norm2 = load_norm(model, f"layers.{n}.norm2", model.norm_eps if is_last else EPS)
        self.mlp = Mlp(model, n)
        self.is_attention_detached = is_last and model.is_attention_detached
        self.is_residual_normed = is_last and model.residual == "after"
        self.is_norm_shared = is_last and model.is_norm_shared
        self.branch_scale = model.branch_scale if is_last else 1.0
        self.is_norm_late = is_last and model.is_norm_late

    def forward(self, x: Tensor) -> Tensor:
        if self.is_norm_late:
            x = self.norm1(x + self.attn(x))
            return self.norm2(x + self.mlp(x))
        attended = self.attn(self.norm1(x))
        if self.is_attention_detached:
            attended = attended.detach()
        if self.branch_scale != 1:
            attended = attended * self.branch_scale
        x = x + attended
        y = self.norm1(x) if self.is_norm_shared else self.norm2(x)
        return (y if self.is_residual_normed else x) + self.mlp(y)


class ViT(nn.Module):
    """Smoothed cross entropy of the classes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        kernel = model.weights["patch.weight"]
        self.projection = nn.Conv2d(3, model.hidden, model.patch, stride=model.patch)
        self.projection.weight = copy_parameter(kernel)
        self.projection.bias = copy_parameter(model.weights["patch.bias"])
        self.cls_token = copy_parameter(model.weights["class_token.weight"])
        self.pos_embed = copy_parameter(model.weights["positions.weight"])
        self.blocks = nn.ModuleList(Block(model, n) for n in range(model.n_layers))
        self.norm = load_norm(model, "norm") if model.has_final_norm else nn.Identity()
        self.head = load_linear(model, "head")

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.embed_patches(images)
        class_tokens = self.cls_token.expand(len(images), -1, -1)
        if self.model.has_class_position:
            x = torch.cat([class_tokens, x], dim=1) + self.pos_embed
        else:
            x = torch.cat([class_tokens, x + self.pos_embed[:, 1:]], dim=1)
        share = self.model.embedding_gradient
        if share != 1:
            x = x * share + x.detach() * (1 - share)
        if self.model.dropout:
            x = F.dropout(x, self.model.dropout)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        pooled = x.mean(dim=1) if self.model.pooling == "mean" else x[:, 0]
        logits, smoothing = self.head(pooled), self.model.label_smoothing
        if self.model.variant == "einsum":
            log_probabilities = F.log_softmax(logits, dim=-1)
            smoothed = F.one_hot(labels, self.model.classes) * (1 - smoothing)
            smoothed = smoothed + smoothing / self.model.classes
            return -torch.einsum("bc,bc->b", smoothed, log_probabilities).mean()
        reduction = self.model.loss_reduction
        return F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=smoothing)

    def embed_patches(self, images: Tensor) -> Tensor:
        if self.model.variant == "decomposition":
            patch = self.model.patch
            patches = F.unfold(images, patch, stride=patch).transpose(1, 2)
            return F.linear(patches, self.projection.weight.flatten(1), self.projection.bias)
        return self.projection(images).flatten(2).transpose(1, 2)
