"""A forecaster of several series in NumPy: sizes, knobs, weights, constant tables and batch.

Reversible instance normalization (https://openreview.net/forum?id=cGDAkQo1C0p, section 3) of each
series by its observed steps, trend and season by a moving average
(https://arxiv.org/abs/2106.13008, equation 1), a linear layer for the trend, and patches of the
season, channel by channel, for an encoder with batch norm (https://arxiv.org/abs/2211.14730,
section 3.1) that adds the scores of the layer before (https://arxiv.org/abs/2012.11747, equation
4). Static covariates are selected and enrich the patches; these and the decoder have gated residual
networks (https://arxiv.org/abs/1912.09363, equations 2 to 8). A causal dilated convolution
(https://arxiv.org/abs/1803.01271, section 3) reads the last steps. The loss is the pinball loss of
the quantiles, weighted by step of the horizon. Weights:

    revin                             weight and bias of the channels
    trend, patch, positions           linear, linear, and a table (PATCHES, HIDDEN)
    layers.N.: {q,k,v,o}, norm1, ffn.{up,down}, norm2      linear layers and batch norms
    local.0, local.1, local.shortcut  convolutions (LOCAL, channels, kernel) with bias
    static.category (CATEGORIES, HIDDEN), static.reals.N   table, and linear layers of one number
    static.selection, static.variables.N, static.context, enrichment, decoder
                                      gated residual networks: {first,second,gate}, norm, a layer
                                      norm, and NAME.skip or NAME.context (no bias) if they have one
    head, calendar, quantiles         linear
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, CHANNELS, CONTEXT, HORIZON = 3, 4, 36, 6
AVERAGED, PATCH, STRIDE = 5, 8, 4  #: steps of the moving average, of a patch, and between patches
PATCHES = (CONTEXT + STRIDE - PATCH) // STRIDE + 1  #: the last step is repeated STRIDE times
HIDDEN, HEADS, FFN, LAYERS = 24, 3, 40, 2
HEAD_DIM = HIDDEN // HEADS
LOCAL, KERNEL, DILATIONS = 7, 3, (1, 2)
CATEGORIES, REALS = 5, 2
STATIC = 1 + REALS  #: variables that are selected
DECODER = 10  #: numbers of a step of the horizon
QUANTILES = (0.1, 0.5, 0.9)
LAST_HOUR = 23
EPS, MOMENTUM = 1e-5, 0.1
SEED = 151


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): queries, keys and values from one layer,
    #: fused attention, averages and patches as windows, quantile losses by where; 'written'
    #: (MindSpore): norms, moving average, gates and patches in plain arithmetic and slices
    variant: str = ""
    are_all_steps_counted: bool = False  #: missing ones too, in mean and deviation of a series
    is_affine_inverted_late: bool = False  #: behind deviation and mean, not before them
    is_deviation_unbiased: bool = False  #: of a series: the divisor is one less
    average_padding: str = "edge"  #: of the moving average; or 'zeros'
    last_norm: str = "batch"  #: behind the last feed-forward; or 'layer'
    has_score_residual: bool = True  #: scores of the layer before are added
    selection_axis: int = 1  #: of the softmax over (batch, STATIC, 1)
    is_head_by_patch: bool = False  #: the head reads patch by patch, not number by number
    is_error_negated: bool = False  #: prediction minus target
    calendar_divisor: float = LAST_HOUR  #: of the hours
    is_gate_first: bool = False  #: of the rows of a gated network's gate layer, the first ones gate
    is_local_centered: bool = False  #: the local convolutions are padded on both sides
    is_selection_stopped: bool = False  #: no gradient through the weights of the selection
    context_gradient: float = 1.0  #: the gradient of the static context is multiplied by it
    is_mean_weighted: bool = False  #: the loss is divided by the weights of what counts
    first_category: int = 0  #: number of the first category in the batch
    is_context_tiled: bool = False  #: contexts of a channel, not of an item, follow each other
    are_missing_cleared: bool = True  #: missing steps are 0 in a normalized series; MindSpore only
    are_previous_scores_stopped: bool = False  #: without a gradient when added; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(
            kind="momentum", weight_decay=5e-3, decay_all=True, clip=1.0
        )
    )

    def horizon_weights(self) -> np.ndarray:
        """Return the weights of the steps in the loss, float32 (HORIZON,), one on average."""
        weights = np.exp(-np.arange(HORIZON) / HORIZON)
        return (weights / weights.mean()).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return history and which of its steps were observed, float32 (batch, CONTEXT, CHANNELS),
        category, int32 (batch,), and real covariates, float32 (batch, REALS), of each item, hours
        of the horizon, int32 (batch, HORIZON), targets and which of them count, float32 (batch,
        HORIZON, CHANNELS). Missing values are 0.
        """
        rng = np.random.default_rng(SEED + 1)
        steps = np.arange(CONTEXT + HORIZON)[None, :, None]
        shape = (BATCH, 1, CHANNELS)
        level, slope = 2 * rng.standard_normal(shape), 0.04 * rng.standard_normal(shape)
        amplitude, phase = rng.uniform(0.5, 2.5, shape), rng.uniform(0, 12, shape)
        series = level + slope * steps + amplitude * np.sin(2 * np.pi * (steps + phase) / 12)
        series = series + 0.4 * rng.standard_normal(series.shape)
        is_observed = rng.random(series.shape) > 0.15
        series = np.where(is_observed, series, 0).astype(np.float32)
        observed = is_observed.astype(np.float32)
        category = self.first_category + rng.permutation(CATEGORIES)[:BATCH]
        reals = rng.standard_normal((BATCH, REALS)).astype(np.float32)
        start = rng.integers(0, LAST_HOUR + 1, (BATCH, 1))
        hours = (start + np.arange(HORIZON)) % (LAST_HOUR + 1)
        return (
            series[:, :CONTEXT].copy(),
            observed[:, :CONTEXT].copy(),
            category.astype(np.int32),
            reals,
            hours.astype(np.int32),
            series[:, CONTEXT:].copy(),
            observed[:, CONTEXT:].copy(),
        )


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_gated(
        name: str, n_in: int, n_hidden: int, n_out: int, *, has_context: bool = False
    ) -> None:
        weights.add_linear(f"{name}.first", n_hidden, n_in)
        if has_context:
            weights.add_matrix(f"{name}.context", n_hidden, HIDDEN)
        weights.add_linear(f"{name}.second", n_hidden, n_hidden)
        weights.add_linear(f"{name}.gate", 2 * n_out, n_hidden)
        if n_in != n_out:
            weights.add_linear(f"{name}.skip", n_out, n_in)
        weights.add_norm(f"{name}.norm", n_out)

    weights.add_norm("revin", CHANNELS)
    weights.add_linear("trend", HORIZON, CONTEXT)
    weights.add_linear("patch", HIDDEN, PATCH)
    weights.add_table("positions", PATCHES, HIDDEN, deviation=0.3)
    for n in range(LAYERS):
        for projection in "qkvo":
            weights.add_linear(f"layers.{n}.{projection}", HIDDEN, HIDDEN)
        weights.add_norm(f"layers.{n}.norm1", HIDDEN)
        weights.add_linear(f"layers.{n}.ffn.up", FFN, HIDDEN)
        weights.add_linear(f"layers.{n}.ffn.down", HIDDEN, FFN)
        weights.add_norm(f"layers.{n}.norm2", HIDDEN)
    weights.add_linear("local.0", LOCAL, 1, KERNEL)
    weights.add_linear("local.1", LOCAL, LOCAL, KERNEL)
    weights.add_linear("local.shortcut", LOCAL, 1, 1)
    weights.add_table("static.category", CATEGORIES, HIDDEN)
    for n in range(REALS):
        weights.add_linear(f"static.reals.{n}", HIDDEN, 1)
    add_gated("static.selection", STATIC * HIDDEN, HIDDEN, STATIC)
    for n in range(STATIC):
        add_gated(f"static.variables.{n}", HIDDEN, HIDDEN, HIDDEN)
    add_gated("static.context", HIDDEN, HIDDEN, HIDDEN)
    add_gated("enrichment", HIDDEN, HIDDEN, HIDDEN, has_context=True)
    weights.add_linear("head", HORIZON * DECODER, HIDDEN * PATCHES + LOCAL)
    weights.add_linear("calendar", DECODER, 1)
    add_gated("decoder", DECODER, DECODER, DECODER)
    weights.add_linear("quantiles", len(QUANTILES), DECODER)
    return Model("forecast", weights)
