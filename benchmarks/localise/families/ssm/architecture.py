"""A selective state-space model (https://arxiv.org/abs/2312.00752, section 3.4 and algorithm 2).

Weights are float32, linear ones (out, in), named canonically:

    embedding.weight (the head, too) norm.weight
    layers.N.: norm.weight in_proj.weight conv.weight (INNER, 1, KERNEL) conv.bias
               x_proj.weight dt_proj.weight dt_proj.bias A_log (INNER, STATE) D (INNER,)
               out_proj.weight

The rows of in_proj are those of the branch, then of the gate; those of x_proj of dt, B and C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

VOCAB, HIDDEN, INNER, STATE, DT_RANK, KERNEL = 64, 24, 32, 4, 3, 4
LAYERS, SEQ, BATCH, SEED = 2, 8, 2, 33
EPS = 1e-5


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    All knobs are those of the last block.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'separate' (PyTorch): in_proj and x_proj are several layers;
    #: 'cumulative' (MindSpore): no loop, every state is a sum over all earlier steps
    variant: str = ""
    eps: float = EPS  #: of the norm before the block
    conv_shift: int = 0  #: a step sees so many of the steps after it
    is_kernel_flipped: bool = False
    activation: str = "silu"  #: of the branch: 'silu', or 'gelu' in the form with erf
    has_dt_bias: bool = True
    discretization: str = "euler"  #: dt * B; 'hold': (exp(dt * A) - 1) / A * B
    is_decay_exponential: bool = True  #: A is -exp(A_log), else -A_log
    are_b_c_swapped: bool = False
    has_skip: bool = True  #: D * x is added to the output of the scan
    is_reversed: bool = False  #: the scan begins at the end
    is_state_stopped: bool = False  #: no gradient flows back from one step to the one before it
    is_gate_activated: bool = True  #: the gate is silu(z), else z

    def block(self, n: int) -> Model:
        """Return the model for block n: only the last one has the knobs."""
        if n == LAYERS - 1:
            return self
        return replace(build_clean(), weights=self.weights, variant=self.variant)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens and labels, int32 (batch, seq)."""
        rng = np.random.default_rng(SEED + 1)
        tokens = rng.integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def build_clean() -> Model:
    """Return the model without a fault."""
    rng = np.random.default_rng(SEED)
    weights: dict[str, np.ndarray] = {}

    def add_linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"] = rng.standard_normal((rows, columns)) / np.sqrt(columns)

    weights["embedding.weight"] = 0.25 * rng.standard_normal((VOCAB, HIDDEN))
    for n in range(LAYERS):
        prefix = f"layers.{n}"
        weights[f"{prefix}.norm.weight"] = 1 + 0.1 * rng.standard_normal(HIDDEN)
        add_linear(f"{prefix}.in_proj", 2 * INNER, HIDDEN)
        weights[f"{prefix}.conv.weight"] = 0.5 * rng.standard_normal((INNER, 1, KERNEL))
        weights[f"{prefix}.conv.bias"] = 0.1 * rng.standard_normal(INNER)
        add_linear(f"{prefix}.x_proj", DT_RANK + 2 * STATE, INNER)
        add_linear(f"{prefix}.dt_proj", INNER, DT_RANK)
        weights[f"{prefix}.dt_proj.bias"] = -1 + 0.5 * rng.standard_normal(INNER)
        decay = np.arange(1, STATE + 1) * (1 + 0.1 * rng.random((INNER, STATE)))
        weights[f"{prefix}.A_log"] = np.log(decay)
        weights[f"{prefix}.D"] = 1 + 0.1 * rng.standard_normal(INNER)
        add_linear(f"{prefix}.out_proj", HIDDEN, INNER)
    weights["norm.weight"] = 1 + 0.1 * rng.standard_normal(HIDDEN)
    return Model("ssm", {name: values.astype(np.float32) for name, values in weights.items()})
