"""The soft actor-critic in MindSpore for graph mode.

Variant 'written': both images in one batch, products of joined vectors in parts, returns backward
in time, norm, tanh, logarithms of likelihoods and losses in plain arithmetic.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.sac.architecture import (
    BATCH,
    CENTER,
    CHANNELS,
    DISCOUNT,
    EPS,
    FEATURES,
    FLAT,
    FRAMES,
    HUBER_DELTA,
    LOG_STD_MAX,
    LOG_STD_MIN,
    SCALE,
    STEPS,
    TARGET_ENTROPY,
    WIDTH,
    Model,
)

LOG_TWO, LOG_TWO_PI = math.log(2), math.log(2 * math.pi)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenSACLoss(model) if model.variant == "written" else SACLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


def build_layers(model: Model, path: str) -> nn.SequentialCell:
    """Return two hidden layers with ReLU and the last one."""
    first, second, last = (build_dense(model, f"{path}.{n}") for n in range(3))
    return nn.SequentialCell(first, nn.ReLU(), second, nn.ReLU(), last)


def build_conv(model: Model, n: int, n_in: int, stride: int) -> nn.Conv2d:
    """Return a convolution of the encoder."""
    return nn.Conv2d(
        n_in,
        CHANNELS[n],
        3,
        stride,
        pad_mode="valid",
        has_bias=True,
        weight_init=read(model, f"encoder.{n}.weight"),
        bias_init=read(model, f"encoder.{n}.bias"),
    )


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, gamma: Tensor, beta: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(gamma, name="gamma"), Parameter(beta, name="beta")

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        deviation = ops.sqrt(ops.square(centered).mean(-1, keep_dims=True) + EPS)
        return centered / deviation * self.gamma + self.beta


def build_norm(model: Model) -> nn.Cell:
    """Return the norm of the encoder."""
    gamma, beta = read(model, "encoder.norm.weight"), read(model, "encoder.norm.bias")
    if model.variant == "written":
        return WrittenNorm(gamma, beta)
    return nn.LayerNorm((FEATURES,), gamma_init=gamma, beta_init=beta, epsilon=EPS)


class Encoder(nn.Cell):
    """Features of images, (rows, FEATURES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = build_conv(model, 0, FRAMES, 2)
        self.conv2 = build_conv(model, 1, CHANNELS[0], 1)
        self.dense, self.norm = build_dense(model, "encoder.out"), build_norm(model)

    def construct(self, images):
        x = images / 255.0 - 0.5
        x = ops.relu(self.conv1(x))
        x = ops.relu(self.conv2(x))
        return ops.tanh(self.norm(self.dense(x.reshape(-1, FLAT))))


class Squash(nn.Cell):
    """An action within its bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.center = Tensor(SCALE), Tensor(CENTER)

    def construct(self, x):
        return self.scale * ops.tanh(x) + self.center


class FusedSquash(Squash):
    """The same with the gradient of tanh from the result."""

    def bprop(self, x, out, gradient):
        return (gradient * (1 - ops.square(out)),)


class Actor(nn.Cell):
    """An action of features and noise, and the logarithm of its likelihood."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = build_layers(model, "actor")
        self.squash = FusedSquash() if model.is_squash_gradient_scaled else Squash()
        self.log_scale = Tensor(np.log(SCALE))
        self.is_log_std_clipped = model.is_log_std_clipped

    def construct(self, features, noise):
        mean, log_std = ops.chunk(self.net(features), 2, axis=-1)
        if self.is_log_std_clipped:
            log_std = ops.clamp(log_std, LOG_STD_MIN, LOG_STD_MAX)
        else:
            reach = 0.5 * (LOG_STD_MAX - LOG_STD_MIN)
            log_std = LOG_STD_MIN + reach * (ops.tanh(log_std) + 1)
        x = mean + ops.exp(log_std) * noise
        log_prob = -0.5 * ops.square(noise) - log_std - 0.5 * LOG_TWO_PI
        log_prob = log_prob - 2 * (LOG_TWO - x - ops.softplus(-2 * x)) - self.log_scale
        return self.squash(x), log_prob.sum(-1)


class FixableDense(nn.Dense):
    """A linear layer whose weights have no gradient when they are fixed."""

    def __init__(self, model: Model, path: str) -> None:
        weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
        super().__init__(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)

    def construct(self, x, is_fixed=False):
        weight, bias = self.weight, self.bias
        if is_fixed:
            weight, bias = ops.stop_gradient(weight), ops.stop_gradient(bias)
        return ops.dense(x, weight, bias)


class Critic(nn.Cell):
    """The value of features and an action."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1 = FixableDense(model, f"{path}.0")
        self.fc2 = FixableDense(model, f"{path}.1")
        self.fc3 = FixableDense(model, f"{path}.2")

    def construct(self, features, actions, is_fixed=False):
        x = ops.relu(self.fc1(ops.concat((features, actions), -1), is_fixed))
        x = ops.relu(self.fc2(x, is_fixed))
        return self.fc3(x, is_fixed).squeeze(-1)


class TwinCritics(nn.Cell):
    """The values of both critics."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.critic1, self.critic2 = Critic(model, f"{path}.0"), Critic(model, f"{path}.1")

    def construct(self, features, actions, is_fixed=False):
        first = self.critic1(features, actions, is_fixed)
        return first, self.critic2(features, actions, is_fixed)


class SACLoss(nn.Cell):
    """The sum of the losses of critics, actor and temperature."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.actor = Encoder(model), Actor(model)
        self.critics = TwinCritics(model, "critics")
        self.target_critics = TwinCritics(model, "targets")
        for parameter in self.target_critics.get_parameters():
            parameter.requires_grad = False
        self.log_alpha = Parameter(read(model, "log_alpha"), name="log_alpha")
        self.steps = Tensor(np.arange(STEPS, dtype=np.int32))
        self.discounts = Tensor((DISCOUNT ** np.arange(STEPS)).astype(np.float32))
        self.are_late_rewards_added = model.are_late_rewards_added
        self.are_critics_fixed = model.are_critics_fixed
        self.are_weights_normalized = model.are_weights_normalized

    def compute_returns(self, rewards, lengths):
        """Return the discounted rewards of each row."""
        discounted = rewards * self.discounts
        if not self.are_late_rewards_added:
            is_kept = ops.less(self.steps, lengths.expand_dims(-1))
            discounted = discounted * is_kept.astype(ms.float32)
        return discounted.sum(-1)

    def construct(
        self,
        images,
        states,
        actions,
        rewards,
        lengths,
        done,
        next_images,
        next_states,
        weights,
        noise,
        next_noise,
    ):
        features = ops.concat((self.encoder(images), states), -1)
        next_features = ops.concat((self.encoder(next_images), next_states), -1)
        alpha = ops.exp(self.log_alpha)

        next_actions, next_log_prob = self.actor(next_features, next_noise)
        next_q1, next_q2 = self.target_critics(next_features, next_actions)
        next_values = ops.minimum(next_q1, next_q2) - alpha * next_log_prob
        discounts = ops.pow(DISCOUNT, lengths.astype(ms.float32)) * (1 - done)
        targets = self.compute_returns(rewards, lengths) + discounts * next_values
        targets = ops.stop_gradient(targets)

        q1, q2 = self.critics(features, actions)
        losses = ops.huber_loss(q1, targets, reduction="none", delta=HUBER_DELTA)
        losses = losses + ops.huber_loss(q2, targets, reduction="none", delta=HUBER_DELTA)
        if self.are_weights_normalized:
            critic_loss = (losses * weights).sum() / weights.sum()
        else:
            critic_loss = (losses * weights).mean()

        features = ops.stop_gradient(features)
        new_actions, log_prob = self.actor(features, noise)
        new_q1, new_q2 = self.critics(features, new_actions, self.are_critics_fixed)
        new_values = ops.minimum(new_q1, new_q2)
        actor_loss = (ops.stop_gradient(alpha) * log_prob - new_values).mean()
        alpha_loss = -(alpha * ops.stop_gradient(log_prob + TARGET_ENTROPY)).mean()
        return critic_loss + actor_loss + alpha_loss


class WrittenActor(nn.Cell):
    """The same as Actor, with tanh from a sigmoid."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight = model.weights["actor.2.weight"]
        bias = model.weights["actor.2.bias"]
        self.fc1, self.fc2 = build_dense(model, "actor.0"), build_dense(model, "actor.1")
        self.mean, self.log_std = (
            nn.Dense(weight.shape[1], len(rows), weight_init=Tensor(rows), bias_init=Tensor(biases))
            for rows, biases in zip(np.split(weight, 2), np.split(bias, 2), strict=True)
        )
        self.scale, self.low = Tensor(2 * SCALE), Tensor(CENTER - SCALE)
        self.volume = float(np.log(SCALE).sum())

    def construct(self, features, noise):
        x = ops.relu(self.fc2(ops.relu(self.fc1(features))))
        mean = self.mean(x)
        share = ops.sigmoid(2 * self.log_std(x))
        log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) * share
        x = mean + ops.exp(log_std) * noise
        size = ops.abs(x)
        log_slope = 2 * (LOG_TWO - size - ops.log(1 + ops.exp(-2 * size)))
        log_prob = (ops.square(noise) + LOG_TWO_PI) / 2 + log_std + log_slope
        return self.low + self.scale * ops.sigmoid(2 * x), -log_prob.sum(-1) - self.volume


