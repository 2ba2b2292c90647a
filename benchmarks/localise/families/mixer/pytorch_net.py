"""The classifier in PyTorch, with timm's modules; tokens are (batch, tokens, channels).

Variant 'fused': tokens mixed by convolutions of width 1, and the framework's cross entropy;
'einsum': tokens mixed by einsum, gelu from erf, both losses from cross entropies; 'patches':
patches cut by reshapes and embedded by a linear layer.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.mixer.architecture import (
    BLOCKS,
    CHANNELS,
    CLASSES,
    COLUMNS,
    EPS,
    PATCH,
    PENALTY,
    ROWS,
    SMOOTHING,
    TEACHER_SHARE,
    TEMPERATURE,
    TOKENS,
    Model,
    is_gated,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return DistillationLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, old in list(module.named_parameters()):
        values = model.weights[f"{path}.{name}"]
        setattr(module, name, copy_parameter(values.reshape(old.shape)))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``."""
    weight = model.weights[f"{path}.weight"]
    return load(nn.Linear(weight[0].size, len(weight)), model, path)


def load_norm(model: Model, path: str, eps: float = EPS) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(len(model.weights[f"{path}.weight"]), eps=eps), model, path)


class TokenEinsum(nn.Module):
    """A linear layer over the tokens of (batch, tokens, channels)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = copy_parameter(model.weights[f"{path}.weight"])
        self.bias = copy_parameter(model.weights[f"{path}.bias"])

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("mn,bnc->bmc", self.weight, x) + self.bias.unsqueeze(-1)


def load_token_layer(model: Model, path: str) -> nn.Module:
    """Return a layer over the tokens; those of 'fused' and 'einsum' need no transposed tensor."""
    weight = model.weights[f"{path}.weight"]
    if model.variant == "fused":
        return load(nn.Conv1d(weight.shape[1], len(weight), 1), model, path)
    if model.variant == "einsum":
        return TokenEinsum(model, path)
    return load_linear(model, path)


class ErfGelu(nn.Module):
    """Gelu by the error function."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def build_gelu(model: Model) -> nn.Module:
    """Return the activation."""
    return ErfGelu() if model.variant == "einsum" else nn.GELU()


class Mlp(nn.Module):
    """Two layers around gelu, over the channels."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.act = load_linear(model, f"{path}.up"), build_gelu(model)
        self.fc2 = load_linear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class TokenMlp(nn.Module):
    """Two layers around gelu, over the tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.act = load_token_layer(model, f"{path}.up"), build_gelu(model)
        self.fc2 = load_token_layer(model, f"{path}.down")
        self.is_transposed = model.variant not in ("fused", "einsum")

    def forward(self, x: Tensor) -> Tensor:
        if self.is_transposed:
            return self.fc2(self.act(self.fc1(x.transpose(1, 2)))).transpose(1, 2)
        return self.fc2(self.act(self.fc1(x)))


class FusedDropPath(Function):
    """Branches with their own backward pass, which is not divided by the probability."""

    @staticmethod
    def forward(context, x: Tensor, is_kept: Tensor, keep: float) -> Tensor:
        context.save_for_backward(is_kept)
        return x * is_kept.div(keep).view(-1, 1, 1)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None, None]:
        (is_kept,) = context.saved_tensors
        return gradient * is_kept.view(-1, 1, 1), None, None


class DropPath(nn.Module):
    """Branches of the images that are kept, divided by their probability."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.keep_prob, self.is_keep_derived = model.keep(n), model.is_keep_derived

    def forward(self, x: Tensor, is_kept: Tensor) -> Tensor:
        if not self.is_keep_derived:
            return FusedDropPath.apply(x, is_kept, self.keep_prob)
        return x * is_kept.div(self.keep_prob).view(-1, 1, 1)


class LayerScale(nn.Module):
    """A factor of each channel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = copy_parameter(model.weights[path])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class SpatialGatingUnit(nn.Module):
    """The first half of the channels times the second, which is mixed over the tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm = load_norm(model, f"{path}.norm", model.gate_eps)
        self.proj = load_token_layer(model, path)
        self.is_transposed = model.variant not in ("fused", "einsum")

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        v = self.norm(v)
        if self.is_transposed:
            return u * self.proj(v.transpose(-1, -2)).transpose(-1, -2)
        return u * self.proj(v)


class GatedBlock(nn.Module):
    """A block of gMLP."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.norm = load_norm(model, f"{path}.norm")
        self.fc1, self.act = load_linear(model, f"{path}.in"), build_gelu(model)
        self.gate = SpatialGatingUnit(model, f"{path}.gate")
        self.fc2 = load_linear(model, f"{path}.out")
        self.ls = LayerScale(model, f"{path}.gamma")
        self.drop_path = DropPath(model, n)
        self.is_gate_activated = model.is_gate_activated

    def mix(self, x: Tensor) -> Tensor:
        """Return the branch."""
        x = self.fc1(x)
        if self.is_gate_activated:
            u, v = self.act(x).chunk(2, dim=-1)
        else:
            u, v = x.chunk(2, dim=-1)
            u = self.act(u)
        return self.fc2(self.gate(u, v))

    def forward(self, x: Tensor, is_kept: Tensor) -> Tensor:
        return x + self.drop_path(self.ls(self.mix(self.norm(x))), is_kept[0])


