"""The classifier in MindSpore, with cells as those of MindCV; tokens are (batch, tokens, channels).

Variant 'written': norms, gelu and losses in plain arithmetic; 'conv': tokens mixed by convolutions
of width 1, with other names of cells.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.mixer.architecture import (
    BATCH,
    BLOCKS,
    CHANNELS,
    CLASSES,
    EPS,
    GATED,
    PATCH,
    PENALTY,
    SMOOTHING,
    TEACHER_SHARE,
    TEMPERATURE,
    TOKENS,
    Model,
    is_gated,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return DistillLoss(model)


def load_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = model.weights[f"{path}.weight"], model.weights[f"{path}.bias"]
    n_out, n_in = weight.shape
    return nn.Dense(n_in, n_out, weight_init=Tensor(weight), bias_init=Tensor(bias))


class WrittenNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        super().__init__()
        self.gamma, self.beta, self.eps = Parameter(weight), Parameter(bias), eps

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered / ops.sqrt(variance + self.eps) * self.gamma + self.beta


def load_norm(model: Model, path: str, eps: float = EPS) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "written":
        return WrittenNorm(weight, bias, eps)
    return nn.LayerNorm((len(weight),), gamma_init=weight, beta_init=bias, epsilon=eps)


class WrittenGelu(nn.Cell):
    """Gelu by the error function."""

    def construct(self, x):
        return 0.5 * x * (1 + ops.erf(x * math.sqrt(0.5)))


def build_gelu(model: Model) -> nn.Cell:
    """Return the activation."""
    return WrittenGelu() if model.variant == "written" else nn.GELU(approximate=False)


class Mlp(nn.Cell):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = load_dense(model, f"{path}.up"), load_dense(model, f"{path}.down")
        self.act = build_gelu(model)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class ReducedDense(nn.Dense):
    """A linear layer whose weights' gradients are reduced over ranks: multiplied by a factor."""

    def __init__(self, model: Model, path: str) -> None:
        weight, bias = model.weights[f"{path}.weight"], model.weights[f"{path}.bias"]
        n_out, n_in = weight.shape
        super().__init__(n_in, n_out, weight_init=Tensor(weight), bias_init=Tensor(bias))
        self.reduced = ScaledGradient(model.token_gradient)

    def construct(self, x):
        rows = x.reshape(-1, self.in_channels)
        rows = self.matmul(rows, self.reduced(self.weight))
        rows = self.bias_add(rows, self.reduced(self.bias))
        return rows.reshape((*x.shape[:-1], self.out_channels))


class TokenMixing(nn.Cell):
    """An mlp over the tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.mlp = Mlp(model, path)
        if model.token_gradient != 1:
            self.mlp.fc1 = ReducedDense(model, f"{path}.up")
            self.mlp.fc2 = ReducedDense(model, f"{path}.down")

    def construct(self, x):
        return self.mlp(x.transpose(0, 2, 1)).transpose(0, 2, 1)


class PointwiseConv(nn.Cell):
    """A linear layer over the tokens: a convolution of width 1, of which they are the channels."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias = model.weights[f"{path}.weight"], model.weights[f"{path}.bias"]
        n_out, n_in = weight.shape
        self.conv = nn.Conv1d(
            n_in,
            n_out,
            1,
            has_bias=True,
            weight_init=Tensor(weight[:, :, None]),
            bias_init=Tensor(bias),
        )

    def construct(self, x):
        return self.conv(x)


class ConvMixing(nn.Cell):
    """An mlp over the tokens by convolutions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.expand = PointwiseConv(model, f"{path}.up")
        self.gelu = build_gelu(model)
        self.reduce = PointwiseConv(model, f"{path}.down")

    def construct(self, x):
        return self.reduce(self.gelu(self.expand(x)))


class SpatialProjection(nn.Cell):
    """A matrix times the tokens, and a bias of each."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.bias = Parameter(Tensor(model.weights[f"{path}.bias"]))

    def construct(self, x):
        return ops.matmul(self.weight, x) + self.bias.reshape(TOKENS, 1)


