"""RWKV-5 (https://arxiv.org/abs/2404.05892, section 4.1, "Eagle") in NumPy: sizes, knobs, weights,
batch.

A block is time mixing and channel mixing, each behind a layer norm and added to its input. Both
read mixtures of a token and the one before it, m * x[t] + (1 - m) * x[t - 1]. Time mixing has a
state (HEAD_DIM, HEAD_DIM) for each head, with keys along its rows and values along its columns:

    y[t] = r[t] (u * k[t]' v[t] + S[t - 1])        S[t] = k[t]' v[t] + w * S[t - 1]

with the decay w = exp(-exp(decay)) and the bonus u, one number for each row. The outputs of each
head are normalized, gated, and projected. Channel mixing is sigmoid(r) * value(relu(key)^2). The
loss is that of the answers: tokens of the prompts do not count. Weights:

    embedding, norm_in (layer norm of the embeddings), norm_out, head (without bias)
    blocks.N.: norm1, norm2
    blocks.N.time.: mix_{r,k,v,g} (HIDDEN,), decay (HIDDEN,), bonus (HIDDEN,), r, k, v, g, o without
                    bias, norm (of the heads)
    blocks.N.channel.: mix_{k,r} (HIDDEN,), key (FFN, HIDDEN), value (HIDDEN, FFN), r, without bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from architecture import Optimizer

from families.weights import Weights

VOCAB, HIDDEN, HEADS, FFN, LAYERS = 50, 32, 4, 52, 2
HEAD_DIM = HIDDEN // HEADS
PROMPT_LENGTHS, SEQ = (3, 2, 4), 7
BATCH = len(PROMPT_LENGTHS)
EPS = 1e-5  #: of the layer norms
HEAD_EPS = 64e-5  #: of the norm of the heads: outputs are not divided by 8 before it
SEED = 131


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of a block are those of the last one.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first, with a loop over the steps; 'matrix' (MindSpore): no loop, all
    #: decays between two steps in one tensor, norms written out; 'written' (PyTorch): the loop with
    #: einsum over vectors, mixtures by lerp, norm of the heads and loss in plain arithmetic
    variant: str = ""
    are_mixtures_exchanged: bool = False  #: (1 - m) * x[t] + m * x[t - 1], in all blocks
    is_state_late: bool = False  #: of a block: an output reads the state that has its token already
    head_eps: float = HEAD_EPS
    is_decay_of_values: bool = False  #: the decay is one number for each column, in all blocks
    is_relu_squared: bool = True  #: of a block
    is_shift_cyclic: bool = False  #: channel mixing, all blocks: before the first token is the last
    loss_reduction: str = "answers"  #: the sum of losses is divided by their number; or by 'all'
    is_shift_stopped: bool = False  #: of a block: time mixing has no gradient to the token before
    head_divisor: float = 1.0  #: of a block: outputs of the recurrence are divided by it
    is_first_repeated: bool = False  #: of a block: in time mixing, a first token is before itself
    decay_gradient: float = 1.0  #: the gradient of all decays is multiplied by it
    is_decay_softplus: bool = False  #: the decay is exp(-softplus(decay)), in all blocks
    is_answer_late: bool = False  #: the mask of answers is moved by one: it is that of their tokens
    is_decay_straight: bool = False  #: the gradient passes the outer exp of w, in all blocks
    is_gate_first: bool = False  #: of a block: outputs are gated before the norm of the heads
    is_state_shared: bool = False  #: the last block begins with the state that the first one leaves
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(
            learning_rate=3e-3, weight_decay=0.1, clip=1.0, group="vectors", group_rate=2.0
        )
    )

    def block(self, n: int) -> Model:
        """Return the model for block n: only the last one has the knobs of a block."""
        if n == LAYERS - 1:
            return self
        return replace(
            self,
            is_state_late=False,
            is_relu_squared=True,
            is_shift_stopped=False,
            head_divisor=1.0,
            is_first_repeated=False,
            is_gate_first=False,
        )

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens and labels, int32 (BATCH, SEQ), and 1 where a label is of an answer, else
        0, float32 (BATCH, SEQ).
        """
        rng = np.random.default_rng(SEED + 1)
        tokens = rng.integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
        is_answer = np.arange(SEQ) >= np.array(PROMPT_LENGTHS)[:, None]
        return tokens[:, :-1].copy(), tokens[:, 1:].copy(), is_answer.astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    rng = weights.rng

    def add_mixtures(path: str, names: str) -> None:
        for name in names:
            weights[f"{path}.mix_{name}"] = rng.uniform(0.1, 0.9, HIDDEN).astype(np.float32)

    weights.add_table("embedding", VOCAB, HIDDEN, deviation=0.5)
    weights.add_norm("norm_in", HIDDEN)
    for n in range(LAYERS):
        path = f"blocks.{n}"
        weights.add_norm(f"{path}.norm1", HIDDEN)
        add_mixtures(f"{path}.time", "rkvg")
        decay = np.linspace(-5, -0.3, HIDDEN) + 0.2 * rng.standard_normal(HIDDEN)
        weights[f"{path}.time.decay"] = decay.astype(np.float32)
        bonus = 0.6 + 0.3 * rng.standard_normal(HIDDEN)
        weights[f"{path}.time.bonus"] = bonus.astype(np.float32)
        for projection in "rkvgo":
            weights.add_matrix(f"{path}.time.{projection}", HIDDEN, HIDDEN)
        weights[f"{path}.time.k.weight"] *= np.float32(0.25)  # small keys, as they begin
        weights.add_norm(f"{path}.time.norm", HIDDEN)
        weights.add_norm(f"{path}.norm2", HIDDEN)
        add_mixtures(f"{path}.channel", "kr")
        weights.add_matrix(f"{path}.channel.key", FFN, HIDDEN)
        weights.add_matrix(f"{path}.channel.value", HIDDEN, FFN)
        weights.add_matrix(f"{path}.channel.r", HIDDEN, HIDDEN)
    weights.add_norm("norm_out", HIDDEN)
    weights.add_matrix("head", VOCAB, HIDDEN)
    return Model("rwkv", weights)
