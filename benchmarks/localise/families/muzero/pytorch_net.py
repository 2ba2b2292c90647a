"""The learned world model in PyTorch, with modules named as in EfficientZero's code.

Variant 'fused': observations from one unfold, heads of all states at once, one convolution of
policy and value, an nn.LSTM of all horizons as a batch, built-in losses.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.muzero.architecture import (
    ACTIONS,
    ATOMS,
    BATCH,
    CHANNELS,
    COLUMNS,
    CONSISTENCY_WEIGHT,
    DISCOUNT,
    EPS,
    FRAMES,
    HEAD_CHANNELS,
    HEAD_FLAT,
    HEIGHT,
    HORIZON,
    MEMORY,
    ROWS,
    STATE_GRADIENT,
    STEPS,
    SUPPORT,
    TINY,
    TRANSFORM_EPS,
    UNROLL,
    VALUE_WEIGHT,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FusedLoss(model) if model.variant == "fused" else EfficientZeroLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a copy of a weight, or of several ones behind each other."""
    return torch.from_numpy(np.concatenate([model.weights[name] for name in names]))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weights at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(read(model, f"{path}.{name}"))
    return module


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    has_bias = f"{path}.bias" in model.weights
    return load(nn.Linear(n_in, n_out, bias=has_bias), model, path)


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at ``path``."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    has_bias = f"{path}.bias" in model.weights
    conv = nn.Conv2d(n_in, n_out, kernel, stride, padding=kernel // 2, bias=has_bias)
    return load(conv, model, path)


def load_norm(model: Model, path: str) -> nn.BatchNorm2d:
    """Return the norm of the convolution at ``path``."""
    return load(nn.BatchNorm2d(CHANNELS, eps=EPS), model, f"{path}.norm")


def load_mlp(model: Model, path: str) -> nn.Sequential:
    """Return two linear layers around ReLU."""
    return nn.Sequential(
        load_linear(model, f"{path}.hidden"), nn.ReLU(), load_linear(model, f"{path}.out")
    )


def load_projection(model: Model) -> nn.Sequential:
    """Return the projection of flat states."""
    hidden = load_linear(model, "projection.hidden")
    norm = load(nn.BatchNorm1d(hidden.out_features, eps=EPS), model, "projection.norm")
    return nn.Sequential(hidden, norm, nn.ReLU(), load_linear(model, "projection.out"))


class ResidualBlock(nn.Module):
    """Two convolutions with norms, added to what they read."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = load_conv(model, f"{path}.0"), load_norm(model, f"{path}.0")
        self.conv2, self.bn2 = load_conv(model, f"{path}.1"), load_norm(model, f"{path}.1")

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + x)


class RescaleFunction(torch.autograd.Function):
    """The normalization of flat states with its own backward pass."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        smallest = x.amin(dim=1, keepdim=True)
        scale = x.amax(dim=1, keepdim=True) - smallest + TINY
        ctx.save_for_backward(scale)
        return (x - smallest) / scale

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        (scale,) = ctx.saved_tensors
        return gradient / scale


class MinMaxNormalize(nn.Module):
    """States from 0 to 1."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_range_constant = model.is_range_constant

    def forward(self, state: Tensor) -> Tensor:
        flat = state.flatten(1)
        if self.is_range_constant:
            return RescaleFunction.apply(flat).view_as(state)
        smallest = flat.min(dim=1, keepdim=True)[0]
        scale = flat.max(dim=1, keepdim=True)[0] - smallest + TINY
        return ((flat - smallest) / scale).view_as(state)


class RepresentationNetwork(nn.Module):
    """States of observations."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = load_conv(model, "representation.in", stride=2)
        self.bn = load_norm(model, "representation.in")
        self.block = ResidualBlock(model, "representation.block")
        self.normalize = MinMaxNormalize(model)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        return self.normalize(self.block(x))


class DynamicsNetwork(nn.Module):
    """The next states of states and actions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv, self.bn = load_conv(model, "dynamics.in"), load_norm(model, "dynamics.in")
        self.block = ResidualBlock(model, "dynamics.block")
        self.normalize = MinMaxNormalize(model)
        self.is_action_first = model.is_action_first

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        one_hot = F.one_hot(action, ACTIONS).float()
        planes = one_hot[:, :, None, None].expand(-1, -1, ROWS, COLUMNS)
        parts = [planes, state] if self.is_action_first else [state, planes]
        x = self.bn(self.conv(torch.cat(parts, dim=1)))
        return self.normalize(self.block(F.relu(x + state)))


class PredictionNetwork(nn.Module):
    """Logits of the policy and of the value of states."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1x1_policy = load_conv(model, "policy.conv")
        self.conv1x1_value = load_conv(model, "value.conv")
        self.fc_policy, self.fc_value = load_mlp(model, "policy"), load_mlp(model, "value")

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        policy = F.relu(self.conv1x1_policy(state)).flatten(1)
        value = F.relu(self.conv1x1_value(state)).flatten(1)
        return self.fc_policy(policy), self.fc_value(value)


class ValuePrefixNetwork(nn.Module):
    """Logits of the value prefix of a state, and the memory behind it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1x1_reward = load_conv(model, "prefix.conv")
        self.lstm = load(nn.LSTMCell(HEAD_FLAT, MEMORY), model, "prefix.lstm")
        self.fc = load_linear(model, "prefix.out")

    def forward(
        self, state: Tensor, memory: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = F.relu(self.conv1x1_reward(state)).flatten(1)
        memory = self.lstm(x, memory)
        return self.fc(memory[0]), memory


def transform(x: Tensor) -> Tensor:
    """Return scalars with smaller absolute values."""
    return torch.sign(x) * (torch.sqrt(torch.abs(x) + 1) - 1) + TRANSFORM_EPS * x


def scalar_to_support(x: Tensor) -> Tensor:
    """Return the shares of atoms, (..., ATOMS)."""
    x = torch.clamp(x, -SUPPORT, SUPPORT)
    low = x.floor()
    share = (x - low).unsqueeze(-1)
    index = (low + SUPPORT).long().unsqueeze(-1)
    support = torch.zeros(*x.shape, ATOMS)
    support.scatter_(-1, torch.clamp(index + 1, max=ATOMS - 1), share)
    return support.scatter_(-1, index, 1 - share)


def compute_returns(rewards: Tensor, bootstrap: Tensor, alive: Tensor) -> Tensor:
    """Return the values of all states from STEPS steps and a bootstrap value."""
    discounts = DISCOUNT ** torch.arange(STEPS, dtype=torch.float32)
    windows = (rewards * alive[:, :-1]).unfold(1, STEPS, 1)
    return (windows * discounts).sum(-1) + DISCOUNT**STEPS * bootstrap * alive[:, STEPS:]


class TargetMaker(nn.Module):
    """Targets of values and prefixes, and masks of states and steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_prefixes_plain = model.are_prefixes_plain

    def forward(
        self, rewards: Tensor, bootstrap: Tensor, dones: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        alive = F.pad(torch.cumprod(1 - dones, dim=1), (1, 0), value=1.0)
        values = compute_returns(rewards, bootstrap, alive)
        counted = rewards[:, :UNROLL] * alive[:, :UNROLL]
        prefixes = counted.view(-1, UNROLL // HORIZON, HORIZON).cumsum(-1).flatten(1)
        if not self.are_prefixes_plain:
            prefixes = transform(prefixes)
        return (
            scalar_to_support(transform(values)),
            scalar_to_support(prefixes),
            alive[:, : UNROLL + 1],
            alive[:, :UNROLL],
        )


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy of each row."""
    return -(torch.log_softmax(logits, dim=1) * target).sum(dim=1)


class SimSiam(nn.Module):
    """The cosine of predicted and observed states."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.projection = load_projection(model)
        self.projection_head = load_mlp(model, "predictor")

    def forward(self, predicted: Tensor, observed: Tensor) -> Tensor:
        online = self.projection_head(self.projection(predicted.flatten(1)))
        target = self.projection(observed.flatten(1)).detach()
        online = F.normalize(online, p=2.0, dim=-1, eps=TINY)
        return (online * F.normalize(target, p=2.0, dim=-1, eps=TINY)).sum(dim=1)


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """Return the same tensor; its gradient is scaled."""
    return x * scale + x.detach() * (1 - scale)


class EfficientZeroLoss(nn.Module):
    """Losses of policies, values, value prefixes and consistency of unrolled states."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.representation_network = RepresentationNetwork(model)
        self.dynamics_network = DynamicsNetwork(model)
        self.prediction_network = PredictionNetwork(model)
        self.value_prefix_network = ValuePrefixNetwork(model)
        self.simsiam = SimSiam(model)
        self.target_maker = TargetMaker(model)
        self.is_head_gradient_scaled = model.is_head_gradient_scaled
        self.is_memory_kept = model.is_memory_kept

    def observe(self, frames: Tensor, actions: Tensor, start: int) -> Tensor:
        """Return the observation that begins with a frame."""
        images = frames[:, start : start + FRAMES].flatten(1, 2) / 255.0
        planes = actions[:, start : start + FRAMES].float() / ACTIONS
        planes = planes[:, :, None, None].expand(-1, -1, HEIGHT, WIDTH)
        return torch.cat([images, planes], dim=1)

    def start_memory(self) -> tuple[Tensor, Tensor]:
        """Return the memory before a horizon."""
        return torch.zeros(BATCH, MEMORY), torch.zeros(BATCH, MEMORY)

    def start_step(self, state: Tensor) -> Tensor:
        """Return the state that the dynamics read, with a scaled gradient."""
        if self.is_head_gradient_scaled:
            state.register_hook(lambda gradient: gradient * STATE_GRADIENT)
            return state
        return scale_gradient(state, STATE_GRADIENT)

    def forward(
        self,
        frames: Tensor,
        actions: Tensor,
        visits: Tensor,
        rewards: Tensor,
        bootstrap: Tensor,
        dones: Tensor,
        weights: Tensor,
    ) -> Tensor:
        targets = self.target_maker(rewards, bootstrap, dones)
        value_targets, prefix_targets, state_mask, step_mask = targets

        state = self.representation_network(self.observe(frames, actions, 0))
        policy, value = self.prediction_network(state)
        loss = soft_cross_entropy(policy, visits[:, 0])
        loss = loss + VALUE_WEIGHT * soft_cross_entropy(value, value_targets[:, 0])

        memory = self.start_memory()
        states = []
        for step in range(UNROLL):
            if step % HORIZON == 0 and not self.is_memory_kept:
                memory = self.start_memory()
            state = self.dynamics_network(self.start_step(state), actions[:, FRAMES + step])
            states.append(state)
            prefix, memory = self.value_prefix_network(state, memory)
            policy, value = self.prediction_network(state)
            step_loss = soft_cross_entropy(policy, visits[:, step + 1])
            value_loss = soft_cross_entropy(value, value_targets[:, step + 1])
            step_loss = (step_loss + VALUE_WEIGHT * value_loss) * state_mask[:, step + 1]
            prefix_loss = soft_cross_entropy(prefix, prefix_targets[:, step])
            loss = loss + (step_loss + prefix_loss * step_mask[:, step]) / UNROLL

        observations = [self.observe(frames, actions, n + 1) for n in range(UNROLL)]
        observed = self.representation_network(torch.cat(observations))
        cosine = self.simsiam(torch.cat(states), observed).view(UNROLL, -1)
        consistency = -(cosine * state_mask[:, 1:].T).sum(dim=0) / UNROLL
        loss = loss + CONSISTENCY_WEIGHT * consistency
        return (weights * loss).mean()


class Tower(nn.Module):
    """A first convolution, a residual block, and states from 0 to 1."""

    def __init__(self, model: Model, path: str, stride: int) -> None:
        super().__init__()
        self.stem = load_conv(model, f"{path}.in", stride)
        self.stem_norm = load_norm(model, f"{path}.in")
        self.layers = nn.Sequential(
            load_conv(model, f"{path}.block.0"),
            load_norm(model, f"{path}.block.0"),
            nn.ReLU(inplace=True),
            load_conv(model, f"{path}.block.1"),
            load_norm(model, f"{path}.block.1"),
        )

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        x = self.stem_norm(self.stem(x))
        x = (x if shortcut is None else shortcut + x).relu()
        x = (x + self.layers(x)).relu()
        low, high = x.aminmax(dim=3, keepdim=True)
        low, high = low.amin(dim=(1, 2), keepdim=True), high.amax(dim=(1, 2), keepdim=True)
        return torch.sub(x, low) * torch.reciprocal(high - low + TINY)


class FusedLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.transition = (
            Tower(model, "representation", 2),
            Tower(model, "dynamics", 1),
        )
        weight = read(model, "policy.conv.weight", "value.conv.weight")
        self.squeeze = nn.Conv2d(CHANNELS, 2 * HEAD_CHANNELS, 1)
        self.squeeze.weight.data.copy_(weight)
        self.squeeze.bias.data.copy_(read(model, "policy.conv.bias", "value.conv.bias"))
        self.actor, self.critic = load_mlp(model, "policy"), load_mlp(model, "value")
        self.reward_squeeze = load_conv(model, "prefix.conv")
        self.rnn = nn.LSTM(HEAD_FLAT, MEMORY, batch_first=True)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(self.rnn, f"{name}_l0").data.copy_(read(model, f"prefix.lstm.{name}"))
        self.reward_logits = load_linear(model, "prefix.out")
        self.projector, self.predictor = load_projection(model), load_mlp(model, "predictor")
        self.register_buffer("atoms", torch.arange(-SUPPORT, SUPPORT + 1.0), persistent=False)

    def spread(self, x: Tensor) -> Tensor:
        """Return shares of atoms by their distance from transformed scalars."""
        x = torch.copysign((x.abs() + 1).sqrt() - 1, x).add(x, alpha=TRANSFORM_EPS)
        distance = (x.clamp(-SUPPORT, SUPPORT)[..., None] - self.atoms).abs()
        return (1 - distance).clamp(min=0)

    @torch.no_grad()
    def make_targets(
        self, rewards: Tensor, bootstrap: Tensor, dones: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return shares of values and prefixes, and which states count."""
        alive = (dones.cumsum(1).roll(1, 1).index_fill(1, torch.tensor([0]), 0.0) == 0).float()
        last = alive[:, -1:] * (1 - dones[:, -1:])
        counted = torch.where(alive > 0, rewards, 0.0)
        values = bootstrap * torch.hstack((alive[:, STEPS:], last))
        for step in reversed(range(STEPS)):
            values = counted[:, step : step + UNROLL + 1] + DISCOUNT * values
        prefixes = counted[:, :UNROLL].unflatten(1, (-1, HORIZON)).cumsum(-1)
        return self.spread(values), self.spread(prefixes).flatten(1, 2), alive[:, : UNROLL + 1]

    def forward(
        self,
        frames: Tensor,
        actions: Tensor,
        visits: Tensor,
        rewards: Tensor,
        bootstrap: Tensor,
        dones: Tensor,
        weights: Tensor,
    ) -> Tensor:
        values, prefixes, alive = self.make_targets(rewards, bootstrap, dones)
        scale = torch.full((BATCH, UNROLL), 1 / UNROLL)
        images = frames.unfold(1, FRAMES, 1).movedim(-1, 2).flatten(2, 3) / 255
        led = actions.unfold(1, FRAMES, 1)[..., None, None] / ACTIONS
        images = torch.cat((images, led.expand(-1, -1, -1, HEIGHT, WIDTH)), dim=2)

        states = [self.encoder(images[:, 0])]
        planes = torch.eye(ACTIONS)[actions][..., None, None].expand(-1, -1, -1, ROWS, COLUMNS)
        for action in planes[:, FRAMES:].unbind(1):
            start = torch.lerp(states[-1].detach(), states[-1], STATE_GRADIENT)
            states.append(self.transition(torch.hstack((start, action)), start))
        unrolled = torch.stack(states, dim=1)

        squeezed = self.squeeze(unrolled.flatten(0, 1)).relu().flatten(1)
        for_actor, for_critic = squeezed.chunk(2, dim=1)
        surprise = F.cross_entropy(self.actor(for_actor), visits.flatten(0, 1), reduction="none")
        value_surprise = F.cross_entropy(
            self.critic(for_critic), values.flatten(0, 1), reduction="none"
        )
        surprise = torch.add(surprise, value_surprise, alpha=VALUE_WEIGHT).view(BATCH, -1)
        weighted = surprise * alive * F.pad(scale, (1, 0), value=1.0)
        loss = torch.dot(weights, weighted.sum(1))

        squeezed = self.reward_squeeze(unrolled[:, 1:].flatten(0, 1)).relu()
        memory, _ = self.rnn(squeezed.reshape(-1, HORIZON, HEAD_FLAT))
        logits = self.reward_logits(memory).flatten(0, 1)
        surprise = F.cross_entropy(logits, prefixes.flatten(0, 1), reduction="none")
        surprise = surprise.view(BATCH, -1) * alive[:, :UNROLL] * scale
        loss = loss + torch.dot(weights, surprise.sum(1))

        with torch.no_grad():
            seen = self.projector(self.encoder(images[:, 1:].flatten(0, 1)).flatten(1))
        online = self.predictor(self.projector(unrolled[:, 1:].flatten(0, 1).flatten(1)))
        likeness = F.cosine_similarity(online, seen, dim=-1).view(BATCH, -1) * alive[:, 1:] * scale
        return (loss - CONSISTENCY_WEIGHT * torch.dot(weights, likeness.sum(1))) / BATCH
