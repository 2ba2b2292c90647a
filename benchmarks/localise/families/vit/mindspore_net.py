"""The vision transformer in MindSpore.

Variant 'decomposition': layer norm, softmax and loss written out. Variant 'unfolded': patches by
reshaping and a linear layer, one projection for q, k and v.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.vit.architecture import EPS, Model


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if model.branch_scale != 1 or not model.has_class_position:
        raise SystemExit("branch_scale and has_class_position are knobs of the PyTorch net")
    return ClassificationLoss(model)


def build_linear(model: Model, path: str, *, has_bias: bool = True) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=weight,
        bias_init=bias if has_bias else None,
        has_bias=has_bias,
    )


def build_norm(model: Model, path: str, eps: float = EPS) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "decomposition":
        return LayerNorm(weight, bias, eps)
    return nn.LayerNorm((model.hidden,), gamma_init=weight, beta_init=bias, epsilon=eps)


class LayerNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight), Parameter(bias)
        self.eps = eps

    def construct(self, x):
        centered = x - ops.mean(x, -1, True)
        variance = ops.mean(ops.square(centered), -1, True)
        return centered / ops.sqrt(variance + self.eps) * self.gamma + self.beta


class SelfAttention(nn.Cell):
    """Attention of all tokens to all tokens."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == model.n_layers - 1
        path = f"layers.{n}.attention"
        self.heads, self.head_dim = model.heads, model.head_dim
        self.scale = model.head_dim**-0.5 * (model.attention_scale if is_last else 1.0)
        self.is_softmax_half = is_last and model.is_softmax_half
        self.is_softmax_written_out = model.variant == "decomposition"
        self.softmax_axis = model.softmax_axis if is_last else -1
        self.is_split_by_head = is_last and model.is_split_by_head
        self.is_fused = model.variant == "unfolded" or self.is_split_by_head
        if self.is_fused:
            weight, bias = (
                Tensor(np.concatenate([model.weights[f"{path}.{name}.{kind}"] for name in "qkv"]))
                for kind in ("weight", "bias")
            )
            self.qkv = nn.Dense(model.hidden, 3 * model.hidden, weight_init=weight, bias_init=bias)
        else:
            self.query = build_linear(model, f"{path}.q")
            self.key = build_linear(model, f"{path}.k")
            has_value_bias = not is_last or model.has_value_bias
            self.value = build_linear(model, f"{path}.v", has_bias=has_value_bias)
        self.projection = build_linear(model, f"{path}.o")
        self.is_bias_added_again = is_last and model.n_output_biases == 2

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(0, 2, 1, 3)

    def project(self, x):
        """Return q, k and v, (batch, heads, tokens, head_dim) each."""
        if self.is_split_by_head:
            qkv = self.qkv(x).reshape(x.shape[0], x.shape[1], self.heads, 3, self.head_dim)
            qkv = qkv.transpose(3, 0, 2, 1, 4)
            return qkv[0], qkv[1], qkv[2]
        if self.is_fused:
            q, k, v = ops.chunk(self.qkv(x), 3, axis=-1)
            return self.split(q), self.split(k), self.split(v)
        return self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))

    def construct(self, x):
        q, k, v = self.project(x)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        if self.is_softmax_half:
            scores = scores.astype(ms.float16)
        if self.is_softmax_written_out:
            exponentials = ops.exp(scores - ops.amax(scores, -1, True))
            probabilities = exponentials / exponentials.sum(-1, keepdims=True)
        else:
            probabilities = ops.softmax(scores, self.softmax_axis)
        y = ops.matmul(probabilities.astype(v.dtype), v)
        y = self.projection(y.transpose(0, 2, 1, 3).reshape(x.shape))
        return y + self.projection.bias if self.is_bias_added_again else y


class FeedForward(nn.Cell):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == model.n_layers - 1
        self.dense1 = build_linear(model, f"layers.{n}.mlp.up")
        self.dense2 = build_linear(model, f"layers.{n}.mlp.down")
        is_tanh = is_last and model.activation == "gelu_tanh"
        self.approximation = "tanh" if is_tanh else "none"
        self.is_quick = is_last and model.activation == "quick_gelu"

    def construct(self, x):
        if self.is_quick:
            x = self.dense1(x)
            return self.dense2(x * ops.sigmoid(1.702 * x))
        return self.dense2(ops.gelu(self.dense1(x), approximate=self.approximation))


