"""The vision transformer in MindSpore.

Variant 'decomposition': layer norm, softmax and loss written out.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from families.vit.architecture import EPS, Model


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
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
        self.query = build_linear(model, f"{path}.q")
        self.key = build_linear(model, f"{path}.k")
        has_value_bias = not is_last or model.has_value_bias
        self.value = build_linear(model, f"{path}.v", has_bias=has_value_bias)
        self.projection = build_linear(model, f"{path}.o")

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        if self.is_softmax_half:
            scores = scores.astype(ms.float16)
        if self.is_softmax_written_out:
            exponentials = ops.exp(scores - ops.amax(scores, -1, True))
            probabilities = exponentials / exponentials.sum(-1, keepdims=True)
        else:
            probabilities = ops.softmax(scores, -1)
        y = ops.matmul(probabilities.astype(v.dtype), v)
        return self.projection(y.transpose(0, 2, 1, 3).reshape(x.shape))


class FeedForward(nn.Cell):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == model.n_layers - 1
        self.dense1 = build_linear(model, f"layers.{n}.mlp.up")
        self.dense2 = build_linear(model, f"layers.{n}.mlp.down")
        is_tanh = is_last and model.activation == "gelu_tanh"
        self.approximation = "tanh" if is_tanh else "none"

    def construct(self, x):
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

    def construct(self, x):
        attended = self.attention(self.layernorm1(x))
        if self.is_attention_detached:
            attended = ops.stop_gradient(attended)
        x = x + attended
        y = self.layernorm2(x)
        return (y if self.is_residual_normed else x) + self.feed_forward(y)


class ViT(nn.Cell):
    """Logits of images, (batch, classes)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
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
        self.norm = build_norm(model, "norm")
        self.head = build_linear(model, "head")
        self.is_mean_pooled = model.pooling == "mean"

    def construct(self, images):
        x = self.patch_embedding(images)
        batch, hidden, height, width = x.shape
        x = x.reshape(batch, hidden, height * width).transpose(0, 2, 1)
        class_tokens = ops.tile(self.cls_token, (batch, 1, 1))
        x = ops.concat((class_tokens, x), 1) + self.pos_embedding
        for layer in self.layers:
            x = layer(x)
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
        self.one_hot = nn.OneHot(depth=model.classes)

    def construct(self, images, labels):
        logits = self.network(images)
        if self.is_written_out:
            smoothed = self.one_hot(labels) * (1 - self.smoothing) + self.smoothing / self.classes
            return -(smoothed * ops.log_softmax(logits, -1)).sum(-1).mean()
        return ops.cross_entropy(logits, labels, label_smoothing=self.smoothing)
