"""Self-distillation in MindSpore, with cells named as in mindone's port of DINOv2.

Variant 'dense': the head is called on all patches, whose losses are masked, as in iBOT; the halves
of SwiGLU are layers of their own; norms and softmax are written out with operators of mint.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.dino.architecture import (
    BATCH,
    CHANNELS,
    CROPS,
    EPS,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KOLEO_EPS,
    KOLEO_WEIGHT,
    LAYERS,
    LENGTH_EPS,
    PATCH,
    PATCHES,
    REGISTERS,
    STUDENT,
    STUDENT_TEMPERATURE,
    TEACHER,
    TEACHER_TEMPERATURE,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return SelfDistillation(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


def build_dense(model: Model, path: str, first: int = 0, end: int | None = None) -> nn.Dense:
    """Return the linear layer at ``path``, or rows of it."""
    weight, bias = (model.weights[f"{path}.{name}"][first:end] for name in ("weight", "bias"))
    n_out, n_in = weight.shape
    return nn.Dense(n_in, n_out, weight_init=Tensor(weight), bias_init=Tensor(bias))


class WrittenLayerNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight), Parameter(bias)

    def construct(self, x):
        centered = x - mint.mean(x, dim=-1, keepdim=True)
        variance = mint.mean(mint.square(centered), dim=-1, keepdim=True)
        return centered * mint.rsqrt(variance + EPS) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return a layer norm."""
    weight, bias = (read(model, f"{path}.{name}") for name in ("weight", "bias"))
    if model.variant == "dense":
        return WrittenLayerNorm(weight, bias)
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


class Dinov2PatchEmbeddings(nn.Cell):
    """Patches (batch, patches, HIDDEN) of images."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            CHANNELS,
            HIDDEN,
            PATCH,
            PATCH,
            pad_mode="valid",
            has_bias=True,
            weight_init=read(model, f"{path}.weight"),
            bias_init=read(model, f"{path}.bias"),
        )

    def construct(self, images):
        x = self.projection(images)
        return x.reshape(x.shape[0], HIDDEN, -1).swapaxes(1, 2)


class Dinov2Embeddings(nn.Cell):
    """Class token, registers and patches; a local crop's positions are interpolated."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.patch_embeddings = Dinov2PatchEmbeddings(model, f"{path}.patch")
        self.cls_token = Parameter(read(model, f"{path}.class_token.weight"))
        self.mask_token = Parameter(read(model, f"{path}.mask_token.weight"))
        self.register_tokens = Parameter(read(model, f"{path}.registers.weight"))
        self.position_embeddings = Parameter(read(model, f"{path}.positions.weight"))
        self.interpolation = Tensor(model.interpolation())
        self.scaled_gradient = None
        if path == STUDENT and model.patch_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.patch_gradient)

    def get_positions(self, n_patches):
        """Return the positions of the class token and of patches."""
        if n_patches == PATCHES:
            return self.position_embeddings
        patches = ops.matmul(self.interpolation, self.position_embeddings[:, 1:])
        return ops.concat((self.position_embeddings[:, :1], patches), 1)

    def construct(self, images, masks=None):
        x = self.patch_embeddings(images)
        if self.scaled_gradient is not None:
            x = self.scaled_gradient(x)
        batch, n_patches, _ = x.shape
        if masks is not None:
            x = ops.where(masks.expand_dims(-1), self.mask_token, x)
        x = ops.concat((ops.tile(self.cls_token, (batch, 1, 1)), x), 1)
        x = x + self.get_positions(n_patches)
        registers = ops.tile(self.register_tokens, (batch, 1, 1))
        return ops.concat((x[:, :1], registers, x[:, 1:]), 1)