class TransformerLayer(nn.Cell):
    """Attention and feed-forward, each after a norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == model.n_layers - 1
        self.layernorm1 = build_norm(model, f"layers.{n}.norm1")
        self.attention = SelfAttention(model, n)
        eps = model.norm_eps if is_last else EPS
        self.layernorm2 = build_norm(model, f"layers.{n}.norm2", eps)
        self.feed_forward = FeedForward(model, n)
        self.is_attention_detached = is_last and model.is_attention_detached
        self.is_residual_normed = is_last and model.residual == "after"
        self.is_norm_shared = is_last and model.is_norm_shared
        self.is_norm_late = is_last and model.is_norm_late

    def construct(self, x):
        if self.is_norm_late:
            x = self.layernorm1(x + self.attention(x))
            return self.layernorm2(x + self.feed_forward(x))
        attended = self.attention(self.layernorm1(x))
        if self.is_attention_detached:
            attended = ops.stop_gradient(attended)
        x = x + attended
        y = self.layernorm1(x) if self.is_norm_shared else self.layernorm2(x)
        return (y if self.is_residual_normed else x) + self.feed_forward(y)


class PatchEmbedding(nn.Cell):
    """Patches (batch, patches, hidden) of images, by a linear layer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight = model.weights["patch.weight"].reshape(model.hidden, -1)
        bias = Tensor(model.weights["patch.bias"])
        self.patch = model.patch
        self.projection = nn.Dense(
            weight.shape[1], model.hidden, weight_init=Tensor(weight), bias_init=bias
        )

    def construct(self, images):
        batch, channels, height, width = images.shape
        rows, columns = height // self.patch, width // self.patch
        x = images.reshape(batch, channels, rows, self.patch, columns, self.patch)
        x = x.transpose(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, -1)
        return self.projection(x)


class ViT(nn.Cell):
    """Logits of images, (batch, classes)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_unfolded = model.variant == "unfolded"
        if self.is_unfolded:
            self.patch_embedding = PatchEmbedding(model)
        else:
            self.patch_embedding = nn.Conv2d(
                3,
                model.hidden,
                model.patch,
                model.patch,
                pad_mode="valid",
                has_bias=True,
                weight_init=Tensor(model.weights["patch.weight"]),
                bias_init=Tensor(model.weights["patch.bias"]),
            )
        self.cls_token = Parameter(Tensor(model.weights["class_token.weight"]))
        self.pos_embedding = Parameter(Tensor(model.weights["positions.weight"]))
        layers = [TransformerLayer(model, n) for n in range(model.n_layers)]
        self.layers = nn.CellList(layers)
        self.dropout = nn.Dropout(p=model.dropout) if model.dropout else None
        self.norm = build_norm(model, "norm") if model.has_final_norm else None
        self.head = build_linear(model, "head")
        self.is_mean_pooled = model.pooling == "mean"
        self.are_patches_by_column = model.are_patches_by_column
        self.embedding_gradient = model.embedding_gradient

    def construct(self, images):
        batch = images.shape[0]
        x = self.patch_embedding(images)
        if self.are_patches_by_column:
            x = x.swapaxes(2, 3)
        if not self.is_unfolded:
            x = x.reshape(batch, x.shape[1], -1).transpose(0, 2, 1)
        class_tokens = ops.tile(self.cls_token, (batch, 1, 1))
        x = ops.concat((class_tokens, x), 1) + self.pos_embedding
        share = self.embedding_gradient
        if share != 1:
            x = x * share + ops.stop_gradient(x) * (1 - share)
        if self.dropout is not None:
            x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        if self.norm is not None:
            x = self.norm(x)
        pooled = ops.mean(x, 1) if self.is_mean_pooled else x[:, 0]
        return self.head(pooled)


class ClassificationLoss(nn.Cell):
    """Smoothed cross entropy of the classes."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = ViT(model)
        self.smoothing, self.classes = model.label_smoothing, model.classes
        self.is_written_out = model.variant == "decomposition"
        self.reduction = model.loss_reduction
        self.one_hot = nn.OneHot(depth=model.classes)

    def construct(self, images, labels):
        logits = self.network(images)
        if self.is_written_out:
            smoothed = self.one_hot(labels) * (1 - self.smoothing) + self.smoothing / self.classes
            return -(smoothed * ops.log_softmax(logits, -1)).sum(-1).mean()
        return ops.cross_entropy(
            logits, labels, reduction=self.reduction, label_smoothing=self.smoothing
        )