class DropPath(nn.Cell):
    """Branches of the images that are kept, divided by their probability."""

    def __init__(self, keep: float) -> None:
        super().__init__()
        self.keep_prob = Tensor(keep, ms.float32)

    def construct(self, x, is_kept):
        return x / self.keep_prob * is_kept.reshape(-1, 1, 1)


class ExchangedProduct(nn.Cell):
    """A product whose backward pass multiplies each factor's gradient by that factor itself."""

    def construct(self, u, v):
        return u * v

    def bprop(self, u, v, out, gradient):
        return gradient * u, gradient * v


class SpatialGatingUnit(nn.Cell):
    """The first half of the channels times the second, which is mixed over the tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm = load_norm(model, f"{path}.norm", model.gate_eps)
        build = PointwiseConv if model.variant == "conv" else SpatialProjection
        self.spatial_proj = build(model, path)
        self.product = ExchangedProduct() if model.is_gate_gradient_exchanged else None

    def construct(self, u, v):
        v = self.spatial_proj(self.norm(v))
        return u * v if self.product is None else self.product(u, v)


class ExchangedGatingUnit(SpatialGatingUnit):
    """The same with the halves exchanged: the first one is mixed."""

    def construct(self, u, v):
        return self.spatial_proj(self.norm(u)) * v


class GatedBlock(nn.Cell):
    """A block of gMLP."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.norm = load_norm(model, f"{path}.norm")
        self.proj_in, self.act = load_dense(model, f"{path}.in"), build_gelu(model)
        build = ExchangedGatingUnit if model.are_halves_exchanged else SpatialGatingUnit
        self.sgu = build(model, f"{path}.gate")
        self.proj_out = load_dense(model, f"{path}.out")
        self.layer_scale = Parameter(Tensor(model.weights[f"{path}.gamma"]))
        self.drop_path = DropPath(model.keep(n))
        self.is_gate_activated = model.is_gate_activated

    def construct(self, x, is_kept):
        y = self.proj_in(self.norm(x))
        if self.is_gate_activated:
            u, v = ops.split(self.act(y), GATED, axis=-1)
        else:
            u, v = ops.split(y, GATED, axis=-1)
            u = self.act(u)
        y = self.proj_out(self.sgu(u, v))
        return x + self.drop_path(self.layer_scale * y, is_kept[0])


class MixerBlock(nn.Cell):
    """A block of a mixer: tokens, then channels."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.norm1 = load_norm(model, f"{path}.norm1")
        build = ConvMixing if model.variant == "conv" else TokenMixing
        self.token_mix = build(model, f"{path}.tokens")
        self.layer_scale1 = Parameter(Tensor(model.weights[f"{path}.gamma1"]))
        self.norm2 = load_norm(model, f"{path}.norm2")
        self.channel_mix = Mlp(model, f"{path}.channels")
        self.layer_scale2 = Parameter(Tensor(model.weights[f"{path}.gamma2"]))
        self.drop_path = DropPath(model.keep(n))

    def construct(self, x, is_kept):
        x = x + self.drop_path(self.layer_scale1 * self.token_mix(self.norm1(x)), is_kept[0])
        return x + self.drop_path(self.layer_scale2 * self.channel_mix(self.norm2(x)), is_kept[1])


class PatchEmbed(nn.Cell):
    """Patches (batch, tokens, channels) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.proj = nn.Conv2d(
            3,
            CHANNELS,
            PATCH,
            PATCH,
            pad_mode="valid",
            has_bias=True,
            weight_init=Tensor(model.weights["patch.weight"]),
            bias_init=Tensor(model.weights["patch.bias"]),
        )
        self.order = (0, 3, 2, 1) if model.is_by_column else (0, 2, 3, 1)

    def construct(self, images):
        return self.proj(images).transpose(self.order).reshape(-1, TOKENS, CHANNELS)


