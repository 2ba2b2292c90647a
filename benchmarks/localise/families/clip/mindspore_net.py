"""The contrastive model in MindSpore, with cells as MindCV and MindONE have them.

Variant 'channels_first': the blocks of images do not move their channels; norms are written out and
linear layers are convolutions of one pixel.

Variant 'joined': one projection for q, k and v; quick gelu, norms of features and losses from other
operators, both losses from one matrix.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.clip.architecture import (
    BATCH,
    BLOCKS,
    IMAGE_EPS,
    IMAGE_WIDTH,
    KERNEL,
    LAYERS,
    PATCH,
    SEQ,
    TEXT_EPS,
    TEXT_WIDTH,
    VOCAB,
    Model,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if model.text_gradient != 1 or not model.are_images_normalized:
        raise SystemExit("text_gradient and are_images_normalized are knobs of the PyTorch net")
    return ContrastiveLoss(model)


def build_linear(model: Model, path: str, *, has_bias: bool = True) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight = Tensor(model.weights[f"{path}.weight"])
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=weight,
        bias_init=Tensor(model.weights[f"{path}.bias"]) if has_bias else None,
        has_bias=has_bias,
    )


def build_convolution(
    model: Model, path: str, stride: int = 1, padding: int = 0, groups: int = 1
) -> nn.Conv2d:
    """Return the convolution at ``path``; the weight of a linear layer is one of one pixel."""
    weight = model.weights[f"{path}.weight"]
    if weight.ndim == 2:
        weight = weight[:, :, None, None]
    return nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        weight.shape[2],
        stride,
        pad_mode="pad",
        padding=padding,
        group=groups,
        has_bias=True,
        weight_init=Tensor(weight),
        bias_init=Tensor(model.weights[f"{path}.bias"]),
    )


def build_norm(model: Model, path: str, eps: float) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.LayerNorm((len(weight),), gamma_init=weight, beta_init=bias, epsilon=eps)


class ConvNextLayerNorm(nn.Cell):
    """Layer norm of the channels of (batch, channels, height, width)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_written_out = model.variant == "channels_first"
        if self.is_written_out:
            self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
            self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))
        else:
            self.norm = build_norm(model, path, IMAGE_EPS)

    def construct(self, x):
        if not self.is_written_out:
            return self.norm(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        centered = x - x.mean(1, keep_dims=True)
        variance = ops.square(centered).mean(1, keep_dims=True)
        x = centered * ops.rsqrt(variance + IMAGE_EPS)
        return x * self.gamma.reshape(1, -1, 1, 1) + self.beta.reshape(1, -1, 1, 1)


class Block(nn.Cell):
    """Depthwise convolution, norm, two linear layers around gelu, scaled channel by channel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dwconv = build_convolution(
            model, f"{path}.depthwise", padding=KERNEL // 2, groups=IMAGE_WIDTH
        )
        self.is_channels_first = model.variant == "channels_first"
        if self.is_channels_first:
            self.norm = ConvNextLayerNorm(model, f"{path}.norm")
            self.pwconv1 = build_convolution(model, f"{path}.up")
            self.pwconv2 = build_convolution(model, f"{path}.down")
        else:
            self.norm = build_norm(model, f"{path}.norm", IMAGE_EPS)
            self.pwconv1 = build_linear(model, f"{path}.up")
            self.pwconv2 = build_linear(model, f"{path}.down")
        self.act = nn.GELU(approximate=False)
        self.gamma_ = Parameter(Tensor(model.weights[f"{path}.scale"]))

    def construct(self, x):
        y = self.dwconv(x)
        if self.is_channels_first:
            y = self.pwconv2(self.act(self.pwconv1(self.norm(y))))
            return x + self.gamma_.reshape(1, -1, 1, 1) * y
        y = self.norm(y.transpose(0, 2, 3, 1))
        y = self.gamma_ * self.pwconv2(self.act(self.pwconv1(y)))
        return x + y.transpose(0, 3, 1, 2)


class ConvNeXt(nn.Cell):
    """Features (batch, EMBED) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = build_convolution(model, "image.stem", stride=PATCH)
        self.stem_norm = ConvNextLayerNorm(model, "image.stem_norm")
        self.stages = nn.SequentialCell([Block(model, f"image.blocks.{n}") for n in range(BLOCKS)])
        self.norm = build_norm(model, "image.norm", model.image_eps)
        self.head = build_linear(model, "image.projection", has_bias=False)
        self.is_pooled_first = model.is_pooled_first

    def construct(self, images):
        x = self.stages(self.stem_norm(self.stem(images)))
        if self.is_pooled_first:
            return self.head(self.norm(x.mean((2, 3))))
        return self.head(self.norm(x.transpose(0, 2, 3, 1)).mean((1, 2)))


class QuickGELU(nn.Cell):
    """x * sigmoid(1.702 x)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_divided = model.variant == "joined"
        self.scaled_gradient = None
        if model.sigmoid_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.sigmoid_gradient)

    def construct(self, x):
        if self.scaled_gradient is not None:
            return x * ops.sigmoid(self.scaled_gradient(1.702 * x))
        if self.is_divided:
            return x / (1 + ops.exp(-1.702 * x))
        return x * ops.sigmoid(1.702 * x)


class MultiheadAttention(nn.Cell):
    """Attention of texts."""

    def __init__(self, model: Model, path: str, *, is_last: bool) -> None:
        super().__init__()
        if model.fused_rows != "parts":
            raise SystemExit("fused_rows is a knob of the PyTorch net")
        self.is_joined = model.variant == "joined"
        if self.is_joined:
            weight, bias = (
                Tensor(np.concatenate([model.weights[f"{path}.{name}.{kind}"] for name in "qkv"]))
                for kind in ("weight", "bias")
            )
            self.in_proj = nn.Dense(TEXT_WIDTH, 3 * TEXT_WIDTH, weight_init=weight, bias_init=bias)
        else:
            self.q_proj = build_linear(model, f"{path}.q")
            self.k_proj = build_linear(model, f"{path}.k")
            self.v_proj = build_linear(model, f"{path}.v")
        has_output_bias = model.has_output_bias or not is_last
        self.out_proj = build_linear(model, f"{path}.o", has_bias=has_output_bias)
        self.is_causal = model.is_mask_causal or not is_last
        self.heads, self.head_dim = model.text_heads, TEXT_WIDTH // model.text_heads
        self.is_query_scaled_twice = model.is_query_scaled_twice and is_last

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(0, 2, 1, 3)

    def project(self, x):
        """Return scaled q, k and v, (batch, heads, SEQ, head_dim) each."""
        if self.is_joined:
            parts = self.in_proj(x).reshape(x.shape[0], x.shape[1], 3, self.heads, self.head_dim)
            q, k, v = ops.unbind(parts.transpose(2, 0, 3, 1, 4))
            return q * self.head_dim**-0.5, k, v
        q = self.split(self.q_proj(x) * self.head_dim**-0.5)
        return q, self.split(self.k_proj(x)), self.split(self.v_proj(x))

    def construct(self, x, mask):
        q, k, v = self.project(x)
        if self.is_query_scaled_twice:
            q = q * self.head_dim**-0.5
        scores = ops.matmul(q, k.swapaxes(-1, -2))
        if self.is_causal:
            scores = scores + mask
        y = ops.matmul(ops.softmax(scores, -1), v)
        return self.out_proj(y.transpose(0, 2, 1, 3).reshape(x.shape))


class ResidualAttentionBlock(nn.Cell):
    """Attention and feed-forward, each after a norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"text.layers.{n}"
        self.ln_1 = build_norm(model, f"{path}.norm1", TEXT_EPS)
        self.attn = MultiheadAttention(model, f"{path}.attention", is_last=n == LAYERS - 1)
        self.ln_2 = build_norm(model, f"{path}.norm2", TEXT_EPS)
        self.c_fc = build_linear(model, f"{path}.mlp.up")
        is_quick = model.activation == "quick_gelu"
        if is_quick:
            self.gelu = QuickGELU(model)
        else:
            self.gelu = nn.GELU(approximate=False)
        self.c_proj = build_linear(model, f"{path}.mlp.down")
        self.is_residual_normed = model.is_residual_normed and n == LAYERS - 1

    def construct(self, x, mask):
        x = x + self.attn(self.ln_1(x), mask)
        y = self.ln_2(x)
        residual = y if self.is_residual_normed else x
        return residual + self.c_proj(self.gelu(self.c_fc(y)))


class TextTransformer(nn.Cell):
    """Features (batch, EMBED) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = Tensor(model.weights["text.embedding.weight"])
        self.token_embedding = nn.Embedding(VOCAB, TEXT_WIDTH, embedding_table=table)
        self.positional_embedding = Parameter(Tensor(model.weights["text.positions.weight"]))
        self.resblocks = nn.CellList([ResidualAttentionBlock(model, n) for n in range(LAYERS)])
        self.ln_final = build_norm(model, "text.norm", TEXT_EPS)
        self.text_projection = build_linear(model, "text.projection", has_bias=False)
        mask = np.triu(np.full((SEQ, SEQ), MASKED, dtype=np.float32), 1)
        self.attn_mask = Tensor(mask)
        self.rows = Tensor(np.arange(BATCH, dtype=np.int32))
        self.is_last_pooled = model.text_pooling == "last"

    def construct(self, tokens):
        x = self.token_embedding(tokens) + self.positional_embedding
        for block in self.resblocks:
            x = block(x, self.attn_mask)
        x = self.ln_final(x)
        if self.is_last_pooled:
            pooled = x[:, -1]
        else:
            ends = ops.argmax(tokens, -1).astype(ms.int32)
            pooled = ops.gather_nd(x, ops.stack((self.rows, ends), -1))
        return self.text_projection(pooled)


class UnitLength(nn.Cell):
    """Features divided by their length."""

    def construct(self, features):
        return features * ops.rsqrt(ops.square(features).sum(-1, keepdims=True))


class CLIP(nn.Cell):
    """Normalized features of images and texts, and the factor of their similarities."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.visual, self.transformer = ConvNeXt(model), TextTransformer(model)
        self.logit_scale = Parameter(Tensor(model.weights["logit_scale"]))
        if model.variant == "joined":
            self.normalize = UnitLength()
        else:
            self.normalize = ops.L2Normalize(axis=model.normalized_axis, epsilon=1e-12)
        self.is_scale_exponential = model.is_scale_exponential
        self.text_length = model.text_length

    def construct(self, images, tokens):
        image_features = self.normalize(self.visual(images))
        text_features = self.transformer(tokens)
        if self.text_length == 1:
            text_features = text_features / ops.abs(text_features).sum(-1, keepdims=True)
        else:
            text_features = self.normalize(text_features)
        scale = ops.exp(self.logit_scale) if self.is_scale_exponential else self.logit_scale
        return image_features, text_features, scale


class ContrastiveLoss(nn.Cell):
    """Cross entropy of images by texts, and of texts by images."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = CLIP(model)
        labels = (np.arange(BATCH, dtype=np.int32) + model.label_offset) % BATCH
        self.labels = Tensor(labels)
        self.pairs = Tensor(np.eye(BATCH, dtype=np.float32))
        self.is_joined = model.variant == "joined"
        self.are_similarities_half = model.are_similarities_half
        self.are_gathered_detached = model.are_gathered_detached
        self.loss_share = model.loss_share
        self.is_text_loss_transposed = model.is_text_loss_transposed
        self.is_text_scaled = model.is_text_scaled

    def compare(self, features, other_features):
        if self.are_similarities_half:
            product = ops.matmul(features.astype(ms.float16), other_features.astype(ms.float16).T)
            return product.astype(ms.float32)
        return ops.matmul(features, other_features.T)

    def construct(self, images, tokens):
        image_features, text_features, scale = self.network(images, tokens)
        logits_per_image = scale * self.compare(image_features, text_features)
        if self.is_joined:
            by_image = ops.log_softmax(logits_per_image, 1)
            by_text = ops.log_softmax(logits_per_image, 0)
            return -((by_image + by_text) * self.pairs).sum() / (2 * BATCH)
        if self.are_gathered_detached:
            image_features = ops.stop_gradient(image_features)
        if self.is_text_loss_transposed:
            logits_per_text = self.compare(text_features, image_features)
            if self.is_text_scaled:
                logits_per_text = scale * logits_per_text
        else:
            logits_per_text = logits_per_image
        image_loss = ops.cross_entropy(logits_per_image, self.labels)
        text_loss = ops.cross_entropy(logits_per_text, self.labels)
        return (image_loss + text_loss) * self.loss_share
