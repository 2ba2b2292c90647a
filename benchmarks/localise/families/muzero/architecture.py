"""A learned world model for planning in NumPy: sizes, knobs, weights and batch.

In the manner of MuZero (https://arxiv.org/abs/1911.08265) and EfficientZero
(https://arxiv.org/abs/2111.00210). A row of a batch is a piece of an episode: FRAMES + UNROLL
frames, of which an observation at state k are those from k to k + FRAMES - 1. With them go planes
of the actions that led to them, action / ACTIONS. Colors are divided by 255.

    representation  in (stride 2), norm, ReLU, and a residual block
    dynamics        relu(norm(in([state, one-hot planes of the action])) + state), and a residual
                    block; its gradient to the state before is scaled by STATE_GRADIENT
    block           relu(norm(1(relu(norm(0(x))))) + x)

All norms are batch norms of the batch's statistics. Both networks end in (x - minimum) / (maximum -
minimum + TINY), with the minimum and maximum of all numbers of a row. Heads of policy and value are
a convolution of one cell with ReLU, flattened channel by channel, and two linear layers around
ReLU. Value prefixes of states 1 to UNROLL have such a convolution, an LSTM whose state is zeros at
the first step of each HORIZON, and a linear layer.

Rewards, bootstrap values and ends of steps are given; what is behind an end is of another episode.
A state counts if no step before it is an end; so does the step from it. Targets are

    policy  shares of visits
    value   sum of DISCOUNT^i * reward i steps later, of STEPS steps that count, and DISCOUNT^STEPS
            * bootstrap value, if that state counts
    prefix  sum of rewards of steps that count since the first step of the HORIZON

The last two pass sign(x) (sqrt(|x| + 1) - 1) + TRANSFORM_EPS x and a clip to -SUPPORT and SUPPORT,
and are spread over the two nearest of ATOMS whole numbers. Projections of states 1 to UNROLL, two
linear layers around a batch norm and ReLU, behind two linear layers around ReLU are compared with
projections of the states that the representation has of the observations, without gradient. The
loss of a row is that of state 0, policy and VALUE_WEIGHT * value, and 1 / UNROLL of the sum of

    policy + VALUE_WEIGHT * value - CONSISTENCY_WEIGHT * cosine   of states 1 to UNROLL that count
    prefix                                                        of steps that count

with cross entropies. The loss is the mean of rows with their weights. Weights are float32, linear
(out, in), with a bias where it is said:

    representation.in, block.0, block.1   (out, in, 3, 3), with norm behind the path
    dynamics.in, block.0, block.1         the same
    policy, value      .conv (out, in, 1, 1), .hidden and .out, all with bias
    prefix             .conv and .out with bias, .lstm.weight_ih, weight_hh (4 * MEMORY, in),
                       bias_ih, bias_hh (4 * MEMORY): input, forget, candidate and output
    projection         .hidden, .norm and .out, the last two with bias
    predictor          .hidden and .out, with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, FRAMES, UNROLL, STEPS, HORIZON = 6, 2, 4, 3, 2
ENDS = ((1, 2), (3, 5), (4, 0))  #: row and step
COLORS, HEIGHT, WIDTH, ACTIONS = 3, 10, 14, 4
INPUT = FRAMES * (COLORS + 1)
ROWS, COLUMNS = HEIGHT // 2, WIDTH // 2
CHANNELS, HEAD_CHANNELS = 12, 2
FLAT, HEAD_FLAT = CHANNELS * ROWS * COLUMNS, HEAD_CHANNELS * ROWS * COLUMNS
HIDDEN, MEMORY, PROJECTION, BOTTLENECK = 22, 16, 18, 10
SUPPORT = 4
ATOMS = 2 * SUPPORT + 1
DISCOUNT, TRANSFORM_EPS, STATE_GRADIENT = 0.95, 1e-3, 0.5
VALUE_WEIGHT, CONSISTENCY_WEIGHT = 0.25, 2.0
EPS, TINY = 1e-5, 1e-5
SEED = 1911


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, cell, softmax and targets in
    #: plain arithmetic, a convolution of states and one of actions; 'fused' (PyTorch): other names,
    #: heads of all states at once, one convolution of policy and value, horizons as a batch
    variant: str = ""
    is_range_of_channel: bool = False  #: minimum and maximum of states; MindSpore only
    are_ends_counted: bool = False  #: states behind the last step of an episode; MindSpore only
    are_observed_attached: bool = False  #: projections of observed states; MindSpore only
    step_weight: float = 1 / UNROLL  #: of losses of states 1 to UNROLL; MindSpore only
    is_action_first: bool = False  #: what the dynamics read; PyTorch only
    is_head_gradient_scaled: bool = False  #: that of states, all of it; PyTorch only
    is_range_constant: bool = False  #: in the backward pass; PyTorch only
    are_prefixes_plain: bool = False  #: targets without the square root; PyTorch only
    is_memory_kept: bool = False  #: from one HORIZON to the next; PyTorch only
    are_visits_counted: bool = False  #: given as numbers, not as shares

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return frames, actions, visits, rewards, bootstrap values, ends and weights.

        Frames are float32 (BATCH, FRAMES + UNROLL, COLORS, HEIGHT, WIDTH) from 0 to 255, actions
        int32 (BATCH, FRAMES + UNROLL), visits float32 (BATCH, UNROLL + 1, ACTIONS). Rewards and
        ends, 0 or 1, are float32 (BATCH, UNROLL + STEPS), bootstrap values float32 (BATCH, UNROLL +
        1), of STEPS steps later, and weights float32 (BATCH,).
        """
        rng = np.random.default_rng(SEED + 1)
        n_frames = FRAMES + UNROLL
        frames = rng.uniform(0, 60, (BATCH, n_frames, COLORS, HEIGHT, WIDTH))
        actions = rng.integers(0, ACTIONS, (BATCH, n_frames)).astype(np.int32)
        steps = np.array([(-1, 0), (1, 0), (0, -2), (0, 2)])
        for n in range(BATCH):
            size, place = rng.integers(2, 5, 2), rng.integers(0, 6, 2)
            color = rng.uniform(60, 195, (COLORS, 1, 1))
            for frame in range(n_frames):
                place = np.clip(place + steps[actions[n, frame]], 0, (HEIGHT, WIDTH) - size)
                rows, columns = map(slice, place, place + size)
                frames[n, frame, :, rows, columns] += color
        visits = np.stack(
            [
                [rng.multinomial(n_visits, rng.dirichlet(np.ones(ACTIONS))) for n_visits in row]
                for row in rng.integers(16, 33, (BATCH, UNROLL + 1))
            ]
        ).astype(np.float32)
        if not self.are_visits_counted:
            visits = visits / visits.sum(-1, keepdims=True)
        rewards = rng.normal(0.5, 1.5, (BATCH, UNROLL + STEPS))
        bootstrap = rng.normal(3, 6, (BATCH, UNROLL + 1))
        bootstrap[0, 1] = 40.0  # beyond the support
        ends = np.zeros((BATCH, UNROLL + STEPS), np.float32)
        for row, step in ENDS:
            ends[row, step] = 1
        weights = rng.uniform(0.3, 1, BATCH)
        return (
            frames.astype(np.float32),
            actions,
            visits,
            rewards.astype(np.float32),
            bootstrap.astype(np.float32),
            ends,
            (weights / weights.max()).astype(np.float32),
        )


