"""The policy in MindSpore, with cells and operators as MindSpore Reinforcement has them.

Variant 'merged': the inputs of all steps projected at once, gates and heads together, layer norm in
plain arithmetic, advantages as a product with a matrix.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.policy.architecture import (
    ACTIONS,
    CLIP_RANGE,
    DISCOUNT,
    ENTROPY_WEIGHT,
    ENVIRONMENTS,
    EPS,
    HIDDEN,
    STEPS,
    TINY,
    Model,
)

LOG_ROOT = 0.5 * math.log(2 * math.pi)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        model.is_cut_early
        or model.is_deviation_biased
        or model.is_entropy_added
        or model.value_target != "returns"
        or model.is_critic_stopped
        or not model.are_values_clipped
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    return PPOLoss(model)


def build_dense(weight: np.ndarray, bias: np.ndarray) -> nn.Dense:
    """Return a linear layer."""
    n_out, n_in = weight.shape
    return nn.Dense(n_in, n_out, weight_init=Tensor(weight), bias_init=Tensor(bias))


def load_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    return build_dense(model.weights[f"{path}.weight"], model.weights[f"{path}.bias"])


class WrittenNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight), Parameter(bias)

    def construct(self, x):
        mean = x.mean(-1, keep_dims=True)
        variance = ops.square(x).mean(-1, keep_dims=True) - ops.square(mean)
        return (x - mean) / ops.sqrt(variance + EPS) * self.gamma + self.beta


class Trunk(nn.Cell):
    """Features of observations."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight, bias = (Tensor(model.weights[f"trunk.norm.{name}"]) for name in ("weight", "bias"))
        self.dense1, self.dense2 = load_dense(model, "trunk.0"), load_dense(model, "trunk.1")
        if model.variant == "merged":
            self.norm = WrittenNorm(weight, bias)
        else:
            self.norm = nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)
        self.tanh = nn.Tanh()
        self.is_norm_late = model.is_norm_late
        self.last_activation = nn.ELU() if model.last_activation == "elu" else nn.Tanh()

    def construct(self, x):
        x = self.dense1(x)
        x = self.norm(self.tanh(x)) if self.is_norm_late else self.tanh(self.norm(x))
        return self.last_activation(self.dense2(x))


class GRUCell(nn.Cell):
    """One step of the memory."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        for name in ("ih", "hh"):
            weight = Tensor(model.weights[f"memory.weight_{name}"])
            bias = Tensor(model.weights[f"memory.bias_{name}"])
            setattr(self, f"weight_{name}", Parameter(weight))
            setattr(self, f"bias_{name}", Parameter(bias))
        self.matmul = ops.MatMul(transpose_b=True)
        self.has_state_bias = model.has_state_bias
        self.is_reset_first = model.is_reset_first
        self.is_update_first = model.is_update_first

    def project(self, x):
        return self.matmul(x, self.weight_ih) + self.bias_ih

    def construct(self, projected, state):
        x_reset, x_update, x_candidate = ops.split(projected, HIDDEN, axis=1)
        from_state = self.matmul(state, self.weight_hh)
        if self.has_state_bias:
            from_state = from_state + self.bias_hh
        h_reset, h_update, h_candidate = ops.split(from_state, HIDDEN, axis=1)
        if self.is_update_first:
            x_reset, x_update = x_update, x_reset
            h_reset, h_update = h_update, h_reset
        reset = ops.sigmoid(x_reset + h_reset)
        update = ops.sigmoid(x_update + h_update)
        if self.is_reset_first:
            rows = self.weight_hh[2 * HIDDEN :]
            h_candidate = self.matmul(reset * state, rows) + self.bias_hh[2 * HIDDEN :]
            candidate = ops.tanh(x_candidate + h_candidate)
        else:
            candidate = ops.tanh(x_candidate + reset * h_candidate)
        return (1 - update) * candidate + update * state


class MergedGRUCell(GRUCell):
    """The same: both gates at once."""

    def construct(self, projected, state):
        from_state = self.matmul(state, self.weight_hh) + self.bias_hh
        gates = ops.sigmoid(projected[:, : 2 * HIDDEN] + from_state[:, : 2 * HIDDEN])
        from_reset = gates[:, :HIDDEN] * from_state[:, 2 * HIDDEN :]
        candidate = ops.tanh(projected[:, 2 * HIDDEN :] + from_reset)
        return candidate + gates[:, HIDDEN:] * (state - candidate)


class ActorCritic(nn.Cell):
    """Means of actions and values, step by step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.trunk = Trunk(model)
        self.is_merged = model.variant == "merged"
        self.rnn = MergedGRUCell(model) if self.is_merged else GRUCell(model)
        if self.is_merged:
            parts = [
                np.concatenate([model.weights[f"{head}.{name}"] for head in ("actor", "critic")])
                for name in ("weight", "bias")
            ]
            self.heads = build_dense(*parts)
        else:
            self.actor, self.critic = load_dense(model, "actor"), load_dense(model, "critic")
        self.log_std = Parameter(Tensor(model.weights["log_deviation"]))
        self.is_state_reset = model.is_state_reset
        self.is_memory_truncated = model.is_memory_truncated
        self.scaled_gradient = None
        if model.state_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.state_gradient)

    def construct(self, observations, starts, state):
        features = self.trunk(observations)
        if self.is_merged:
            features = self.rnn.project(features.reshape(-1, HIDDEN))
            features = features.reshape(STEPS + 1, ENVIRONMENTS, 3 * HIDDEN)
        states = ()
        for step in range(STEPS + 1):
            if self.is_state_reset:
                state = state * (1 - starts[step]).expand_dims(-1)
            if self.is_memory_truncated:
                state = ops.stop_gradient(state)
            if self.scaled_gradient is not None:
                state = self.scaled_gradient(state)
            projected = features[step] if self.is_merged else self.rnn.project(features[step])
            state = self.rnn(projected, state)
            states = (*states, state)
        hidden = ops.stack(states, 0)
        if self.is_merged:
            outputs = self.heads(hidden)
            return outputs[:-1, :, :ACTIONS], outputs[..., ACTIONS]
        return self.actor(hidden[:-1]), self.critic(hidden).squeeze(-1)


