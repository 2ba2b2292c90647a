"""A recurrent actor-critic policy in NumPy: sizes, knobs, weights and batch.

Observations of several environments go through two linear layers with a layer norm, and a gated
recurrent unit whose state begins with zeros at the start of an episode. One head gives the means of
the actions, which have a common deviation each; the other one the values. Advantages are estimated
backward in time (https://arxiv.org/abs/1506.02438, section 3) and normalized. The loss is the
clipped objective of PPO (https://arxiv.org/abs/1707.06347, section 3) with clipped values and a
bonus for entropy. Weights:

    trunk.0, trunk.1, trunk.norm                  linear; layer norm behind the first one
    memory: weight_ih (3 * HIDDEN, HIDDEN), weight_hh (3 * HIDDEN, HIDDEN), bias_ih, bias_hh
    actor, critic                                 linear
    log_deviation (ACTIONS,)

The rows of the recurrent layer are those of reset and update, then of the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

STEPS, ENVIRONMENTS, OBSERVATIONS, HIDDEN, ACTIONS = 6, 4, 10, 24, 3
DISCOUNT, TRACE_DECAY = 0.97, 0.9  #: gamma and lambda of the advantages
CLIP_RANGE = 0.2  #: of ratios and values
VALUE_WEIGHT, ENTROPY_WEIGHT = 0.5, 0.01
EPS, TINY = 1e-5, 1e-8  #: of the layer norm; of the deviation of the advantages
ADAM_EPS, MAX_NORM = 1e-5, 0.5  #: the norm is that of all gradients together
SEED = 121


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'distributions' (PyTorch): torch.distributions, losses by
    #: functions of the framework; 'merged' (MindSpore): the inputs of all steps projected at once,
    #: gates and heads together, advantages as a product with a matrix
    variant: str = ""
    is_state_reset: bool = True  #: at the start of an episode
    is_reset_first: bool = False  #: the reset gate multiplies the state before its linear layer
    is_cut_early: bool = False  #: a step ends where its own episode begins, not the next step's
    trace_decay: float = TRACE_DECAY
    is_deviation_biased: bool = False  #: the deviation of the advantages is divided by N, not N - 1
    action_reduction: str = "sum"  #: of the logarithms of an action's likelihoods; or 'mean'
    is_entropy_added: bool = False  #: to the loss, not subtracted from it
    clip_range: float = CLIP_RANGE  #: of the ratios
    value_target: str = "returns"  #: or 'advantages'
    is_baseline_stopped: bool = True  #: no gradient through the advantages
    is_critic_stopped: bool = False  #: no gradient from the values to the memory
    is_update_first: bool = False  #: rows of the update gate before those of the reset gate
    last_activation: str = "tanh"  #: of the trunk; or 'elu'
    has_state_bias: bool = True  #: bias_hh is added to what the memory reads of its state
    value_loss: str = "squares"  #: half of them; or 'smooth': smooth L1
    is_norm_late: bool = False  #: of the trunk: behind the first tanh, not before it
    are_values_clipped: bool = True  #: in their loss
    is_memory_truncated: bool = False  #: no gradient from a step of the memory to the one before
    is_advantage_centered: bool = True  #: when it is normalized
    state_gradient: float = 1.0  #: that of the memory's state is multiplied by it in each step
    value_weight: float = VALUE_WEIGHT
    #: AdamW without decay: MindSpore's own Adam has another place for eps, which is not small here
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(eps=ADAM_EPS, weight_decay=0.0, clip=MAX_NORM)
    )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return a rollout, float32.

        Observations (STEPS + 1, ENVIRONMENTS, OBSERVATIONS), starts of episodes (STEPS + 1,
        ENVIRONMENTS), the first state (ENVIRONMENTS, HIDDEN), actions (STEPS, ENVIRONMENTS,
        ACTIONS), and, (STEPS, ENVIRONMENTS) each, the logarithms of their likelihoods then, the
        values then, and rewards.
        """
        rng = np.random.default_rng(SEED + 1)
        observations = rng.standard_normal((STEPS + 1, ENVIRONMENTS, OBSERVATIONS))
        starts = (rng.random((STEPS + 1, ENVIRONMENTS)) < 0.2).astype(np.float32)
        state = 0.5 * rng.standard_normal((ENVIRONMENTS, HIDDEN))
        actions = 0.6 * rng.standard_normal((STEPS, ENVIRONMENTS, ACTIONS))
        log_likelihoods = -2.2 + 0.5 * rng.standard_normal((STEPS, ENVIRONMENTS))
        values = 0.4 * rng.standard_normal((STEPS, ENVIRONMENTS))
        rewards = rng.standard_normal((STEPS, ENVIRONMENTS))
        arrays = (observations, starts, state, actions, log_likelihoods, values, rewards)
        return tuple(array.astype(np.float32) for array in arrays)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    rng = weights.rng
    weights.add_linear("trunk.0", HIDDEN, OBSERVATIONS)
    weights.add_norm("trunk.norm", HIDDEN)
    weights.add_linear("trunk.1", HIDDEN, HIDDEN)
    for name in ("ih", "hh"):
        matrix = rng.standard_normal((3 * HIDDEN, HIDDEN)) / np.sqrt(HIDDEN)
        bias = 0.3 * rng.standard_normal(3 * HIDDEN)
        weights[f"memory.weight_{name}"] = matrix.astype(np.float32)
        weights[f"memory.bias_{name}"] = bias.astype(np.float32)
    weights.add_linear("actor", ACTIONS, HIDDEN)
    weights.add_linear("critic", 1, HIDDEN)
    log_deviation = -0.5 + 0.2 * rng.standard_normal(ACTIONS)
    weights["log_deviation"] = log_deviation.astype(np.float32)
    return Model("policy", weights)