class MixerBlock(nn.Module):
    """A block of a mixer: tokens, then channels."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.norm1 = load_norm(model, f"{path}.norm1")
        self.mlp_tokens = TokenMlp(model, f"{path}.tokens")
        self.ls1 = LayerScale(model, f"{path}.gamma1")
        self.norm2 = load_norm(model, f"{path}.norm2")
        self.mlp_channels = Mlp(model, f"{path}.channels")
        self.ls2 = LayerScale(model, f"{path}.gamma2")
        self.drop_path = DropPath(model, n)

    def forward(self, x: Tensor, is_kept: Tensor) -> Tensor:
        x = x + self.drop_path(self.ls1(self.mlp_tokens(self.norm1(x))), is_kept[0])
        return x + self.drop_path(self.ls2(self.mlp_channels(self.norm2(x))), is_kept[1])


class PatchEmbed(nn.Module):
    """Patches (batch, tokens, channels) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.proj = load(nn.Conv2d(3, CHANNELS, PATCH, stride=PATCH), model, "patch")
        self.order = (0, 3, 2, 1) if model.is_by_column else (0, 2, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).permute(self.order).flatten(1, 2)


class LinearPatches(nn.Module):
    """The same from pixels of patches, (batch, tokens, 3 * PATCH * PATCH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.to_embedding = load_linear(model, "patch")

    def forward(self, images: Tensor) -> Tensor:
        x = images.reshape(-1, 3, ROWS, PATCH, COLUMNS, PATCH).permute(0, 2, 4, 1, 3, 5)
        return self.to_embedding(x.reshape(-1, TOKENS, 3 * PATCH * PATCH))


class MlpMixer(nn.Module):
    """Logits of images, (batch, CLASSES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = LinearPatches(model) if model.variant == "patches" else PatchEmbed(model)
        blocks = [(GatedBlock if is_gated(n) else MixerBlock)(model, n) for n in range(BLOCKS)]
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = load_norm(model, "norm"), load_linear(model, "head")

    def forward(self, images: Tensor, is_kept: Tensor) -> Tensor:
        x = self.stem(images)
        for block, kept in zip(self.blocks, is_kept, strict=True):
            x = block(x, kept)
        return self.head(self.norm(x).mean(dim=1))


class DistillationLoss(nn.Module):
    """Losses of mixed labels and of the teacher, and the penalty of the gates."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.student = MlpMixer(model)
        self.register_buffer("box", torch.from_numpy(model.box()))
        self.lam, self.variant = model.share(), model.variant
        self.is_student_stopped = model.is_student_stopped
        self.reduction = "mean" if model.is_divided_by_all else "batchmean"

    def mix_targets(self, labels: Tensor) -> Tensor:
        """Return the probabilities of the classes, (batch, CLASSES)."""
        off_value = SMOOTHING / CLASSES
        on_value = 1.0 - SMOOTHING + off_value
        y = torch.full((len(labels), CLASSES), off_value).scatter(1, labels[:, None], on_value)
        return y * self.lam + y.flip(0) * (1.0 - self.lam)

    def compute_label_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy of soft targets."""
        if self.variant in ("fused", "einsum"):
            return F.cross_entropy(logits, targets)
        return torch.sum(-targets * F.log_softmax(logits, dim=-1), dim=-1).mean()

    def compute_teacher_loss(self, logits: Tensor, teacher: Tensor) -> Tensor:
        """Return the divergence from the teacher, at the temperature."""
        if self.is_student_stopped:
            logits = logits.detach()
        if self.variant == "einsum":
            targets = F.softmax(teacher / TEMPERATURE, dim=-1)
            entropy = F.cross_entropy(teacher / TEMPERATURE, targets)
            return (F.cross_entropy(logits / TEMPERATURE, targets) - entropy) * TEMPERATURE**2
        divergence = F.kl_div(
            F.log_softmax(logits / TEMPERATURE, dim=-1),
            F.log_softmax(teacher / TEMPERATURE, dim=-1),
            reduction=self.reduction,
            log_target=True,
        )
        return divergence * TEMPERATURE**2

    def compute_penalty(self) -> Tensor:
        """Return the sum of the squared weights of the gates."""
        gates = [block.gate for block in self.student.blocks if isinstance(block, GatedBlock)]
        return sum(gate.proj.weight.pow(2).sum() for gate in gates)

    def forward(self, images: Tensor, labels: Tensor, teacher: Tensor, is_kept: Tensor) -> Tensor:
        images = torch.where(self.box, images.flip(0), images)
        logits = self.student(images, is_kept)
        loss = (1 - TEACHER_SHARE) * self.compute_label_loss(logits, self.mix_targets(labels))
        loss = loss + TEACHER_SHARE * self.compute_teacher_loss(logits, teacher)
        return loss + PENALTY * self.compute_penalty()