class GAE(nn.Cell):
    """Advantages (STEPS, ENVIRONMENTS), summed backward in time."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.trace_decay = model.trace_decay
        self.is_product = model.variant == "merged"
        steps = np.arange(STEPS)
        distances = steps[None, :] - steps[:, None]
        decays = np.where(distances >= 0, (DISCOUNT * model.trace_decay) ** abs(distances), 0)
        self.decays = Tensor(decays.astype(np.float32)).expand_dims(-1)

    def construct(self, rewards, values, starts):
        goes_on = 1 - starts[1:]
        deltas = rewards + DISCOUNT * values[1:] * goes_on - values[:-1]
        if self.is_product:
            return self.multiply(deltas, starts[1:])
        advantages = ()
        last = ops.zeros_like(rewards[0])
        for number in range(STEPS):
            step = STEPS - 1 - number
            last = deltas[step] + DISCOUNT * self.trace_decay * goes_on[step] * last
            advantages = (last, *advantages)
        return ops.stack(advantages, 0)

    def multiply(self, deltas, ends):
        """Return the same from the decays between all steps of the same episode."""
        n_ends = ops.cumsum(ends, 0) - ends
        is_same = ops.equal(n_ends.expand_dims(0), n_ends.expand_dims(1)).astype(ms.float32)
        return (self.decays * is_same * deltas.expand_dims(0)).sum(1)


class PPOLoss(nn.Cell):
    """Clipped objective, clipped loss of values, and entropy, of a rollout."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = ActorCritic(model)
        self.gae = GAE(model)
        self.low, self.high = 1 - model.clip_range, 1 + model.clip_range
        self.is_summed = model.action_reduction == "sum"
        self.is_baseline_stopped = model.is_baseline_stopped
        self.is_advantage_centered = model.is_advantage_centered
        self.is_merged = model.variant == "merged"
        self.value_weight = model.value_weight
        self.is_value_loss_smooth = model.value_loss == "smooth"

    def normalize(self, advantages):
        """Return advantages with a mean of 0 and a deviation of 1."""
        centered = advantages - advantages.mean()
        variance = ops.square(centered).sum() / (STEPS * ENVIRONMENTS - 1)
        if not self.is_advantage_centered:
            centered = advantages
        return centered / (ops.sqrt(variance) + TINY)

    def construct(
        self, observations, starts, state, actions, old_log_likelihoods, old_values, rewards
    ):
        mean, all_values = self.network(observations, starts, state)
        baseline = ops.stop_gradient(all_values) if self.is_baseline_stopped else all_values
        advantages = self.gae(rewards, baseline, starts)
        values = all_values[:-1]
        returns = ops.stop_gradient(advantages + values)
        normalized = self.normalize(advantages)

        log_std = self.network.log_std
        if self.is_merged:
            squares = ops.square(actions - mean) * ops.exp(-2 * log_std)
            log_likelihoods = -(0.5 * squares + log_std).sum(-1) - ACTIONS * LOG_ROOT
        else:
            distances = (actions - mean) / ops.exp(log_std)
            of_actions = -0.5 * ops.square(distances) - log_std - LOG_ROOT
            log_likelihoods = of_actions.sum(-1) if self.is_summed else of_actions.mean(-1)
        entropy = (log_std + (0.5 + LOG_ROOT)).sum()

        ratio = ops.exp(log_likelihoods - old_log_likelihoods)
        clipped_ratio = ops.clip_by_value(ratio, self.low, self.high)
        policy_loss = -ops.minimum(ratio * normalized, clipped_ratio * normalized).mean()
        changes = ops.clip_by_value(values - old_values, -CLIP_RANGE, CLIP_RANGE)
        clipped_values = old_values + changes
        if self.is_value_loss_smooth:
            losses = ops.smooth_l1_loss(values, returns, reduction="none")
            clipped_losses = ops.smooth_l1_loss(clipped_values, returns, reduction="none")
            value_loss = ops.maximum(losses, clipped_losses).mean()
        else:
            losses, clipped_losses = (
                ops.square(values - returns),
                ops.square(clipped_values - returns),
            )
            value_loss = 0.5 * ops.maximum(losses, clipped_losses).mean()
        return policy_loss + self.value_weight * value_loss - ENTROPY_WEIGHT * entropy
