"""The soft actor-critic in PyTorch, with modules named as in DrQ-v2's code.

Variant 'ensemble': both critics in one with a further axis of weights, which are detached for the
actor, torch.distributions, images of both times in one batch, modules named as in TorchRL.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import AffineTransform, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from families.sac.architecture import (
    ACTIONS,
    CENTER,
    CHANNELS,
    DISCOUNT,
    EPS,
    FEATURES,
    FRAMES,
    HUBER_DELTA,
    LOG_STD_MAX,
    LOG_STD_MIN,
    SCALE,
    STEPS,
    TARGET_ENTROPY,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return EnsembleLoss(model) if model.variant == "ensemble" else SACLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weights at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(torch.from_numpy(np.array(model.weights[f"{path}.{name}"])))
    return module


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


def load_layers(model: Model, path: str) -> nn.Sequential:
    """Return two hidden layers with ReLU and the last one."""
    first, second, last = (load_linear(model, f"{path}.{n}") for n in range(3))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def load_convs(model: Model) -> nn.Sequential:
    """Return the convolutions of the encoder with ReLU."""
    first = nn.Conv2d(FRAMES, CHANNELS[0], 3, stride=2)
    second = nn.Conv2d(*CHANNELS, 3, stride=1)
    return nn.Sequential(
        load(first, model, "encoder.0"), nn.ReLU(), load(second, model, "encoder.1"), nn.ReLU()
    )


def load_norm(model: Model) -> nn.LayerNorm:
    """Return the norm of the encoder."""
    return load(nn.LayerNorm(FEATURES, eps=EPS), model, "encoder.norm")


class Encoder(nn.Module):
    """Features of images, and the state behind them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.convnet = load_convs(model)
        self.trunk = nn.Sequential(load_linear(model, "encoder.out"), load_norm(model), nn.Tanh())

    def forward(self, obs: Tensor, state: Tensor) -> Tensor:
        h = self.convnet(obs / 255.0 - 0.5)
        h = self.trunk(h.view(h.shape[0], -1))
        return torch.cat([h, state], dim=-1)


