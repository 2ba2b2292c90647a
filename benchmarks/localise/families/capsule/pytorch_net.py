"""The capsule network in PyTorch.

Variant 'einsum': other names, types behind cells, votes and sums by einsum, one convolution for
poses and activations, the decoder's first layer from the capsule of the label only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.capsule.architecture import (
    CAPSULES,
    CELLS,
    CHANNELS,
    CLASS_DIM,
    CLASSES,
    COLUMNS,
    COORDINATE,
    DEVIATION,
    DIM,
    DOWN_WEIGHT,
    ENTROPY,
    EPS,
    HEIGHT,
    LOWER,
    MARGIN_STEPS,
    MEAN,
    MIXER_ROUTINGS,
    NORM_EPS,
    RECONSTRUCTION,
    ROUTINGS,
    ROWS,
    SPREAD_WEIGHT,
    STRIDE,
    TYPES,
    UPPER,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return EinsumLoss(model) if model.variant == "einsum" else CapsuleLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return torch.from_numpy(model.weights[name].copy())


def load_conv(model: Model, path: str) -> nn.Conv2d:
    """Return the convolution at a path, with stride 2."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    conv = nn.Conv2d(n_in, n_out, kernel, stride=2, padding=kernel // 2)
    conv.load_state_dict({name: read(model, f"{path}.{name}") for name in ("weight", "bias")})
    return conv


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at a path."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    linear = nn.Linear(n_in, n_out)
    linear.load_state_dict({name: read(model, f"{path}.{name}") for name in ("weight", "bias")})
    return linear


class SquashFunction(Function):
    """Squashing, with a backward pass of its own that has no division by a small length."""

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        squared_norm = x.pow(2).sum(dim=-1, keepdim=True)
        scale = squared_norm / (1 + squared_norm) / torch.sqrt(squared_norm + EPS)
        context.save_for_backward(scale)
        return scale * x

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        (scale,) = context.saved_tensors
        return gradient * scale