def _add_conv(weights: Weights, path: str, n_in: int) -> None:
    weights.add_matrix(path, CHANNELS, n_in, 3, 3)
    weights.add_norm(f"{path}.norm", CHANNELS)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    for network, n_in in (("representation", INPUT), ("dynamics", CHANNELS + ACTIONS)):
        _add_conv(weights, f"{network}.in", n_in)
        for n in range(2):
            _add_conv(weights, f"{network}.block.{n}", CHANNELS)
    for head, n_out in (("policy", ACTIONS), ("value", ATOMS)):
        weights.add_linear(f"{head}.conv", HEAD_CHANNELS, CHANNELS, 1, 1)
        weights.add_linear(f"{head}.hidden", HIDDEN, HEAD_FLAT)
        weights[f"{head}.hidden.weight"] *= np.float32(2)
        weights.add_linear(f"{head}.out", n_out, HIDDEN)
    weights.add_linear("prefix.conv", HEAD_CHANNELS, CHANNELS, 1, 1)
    for name, n_in in (("ih", HEAD_FLAT), ("hh", MEMORY)):
        values = 2 * weights.rng.standard_normal((4 * MEMORY, n_in)) / np.sqrt(n_in)
        weights[f"prefix.lstm.weight_{name}"] = values.astype(np.float32)
        biases = 0.3 * weights.rng.standard_normal(4 * MEMORY)
        weights[f"prefix.lstm.bias_{name}"] = biases.astype(np.float32)
    weights.add_linear("prefix.out", ATOMS, MEMORY)
    weights["prefix.out.weight"] *= np.float32(2)
    weights.add_matrix("projection.hidden", HIDDEN, FLAT)
    weights.add_norm("projection.norm", HIDDEN)
    weights.add_linear("projection.out", PROJECTION, HIDDEN)
    weights.add_linear("predictor.hidden", BOTTLENECK, PROJECTION)
    weights.add_linear("predictor.out", PROJECTION, BOTTLENECK)
    return Model("muzero", weights)
