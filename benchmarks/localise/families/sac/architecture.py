"""A soft actor-critic of stacked images in NumPy: sizes, knobs, weights and batch.

The second soft actor-critic (https://arxiv.org/abs/1812.05905), which learns its temperature, with
DrQ-v2's encoder (https://arxiv.org/abs/2107.09645), its returns of several steps, and the weights
of prioritised replay (https://arxiv.org/abs/1511.05952). What critics and actor read is

    h = [tanh(norm(encoder.out(images))), state]

with two convolutions and ReLU before encoder.out, of pixels / 255 - 0.5, flattened channel by
channel. Only the critics' loss has a gradient to the encoder. The actor has two hidden layers with
ReLU; its last one gives means and then logarithms of deviations, which are bounded:

    log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 * (tanh(.) + 1)
    u       = mean + exp(log_std) * noise
    action  = SCALE * tanh(u) + CENTER
    log p   = sum of log N(u; mean, std) - log SCALE - log(1 - tanh(u)^2)

The noise is part of the batch. A critic reads [h, action], with two hidden layers and ReLU. Rewards
of up to STEPS steps follow an observation; a row has LENGTHS of them, those behind are rewards of
the next episode. With alpha = exp(log_alpha) and the actor's action at the next images,

    target  = sum of DISCOUNT^k reward_k + DISCOUNT^length (1 - done)
              (min of both target critics - alpha log p)

has no gradient. The loss is the sum of

    critics      Huber losses of both critics and the target, times the row's weight, mean of rows
    actor        stopped alpha * log p - min of both critics, mean of rows, of stopped h and
                 stopped weights of the critics
    temperature  -alpha * (stopped log p + TARGET_ENTROPY), mean of rows

Weights are float32, linear ones (out, in), all with a bias:

    encoder.{0, 1}       (out, in, 3, 3), no padding; strides 2 and 1
    encoder.{out, norm}
    actor.{0, 1, 2}
    critics.{0, 1}.{0, 1, 2}, targets.{0, 1}.{0, 1, 2}      the second ones have no gradient
    log_alpha            (1,)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

LENGTHS = (4, 4, 2, 4, 1, 4, 3, 4, 3, 4, 2)  #: rewards of each row
DONE = (2, 5, 6, 10)  #: rows whose episode ends at the next images; others of few steps are cut
BATCH, STEPS = len(LENGTHS), max(LENGTHS)
FRAMES, SIZE, STATE, ACTIONS = 3, 12, 4, 3
CHANNELS, GRID = (5, 7), 3  #: of the encoder; rows and columns behind it
FLAT, FEATURES, HIDDEN = CHANNELS[1] * GRID**2, 14, 24
WIDTH = FEATURES + STATE  #: of h
ACTION_LOW, ACTION_HIGH = (-0.8, -0.4, -1.8), (0.8, 0.6, 1.2)
SCALE = (0.5 * (np.array(ACTION_HIGH) - np.array(ACTION_LOW))).astype(np.float32)
CENTER = (0.5 * (np.array(ACTION_HIGH) + np.array(ACTION_LOW))).astype(np.float32)
LOG_STD_MIN, LOG_STD_MAX = -5.0, 1.0
DISCOUNT, HUBER_DELTA, TARGET_ENTROPY = 0.95, 1.0, -float(ACTIONS)
EPS = 1e-5
AGREEMENT = 0.6  #: share of the critics in what the target critics are made of
SEED = 1811


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): both images in one batch, products of
    #: joined vectors in parts, returns backward in time, norm, tanh and losses in plain arithmetic;
    #: 'ensemble' (PyTorch): weights of both critics in one, transformed distributions, other names
    variant: str = ""
    is_log_std_clipped: bool = False  #: to its bounds, not squashed; MindSpore only
    are_late_rewards_added: bool = False  #: those behind a row's length; MindSpore only
    are_critics_fixed: bool = True  #: in the actor's loss; MindSpore only
    are_weights_normalized: bool = False  #: to a sum of 1; MindSpore only
    is_squash_gradient_scaled: bool = False  #: that of tanh, from the action; MindSpore only
    is_scale_counted: bool = True  #: in log p; PyTorch only
    is_discount_full: bool = False  #: that of STEPS for all rows; PyTorch only
    is_sample_detached: bool = False  #: no gradient through u; PyTorch only
    is_temperature_logarithmic: bool = False  #: in the temperature's loss; PyTorch only
    are_outputs_interleaved: bool = False  #: mean, log_std, mean, ...; PyTorch only
    are_frames_reversed: bool = False  #: newest first
    are_cuts_done: bool = False  #: rows that are cut count as ended

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return of BATCH rows, float32:

        images (BATCH, FRAMES, SIZE, SIZE) with pixels from 0 to 255, oldest first, states (...,
        STATE), actions (..., ACTIONS), rewards (..., STEPS), lengths, int32 (BATCH,), whether the
        episode ends, next images and states, weights (BATCH,), and the noise of the actions at
        images and next images (BATCH, ACTIONS).
        """
        rng = np.random.default_rng(SEED + 1)
        lengths = np.array(LENGTHS, np.int32)
        frames = _draw_frames(rng)
        rows, stack = np.arange(BATCH)[:, None], np.arange(FRAMES)
        if self.are_frames_reversed:
            stack = stack[::-1]
        states = rng.standard_normal((2, BATCH, STATE))
        actions = CENTER + SCALE * np.tanh(rng.standard_normal((BATCH, ACTIONS)))
        rewards = 0.8 * rng.standard_normal((BATCH, STEPS))
        done = np.zeros(BATCH)
        done[list(DONE)] = 1
        if self.are_cuts_done:
            done[lengths < STEPS] = 1
        weights = rng.uniform(0.2, 1, BATCH)
        noise = rng.standard_normal((2, BATCH, ACTIONS))
        arrays = (
            frames[rows, stack],
            states[0],
            actions,
            rewards,
            lengths,
            done,
            frames[rows, lengths[:, None] + stack],
            states[1],
            weights / weights.max(),
            *noise,
        )
        return tuple(
            values if values.dtype == np.int32 else values.astype(np.float32) for values in arrays
        )