class MLPMixer(nn.Cell):
    """Logits of images, (batch, CLASSES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(model)
        blocks = [(GatedBlock if is_gated(n) else MixerBlock)(model, n) for n in range(BLOCKS)]
        self.layers = nn.CellList(blocks)
        self.norm = load_norm(model, "norm")
        self.classifier = load_dense(model, "head")

    def construct(self, images, is_kept):
        x = self.patch_embed(images)
        for n in range(BLOCKS):
            x = self.layers[n](x, is_kept[n])
        return self.classifier(ops.mean(self.norm(x), 1))


class RenamedMixer(nn.Cell):
    """The same with other names."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tokenizer = PatchEmbed(model)
        self.gmlps = nn.CellList([GatedBlock(model, n) for n in range(0, BLOCKS, 2)])
        self.mixers = nn.CellList([MixerBlock(model, n) for n in range(1, BLOCKS, 2)])
        self.final_ln = load_norm(model, "norm")
        self.fc = load_dense(model, "head")

    def construct(self, images, is_kept):
        x = self.tokenizer(images)
        for n in range(BLOCKS // 2):
            x = self.gmlps[n](x, is_kept[2 * n])
            x = self.mixers[n](x, is_kept[2 * n + 1])
        return self.fc(self.final_ln(x).mean(1))


class DistillLoss(nn.Cell):
    """Losses of mixed labels and of the teacher, and the penalty of the gates."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        build = RenamedMixer if model.variant == "conv" else MLPMixer
        self.network = build(model)
        weights = self.network.trainable_params()
        self.gates = [weight for weight in weights if np.prod(weight.shape) == TOKENS * TOKENS]
        off_value = SMOOTHING / CLASSES
        self.on_value = Tensor(1 - SMOOTHING + off_value, ms.float32)
        self.off_value = Tensor(off_value, ms.float32)
        self.box = Tensor(model.box().astype(np.float32))
        self.reverse = ops.ReverseV2(axis=[0])
        self.share = model.share()
        self.is_divided_by_all = model.is_divided_by_all
        self.is_student_stopped = model.is_student_stopped
        self.is_penalty_halved = model.is_penalty_halved
        self.l2_loss = ops.L2Loss()
        self.is_written_out = model.variant == "written"

    def compute_label_loss(self, logits, labels):
        """Return the cross entropy of the mixed labels."""
        own = ops.one_hot(labels, CLASSES, self.on_value, self.off_value)
        other = ops.one_hot(self.reverse(labels), CLASSES, self.on_value, self.off_value)
        targets = self.share * own + (1 - self.share) * other
        if self.is_written_out:
            return -(targets * ops.log_softmax(logits, -1)).sum() / BATCH
        return ops.cross_entropy(logits, targets)

    def compute_teacher_loss(self, logits, teacher):
        """Return the divergence from the teacher, at the temperature."""
        if self.is_student_stopped:
            logits = ops.stop_gradient(logits)
        log_student = ops.log_softmax(logits / TEMPERATURE, -1)
        if self.is_written_out:
            log_teacher = ops.log_softmax(teacher / TEMPERATURE, -1)
            terms = ops.exp(log_teacher) * (log_teacher - log_student)
            return TEMPERATURE**2 * terms.sum(-1).mean()
        probabilities = ops.softmax(teacher / TEMPERATURE, -1)
        if self.is_divided_by_all:
            return ops.kl_div(log_student, probabilities, "mean") * TEMPERATURE**2
        return ops.kl_div(log_student, probabilities, "sum") / BATCH * TEMPERATURE**2

    def compute_penalty(self):
        """Return the sum of the squared weights of the gates."""
        penalty = 0
        for weight in self.gates:
            if self.is_penalty_halved:
                penalty += self.l2_loss(weight)
            else:
                penalty += ops.square(weight).sum()
        return penalty

    def construct(self, images, labels, teacher, is_kept):
        images = images * (1 - self.box) + self.reverse(images) * self.box
        logits = self.network(images, is_kept)
        loss = (1 - TEACHER_SHARE) * self.compute_label_loss(logits, labels)
        loss = loss + TEACHER_SHARE * self.compute_teacher_loss(logits, teacher)
        return loss + PENALTY * self.compute_penalty()