class Squash(nn.Module):
    """Capsules with lengths below 1."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_gradient_plain = model.is_squash_gradient_plain

    def forward(self, x: Tensor) -> Tensor:
        if self.is_gradient_plain:
            return SquashFunction.apply(x)
        squared_norm = x.pow(2).sum(dim=-1, keepdim=True)
        return squared_norm / (1 + squared_norm) * (x / torch.sqrt(squared_norm + EPS))


class PrimaryCaps(nn.Module):
    """Poses (batch, TYPES, CELLS, DIM) and activations (batch, TYPES, CELLS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pose = load_conv(model, "primary.pose")
        self.a = load_conv(model, "primary.gate")
        self.squash = Squash(model)
        self.are_capsules_viewed = model.are_capsules_viewed

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.pose(x)
        if self.are_capsules_viewed:
            p = p.view(-1, TYPES, CELLS, DIM)
        else:
            p = p.view(-1, TYPES, DIM, CELLS).permute(0, 1, 3, 2).contiguous()
        a = torch.sigmoid(self.a(x))
        return self.squash(p), a.view(-1, TYPES, CELLS)


class InvertedDotProductRouting(nn.Module):
    """Capsules of a cell plus what their votes agree on."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.w = nn.Parameter(read(model, "mixer.weight").unsqueeze(2))
        self.nonlinear_act = nn.LayerNorm(DIM, eps=NORM_EPS)
        self.nonlinear_act.weight.data.copy_(read(model, "mixer.norm.weight"))
        self.nonlinear_act.bias.data.copy_(read(model, "mixer.norm.bias"))
        self.scale = 1.0 / DIM**0.5

    def forward(self, current_pose: Tensor) -> Tensor:
        # (batch, TYPES, TYPES of the result, CELLS, DIM)
        votes = torch.matmul(self.w, current_pose[:, :, None, :, :, None]).squeeze(-1)
        query_key = votes.new_full(votes.shape[:-1], 1.0 / TYPES)
        next_capsule_value = self.nonlinear_act(torch.sum(query_key.unsqueeze(-1) * votes, dim=1))
        for _ in range(MIXER_ROUTINGS - 1):
            _query_key = torch.sum(votes * next_capsule_value.unsqueeze(1), dim=-1)
            query_key = F.softmax(_query_key * self.scale, dim=2)
            next_capsule_value = torch.sum(query_key.unsqueeze(-1) * votes, dim=1)
            next_capsule_value = self.nonlinear_act(next_capsule_value)
        return current_pose + next_capsule_value


class DenseCaps(nn.Module):
    """Capsules (batch, CLASSES, CLASS_DIM) and their couplings (batch, CLASSES, CAPSULES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, "classes.weight").unsqueeze(2))
        self.prior = nn.Parameter(read(model, "classes.prior"))
        self.squash = Squash(model)
        rows = (torch.arange(ROWS) + model.cell_center) / ROWS
        columns = (torch.arange(COLUMNS) + model.cell_center) / COLUMNS
        coords = torch.zeros(ROWS, COLUMNS, CLASS_DIM)
        coords[..., 0] = COORDINATE * rows[:, None]
        coords[..., 1] = COORDINATE * columns
        self.register_buffer("coords", coords.view(CELLS, CLASS_DIM))

    def forward(self, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        x_hat = torch.matmul(self.weight, x[:, None, :, :, :, None]).squeeze(-1) + self.coords
        x_hat = x_hat.flatten(2, 3)
        x_hat_detached = x_hat.detach()
        a = a.flatten(1)[:, None, :, None]

        b = self.prior.repeat_interleave(CELLS, dim=1).expand(x.size(0), CLASSES, CAPSULES)
        for i in range(ROUTINGS):
            c = F.softmax(b, dim=1)
            if i == ROUTINGS - 1:
                outputs = self.squash(torch.sum(a * c[..., None] * x_hat, dim=-2, keepdim=True))
            else:
                s = torch.sum(a * c[..., None] * x_hat_detached, dim=-2, keepdim=True)
                outputs = self.squash(s)
                b = b + torch.sum(outputs * x_hat_detached, dim=-1)
        return outputs.squeeze(-2), c


class CapsuleNet(nn.Module):
    """Lengths of class capsules, couplings, and the image from one of the capsules."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = load_conv(model, "stem")
        self.relu = nn.ReLU()
        self.primarycaps = PrimaryCaps(model)
        self.convcaps = InvertedDotProductRouting(model)
        self.digitcaps = DenseCaps(model)
        self.decoder = nn.Sequential(
            load_linear(model, "decoder.0"),
            nn.ReLU(inplace=True),
            load_linear(model, "decoder.1"),
            nn.ReLU(inplace=True),
            load_linear(model, "decoder.2"),
            nn.Sigmoid(),
        )
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(DEVIATION).view(3, 1, 1))
        self.is_longest_decoded = model.is_longest_decoded

    def forward(self, images: Tensor, mask: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.relu(self.conv1((images - self.mean) / self.std))
        pose, a = self.primarycaps(x)
        x, c = self.digitcaps(self.convcaps(pose), a * mask[:, None])
        length = torch.sqrt(x.pow(2).sum(dim=-1) + EPS)
        if self.is_longest_decoded:
            y = F.one_hot(length.max(dim=1)[1], CLASSES).float()
        reconstruction = self.decoder((x * y[:, :, None]).view(x.size(0), -1))
        return length, c, reconstruction.view_as(images)


def get_padding_mask(sizes: Tensor, stride: int) -> Tensor:
    """Return 1 where a grid of points is inside of an image, else 0."""
    rows = torch.arange(0, HEIGHT, stride) < sizes[:, 0, None]
    columns = torch.arange(0, WIDTH, stride) < sizes[:, 1, None]
    return (rows[:, :, None] & columns[:, None, :]).float()


def margin_loss(y_pred: Tensor, y_true: Tensor) -> Tensor:
    """Return the loss of lengths above UPPER and below LOWER."""
    loss = y_true * torch.clamp(UPPER - y_pred, min=0.0) ** 2
    loss = loss + DOWN_WEIGHT * (1 - y_true) * torch.clamp(y_pred - LOWER, min=0.0) ** 2
    return loss.sum(dim=1).mean()


class SpreadLoss(nn.Module):
    """The label's length above all others by a margin that grows with the step."""

    def __init__(self, p: int) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor, y: Tensor, step: Tensor) -> Tensor:
        m = 0.2 + 0.79 * torch.sigmoid(torch.clamp(step / MARGIN_STEPS - 4, max=10.0))
        at = (x * y).sum(dim=1, keepdim=True)
        loss = torch.clamp(m - (at - x), min=0.0) ** self.p
        return (loss * (1 - y)).sum(dim=1).mean()


