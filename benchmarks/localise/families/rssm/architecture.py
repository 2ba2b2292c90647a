"""A recurrent state-space model in NumPy: sizes, knobs, weights and batch.

The world model of DreamerV3 (https://arxiv.org/abs/2301.04104, section "World model learning"),
which learns from images, actions and rewards of several sequences. A state is a deterministic
vector h and GROUPS categorical variables of CLASSES classes, z. Each step reads the state and the
action before it; where an episode begins, the state is the learned one and the action is zero:

    x       = silu(norm(input([z, a])))
    r, c, u = the three parts of norm(cell([x, h])), of DETER rows each
    h'      = u c' + (1 - u) h, c' = tanh(sigmoid(r) c), u = sigmoid(u + UPDATE_OFFSET)
    prior   = prior.out(silu(norm(prior.hidden(h'))))
    post    = posterior.out(silu(norm(posterior.hidden([h', embedding of the image]))))

All distributions are 1 - UNIMIX of the softmax and UNIMIX of equal shares. A sample takes the class
of the largest log-probability plus noise, which is part of the batch; its gradient passes straight
to the probabilities. The learned state is tanh(initial), with the most likely classes of its prior.

Images are read by two convolutions of stride 2, each with a layer norm of channels and SiLU, and
flattened channel by channel; two transposed convolutions write them. All norms have eps EPS. The
loss of a step is the sum of

    image    squared errors, summed over pixels and channels
    reward   cross entropy of BINS logits and symlog of the reward, shared by the two nearest bins
    continue binary cross entropy: does the episode go on
    dynamics DYNAMICS_WEIGHT * max(FREE_NATS, KL(stopped posterior, prior))
    representation  REPRESENTATION_WEIGHT * max(FREE_NATS, KL(posterior, stopped prior))

with KL summed over the variables. Means are those of the valid steps: sequences end at LENGTHS.

Weights are float32, linear ones (out, in); a norm's are at .norm behind the path of its layer:

    encoder.{0, 1}           (out, in, 4, 4), no bias, norm
    initial                  (DETER,)
    input, cell, prior.hidden, posterior.hidden       no bias, norm
    prior.out, posterior.out
    decoder.start, decoder.{0, 1}   (in, out, 4, 4); the first one no bias, norm
    reward.hidden, continue.hidden  no bias, norm
    reward.out, continue.out
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

LENGTHS = (6, 4, 6, 5)  #: steps of each sequence
BATCH, STEPS = len(LENGTHS), max(LENGTHS)
STARTS = ((0, 0), (1, 0), (1, 2), (2, 0), (2, 3))  #: sequence and step at which an episode begins
ENDS = ((0, 5), (1, 3), (2, 2))  #: sequence and step after which an episode does not go on
COLORS, SIZE, ACTIONS = 2, 8, 3
CHANNELS, GRID = (6, 9), SIZE // 4  #: of the encoder; rows and columns behind it
EMBED = CHANNELS[1] * GRID**2
DETER, GROUPS, CLASSES = 26, 4, 7
STOCH = GROUPS * CLASSES
FEATURES = DETER + STOCH
HIDDEN, HEAD = 22, 17
BINS, SPACING = 15, 0.5
CENTERS = (SPACING * (np.arange(BINS) - BINS // 2)).astype(np.float32)  #: of the bins
EPS, UNIMIX, UPDATE_OFFSET = 1e-3, 0.01, -1.0
FREE_NATS, DYNAMICS_WEIGHT, REPRESENTATION_WEIGHT = 1.0, 0.5, 0.1
SEED = 2301


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): products of joined vectors in parts,
    #: norms, activations and losses in plain arithmetic; 'distributions' (PyTorch): other names,
    #: torch.distributions, priors of all steps at once, parts of the posterior's layer apart
    variant: str = ""
    update_offset: float = UPDATE_OFFSET  #: MindSpore only
    is_channel_last: bool = False  #: when the encoder's result is flattened; MindSpore only
    is_action_kept: bool = False  #: where an episode begins; MindSpore only
    are_nats_free_of_mean: bool = False  #: not of each step; MindSpore only
    are_stops_exchanged: bool = False  #: of the two divergences; MindSpore only
    is_free_gradient_passed: bool = False  #: below FREE_NATS; MindSpore only
    is_sample_straight: bool = True  #: it has a gradient; MindSpore only
    cell_eps: float = EPS  #: of the cell's norm; PyTorch only
    is_divergence_reversed: bool = False  #: KL of prior and posterior; PyTorch only
    is_state_zero: bool = False  #: where an episode begins; PyTorch only
    is_reward_detached: bool = False  #: no gradient from the head to the state; PyTorch only
    is_mixed: bool = True  #: of UNIMIX equal shares; PyTorch only
    are_actions_late: bool = False  #: those that follow an image, not those before it

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, float32 (BATCH, STEPS, COLORS, SIZE, SIZE), actions (..., ACTIONS),
        rewards, starts of episodes and whether they go on (BATCH, STEPS), noise (BATCH, STEPS,
        GROUPS, CLASSES), and lengths, int32 (BATCH,). What belongs to padding is 0.
        """
        rng = np.random.default_rng(SEED + 1)
        valid = np.arange(STEPS) < np.array(LENGTHS)[:, None]
        columns = np.arange(SIZE)
        phases = rng.uniform(0, 2 * np.pi, (2, BATCH, STEPS, COLORS, 1, 1))
        waves = np.sin(0.7 * columns[:, None] + phases[0]) * np.cos(0.5 * columns + phases[1])
        images = 0.4 * waves + 0.1 * rng.standard_normal(waves.shape)
        drawn_actions = rng.uniform(-1, 1, (BATCH, STEPS + 1, ACTIONS))
        actions = drawn_actions[:, 1:] if self.are_actions_late else drawn_actions[:, :-1]
        rewards = 3 * rng.standard_normal((BATCH, STEPS))
        starts, goes_on = np.zeros((BATCH, STEPS)), np.ones((BATCH, STEPS))
        starts[tuple(np.transpose(STARTS))] = 1
        goes_on[tuple(np.transpose(ENDS))] = 0
        noise = rng.gumbel(size=(BATCH, STEPS, GROUPS, CLASSES))
        floats = (
            images * valid[..., None, None, None],
            actions * valid[..., None],
            rewards * valid,
            starts,
            goes_on * valid,
            noise,
        )
        return *(x.astype(np.float32) for x in floats), np.array(LENGTHS, np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    n_in = COLORS
    for n, channels in enumerate(CHANNELS):
        weights.add_matrix(f"encoder.{n}", channels, n_in, 4, 4)
        weights.add_norm(f"encoder.{n}.norm", channels)
        n_in = channels
    weights["initial"] = (0.6 * weights.rng.standard_normal(DETER)).astype(np.float32)
    _add_normed(weights, "input", HIDDEN, STOCH + ACTIONS)
    _add_normed(weights, "cell", 3 * DETER, HIDDEN + DETER)
    _add_normed(weights, "prior.hidden", HIDDEN, DETER)
    weights.add_linear("prior.out", STOCH, HIDDEN)
    _add_normed(weights, "posterior.hidden", HIDDEN, DETER + EMBED)
    weights.add_linear("posterior.out", STOCH, HIDDEN)
    weights.add_linear("decoder.start", EMBED, FEATURES)
    weights.add_matrix("decoder.0", CHANNELS[1], CHANNELS[0], 4, 4)
    weights.add_norm("decoder.0.norm", CHANNELS[0])
    weights.add_matrix("decoder.1", CHANNELS[0], COLORS, 4, 4)
    weights.add_bias("decoder.1", COLORS)
    for head, n_out in (("reward", BINS), ("continue", 1)):
        _add_normed(weights, f"{head}.hidden", HEAD, FEATURES)
        weights.add_linear(f"{head}.out", n_out, HEAD)
    return Model("rssm", weights)


def _add_normed(weights: Weights, path: str, n_out: int, n_in: int) -> None:
    """Add a linear layer without bias and its norm."""
    weights.add_matrix(path, n_out, n_in)
    weights.add_norm(f"{path}.norm", n_out)
