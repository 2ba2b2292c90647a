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

from families.weights import Weights

VOCAB, HIDDEN, INNER, STATE, DT_RANK, KERNEL = 64, 24, 32, 4, 3, 4
LAYERS, SEQ, BATCH, SEED = 2, 8, 2, 33
EPS = 1e-5


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs are those of the last block; ``norm_kind`` is that of the norm behind it.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'separate' (PyTorch): in_proj and x_proj are several layers;
    #: 'stepwise' (PyTorch): each step has its own decay and input, norms are one operator;
    #: 'cumulative' (MindSpore): no loop, every state is a sum over all earlier steps; 'operators'
    #: (MindSpore): the framework's convolution, softplus and products in other forms
    variant: str = ""
    eps: float = EPS  #: of the norm before the block
    conv_shift: int = 0  #: a step sees so many of the steps after it
    is_kernel_flipped: bool = False
    activation: str = "silu"  #: of the branch: 'silu', or 'gelu' in the form with erf
    has_dt_bias: bool = True
    #: 'euler': dt * B; 'hold': (exp(dt * A) - 1) / A * B; 'bilinear': dt / (1 - dt * A / 2) * B and
    #: the decay (1 + dt * A / 2) / (1 - dt * A / 2)
    discretization: str = "euler"
    is_decay_exponential: bool = True  #: A is -exp(A_log), else -A_log
    are_b_c_swapped: bool = False
    has_skip: bool = True  #: D * x is added to the output of the scan
    is_reversed: bool = False  #: the scan begins at the end
    is_state_stopped: bool = False  #: no gradient flows back from one step to the one before it
    is_gate_activated: bool = True  #: the gate is silu(z), else z
    chunk: int = SEQ  #: steps after which the state is set to zeros
    residual: str = "before"  #: 'after': the output is added to the normed hidden state
    norm_kind: str = "rms"  #: or 'layer', without bias
    is_decay_stopped: bool = False  #: no gradient through the decay of the steps
    is_decay_half: bool = False  #: the decay of each step is computed in float16
    gate_gradient: float = 1.0  #: the gradient of the gate is multiplied by it
    has_softplus: bool = True  #: of the step sizes
    is_dt_bias_late: bool = False  #: the bias of the step sizes is added behind their softplus
    step_limit: float = 0.0  #: > 0: the largest step size
    is_skip_early: bool = False  #: D multiplies the branch before its convolution
    has_final_norm: bool = True  #: between the last block and the head
    are_labels_shifted_twice: bool = False  #: by the batch, and again in the loss

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
    weights = Weights(SEED)
    rng = weights.rng
    weights.add_table("embedding", VOCAB, HIDDEN, deviation=0.25)
    for n in range(LAYERS):
        prefix = f"layers.{n}"
        weights.add_norm(f"{prefix}.norm", HIDDEN, has_bias=False)
        weights.add_matrix(f"{prefix}.in_proj", 2 * INNER, HIDDEN)
        weights.add_linear(f"{prefix}.conv", INNER, 1, KERNEL)
        weights.add_matrix(f"{prefix}.x_proj", DT_RANK + 2 * STATE, INNER)
        weights.add_matrix(f"{prefix}.dt_proj", INNER, DT_RANK)
        dt_bias = -1 + 0.5 * rng.standard_normal(INNER)
        weights[f"{prefix}.dt_proj.bias"] = dt_bias.astype(np.float32)
        decay = np.arange(1, STATE + 1) * (1 + 0.1 * rng.random((INNER, STATE)))
        weights[f"{prefix}.A_log"] = np.log(decay).astype(np.float32)
        skip = 1 + 0.1 * rng.standard_normal(INNER)
        weights[f"{prefix}.D"] = skip.astype(np.float32)
        weights.add_matrix(f"{prefix}.out_proj", HIDDEN, INNER)
    weights.add_norm("norm", HIDDEN, has_bias=False)
    return Model("ssm", weights)