class Dinov2SelfAttention(nn.Cell):
    """Attention of all tokens to all tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query = build_dense(model, f"{path}.q")
        self.key = build_dense(model, f"{path}.k")
        self.value = build_dense(model, f"{path}.v")
        self.output = build_dense(model, f"{path}.o")
        self.is_softmax_written = model.variant == "dense"

    def split_heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x):
        q = self.split_heads(self.query(x))
        k = self.split_heads(self.key(x))
        v = self.split_heads(self.value(x))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / HEAD_DIM**0.5
        if self.is_softmax_written:
            shares = mint.exp(scores - ops.stop_gradient(mint.amax(scores, -1, True)))
            shares = shares / mint.sum(shares, dim=-1, keepdim=True)
        else:
            shares = ops.softmax(scores, -1)
        context = ops.matmul(shares, v).transpose(0, 2, 1, 3)
        return self.output(context.reshape(x.shape))


class Dinov2SwiGLUFFN(nn.Cell):
    """SiLU of the first half times the second one."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weights_in = build_dense(model, f"{path}.joined")
        self.weights_out = build_dense(model, f"{path}.down")

    def construct(self, x):
        gate, up = ops.chunk(self.weights_in(x), 2, axis=-1)
        return self.weights_out(ops.silu(gate) * up)


class SeparateSwiGLUFFN(nn.Cell):
    """The same with a layer for each half."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.w1 = build_dense(model, f"{path}.joined", end=FFN)
        self.w2 = build_dense(model, f"{path}.joined", first=FFN)
        self.w3 = build_dense(model, f"{path}.down")

    def construct(self, x):
        gate = self.w1(x)
        return self.w3(gate * mint.sigmoid(gate) * self.w2(x))


class Dinov2LayerScale(nn.Cell):
    """A factor for each channel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.lambda1 = Parameter(read(model, f"{path}.weight"))

    def construct(self, x):
        return x * self.lambda1


class Dinov2Layer(nn.Cell):
    """Attention and SwiGLU, each behind a norm and scaled."""

    def __init__(self, model: Model, path: str, *, has_last_scale: bool) -> None:
        super().__init__()
        self.norm1 = build_norm(model, f"{path}.norm1")
        self.attention = Dinov2SelfAttention(model, f"{path}.attention")
        self.layer_scale1 = Dinov2LayerScale(model, f"{path}.scale1")
        self.norm2 = build_norm(model, f"{path}.norm2")
        ffn_class = SeparateSwiGLUFFN if model.variant == "dense" else Dinov2SwiGLUFFN
        self.mlp = ffn_class(model, f"{path}.mlp")
        self.layer_scale2 = nn.Identity()
        if has_last_scale:
            self.layer_scale2 = Dinov2LayerScale(model, f"{path}.scale2")

    def construct(self, x):
        x = x + self.layer_scale1(self.attention(self.norm1(x)))
        return x + self.layer_scale2(self.mlp(self.norm2(x)))


class Dinov2Model(nn.Cell):
    """Class tokens (batch, HIDDEN) and patches (batch, patches, HIDDEN)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.embeddings = Dinov2Embeddings(model, path)
        self.layers = nn.CellList(
            [
                Dinov2Layer(
                    model,
                    f"{path}.layers.{n}",
                    has_last_scale=model.has_last_scale or n < LAYERS - 1,
                )
                for n in range(LAYERS)
            ]
        )
        self.layernorm = build_norm(model, f"{path}.norm")

    def construct(self, images, masks=None):
        x = self.embeddings(images, masks)
        for layer in self.layers:
            x = layer(x)
        x = self.layernorm(x)
        return x[:, 0], x[:, 1 + REGISTERS :]


class DINOHead(nn.Cell):
    """Scores of prototypes."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.mlp = nn.SequentialCell(
            build_dense(model, f"{path}.0"),
            nn.GELU(approximate=False),
            build_dense(model, f"{path}.1"),
            nn.GELU(approximate=False),
            build_dense(model, f"{path}.2"),
        )
        self.last_layer = Parameter(read(model, f"{path}.last.weight"))
        self.normalize = ops.L2Normalize(axis=-1, epsilon=LENGTH_EPS)

    def construct(self, x):
        x = self.normalize(self.mlp(x))
        return ops.matmul(x, self.normalize(self.last_layer).swapaxes(0, 1))


class CenteredSoftmax(nn.Cell):
    """The teacher's probabilities from its scores."""

    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        self.center = Parameter(read(model, name), requires_grad=False)
        self.is_center_behind = model.is_center_behind

    def construct(self, scores):
        if self.is_center_behind:
            logits = scores / TEACHER_TEMPERATURE - self.center
        else:
            logits = (scores - self.center) / TEACHER_TEMPERATURE
        return ops.softmax(logits, -1)


