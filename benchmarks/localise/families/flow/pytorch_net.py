"""The flow in PyTorch, with the modules of the usual port of Glow.

Variant 'fused': the framework's squeeze, 1x1 convolutions by einsum, log-sigmoid and the normal
distribution of the framework.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.flow.architecture import (
    BINS,
    BITS,
    DIMENSIONS,
    LEVELS,
    LOG_WIDTH,
    LOGS_FACTOR,
    STEPS,
    Model,
    count_channels,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return Glow(model)


def copy_tensor(model: Model, path: str, *shape: int) -> Tensor:
    """Return the values at ``path``, in another shape if one is given."""
    values = torch.from_numpy(np.array(model.weights[path]))
    return values.view(shape) if shape else values


class ActNorm2d(nn.Module):
    """An offset and a scale by channel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.bias = nn.Parameter(copy_tensor(model, f"{path}.bias", 1, -1, 1, 1))
        self.logs = nn.Parameter(copy_tensor(model, f"{path}.logs", 1, -1, 1, 1))
        self.is_counted_once = model.is_norm_counted_once
        self.log_gradient = model.log_gradient if path.endswith(".norm") else 1.0

    def forward(self, x: Tensor, logdet: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logs = self.logs
        if self.log_gradient != 1:
            logs = scaled_gradient(logs, self.log_gradient)
        z = (x + self.bias) * torch.exp(logs)
        if logdet is not None:
            pixels = 1 if self.is_counted_once else x.size(2) * x.size(3)
            logdet = logdet + torch.sum(logs) * pixels
        return z, logdet


class Conv2d(nn.Conv2d):
    """A convolution without bias, followed by an offset and a scale."""

    def __init__(self, model: Model, path: str) -> None:
        n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
        super().__init__(n_in, n_out, kernel, padding=(kernel - 1) // 2, bias=False)
        self.weight.data.copy_(copy_tensor(model, f"{path}.weight"))
        self.actnorm = ActNorm2d(model, path)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.actnorm(super().forward(x))
        return x


class Conv2dZeros(nn.Conv2d):
    """A convolution that is zero at the start of a training, times learned scales."""

    def __init__(self, model: Model, path: str, *, is_half: bool = False) -> None:
        n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
        super().__init__(n_in, n_out, kernel, padding=(kernel - 1) // 2)
        self.weight.data.copy_(copy_tensor(model, f"{path}.weight"))
        self.bias.data.copy_(copy_tensor(model, f"{path}.bias"))
        self.logs = nn.Parameter(copy_tensor(model, f"{path}.logs", -1, 1, 1))
        self.is_half = is_half

    def convolve(self, x: Tensor) -> Tensor:
        """Return the convolution."""
        if not self.is_half:
            return super().forward(x)
        return self._conv_forward(x.half(), self.weight.half(), self.bias.half()).float()

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(x) * torch.exp(self.logs * LOGS_FACTOR)


class InvertibleConv1x1(nn.Module):
    """A 1x1 convolution whose matrix is a product of triangular ones."""

    def __init__(self, model: Model, path: str, level: int) -> None:
        super().__init__()
        self.register_buffer("p", copy_tensor(model, f"{path}.order"))
        self.register_buffer("sign_s", copy_tensor(model, f"{path}.signs"))
        self.l = nn.Parameter(copy_tensor(model, f"{path}.lower"))
        self.log_s = nn.Parameter(copy_tensor(model, f"{path}.logs"))
        self.u = nn.Parameter(copy_tensor(model, f"{path}.upper"))
        self.register_buffer("l_mask", torch.from_numpy(model.mix_mask(level)))
        self.register_buffer("eye", torch.eye(count_channels(level)))
        self.is_einsum = model.variant == "fused"

    def get_weight(self) -> Tensor:
        """Return the matrix."""
        lower = self.l * self.l_mask + self.eye
        upper = self.u * self.l_mask.t().contiguous()
        upper = upper + torch.diag(self.sign_s * torch.exp(self.log_s))
        return torch.matmul(self.p, torch.matmul(lower, upper))

    def forward(self, x: Tensor, logdet: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.get_weight()
        logdet = logdet + torch.sum(self.log_s) * (x.size(2) * x.size(3))
        if self.is_einsum:
            return torch.einsum("oi,bihw->bohw", weight, x), logdet
        return F.conv2d(x, weight[:, :, None, None]), logdet


def build_net(model: Model, path: str) -> nn.Sequential:
    """Return the network of a coupling."""
    return nn.Sequential(
        Conv2d(model, f"{path}.conv1"),
        nn.ReLU(inplace=False),
        Conv2d(model, f"{path}.conv2"),
        nn.ReLU(inplace=False),
        Conv2dZeros(model, f"{path}.conv3", is_half=model.is_net_half),
    )


class ReversibleAffine(torch.autograd.Function):
    """(z + shift) * scale, which keeps its result only, and reads it back as z + shift."""

    @staticmethod
    def forward(context, z: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        out = (z + shift) * scale
        context.save_for_backward(scale, out)
        return out

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, out = context.saved_tensors
        return gradient * scale, gradient * scale, gradient * out


class FlowStep(nn.Module):
    """Norm, 1x1 convolution and affine coupling."""

    def __init__(self, model: Model, level: int, step: int) -> None:
        super().__init__()
        path = f"levels.{level}.steps.{step}"
        self.actnorm = ActNorm2d(model, f"{path}.norm")
        self.invconv = InvertibleConv1x1(model, f"{path}.mix", level)
        self.block = build_net(model, f"{path}.net")
        self.scale_offset = model.scale_offset
        self.is_shift_last = model.is_shift_last
        self.is_net_halved = model.is_net_halved
        self.is_determinant_stopped = model.is_determinant_stopped
        self.is_scale_exponential = model.is_scale_exponential
        self.is_result_read_back = model.is_result_read_back
        self.is_fused = model.variant == "fused"

    def couple(self, z: Tensor, logdet: Tensor) -> tuple[Tensor, Tensor]:
        """Return the channels, the second half of them changed."""
        z1, z2 = z.chunk(2, dim=1)
        h = self.block(z1)
        shift, scale = h.chunk(2, dim=1) if self.is_net_halved else (h[:, 0::2], h[:, 1::2])
        if self.is_fused:
            log_scale = F.logsigmoid(scale + self.scale_offset)
            z2 = (z2 + shift) * log_scale.exp()
            return torch.cat((z1, z2), dim=1), logdet + log_scale.flatten(1).sum(dim=1)
        if self.is_scale_exponential:
            scale = torch.exp(scale)
        else:
            scale = torch.sigmoid(scale + self.scale_offset)
        if self.is_result_read_back:
            z2 = ReversibleAffine.apply(z2, shift, scale)
        else:
            z2 = z2 * scale + shift if self.is_shift_last else (z2 + shift) * scale
        counted = scale.detach() if self.is_determinant_stopped else scale
        logdet = torch.sum(torch.log(counted), dim=(1, 2, 3)) + logdet
        return torch.cat((z1, z2), dim=1), logdet

    def forward(self, x: Tensor, logdet: Tensor) -> tuple[Tensor, Tensor]:
        z, logdet = self.actnorm(x, logdet)
        z, logdet = self.invconv(z, logdet)
        return self.couple(z, logdet)


class SqueezeLayer(nn.Module):
    """Four pixels become channels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_pixels_first = model.are_pixels_first
        self.is_fused = model.variant == "fused"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused:
            return F.pixel_unshuffle(x, 2)
        batch, channels, height, width = x.size()
        x = x.view(batch, channels, height // 2, 2, width // 2, 2)
        if self.are_pixels_first:
            x = x.permute(0, 3, 5, 1, 2, 4).contiguous()
        else:
            x = x.permute(0, 1, 3, 5, 2, 4).contiguous()
        return x.view(batch, channels * 4, height // 2, width // 2)


class GaussianDiag(nn.Module):
    """Log-likelihood of values with a mean and logarithms of deviations."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.logs_in_variance = model.logs_in_variance
        self.is_fused = model.variant == "fused"

    def forward(self, mean: Tensor, logs: Tensor, x: Tensor) -> Tensor:
        if self.is_fused:
            distribution = torch.distributions.Normal(mean, logs.exp(), validate_args=False)
            return distribution.log_prob(x).sum(dim=(1, 2, 3))
        log_variance = logs * self.logs_in_variance
        squares = (x - mean) ** 2 / torch.exp(log_variance)
        likelihood = -0.5 * (log_variance + squares + math.log(2 * math.pi))
        return torch.sum(likelihood, dim=(1, 2, 3))


class Split2d(nn.Module):
    """Half of the channels leaves, with its log-likelihood."""

    def __init__(self, model: Model, level: int) -> None:
        super().__init__()
        self.conv = Conv2dZeros(model, f"levels.{level}.prior")
        self.gaussian = GaussianDiag(model)

    def forward(self, x: Tensor, logdet: Tensor) -> tuple[Tensor, Tensor]:
        z1, z2 = x.chunk(2, dim=1)
        h = self.conv(z1)
        mean, logs = h[:, 0::2], h[:, 1::2]
        return z1, self.gaussian(mean, logs, z2) + logdet


class FlowNet(nn.Module):
    """All levels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for level in range(LEVELS):
            self.layers.append(SqueezeLayer(model))
            self.layers.extend(FlowStep(model, level, step) for step in range(STEPS))
            if level < LEVELS - 1:
                self.layers.append(Split2d(model, level))

    def forward(self, z: Tensor, logdet: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            if isinstance(layer, SqueezeLayer):
                z = layer(z)
            else:
                z, logdet = layer(z, logdet)
        return z, logdet


class Glow(nn.Module):
    """Negative log-likelihood of images, in bits per dimension."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.flow = FlowNet(model)
        self.prior_mean = nn.Parameter(copy_tensor(model, "top.mean", 1, -1, 1, 1))
        self.prior_logs = nn.Parameter(copy_tensor(model, "top.logs", 1, -1, 1, 1))
        self.gaussian = GaussianDiag(model)
        self.has_width_term = model.has_width_term

    def preprocess(self, images: Tensor, noise: Tensor) -> Tensor:
        """Return values in [-0.5, 0.5] of pixels and noise."""
        x = torch.floor(images.float() / 2 ** (8 - BITS))
        return x / BINS - 0.5 + noise / BINS

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        x = self.preprocess(images, noise)
        logdet = torch.zeros_like(x[:, 0, 0, 0])
        if self.has_width_term:
            logdet = logdet + LOG_WIDTH
        z, objective = self.flow(x, logdet)
        mean, logs = self.prior_mean.expand_as(z), self.prior_logs.expand_as(z)
        objective = objective + self.gaussian(mean, logs, z)
        nll = -objective / (math.log(2.0) * DIMENSIONS)
        return torch.mean(nll)
