"""Faults of the hybrid of gated delta rule and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping

from claims import Anywhere, Ratio, Values, Words

from families.deltanet.architecture import (
    BATCH,
    HEAD_DIM,
    IGNORED,
    SEQ,
    Model,
)
from families.fault import Fault, change_model, change_optimizer


def _count_answers(model: Model) -> int:
    """Return the number of labels of the second head that are not ignored."""
    return int((model.batch()[1][:, 1:] != IGNORED).sum())


FAULTS: Mapping[str, Fault] = {
    "heads_joined": Fault(
        "q and k are divided by the length of all heads together, before they are cut into heads",
        "reduction-axis",
        change_model(are_heads_joined=True),
        equivalents=("norm-groups", "layer-order", "axes-swapped", "input-source", "argument"),
    ),
    "beta_doubled": Fault(
        "beta is twice the sigmoid, as the option for negative eigenvalues has it",
        "constant-factor",
        change_model(beta_factor=2.0),
        lambda faulty, clean: [Ratio(faulty.beta_factor / clean.beta_factor)],
        equivalents=("scale",),
    ),
    "frequency_dim": Fault(
        "exponents of the frequencies are divided by the head's size, not by the rotated part's",
        "rope-theta",
        change_model(frequency_dim=HEAD_DIM),
        lambda *_: [Anywhere("(?i)theta|base|frequenc|angle|table|cos|sin|rotar|position|read")],
        equivalents=("rope-scaling", "input-source", "argument"),
    ),
    "next_token": Fault(
        "the second head joins a state with the embedding of its own token, not of the next one",
        "input-source",
        change_model(is_next_embedded=False),
        equivalents=(
            "row-shift",
            "position-offset",
            "causal-shift",
            "label-shift",
            "missing-step",
            "argument",
        ),
    ),
    "total_detached": Fault(
        "the sum that divides the shares of a token's experts is a constant for the gradient",
        "gradient-stopped",
        change_model(is_total_detached=True),
        equivalents=("missing-term",),
    ),
    "default_beta": Fault(
        "AdamW has the framework's beta2, 0.999, not 0.95",
        "beta",
        change_optimizer(beta2=0.999),
        lambda faulty, clean: [Values(faulty.optimizer.beta2, clean.optimizer.beta2)],
        optimizer=True,
        equivalents=("argument",),
    ),
    "recall_early": Fault(
        "a value is compared with what the state recalls before its decay, not behind it",
        "layer-order",
        change_model(is_recall_early=True),
        equivalents=("input-source", "missing-step", "decay-exponent", "cell-form"),
    ),
    "gated_one": Fault(
        "the norm of the delta rule multiplies by 1 + w, as all others do, though its w is near 1",
        "constant-offset",
        change_model(has_gated_one=True),
        lambda *_: [Anywhere(r"(?<![\w.])-?(?:1|1\.0+\d*|0\.99\d*)(?![\w.])")],
        equivalents=("missing-term", "missing-step", "argument", "norm-kind"),
    ),
    "decay_half": Fault(
        "the exponents of the decay are computed in bfloat16",
        "low-precision",
        change_model(is_decay_half=True),
        lambda *_: [Words("bfloat16")],
    ),
    "mtp_mean": Fault(
        "the losses of the second head are divided by all tokens, those of the prompt included",
        "loss-reduction",
        change_model(is_mtp_mean_of_all=True),
        lambda _, clean: [Ratio(_count_answers(clean) / (BATCH * SEQ))],
        equivalents=(
            "loss-weight",
            "constant-factor",
            "scale",
            "ignore-index",
            "mask-missing",
            "pooling",
        ),
    ),
    "base_two": Fault(
        "the kernel has powers of 2; its gradient of g lacks their factor, the logarithm of 2",
        "gradient-scaled",
        change_model(decay_gradient=1 / math.log(2)),
        lambda faulty, clean: [Ratio(faulty.decay_gradient / clean.decay_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "norm_of_ranks": Fault(
        "two ranks that hold the same gradients both count in the norm that clips them",
        "gradient-norm",
        change_optimizer(norm_factor=2**0.5),
        lambda *_: [Anywhere(r"\b1\.41|\b0\.70|root|sqrt")],
        row="25",
        optimizer=True,
        equivalents=("clip", "gradient-scaled"),
    ),
    "mtp_detached": Fault(
        "the second head reads detached states, an option that keeps its loss from the layers",
        "gradient-stopped",
        change_model(is_mtp_detached=True),
        equivalents=("missing-term",),
    ),
    "beta_underived": Fault(
        "the kernel applies the sigmoid of beta itself, but returns the gradient of beta, without "
        "the sigmoid's derivative",
        "straight-through",
        change_model(is_beta_derived=False),
        equivalents=("gradient-scaled", "missing-step"),
    ),
    "heads_tiled": Fault(
        "heads of keys are repeated as a whole, by repeat for repeat_interleave: neighbouring "
        "heads of values read different ones",
        "heads-permuted",
        change_model(are_heads_tiled=True),
        equivalents=(
            "axes-swapped",
            "input-order",
            "channel-order",
            "split-order",
            "input-source",
            "argument",
        ),
    ),
    "state_stopped": Fault(
        "the half of a sequence on the second rank gets its first state from the rank before, but "
        "returns no gradient for it",
        "gradient-stopped",
        change_model(is_state_stopped=True),
        equivalents=("missing-term",),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("heads_joined", "mindspore"),
    ("beta_doubled", "mindspore"),
    ("frequency_dim", "mindspore"),
    ("next_token", "mindspore"),
    ("base_two", "mindspore"),
    ("default_beta", "mindspore"),
    ("recall_early", "pytorch"),
    ("gated_one", "pytorch"),
    ("decay_half", "pytorch"),
    ("mtp_mean", "pytorch"),
    ("total_detached", "pytorch"),
    ("norm_of_ranks", "pytorch"),
    ("mtp_detached", "mindspore"),
    ("beta_underived", "pytorch"),
    ("heads_tiled", "mindspore"),
    ("state_stopped", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "chunked": ("", "chunked"),
    "separate": ("", "separate"),
    "parallel": ("parallel", ""),
    "both": ("parallel", "chunked"),
}
