"""Faults of the sequence tagger."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio

from families.fault import Fault, change_model, change_optimizer, change_weight
from families.tagger.architecture import BATCH, LENGTHS

FAULTS: Mapping[str, Fault] = {
    "char_mean": Fault(
        "characters of a word are averaged, not their maximum taken",
        "pooling",
        change_model(char_pooling="mean"),
        lambda *_: [Anywhere("(?i)mean|average|max")],
        equivalents=("missing-step", "reduction-axis"),
    ),
    "highway_offset": Fault(
        "-2 is added to the highway's gate, though the bias that is loaded has it already",
        "constant-offset",
        change_model(highway_offset=-2.0),
        lambda *_: [Anywhere(r"(?<![\w.])-?(?:2|2\.0+\d*|1\.99\d*)(?![\w.])")],
        equivalents=("forget-bias", "missing-term"),
    ),
    "gate_order": Fault(
        "the GRU reads the rows of r and z as z and r, as Keras stores them",
        "gate-order",
        change_model(gate_order=(1, 0, 2)),
        lambda *_: [Anywhere("gate|order|block")],
        equivalents=("split-order",),
    ),
    "reset_first": Fault(
        "the reset gate multiplies the state before the product, as Keras's reset_after=False",
        "cell-form",
        change_model(is_reset_first=True),
        equivalents=("layer-order",),
    ),
    "gold_start": Fault(
        "the score of the gold path lacks the start score of its first tag",
        "missing-term",
        change_model(has_gold_start=False),
        equivalents=("missing-step", "bias-missing"),
    ),
    "auxiliary_gradient": Fault(
        "the words' loss sends a tenth of its gradient back into the encoder",
        "gradient-scaled",
        change_model(auxiliary_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.auxiliary_gradient / clean.auxiliary_gradient)],
        equivalents=("constant-factor",),
    ),
    "end_column": Fault(
        "the end score of the gold path is that of the last column's tag, also if it is padding",
        "input-source",
        change_model(is_end_last=True),
        equivalents=("pooling", "mask-missing", "argument", "position-offset"),
    ),
    "transitions_transposed": Fault(
        "transitions stored from column to row are loaded as they are",
        "weight-transposed",
        change_weight("crf.transitions", lambda table: table.T),
        lambda *_: [Anywhere("transpos|axes")],
        equivalents=("axes-swapped",),
    ),
    "loss_tokens": Fault(
        "the CRF's loss is divided by the tokens, not by the sentences",
        "loss-reduction",
        change_model(loss_reduction="tokens"),
        lambda *_: [Ratio(BATCH / sum(LENGTHS))],
        equivalents=("constant-factor", "loss-weight"),
    ),
    "gate_detached": Fault(
        "the highway's gate is computed from a detached input",
        "gradient-stopped",
        change_model(is_gate_detached=True),
    ),
    "lengths_ignored": Fault(
        "the GRU is not given the lengths: the backward direction begins in the padding",
        "mask-missing",
        change_model(is_packed=False),
        equivalents=("mask-kind", "missing-step", "argument"),
    ),
    "vector_rate": Fault(
        "biases, start and end scores learn ten times as fast",
        "learning-rate",
        change_optimizer(group="vectors", group_rate=10.0),
        lambda *_: [Ratio(10.0)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "words_by_step": Fault(
        "features of words' characters, flattened sentence by sentence, are read back as if the "
        "step were the first axis",
        "axes-swapped",
        change_model(are_words_by_step=True),
        equivalents=("input-order", "row-shift", "input-source", "missing-step"),
    ),
    "carry_stopped": Fault(
        "the backward pass of a fused highway lacks the gradient of the input that it carries",
        "gradient-stopped",
        change_model(is_carry_stopped=True),
        equivalents=("missing-term", "skip-missing"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("char_mean", "mindspore"),
    ("highway_offset", "mindspore"),
    ("gate_order", "mindspore"),
    ("reset_first", "mindspore"),
    ("gold_start", "mindspore"),
    ("auxiliary_gradient", "mindspore"),
    ("end_column", "pytorch"),
    ("transitions_transposed", "pytorch"),
    ("loss_tokens", "pytorch"),
    ("gate_detached", "pytorch"),
    ("lengths_ignored", "pytorch"),
    ("vector_rate", "pytorch"),
    ("words_by_step", "mindspore"),
    ("carry_stopped", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "written": ("", "written"),
    "cells": ("", "cells"),
    "projected": ("projected", ""),
    "joined": ("joined", "written"),
}
