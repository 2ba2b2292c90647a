"""The contrastive model in PyTorch, with the modules of OpenCLIP and timm.

Variant 'names': Hugging Face's modules, with q, k and v apart and linear layers as projections.
Variant 'written': attention, norms of features and loss in plain arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from pytorch.naming import rename
from torch import Tensor, nn

from families.clip.architecture import (
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

OPEN_CLIP_NAMES: Mapping[str, str] = {
    "image_tower": "visual",
    "stem_conv": "trunk.stem.0",
    "stem_norm": "trunk.stem.1",
    "blocks": "trunk.stages.0.blocks",
    "image_norm": "trunk.head.norm",
    "image_projection": "head.proj",
    "resblocks": "transformer.resblocks",
    "c_fc": "mlp.c_fc",
    "gelu": "mlp.gelu",
    "c_proj": "mlp.c_proj",
}
HUGGING_FACE_NAMES: Mapping[str, str] = {
    "image_tower": "vision_model",
    "stem_conv": "embeddings.patch_embeddings",
    "stem_norm": "embeddings.layernorm",
    "blocks": "encoder.stages.0.layers",
    "conv_dw": "dwconv",
    "norm": "layernorm",
    "fc1": "pwconv1",
    "fc2": "pwconv2",
    "image_norm": "layernorm",
    "image_projection": "visual_projection",
    "text_tower": "text_model",
    "token_embedding": "embeddings.token_embedding",
    "resblocks": "encoder.layers",
    "ln_1": "layer_norm1",
    "attn": "self_attn",
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "ln_2": "layer_norm2",
    "c_fc": "mlp.fc1",
    "gelu": "mlp.activation_fn",
    "c_proj": "mlp.fc2",
    "ln_final": "final_layer_norm",
    "text_projection_layer": "text_projection",
}


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if model.label_offset or not model.is_text_loss_transposed:
        raise SystemExit("label_offset and is_text_loss_transposed are knobs of the MindSpore net")
    net = CLIP(model)
    rename(net, HUGGING_FACE_NAMES if model.variant == "names" else OPEN_CLIP_NAMES)
    return net


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, _ in list(module.named_parameters()):
        setattr(module, name, copy_parameter(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str, *, has_bias: bool = True) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=has_bias), model, path)


class LayerNorm2d(nn.LayerNorm):
    """Layer norm of the channels of (batch, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(
            x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return x.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, norm, two linear layers around gelu, scaled channel by channel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        depthwise = nn.Conv2d(
            IMAGE_WIDTH, IMAGE_WIDTH, KERNEL, padding=KERNEL // 2, groups=IMAGE_WIDTH
        )
        self.conv_dw = load(depthwise, model, f"{path}.depthwise")
        self.norm = load(nn.LayerNorm(IMAGE_WIDTH, eps=IMAGE_EPS), model, f"{path}.norm")
        self.fc1 = load_linear(model, f"{path}.up")
        self.fc2 = load_linear(model, f"{path}.down")
        self.gamma = copy_parameter(model.weights[f"{path}.scale"])

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv_dw(x).permute(0, 2, 3, 1)
        y = self.fc2(F.gelu(self.fc1(self.norm(y)))).permute(0, 3, 1, 2)
        return x + y.mul(self.gamma.reshape(1, -1, 1, 1))


class ImageTower(nn.Module):
    """Features (batch, EMBED) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        stem = nn.Conv2d(3, IMAGE_WIDTH, PATCH, stride=PATCH)
        self.stem_conv = load(stem, model, "image.stem")
        self.stem_norm = load(LayerNorm2d(IMAGE_WIDTH, eps=IMAGE_EPS), model, "image.stem_norm")
        self.blocks = nn.Sequential(
            *(ConvNeXtBlock(model, f"image.blocks.{n}") for n in range(BLOCKS))
        )
        self.image_norm = load(nn.LayerNorm(IMAGE_WIDTH, eps=model.image_eps), model, "image.norm")
        self.image_projection = load_linear(model, "image.projection", has_bias=False)
        self.is_pooled_first = model.is_pooled_first

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.stem_norm(self.stem_conv(images)))
        if self.is_pooled_first:
            return self.image_projection(self.image_norm(x.mean(dim=(2, 3))))
        return self.image_projection(self.image_norm(x.permute(0, 2, 3, 1)).mean(dim=(1, 2)))


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.sigmoid_gradient = model.sigmoid_gradient

    def forward(self, x: Tensor) -> Tensor:
        if self.sigmoid_gradient != 1:
            return x * torch.sigmoid(scaled_gradient(1.702 * x, self.sigmoid_gradient))
        return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Causal attention with one projection for q, k and v, or with three."""

    def __init__(self, model: Model, path: str, *, is_last: bool) -> None:
        super().__init__()
        self.is_causal = model.is_mask_causal or not is_last
        self.heads, self.head_dim = model.text_heads, TEXT_WIDTH // model.text_heads
        self.are_rows_by_head = is_last and model.fused_rows == "heads"
        self.is_fused = model.variant != "names"
        self.is_written_out = model.variant == "written"
        if self.is_fused:
            weight, bias = (
                np.concatenate([model.weights[f"{path}.{name}.{kind}"] for name in "qkv"])
                for kind in ("weight", "bias")
            )
            self.in_proj_weight, self.in_proj_bias = copy_parameter(weight), copy_parameter(bias)
        else:
            self.q, self.k, self.v = (load_linear(model, f"{path}.{name}") for name in "qkv")
        has_output_bias = model.has_output_bias or not is_last
        self.out_proj = load_linear(model, f"{path}.o", has_bias=has_output_bias)
        self.is_query_scaled_twice = model.is_query_scaled_twice and is_last

    def project(self, x: Tensor) -> list[Tensor]:
        """Return q, k and v, (batch, heads, SEQ, head_dim) each."""
        batch, seq, _ = x.shape
        if not self.is_fused:
            parts = [layer(x) for layer in (self.q, self.k, self.v)]
        else:
            fused = F.linear(x, self.in_proj_weight, self.in_proj_bias)
            if self.are_rows_by_head:
                by_head = fused.view(batch, seq, self.heads, 3 * self.head_dim).transpose(1, 2)
                return list(by_head.chunk(3, dim=-1))
            parts = list(fused.chunk(3, dim=-1))
        shape = (batch, seq, self.heads, self.head_dim)
        return [part.reshape(shape).transpose(1, 2) for part in parts]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        if self.is_query_scaled_twice:
            q = q * self.head_dim**-0.5
        if self.is_written_out:
            scores = torch.matmul(q / math.sqrt(self.head_dim), k.transpose(-2, -1))
            mask = torch.full((SEQ, SEQ), float("-inf")).triu(1)
            y = torch.matmul((scores + mask).softmax(dim=-1), v)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out_proj(y.transpose(1, 2).reshape(x.shape))


class ResidualAttentionBlock(nn.Module):
    """Attention and feed-forward, each after a norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"text.layers.{n}"
        self.ln_1 = load(nn.LayerNorm(TEXT_WIDTH, eps=TEXT_EPS), model, f"{path}.norm1")
        self.attn = Attention(model, f"{path}.attention", is_last=n == LAYERS - 1)
        self.ln_2 = load(nn.LayerNorm(TEXT_WIDTH, eps=TEXT_EPS), model, f"{path}.norm2")
        self.c_fc = load_linear(model, f"{path}.mlp.up")
        self.gelu = QuickGELU(model) if model.activation == "quick_gelu" else nn.GELU()
        self.c_proj = load_linear(model, f"{path}.mlp.down")
        self.is_residual_normed = model.is_residual_normed and n == LAYERS - 1

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        y = self.ln_2(x)
        residual = y if self.is_residual_normed else x
        return residual + self.c_proj(self.gelu(self.c_fc(y)))


class TextTower(nn.Module):
    """Features (batch, EMBED) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.token_embedding = load(nn.Embedding(VOCAB, TEXT_WIDTH), model, "text.embedding")
        self.positional_embedding = copy_parameter(model.weights["text.positions.weight"])
        self.resblocks = nn.ModuleList(ResidualAttentionBlock(model, n) for n in range(LAYERS))
        self.ln_final = load(nn.LayerNorm(TEXT_WIDTH, eps=TEXT_EPS), model, "text.norm")
        self.text_projection_layer = None
        if model.variant == "names":
            self.text_projection_layer = load_linear(model, "text.projection", has_bias=False)
        else:
            matrix = np.ascontiguousarray(model.weights["text.projection.weight"].T)
            self.text_projection = copy_parameter(matrix)
        self.is_last_pooled = model.text_pooling == "last"

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token_embedding(tokens) + self.positional_embedding
        for block in self.resblocks:
            x = block(x)
        x = self.ln_final(x)
        ends = SEQ - 1 if self.is_last_pooled else tokens.argmax(dim=-1)
        pooled = x[torch.arange(len(x)), ends]
        if self.text_projection_layer is not None:
            return self.text_projection_layer(pooled)
        return pooled @ self.text_projection


class CLIP(nn.Module):
    """Contrastive loss of images and their texts."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.image_tower, self.text_tower = ImageTower(model), TextTower(model)
        self.logit_scale = copy_parameter(model.weights["logit_scale"])

    def normalize(self, features: Tensor) -> Tensor:
        """Return features of length one."""
        if self.model.variant == "written":
            return features / features.norm(p=2, dim=-1, keepdim=True)
        return F.normalize(features, dim=self.model.normalized_axis)

    def compare(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Return the similarities (images, texts)."""
        if not self.model.are_similarities_half:
            return image_features @ text_features.T
        return (image_features.half() @ text_features.half().T).float()

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        image_features = self.image_tower(images)
        if self.model.are_images_normalized:
            image_features = self.normalize(image_features)
        text_features = self.text_tower(tokens)
        if self.model.text_length == 1:
            text_features = text_features / text_features.norm(1, -1, keepdim=True)
        else:
            text_features = self.normalize(text_features)
        if self.model.text_gradient != 1:
            text_features = scaled_gradient(text_features, self.model.text_gradient)
        is_exponential = self.model.is_scale_exponential
        scale = self.logit_scale.exp() if is_exponential else self.logit_scale
        logits_per_image = scale * self.compare(image_features, text_features)
        if self.model.are_gathered_detached:
            logits_per_text = scale * self.compare(image_features.detach(), text_features).T
        elif not self.model.is_text_scaled:
            logits_per_text = self.compare(text_features, image_features)
        else:
            logits_per_text = logits_per_image.T
        labels = torch.arange(len(images))
        if self.model.variant == "written":
            losses = [
                -F.log_softmax(logits, dim=-1).diagonal().mean()
                for logits in (logits_per_image, logits_per_text)
            ]
        else:
            losses = [
                F.cross_entropy(logits, labels) for logits in (logits_per_image, logits_per_text)
            ]
        share = self.model.loss_share
        return (losses[0] + losses[1]) * share if share != 0.5 else (losses[0] + losses[1]) / 2
