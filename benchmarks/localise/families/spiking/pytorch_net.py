"""The spiking transformer in PyTorch, with the names of SpikingJelly.

Variant 'functional': tokens behind channels and convolutions of them as in Spikformer's code, one
layer for queries, keys and values, spikes from a detached difference, potentials from weighted
sums, norms and losses from reductions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.spiking.architecture import (
    ACTIVITY,
    ALPHA,
    BLOCKS,
    BRANCH_ALPHA,
    CLASSES,
    CONV_THRESHOLD,
    DECAY,
    DISTILLATION,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    MARGIN,
    MARGIN_SHARE,
    MOMENTUM,
    RATE,
    READOUT_DECAY,
    SCALE,
    SLOPE,
    STEPS,
    TEMPERATURE,
    TOKEN_THRESHOLD,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FunctionalLoss(model) if model.variant == "functional" else SpikingLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a copy of a weight, or of several behind each other."""
    return torch.from_numpy(np.concatenate([model.weights[name] for name in names]))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weights at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(read(model, f"{path}.{name}"))
    return module


class ATan(Function):
    """Spikes with the derivative of an arctan."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return (x >= 0).to(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        slope = ctx.alpha / 2 / (1 + (math.pi / 2 * ctx.alpha * x).pow(2))
        return slope * grad_output, None


class FastSigmoid(Function):
    """Spikes with the derivative of a fast sigmoid."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return (x >= 0).to(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (ctx.slope * x.abs() + 1) ** 2, None


class BaseNode(nn.Module):
    """Neurons, of inputs (steps, batch, ...); ``rates`` are those of channels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_reset_detached = model.is_reset_detached
        self.are_potentials_detached = model.are_potentials_detached
        self.rates = torch.empty(0)

    def cut(self, spike: Tensor) -> Tensor:
        """Return spikes as the reset reads them."""
        return spike.detach() if self.is_reset_detached else spike

    def keep(self, v: Tensor) -> Tensor:
        """Return potentials as the next time step reads them."""
        return v.detach() if self.are_potentials_detached else v


class ParametricLIFNode(BaseNode):
    """Neurons of channels that learn how fast they leak; soft reset, refractory for one step."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(model)
        self.w = nn.Parameter(read(model, f"{path}.leak"))
        self.is_refractory = model.is_refractory

    def forward(self, x_seq: Tensor) -> Tensor:
        gain = self.w.sigmoid().view(-1, 1, 1)
        v = torch.zeros_like(x_seq[0])
        refractory = torch.zeros_like(v)
        spikes = []
        for x in x_seq:
            v = v + (x - v) * gain
            spike = ATan.apply(v - CONV_THRESHOLD, ALPHA)
            if self.is_refractory:
                spike = spike * (1 - refractory)
                refractory = spike.detach()
            v = self.keep(v - self.cut(spike) * CONV_THRESHOLD)
            spikes.append(spike)
        spike_seq = torch.stack(spikes)
        self.rates = spike_seq.mean(dim=(0, 1, 3, 4))
        return spike_seq


class LIFNode(BaseNode):
    """Neurons of tokens; hard reset."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.is_input_decayed = model.is_input_decayed

    def forward(self, x_seq: Tensor) -> Tensor:
        v = torch.zeros_like(x_seq[0])
        spikes = []
        for x in x_seq:
            v = DECAY * v + ((1 - DECAY) * x if self.is_input_decayed else x)
            spike = FastSigmoid.apply(v - TOKEN_THRESHOLD, SLOPE)
            v = self.keep((1 - self.cut(spike)) * v)
            spikes.append(spike)
        spike_seq = torch.stack(spikes)
        self.rates = spike_seq.mean(dim=(0, 1, 2))
        return spike_seq


class ThresholdDependentBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over time and batch, times alpha * v_th, of (images, channels, ...)."""

    def __init__(self, model: Model, path: str, alpha: float, v_th: float) -> None:
        weight = read(model, f"{path}.weight")
        super().__init__(len(weight), eps=EPS, momentum=MOMENTUM)
        load(self, model, path)
        self.scale = alpha * v_th

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in (2, 3, 4):
            raise ValueError(f"expected 2D, 3D or 4D input (got {input.dim()}D input)")

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        statistics = (self.running_mean, self.running_var)
        weight = self.weight * self.scale
        return F.batch_norm(x, *statistics, weight, self.bias, True, self.momentum, self.eps)


