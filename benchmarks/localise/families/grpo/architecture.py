"""Reinforcement of a small Qwen from verifiable rewards in NumPy: sizes, knobs, weights and batch.

In the manner of GRPO (https://arxiv.org/abs/2402.03300, section 4.1), with the two bounds of DAPO
(https://arxiv.org/abs/2503.14476) and the critic of PPO (https://arxiv.org/abs/1707.06347). The
model is a Qwen 3 (https://arxiv.org/abs/2505.09388): x + f(norm(x)) with RMS norms and no biases,
HEADS // KV_HEADS queries that read the same key and value, norms of a head's queries and keys
before they are turned, in halves, down(silu(gate(x)) * up(x)), and a head that is the table of
embeddings. All this is frozen. Each linear layer has an adapter, SCALING * B(A(x)) is added to what
it gives, and a value is a linear function of the last states.

A row is a prompt, padded on its left, and one of SAMPLES completions of it, which ends with END and
is padded on its right. A position is the number of tokens before a token that are no padding. A
token sees itself and earlier tokens that are no padding. What predicts a token of the completion is
the state before it: logits are divided by TEMPERATURE, and the value is that of the same state.

The score of a sample is its reward less the mean of its group, divided by the group's deviation
(of SAMPLES - 1) plus TINY; it is the reward of a completion's last token. Advantages are, from the
last token to the first one, a = delta + DISCOUNT * TRACE_DECAY * a', delta = reward +
DISCOUNT * value' - value, of the values at the time of sampling. With the ratio r of likelihoods
now and then, and d, the logarithm of the likelihood that the model without adapters gives, less
that of the policy, the loss is the mean over sequences of their mean over tokens of

    -min(r * a, clip(r, 1 - CLIP_LOW, 1 + CLIP_HIGH) * a) + BETA * (exp(d) - d - 1)

plus VALUE_WEIGHT * half of the larger square of the values, as they are and at most VALUE_CLIP from
those then, less advantage + value then, less ENTROPY_WEIGHT * the entropy, both means over all
tokens of completions. Weights:

    embedding.weight (VOCAB, HIDDEN)
    layers.N.  attention_norm, ffn_norm, q_norm, k_norm    norms
               q, k, v, o, gate, up, down                  linear without bias, each with
               NAME.a (RANK, in), NAME.b (out, RANK)       its adapter
    norm, value
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from families.weights import Weights

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 64, 44, 6, 2, 10, 72, 2
GROUP = HEADS // KV_HEADS
RANK, ALPHA = 5, 10
SCALING = ALPHA / RANK
ROPE_BASE, EPS = 1e4, 1e-6
PADDING, END = 0, 2
TEMPERATURE = 0.7
PROMPT_LENGTHS, SAMPLES = (4, 6), 4
COMPLETION_LENGTHS = (7, 4, 6, 9, 5, 9, 3, 8)  #: with END, which the first one of 9 has, too
TRUNCATED = 5  #: the row whose completion has no END
GROUPS, ROWS = len(PROMPT_LENGTHS), len(COMPLETION_LENGTHS)
PROMPT, COMPLETION = max(PROMPT_LENGTHS), max(COMPLETION_LENGTHS)
SEQ = PROMPT + COMPLETION
REWARDS = (1.0, 0.1, 0.0, 1.1, 0.1, 0.0, 1.0, 0.2)  #: an answer is right, its form is right
TINY = 1e-4
DISCOUNT, TRACE_DECAY = 0.99, 0.95
CLIP_LOW, CLIP_HIGH, VALUE_CLIP = 0.2, 0.28, 0.2
BETA, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.1, 0.25, 0.01
SEED = 2429


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): adapters are added to the weights,
    #: queries of a key are an axis, labels one-hot, advantages a product with decays; 'fused'
    #: (PyTorch): a second model as reference, the framework's attention, norm and cross entropy
    variant: str = ""
    are_heads_normed_late: bool = False  #: behind the rotation; MindSpore only
    is_position_repeated: bool = False  #: the prompt's last one begins completions; MindSpore only
    is_next_value_masked: bool = True  #: of advantages; MindSpore only
    is_divergence_reversed: bool = False  #: d is policy less reference; MindSpore only
    is_group_gradient_averaged: bool = False  #: of keys and values; MindSpore only
    has_temperature: bool = True  #: PyTorch only
    are_means_tiled: bool = False  #: mean and deviation of groups; PyTorch only
    is_token_mean: bool = False  #: of ratios and divergence, over all tokens; PyTorch only
    is_divergence_stopped: bool = False  #: it has no gradient; PyTorch only
    are_old_logps_raw: bool = False  #: of logits that are not divided by TEMPERATURE
    is_temperature_derived: bool = True  #: it divides gradients of logits; MindSpore only
    are_values_late: bool = False  #: of the token's own state; PyTorch only

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return prompts and completions, what was likely and of value then, and rewards.

        Prompts are int32 (GROUPS, PROMPT), completions int32 (ROWS, COMPLETION), those of a prompt
        one after the other; logarithms of likelihoods, 0 at padding, and values float32 (ROWS,
        COMPLETION); rewards float32 (ROWS,).
        """
        prompts, completions = _draw_tokens()
        old_logps, old_values = _compute_rollout(1.0 if self.are_old_logps_raw else TEMPERATURE)
        return prompts, completions, old_logps, old_values, np.array(REWARDS, np.float32)