class CapsuleLoss(nn.Module):
    """The sum of all losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = CapsuleNet(model)
        self.spread_loss = SpreadLoss(model.spread_power)

    def forward(self, x: Tensor, sizes: Tensor, y: Tensor, step: Tensor) -> Tensor:
        y = F.one_hot(y, CLASSES).float()
        mask = get_padding_mask(sizes, STRIDE).flatten(1)
        pixel_mask = get_padding_mask(sizes, 1)[:, None]
        y_pred, c, x_recon = self.net(x, mask, y)
        loss = margin_loss(y_pred, y) + SPREAD_WEIGHT * self.spread_loss(y_pred, y, step)
        error = F.mse_loss(x_recon, x, reduction="none") * pixel_mask
        loss = loss + RECONSTRUCTION * error.sum() / x.size(0)
        entropy = -torch.sum(c * torch.log(c), dim=1) * mask.repeat(1, TYPES)
        return loss + ENTROPY * entropy.sum() / (TYPES * mask.sum())


def squash_along(x: Tensor, dim: int) -> Tensor:
    """Return vectors along an axis, squashed."""
    square = (x * x).sum(dim=dim, keepdim=True)
    return x * torch.sqrt(square + EPS).div(1 + square)


class Encoder(nn.Module):
    """Poses (batch, CELLS, TYPES, DIM) and logits of activations (batch, CELLS, TYPES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = load_conv(model, "stem")
        for name in ("weight", "bias"):
            parts = [read(model, f"primary.{part}.{name}") for part in ("gate", "pose")]
            setattr(self, f"capsule_{name}", nn.Parameter(torch.cat(parts)))
        for name, values in (("shift", MEAN), ("norm", DEVIATION)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        features = F.relu(self.stem(image.sub(self.shift).div(self.norm)))
        caps = F.conv2d(features, self.capsule_weight, self.capsule_bias, stride=2, padding=1)
        logits, pose = caps.flatten(2).transpose(1, 2).split((TYPES, TYPES * DIM), dim=2)
        return squash_along(pose.unflatten(2, (TYPES, DIM)), 3), logits


class AttentionRouting(nn.Module):
    """The residual layer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.transform = nn.Parameter(read(model, "mixer.weight"))
        self.gamma = nn.Parameter(read(model, "mixer.norm.weight"))
        self.beta = nn.Parameter(read(model, "mixer.norm.bias"))

    def norm(self, x: Tensor) -> Tensor:
        """Return a layer norm of capsules."""
        return F.layer_norm(x, (DIM,), self.gamma, self.beta, NORM_EPS)

    def forward(self, pose: Tensor) -> Tensor:
        votes = torch.einsum("ijde,bnie->bnijd", self.transform, pose)
        parents = self.norm(votes.mean(dim=2))
        for _ in range(MIXER_ROUTINGS - 1):
            scores = torch.einsum("bnijd,bnjd->bnij", votes, parents / DIM**0.5)
            parents = self.norm(torch.einsum("bnij,bnijd->bnjd", scores.softmax(dim=3), votes))
        return parents + pose


class AgreementRouting(nn.Module):
    """Class capsules (batch, CLASSES, CLASS_DIM) and logarithms of their couplings."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.transform = nn.Parameter(read(model, "classes.weight").transpose(0, 1).contiguous())
        self.log_prior = nn.Parameter(read(model, "classes.prior").t().contiguous())
        centers = [(torch.arange(n) + 0.5) * (COORDINATE / n) for n in (ROWS, COLUMNS)]
        grid = torch.cartesian_prod(*centers)
        self.register_buffer("grid", F.pad(grid, (0, CLASS_DIM - 2))[:, None, None])

    def forward(self, pose: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        votes = self.grid + torch.einsum("ikde,bnie->bnikd", self.transform, pose)
        with torch.no_grad():
            fixed_votes = votes.clone()
        logits = self.log_prior.expand(votes.shape[:-1])
        for _ in range(ROUTINGS - 1):
            total = torch.einsum("bni,bnik,bnikd->bkd", gate, logits.softmax(dim=3), fixed_votes)
            parents = squash_along(total, 2)
            logits = torch.einsum("bnikd,bkd->bnik", fixed_votes, parents) + logits
        log_coupling = logits.log_softmax(dim=3)
        weights = gate.unsqueeze(3) * log_coupling.exp()
        return squash_along(torch.einsum("bnik,bnikd->bkd", weights, votes), 2), log_coupling


class LabelDecoder(nn.Module):
    """Pixels from the capsule of the label and the columns of the first layer that read it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.first, self.second, self.last = (load_linear(model, f"decoder.{n}") for n in range(3))

    def forward(self, parents: Tensor, label: Tensor) -> Tensor:
        index = label.view(-1, 1, 1).expand(-1, 1, CLASS_DIM)
        chosen = parents.gather(1, index).squeeze(1)
        columns = self.first.weight.unflatten(1, (CLASSES, CLASS_DIM))[:, label]
        hidden = F.relu(torch.einsum("hbd,bd->bh", columns, chosen) + self.first.bias)
        return torch.sigmoid(self.last(F.relu(self.second(hidden))))


class EinsumLoss(nn.Module):
    """The same losses in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = Encoder(model)
        self.attention = AttentionRouting(model)
        self.routing = AgreementRouting(model)
        self.generator = LabelDecoder(model)

    def forward(self, image: Tensor, sizes: Tensor, label: Tensor, step: Tensor) -> Tensor:
        height, width = sizes.view(-1, 2, 1, 1).unbind(dim=1)
        rows, columns = torch.arange(HEIGHT).view(-1, 1), torch.arange(WIDTH)
        is_pixel = torch.logical_and(rows < height, columns < width)
        is_cell = is_pixel[:, ::STRIDE, ::STRIDE].flatten(1)

        pose, logits = self.encoder(image)
        gate = logits.sigmoid().masked_fill(~is_cell.unsqueeze(2), 0.0)
        parents, log_coupling = self.routing(self.attention(pose), gate)
        score = (parents.square().sum(dim=2) + EPS).sqrt()
        pixels = self.generator(parents, label)

        is_label = torch.arange(CLASSES) == label.unsqueeze(1)
        loss = F.relu(UPPER - score[is_label]).square().mean()
        too_long = F.relu(score[~is_label] - LOWER).square().sum()
        loss = loss + DOWN_WEIGHT / len(image) * too_long
        margin = 0.2 + 0.79 * torch.sigmoid((step / MARGIN_STEPS - 4).clamp(max=10)).item()
        spread = F.multi_margin_loss(score, label, p=2, margin=margin)
        loss = loss + SPREAD_WEIGHT * CLASSES * spread

        errors = pixels.unflatten(1, (CHANNELS, HEIGHT, WIDTH)) - image
        errors = errors.permute(0, 2, 3, 1)[is_pixel]
        loss = loss + RECONSTRUCTION / len(image) * errors.square().sum()
        log_coupling = log_coupling[is_cell]
        entropy = (log_coupling.exp() * log_coupling).sum(dim=-1).mean()
        return loss - ENTROPY * entropy