class DINOLoss(nn.Cell):
    """Cross entropy between the class tokens of pairs of different crops."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        pairs = np.ones((CROPS, CROPS + 1), np.float32)
        if not model.are_same_crops_paired:
            pairs -= np.eye(CROPS, CROPS + 1, dtype=np.float32)
        self.pair_mask, self.n_pairs = Tensor(pairs), float(pairs.sum())

    def construct(self, scores, targets):
        log_probs = ops.log_softmax(scores / STUDENT_TEMPERATURE, -1)
        log_probs = log_probs.reshape(1, CROPS + 1, BATCH, -1)
        targets = targets.reshape(CROPS, 1, BATCH, -1)
        losses = -(targets * log_probs).sum(-1).mean(-1)
        return (losses * self.pair_mask).sum() / self.n_pairs


class IBOTPatchLoss(nn.Cell):
    """Cross entropy between masked patches, each with its weight."""

    def construct(self, scores, targets, weights):
        log_probs = ops.log_softmax(scores / STUDENT_TEMPERATURE, -1)
        losses = -(targets * log_probs).sum(-1)
        return (losses * weights).sum() / (CROPS * BATCH)


class KoLeoLoss(nn.Cell):
    """Minus the logarithm of the distance to the nearest token."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize = ops.L2Normalize(axis=-1, epsilon=KOLEO_EPS)
        self.own = Tensor(2 * np.eye(BATCH, dtype=np.float32))

    def construct(self, tokens):
        x = self.normalize(tokens)
        constant = ops.stop_gradient(x)
        similarities = ops.matmul(constant, constant.swapaxes(0, 1)) - self.own
        neighbors = ops.gather(x, ops.argmax(similarities, 1), 0)
        distances = ops.sqrt(ops.square(x - neighbors + KOLEO_EPS).sum(-1))
        return -ops.log(distances + KOLEO_EPS).mean()


class Network(nn.Cell):
    """Backbone and head of the student or of the teacher."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.backbone = Dinov2Model(model, path)
        self.head = DINOHead(model, f"{path}.head")


class SelfDistillation(nn.Cell):
    """Student, teacher and the sum of the losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.student = Network(model, STUDENT)
        self.teacher = Network(model, TEACHER)
        for parameter in self.teacher.get_parameters():
            parameter.requires_grad = False
        self.class_targets = CenteredSoftmax(model, "centers.class")
        self.patch_targets = CenteredSoftmax(model, "centers.patch")
        self.dino_loss = DINOLoss(model)
        self.ibot_loss = IBOTPatchLoss()
        self.koleo_loss = KoLeoLoss()
        self.is_dense = model.variant == "dense"
        self.is_teacher_masked = model.is_teacher_masked

    def choose(self, patches, mask_indices):
        """Return the patches that the loss reads, (patches, HIDDEN)."""
        patches = patches.reshape(-1, HIDDEN)
        return patches if self.is_dense else ops.gather(patches, mask_indices, 0)

    def construct(self, global_crops, local_crops, masks, mask_indices, mask_weights):
        teacher_masks = masks if self.is_teacher_masked else None
        teacher_tokens, teacher_patches = self.teacher.backbone(global_crops, teacher_masks)
        teacher_patches = self.choose(teacher_patches, mask_indices)
        targets = ops.stop_gradient(self.class_targets(self.teacher.head(teacher_tokens)))
        patch_targets = ops.stop_gradient(self.patch_targets(self.teacher.head(teacher_patches)))

        tokens, patches = self.student.backbone(global_crops, masks)
        local_tokens, _ = self.student.backbone(local_crops)
        scores = self.student.head(ops.concat((tokens, local_tokens), 0))
        patch_scores = self.student.head(self.choose(patches, mask_indices))
        if self.is_dense:
            is_masked = masks.astype(ms.float32)
            mask_weights = (is_masked / is_masked.sum(-1, keepdims=True)).reshape(-1)

        loss = self.dino_loss(scores, targets)
        loss += self.ibot_loss(patch_scores, patch_targets, mask_weights)
        spread = 0.0
        for crop_tokens in ops.chunk(tokens, CROPS, axis=0):
            spread += self.koleo_loss(crop_tokens)
        return loss + KOLEO_WEIGHT * spread
