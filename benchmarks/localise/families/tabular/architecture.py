"""A network for tables in NumPy: sizes, knobs, weights and batch.

The FT-Transformer (https://arxiv.org/abs/2106.11959) with periodic embeddings of some numbers
(https://arxiv.org/abs/2203.05556) and, on its tokens, TabNet's steps
(https://arxiv.org/abs/1908.07442). Numbers are standardized, missing ones zero. Token by token:

    [CLS]        a vector
    plain        x * weight + bias + missing * missing vector, of each number its own
    periodic     relu([cos(2 pi c x), sin(2 pi c x)] weight + bias) + missing * missing vector, with
                 FREQUENCIES c, of each number its own
    categories   row code + offset of one table, plus a bias for each category

A code of 0 means that a row lacks the category: no token attends to it. Blocks add attention(norm)
and then ReGLU(norm), where ReGLU is out(a * relu(b)) and in gives [a, b]; the first norm of the
first block is left out. What the blocks make of the tokens of features, FEATURES of them, goes into
TabNet's steps. A transform reads WIDTH of each token, behind each other, and is

    x = glu(norm(shared(x)));  (x + glu(norm(own(x)))) * sqrt(1/2)

with glu = first half * sigmoid of the second one. Its first DECISION columns are the decision d,
the others a. The norms of these steps are batch norms of virtual batches of GHOST rows. The first
transform reads the tokens as they are. With a prior of ones, each step is

    mask  = sparsemax(prior * norm(attentive(a)))
    prior = prior * (RELAXATION - mask)
    d, a  = transform(mask * tokens)

Heads read [relu(norm([CLS])), sum of the steps' relu(d)]. The loss is the weighted sum of

    classes     cross-entropy with CLASS_WEIGHTS, divided by the sum of the rows' weights
    quantiles   pinball loss, mean of QUANTILES and of the rows that have a target
    counts      exp(z) - count * z with z = output + log(exposure), mean of the rows with a count
    masks       -mask * log(mask + LOG_EPS), summed over features, mean of rows and steps

Weights are float32, linear ones (out, in):

    cls                                          (WIDTH,)
    plain.{weight, bias, missing}                (PLAIN, WIDTH)
    periodic.{frequencies, weight, bias, missing}
                (PERIODIC, FREQUENCIES), (PERIODIC, 2 * FREQUENCIES, WIDTH), twice (PERIODIC, WIDTH)
    categories.weight, categories.bias           (sum of CODES, WIDTH), (CATEGORIES, WIDTH)
    blocks.N.{q, k, v, o}, blocks.N.{in, out}    linear with bias
    blocks.N.{attention_norm, mlp_norm}, norm    layer norms; blocks.0 has no attention_norm
    shared, transforms.N.{own, shared_norm, own_norm}
    attentive.N, attentive.N.norm                linear ones of the steps have no bias
    heads.{classes, quantiles, counts}           linear with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, GHOST = 24, 8
MEANS = (2.0, 38.0, -0.6, 11.0, 0.8, 250.0, 5.5)  #: of the numbers of the training set
DEVIATIONS = (1.1, 14.0, 0.9, 4.5, 0.5, 120.0, 2.4)
NUMBERS, PLAIN = len(MEANS), 4  #: the others have periodic embeddings
PERIODIC, FREQUENCIES, FREQUENCY_DEVIATION = NUMBERS - PLAIN, 8, 0.2
CODES = (4, 8, 3, 6)  #: of each category, 0 included
CATEGORIES = len(CODES)
OFFSETS = tuple(int(offset) for offset in np.cumsum((0, *CODES[:-1])))
FEATURES = NUMBERS + CATEGORIES
WIDTH, HEADS, BLOCKS, HIDDEN = 16, 2, 3, 20
HEAD_WIDTH = WIDTH // HEADS
STEPS, DECISION, ATTENTION = 3, 8, 6
RELAXATION, LOG_EPS = 1.3, 1e-15
CLASS_WEIGHTS = (0.5, 1.0, 1.6, 2.5)
CLASSES = len(CLASS_WEIGHTS)
NO_CLASS, NO_COUNT = -1, -1.0
QUANTILES = (0.1, 0.5, 0.9)
QUANTILE_WEIGHT, COUNT_WEIGHT, MASK_WEIGHT = 0.8, 0.6, 0.05
EPS, MOMENTUM = 1e-5, 0.02  #: of norms
SEED = 11959


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, sparsemax and losses in plain
    #: arithmetic, a table for each category, a layer for each half of a gated unit; 'fused'
    #: (PyTorch): one product for q, k and v, fused attention, all virtual batches at once,
    #: sparsemax by comparing all features and without an own gradient, other names
    variant: str = ""
    is_first_norm_kept: bool = False  #: with weights of 1 and biases of 0; MindSpore only
    are_missing_codes_counted: bool = True  #: in offsets of the table; MindSpore only
    is_mask_shifted: bool = False  #: [CLS] is taken for the last token; MindSpore only
    is_support_averaged: bool = True  #: in sparsemax's gradient, not all features; MindSpore only
    are_class_weights_summed: bool = True  #: the divisor, not the number of rows; MindSpore only
    is_filled_first: bool = False  #: missing numbers, before all are standardized
    frequency_scale: float = 2 * np.pi  #: PyTorch only
    virtual_batch: int = GHOST  #: rows; PyTorch only
    is_prior_detached: bool = False  #: no gradient through it to masks; PyTorch only
    is_rectifier_passed: bool = False  #: by the gradient of ReGLU's gate; PyTorch only
    is_exposure_logarithmic: bool = True  #: PyTorch only
    is_mask_entropy_maximized: bool = False  #: PyTorch only

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return of BATCH rows, float32 if nothing else is said:

        numbers and whether they are missing (BATCH, NUMBERS), codes, int32 (BATCH, CATEGORIES),
        and (BATCH,) classes, int32, NO_CLASS if a row has none, targets and whether a row has one,
        counts, NO_COUNT if a row has none, and exposures.
        """
        rng = np.random.default_rng(SEED + 1)
        means, deviations = np.array(MEANS), np.array(DEVIATIONS)
        raw = means + deviations * rng.standard_normal((BATCH, NUMBERS))
        missing = rng.uniform(size=(BATCH, NUMBERS)) < 0.2
        if self.is_filled_first:
            numbers = (np.where(missing, 0, raw) - means) / deviations
        else:
            numbers = np.where(missing, 0, (raw - means) / deviations)
        codes = rng.integers(1, CODES, (BATCH, CATEGORIES))
        codes[rng.uniform(size=codes.shape) < 0.25] = 0
        classes = rng.integers(0, CLASSES, BATCH)
        classes[rng.choice(BATCH, 4, replace=False)] = NO_CLASS
        has_target = rng.permutation(BATCH) >= 5
        targets = np.where(has_target, 1.2 * rng.standard_normal(BATCH), 0)
        exposures = rng.uniform(0.2, 1, BATCH)
        counts = rng.poisson(2.5 * exposures).astype(float)
        counts[rng.choice(BATCH, 6, replace=False)] = NO_COUNT
        return (
            numbers.astype(np.float32),
            missing.astype(np.float32),
            codes.astype(np.int32),
            classes.astype(np.int32),
            targets.astype(np.float32),
            has_target.astype(np.float32),
            counts.astype(np.float32),
            exposures.astype(np.float32),
        )


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    _add_vectors(weights, "cls", WIDTH)
    _add_vectors(weights, "plain.weight", PLAIN, WIDTH)
    _add_vectors(weights, "plain.bias", PLAIN, WIDTH)
    _add_vectors(weights, "plain.missing", PLAIN, WIDTH)
    frequencies = FREQUENCY_DEVIATION * weights.rng.standard_normal((PERIODIC, FREQUENCIES))
    weights["periodic.frequencies"] = frequencies.astype(np.float32)
    _add_vectors(weights, "periodic.weight", PERIODIC, 2 * FREQUENCIES, WIDTH)
    _add_vectors(weights, "periodic.bias", PERIODIC, WIDTH)
    _add_vectors(weights, "periodic.missing", PERIODIC, WIDTH)
    _add_vectors(weights, "categories.weight", sum(CODES), WIDTH)
    _add_vectors(weights, "categories.bias", CATEGORIES, WIDTH)
    for n in range(BLOCKS):
        for name in "qkvo":
            weights.add_linear(f"blocks.{n}.{name}", WIDTH, WIDTH)
        weights.add_linear(f"blocks.{n}.in", 2 * HIDDEN, WIDTH)
        weights.add_linear(f"blocks.{n}.out", WIDTH, HIDDEN)
        if n:
            weights.add_norm(f"blocks.{n}.attention_norm", WIDTH)
        weights.add_norm(f"blocks.{n}.mlp_norm", WIDTH)
    weights.add_norm("norm", WIDTH)
    columns = 2 * (DECISION + ATTENTION)
    weights.add_matrix("shared", columns, FEATURES * WIDTH)
    for n in range(STEPS + 1):
        weights.add_norm(f"transforms.{n}.shared_norm", columns)
        weights.add_matrix(f"transforms.{n}.own", columns, columns // 2)
        weights.add_norm(f"transforms.{n}.own_norm", columns)
    for n in range(STEPS):
        weights.add_matrix(f"attentive.{n}", FEATURES, ATTENTION)
        weights.add_norm(f"attentive.{n}.norm", FEATURES)
    for name, n_out in (("classes", CLASSES), ("quantiles", len(QUANTILES)), ("counts", 1)):
        weights.add_linear(f"heads.{name}", n_out, WIDTH + DECISION)
    return Model("tabular", weights)


def _add_vectors(weights: Weights, name: str, *shape: int) -> None:
    """Add a weight whose vectors have length 2 on average."""
    values = weights.rng.standard_normal(shape) * 2 / np.sqrt(WIDTH)
    weights[name] = values.astype(np.float32)