class SeqToANNContainer(nn.Sequential):
    """Layers for which each time step of (steps, batch, ...) is a further image."""

    def forward(self, x_seq: Tensor) -> Tensor:
        y = super().forward(x_seq.flatten(0, 1))
        return y.unflatten(0, x_seq.shape[:2])


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at ``path``; one with one channel per kernel is depthwise."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    groups = n_out if n_in == 1 else 1
    n_in *= groups
    conv = nn.Conv2d(n_in, n_out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    conv.weight.data.copy_(weight)
    return conv


def build_conv_layer(model: Model, path: str, stride: int = 1, alpha: float = 1.0) -> nn.Sequential:
    """Return a convolution, its norm and its neurons."""
    norm = ThresholdDependentBatchNorm(model, f"{path}.norm", alpha, CONV_THRESHOLD)
    return nn.Sequential(
        SeqToANNContainer(load_conv(model, path, stride), norm), ParametricLIFNode(model, path)
    )


class TokenLayer(nn.Module):
    """A linear layer, its norm and its neurons, of (steps, batch, tokens, features)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight = read(model, f"{path}.weight")
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.linear.weight.data.copy_(weight)
        self.bn = ThresholdDependentBatchNorm(model, f"{path}.norm", 1.0, TOKEN_THRESHOLD)
        self.lif = LIFNode(model)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y = self.bn(y.flatten(0, 2)).view_as(y)
        return self.lif(y)


class SEWBlock(nn.Module):
    """Two layers, whose spikes are added to those that come in."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, stride = f"blocks.{n}", BLOCKS[n][2]
        self.conv1 = build_conv_layer(model, f"{path}.first", stride, BRANCH_ALPHA)
        self.conv2 = build_conv_layer(model, f"{path}.second", 1, BRANCH_ALPHA)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1:
            self.downsample = build_conv_layer(model, f"{path}.shortcut", stride, BRANCH_ALPHA)

    def forward(self, x: Tensor) -> Tensor:
        return self.downsample(x) + self.conv2(self.conv1(x))


class SpikingSelfAttention(nn.Module):
    """Attention of spikes, without softmax."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.q, self.k, self.v = (TokenLayer(model, f"attention.{name}") for name in "qkv")
        self.attn_lif = LIFNode(model)
        self.proj = TokenLayer(model, "attention.out")

    def split_heads(self, x: Tensor) -> Tensor:
        """Return (steps, batch, heads, tokens, features of a head)."""
        return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split_heads(layer(x)) for layer in (self.q, self.k, self.v))
        attn = (q @ k.transpose(-2, -1)) * SCALE
        context = (attn @ v).transpose(2, 3).flatten(3)
        return self.proj(self.attn_lif(context))


class SpikingTransformer(nn.Module):
    """Logits of each time step, (steps, batch, classes)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = build_conv_layer(model, "stem")
        self.pool = SeqToANNContainer(nn.AvgPool2d(2))
        self.layers = nn.Sequential(*(SEWBlock(model, n) for n in range(len(BLOCKS))))
        self.rpe = build_conv_layer(model, "position")
        self.attn = SpikingSelfAttention(model)
        self.mlp = nn.Sequential(TokenLayer(model, "mlp.up"), TokenLayer(model, "mlp.down"))
        self.head = load(nn.Linear(HIDDEN, CLASSES), model, "head")
        self.is_image_interleaved = model.is_image_interleaved

    def repeat(self, images: Tensor) -> Tensor:
        """Return the input of each time step."""
        if self.is_image_interleaved:
            return images.repeat_interleave(STEPS, dim=0).view(STEPS, *images.shape)
        return images.unsqueeze(0).repeat(STEPS, 1, 1, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layers(self.pool(self.stem(self.repeat(images))))
        x = x + self.rpe(x)
        x = x.flatten(3).transpose(2, 3)
        x = x + self.attn(x)
        x = x + self.mlp(x)
        return self.head(x.mean(dim=2))


class LeakyIntegrator(nn.Module):
    """Potentials of neurons that do not spike."""

    def forward(self, x_seq: Tensor) -> Tensor:
        v = torch.zeros_like(x_seq[0])
        potentials = []
        for x in x_seq:
            v = READOUT_DECAY * v + x
            potentials.append(v)
        return torch.stack(potentials)


class SpikingLoss(nn.Module):
    """Loss of all time steps, of a teacher and of the rates of neurons."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = SpikingTransformer(model)
        self.readout = LeakyIntegrator()
        self.reduction = "mean" if model.is_divergence_meaned else "batchmean"

    def forward(self, images: Tensor, labels: Tensor, teacher_logits: Tensor) -> Tensor:
        outputs = self.readout(self.net(images))
        loss_es = sum(F.cross_entropy(output, labels) for output in outputs) / STEPS
        mmd = F.mse_loss(outputs, torch.full_like(outputs, MARGIN))
        loss = (1 - MARGIN_SHARE) * loss_es + MARGIN_SHARE * mmd

        student = F.log_softmax(outputs.mean(dim=0) / TEMPERATURE, dim=-1)
        teacher = F.softmax(teacher_logits / TEMPERATURE, dim=-1)
        divergence = F.kl_div(student, teacher, reduction=self.reduction)
        loss = loss + DISTILLATION * TEMPERATURE**2 * divergence

        nodes = [module for module in self.net.modules() if isinstance(module, BaseNode)]
        activity = sum((node.rates - RATE).pow(2).mean() for node in nodes) / len(nodes)
        return loss + ACTIVITY * activity


def fire(z: Tensor, surrogate: Tensor) -> Tensor:
    """Return spikes where z is not negative, with the gradient of a surrogate."""
    return (z >= 0).float() + (surrogate - surrogate.detach())


class ConvNeurons(nn.Module):
    """PLIF neurons, from the weighted sum of the old potential and the input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.leak = nn.Parameter(read(model, f"{path}.leak")[:, None, None])

    def forward(self, current: Tensor) -> Tensor:
        gain = torch.sigmoid(self.leak)
        rest = torch.zeros_like(current[0])
        ready = torch.ones_like(rest, dtype=torch.bool)
        outputs = []
        for charge in torch.unbind(current * gain):
            mem = torch.addcmul(charge, torch.sigmoid(-self.leak), rest)
            z = mem - CONV_THRESHOLD
            surrogate = torch.atan(math.pi / 2 * ALPHA * z) / math.pi
            spikes = torch.where(ready, fire(z, surrogate), 0.0)
            ready = spikes.detach() == 0
            rest = torch.where(ready, mem, z)
            outputs.append(spikes)
        return torch.stack(outputs)


def fire_tokens(current: Tensor) -> Tensor:
    """Return spikes of LIF neurons (steps, batch, features, tokens)."""
    mem = torch.zeros_like(current[0])
    outputs = []
    for t in range(STEPS):
        mem = torch.add(current[t], mem, alpha=DECAY)
        z = mem - TOKEN_THRESHOLD
        outputs.append(fire(z, z / (1 + SLOPE * z.abs())))
        mem = mem.masked_fill(z.detach() >= 0, 0.0)
    return torch.stack(outputs)


class NormedConv(nn.Module):
    """A convolution and its norm, from means and variances."""

    def __init__(self, model: Model, paths: tuple[str, ...], stride: int, scale: float) -> None:
        super().__init__()
        weight = read(model, *(f"{path}.weight" for path in paths))
        self.weight = nn.Parameter(weight.unsqueeze(-1) if weight.dim() == 2 else weight)
        self.gamma = nn.Parameter(read(model, *(f"{path}.norm.weight" for path in paths)))
        self.beta = nn.Parameter(read(model, *(f"{path}.norm.bias" for path in paths)))
        self.stride, self.scale = stride, scale

    def forward(self, x: Tensor) -> Tensor:
        groups = len(self.weight) if x.dim() == 5 and self.weight.shape[1] == 1 else 1
        conv = F.conv2d if x.dim() == 5 else F.conv1d
        padding = self.weight.shape[-1] // 2
        y = conv(x.flatten(0, 1), self.weight, None, self.stride, padding, 1, groups)
        var, mean = torch.var_mean(y, dim=(0, *range(2, y.dim())), correction=0, keepdim=True)
        shape = mean.shape
        factor = self.scale * self.gamma.view(shape) * torch.rsqrt(var + EPS)
        return torch.addcmul(self.beta.view(shape), y - mean, factor).unflatten(0, (STEPS, -1))


class ConvSpikes(nn.Module):
    """A convolution with its norm and neurons."""

    def __init__(self, model: Model, path: str, stride: int = 1, alpha: float = 1.0) -> None:
        super().__init__()
        self.current = NormedConv(model, (path,), stride, alpha * CONV_THRESHOLD)
        self.neurons = ConvNeurons(model, path)

    def forward(self, x: Tensor, spikes: list[Tensor]) -> Tensor:
        spikes.append(self.neurons(self.current(x)))
        return spikes[-1]


class ResidualSpikes(nn.Module):
    """A block of two convolutions."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, stride = f"blocks.{n}", BLOCKS[n][2]
        self.reduce = ConvSpikes(model, f"{path}.first", stride, BRANCH_ALPHA)
        self.expand = ConvSpikes(model, f"{path}.second", 1, BRANCH_ALPHA)
        self.skip = None
        if stride > 1:
            self.skip = ConvSpikes(model, f"{path}.shortcut", stride, BRANCH_ALPHA)

    def forward(self, x: Tensor, spikes: list[Tensor]) -> Tensor:
        branch = self.expand(self.reduce(x, spikes), spikes)
        return branch + (x if self.skip is None else self.skip(x, spikes))


class Spikformer(nn.Module):
    """Logits of each time step, and the spikes of all layers of neurons."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = ConvSpikes(model, "stem")
        self.blocks = nn.ModuleList(ResidualSpikes(model, n) for n in range(len(BLOCKS)))
        self.pos_embed = ConvSpikes(model, "position")
        qkv = ("attention.q", "attention.k", "attention.v")
        self.qkv_conv = NormedConv(model, qkv, 1, TOKEN_THRESHOLD)
        self.proj_conv = NormedConv(model, ("attention.out",), 1, TOKEN_THRESHOLD)
        self.fc1_conv = NormedConv(model, ("mlp.up",), 1, TOKEN_THRESHOLD)
        self.fc2_conv = NormedConv(model, ("mlp.down",), 1, TOKEN_THRESHOLD)
        self.classifier = load(nn.Linear(HIDDEN, CLASSES), model, "head")

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        spikes: list[Tensor] = []
        x = self.patch_embed(images.expand(STEPS, *images.shape), spikes)
        x = F.avg_pool2d(x.flatten(0, 1), 2).unflatten(0, (STEPS, -1))
        for block in self.blocks:
            x = block(x, spikes)
        x = (self.pos_embed(x, spikes) + x).flatten(3)

        qkv = fire_tokens(self.qkv_conv(x))
        q, k, v = qkv.view(STEPS, -1, 3, HEADS, HEAD_DIM, x.shape[-1]).unbind(dim=2)
        scores = torch.einsum("tbhdn,tbhdm->tbhnm", q, k)
        context = torch.einsum("tbhnm,tbhdm->tbhdn", scores, v * SCALE).flatten(2, 3)
        context = fire_tokens(context)
        out = fire_tokens(self.proj_conv(context))
        x = x + out
        hidden = fire_tokens(self.fc1_conv(x))
        down = fire_tokens(self.fc2_conv(hidden))
        spikes += [*qkv.split(HIDDEN, dim=2), context, out, hidden, down]
        return self.classifier((x + down).mean(dim=-1)), spikes


class FunctionalLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.snn = Spikformer(model)
        steps = torch.arange(STEPS)
        decays = READOUT_DECAY ** (steps[:, None] - steps).clamp(min=0).float()
        self.register_buffer("decays", decays.tril(), persistent=False)

    def forward(self, images: Tensor, labels: Tensor, teacher_logits: Tensor) -> Tensor:
        logits, spikes = self.snn(images)
        outputs = torch.einsum("ts,sbc->tbc", self.decays, logits)
        chosen = outputs.gather(2, labels.expand(STEPS, -1).unsqueeze(-1)).squeeze(-1)
        cross_entropy = (outputs.logsumexp(dim=-1) - chosen).mean()
        loss = torch.lerp(cross_entropy, (outputs - MARGIN).square().mean(), MARGIN_SHARE)

        teacher = torch.log_softmax(teacher_logits / TEMPERATURE, dim=-1)
        student = torch.log_softmax(outputs.sum(dim=0) / (STEPS * TEMPERATURE), dim=-1)
        divergence = (teacher.exp() * (teacher - student)).sum(dim=-1).mean()
        loss = loss + DISTILLATION * TEMPERATURE * TEMPERATURE * divergence

        rates = [layer.transpose(0, 2).flatten(1).mean(dim=1) for layer in spikes]
        errors = torch.stack([(rate - RATE).square().mean() for rate in rates])
        return loss + ACTIVITY * errors.mean()
