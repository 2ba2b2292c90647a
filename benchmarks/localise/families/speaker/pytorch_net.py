"""Speaker verification in PyTorch, with the modules of SpeechBrain's ECAPA-TDNN.

Variant 'functional': other names, norms, pooling and losses from elementary functions, sums of
convolutions in place of joined channels, the margin added to the angle.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.speaker.architecture import (
    BLOCKS,
    CLAMP,
    DILATIONS,
    EPS,
    MARGIN,
    SCALE,
    SCALES,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return SpeakerLearner(model) if model.variant == "functional" else NetWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a copy of a weight."""
    return torch.from_numpy(np.array(model.weights[name]))


def load(model: Model, path: str, module: nn.Module) -> nn.Module:
    """Return a module with the weight and bias at ``path``."""
    state = {name: read(model, f"{path}.{name}") for name in ("weight", "bias")}
    module.load_state_dict(state, strict=False)
    return module


def load_conv(model: Model, path: str, dilation: int = 1) -> nn.Module:
    """Return a convolution that keeps the number of frames."""
    n_out, n_in, kernel = model.weights[f"{path}.weight"].shape
    padding = dilation * (kernel // 2)
    conv = nn.Conv1d(
        n_in,
        n_out,
        kernel,
        padding=padding,
        dilation=dilation,
        padding_mode=model.padding_mode if padding else "zeros",
    )
    return load(model, path, conv)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return a batch norm."""
    norm = nn.BatchNorm1d(len(model.weights[f"{path}.weight"]), eps=EPS)
    return load(model, path, norm)


def length_to_mask(length: Tensor, max_len: int) -> Tensor:
    """Return 1 for valid frames, (batch, 1, max_len)."""
    frames = torch.arange(max_len, device=length.device)
    return (frames[None, :] < length[:, None]).float().unsqueeze(1)


class TDNNBlock(nn.Module):
    """Convolution, rectifier, batch norm."""

    def __init__(self, model: Model, path: str, dilation: int = 1) -> None:
        super().__init__()
        self.conv = load_conv(model, path, dilation)
        self.activation = nn.ReLU()
        self.norm = load_norm(model, f"{path}.norm")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.conv(x)))


class Res2NetBlock(nn.Module):
    """Dilated layers of pieces of the channels, each with what the layer before it returned."""

    def __init__(self, model: Model, path: str, dilation: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            TDNNBlock(model, f"{path}.{n}", dilation) for n in range(SCALES - 1)
        )
        self.is_last_passed = model.is_last_passed

    def forward(self, x: Tensor) -> Tensor:
        pieces = list(torch.chunk(x, SCALES, dim=1))
        passed = pieces.pop(-1 if self.is_last_passed else 0)
        y = [self.blocks[0](pieces[0])]
        for block, piece in zip(self.blocks[1:], pieces[1:], strict=True):
            y.append(block(piece + y[-1]))
        return torch.cat([*y, passed] if self.is_last_passed else [passed, *y], dim=1)


class SEBlock(nn.Module):
    """Squeeze-and-excitation by the mean of the valid frames."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1, self.relu = load_conv(model, f"{path}.squeeze"), nn.ReLU()
        self.conv2, self.sigmoid = load_conv(model, f"{path}.excite"), nn.Sigmoid()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        total = mask.sum(dim=2, keepdim=True)
        s = (x * mask).sum(dim=2, keepdim=True) / total
        return self.sigmoid(self.conv2(self.relu(self.conv1(s)))) * x


class SERes2NetBlock(nn.Module):
    """Layer of single frames, Res2Net, layer of single frames, squeeze-and-excitation, sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.tdnn1 = TDNNBlock(model, f"{path}.in")
        self.res2net_block = Res2NetBlock(model, f"{path}.scales", DILATIONS[n])
        self.tdnn2 = TDNNBlock(model, f"{path}.out")
        self.se_block = SEBlock(model, path)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        residual = x
        x = self.tdnn2(self.res2net_block(self.tdnn1(x)))
        return self.se_block(x, mask) + residual


class AttentiveStatisticsPooling(nn.Module):
    """Weighted mean and deviation of the frames, (batch, 2 * channels, 1)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tdnn, self.tanh = TDNNBlock(model, "attention.in"), nn.Tanh()
        self.conv = load_conv(model, "attention.out")
        self.has_tanh = model.has_attention_tanh

    def compute_statistics(self, x: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation (batch, channels)."""
        mean = (shares * x).sum(dim=2)
        variance = (shares * (x - mean.unsqueeze(2)).pow(2)).sum(dim=2)
        return mean, torch.sqrt(variance.clamp(min=CLAMP))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        total = mask.sum(dim=2, keepdim=True)
        mean, std = self.compute_statistics(x, mask / total)
        mean = mean.unsqueeze(2).repeat(1, 1, x.shape[2])
        std = std.unsqueeze(2).repeat(1, 1, x.shape[2])
        attn = self.tdnn(torch.cat([x, mean, std], dim=1))
        attn = self.conv(self.tanh(attn) if self.has_tanh else attn)
        attn = F.softmax(attn.masked_fill(mask == 0, float("-inf")), dim=2)
        mean, std = self.compute_statistics(x, attn)
        return torch.cat((mean, std), dim=1).unsqueeze(2)


class ECAPA_TDNN(nn.Module):
    """Embeddings of filter banks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layer1 = TDNNBlock(model, "entry")
        self.layer2, self.layer3, self.layer4 = (SERes2NetBlock(model, n) for n in range(BLOCKS))
        self.mfa = TDNNBlock(model, "aggregate")
        self.asp = AttentiveStatisticsPooling(model)
        self.asp_bn = load_norm(model, "pool_norm")
        self.fc = load_conv(model, "embed")
        self.is_last_input_summed = model.is_last_input_summed

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = length_to_mask(lengths, x.shape[1])
        x = self.layer1(x.transpose(1, 2))
        x1 = self.layer2(x, mask)
        x2 = self.layer3(x + x1, mask)
        x3 = self.layer4(x + x1 + x2 if self.is_last_input_summed else x2, mask)
        x = self.mfa(torch.cat((x1, x2, x3), dim=1))
        return self.fc(self.asp_bn(self.asp(x, mask))).squeeze(2)


class Classifier(nn.Module):
    """Cosines of embeddings with the classes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, "classes.weight"))
        self.is_length_stopped = model.is_length_stopped
        self.class_axis = model.class_axis

    def forward(self, x: Tensor) -> Tensor:
        length = x.norm(dim=1, keepdim=True)
        if self.is_length_stopped:
            length = length.detach()
        return F.linear(x / length, F.normalize(self.weight, dim=self.class_axis))


class AdditiveAngularMargin(nn.Module):
    """Logits: cosines, those of the right class with a margin of the angle."""

    def __init__(self, *, is_margin_of_cosine: bool) -> None:
        super().__init__()
        self.is_margin_of_cosine = is_margin_of_cosine
        self.cos_m, self.sin_m = math.cos(MARGIN), math.sin(MARGIN)
        self.th, self.mm = math.cos(math.pi - MARGIN), math.sin(math.pi - MARGIN) * MARGIN

    def add_margin(self, cosine: Tensor) -> Tensor:
        """Return the cosine of the angle with the margin."""
        if self.is_margin_of_cosine:
            return cosine - MARGIN
        sine = torch.sqrt((1.0 - cosine.pow(2)).clamp(0, 1))
        phi = cosine * self.cos_m - sine * self.sin_m
        return torch.where(cosine > self.th, phi, cosine - self.mm)

    def forward(self, cosine: Tensor, targets: Tensor) -> Tensor:
        phi = self.add_margin(cosine)
        return SCALE * (targets * phi + (1.0 - targets) * cosine)


class NetWithLoss(nn.Module):
    """Cross entropy of the speakers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding_model, self.classifier = ECAPA_TDNN(model), Classifier(model)
        self.margin = AdditiveAngularMargin(is_margin_of_cosine=model.is_margin_of_cosine)

    def forward(self, features: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        cosine = self.classifier(self.embedding_model(features, lengths))
        targets = F.one_hot(labels, cosine.shape[1]).float()
        return F.cross_entropy(self.margin(cosine, targets), labels)


class MomentNorm(nn.Module):
    """A batch norm of all axes but the second one, from mean and variance."""

    def __init__(self, model: Model, path: str, dim: tuple[int, ...]) -> None:
        super().__init__()
        self.gain = nn.Parameter(read(model, f"{path}.weight"))
        self.shift = nn.Parameter(read(model, f"{path}.bias"))
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=self.dim, unbiased=False, keepdim=True)
        shape = (-1,) + (1,) * (x.ndim - 2)
        x = (x - mean) / torch.sqrt(variance + EPS)
        return torch.addcmul(self.shift.view(shape), x, self.gain.view(shape))


class Kernel(nn.Module):
    """A convolution; of several inputs, it sums what it makes of each."""

    def __init__(self, model: Model, path: str, dilation: int = 1) -> None:
        super().__init__()
        self.kernel = nn.Parameter(read(model, f"{path}.weight"))
        self.offset = nn.Parameter(read(model, f"{path}.bias"))
        self.dilation = dilation

    def forward(self, *inputs: Tensor) -> Tensor:
        first, *others = self.kernel.chunk(len(inputs), dim=1)
        padding = self.dilation * (self.kernel.shape[2] // 2)
        y = F.conv1d(inputs[0], first, self.offset, padding=padding, dilation=self.dilation)
        for kernel, x in zip(others, inputs[1:], strict=True):
            y = y + F.conv1d(x, kernel)
        return y


class Unit(nn.Module):
    """Convolution, rectifier, batch norm."""

    def __init__(self, model: Model, path: str, dilation: int = 1) -> None:
        super().__init__()
        self.filter = Kernel(model, path, dilation)
        self.scaling = MomentNorm(model, f"{path}.norm", (0, 2))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.scaling(self.filter(*inputs).clamp(min=0))


class Stage(nn.Module):
    """A block with squeeze-and-excitation by linear layers."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.reduce, self.expand = Unit(model, f"{path}.in"), Unit(model, f"{path}.out")
        self.ladder = nn.ModuleList(
            Unit(model, f"{path}.scales.{piece}", DILATIONS[n]) for piece in range(SCALES - 1)
        )
        self.squeeze = Kernel(model, f"{path}.squeeze")
        self.excite = Kernel(model, f"{path}.excite")

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        first, *pieces = self.reduce(x).chunk(SCALES, dim=1)
        outputs = [first, self.ladder[0](pieces[0])]
        for unit, piece in zip(self.ladder[1:], pieces[1:], strict=True):
            outputs.append(unit(outputs[-1] + piece))
        y = self.expand(torch.cat(outputs, dim=1))
        mean = torch.einsum("bct,bt->bc", y, shares).unsqueeze(2)
        gate = torch.sigmoid(self.excite(self.squeeze(mean).clamp(min=0)))
        return torch.addcmul(x, y, gate)


class SpeakerLearner(nn.Module):
    """The net and its loss in one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = Unit(model, "entry")
        self.stages = nn.ModuleList(Stage(model, n) for n in range(BLOCKS))
        self.fusion = Unit(model, "aggregate")
        self.query, self.score = Unit(model, "attention.in"), Kernel(model, "attention.out")
        self.neck = MomentNorm(model, "pool_norm", (0,))
        self.project = Kernel(model, "embed")
        self.prototypes = nn.Parameter(read(model, "classes.weight"))

    def pool(self, x: Tensor, shares: Tensor) -> Tensor:
        """Return weighted mean and deviation, (batch, 2, channels)."""
        mean = torch.einsum("bct,bct->bc", shares, x)
        variance = torch.einsum("bct,bct->bc", shares, x * x) - mean * mean
        return torch.stack((mean, variance.clamp(min=CLAMP).sqrt()), dim=1)

    def attend(self, x: Tensor, is_valid: Tensor, shares: Tensor) -> Tensor:
        """Return the weight of each frame and channel."""
        context = self.pool(x, shares.unsqueeze(1).expand_as(x))
        mean, deviation = context.unsqueeze(3).unbind(1)
        scores = self.score(torch.tanh(self.query(x, mean, deviation)))
        powers = scores.masked_fill(~is_valid.unsqueeze(1), -torch.inf).exp()
        return powers / powers.sum(dim=2, keepdim=True)

    def forward(self, features: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        is_valid = torch.arange(features.shape[1]) < lengths[:, None]
        shares = is_valid / lengths[:, None]
        x = self.stem(features.mT)
        outputs = []
        for stage in self.stages:
            outputs.append(stage(x, shares))
            x = x + outputs[-1]
        x = self.fusion(*outputs)
        pooled = self.pool(x, self.attend(x, is_valid, shares))
        embedding = self.project(self.neck(pooled.flatten(1)).unsqueeze(2)).squeeze(2)

        embedding = embedding / embedding.norm(dim=1, keepdim=True)
        prototypes = self.prototypes / self.prototypes.norm(dim=1, keepdim=True)
        cosine = torch.einsum("be,ke->bk", embedding, prototypes)
        angle = torch.acos(cosine.gather(1, labels[:, None]))
        beyond = torch.cos(angle) - MARGIN * math.sin(MARGIN)
        turned = torch.where(angle < math.pi - MARGIN, torch.cos(angle + MARGIN), beyond)
        logits = SCALE * cosine.scatter(1, labels[:, None], turned)
        return (logits.logsumexp(dim=1) - SCALE * turned[:, 0]).mean()
