"""The policy in PyTorch, as CleanRL and RSL-RL write PPO.

Variant 'distributions': torch.distributions, losses by functions of the framework, states of
finished episodes chosen by where.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from families.policy.architecture import (
    ACTIONS,
    CLIP_RANGE,
    DISCOUNT,
    ENTROPY_WEIGHT,
    EPS,
    HIDDEN,
    OBSERVATIONS,
    TINY,
    TRACE_DECAY,
    Model,
)

LOG_ROOT = 0.5 * math.log(2 * math.pi)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        not model.is_state_reset
        or model.is_reset_first
        or model.trace_decay != TRACE_DECAY
        or model.action_reduction != "sum"
        or model.clip_range != CLIP_RANGE
        or not model.is_baseline_stopped
        or model.is_norm_late
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    return PPO(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the parameters at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(torch.from_numpy(np.array(model.weights[f"{path}.{name}"])))
    return module


class ActorCritic(nn.Module):
    """Means of actions and values, step by step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            load(nn.Linear(OBSERVATIONS, HIDDEN), model, "trunk.0"),
            load(nn.LayerNorm(HIDDEN, eps=EPS), model, "trunk.norm"),
            nn.Tanh(),
            load(nn.Linear(HIDDEN, HIDDEN), model, "trunk.1"),
            nn.ELU() if model.last_activation == "elu" else nn.Tanh(),
        )
        self.gru = load(nn.GRUCell(HIDDEN, HIDDEN), model, "memory")
        if not model.has_state_bias:
            self.gru.bias_hh.requires_grad_(requires_grad=False).zero_()
        if model.is_update_first:
            for parameter in self.gru.parameters():
                update, reset, candidate = parameter.data.chunk(3)
                parameter.data = torch.cat([reset, update, candidate])
        self.actor = load(nn.Linear(HIDDEN, ACTIONS), model, "actor")
        self.critic = load(nn.Linear(HIDDEN, 1), model, "critic")
        self.log_std = nn.Parameter(torch.from_numpy(model.weights["log_deviation"].copy()))
        self.is_critic_stopped = model.is_critic_stopped
        self.is_memory_truncated = model.is_memory_truncated
        self.state_gradient = model.state_gradient
        self.is_chosen = model.variant == "distributions"

    def forward(self, observations: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(observations)
        states = []
        for step_features, step_starts in zip(features.unbind(0), starts.unbind(0), strict=True):
            if self.is_chosen:
                state = torch.where(step_starts.bool()[:, None], 0.0, state)
            else:
                state = (1.0 - step_starts).unsqueeze(-1) * state
            if self.is_memory_truncated:
                state = state.detach()
            if self.state_gradient != 1:
                state = scaled_gradient(state, self.state_gradient)
            state = self.gru(step_features, state)
            states.append(state)
        hidden = torch.stack(states)
        of_critic = hidden.detach() if self.is_critic_stopped else hidden
        return self.actor(hidden[:-1]), self.critic(of_critic).squeeze(-1)


class PPO(nn.Module):
    """Clipped objective, clipped loss of values, and entropy, of a rollout."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.actor_critic = ActorCritic(model)
        self.model = model
        self.has_distributions = model.variant == "distributions"

    def compute_advantages(self, rewards: Tensor, values: Tensor, starts: Tensor) -> Tensor:
        """Return advantages (STEPS, ENVIRONMENTS), summed backward in time."""
        advantages = torch.zeros_like(rewards)
        last = torch.zeros_like(rewards[0])
        for step in reversed(range(len(rewards))):
            goes_on = 1.0 - starts[step if self.model.is_cut_early else step + 1]
            delta = rewards[step] + DISCOUNT * values[step + 1] * goes_on - values[step]
            last = delta + DISCOUNT * TRACE_DECAY * goes_on * last
            advantages[step] = last
        return advantages

    def evaluate(self, mean: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithms of the actions' likelihoods, and the entropy."""
        log_std = self.actor_critic.log_std
        if self.has_distributions:
            distribution = Independent(Normal(mean, log_std.exp().expand_as(mean)), 1)
            return distribution.log_prob(actions), distribution.entropy().mean()
        distances = (actions - mean) / torch.exp(log_std)
        log_likelihoods = -0.5 * distances.pow(2) - log_std - LOG_ROOT
        return log_likelihoods.sum(dim=-1), (log_std + 0.5 + LOG_ROOT).sum()

    def forward(
        self,
        observations: Tensor,
        starts: Tensor,
        state: Tensor,
        actions: Tensor,
        old_log_likelihoods: Tensor,
        old_values: Tensor,
        rewards: Tensor,
    ) -> Tensor:
        model = self.model
        mean, all_values = self.actor_critic(observations, starts, state)
        advantages = self.compute_advantages(rewards, all_values.detach(), starts)
        values = all_values[:-1]
        returns = advantages + values.detach()
        deviation = advantages.std(correction=0) if model.is_deviation_biased else advantages.std()
        centered = advantages
        if model.is_advantage_centered:
            centered = advantages - advantages.mean()
        normalized = centered / (deviation + TINY)

        log_likelihoods, entropy = self.evaluate(mean, actions)
        ratio = torch.exp(log_likelihoods - old_log_likelihoods)
        clipped_ratio = torch.clamp(ratio, 1 - CLIP_RANGE, 1 + CLIP_RANGE)
        policy_loss = -torch.min(ratio * normalized, clipped_ratio * normalized).mean()

        targets = returns if model.value_target == "returns" else advantages
        if model.are_values_clipped:
            changes = torch.clamp(values - old_values, -CLIP_RANGE, CLIP_RANGE)
            clipped_values = old_values + changes
        if not model.are_values_clipped:
            value_loss = 0.5 * ((values - targets) ** 2).mean()
        elif model.value_loss == "smooth":
            losses = F.smooth_l1_loss(values, targets, reduction="none")
            clipped_losses = F.smooth_l1_loss(clipped_values, targets, reduction="none")
            value_loss = torch.max(losses, clipped_losses).mean()
        elif self.has_distributions:
            losses = F.mse_loss(values, targets, reduction="none")
            clipped_losses = F.mse_loss(clipped_values, targets, reduction="none")
            value_loss = torch.maximum(losses, clipped_losses).mean().mul(0.5)
        else:
            losses, clipped_losses = (values - targets) ** 2, (clipped_values - targets) ** 2
            value_loss = 0.5 * torch.max(losses, clipped_losses).mean()
        loss = policy_loss + model.value_weight * value_loss
        bonus = ENTROPY_WEIGHT * entropy
        return loss + bonus if model.is_entropy_added else loss - bonus