class Actor(nn.Module):
    """An action of features and noise, and the logarithm of its likelihood."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.policy = load_layers(model, "actor")
        self.register_buffer("action_scale", torch.from_numpy(SCALE), persistent=False)
        self.register_buffer("action_bias", torch.from_numpy(CENTER), persistent=False)
        self.is_scale_counted = model.is_scale_counted
        self.is_sample_detached = model.is_sample_detached
        self.are_outputs_interleaved = model.are_outputs_interleaved

    def forward(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        out = self.policy(h)
        if self.are_outputs_interleaved:
            mean, log_std = out.view(-1, ACTIONS, 2).unbind(-1)
        else:
            mean, log_std = out.chunk(2, dim=-1)
        log_std = torch.tanh(log_std)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)
        std = log_std.exp()

        x_t = mean + std * noise
        if self.is_sample_detached:
            x_t = x_t.detach()
        action = torch.tanh(x_t) * self.action_scale + self.action_bias
        log_prob = Normal(mean, std, validate_args=False).log_prob(x_t)
        log_prob = log_prob - 2.0 * (math.log(2.0) - x_t - F.softplus(-2.0 * x_t))
        if self.is_scale_counted:
            log_prob = log_prob - torch.log(self.action_scale)
        return action, log_prob.sum(-1)


class Critic(nn.Module):
    """Two values of features and an action."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.Q1, self.Q2 = load_layers(model, f"{path}.0"), load_layers(model, f"{path}.1")

    def forward(self, h: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        h_action = torch.cat([h, action], dim=-1)
        return self.Q1(h_action).squeeze(-1), self.Q2(h_action).squeeze(-1)


class SACLoss(nn.Module):
    """The sum of the losses of critics, actor and temperature."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.actor = Encoder(model), Actor(model)
        self.critic = Critic(model, "critics")
        self.critic_target = Critic(model, "targets").requires_grad_(False)
        self.log_alpha = copy_parameter(model.weights["log_alpha"])
        self.is_discount_full = model.is_discount_full
        self.is_temperature_logarithmic = model.is_temperature_logarithmic

    def compute_return(self, reward: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Return the discounted rewards of each row, and the discount of what follows them."""
        steps = torch.arange(STEPS)
        discounts = DISCOUNT ** steps.float()
        n_step_return = (reward * discounts * (steps < length[:, None])).sum(-1)
        if self.is_discount_full:
            return n_step_return, torch.full_like(n_step_return, DISCOUNT**STEPS)
        return n_step_return, DISCOUNT ** length.float()

    def forward(
        self,
        obs: Tensor,
        state: Tensor,
        action: Tensor,
        reward: Tensor,
        length: Tensor,
        done: Tensor,
        next_obs: Tensor,
        next_state: Tensor,
        weight: Tensor,
        noise: Tensor,
        next_noise: Tensor,
    ) -> Tensor:
        alpha = self.log_alpha.exp()
        with torch.no_grad():
            next_h = self.encoder(next_obs, next_state)
            next_action, next_log_prob = self.actor(next_h, next_noise)
            target_v = torch.min(*self.critic_target(next_h, next_action)) - alpha * next_log_prob
            n_step_return, discount = self.compute_return(reward, length)
            target_q = n_step_return + discount * (1.0 - done) * target_v

        h = self.encoder(obs, state)
        q1, q2 = self.critic(h, action)
        td_loss = F.huber_loss(q1, target_q, reduction="none", delta=HUBER_DELTA)
        td_loss = td_loss + F.huber_loss(q2, target_q, reduction="none", delta=HUBER_DELTA)
        critic_loss = (weight * td_loss).mean()

        self.critic.requires_grad_(False)  # the actor's loss does not train the critics
        h = h.detach()
        pi, log_prob = self.actor(h, noise)
        actor_loss = (alpha.detach() * log_prob - torch.min(*self.critic(h, pi))).mean()
        self.critic.requires_grad_(True)

        temperature = self.log_alpha if self.is_temperature_logarithmic else alpha
        alpha_loss = (-temperature * (log_prob + TARGET_ENTROPY).detach()).mean()
        return critic_loss + actor_loss + alpha_loss


class EnsembleLinear(nn.Module):
    """A linear layer of each member of an ensemble, (members, rows, width)."""

    def __init__(self, model: Model, path: str, n: int) -> None:
        super().__init__()
        weights = [model.weights[f"{path}.{member}.{n}.weight"].T for member in range(2)]
        biases = [model.weights[f"{path}.{member}.{n}.bias"][None] for member in range(2)]
        self.weight, self.bias = copy_parameter(np.stack(weights)), copy_parameter(np.stack(biases))

    def forward(self, x: Tensor, *, is_frozen: bool) -> Tensor:
        weight, bias = self.weight, self.bias
        if is_frozen:
            weight, bias = weight.detach(), bias.detach()
        return torch.baddbmm(bias, x, weight)


class QValueEnsemble(nn.Module):
    """The values of all members, (members, rows)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EnsembleLinear(model, path, n) for n in range(3))

    def forward(self, observation: Tensor, action: Tensor, *, is_frozen: bool = False) -> Tensor:
        x = torch.hstack((observation, action)).expand(2, -1, -1)
        for layer in self.layers[:-1]:
            x = layer(x, is_frozen=is_frozen).clamp(min=0.0)
        return self.layers[-1](x, is_frozen=is_frozen)[..., 0]


class PolicyHead(nn.Module):
    """The distribution of actions, and the transforms that lead to them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mlp = load_layers(model, "actor")
        self.register_buffer("scale", torch.from_numpy(SCALE), persistent=False)
        self.register_buffer("loc", torch.from_numpy(CENTER), persistent=False)

    def forward(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        loc, raw_scale = self.mlp(observation).split(ACTIONS, dim=-1)
        middle, reach = (LOG_STD_MAX + LOG_STD_MIN) / 2, (LOG_STD_MAX - LOG_STD_MIN) / 2
        base = Normal(loc, torch.exp(middle + reach * raw_scale.tanh()), validate_args=False)
        transforms = [
            TanhTransform(cache_size=1),
            AffineTransform(self.loc, self.scale, cache_size=1),
        ]
        dist = TransformedDistribution(base, transforms, validate_args=False)
        dist = Independent(dist, 1, validate_args=False)
        action = torch.addcmul(base.loc, base.scale, noise)
        for transform in transforms:
            action = transform(action)
        return action, dist.log_prob(action)


class EnsembleLoss(nn.Module):
    """The same loss of an ensemble of critics."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pixel_net = load_convs(model)
        self.projection, self.projection_norm = load_linear(model, "encoder.out"), load_norm(model)
        self.actor_network = PolicyHead(model)
        self.qvalue_network = QValueEnsemble(model, "critics")
        self.target_qvalue_network = QValueEnsemble(model, "targets").requires_grad_(False)
        self.log_alpha = copy_parameter(model.weights["log_alpha"])

    def encode(self, pixels: Tensor, proprioception: Tensor) -> Tensor:
        """Return what critics and actor read."""
        x = self.pixel_net((pixels - 127.5) / 255).flatten(1)
        return torch.hstack((self.projection_norm(self.projection(x)).tanh(), proprioception))

    @torch.no_grad()
    def compute_target(
        self,
        reward: Tensor,
        steps: Tensor,
        terminated: Tensor,
        observation: Tensor,
        noise: Tensor,
        alpha: Tensor,
    ) -> Tensor:
        """Return the value that both critics are compared with."""
        action, log_prob = self.actor_network(observation, noise)
        value = self.target_qvalue_network(observation, action).amin(0) - alpha * log_prob
        index = torch.arange(STEPS)
        kept = reward.masked_fill(index >= steps[:, None], 0.0)
        value = value.masked_fill(terminated > 0, 0.0)
        return (kept * torch.pow(DISCOUNT, index)).sum(1) + torch.pow(DISCOUNT, steps) * value

    def forward(
        self,
        pixels: Tensor,
        proprioception: Tensor,
        action: Tensor,
        reward: Tensor,
        steps: Tensor,
        terminated: Tensor,
        next_pixels: Tensor,
        next_proprioception: Tensor,
        priority_weight: Tensor,
        noise: Tensor,
        next_noise: Tensor,
    ) -> Tensor:
        both = self.encode(
            torch.vstack((pixels, next_pixels)), torch.vstack((proprioception, next_proprioception))
        )
        observation, next_observation = both.chunk(2)
        alpha = torch.exp(self.log_alpha)
        fixed_alpha = alpha.detach()
        target = self.compute_target(
            reward, steps, terminated, next_observation, next_noise, fixed_alpha
        )

        values = self.qvalue_network(observation, action)
        errors = F.smooth_l1_loss(values, target.expand(2, -1), reduction="none", beta=HUBER_DELTA)
        loss_qvalue = torch.sum(errors * priority_weight) / len(pixels)

        observation = observation.detach()
        new_action, log_prob = self.actor_network(observation, noise)
        new_values = self.qvalue_network(observation, new_action, is_frozen=True)
        loss_actor = torch.mean(fixed_alpha * log_prob - new_values.amin(0))
        loss_alpha = -alpha * (log_prob.detach().mean() + TARGET_ENTROPY)
        return loss_qvalue + loss_actor + loss_alpha.sum()