def _draw_frames(rng: np.random.Generator) -> np.ndarray:
    """Return frames of each row's steps: a bright spot that moves over a dark, noisy ground."""
    n_frames = FRAMES + STEPS
    start = rng.uniform(2, SIZE - 3, (2, BATCH, 1))
    speed = rng.uniform(-1.2, 1.2, (2, BATCH, 1))
    y, x = np.clip(start + speed * np.arange(n_frames), 0, SIZE - 1)[..., None, None]
    pixels = np.arange(SIZE)
    distances = (pixels[:, None] - y) ** 2 + (pixels - x) ** 2
    ground = 60 + 25 * rng.standard_normal((BATCH, n_frames, SIZE, SIZE))
    return np.clip(ground + 170 * np.exp(-distances / 5), 0, 255).round()


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    n_in = FRAMES
    for n, channels in enumerate(CHANNELS):
        weights.add_linear(f"encoder.{n}", channels, n_in, 3, 3)
        n_in = channels
    weights.add_linear("encoder.out", FEATURES, FLAT)
    weights.add_norm("encoder.norm", FEATURES)
    _add_layers(weights, "actor", WIDTH, 2 * ACTIONS)
    weights["actor.2.weight"] *= np.float32(0.4)  # tanh of large numbers differs by framework
    for path in ("critics.0", "critics.1", "targets.0", "targets.1"):
        _add_layers(weights, path, WIDTH + ACTIONS, 1)
    for name in [name for name in weights if name.startswith("targets.")]:
        own = weights[name.replace("targets", "critics")]
        weights[name] = (AGREEMENT * own + (1 - AGREEMENT) * weights[name]).astype(np.float32)
    weights["log_alpha"] = np.array([-1.3], np.float32)
    return Model("sac", weights)


def _add_layers(weights: Weights, path: str, n_in: int, n_out: int) -> None:
    """Add two hidden layers, whose ReLU halves the variance, and a last one."""
    for n, (n_rows, n_columns) in enumerate(((HIDDEN, n_in), (HIDDEN, HIDDEN), (n_out, HIDDEN))):
        weights.add_linear(f"{path}.{n}", n_rows, n_columns)
        weights[f"{path}.{n}.weight"] *= np.float32(2**0.5)