def _draw_tokens() -> tuple[np.ndarray, np.ndarray]:
    """Return prompts and completions."""
    rng = np.random.default_rng(SEED + 1)
    prompts = rng.integers(END + 1, VOCAB, (GROUPS, PROMPT))
    prompts *= np.arange(PROMPT) >= PROMPT - np.array(PROMPT_LENGTHS)[:, None]
    completions = rng.integers(END + 1, VOCAB, (ROWS, COMPLETION))
    lengths = np.array(COMPLETION_LENGTHS)
    completions *= np.arange(COMPLETION) < lengths[:, None]
    has_end = np.arange(ROWS) != TRUNCATED
    completions[has_end, lengths[has_end] - 1] = END
    return prompts.astype(np.int32), completions.astype(np.int32)


@cache
def _compute_rollout(temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Return what the policy gave to completions before its adapters were updated."""
    rng = np.random.default_rng(SEED + 2)
    weights = {name: values.astype(np.float64) for name, values in build_clean().weights.items()}
    for name in [name for name in weights if name.endswith(".b.weight")]:
        weights[name] += 0.012 * rng.standard_normal(weights[name].shape)
    prompts, completions = _draw_tokens()
    tokens = np.concatenate([prompts.repeat(SAMPLES, axis=0), completions], axis=1)
    states = _compute_states(weights, tokens)[:, PROMPT - 1 : -1]
    logits = states @ weights["embedding.weight"].T / temperature
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    logps = np.take_along_axis(log_probs, completions[..., None], axis=-1)[..., 0]
    logps = np.where(completions != PADDING, logps, 0)
    values = (states @ weights["value.weight"].T + weights["value.bias"])[..., 0]
    values += 0.12 * rng.standard_normal(values.shape)
    return logps.astype(np.float32), values.astype(np.float32)


def _compute_states(weights: Mapping[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Return the last states (ROWS, SEQ, HIDDEN) of the policy."""
    is_token = tokens != PADDING
    frequencies = ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    positions = np.maximum(is_token.cumsum(axis=1) - 1, 0)
    angles = np.tile(positions[:, None, :, None] * frequencies, 2)
    is_seen = (np.tri(SEQ, dtype=bool) & is_token[:, None]) | np.eye(SEQ, dtype=bool)

    def project(x: np.ndarray, path: str) -> np.ndarray:
        matrix, a, b = (weights[f"{path}{kind}.weight"] for kind in ("", ".a", ".b"))
        return x @ (matrix + SCALING * b @ a).T

    def norm(x: np.ndarray, path: str) -> np.ndarray:
        variance = (x**2).mean(axis=-1, keepdims=True)
        return x / np.sqrt(variance + EPS) * weights[f"{path}.weight"]

    def divide(x: np.ndarray) -> np.ndarray:
        return x.reshape(ROWS, SEQ, -1, HEAD_DIM).swapaxes(1, 2)

    def turn(x: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, axis=-1)
        return x * np.cos(angles) + np.concatenate([-second, first], axis=-1) * np.sin(angles)

    x = weights["embedding.weight"][tokens]
    for n in range(LAYERS):
        path = f"layers.{n}"
        normed = norm(x, f"{path}.attention_norm")
        q, k, v = (divide(project(normed, f"{path}.{name}")) for name in "qkv")
        q, k = turn(norm(q, f"{path}.q_norm")), turn(norm(k, f"{path}.k_norm"))
        k, v = k.repeat(GROUP, axis=1), v.repeat(GROUP, axis=1)
        scores = np.where(is_seen[:, None], q @ k.swapaxes(2, 3) / HEAD_DIM**0.5, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        context = shares / shares.sum(axis=-1, keepdims=True) @ v
        x = x + project(context.swapaxes(1, 2).reshape(ROWS, SEQ, -1), f"{path}.o")
        normed = norm(x, f"{path}.ffn_norm")
        gate, up = (project(normed, f"{path}.{name}") for name in ("gate", "up"))
        x = x + project(gate / (1 + np.exp(-gate)) * up, f"{path}.down")
    return norm(x, "norm")


def build_clean() -> Model:
    """Return the model without a fault; the adapters have been trained for a while."""
    weights = Weights(SEED)
    weights.add_table("embedding", VOCAB, HIDDEN, deviation=0.2)
    width, kv_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for n in range(LAYERS):
        path = f"layers.{n}"
        weights.add_norm(f"{path}.attention_norm", HIDDEN, has_bias=False)
        weights.add_norm(f"{path}.q_norm", HEAD_DIM, has_bias=False)
        weights.add_norm(f"{path}.k_norm", HEAD_DIM, has_bias=False)
        weights.add_norm(f"{path}.ffn_norm", HIDDEN, has_bias=False)
        for name, n_out, n_in in (
            ("q", width, HIDDEN),
            ("k", kv_width, HIDDEN),
            ("v", kv_width, HIDDEN),
            ("o", HIDDEN, width),
            ("gate", FFN, HIDDEN),
            ("up", FFN, HIDDEN),
            ("down", HIDDEN, FFN),
        ):
            weights.add_matrix(f"{path}.{name}", n_out, n_in)
            weights.add_table(f"{path}.{name}.a", RANK, n_in, deviation=n_in**-0.5)
            weights.add_table(f"{path}.{name}.b", n_out, RANK, deviation=0.03)
    weights.add_norm("norm", HIDDEN, has_bias=False)
    weights.add_linear("value", 1, HIDDEN)
    return Model("grpo", weights)