class PartedCritic(nn.Cell):
    """The same as Critic, with a product for features and one for actions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        of_features, of_actions = np.split(model.weights[f"{path}.0.weight"], [WIDTH], axis=1)
        self.of_features = Parameter(Tensor(np.ascontiguousarray(of_features.T)), "of_features")
        self.of_actions = Parameter(Tensor(np.ascontiguousarray(of_actions.T)), "of_actions")
        self.bias = Parameter(read(model, f"{path}.0.bias"), name="bias")
        self.fc2, self.fc3 = FixableDense(model, f"{path}.1"), FixableDense(model, f"{path}.2")

    def construct(self, features, actions, is_fixed=False):
        of_features, of_actions, bias = self.of_features, self.of_actions, self.bias
        if is_fixed:
            of_features, of_actions = ops.stop_gradient(of_features), ops.stop_gradient(of_actions)
            bias = ops.stop_gradient(bias)
        x = ops.matmul(features, of_features) + ops.matmul(actions, of_actions) + bias
        x = self.fc2(ops.maximum(x, 0), is_fixed)
        return self.fc3(ops.maximum(x, 0), is_fixed).reshape(-1)


class WrittenSACLoss(nn.Cell):
    """The same loss in plain arithmetic."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.policy = Encoder(model), WrittenActor(model)
        self.q_nets = nn.CellList([PartedCritic(model, f"critics.{n}") for n in range(2)])
        self.target_q_nets = nn.CellList([PartedCritic(model, f"targets.{n}") for n in range(2)])
        for parameter in self.target_q_nets.get_parameters():
            parameter.requires_grad = False
        self.log_alpha = Parameter(read(model, "log_alpha"), name="log_alpha")

    def compute_targets(self, rewards, lengths, next_values):
        """Return returns, step by step backward in time."""
        targets = ops.zeros_like(next_values)
        for step in range(STEPS - 1, -1, -1):
            targets = ops.where(step == lengths - 1, next_values, targets)
            targets = ops.where(step < lengths, rewards[:, step] + DISCOUNT * targets, targets)
        return targets

    def compute_losses(self, values, targets):
        """Return the Huber loss of each row."""
        errors = ops.abs(values - targets)
        squared = ops.minimum(errors, HUBER_DELTA)
        return squared * (errors - squared / 2)

    def construct(
        self,
        images,
        states,
        actions,
        rewards,
        lengths,
        done,
        next_images,
        next_states,
        weights,
        noise,
        next_noise,
    ):
        encoded = self.encoder(ops.concat((images, next_images), 0))
        features = ops.concat((encoded[:BATCH], states), -1)
        next_features = ops.stop_gradient(ops.concat((encoded[BATCH:], next_states), -1))
        alpha = ops.exp(self.log_alpha)

        next_actions, next_log_prob = self.policy(next_features, next_noise)
        next_qs = [q_net(next_features, next_actions, True) for q_net in self.target_q_nets]
        next_values = ops.stack(next_qs, 0).min(axis=0) - alpha * next_log_prob
        targets = self.compute_targets(rewards, lengths, (1 - done) * next_values)
        targets = ops.stop_gradient(targets)

        losses = 0.0
        for q_net in self.q_nets:
            losses = losses + self.compute_losses(q_net(features, actions), targets)
        critic_loss = (losses * weights).sum() / BATCH

        features = ops.stop_gradient(features)
        new_actions, log_prob = self.policy(features, noise)
        new_qs = [q_net(features, new_actions, True) for q_net in self.q_nets]
        new_values = ops.stack(new_qs, 0).min(axis=0)
        actor_loss = (ops.stop_gradient(alpha) * log_prob).mean() - new_values.mean()
        alpha_loss = -alpha * (ops.stop_gradient(log_prob).mean() + TARGET_ENTROPY)
        return critic_loss + actor_loss + alpha_loss.sum()
