"""A decision transformer in NumPy: sizes, knobs, weights, statistics and batch.

In the manner of https://arxiv.org/abs/2106.01345, with the return head of its multi-game version
(https://arxiv.org/abs/2205.15241). A sequence is a window of an episode, of STEPS steps or up to
the end of the episode. It is padded in front, with the time step 0, returns and states of zero, and
actions of PADDING_ACTION.

States have the mean and the deviation of a data set, which gets EPS added, and returns-to-go are
divided by RETURN_SCALE. Linear layers make tokens of both and of actions. The row of the table of
time steps is added to all three tokens of a step, and a norm follows. Tokens are in the order
return, state, action of the first step, then of the second one.

The GPT adds the first row of its own table of positions to all tokens, since they have their time
steps already. A block, of which each has HEADS heads, is

    x + attention(norm1(x)), then x + mlp(norm2(x))

with ReLU in the mlp. A token sees itself and earlier ones, but no padding; what sees nothing takes
the mean of all values. A norm follows. Heads behind it are

    action    tanh of a linear layer, of the state's token
    state     the next state, with the same mean and deviation, of the action's token
    return    logits of BINS of the next return-to-go, of the action's token

The loss is the sum of

    actions   mean squared error of real steps
    states    STATE_WEIGHT * mean squared error of real steps with a next one in the window
    returns   RETURN_WEIGHT * cross entropy of real steps

Weights are float32, linear (out, in), with a bias where it is said:

    embed.return, embed.state, embed.action, embed.norm            all with bias
    embed.time (EPISODE, WIDE), position (POSITIONS, WIDE)
    block.N.norm1, qkv, out, norm2, up, down                       all with bias
    norm, head.state, head.action, head.return                     all with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

STEPS = 8
EPISODES = (17, 9, 14, 14)  #: steps of the episodes
STARTS = (0, 4, 3, 11)  #: the first step of the window
BATCH, EPISODE = len(EPISODES), 20  #: EPISODE is the largest number of steps
STATE, ACTION, KINDS = 7, 3, 3  #: numbers of a state and an action; tokens of a step
TOKENS, POSITIONS = KINDS * STEPS, 32  #: POSITIONS is the largest number of tokens
WIDE, HEADS, HIDDEN, LAYERS = 24, 4, 64, 3
HEAD_DIM = WIDE // HEADS
BINS, BIN_SIZE, RETURN_SCALE = 6, 2.5, 10.0
PADDING_ACTION, IGNORE = -10.0, -100  #: IGNORE is the bin of padding
STATE_MEAN = (1.2, -0.1, 0.3, -0.5, 2.4, 0.02, 0.001)
STATE_DEVIATION = (0.9, 0.2, 0.5, 0.7, 1.9, 0.04, 0.0015)
EPS, NORM_EPS = 1e-6, 1e-5
STATE_WEIGHT, RETURN_WEIGHT = 0.5, 0.25
SEED = 2106


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, softmax, tables and losses in
    #: plain arithmetic, queries, keys and values joined; 'fused' (PyTorch): other names, tokens
    #: written into a tensor of zeros, a built-in attention, losses of chosen steps
    variant: str = ""
    are_states_first: bool = False  #: of the tokens of a step; MindSpore only
    are_results_of_states: bool = False  #: the heads of states and returns read it; MindSpore only
    embedding_gradient: float = 1.0  #: what it is multiplied by; MindSpore only
    are_positions_counted: bool = False  #: those of the GPT; PyTorch only
    is_mask_tiled: bool = False  #: it is in the order of steps, three times; PyTorch only
    are_scores_divided_by_layer: bool = False  #: by its number; PyTorch only
    is_first_step_padding: bool = False  #: its row of the table has no gradient; PyTorch only
    are_pairs_late: bool = False  #: padding counts before the first real step; PyTorch only
    are_returns_cut: bool = False  #: at the end of the window
    is_eps_in_root: bool = False  #: added to the variance of states

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what is subtracted from states and what they are divided by, float32 (STATE,)."""
        deviation = np.array(STATE_DEVIATION)
        divisor = np.sqrt(deviation**2 + EPS) if self.is_eps_in_root else deviation + EPS
        return np.array(STATE_MEAN, np.float32), divisor.astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return states, actions, returns-to-go, bins of the next ones, time steps and a mask.

        States are float32 (BATCH, STEPS, STATE), actions float32 (BATCH, STEPS, ACTION) from -1 to
        1, returns-to-go float32 (BATCH, STEPS, 1). Bins, time steps and the mask, which is one at
        real steps, are int32 (BATCH, STEPS).
        """
        rng = np.random.default_rng(SEED + 1)
        states = np.zeros((BATCH, STEPS, STATE))
        actions = np.full((BATCH, STEPS, ACTION), PADDING_ACTION)
        returns = np.zeros((BATCH, STEPS, 1))
        bins = np.full((BATCH, STEPS), IGNORE, np.int32)
        times, mask = (np.zeros((BATCH, STEPS), np.int32) for _ in range(2))
        for n, (length, start) in enumerate(zip(EPISODES, STARTS, strict=True)):
            steps = np.arange(length)[:, None]
            pitch, phase = rng.uniform(0.2, 0.9, STATE), rng.uniform(0, 2 * np.pi, STATE)
            course = 1.2 * np.sin(pitch * steps + phase)
            course += 0.4 * rng.standard_normal((length, STATE))
            controls = np.tanh(course @ rng.standard_normal((STATE, ACTION)) / np.sqrt(STATE))
            rewards = rng.uniform(0.2, 1.4, length)

            end = min(start + STEPS, length)
            last_reward = end if self.are_returns_cut else length
            to_go = np.cumsum(rewards[start:last_reward][::-1])[::-1]
            to_go = np.append(to_go, 0.0)
            count = end - start
            states[n, -count:] = np.array(STATE_MEAN) + course[start:end] * STATE_DEVIATION
            actions[n, -count:] = controls[start:end]
            returns[n, -count:, 0] = to_go[:count]
            bins[n, -count:] = np.minimum(to_go[1 : count + 1] // BIN_SIZE, BINS - 1)
            times[n, -count:] = np.arange(start, end)
            mask[n, -count:] = 1
        return (
            states.astype(np.float32),
            actions.astype(np.float32),
            returns.astype(np.float32),
            bins,
            times,
            mask,
        )


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    for name, width in (("return", 1), ("state", STATE), ("action", ACTION)):
        weights.add_linear(f"embed.{name}", WIDE, width)
    weights.add_table("embed.time", EPISODE, WIDE, deviation=0.6)
    weights.add_norm("embed.norm", WIDE)
    weights.add_table("position", POSITIONS, WIDE, deviation=0.4)
    for n in range(LAYERS):
        weights.add_norm(f"block.{n}.norm1", WIDE)
        weights.add_linear(f"block.{n}.qkv", 3 * WIDE, WIDE)
        weights[f"block.{n}.qkv.weight"][: 2 * WIDE] *= np.float32(1.3)
        weights.add_linear(f"block.{n}.out", WIDE, WIDE)
        weights.add_norm(f"block.{n}.norm2", WIDE)
        weights.add_linear(f"block.{n}.up", HIDDEN, WIDE)
        weights.add_linear(f"block.{n}.down", WIDE, HIDDEN)
    weights.add_norm("norm", WIDE)
    for name, width in (("state", STATE), ("action", ACTION), ("return", BINS)):
        weights.add_linear(f"head.{name}", width, WIDE)
    return Model("decision", weights)
