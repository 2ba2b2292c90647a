"""The Temporal Fusion Transformer (https://arxiv.org/abs/1912.09363): sizes, knobs, weights, batch.

Categories come from tables, numbers from linear layers of one input. A gated residual network is

    norm(skip(x) + GLU(gate(second(ELU(first(x) + context(c))))))

where GLU multiplies the first half by the sigmoid of the second one. A selection passes each of its
variables through a network of its own and sums them up by the softmax of what a network of all of
them returns. The selected static variables give four contexts: for the selections of past and
future, for the enrichment, and the first hidden and cell state of the LSTM of the past, which hands
its last state over to the LSTM of the future. What the LSTMs return is gated and added to what they
read, normed, and enriched. Steps of the future attend to all steps up to their own one: heads have
their own queries and keys, the values are shared, and the heads' outputs are averaged. Gates and a
network follow, and a linear layer gives the quantiles. The loss is the sum of the quantiles'
pinball losses, averaged over the valid steps.

Weights are float32, linear ones (out, in); those of LSTMs have the gates i, f, g, o:

    embeddings.{shop, month} (codes, HIDDEN), embeddings.NAME (HIDDEN, 1) of a number
    {static, past, future}.networks.NAME, and {static, past, future}.weights of all variables
    contexts.{selection, enrichment, hidden, cell}, enrichment, feed_forward
                    networks: first, second, gate, norm; skip if the widths differ, and context
                    (no bias) if they have one
    encoder, decoder: {weight_ih, weight_hh} (4 * HIDDEN, HIDDEN), {bias_ih, bias_hh}
    lstm, attention, output: gate (2 * HIDDEN, HIDDEN), norm
    attention.{q, k} (HIDDEN, HIDDEN), attention.v (HEAD_DIM, HIDDEN), attention.o
    quantiles
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, HISTORY, HORIZON = 5, 7, 6
STEPS = HISTORY + HORIZON
HIDDEN, HEADS = 16, 2
HEAD_DIM = HIDDEN // HEADS
STATIC, FUTURE = ("shop", "area", "age"), ("price", "promotion", "month")
PAST = ("sales", *FUTURE)
CODES = {"shop": 11, "month": 12}  #: of the categories
CONTEXTS = ("selection", "enrichment", "hidden", "cell")
LSTM_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
QUANTILES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
EPS = 1e-5
VALID_STEPS = (6, 4, 5, 6, 3)  #: of the horizon of each item
SEED = 580


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, inputs of numbers and LSTMs in
    #: plain arithmetic, gates apart from values, the heads' maps averaged before they are used;
    #: 'stacked' (PyTorch): networks of a selection at once, LSTMs cell by cell, einsum
    variant: str = ""
    is_decoder_restarted: bool = False  #: it begins with the static states; MindSpore only
    is_context_late: bool = False  #: added behind the ELU; MindSpore only
    mask_diagonal: int = 1  #: steps that come so much later are hidden; MindSpore only
    known_offset: int = 0  #: known inputs of the future come so many steps late; MindSpore only
    is_state_stopped: bool = False  #: no gradient through the encoder's last state; MindSpore only
    value_gradient: float = 1.0  #: factor of the gradient of shared values; MindSpore only
    are_heads_summed: bool = False  #: not averaged; PyTorch only
    is_norm_first: bool = False  #: the skip is added behind the norm; PyTorch only
    eps: float = EPS  #: of the norms; PyTorch only
    are_low_forecasts_unmasked: bool = False  #: they count in steps without a target; PyTorch only
    is_elu_result_passed: bool = False  #: to its gradient, in networks of variables; PyTorch only
    is_last_skip_short: bool = False  #: it begins behind the attention; MindSpore only
    are_months_strings: bool = False  #: codes are in the order of strings; PyTorch only

    def mask(self) -> np.ndarray:
        """Return which steps are hidden, bool (HORIZON, STEPS)."""
        return np.triu(np.ones((HORIZON, STEPS), bool), HISTORY + self.mask_diagonal)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return shops, int32 (BATCH,); areas and ages, float32 (BATCH, 2); sales, float32 (BATCH,
        HISTORY, 1); prices and promotions, float32 (BATCH, STEPS, 2); months, int32 (BATCH, STEPS);
        targets and which of them are valid, float32 (BATCH, HORIZON); targets that are not are 0.
        """
        rng = np.random.default_rng(SEED + 1)
        shops = rng.permutation(CODES["shop"])[:BATCH].astype(np.int32)
        static_reals = rng.standard_normal((BATCH, 2))
        known_reals = rng.standard_normal((BATCH, STEPS, 2))
        start = rng.integers(0, CODES["month"], (BATCH, 1))
        months = (start + np.arange(STEPS)) % CODES["month"]
        season = np.sin(2 * np.pi * months / CODES["month"])
        sales = season + known_reals @ (-0.5, 0.7) + 0.4 * rng.standard_normal((BATCH, STEPS))
        valid = np.arange(HORIZON) < np.array(VALID_STEPS)[:, None]
        targets = np.where(valid, sales[:, HISTORY:], 0)
        history = sales[:, :HISTORY, None]
        if self.are_months_strings:
            names = [str(1 + month) for month in range(CODES["month"])]
            months = np.argsort(np.argsort(names))[months]
        static_reals, history, known_reals, targets, valid = (
            x.astype(np.float32) for x in (static_reals, history, known_reals, targets, valid)
        )
        return shops, static_reals, history, known_reals, months.astype(np.int32), targets, valid


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    for name in STATIC + PAST:
        if name in CODES:
            weights.add_table(f"embeddings.{name}", CODES[name], HIDDEN)
        else:
            weights.add_linear(f"embeddings.{name}", HIDDEN, 1)
    for path, names in (("static", STATIC), ("past", PAST), ("future", FUTURE)):
        for name in names:
            _add_network(weights, f"{path}.networks.{name}")
        n = len(names)
        _add_network(weights, f"{path}.weights", n * HIDDEN, n, has_context=path != "static")
    for name in CONTEXTS:
        _add_network(weights, f"contexts.{name}")
    for path in ("encoder", "decoder"):
        _add_lstm(weights, path)
    _add_gate(weights, "lstm")
    _add_network(weights, "enrichment", has_context=True)
    weights.add_matrix("attention.q", HIDDEN, HIDDEN)
    weights.add_matrix("attention.k", HIDDEN, HIDDEN)
    weights.add_matrix("attention.v", HEAD_DIM, HIDDEN)
    weights.add_matrix("attention.o", HIDDEN, HEAD_DIM)
    _add_gate(weights, "attention")
    _add_network(weights, "feed_forward")
    _add_gate(weights, "output")
    weights.add_linear("quantiles", len(QUANTILES), HIDDEN)
    return Model("tft", weights)


def _add_network(
    weights: Weights,
    path: str,
    n_in: int = HIDDEN,
    n_out: int = HIDDEN,
    *,
    has_context: bool = False,
) -> None:
    weights.add_linear(f"{path}.first", HIDDEN, n_in)
    if has_context:
        weights.add_matrix(f"{path}.context", HIDDEN, HIDDEN)
    weights.add_linear(f"{path}.second", HIDDEN, HIDDEN)
    if n_in != n_out:
        weights.add_linear(f"{path}.skip", n_out, n_in)
    _add_gate(weights, path, n_out)


def _add_gate(weights: Weights, path: str, n_out: int = HIDDEN) -> None:
    weights.add_linear(f"{path}.gate", 2 * n_out, HIDDEN)
    weights.add_norm(f"{path}.norm", n_out)


def _add_lstm(weights: Weights, path: str) -> None:
    for name in LSTM_NAMES:
        shape = (4 * HIDDEN, HIDDEN) if name.startswith("weight") else (4 * HIDDEN,)
        deviation = HIDDEN**-0.5 if name.startswith("weight") else 0.1
        values = deviation * weights.rng.standard_normal(shape)
        weights[f"{path}.{name}"] = values.astype(np.float32)
